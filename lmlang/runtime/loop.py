"""The engine loop: one step is plan, run, commit.

    plan    which sequences compute how many tokens (scheduler)
    run     one forward pass over all of them (batch, model runner)
    commit  computed prompts to the tree; sample or score; ended sequences out; answers delivered

Used from one thread only. It knows no queue and no lock: `engine.py` does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import torch
from torch import Tensor

from lmlang.errors import LMLangError, ModelError
from lmlang.kernels.sampling import log_normalisers
from lmlang.protocol import ChoiceScore, Generation, InputLogprobs, Scores, TopLogprobs, Usage
from lmlang.runtime.batch import LogitRows, build_batch
from lmlang.runtime.cache.manager import CacheManager
from lmlang.runtime.metrics import Counters, Stats
from lmlang.runtime.model_runner import ModelRunner
from lmlang.runtime.sampler import Draw, sample
from lmlang.runtime.scheduler import Plan, Scheduler
from lmlang.runtime.sequence import (
    Answer,
    BranchTask,
    GenerateTask,
    ScoreJob,
    Sequence,
    StemTask,
    branches,
)

Delivery = Callable[[], None]
_log = logging.getLogger("lmlang")


class EngineLoop:
    """Sequences, tree and pool, moved on step by step."""

    def __init__(self, runner: ModelRunner, cache: CacheManager, scheduler: Scheduler) -> None:
        self.runner = runner
        self.cache = cache
        self.scheduler = scheduler
        self.counters = Counters()

    def has_work(self) -> bool:
        """Whether any sequence waits or runs."""
        return bool(self.scheduler.waiting or self.scheduler.running)

    def add(self, sequence: Sequence) -> None:
        """Take in a request's first sequence."""
        self.counters.requests += 1
        self.scheduler.add(sequence)

    def step(self) -> None:
        """One forward pass. A failure of it fails the rows that took part, and only those."""
        begun = time.perf_counter()
        plan = self.scheduler.plan()
        if not plan.rows:
            raise AssertionError("sequences wait and none can run: the pool is too small for them")
        for sequence in plan.admitted:
            self._count_admitted(sequence)
        deliveries: list[Delivery] = []
        try:
            batch = build_batch(plan, self.runner.pool.k.device, self.runner.windows)
            started = time.perf_counter()
            logits = self.runner.run(batch)
            self.counters.forward_seconds += time.perf_counter() - started
            self._commit(plan, batch.logit_rows, logits, deliveries)
        except Exception as error:
            failure = _step_failure(error)
            for row in plan.rows:
                self._fail(row.sequence, failure, deliveries)
        self.counters.steps += 1
        self.counters.step_seconds += time.perf_counter() - begun
        # Last of all, so that whoever is woken finds tree, slots and counters as they are.
        _deliver(deliveries)

    def drop(self, answer: Answer) -> None:
        """Take out the sequences that an answer waits for; their slots are free at once.

        Telling whoever waits is the caller's business.
        """
        for sequence in self.scheduler.working_for(answer):
            self.scheduler.remove(sequence)

    def fail_all(self, error: LMLangError) -> None:
        """End every sequence with an error."""
        for sequence in self.scheduler.sequences():
            deliveries: list[Delivery] = []
            self._fail(sequence, error, deliveries)
            _deliver(deliveries)

    def stats(self) -> Stats:
        """The numbers now."""
        c = self.counters
        tree, free = self.cache.tree.total_tokens, self.cache.allocator.free_count
        return Stats(
            requests=c.requests,
            prompt_tokens=c.prompt_tokens,
            cached_tokens=c.cached_tokens,
            prefill_tokens=c.prefill_tokens,
            decode_tokens=c.decode_tokens,
            computed_tokens=c.prefill_tokens + c.decode_tokens,
            sampled_tokens=c.sampled_tokens,
            generated_tokens=c.sampled_tokens,
            scored_tokens=c.scored_tokens,
            steps=c.steps,
            evicted_tokens=self.cache.evicted_tokens,
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            kv_tokens_total=self.cache.allocator.total,
            kv_tokens_used=self.cache.allocator.total - free,
            kv_tokens_tree=tree,
            forward_seconds=c.forward_seconds,
            step_seconds=c.step_seconds,
        )

    def reset_stats(self) -> None:
        """Set all totals to 0."""
        self.counters = Counters()
        self.cache.evicted_tokens = 0

    # ------------------------------------------------------------------ commit

    def _commit(
        self,
        plan: Plan,
        logit_rows: tuple[LogitRows, ...],
        logits: Tensor,
        deliveries: list[Delivery],
    ) -> None:
        """Everything after the forward pass; the answers to deliver are added to the list."""
        normalisers = log_normalisers(logits)
        finite = torch.isfinite(normalisers).tolist()
        for rows in logit_rows:
            if not all(finite[rows.start : rows.end]):
                self._fail(rows.sequence, _not_finite(), deliveries)
        for row in plan.rows:
            if row.sequence.lease is not None:
                self._advance(row.sequence, row.count)
        draws: list[Draw] = []
        drawing: list[tuple[Sequence, GenerateTask]] = []
        for rows in logit_rows:
            sequence, task = rows.sequence, rows.sequence.task
            if sequence.lease is None:
                continue
            if isinstance(task, GenerateTask):
                self._report_inputs(rows, task, logits, normalisers)
                if not sequence.pending:
                    drawing.append((sequence, task))
                    draws.append(_draw(rows.end - 1, sequence, task))
                continue
            logprobs = logits[rows.start : rows.end] - normalisers[rows.start : rows.end, None]
            if isinstance(task, StemTask):
                self._score_stem(sequence, task.job, logprobs[0], deliveries)
            else:
                self._score_branch(rows, task, logprobs, deliveries)
        tokens = sample(logits, draws) if draws else []
        for (sequence, task), token, draw in zip(drawing, tokens, draws, strict=True):
            logprob = float(logits[draw.row, token] - normalisers[draw.row])
            top = _top(logits[draw.row], float(normalisers[draw.row]), task.request.top_logprobs)
            self._accept(sequence, task, token, logprob, top, deliveries)

    def _report_inputs(
        self, rows: LogitRows, task: GenerateTask, logits: Tensor, normalisers: Tensor
    ) -> None:
        """Note the log-probabilities of prompt tokens that these rows predict, if asked for."""
        asked, sequence = task.request.input_logprobs_from, rows.sequence
        if asked is None or rows.position >= len(sequence.prompt) - 1:
            return
        end = min(rows.end, rows.start + len(sequence.prompt) - 1 - rows.position)
        for row in range(rows.start, end):
            target = rows.position + row - rows.start + 1
            if target < asked:
                continue
            normaliser = float(normalisers[row])
            token = int(sequence.prompt[target])
            task.input_logprobs.append(float(logits[row, token]) - normaliser)
            top = _top(logits[row], normaliser, task.request.top_logprobs)
            if top is not None:
                task.input_top.append(top)

    def _advance(self, sequence: Sequence, count: int) -> None:
        """Count computed tokens and give computed prompt tokens to the tree."""
        if isinstance(sequence.task, BranchTask):
            sequence.task.job.scored_tokens += count
            self.counters.scored_tokens += count
        elif sequence.decoding:
            self.counters.decode_tokens += count
        else:
            self.counters.prefill_tokens += count
        prompt_was_done = sequence.decoding
        sequence.computed += count
        if not prompt_was_done:
            assert sequence.lease is not None
            self.cache.commit(sequence.lease, sequence.tokens(0, sequence.computed))

    def _accept(
        self,
        sequence: Sequence,
        task: GenerateTask,
        token: int,
        logprob: float,
        top: TopLogprobs | None,
        deliveries: list[Delivery],
    ) -> None:
        """One sampled token of one sequence."""
        output, generation = task.output, task.generation
        if task.request.params.max_tokens == 0:
            event = output.end_empty()
        else:
            self.counters.sampled_tokens += 1
            event = output.accept(token, logprob, top)
        deliveries.append(partial(generation.push, event))
        if event.finish is None:
            sequence.generated.append(token)
            return
        inputs = _inputs(sequence, task)
        answer = output.output(len(sequence.prompt), sequence.cached_tokens, inputs)
        deliveries.append(partial(generation.complete, answer))
        self.scheduler.remove(sequence)

    def _score_stem(
        self, sequence: Sequence, job: ScoreJob, logprobs: Tensor, deliveries: list[Delivery]
    ) -> None:
        """Score every choice's first token, and queue the rest of the longer ones."""
        job.prompt_tokens, job.cached_tokens = len(sequence.prompt), sequence.cached_tokens
        firsts = torch.tensor(
            [tail[0] if tail else 0 for tail in job.tails], device=logprobs.device
        )
        job.logprobs = [
            [value] if tail else []
            for tail, value in zip(job.tails, logprobs[firsts].tolist(), strict=True)
        ]
        job.alone_logprobs = [[] for _ in job.tails]
        following = branches(job)
        job.branches_left = len(following)
        self.scheduler.remove(sequence)
        self.scheduler.add_first(following)
        if not following:
            deliveries.append(partial(_complete_scores, job))

    def _score_branch(
        self, rows: LogitRows, task: BranchTask, logprobs: Tensor, deliveries: list[Delivery]
    ) -> None:
        """Score some more tokens of one choice; the last branch to end ends the job."""
        job, sequence = task.job, rows.sequence
        first = rows.position - sequence.first_logit
        targets = task.targets[first : first + len(logprobs)]
        index = torch.tensor(targets, device=logprobs.device)
        task.into += logprobs.gather(-1, index[:, None])[:, 0].tolist()
        if sequence.pending:
            return
        self.scheduler.remove(sequence)
        job.branches_left -= 1
        if not job.branches_left:
            deliveries.append(partial(_complete_scores, job))

    def _fail(self, sequence: Sequence, error: LMLangError, deliveries: list[Delivery]) -> None:
        """End all that a sequence's answer waits for with an error.

        What it computed in this step is not kept.
        """
        answer = sequence.task.answer
        if sequence not in self.scheduler.working_for(answer):
            return
        self.scheduler.remove(sequence, trusted=False)
        self.drop(answer)
        if isinstance(answer, Generation):
            deliveries.append(partial(answer.fail, error))
        else:
            deliveries.append(partial(_settle, answer, error))

    def _count_admitted(self, sequence: Sequence) -> None:
        if not isinstance(sequence.task, BranchTask):
            self.counters.prompt_tokens += len(sequence.prompt)
            self.counters.cached_tokens += sequence.cached_tokens


def _deliver(deliveries: list[Delivery]) -> None:
    """Hand out answers; one that fails keeps no other from its reader."""
    for deliver in deliveries:
        try:
            deliver()
        except Exception:
            _log.exception("an answer could not be delivered")


def _draw(row: int, sequence: Sequence, task: GenerateTask) -> Draw:
    """The draw of a sequence's next token from a row of the logits."""
    request, output = task.request, task.output
    return Draw(
        row,
        request.params,
        request.draw_key,
        len(output.ids),
        sequence.prompt,
        sequence.generated,
        output.barred(),
    )


def _top(logits: Tensor, normaliser: float, count: int) -> TopLogprobs | None:
    """The likeliest ``count`` tokens of one row; None where none are asked for."""
    if not count:
        return None
    values, ids = torch.topk(logits, min(count, len(logits)))
    return tuple(zip(ids.tolist(), (values - normaliser).tolist(), strict=True))


def _inputs(sequence: Sequence, task: GenerateTask) -> InputLogprobs | None:
    """What was asked of the prompt's own log-probabilities."""
    start = task.request.input_logprobs_from
    if start is None:
        return None
    ids = tuple(sequence.prompt[start:].tolist())
    # Nothing precedes the first token of a prompt.
    first: list[float | None] = [None] if start == 0 else []
    before: list[TopLogprobs] = [()] if first and task.request.top_logprobs else []
    top = (*before, *task.input_top)
    return InputLogprobs(start, ids, (*first, *task.input_logprobs), top)


def _complete_scores(job: ScoreJob) -> None:
    choices = tuple(
        ChoiceScore(tuple(tail), tuple(logprobs), (None, *alone) if job.alone and tail else ())
        for tail, logprobs, alone in zip(job.tails, job.logprobs, job.alone_logprobs, strict=True)
    )
    usage = Usage(job.prompt_tokens, job.cached_tokens, 0, job.scored_tokens)
    _settle(job.future, Scores(choices, usage))


def _settle(future: Future[Scores], outcome: Scores | LMLangError) -> None:
    """End a future, unless whoever waited has cancelled it."""
    if future.done() or not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, Scores):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)


def _not_finite() -> ModelError:
    return ModelError(
        "the model gave logits that are not finite (NaN or infinity) for this request: "
        "check its weights; other requests are not affected."
    )


def _step_failure(error: Exception) -> LMLangError:
    if isinstance(error, LMLangError):
        return error
    failure = ModelError(
        f"the forward pass failed: {type(error).__name__}: {str(error)[:500]}. "
        "The runtime goes on with other requests."
    )
    failure.__cause__ = error
    return failure
