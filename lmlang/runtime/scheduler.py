"""Plans each step: which sequences compute how many tokens. No tensors, no torch.

    plan = [ decode rows: 1 token each | chunk | chunk | ... ]      one token budget for all

Order is first come, first served. Decode rows come first, then the prompts under way, then new
ones, as long as budget and slots last. A waiting sequence whose next token another row of this
plan is about to compute, behind the same cached prefix, waits for it: a shared prefix is computed
once, and after that step the late-comer finds it in the tree.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from lmlang.runtime.cache.manager import CacheManager
from lmlang.runtime.sequence import Answer, Sequence

Frontier = tuple[int, int]
"""Where a prompt goes on: (slot of its last cached token or -1, its next token)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's part in a step: it computes its next ``count`` tokens."""

    sequence: Sequence
    count: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. Decode rows come first; ``admitted`` are the sequences that it starts."""

    rows: tuple[Row, ...]
    admitted: tuple[Sequence, ...]


class Scheduler:
    """Waiting and running sequences; the engine thread's own.

    Args:
        cache: Leases the slots.
        max_batch_tokens: Tokens that one step computes at most.
        max_running: Sequences that hold slots at a time, at most max_batch_tokens.
    """

    def __init__(self, cache: CacheManager, max_batch_tokens: int, max_running: int) -> None:
        self.cache = cache
        self.max_batch_tokens = max_batch_tokens
        self.max_running = min(max_running, max_batch_tokens)
        # Ordered, and anything can leave from the middle: thousands may be cancelled at once.
        self.waiting: OrderedDict[Sequence, None] = OrderedDict()
        self.running: list[Sequence] = []
        self._by_answer: dict[Answer, set[Sequence]] = {}

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence behind all others."""
        self.waiting[sequence] = None
        self._by_answer.setdefault(sequence.task.answer, set()).add(sequence)

    def add_first(self, sequences: Iterable[Sequence]) -> None:
        """Queue sequences before all others, in their order: parts of a request under way."""
        for sequence in reversed(list(sequences)):
            self.add(sequence)
            self.waiting.move_to_end(sequence, last=False)

    def sequences(self) -> list[Sequence]:
        """All of them, running and waiting."""
        return [*self.running, *self.waiting]

    def working_for(self, answer: Answer) -> list[Sequence]:
        """The sequences that one answer waits for."""
        return list(self._by_answer.get(answer, ()))

    def remove(self, sequence: Sequence, *, trusted: bool = True) -> None:
        """End a sequence, wherever it is.

        What it has computed stays in the tree; with ``trusted=False``, where its last step went
        wrong, only what the tree has already.
        """
        mine = self._by_answer[sequence.task.answer]
        mine.remove(sequence)
        if not mine:
            del self._by_answer[sequence.task.answer]
        if sequence.lease is None:
            del self.waiting[sequence]
            return
        self.running.remove(sequence)
        lease, sequence.lease = sequence.lease, None
        kept = sequence.computed if trusted else lease.shared
        self.cache.release(lease, sequence.tokens(0, kept))

    def plan(self) -> Plan:
        """The next step; empty where nothing can run."""
        budget = self.max_batch_tokens
        rows = [Row(sequence, 1) for sequence in self.running if sequence.decoding]
        budget -= len(rows)
        frontiers: set[Frontier] = set()
        for sequence in self.running:
            if sequence.decoding:
                continue
            # Registered also without budget: it still owns the computing of its next tokens.
            frontiers.add(self._frontier(sequence))
            if budget > 0:
                rows.append(Row(sequence, min(sequence.pending, budget)))
                budget -= rows[-1].count
        admitted = self._admit(budget, frontiers)
        for sequence in admitted:
            rows.append(Row(sequence, min(sequence.pending, budget)))
            budget -= rows[-1].count
        return Plan(tuple(rows), tuple(admitted))

    def _admit(self, budget: int, frontiers: set[Frontier]) -> list[Sequence]:
        """Lease slots to waiting sequences in their order, for at most ``budget`` tokens."""
        admitted: list[Sequence] = []
        held_back: list[Sequence] = []
        while self.waiting and budget > 0 and len(self.running) < self.max_running:
            sequence, _ = self.waiting.popitem(last=False)
            match = self.cache.match(sequence.prompt, sequence.first_logit)
            next_token = int(sequence.prompt[match.length])
            frontier = (int(match.slots[-1]) if match.length else -1, next_token)
            # Waiting helps only below first_logit: from there on it must compute itself anyway.
            if match.length < sequence.first_logit and frontier in frontiers:
                held_back.append(sequence)
                continue
            lease = self.cache.lease(match, sequence.capacity)
            if lease is None:
                held_back.append(sequence)
                break
            if next_token not in match.node.children:
                frontiers.add(frontier)
            sequence.lease = lease
            sequence.computed = sequence.cached_tokens = match.length
            self.running.append(sequence)
            admitted.append(sequence)
            budget -= min(sequence.pending, budget)
        for sequence in reversed(held_back):
            self.waiting[sequence] = None
            self.waiting.move_to_end(sequence, last=False)
        return admitted

    def _frontier(self, sequence: Sequence) -> Frontier:
        lease = sequence.lease
        assert lease is not None
        last_slot = int(lease.table[sequence.computed - 1]) if sequence.computed else -1
        return last_slot, int(sequence.prompt[sequence.computed])
