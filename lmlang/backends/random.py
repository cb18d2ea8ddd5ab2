"""RandomBackend: random text from a seed, tokens that are characters, and no model.

An answer depends on the seed, the rendered prompt, the draw key (not at temperature 0) and the
sampling parameters, and on nothing else; so programs behave on it as on a model that is very fast.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Literal, TypeAlias

from lmlang import limits
from lmlang.backends.characters import decoded, output_of, rendered, shown, tell
from lmlang.backends.constrained import sample
from lmlang.backends.cut import END
from lmlang.errors import BackendError, Cancelled, ProgramError
from lmlang.protocol import (
    BackendInfo,
    ChoiceScore,
    Generation,
    Image,
    Output,
    Prompt,
    Request,
    ScoreRequest,
    Scores,
    Turn,
    Usage,
)

Completes: TypeAlias = Literal["at once", "on a thread"]

LETTERS = (b"eeeeettttaaaoooiiinnnssshhhrrrddllcum     ,.\n" * 6)[:256]
"""The character that a byte of a digest stands for; common ones stand there more often."""
LOGPROBS = tuple(-byte / 64 for byte in range(256))
"""The log-probability that it stands for."""
LONGEST = 48
"""Characters of an answer at most, before it ends by itself."""
EVERY = 16
"""Tokens in one event."""


class _Read:
    """What is known of a prompt: the hash of its text, its length, the open turn's role."""

    __slots__ = ("hash", "length", "role")

    def __init__(self, hash: hashlib.blake2b, length: int, role: str) -> None:
        self.hash = hash
        self.length = length
        self.role = role


class RandomBackend:
    """A backend of random text. Thread-safe.

    Args:
        seed: Another seed, other answers.
        completes: "at once" on the caller's thread; "on a thread" of the backend's own, which
            lives only while there is work.
        vision: Whether prompts may hold pictures.
    """

    def __init__(
        self, seed: int = 0, *, completes: Completes = "at once", vision: bool = False
    ) -> None:
        if completes not in ("at once", "on a thread"):
            raise ProgramError(f"completes={completes!r} must be 'at once' or 'on a thread'.")
        self._seed = limits.integer("seed", seed, 0, limits.MAX_SEED)
        self._completes = completes
        self._vision = vision
        self._lock = threading.Lock()
        self._work: deque[tuple[Callable[[], None], Callable[[BaseException], None]]] = deque()
        self._thread: threading.Thread | None = None
        self._working = False
        """Whether the thread will look for more work before it ends."""
        self._closed = False

    # ------------------------------------------------------------- the Backend protocol

    def generate(self, request: Request) -> Generation:
        """Start one generation."""
        generation = Generation(request, on_cancel=_cancel)
        self._take(lambda: tell(generation, self._output(request), EVERY), generation.fail)
        return generation

    def score(self, request: ScoreRequest) -> Future[Scores]:
        """Start scoring."""
        future: Future[Scores] = Future()

        def answer() -> None:
            scores = self._scores(request)
            if future.set_running_or_notify_cancel():
                future.set_result(scores)

        def fail(error: BaseException) -> None:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

        self._take(answer, fail)
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
        said = f"random {self._seed}"
        return BackendInfo(model="random", has_vision=self._vision, fingerprint=said)

    def flush_cache(self) -> None:
        """There is no cache."""

    def close(self) -> None:
        """Fail what is pending and wait for the thread's end."""
        with self._lock:
            self._closed = True
            pending, self._work = list(self._work), deque()
            thread = self._thread  # also one that has no more work, and is about to end
        for _, fail in pending:
            fail(BackendError("the backend was closed before it answered."))
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def __enter__(self) -> RandomBackend:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------- inside

    def _take(self, work: Callable[[], None], fail: Callable[[BaseException], None]) -> None:
        with self._lock:
            closed = self._closed
            if not closed and self._completes == "on a thread":
                self._work.append((work, fail))
                if not self._working:
                    self._working = True
                    self._thread = threading.Thread(
                        target=self._loop, args=(self._thread,), name="lmlang-random", daemon=True
                    )
                    self._thread.start()
                return
        if closed:
            fail(BackendError("the backend is closed: make a new one."))
        else:
            _do(work, fail)

    def _loop(self, before: threading.Thread | None) -> None:
        if before is not None:  # it has no more work, and whoever closes waits for the last alone
            before.join()
        while True:
            with self._lock:
                if not self._work:
                    self._working = False
                    return
                work, fail = self._work.popleft()
            try:
                _do(work, fail)
            except BaseException as error:  # the thread goes on, and only readers can hear of it
                fail(error)

    def _output(self, request: Request) -> Output:
        read = self._read(request.prompt)
        params = request.params
        draw = request.draw_key if params.temperature > 0 else 0
        drawn = self._drawn(read, draw.to_bytes(8, "little"))
        if request.constraint is not None:
            answer = sample(request.constraint, itertools.cycle(drawn))
        else:
            length = 1 + drawn[-1] * LONGEST // 256
            answer = drawn[:length].translate(LETTERS).decode("ascii")
        return output_of(
            request,
            lambda: self.render(request.prompt),
            read.length,
            answer,
            lambda count: _logprobs(drawn, count),
        )

    def _scores(self, request: ScoreRequest) -> Scores:
        read = self._read(request.prompt)
        alone = _Read(hashlib.blake2b(), 0, "")
        choices = []
        for choice in request.choices:
            ids = (*map(ord, choice), *((END,) if request.end_turn else ()))
            told = _logprobs(self._drawn(read, choice.encode()), len(ids))
            without: tuple[float | None, ...] = ()
            if request.unconditional:
                without = (None, *_logprobs(self._drawn(alone, choice.encode()), len(ids))[1:])
            choices.append(ChoiceScore(ids, told, without))
        scored = sum(len(choice.ids) for choice in choices)
        return Scores(tuple(choices), Usage(prompt_tokens=read.length, scored_tokens=scored))

    def _drawn(self, read: _Read, salt: bytes) -> bytes:
        """64 bytes that depend on seed, prompt and salt."""
        mixed = read.hash.copy()
        mixed.update(b"%d:" % self._seed + salt)
        return mixed.digest()

    def _read(self, prompt: Prompt) -> _Read:
        """The hash of a prompt's text, remembered on every prompt on the way to it."""
        if isinstance(prompt.memo, _Read):
            return prompt.memo
        unread: list[Prompt] = []
        node: Prompt | None = prompt
        while node is not None and not isinstance(node.memo, _Read):
            unread.append(node)
            node = node.parent
        read = None if node is None else node.memo
        assert read is None or isinstance(read, _Read)
        for node in reversed(unread):
            if read is None:
                read = _Read(hashlib.blake2b(), 0, "")
            else:
                assert node.segment is not None
                role = node.segment.role if isinstance(node.segment, Turn) else read.role
                if isinstance(node.segment, Image) and not self._vision:
                    self.render(prompt)
                text = shown(node.segment, role)
                mixed = read.hash.copy()
                mixed.update(text.encode("utf-8", "surrogatepass"))
                read = _Read(mixed, read.length + len(text), role)
            node.memo = read
        assert read is not None
        return read


def _logprobs(drawn: bytes, count: int) -> tuple[float, ...]:
    """So many log-probabilities, over and over from the same bytes."""
    repeated = drawn * (count // len(drawn) + 1)
    return tuple([LOGPROBS[byte] for byte in repeated[:count]])


def _do(work: Callable[[], None], fail: Callable[[BaseException], None]) -> None:
    try:
        work()
    except Exception as error:
        fail(error)


def _cancel(generation: Generation) -> None:
    generation.fail(Cancelled("the generation was cancelled."))
