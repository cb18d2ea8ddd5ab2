"""Samples of one generation: one of them computes the prompt, the others start from its logits."""

from __future__ import annotations

import numpy as np

from lmlang.runtime.sequence import GenerateTask, Sequence

Key = tuple[str, str, str]
"""Whose samples: (run, operation, namespace)."""


class Samples:
    """Sequences of generations by where they come from; the scheduler's own.

    The first sample that is admitted leads until its prompt is computed or it leaves.
    """

    def __init__(self) -> None:
        self._of: dict[Key, dict[Sequence, None]] = {}
        self._leaders: dict[Key, Sequence] = {}

    def add(self, sequence: Sequence) -> None:
        """A sequence came."""
        key = _key(sequence)
        if key is not None:
            self._of.setdefault(key, {})[sequence] = None

    def remove(self, sequence: Sequence) -> None:
        """A sequence is out."""
        key = _key(sequence)
        if key is None or sequence not in self._of.get(key, ()):
            return
        self.leave(sequence)
        del self._of[key][sequence]
        if not self._of[key]:
            del self._of[key]

    def lead(self, sequence: Sequence) -> None:
        """A sequence is admitted; it leads where nobody does and it has its prompt before it."""
        key = _key(sequence)
        if key is not None and not sequence.generated:
            self._leaders.setdefault(key, sequence)

    def leave(self, sequence: Sequence) -> None:
        """A sequence leads no more."""
        key = _key(sequence)
        if key is not None and self._leaders.get(key) is sequence:
            del self._leaders[key]

    def follows(self, sequence: Sequence) -> bool:
        """Whether a sequence that waits will be able to start from its leader's logits."""
        key = _key(sequence)
        leader = None if key is None else self._leaders.get(key)
        return leader is not None and _starts_from(leader, sequence)

    def led_by(self, leader: Sequence) -> list[Sequence]:
        """Those that wait for a leader whose prompt is computed; it leads no more."""
        key = _key(leader)
        if key is None or self._leaders.get(key) is not leader:
            return []
        del self._leaders[key]
        waiting = (other for other in self._of[key] if other.lease is None)
        return [other for other in waiting if _starts_from(leader, other)]


def _key(sequence: Sequence) -> Key | None:
    """None for what is no sample of a program's generation."""
    tag = sequence.tag
    if not tag.run_id or not isinstance(sequence.task, GenerateTask):
        return None
    return tag.run_id, tag.op_path, sequence.namespace


def _starts_from(leader: Sequence, other: Sequence) -> bool:
    """Whether the last logits of the one's prompt are all that the other needs of its own."""
    fresh = not other.reached and other.first_logit == len(other.prompt) - 1
    return fresh and np.array_equal(leader.prompt, other.prompt)
