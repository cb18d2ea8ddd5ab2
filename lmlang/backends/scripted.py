"""ScriptedBackend: answers that a test wrote, tokens that are characters, and no model."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future
from types import TracebackType
from typing import Literal, TypeAlias

from lmlang import limits
from lmlang.backends.characters import decoded, output_of, rendered, tell
from lmlang.backends.constrained import sample
from lmlang.backends.cut import END
from lmlang.errors import BackendError, Cancelled, ProgramError, ProgramTypeError, an, quote
from lmlang.protocol import (
    BackendInfo,
    ChoiceScore,
    Generation,
    Output,
    Prompt,
    Request,
    ScoreRequest,
    Scores,
    Usage,
    answering,
)

Answers: TypeAlias = Sequence[str] | Callable[[str], str]
Scoring: TypeAlias = Mapping[str, float] | Callable[[str, str], float]
Completes: TypeAlias = Literal["at once", "on a thread", "when released"]

MOST = 1_000_000_000
"""Calls that a script can count, and tokens in one event."""


class _Call:
    """A request that has not been answered yet, and the two ways to end it."""

    def __init__(
        self,
        request: Request | ScoreRequest,
        handle: Generation | Future[Scores],
        answer: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.request = request
        self.handle = handle
        self.fail = fail
        self._answer = answer

    def answer(self) -> None:
        try:
            with answering(self.request.tag):
                self._answer()
        except Exception as error:
            self.fail(error)


class ScriptedBackend:
    """A backend for tests. Thread-safe.

    Args:
        answers: Texts in order of the generations that ask, or a function of the rendered
            prompt; None: eight hexadecimal digits that depend on prompt, temperature and draw
            key alone, or under a constraint an output that it allows. An answer that breaks a
            constraint fails with `GrammarDeadEnd`.
        scores: Joint log-probability of a choice: a dict, or a function of the rendered prompt
            and the choice; None: hashed from both.
        fail_at: Number (from 0, generations and scorings together) of the call that fails.
        error: What it fails with; None: a BackendError.
        completes: "at once" on the caller's thread; "on a thread" of the backend's own; "when
            released" by `release`, which is how a test delays an answer without sleeping.
        vision: Whether prompts may hold pictures.
        chunk: Tokens in one event of a stream; None: all of them.
        fingerprint: What `info` tells of it, whatever the script is: of which model it takes the
            place for a journal. None: it does not say.

    Attributes:
        requests: Everything asked for, in order of arrival.
    """

    def __init__(
        self,
        answers: Answers | None = None,
        *,
        scores: Scoring | None = None,
        fail_at: int | None = None,
        error: BaseException | None = None,
        completes: Completes = "at once",
        vision: bool = False,
        chunk: int | None = None,
        fingerprint: str | None = "scripted",
    ) -> None:
        _check(scores, error)
        if completes not in ("at once", "on a thread", "when released"):
            raise ProgramError(
                f"completes={completes!r} must be 'at once', 'on a thread' or 'when released'."
            )
        self._answers = answers if callable(answers) or answers is None else _listed(answers)
        self._scores = scores
        self._fail_at = None if fail_at is None else limits.integer("fail_at", fail_at, 0, MOST)
        self._error = error
        self._completes = completes
        self._vision = vision
        self._fingerprint = fingerprint
        self._chunk = None if chunk is None else limits.integer("chunk", chunk, 1, MOST)
        # Taken by itself: entering a condition is Python, where a Ctrl-C would leave it taken.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._pending: deque[_Call] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.requests: list[Request | ScoreRequest] = []

    # ------------------------------------------------------------- the Backend protocol

    def generate(self, request: Request) -> Generation:
        """Start one generation."""
        generation = Generation(request, on_cancel=self._cancel)

        def answer() -> None:
            output = self._output(request)
            tell(generation, output, self._chunk or len(output.ids) or 1)

        self._take(request, _Call(request, generation, answer, generation.fail))
        return generation

    def score(self, request: ScoreRequest) -> Future[Scores]:
        """Start scoring."""
        future: Future[Scores] = Future()

        def answer() -> None:
            scores = self._scored(request)
            if future.set_running_or_notify_cancel():
                future.set_result(scores)

        def fail(error: BaseException) -> None:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

        self._take(request, _Call(request, future, answer, fail))
        future.add_done_callback(self._forget)
        return future

    def render(self, prompt: Prompt) -> str:
        """The prompt as text, turns as ``<role>…</role>``."""
        return rendered(prompt, self._vision)

    def encode(self, prompt: Prompt) -> list[int]:
        """The code points of the rendered prompt."""
        return [ord(character) for character in self.render(prompt)]

    def decode(self, ids: Sequence[int]) -> str:
        """The characters of these code points."""
        return decoded(ids)

    def info(self) -> BackendInfo:
        """A backend without context limit."""
        return BackendInfo("scripted", has_vision=self._vision, fingerprint=self._fingerprint)

    def flush_cache(self) -> None:
        """There is no cache."""

    def close(self) -> None:
        """Fail what is pending and end the thread."""
        with self._lock:
            self._closed = True
            pending, self._pending = list(self._pending), deque()
            self._changed.notify_all()
        for call in pending:
            call.fail(BackendError("the backend was closed before it answered."))
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> ScriptedBackend:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------- a test's own hand

    def wait_for(self, calls: int, timeout: float = 60.0) -> None:
        """Wait until so many calls are pending; TimeoutError (seconds) if they do not come."""
        with self._lock:
            if not self._changed.wait_for(lambda: len(self._pending) >= calls, timeout):
                raise TimeoutError(
                    f"{len(self._pending)} calls are pending after {timeout} s, not {calls}."
                )

    def pending(self) -> list[Request | ScoreRequest]:
        """The requests that wait to be released, oldest first."""
        with self._lock:
            return [call.request for call in self._pending]

    def release(self, index: int = 0) -> None:
        """Answer the pending call of this index, on this thread."""
        with self._lock:
            call = self._pending[index]
            del self._pending[index]
        try:
            call.answer()
        except BaseException as error:  # of the caller's, who hears of it too
            call.fail(error)
            raise

    # ------------------------------------------------------------- inside

    def _take(self, request: Request | ScoreRequest, call: _Call) -> None:
        with self._lock:
            number = len(self.requests)
            self.requests.append(request)
            closed, at_once = self._closed, self._completes == "at once"
            if not closed and number != self._fail_at and not at_once:
                self._pending.append(call)
                self._changed.notify_all()
                if self._completes == "on a thread" and self._thread is None:
                    self._thread = threading.Thread(
                        target=self._loop, name="lmlang-scripted", daemon=True
                    )
                    self._thread.start()
                return
        if closed:
            call.fail(BackendError("the backend is closed: make a new one."))
        elif number == self._fail_at:
            call.fail(self._error or BackendError(f"call {number} was scripted to fail."))
        else:
            call.answer()

    def _loop(self) -> None:
        while True:
            with self._lock:
                self._changed.wait_for(lambda: self._pending or self._closed)
                if self._closed:
                    return
                call = self._pending.popleft()
            try:
                call.answer()
            except BaseException as error:  # the thread goes on, and only readers can hear of it
                call.fail(error)
            del call  # it may hold the last run that anyone has of it

    def _cancel(self, generation: Generation) -> None:
        self._forget(generation)
        generation.fail(Cancelled("the generation was cancelled."))

    def _forget(self, handle: Generation | Future[Scores]) -> None:
        """Take a call that has ended without us from those that wait."""
        with self._lock:
            self._pending = deque(call for call in self._pending if call.handle is not handle)

    def _answer_to(self, request: Request, prompt: str) -> str:
        if callable(self._answers):
            answer = self._answers(prompt)
            if not isinstance(answer, str):
                raise ProgramTypeError(
                    f"the function answers(prompt) returned {an(type(answer).__name__)}: an "
                    "answer is a string."
                )
            return answer
        if self._answers is not None:
            with self._lock:
                if self._answers:
                    return self._answers.popleft()
            raise BackendError(
                f"the script has no answer left for call {len(self.requests)}: "
                f"the prompt ends with {prompt[-40:]!r}."
            )
        params = request.params
        draw = (params.temperature, request.draw_key) if params.temperature > 0 else 0
        if request.constraint is not None:
            return sample(request.constraint, itertools.cycle(_hashed(prompt, draw)))
        return _hashed(prompt, draw).hex()[:8]

    def _output(self, request: Request) -> Output:
        """What the script answers, cut by stop strings and max_tokens as a model's output is."""
        prompt = self.render(request.prompt)
        answer = self._answer_to(request, prompt)
        return output_of(request, lambda: prompt, len(prompt), answer, lambda n: (-1.0,) * n)

    def _scored(self, request: ScoreRequest) -> Scores:
        prompt = self.render(request.prompt)
        choices = []
        for choice in request.choices:
            ids = (*map(ord, choice), *((END,) if request.end_turn else ()))
            # The joint log-probability is the first token's; the others are certain.
            logprobs = (self._score_of(prompt, choice), *(0.0 for _ in ids[1:]))
            alone = (None, *(-1.0 for _ in ids[1:])) if request.unconditional else ()
            choices.append(ChoiceScore(ids, logprobs, alone))
        scored = sum(len(choice.ids) for choice in choices)
        return Scores(tuple(choices), Usage(prompt_tokens=len(prompt), scored_tokens=scored))

    def _score_of(self, prompt: str, choice: str) -> float:
        if self._scores is None:
            return -1.0 - _hashed(prompt, choice)[0] / 64
        if callable(self._scores):
            return _checked_score(choice, self._scores(prompt, choice))
        if choice in self._scores:
            return _checked_score(choice, self._scores[choice])
        raise BackendError(f"the script has no score for the choice {choice!r}.")


def _listed(answers: object) -> deque[str]:
    """The answers of a list that has nothing else in it."""
    if isinstance(answers, str):
        raise ProgramTypeError("answers is one string: give a list of answers or a function.")
    if isinstance(answers, (bytes, Mapping, Set)) or not isinstance(answers, Iterable):
        raise ProgramTypeError(
            f"answers is {an(type(answers).__name__)}: give a list of strings, in the order in "
            "which they are asked for, or a function of the prompt."
        )
    listed: deque[str] = deque()
    for index, answer in enumerate(answers):
        if not isinstance(answer, str):
            raise ProgramTypeError(
                f"answers[{index}] is {an(type(answer).__name__)}: an answer is a string."
            )
        listed.append(answer)
    return listed


def _check(scores: object, error: object) -> None:
    """Raise ProgramTypeError for what is no script."""
    if scores is not None and not callable(scores) and not isinstance(scores, Mapping):
        raise ProgramTypeError(
            f"scores is {an(type(scores).__name__)}: give a dict of choices and their "
            "log-probabilities, or a function of the prompt and the choice."
        )
    if error is not None and not isinstance(error, BaseException):
        raise ProgramTypeError(
            f"error is {an(type(error).__name__)}: give an exception, as in "
            'error=BackendError("overloaded").'
        )


def _checked_score(choice: str, score: object) -> float:
    if isinstance(score, bool) or not isinstance(score, (int, float)):
        raise ProgramTypeError(
            f"the script's score of the choice {quote(choice)} is {an(type(score).__name__)}: it "
            "is a log-probability, a number."
        )
    return score


def _hashed(prompt: str, salt: object) -> bytes:
    return hashlib.blake2b(repr((prompt, salt)).encode(), digest_size=8).digest()
