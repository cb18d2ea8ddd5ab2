"""Plans each step: which sequences compute how many tokens. No tensors, no torch.

    plan = [ decode rows: 1 token each (and drafts) | chunk | chunk | ... ]   one token budget

Decode rows come first, then prompts, the shortest first, though the oldest always gets a share.
New sequences come in by the order of the policy (`policy.py`). A waiting sequence whose next token
another row of this plan is about to compute, behind the same cached prefix, waits for it: a shared
prefix is computed once, and after that step the late-comer finds it in the tree.

A sequence grows block by block. Where the pool is full, what nothing uses is evicted; where that
is not enough, the sequence that came last is retracted: it keeps its tokens, gives up its slots,
and comes back before all that are new. Whoever came first is never retracted, so all end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lmlang.runtime.cache.manager import CacheManager
from lmlang.runtime.drafting import Drafter, foresees, held, received
from lmlang.runtime.policy import Waiting
from lmlang.runtime.runs import Runs
from lmlang.runtime.samples import Samples
from lmlang.runtime.sequence import Answer, Sequence

Frontier = tuple[str, int, int]
"""Where a prompt goes on: (namespace, slot of its last cached token or -1, its next token)."""
BLOCK = 64
"""Positions that a sequence grows by; it also gets so many beyond its prompt at first."""
OLDEST_SHARE = 4
"""The oldest prompt under way gets at least one in so many tokens of the budget."""


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's part in a step: it computes its next ``count`` tokens, the draft included.

    Where it is ``decoding``, the first of them is the one that was drawn last.
    """

    sequence: Sequence
    count: int
    draft: tuple[int, ...] = ()
    decoding: bool = False


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
        policy: One of `policy.POLICIES`.
        share: Whether a prefix that is being computed is waited for.
        drafter: Guesses tokens that decode rows verify; None for no speculation.
        even: Whether decode rows stay single tokens unless they are speculated on: where steps of
            nothing else are much faster.
    """

    def __init__(
        self,
        cache: CacheManager,
        max_batch_tokens: int,
        max_running: int,
        *,
        policy: str = "fcfs",
        share: bool = True,
        drafter: Drafter | None = None,
        even: bool = False,
    ) -> None:
        self.cache = cache
        self.max_batch_tokens = max_batch_tokens
        self.max_running = min(max_running, max_batch_tokens)
        self.runs = Runs(cache)
        self.waiting = Waiting(policy, cache, self.runs)
        self.running: list[Sequence] = []
        self.retractions = 0
        self._ranked = policy == "priority"
        self._share = share
        self._drafter = drafter
        self._even = even
        self._by_answer: dict[Answer, set[Sequence]] = {}
        self._samples = Samples()
        self._usual = 0.5
        """Which part of their max_tokens outputs have used of late."""

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.add(sequence)
        self._samples.add(sequence)
        self._by_answer.setdefault(sequence.task.answer, set()).add(sequence)

    def sequences(self) -> list[Sequence]:
        """All of them, running and waiting."""
        return [*self.running, *self.waiting]

    def working_for(self, answer: Answer) -> list[Sequence]:
        """The sequences that one answer waits for."""
        return list(self._by_answer.get(answer, ()))

    def remove(self, sequence: Sequence, *, trusted: bool = True, ended: bool = False) -> None:
        """Take a sequence out, wherever it is.

        What it has computed stays in the tree; with ``trusted=False``, where its last step went
        wrong, only what the tree has already. ``ended`` says that it came to its end, so that its
        program may go on from there.
        """
        mine = self._by_answer[sequence.task.answer]
        mine.remove(sequence)
        if not mine:
            del self._by_answer[sequence.task.answer]
        self._samples.remove(sequence)
        if sequence.lease is None:
            self.waiting.remove(sequence)
            return
        self.running.remove(sequence)
        lease, sequence.lease = sequence.lease, None
        kept = min(sequence.computed, sequence.stem) if trusted else lease.shared
        node = self.cache.release(lease, sequence.tokens(0, kept))
        if ended:
            self.runs.stands(sequence, node)
            if sequence.growth:
                used = len(sequence.generated) / sequence.growth
                self._usual += 0.1 * (min(1.0, used) - self._usual)

    def retract(self, sequence: Sequence, *, due: bool = True) -> None:
        """Free the slots of a running sequence; it waits, with its tokens, to go on later.

        Before all others, or with ``due=False`` where the policy puts it.
        """
        assert sequence.lease is not None
        self.running.remove(sequence)
        kept = sequence.tokens(0, min(sequence.computed, sequence.stem))
        self.cache.release(sequence.lease, kept)
        sequence.retract()
        self._samples.leave(sequence)
        self.waiting.add_again(sequence, due=due)
        self.retractions += 1
        self._usual = min(1.0, self._usual + 0.2)

    def followers(self, leader: Sequence) -> list[Sequence]:
        """Admit the other samples of a generation whose prompt has just been computed.

        They need nothing computed: the logits of the prompt's last token are theirs as well.
        """
        admitted: list[Sequence] = []
        led = self._samples.led_by(leader) if self._share else []
        if not led:  # as at nearly every token
            return admitted
        length = len(leader.prompt)
        expected = sum(self._expected(s, s.lease.capacity) for s in self.running if s.lease)
        for sequence in led:
            if len(self.running) >= self.max_running:
                break
            found = self.cache.match(sequence.prompt, length, sequence.namespace)
            assert found.length == length, "a prompt that was computed is not in the tree"
            capacity = max(length, min(sequence.capacity, length + BLOCK))
            expected += self._expected(sequence, capacity)
            lease = self.cache.lease(found, capacity, int(expected))
            if lease is None:
                break
            self.waiting.admit(sequence)
            sequence.lease = lease
            sequence.find(length)
            self.running.append(sequence)
            admitted.append(sequence)
        return admitted

    def plan(self) -> Plan:
        """The next step; empty where nothing can run."""
        decoding = self._make_room()
        if len(decoding) == len(self.running) and not self.waiting:
            return Plan(
                tuple(self._decode_rows(decoding, self.max_batch_tokens - len(decoding))), ()
            )
        budget = self.max_batch_tokens - len(decoding)
        prefilling = [sequence for sequence in self.running if not sequence.decoding]
        admitted = self._admit(budget, prefilling)
        prefilling += admitted
        chunks = self._chunks(budget, prefilling)
        budget -= sum(chunks.values())
        rows = self._decode_rows([s for s in decoding if s.lease], budget)
        for sequence in prefilling:
            count = chunks.get(sequence)
            if count and sequence.lease:
                # None behind a part of what is known: that leaves nothing of the budget.
                draft = held(sequence, min(budget, sequence.lease.capacity - sequence.length))
                budget -= len(draft)
                rows.append(Row(sequence, count + len(draft), draft, sequence.decoding))
        rows.sort(key=lambda row: not row.decoding)  # who came back may only lack one
        return Plan(tuple(rows), tuple(sequence for sequence in admitted if sequence.lease))

    # ------------------------------------------------------------------ slots

    def _make_room(self) -> list[Sequence]:
        """The decode rows, each with a slot for its next token; others may be retracted for it.

        Outputs whose next tokens are known get slots for them likewise.
        """
        decoding, short = [], []
        for sequence in self.running:
            prompt, lease = len(sequence.prompt), sequence.lease
            length = prompt + len(sequence.generated)
            assert lease is not None
            if sequence.computed < prompt:
                continue
            if length > len(lease.table):
                short.append(sequence)
            if length - sequence.computed == 1:
                decoding.append(sequence)
        if not short:
            return decoding
        for sequence in sorted(short, key=self._rank):
            if sequence.lease is not None:  # else it was retracted for one before it
                self._reserve(sequence)
        return [sequence for sequence in decoding if sequence.lease is not None]

    def _reserve(self, sequence: Sequence) -> None:
        """Get slots for the tokens of a sequence that lacks some, or retract it."""
        lease = sequence.lease
        assert lease is not None
        lacking = sequence.length - lease.capacity
        wanted = max(lacking, min(BLOCK, sequence.capacity - lease.capacity))
        if self.cache.grow(lease, wanted):
            return
        for other in self.running:
            assert other.lease is not None
            self.cache.trim(other.lease, max(other.length, other.computed + 1))
        while not self.cache.grow(lease, lacking):
            last = max(self.running, key=self._rank)
            self.retract(last)
            if last is sequence:
                return

    def _rank(self, sequence: Sequence) -> tuple[int, int]:
        """Who is last by this is retracted first."""
        return (-sequence.tag.priority if self._ranked else 0, sequence.arrival)

    def _expected(self, sequence: Sequence, capacity: int) -> float:
        """Slots that a sequence will probably want beyond ``capacity``."""
        return self._usual * max(0, sequence.capacity - capacity)

    # ------------------------------------------------------------------ admission

    def _admit(self, budget: int, prefilling: list[Sequence]) -> list[Sequence]:
        """Lease slots to waiting sequences in the order of the policy."""
        admitted: list[Sequence] = []
        held_back: list[Sequence] = []
        if budget <= 0 or not self.waiting:
            return admitted
        frontiers = {f: sequence for sequence in prefilling if (f := self._frontier(sequence))}
        expected = sum(self._expected(s, s.lease.capacity) for s in self.running if s.lease)
        pending = [sequence.pending for sequence in prefilling]
        for sequence in self.waiting.candidates():
            # A prompt that takes more than a step must not keep short ones from coming in.
            full = len(self.running) >= self.max_running
            if sum(pending) - max(pending, default=0) >= budget or (full and not self._ranked):
                break
            if self._share and self._samples.follows(sequence):
                held_back.append(sequence)
                continue
            tokens = sequence.tokens(0, sequence.length)
            found = self.cache.match(tokens, sequence.cacheable, sequence.namespace)
            last_slot = int(found.match.slots[-1]) if found.match.length else -1
            frontier = (sequence.namespace, last_slot, int(tokens[found.match.length]))
            # Waiting helps only below `cacheable`: from there on it must compute itself anyway.
            # Nor is there anything to wait for once whoever computed that was preempted.
            ahead = frontiers.get(frontier)
            if found.length < sequence.cacheable and ahead is not None and ahead.lease is not None:
                held_back.append(sequence)
                continue
            # Not before: nobody has to leave for whoever does not come in yet.
            if full:
                if not self._preempt(sequence):
                    break
                found = self.cache.match(tokens, sequence.cacheable, sequence.namespace)
            capacity = min(sequence.capacity, sequence.length + BLOCK)
            while True:
                spare = expected + self._expected(sequence, capacity) if self.running else 0
                lease = self.cache.lease(found, capacity, int(spare))
                if lease is not None or not self._preempt(sequence):
                    break
                found = self.cache.match(tokens, sequence.cacheable, sequence.namespace)
            if lease is None:
                break  # nobody overtakes whoever only lacks room
            self.runs.begin(sequence.tag.run_id)
            self.waiting.admit(sequence)
            self._samples.lead(sequence)
            sequence.lease = lease
            sequence.find(found.length)
            self.running.append(sequence)
            admitted.append(sequence)
            pending.append(sequence.pending)
            expected += self._expected(sequence, capacity)
            own = self._frontier(sequence)
            if own and int(tokens[found.length]) not in lease.node.children:
                frontiers[own] = sequence
        if held_back:
            self.waiting.back_to(held_back[0])
        return admitted

    def _preempt(self, sequence: Sequence) -> bool:
        """Retract the last of those with a lower priority, where priorities count."""
        mine = sequence.tag.priority
        less = [s for s in self.running if s.tag.priority < mine and not s.aged]
        if not self._ranked or not less:
            return False
        self.retract(max(less, key=self._rank), due=False)
        return True

    def _frontier(self, sequence: Sequence) -> Frontier | None:
        """Where a running sequence computes next, if the tree can keep that for others."""
        lease, at = sequence.lease, sequence.computed
        if not self._share or lease is None or at >= sequence.stem:
            return None
        last_slot = int(lease.table[at - 1]) if at else -1
        return sequence.namespace, last_slot, int(sequence.tokens(at, at + 1)[0])

    # ------------------------------------------------------------------ the budget

    def _chunks(self, budget: int, prefilling: Iterable[Sequence]) -> dict[Sequence, int]:
        """How many tokens each prompt computes: the shortest first, a share for the oldest."""
        waiting = sorted((s for s in prefilling if s.lease), key=lambda s: s.pending)
        chunks: dict[Sequence, int] = {}
        if not waiting or budget <= 0:
            return chunks
        oldest = min(waiting, key=self._rank)
        chunks[oldest] = min(oldest.pending, max(1, budget // OLDEST_SHARE))
        budget -= chunks[oldest]
        for sequence in waiting:
            has = chunks.get(sequence, 0)
            chunks[sequence] = has + min(sequence.pending - has, budget)
            budget -= chunks[sequence] - has
        return chunks

    def _decode_rows(self, sequences: list[Sequence], budget: int) -> list[Row]:
        """Decode rows, with drafts as far as slots and the budget allow them."""
        rows = []
        for sequence in sequences:
            drafts = self._drafter is not None or foresees(sequence)
            draft = self._draft(sequence, budget) if drafts else ()
            rows.append(Row(sequence, 1 + len(draft), draft, decoding=True))
        return rows

    def _draft(self, sequence: Sequence, budget: int) -> tuple[int, ...]:
        """What probably follows; of what is left of the budget every running sequence has a share.

        The budget is without the sequences' own tokens.
        """
        assert sequence.lease is not None
        room = min(budget // len(self.running), sequence.lease.capacity - sequence.computed - 1)
        if room <= 0:
            return ()
        draft = received(sequence, room)
        if not draft and not self._even:
            draft = held(sequence, room)
        if not draft and self._drafter is not None:
            draft = self._drafter.draft(sequence, room)
        return draft
