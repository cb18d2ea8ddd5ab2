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
from lmlang.protocol import Generation, InputLogprobs, Scores, TopLogprobs
from lmlang.runtime.batch import LogitRows, build_batch
from lmlang.runtime.cache.manager import CacheManager
from lmlang.runtime.cache.pool import KVPool
from lmlang.runtime.metrics import Counters, Stats
from lmlang.runtime.model_runner import ModelRunner
from lmlang.runtime.sampler import Draw, Drawn, sample
from lmlang.runtime.scheduler import Plan, Scheduler
from lmlang.runtime.scoring import ScoreJob
from lmlang.runtime.sequence import Answer, GenerateTask, PieceTask, Sequence
from lmlang.runtime.shortage import out_of_memory

Delivery = Callable[[], None]
_log = logging.getLogger("lmlang")


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
        plan = self.scheduler.plan()
        if not plan.rows:
            raise AssertionError("sequences wait and none can run: the pool is too small for them")
        planned(len(self.scheduler.waiting))
        for sequence in plan.admitted:
            self._count_admitted(sequence)
        deliveries: list[Delivery] = []
        copied = False
        try:
            self._copy()
            copied = True
            batch = build_batch(
                plan,
                self.runner.pool.k.device,
                self.runner.windows,
                exact=self.runner.deterministic,
            )
            started = time.perf_counter()
            logits = self.runner.run(batch)
            self.counters.forward_seconds += time.perf_counter() - started
            self._commit(plan, batch.logit_rows, logits, deliveries)
        except Exception as error:
            tokens = sum(row.count for row in plan.rows)
            failure = _step_failure(error, tokens, self.runner.pool.k.device)
            # Samples that came in behind a leader have no row, and got no token to go on with.
            late = [s for s in self.scheduler.running if not s.pending]
            failed = [*(row.sequence for row in plan.rows), *late]
            for sequence in failed if copied else list(self.scheduler.running):
                self._fail(sequence, failure, deliveries)
            if not copied:
                # Tree and host tier name slots whose bytes never arrived: nothing may find them.
                self.cache.flush()
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
        drafts = {row.sequence: row.draft for row in plan.rows if row.draft}
        for row in plan.rows:
            if row.sequence.lease is not None:
                self._advance(row.sequence, row.count - len(row.draft))
        draws: list[Draw] = []
        drawing: list[tuple[Sequence, GenerateTask, int]] = []
        for rows in logit_rows:
            sequence, task = rows.sequence, rows.sequence.task
            if sequence.lease is None:
                continue
            if isinstance(task, PieceTask):
                self._score(rows, task, logits, normalisers, deliveries)
                continue
            self._report_inputs(rows, task, logits, normalisers)
            if not sequence.pending:
                draft = drafts.get(sequence, ())
                self.counters.drafted_tokens += len(draft)
                drawing.append((sequence, task, len(draws)))
                draws += _draws(rows.end - 1 - len(draft), sequence, task, draft)
                for other in self.scheduler.followers(sequence):
                    assert isinstance(other.task, GenerateTask)
                    self._count_admitted(other)
                    drawing.append((other, other.task, len(draws)))
                    draws += _draws(rows.end - 1, other, other.task, ())
        drawn = sample(logits, draws) if draws else []
        for sequence, task, first in drawing:
            for number, guess in enumerate((*drafts.get(sequence, ()), None), start=first):
                token, at = drawn[number].token, draws[number].row
                logprob = float(logits[at, token] - normalisers[at])
                top = _top(logits[at], float(normalisers[at]), task.request.top_logprobs)
                self._accept(sequence, task, drawn[number], logprob, top, deliveries)
                if token != guess or sequence.lease is None:
                    break
                self.counters.accepted_tokens += 1
                self._advance(sequence, 1)

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
        c, task, decoding = self.counters, sequence.task, sequence.decoding
        start = sequence.computed
        again = sequence.advance(count)
        end = sequence.computed
        c.recomputed_tokens += again
        fresh = start + again
        if isinstance(task, PieceTask):
            # Nodes are scored tokens; the stem is the first piece's prompt, the others' again.
            nodes = max(0, end - max(fresh, sequence.stem))
            task.job.scored_tokens += nodes
            c.scored_tokens += nodes
            stem = max(0, min(end, sequence.stem) - fresh)
            c.prefill_tokens += stem if task.first else 0
            c.recomputed_tokens += 0 if task.first else stem
        else:
            prompt = max(0, min(end, len(sequence.prompt)) - fresh)
            c.prefill_tokens += prompt
            c.decode_tokens += max(0, end - fresh) - prompt
        self.scheduler.runs.serve(sequence.tag.run_id, count)
        if not decoding:
            assert sequence.lease is not None
            self.cache.commit(sequence.lease, sequence.tokens(0, min(end, sequence.stem)))

    def _accept(
        self,
        sequence: Sequence,
        task: GenerateTask,
        drawn: Drawn,
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
            event = output.accept(drawn.token, logprob, top, drawn.prob, drawn.top)
        deliveries.append(partial(generation.push, event))
        if event.finish is None:
            sequence.generated.append(drawn.token)
            return
        inputs = _inputs(sequence, task)
        answer = output.output(len(sequence.prompt), sequence.cached_tokens, inputs)
        deliveries.append(partial(generation.complete, answer))
        self.scheduler.remove(sequence, ended=True)

    def _score(
        self,
        rows: LogitRows,
        task: PieceTask,
        logits: Tensor,
        normalisers: Tensor,
        deliveries: list[Delivery],
    ) -> None:
        """Score what these rows predict; the last piece to end ends the job."""
        job, piece, sequence = task.job, task.piece, rows.sequence
        start, position = rows.start, rows.position
        if position < sequence.stem:
            first_tokens = torch.tensor([tail[0] if tail else 0 for tail in job.tails])
            job.firsts = (logits[start, first_tokens] - normalisers[start]).tolist()
            start, position = start + 1, position + 1
        first_node = position - sequence.stem
        edges = piece.edges(first_node, first_node + rows.end - start)
        if edges.start < edges.stop:
            nodes = torch.from_numpy(piece.edge_nodes[edges] - first_node + start)
            found = logits[nodes, torch.from_numpy(piece.edge_tokens[edges])] - normalisers[nodes]
            into = job.apart if task.alone else job.behind
            at = piece.first_edge
            into[at + edges.start : at + edges.stop] = found.numpy(force=True)
        if sequence.pending:
            return
        if task.first:
            job.cached_tokens = sequence.cached_tokens
        self.scheduler.remove(sequence, ended=task.first)
        job.pieces_left -= 1
        if not job.pieces_left:
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
        assert sequence.lease is not None
        self.counters.host_tokens += sequence.lease.loaded
        if isinstance(sequence.task, GenerateTask) or sequence.task.first:
            self.counters.prompt_tokens += 0 if sequence.retractions else sequence.stem
            self.counters.cached_tokens += sequence.found

    def _copy(self) -> None:
        """Move what left the pool to the host tier, and what came back from there."""
        for copy in self.cache.take_copies():
            assert self.host is not None
            pool = self.runner.pool
            if copy.to_host:
                self.host.copy_from(pool, copy.pool, copy.host)
            else:
                pool.copy_from(self.host, copy.host, copy.pool)


def _deliver(deliveries: list[Delivery]) -> None:
    """Hand out answers; one that fails keeps no other from its reader."""
    for deliver in deliveries:
        try:
            deliver()
        except Exception:
            _log.exception("an answer could not be delivered")


def _draws(row: int, sequence: Sequence, task: GenerateTask, draft: tuple[int, ...]) -> list[Draw]:
    """The draws of a sequence's next token, and of those behind each token of a draft."""
    request, output = task.request, task.output
    return [
        Draw(
            row + ahead,
            request.params,
            request.draw_key,
            len(output.ids) + ahead,
            sequence.prompt,
            [*sequence.generated, *draft[:ahead]],
            output.barred(),
            output.allowed(),
            request.probs,
            request.top_logprobs if request.probs else 0,
        )
        for ahead in range(len(draft) + 1)
    ]


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
    _settle(job.future, job.scores())


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
