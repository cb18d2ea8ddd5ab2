"""Drafts: guesses how an output goes on, from prompt, output and tree, or from its constraint.

    … the Eiffel Tower is in Paris. The Eiffel Tow   ->   er is in Paris .     (n-grams)
    {"name                                           ->   ":"                  (held open)

A draft costs one row of a few tokens instead of one; whatever of it equals the keyed draws is
kept, so speculation changes no token. No torch here.

Source: Saxena, "Prompt Lookup Decoding" (2023); Yang et al., "Inference with Reference" (2023).
"""

from __future__ import annotations

import numpy as np

from lmlang.runtime.cache.radix import RadixCache
from lmlang.runtime.sequence import GenerateTask, Sequence

MAX_DRAFT = 8
"""Tokens of one draft."""
LONGEST, SHORTEST = 4, 2
"""Tokens at the end that must stand before, too, for what followed there to be a draft."""
LOOK_BACK = 4096
"""Tokens that are searched."""


class Drafter:
    """Drafts for one engine; the engine thread's own.

    Args:
        tree: Asked once for each sequence how its prompt went on before.
    """

    def __init__(self, tree: RadixCache) -> None:
        self._tree = tree

    def draft(self, sequence: Sequence, room: int) -> tuple[int, ...]:
        """Up to ``room`` tokens that may follow; none where nothing suggests any.

        An output that cannot take more than one more token gets none.
        """
        task = sequence.task
        count = min(room, MAX_DRAFT, sequence.growth - len(sequence.generated) - 1)
        if not isinstance(task, GenerateTask) or count <= 0 or not _may_run_ahead(task):
            return ()
        if task.request.constraint is not None:  # which foresees by itself what it can
            return ()
        made = sequence.generated
        if len(made) == 1:
            task.foreseen = self._tree.continuation(
                sequence.prompt, min(sequence.growth, LOOK_BACK), sequence.namespace
            )
        foreseen = task.foreseen
        if len(foreseen) > len(made) and made == foreseen[: len(made)].tolist():
            return tuple(foreseen[len(made) : len(made) + count].tolist())
        recent = sequence.tokens(max(0, sequence.length - LOOK_BACK), sequence.length)
        return _seen_before(recent, count)


def foresees(sequence: Sequence) -> bool:
    """Whether there may be something `received` or `held`."""
    task = sequence.task
    if not isinstance(task, GenerateTask):
        return False
    if task.request.constraint is None:
        return bool(task.request.resumed)
    return task.output.constraint is not None and task.output.constraint.held is not None


def received(sequence: Sequence, room: int) -> tuple[int, ...]:
    """Up to ``room`` tokens that whoever asked has received before: a draft that is right."""
    task = sequence.task
    if not isinstance(task, GenerateTask) or not task.request.resumed or not _may_run_ahead(task):
        return ()
    if task.request.constraint is not None:
        return ()
    made = len(sequence.generated)
    count = min(room, sequence.growth - made - 1)
    return task.request.resumed[made : made + max(0, count)]


def held(sequence: Sequence, room: int) -> tuple[int, ...]:
    """The token that a constraint holds open behind what it forces, as a draft of ``room``."""
    task = sequence.task
    if not isinstance(task, GenerateTask) or task.request.constraint is None or room <= 0:
        return ()
    token = None if task.output.constraint is None else task.output.constraint.held
    if token is None or len(sequence.generated) + 1 >= sequence.growth or not _may_run_ahead(task):
        return ()
    return (token,)


def _may_run_ahead(task: GenerateTask) -> bool:
    """Whether several tokens can be drawn in one step: no draw waits for the one before."""
    if task.request.processor is not None:
        return False
    return not task.output.barred() and task.output.allowed() is None


def _seen_before(tokens: np.ndarray[tuple[int], np.dtype[np.int64]], count: int) -> tuple[int, ...]:
    """What followed the last place where the final tokens stood before."""
    for size in range(LONGEST, SHORTEST - 1, -1):
        if len(tokens) <= size:
            continue
        windows = np.lib.stride_tricks.sliding_window_view(tokens[:-1], size)
        places = np.flatnonzero((windows == tokens[-size:]).all(axis=1))
        if len(places):
            after = int(places[-1]) + size
            return tuple(tokens[after : after + count].tolist())
    return ()
