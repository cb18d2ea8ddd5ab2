"""A backend that answers from a journal what it has, and asks another one for the rest.

    generate ─ key ─ in the journal ──────────────────────────> Generation, ended
                  └─ not in it ──> the backend ─ its events ──> Generation
                                       └─ output ─> journal ─ written ─> Generation, ended

An output is on disk before anybody hears of it, so that nothing that a program has seen is ever
run twice; its text streams before that, as it comes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any

from lmlang.errors import BackendError, Cancelled, LMLangError, WireError, quote
from lmlang.frontend import journal_keys
from lmlang.frontend.journal import Journal, damaged
from lmlang.frontend.journal_writer import Then
from lmlang.frontend.reuse import Reused
from lmlang.frontend.run import Run
from lmlang.frontend.through import Through
from lmlang.protocol import (
    Backend,
    BackendInfo,
    Event,
    Generation,
    Output,
    Request,
    ScoreRequest,
    Scores,
    Usage,
)
from lmlang.wire import forms
from lmlang.wire.forms import Form
from lmlang.wire.values import OUTPUT, SCORES


class JournalBackend(Through):
    """The backend of one run, over another and a journal. Thread-safe.

    Args:
        backend: Whom to ask for what the journal has not.
        info: What that says of itself.
        journal: An open one.
        run: The run, which is told what was reused.
    """

    def __init__(self, backend: Backend, info: BackendInfo, journal: Journal, run: Run) -> None:
        super().__init__(backend)
        self._journal = journal
        self._run = run
        self._info = info

    # ------------------------------------------------------------------ Backend

    def generate(self, request: Request) -> Generation:
        """The generation of the journal, or one of the backend that the journal will have."""
        try:
            key = journal_keys.of_request(request, self._fingerprint(request.lora))
            output: Output | None = self._found(key, OUTPUT)
        except LMLangError as refusal:
            refused = Generation(request)
            refused.fail(refusal)
            return refused
        if output is not None:
            self._reuse(output.usage)
            return _replayed(request, output)
        asked: object = self._backend.generate(request)
        if not isinstance(asked, Generation):
            return asked  # type: ignore[return-value]  # no backend: whoever asked says so
        return _Kept(request, asked, partial(self._keep, key, OUTPUT)).generation

    def score(self, request: ScoreRequest) -> Future[Scores]:
        """The scores of the journal, or those of the backend, which the journal will have."""
        future: Future[Scores] = Future()
        try:
            key = journal_keys.of_scoring(request, self._fingerprint(request.lora))
            scores: Scores | None = self._found(key, SCORES)
        except LMLangError as refusal:
            future.set_exception(refusal)
            return future
        if scores is not None:
            self._reuse(scores.usage)
            future.set_result(scores)
            return future
        asked: object = self._backend.score(request)
        if not isinstance(asked, Future):
            return asked  # type: ignore[return-value]  # no backend: whoever asked says so
        future.add_done_callback(lambda _: asked.cancel() if future.cancelled() else None)
        asked.add_done_callback(partial(_scored, future, partial(self._keep, key, SCORES)))
        return future

    def info(self) -> BackendInfo:
        """What the backend says of itself."""
        return self._info

    # ------------------------------------------------------------------ inside

    def _fingerprint(self, lora: str | None) -> str:
        return journal_keys.fingerprint_of(self._info, lora)

    def _found(self, key: bytes, form: Form) -> Any:
        """What the journal has under a key; None: nothing."""
        stored = self._journal.get("answers", key)
        if stored is None:
            return None
        try:
            return form.read(forms.loads(stored), "$")
        except WireError as error:
            raise damaged(self._journal.path, f"an answer is none: {error}") from error

    def _keep(self, key: bytes, form: Form, value: object, then: Then) -> None:
        self._journal.put("answers", key, partial(_spelt, form, value), then)

    def _reuse(self, usage: Usage) -> None:
        tokens = usage.generated_tokens + usage.scored_tokens
        with self._run.lock:
            self._run.reused += Reused(generations=1, tokens=tokens)


def _spelt(form: Form, value: object) -> str:
    try:
        return forms.dumps(form.write(value))
    except (LMLangError, ValueError, TypeError) as error:
        why = quote(str(error))[1:-1]
        raise BackendError(
            f"what the backend has answered cannot be kept in a journal ({why}): this is an error "
            "of the backend."
        ) from error


def _replayed(request: Request, output: Output) -> Generation:
    """A generation that has ended; a stream of it is one event."""
    generation = Generation(request)
    generation.push(
        Event(0, output.ids, output.text, output.logprobs, output.finish, output.top_logprobs)
    )
    generation.complete(output)
    return generation


Keep = Callable[[object, Then], None]


class _Kept:
    """A generation that ends as another one does, once its output is in the journal.

    Attributes:
        generation: What whoever asked gets.
    """

    def __init__(self, request: Request, asked: Generation, keep: Keep) -> None:
        self.generation = Generation(request, on_cancel=lambda _: asked.cancel())
        self._asked = asked
        self._keep = keep
        self._lock = threading.Lock()
        self._passed = 0
        asked.watch(self._pass_on)
        self._pass_on()
        asked.add_done_callback(self._ended)

    def _pass_on(self) -> None:
        with self._lock:
            for event in self._asked.events_from(self._passed):
                self._passed += 1
                self.generation.push(event)

    def _ended(self, asked: Generation) -> None:
        self._pass_on()
        self.generation.admitted_at = asked.admitted_at
        outcome = asked.outcome()
        if isinstance(outcome, BaseException):
            self.generation.fail(outcome)
            return
        self._keep(outcome, partial(self._kept, outcome))

    def _kept(self, output: Output, error: BaseException | None) -> None:
        if error is None:
            self.generation.complete(output)
        else:
            self.generation.fail(error)


def _scored(future: Future[Scores], keep: Keep, asked: Future[Scores]) -> None:
    """The backend has scored: have it kept, then end the future."""

    def kept(error: BaseException | None) -> None:
        with suppress(InvalidStateError):  # nobody waits any more
            if error is None:
                future.set_result(asked.result())
            else:
                future.set_exception(error)

    try:
        if asked.cancelled():
            raise Cancelled("the scoring of choices was cancelled.")
        keep(asked.result(), kept)
    except BaseException as error:
        kept(error)
