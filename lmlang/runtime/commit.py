"""The end of a step: what the logits say becomes tokens, scores, answers and counts.

computed   prompts to the tree, tokens counted
known      what is forced is told with its log-probabilities
drawn      sampled, judged by the constraint, told; ended sequences out
answers    collected, and handed out last of all
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from math import isnan
from time import perf_counter

import torch
from torch import Tensor

from lmlang.errors import LMLangError, ModelError, ProgramError
from lmlang.protocol import Event, Generation, InputLogprobs, Scores, TopLogprobs
from lmlang.runtime.batch import LogitRows
from lmlang.runtime.cache.manager import CacheManager
from lmlang.runtime.constraints import PATIENCE
from lmlang.runtime.drawing import Drawing, bits_of, drawing_of, known, processed, standing
from lmlang.runtime.metrics import Counters
from lmlang.runtime.output import Drawn, Prediction
from lmlang.runtime.predictions import Predictions
from lmlang.runtime.sampler import Model, sample
from lmlang.runtime.scheduler import Plan, Scheduler
from lmlang.runtime.scoring import ScoreJob
from lmlang.runtime.sequence import GenerateTask, PieceTask, Sequence

_log = logging.getLogger("lmlang")


class Commit:
    """One step's commit; the engine loop's own.

    Args:
        scheduler: Whose sequences they are.
        cache: What keeps computed prompts.
        counters: What is counted goes there.
    """

    def __init__(self, scheduler: Scheduler, cache: CacheManager, counters: Counters) -> None:
        self._scheduler = scheduler
        self._cache = cache
        self._counters = counters
        self._deliveries: list[Callable[[], None]] = []
        self._said: Predictions

    def deliver(self) -> None:
        """Hand out the answers; one that fails keeps no other from its reader."""
        for deliver in self._deliveries:
            try:
                deliver()
            except Exception:
                _log.exception("an answer could not be delivered")

    def run(self, plan: Plan, logit_rows: tuple[LogitRows, ...], logits: Tensor) -> None:
        """Everything after the forward pass of a plan.

        Args:
            plan: What was computed.
            logit_rows: Whose the rows of the logits are.
            logits: float32 [K, V].
        """
        self._said = Predictions(logits)
        for row in plan.rows:
            task = row.sequence.task
            if row.decoding and isinstance(task, GenerateTask) and task.request.processor is None:
                continue  # nothing but tokens is drawn, and nothing is kept before that
            self._check_finite(logit_rows)
            break
        for row in plan.rows:
            if row.sequence.lease is None:
                continue
            if row.decoding:
                self._advance_one(row.sequence)
            else:
                self._advance(row.sequence, row.count - len(row.draft))
        drawings: list[Drawing] = []
        for rows in logit_rows:
            sequence, task = rows.sequence, rows.sequence.task
            if sequence.lease is None:
                continue
            if isinstance(task, PieceTask):
                self._score(rows, task)
                continue
            if task.request.input_logprobs_from is not None:
                self._report_inputs(rows, task)
            if task.output.constraint is not None:
                self._report_known(rows, task)
            if sequence.lease is not None and not sequence.pending:
                self._ask(rows, task, drawings)
        if drawings:
            self._draw(logits, drawings)

    def _check_finite(self, logit_rows: tuple[LogitRows, ...]) -> None:
        """Fail whose logits are not; elsewhere they are looked at with the tokens that are drawn.

        So a device is read from once where there are but draws.
        """
        finite = torch.isfinite(self._said.normalisers).tolist()
        for rows in logit_rows:
            if not all(finite[rows.start : rows.end]):
                self.fail(rows.sequence, _not_finite())

    def _ask(self, rows: LogitRows, task: GenerateTask, drawings: list[Drawing]) -> None:
        """Note what a sequence draws next, and those that start from its logits."""
        asking = [(rows.sequence, task, rows.draft)]
        if not rows.sequence.generated:
            for other in self._scheduler.followers(rows.sequence):
                assert isinstance(other.task, GenerateTask)
                self.admit(other)
                asking.append((other, other.task, ()))
        for sequence, its_task, draft in asking:
            self._counters.drafted_tokens += len(draft)
            row = rows.end - 1 - len(draft)
            try:
                drawings.append(drawing_of(row, sequence, its_task, draft))
            except LMLangError as error:
                self.fail(sequence, error)

    def _draw(self, logits: Tensor, drawings: list[Drawing]) -> None:
        """Draw tokens, and take them into their outputs."""
        scores, draws = logits, []
        places: list[int] = []
        for drawing in drawings:
            if drawing.task.request.processor is not None:
                scores, drawings = self._processed(logits, drawings)
                break
        for drawing in drawings:
            draws += drawing.draws
            places += range(drawing.row, drawing.row + len(drawing.draws))
        drawn = sample(scores, draws, Model(self._said, places))
        for drawing in drawings:
            own, drawn = drawn[: len(drawing.draws)], drawn[len(drawing.draws) :]
            if any(each.logprob is None or isnan(each.logprob) for each in own):
                self.fail(drawing.sequence, _not_finite())
            elif drawing.task.output.constraint is not None:
                self._take_constrained(drawing, own, scores)
            else:
                self._take(drawing, own)

    def _take(self, drawing: Drawing, drawn: list[Drawn]) -> None:
        """A sequence's drawn token, and those behind it as far as its draft was right."""
        sequence, task = drawing.sequence, drawing.task
        for ahead, guess in enumerate((*drawing.draft, None)):
            if task.request.params.max_tokens == 0:
                self._tell(sequence, task, task.output.end_here())
                return
            taken = drawn[ahead]
            if task.request.resumed:
                taken = standing(taken, task) or taken
            token, row = taken.token, drawing.row + ahead
            self._counters.sampled_tokens += 1
            sequence.generated.append(token)
            if task.request.top_logprobs or task.request.provenance or taken.logprob is None:
                said = self._said.about_drawn(row, taken, task)
            else:
                said = Prediction(taken.logprob)
            event = task.output.accept(taken, said)
            self._tell(sequence, task, event)
            if token != guess or sequence.lease is None:
                return
            self._counters.accepted_tokens += 1
            self._advance_one(sequence)

    def _take_constrained(self, drawing: Drawing, drawn: list[Drawn], scores: Tensor) -> None:
        """Drawn tokens as far as the draft was right, and what is known behind them."""
        for ahead, (guess, one) in enumerate(zip((*drawing.draft, None), drawn, strict=True)):
            token = self._take_one(drawing, ahead, one, scores)
            sequence = drawing.sequence
            if token is None or token != guess or sequence.lease is None or sequence.pending > 1:
                return
            self._counters.accepted_tokens += 1
            self._advance_one(sequence)

    def _take_one(self, drawing: Drawing, ahead: int, drawn: Drawn, scores: Tensor) -> int | None:
        """A drawn token that the constraint and the budget allow, and what is known behind it.

        Returns:
            The token; None where the output was completed instead, or has failed.
        """
        sequence, task, draw = drawing.sequence, drawing.task, drawing.draws[ahead]
        constraint, row = task.output.constraint, drawing.row + ahead
        assert constraint is not None
        try:
            if draw.mask is None and not constraint.is_legal(drawn.token):
                draw = draw._replace(mask=bits_of(constraint.mask()))
                (drawn,) = sample(scores, [draw], Model(self._said, [row]))
            for _ in range(PATIENCE):
                received = standing(drawn, task, constraint.known)
                if received is not None and constraint.would_take(drawn.token):
                    if not constraint.allows(received.token):
                        raise _not_its_tokens(constraint.known)
                    drawn = received
                taken = constraint.take(drawn.token)
                if taken:
                    break
                barred, mask = draw.barred | {drawn.token}, bits_of(constraint.mask())
                draw = draw._replace(barred=barred, mask=mask)
                (drawn,) = sample(scores, [draw], Model(self._said, [row]))
                if drawn.token in draw.barred or not constraint.allows(drawn.token):
                    break  # nothing else has a finite logit
            if taken:
                self._counters.sampled_tokens += 1
                sequence.generated.append(drawn.token)
                behind = constraint.run()
            else:
                behind = constraint.complete()
                if behind:
                    task.predicted.append(self._said.about(row, behind[0], task))
        except LMLangError as error:
            self.fail(sequence, error)
            return None
        sequence.generated += behind
        if taken:
            prediction = self._said.about_drawn(row, drawn, task, draw.mask)
            event = task.output.accept(drawn, prediction)
            self._tell(sequence, task, event)
            return drawn.token
        if not behind:  # it is complete where it stands
            self._tell(sequence, task, task.output.end_here())
        return None

    def _processed(self, logits: Tensor, drawings: list[Drawing]) -> tuple[Tensor, list[Drawing]]:
        """Logits with a row of its own for each that its program changes, and what draws on them.

        Whose function fails is out.
        """
        kept: list[Drawing] = []
        rows: list[Tensor] = []
        for drawing in drawings:
            if drawing.task.request.processor is None:
                kept.append(drawing)
                continue
            try:
                rows.append(processed(logits, drawing))
            except LMLangError as error:
                self.fail(drawing.sequence, error)
            else:
                kept.append(drawing.from_row(len(logits) + len(rows) - 1))
        return (torch.cat([logits, torch.stack(rows)]) if rows else logits), kept

    def _report_inputs(self, rows: LogitRows, task: GenerateTask) -> None:
        """Note the log-probabilities of prompt tokens that these rows predict, as asked for."""
        asked, sequence = task.request.input_logprobs_from, rows.sequence
        assert asked is not None
        end = min(rows.end, rows.start + len(sequence.prompt) - 1 - rows.position)
        for row in range(rows.start, end):
            target = rows.position + row - rows.start + 1
            if target < asked:
                continue
            task.input_logprobs.append(self._said.logprob(row, int(sequence.prompt[target])))
            top = self._said.top(row, task.request.top_logprobs)
            if top is not None:
                task.input_top.append(top)

    def _report_known(self, rows: LogitRows, task: GenerateTask) -> None:
        """Note what these rows predict of tokens that are known; tell those that are computed."""
        sequence, output, predicted = rows.sequence, task.output, task.predicted
        prompt = len(sequence.prompt)
        for row in range(rows.start, rows.end):
            index = rows.position + row - rows.start + 1 - prompt
            if len(output.ids) + len(predicted) <= index < len(sequence.generated):
                predicted.append(self._said.about(row, sequence.generated[index], task))
        while predicted and prompt + len(output.ids) < sequence.computed:
            token = sequence.generated[len(output.ids)]
            event = output.accept(known(token, task.request), predicted.popleft())
            self._tell(sequence, task, event)
            if sequence.lease is None:
                return

    def _advance(self, sequence: Sequence, count: int) -> None:
        """Count computed tokens, and give what is computed to the tree."""
        c, task = self._counters, sequence.task
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
            prompt, constraint = len(sequence.prompt), task.output.constraint
            first, last = max(fresh, prompt) - prompt, max(end, prompt) - prompt
            forced = 0 if constraint is None else sum(constraint.forced[first:last])
            c.prefill_tokens += max(0, min(end, prompt) - fresh)
            c.forced_tokens += forced
            c.decode_tokens += max(0, last - first) - forced
        self._scheduler.runs.serve(sequence.tag.run_id, count)
        assert sequence.lease is not None
        self._cache.commit(sequence.lease, sequence.tokens(0, min(end, sequence.stem)))

    def _advance_one(self, sequence: Sequence) -> None:
        """Count a computed token behind a prompt; the tree gets it at the end."""
        c, task = self._counters, sequence.task
        assert isinstance(task, GenerateTask)
        constraint = task.output.constraint
        if sequence.advance(1):
            c.recomputed_tokens += 1
        elif (
            constraint is not None
            and constraint.forced[sequence.computed - 1 - len(sequence.prompt)]
        ):
            c.forced_tokens += 1
        else:
            c.decode_tokens += 1
        self._scheduler.runs.serve(sequence.tag.run_id, 1)

    def _tell(self, sequence: Sequence, task: GenerateTask, event: Event) -> None:
        """Hand on an event; the last one ends the generation."""
        told = len(task.request.resumed)
        if event.index < told:
            if event.ids != task.request.resumed[event.index : event.index + 1] or (
                event.finish is not None and event.index + 1 < told
            ):
                self.fail(sequence, _not_its_tokens(event.index))
                return
            if event.finish is not None:
                event = Event(told, (), "", (), event.finish)
        if event.index >= told:
            self._deliveries.append(partial(task.generation.push, event))
        if event.finish is None:
            return
        inputs = _inputs(sequence, task)
        answer = task.output.output(len(sequence.prompt), sequence.cached_tokens, inputs)
        self._deliveries.append(partial(task.generation.complete, answer))
        self._scheduler.remove(sequence, ended=True)

    def _score(self, rows: LogitRows, task: PieceTask) -> None:
        """Score what these rows predict; the last piece to end ends the job."""
        job, sequence = task.job, rows.sequence
        self._said.score(rows, task)
        if sequence.pending:
            return
        if task.first:
            job.cached_tokens = sequence.cached_tokens
        self._scheduler.remove(sequence, ended=task.first)
        job.pieces_left -= 1
        if not job.pieces_left:
            self._deliveries.append(partial(_complete_scores, job))

    def fail(self, sequence: Sequence, error: LMLangError) -> None:
        """End all that a sequence's answer waits for with an error.

        What it computed in this step is not kept.
        """
        answer = sequence.task.answer
        if sequence not in self._scheduler.working_for(answer):
            return
        self._scheduler.remove(sequence, trusted=False)
        for other in self._scheduler.working_for(answer):
            self._scheduler.remove(other)
        if isinstance(answer, Generation):
            self._deliveries.append(partial(answer.fail, error))
        else:
            self._deliveries.append(partial(_settle, answer, error))

    def admit(self, sequence: Sequence) -> None:
        """Count what the cache had of a sequence that comes in."""
        assert sequence.lease is not None
        self._counters.host_tokens += sequence.lease.loaded
        if isinstance(sequence.task, GenerateTask) or sequence.task.first:
            own = len(sequence.prompt) if isinstance(sequence.task, GenerateTask) else sequence.stem
            self._counters.prompt_tokens += 0 if sequence.retractions else own
            self._counters.cached_tokens += sequence.found
        if isinstance(sequence.task, GenerateTask) and not sequence.retractions:
            sequence.task.generation.admitted_at = perf_counter()


def _not_its_tokens(index: int) -> ProgramError:
    return ProgramError(
        f"resumed does not begin as this request's output does: it differs at token {index:,}. "
        "Send the request as it was, with the tokens in the order in which they came."
    )


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
