"""What crosses the border between programs and backends: prompts, requests, generations, scores.

    frontend --Request--> Backend --Generation (future + Event stream)--> frontend
             --ScoreRequest-->     --Future[Scores]-->

Values are frozen; a `Generation` is the one living thing, and it is thread-safe.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal, Protocol, TypeAlias

from lmlang import limits
from lmlang.errors import Cancelled, ProgramError, ProgramTypeError, fresh, quote

_ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_log = logging.getLogger("lmlang")

# ---------------------------------------------------------------------------- prompt


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text, whatever it spells: ``<|im_end|>`` in it is ten characters."""

    text: str


@dataclass(frozen=True, slots=True)
class Turn:
    """Opens a chat turn; the backend's template writes its heading.

    Raises:
        ProgramError: The role is no plain word, so that it could spell something else.
    """

    role: str

    def __post_init__(self) -> None:
        if not isinstance(self.role, str) or not _ROLE.fullmatch(self.role):
            raise ProgramError(
                f"the role {quote(str(self.role))} is no word of letters, digits, '-', '_': use "
                "one that the model's template knows, such as 'user'."
            )


@dataclass(frozen=True, slots=True)
class EndTurn:
    """Closes the open chat turn."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens that a model produced; they are never tokenised again.

    Args:
        ids: Token ids of the backend that made them.
        text: What they read as (for backends that only know text, and for display).
    """

    ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """A picture, for backends whose `BackendInfo.has_vision` is true.

    Args:
        digest: SHA-256 of ``data``, in hexadecimal digits.
        name: Its path, or what else it came from; for display.
        data: The bytes of its file.
    """

    digest: str
    name: str = field(compare=False)
    data: bytes = field(repr=False, compare=False)


Segment: TypeAlias = Text | Turn | EndTurn | Tokens | Image


class Prompt:
    """An immutable list of segments that shares its beginning with what it was made from.

        root <- Turn(user) <- Text("Hi") <- EndTurn      each arrow one `append`
                                        ^- Text(" you")  a fork: shares all to its left

    ``append`` costs O(1) and never changes the prompt it is called on, so prompts may be read
    from any thread. ``memo`` belongs to the backend that encodes the prompt: a cache, never state.
    """

    __slots__ = ("__weakref__", "length", "memo", "parent", "segment")

    def __init__(self, parent: Prompt | None = None, segment: Segment | None = None) -> None:
        self.parent = parent
        self.segment = segment
        self.length: int = 0 if parent is None else parent.length + 1
        self.memo: object | None = None

    def append(self, segment: Segment) -> Prompt:
        """This prompt and one more segment."""
        return Prompt(self, segment)

    def nodes(self) -> list[Prompt]:
        """The prompts from the first segment's to this one, this one last; the root is left out."""
        found: list[Prompt] = []
        node: Prompt = self
        while node.parent is not None:
            found.append(node)
            node = node.parent
        found.reverse()
        return found

    def segments(self) -> list[Segment]:
        """All segments in order."""
        return [node.segment for node in self.nodes() if node.segment is not None]

    @classmethod
    def of(cls, *segments: Segment) -> Prompt:
        """A prompt of these segments."""
        prompt = cls()
        for segment in segments:
            prompt = prompt.append(segment)
        return prompt

    def __repr__(self) -> str:
        return f"Prompt({', '.join(map(repr, self.segments()))})"


# ---------------------------------------------------------------------------- requests


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next tokens are drawn; checked on construction (``ProgramError``).

    Args:
        max_tokens: Tokens at most, 0 to 1,000,000; 0 gives "" with finish "length".
        temperature: 0 is greedy (lowest id on ties); logits are divided by it.
        top_p: Nucleus: the smallest set of tokens whose probability reaches it; in (0, 1].
        top_k: The k likeliest tokens only; -1 (or 0) for all.
        min_p: Only tokens at least this fraction as likely as the likeliest; 0 to 1.
        stop: Texts that end the output; found across token borders, trimmed, never streamed.
        ignore_eos: Go on past the model's own end tokens.
        min_tokens: Until so many tokens, end tokens, control tokens, ``stop_token_ids`` are not
            drawn and stop strings are content.
        stop_token_ids: Tokens that end the output and are not part of its text.
        include_stop: Keep the stop string in the text.
        frequency_penalty: Subtracted from a token's logit for each time it stands in the output;
            -2 to 2.
        presence_penalty: Subtracted once where it stands in the output; -2 to 2.
        repetition_penalty: A positive logit of a token that stands in prompt or output is divided
            by it, a negative one multiplied; above 0, at most 10; 1 is none.
        logit_bias: Pairs of token id and what is added to its logit, -100 to 100.
    """

    max_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        checked = {
            "max_tokens": limits.integer("max_tokens", self.max_tokens, 0, limits.MAX_TOKENS),
            "temperature": limits.number(
                "temperature", self.temperature, 0.0, limits.MAX_TEMPERATURE
            ),
            "top_p": limits.number("top_p", self.top_p, 0.0, 1.0, above=True),
            "top_k": limits.top_k(self.top_k),
            "min_p": limits.number("min_p", self.min_p, 0.0, 1.0),
            "stop": limits.stop_strings(self.stop),
            "ignore_eos": limits.boolean("ignore_eos", self.ignore_eos),
            "min_tokens": limits.integer("min_tokens", self.min_tokens, 0, limits.MAX_TOKENS),
            "stop_token_ids": limits.token_ids("stop_token_ids", self.stop_token_ids),
            "include_stop": limits.boolean("include_stop", self.include_stop),
            "frequency_penalty": limits.number("frequency_penalty", self.frequency_penalty, -2, 2),
            "presence_penalty": limits.number("presence_penalty", self.presence_penalty, -2, 2),
            "repetition_penalty": limits.number(
                "repetition_penalty", self.repetition_penalty, 0.0, 10.0, above=True
            ),
            "logit_bias": limits.logit_bias(self.logit_bias),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.min_tokens > self.max_tokens:
            raise ProgramError(
                f"min_tokens={self.min_tokens:,} is more than max_tokens={self.max_tokens:,}: "
                "lower the one or raise the other."
            )


@dataclass(frozen=True, slots=True)
class Tag:
    """Where a request comes from; a backend may schedule by it and shows it in errors.

    Args:
        run_id: Unique to one run of one program.
        op_path: The operation within the run, as in ``"3/fork1.2/0"``.
    """

    run_id: str = ""
    op_path: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """One generation asked for. Its answer is a pure function of these values.

    Args:
        prompt: What the model reads.
        params: How tokens are drawn.
        draw_key: 64 bits; with a token's index and id they make its noise (SEMANTICS §4).
        top_logprobs: How many of the likeliest tokens are reported beside each token, 0 to 100.
        input_logprobs_from: Prompt tokens from this index on are reported with their
            log-probabilities, which are then computed and not taken from the cache; None: none.
        tag: Where it comes from; no part of the answer.
    """

    prompt: Prompt
    params: SamplingParams = SamplingParams()
    draw_key: int = 0
    top_logprobs: int = 0
    input_logprobs_from: int | None = None
    tag: Tag = field(default=Tag(), compare=False)

    def __post_init__(self) -> None:
        limits.integer("draw_key", self.draw_key, 0, 2**64 - 1)
        limits.integer("top_logprobs", self.top_logprobs, 0, limits.MAX_TOP_LOGPROBS)
        if self.input_logprobs_from is not None:
            limits.integer("input_logprobs_from", self.input_logprobs_from, 0, limits.MAX_TOKENS)


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Continuations of one prompt to be scored.

    Args:
        prompt: What the model reads.
        choices: Continuations, distinct and not empty. Each is tokenised with the text before it.
        end_turn: Score the end-of-turn token behind each choice too.
        tag: Where it comes from.
        unconditional: Score the tokens of each choice without the prompt too.
    """

    prompt: Prompt
    choices: tuple[str, ...]
    end_turn: bool = False
    tag: Tag = field(default=Tag(), compare=False)
    unconditional: bool = False

    def __post_init__(self) -> None:
        if not self.choices:
            raise ProgramError("choices=[]: there is nothing to choose from; give at least one.")
        if len(self.choices) > limits.MAX_CHOICES:
            raise ProgramError(
                f"{len(self.choices):,} choices: at most {limits.MAX_CHOICES:,} are allowed."
            )
        for choice in self.choices:
            if not isinstance(choice, str):
                raise ProgramTypeError(
                    f"a choice is a {type(choice).__name__}: choices of a request are texts."
                )
            if not choice:
                raise ProgramError("a choice is empty: nothing can be scored; give it some text.")
        if len(set(self.choices)) != len(self.choices):
            twice = next(c for i, c in enumerate(self.choices) if c in self.choices[:i])
            raise ProgramError(f"the choice {twice!r} stands twice: choices must differ.")


# ---------------------------------------------------------------------------- answers

FinishReason = Literal["stop", "eos", "length"]


@dataclass(frozen=True, slots=True)
class Finish:
    """Why an output ended: a stop string or token (``stop``), the model's own end, its length."""

    reason: FinishReason
    stop: str | int | None = None


TopLogprobs: TypeAlias = tuple[tuple[int, float], ...]
"""The likeliest tokens at one place, the likeliest first: (id, the model's log-probability)."""


@dataclass(frozen=True, slots=True)
class InputLogprobs:
    """Log-probabilities of prompt tokens from index ``start`` on.

    Args:
        start: Index of the first token of ``ids``.
        ids: The prompt's tokens from there on.
        logprobs: Of each; None for the first token of the prompt, which nothing precedes.
        top: The likeliest tokens at each place; empty where none were asked for.
    """

    start: int
    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    top: tuple[TopLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request or of many (``+``).

    prompt_tokens = cached_tokens + prefill_tokens; generated_tokens counts sampled tokens, the
    ones that a stop string or the end of turn dropped included; scored_tokens are those of
    choices.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    scored_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.generated_tokens + other.generated_tokens,
            self.scored_tokens + other.scored_tokens,
        )

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens that had to be computed."""
        return self.prompt_tokens - self.cached_tokens


@dataclass(frozen=True, slots=True)
class Event:
    """One atomic record of a stream: some tokens and the text that they completed.

    Args:
        index: Number of the first of ``ids`` in the output.
        ids: New tokens; the text of a held-back one comes in a later event.
        text: New text, final once sent; joined it is ``Output.text``.
        logprobs: The model's log-probability of each id, before temperature and truncation.
        finish: Set in the last event only.
        top_logprobs: The likeliest tokens at the place of each id; empty where none were asked.
    """

    index: int
    ids: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    finish: Finish | None = None
    top_logprobs: tuple[TopLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """A finished generation.

    Args:
        text: The value: without the stop string, the end token and control tokens.
        ids: All sampled tokens, the dropped ones at the end included.
        logprobs: The model's log-probability of each id.
        finish: Why it ended.
        usage: Tokens by how they came.
        history: What a state's prompt gains: whole tokens as ids, the kept part of a token that
            a stop string cut as text.
        top_logprobs: The likeliest tokens at the place of each id; empty where none were asked.
        input_logprobs: Those of the prompt, where asked for.
    """

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    usage: Usage
    history: tuple[Segment, ...]
    top_logprobs: tuple[TopLogprobs, ...] = ()
    input_logprobs: InputLogprobs | None = None


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """One choice's tokens behind the last token common to all choices, and their logprobs.

    ``unconditional`` are those of the same tokens fed alone, the first (which nothing precedes)
    None; empty where they were not asked for.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    unconditional: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Scores:
    """The answer to a `ScoreRequest`, in the order of its choices."""

    choices: tuple[ChoiceScore, ...]
    usage: Usage


class Generation:
    """One request's answer: a future, and a stream of events that any number may read.

    The backend calls `push`, then once `complete` or `fail`; whoever asked reads `events`,
    `result` or is called back. Thread-safe.

    Attributes:
        first_at: When the first token came, by `time.perf_counter`.
    """

    def __init__(
        self, request: Request, on_cancel: Callable[[Generation], None] | None = None
    ) -> None:
        self.request = request
        self._on_cancel = on_cancel
        self._changed = threading.Condition()
        self.first_at: float | None = None
        self._events: list[Event] = []
        self._output: Output | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Generation], None]] = []
        self._watchers: list[Callable[[], None]] = []
        self._cancelled = False

    # the backend's side

    def push(self, event: Event) -> None:
        """Add one event to the stream."""
        with self._changed:
            if self.first_at is None and event.ids:
                self.first_at = perf_counter()
            self._events.append(event)
            self._changed.notify_all()
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher()

    def complete(self, output: Output) -> None:
        """End with an output; later calls of complete or fail do nothing."""
        self._end(output, None)

    def fail(self, error: BaseException) -> None:
        """End with an error; later calls of complete or fail do nothing."""
        self._end(None, error)

    def _end(self, output: Output | None, error: BaseException | None) -> None:
        with self._changed:
            if self._ended():
                return
            self._output, self._error = output, error
            callbacks, self._callbacks = self._callbacks, []
            self._changed.notify_all()
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callable[[Generation], None]) -> None:
        # As in concurrent.futures: whoever ends the generation is not ended by who listens.
        try:
            callback(self)
        except Exception:
            _log.exception("a callback of a generation raised")

    def _ended(self) -> bool:
        return self._output is not None or self._error is not None

    # the asker's side

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called before the end."""
        return self._cancelled

    def done(self) -> bool:
        """Whether there is an output or an error."""
        with self._changed:
            return self._ended()

    def cancel(self) -> None:
        """Ask the backend to stop; the generation then fails with `Cancelled`, unless it ended."""
        with self._changed:
            if self._ended() or self._cancelled:
                return
            self._cancelled = True
        if self._on_cancel is not None:
            self._on_cancel(self)
        else:
            self.fail(Cancelled("the generation was cancelled."))

    def add_done_callback(self, callback: Callable[[Generation], None]) -> None:
        """Call ``callback(self)`` at the end, on the thread that ends it; at once if it has ended.

        The callback runs on the backend's engine thread: it may hand work on, nothing else.
        """
        with self._changed:
            if not self._ended():
                self._callbacks.append(callback)
                return
        self._call(callback)

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call ``watcher()`` after every event, on the thread that pushes it.

        As a callback it may hand work on, nothing else.

        Returns:
            What takes it back; to be called once.
        """
        with self._changed:
            self._watchers.append(watcher)

        def unwatch() -> None:
            with self._changed:
                self._watchers.remove(watcher)

        return unwatch

    def events_from(self, position: int) -> list[Event]:
        """The events from number ``position`` on that are there; never waits."""
        with self._changed:
            return self._events[position:]

    def outcome(self) -> Output | BaseException:
        """How it ended, without waiting; only for a generation that is done."""
        with self._changed:
            ended = self._output if self._error is None else self._error
            if ended is None:
                raise ProgramError("outcome() of a generation that has not ended: wait for it.")
            return ended

    def result(self, timeout: float | None = None) -> Output:
        """Wait for the end; raises the error it ended with, or TimeoutError (seconds)."""
        with self._changed:
            if not self._changed.wait_for(self._ended, timeout):
                raise TimeoutError(f"the generation did not end within {timeout} s.")
            if self._error is not None:
                raise fresh(self._error)
            assert self._output is not None
            return self._output

    def events(self) -> Iterator[Event]:
        """All events from the first on, waiting for each; raises what the generation ended with."""
        position = 0
        while True:
            with self._changed:
                while len(self._events) == position and not self._ended():
                    self._changed.wait()
                batch = self._events[position:]
                error = self._error
            yield from batch
            position += len(batch)
            if not batch:
                if error is not None:
                    raise fresh(error)
                return


# ---------------------------------------------------------------------------- backend


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """What a backend says of itself.

    Args:
        model: Its name or path.
        context_length: Tokens of prompt and output together, None where unknown.
        can_score: Whether `Backend.score` gives exact log-probabilities.
        has_tokens: Whether `Backend.encode` gives token ids.
        has_vision: Whether prompts may hold an `Image`.
    """

    model: str
    context_length: int | None = None
    can_score: bool = True
    has_tokens: bool = True
    has_vision: bool = False


class Backend(Protocol):
    """What runs generations. All methods are thread-safe; none blocks on the model."""

    def generate(self, request: Request) -> Generation:
        """Start one generation. Refusals come as its error, never as an exception here."""
        ...

    def score(self, request: ScoreRequest) -> Future[Scores]:
        """Start scoring; refusals come as the future's error."""
        ...

    def render(self, prompt: Prompt) -> str:
        """The prompt as the model reads it, template text included."""
        ...

    def encode(self, prompt: Prompt) -> list[int]:
        """The prompt's token ids."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; control tokens give nothing."""
        ...

    def info(self) -> BackendInfo:
        """Model, context, abilities."""
        ...

    def flush_cache(self) -> None:
        """Forget all cached prefixes that nothing uses."""
        ...

    def close(self) -> None:
        """End; unfinished work fails with BackendError. A second call does nothing."""
        ...
