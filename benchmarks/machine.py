"""Runs a load on the real scheduler and cache by counting: no model, no torch, no clock.

    step   plan ──> every planned token counts as computed ──> who has none pending makes one

Every token that is made gets a number of its own, so outputs meet nowhere. A run goes on in the
step after the one that ended its turn. Tests may import it as they do `loads`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from lmlang.protocol import Generation, Prompt, Request, SamplingParams, Tag
from lmlang.runtime.cache.manager import CacheManager
from lmlang.runtime.scheduler import Scheduler
from lmlang.runtime.sequence import GenerateTask, Sequence

if TYPE_CHECKING:
    from loads import Ids, Load, Run, Turn

MADE = 1_000_000
"""Tokens that are made are from here on."""
ENDLESS = 1 << 20
"""Steps after which a load does not come to its end."""


@dataclass(eq=False, slots=True)
class Client:
    """One run of a load, and what it has got of its turn."""

    run_id: str
    run: Run
    outputs: list[Ids | None] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose a sequence is, which of the turn's, and since when."""

    client: Client
    index: int
    step: int


class Machine:
    """Scheduler and cache of one runtime, driven by counting.

    Args:
        slots: Of the pool.
        policy: One of the scheduler's.
        eviction: "program" or "lru".
        budget: Tokens of one step.
        max_running: Sequences at a time.
    """

    def __init__(
        self,
        slots: int,
        policy: str = "program",
        eviction: str = "program",
        *,
        budget: int = 128,
        max_running: int = 16,
    ) -> None:
        self.cache = CacheManager(slots, informed=eviction == "program")
        self.scheduler = Scheduler(self.cache, budget, max_running, policy=policy)
        self.now = self.steps = 0
        self.prompt_tokens = self.cached_tokens = 0
        self.computed_tokens = self.recomputed_tokens = 0
        self.asked: list[tuple[Ids, Ids]] = []
        """Prompts and outputs in the order of asking."""
        self.waits: list[int] = []
        """Steps that each sequence waited, in the order of admission."""
        self._origins: dict[Sequence, Origin] = {}
        self._outputs: dict[Sequence, Ids] = {}
        self._later: list[tuple[int, int, Callable[[], None]]] = []
        self._order, self._made = count(), count(MADE)

    def run(self, load: Load) -> None:
        """Run a load to its end. Raises AssertionError where it does not come to one."""
        for number, (arrival, start) in enumerate(load.runs):
            self._at(arrival, partial(self._go_on, Client(str(number), start()), None))
        while self._later or self._origins:
            if not self._origins:  # nothing is under way: time passes by itself
                self.now = max(self.now, self._later[0][0])
            while self._later and self._later[0][0] <= self.now:
                heapq.heappop(self._later)[-1]()
            if self._origins:
                self.step()
            self.now += 1
            assert self.now < ENDLESS, f"{load.name} does not come to its end"

    def step(self) -> None:
        """Plan, count, and let every sequence that has nothing pending make a token."""
        plan = self.scheduler.plan()
        assert plan.rows, "sequences wait, and none can run"
        self.steps += 1
        for sequence in plan.admitted:
            if not sequence.retractions:
                self.prompt_tokens += len(sequence.prompt)
                self.cached_tokens += sequence.cached_tokens
                self.waits.append(self.now - self._origins[sequence].step)
        for row in plan.rows:
            sequence, decoding = row.sequence, row.sequence.decoding
            again = sequence.advance(row.count)
            self.recomputed_tokens += again
            self.computed_tokens += row.count
            self.scheduler.runs.serve(sequence.tag.run_id, row.count)
            if not decoding:
                assert sequence.lease is not None
                self.cache.commit(sequence.lease, sequence.tokens(0, sequence.computed))
            if not sequence.pending:
                self._make(sequence, next(self._made))

    def _make(self, sequence: Sequence, token: int) -> None:
        """One more token; the last one of a turn lets its run go on."""
        self._outputs[sequence].append(token)
        if len(sequence.generated) + 1 < sequence.growth:
            sequence.generated.append(token)
            return
        self.scheduler.remove(sequence, ended=True)  # as the engine: the last is never computed
        origin, output = self._origins.pop(sequence), self._outputs.pop(sequence)
        client = origin.client
        client.outputs[origin.index] = output
        done = [each for each in client.outputs if each is not None]
        if len(done) == len(client.outputs):
            self._at(self.now + 1, partial(self._go_on, client, done))

    def _go_on(self, client: Client, outputs: list[Ids] | None) -> None:
        """Let a run take its outputs and ask, now or after what it does meanwhile."""
        try:
            turn = next(client.run) if outputs is None else client.run.send(outputs)
        except StopIteration:
            self.scheduler.runs.end(client.run_id)
            return
        self._at(self.now + turn.after, partial(self._ask, client, turn))

    def _ask(self, client: Client, turn: Turn) -> None:
        client.outputs = [None] * len(turn.asks)
        for index, ask in enumerate(turn.asks):
            generation = Generation(Request(Prompt(), SamplingParams(max_tokens=ask.tokens)))
            sequence = Sequence(
                np.array(ask.prompt, dtype=np.int64),
                len(ask.prompt) - 1,
                ask.tokens,
                GenerateTask(generation, None),  # type: ignore[arg-type]  # no text is made
                tag=Tag(client.run_id, f"{ask.state}/{index}"),
            )
            output: Ids = []
            self.asked.append((ask.prompt, output))
            self._origins[sequence] = Origin(client, index, self.now)
            self._outputs[sequence] = output
            self.scheduler.add(sequence)

    def _at(self, step: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._later, (step, next(self._order), action))
