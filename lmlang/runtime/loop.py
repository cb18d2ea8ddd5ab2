"""The engine loop: one step is plan, run, commit.

    plan    which sequences compute how many tokens (scheduler)
    run     one forward pass over all of them (batch, model runner)
    commit  computed prompts to the tree; sample or score; ended sequences out; answers delivered

Used from one thread only. It knows no queue and no lock: `engine.py` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import torch

from lmlang.errors import GrammarDeadEnd, LMLangError, ModelError
from lmlang.runtime.cache.manager import CacheManager
from lmlang.runtime.cache.pool import KVPool
from lmlang.runtime.commit import Commit
from lmlang.runtime.metrics import Counters, Stats
from lmlang.runtime.model_runner import ModelRunner
from lmlang.runtime.scheduler import Plan, Scheduler
from lmlang.runtime.sequence import Answer, GenerateTask, PieceTask, Sequence
from lmlang.runtime.shortage import out_of_memory


class EngineLoop:
    """Sequences, tree and pool, moved on step by step.

    Args:
        runner: Model and pool.
        cache: Of the pool's slots.
        scheduler: Of the same cache.
        host: The bytes of the cache's host tier, if it has one.
    """

    def __init__(
        self,
        runner: ModelRunner,
        cache: CacheManager,
        scheduler: Scheduler,
        host: KVPool | None = None,
    ) -> None:
        self.runner = runner
        self.cache = cache
        self.scheduler = scheduler
        self.host = host
        self.counters = Counters()
        self._on_cuda = runner.pool.device.type == "cuda"

    def has_work(self) -> bool:
        """Whether any sequence waits or runs."""
        return bool(self.scheduler.waiting or self.scheduler.running)

    def add(self, sequence: Sequence) -> None:
        """Take in a request: its first sequence, which knows the others."""
        self.counters.requests += 1
        self.scheduler.add(sequence)
        if isinstance(sequence.task, PieceTask):
            for other in sequence.task.others:
                self.scheduler.add(other)

    def step(self, planned: Callable[[int], None] = lambda waiting: None) -> None:
        """One forward pass. A failure of it fails the rows that took part, and only those.

        Args:
            planned: Told how many sequences wait once the plan is made, before it runs.
        """
        begun = time.perf_counter()
        if self._on_cuda:  # of this thread: kernels go to it
            torch.cuda.set_device(self.runner.pool.device)
        plan = self.scheduler.plan()
        if not plan.rows:
            raise AssertionError("sequences wait and none can run: the pool is too small for them")
        planned(len(self.scheduler.waiting))
        commit = Commit(self.scheduler, self.cache, self.counters)
        for sequence in plan.admitted:
            commit.admit(sequence)
        copied = False
        try:
            if self.host is not None:
                self._copy(self.host)
            copied = True
            batch = self.runner.batch(plan)
            started = time.perf_counter()
            logits = self.runner.run(batch)
            if self._on_cuda:
                _fill_masks(plan)
            self.counters.forward_seconds += time.perf_counter() - started
            commit.run(plan, batch.logit_rows, logits)
        except Exception as error:
            tokens = sum(row.count for row in plan.rows)
            failure = _step_failure(error, tokens, self.runner.pool.device)
            # Samples that came in behind a leader have no row, and got no token to go on with.
            late = [s for s in self.scheduler.running if not s.pending]
            failed = [*(row.sequence for row in plan.rows), *late]
            for sequence in failed if copied else list(self.scheduler.running):
                commit.fail(sequence, failure)
            if not copied:
                # Tree and host tier name slots whose bytes never arrived: nothing may find them.
                self.cache.flush()
        self.counters.steps += 1
        self.counters.step_seconds += time.perf_counter() - begun
        # Last of all, so that whoever is woken finds tree, slots and counters as they are.
        commit.deliver()

    def drop(self, answer: Answer) -> None:
        """Take out the sequences that an answer waits for; their slots are free at once.

        Telling whoever waits is the caller's business.
        """
        for sequence in self.scheduler.working_for(answer):
            self.scheduler.remove(sequence)

    def stats(self) -> Stats:
        """The numbers now."""
        c = self.counters
        tree, free = self.cache.tree.total_tokens, self.cache.allocator.free_count
        host = self.cache.host
        return Stats(
            requests=c.requests,
            prompt_tokens=c.prompt_tokens,
            cached_tokens=c.cached_tokens,
            prefill_tokens=c.prefill_tokens,
            decode_tokens=c.decode_tokens,
            forced_tokens=c.forced_tokens,
            recomputed_tokens=c.recomputed_tokens,
            computed_tokens=(
                c.prefill_tokens + c.decode_tokens + c.forced_tokens + c.recomputed_tokens
            ),
            sampled_tokens=c.sampled_tokens,
            generated_tokens=c.sampled_tokens + c.forced_tokens,
            scored_tokens=c.scored_tokens,
            drafted_tokens=c.drafted_tokens,
            accepted_tokens=c.accepted_tokens,
            host_tokens=c.host_tokens,
            steps=c.steps,
            retractions=self.scheduler.retractions,
            evicted_tokens=self.cache.evicted_tokens,
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            kv_tokens_total=self.cache.allocator.total,
            kv_tokens_used=self.cache.allocator.total - free,
            kv_tokens_tree=tree,
            kv_tokens_host=0 if host is None else host.tree.total_tokens,
            forward_seconds=c.forward_seconds,
            step_seconds=c.step_seconds,
        )

    def reset_stats(self) -> None:
        """Set all totals to 0."""
        self.counters = Counters()
        self.cache.evicted_tokens = self.scheduler.retractions = 0

    def _copy(self, host: KVPool) -> None:
        """Move what left the pool to the host tier, and what came back from there."""
        for copy in self.cache.take_copies():
            pool = self.runner.pool
            if copy.to_host:
                host.copy_from(pool, copy.pool, copy.host)
            else:
                pool.copy_from(host, copy.host, copy.pool)


def _fill_masks(plan: Plan) -> None:
    """Make the masks of the draws to come, while a device is still computing."""
    for row in plan.rows:
        task = row.sequence.task
        if not isinstance(task, GenerateTask) or task.output.constraint is None:
            continue
        if row.sequence.pending == row.count:
            with suppress(GrammarDeadEnd):  # which the draw itself then raises
                task.output.constraint.mask()


def _step_failure(error: Exception, tokens: int, device: torch.device) -> LMLangError:
    if isinstance(error, LMLangError):
        return error
    shortage = out_of_memory(error, tokens, device)
    if shortage is not None:
        return shortage
    failure = ModelError(
        f"the forward pass failed: {type(error).__name__}: {str(error)[:500]}. "
        "The runtime goes on with other requests."
    )
    failure.__cause__ = error
    return failure
