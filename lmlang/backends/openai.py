"""OpenAI: a hosted model, or any server that speaks OpenAI's interface, as a Backend."""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from lmlang import limits
from lmlang.backends.addresses import address
from lmlang.backends.characters import rendered
from lmlang.backends.openai_ahead import Aheads
from lmlang.backends.openai_answer import TokenTexts
from lmlang.backends.openai_fields import EXTENSIONS, Service
from lmlang.errors import BudgetExceeded, LMLangError, ProgramError, ProgramTypeError, an, quote
from lmlang.protocol import (
    BackendInfo,
    Event,
    Finish,
    Generation,
    Output,
    Prompt,
    Request,
    ScoreRequest,
    Scores,
    Usage,
)

if TYPE_CHECKING:
    from lmlang.backends.connection import Connection
    from lmlang.backends.openai_client import OpenAIClient

MAX_SECONDS = 1e6
MAX_CONCURRENCY = 65_536
COMPLETION_MODELS = ("babbage-002", "davinci-002", "gpt-3.5-turbo-instruct")
"""The models of OpenAI's own that have a completion endpoint."""


class OpenAI:
    """A model behind OpenAI's interface, as a backend. Needs the packages of ``lmlang[openai]``.

    Nothing is asked before it is used. A request that finds the server busy (429, 502, 503) or
    loses its connection before anything was told is sent again, after growing pauses with jitter,
    or the one that the server asks for. Thread-safe. Use it as a context manager, or call `close`;
    at the end of the process, or when nothing refers to it any more, it closes by itself. After
    ``os.fork`` it cannot be used in the child, if it has been used before.

    Args:
        model: The name that the server knows the model by.
        is_chat_model: Whether it is asked for messages, else for completions of text; None: for
            messages, but for those of OpenAI's models that have none.
        base_url: The address of the interface, which mostly ends with /v1; None: OpenAI's own, or
            what OPENAI_BASE_URL says.
        api_key: The key; None: OPENAI_API_KEY, where there is no ``base_url``, else none.
        timeout: Seconds without a byte from the server after which a request is given up; above 0.
        max_retries: How often in a row a request is sent again, 0 to 100.
        max_concurrency: Generations and scores under way at a time; others wait here.
        requests_per_minute: Requests that begin in any minute; None: any number.
        emulate: Whether the model itself names the choice of a select where the endpoint has no
            log-probabilities of given texts; its probability is then 1.
        echo: Whether a completion endpoint tells the log-probabilities of a prompt.
        logprobs: Whether the log-probabilities of all outputs are asked for; else only where
            ``return_logprob`` or ``top_logprobs_num`` asks. ``meta.probs`` is always empty.
        num_api_spec_tokens: On completion endpoints: a generation asks for so many tokens at
            least, without stops, and later ones of the run begin with what came behind its end, as
            long as the text agrees. None: each asks for its own. A run's own keyword of this name
            comes first.
        extensions: What the server takes beyond OpenAI's interface: of top_k, min_p,
            repetition_penalty, min_tokens, ignore_eos, stop_token_ids, regex, ebnf.
        prefill: Fields that have the server go on with an assistant's message that has begun;
            ``{}`` where it needs none. None: it cannot.
        max_tokens_field: What the most tokens are called: "max_tokens", or
            "max_completion_tokens"; None: the second for chats with OpenAI itself, else the first.
        encoding: tiktoken's, by its name or itself, with which `encode` works; None: the one that
            tiktoken knows of the model.

    Raises:
        ProgramError: A parameter is out of range, a package is not installed, or a key is missing.
    """

    def __init__(
        self,
        model: str,
        is_chat_model: bool | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 600.0,
        max_retries: int = 4,
        max_concurrency: int = 64,
        requests_per_minute: int | None = None,
        emulate: bool = False,
        echo: bool = True,
        logprobs: bool = False,
        num_api_spec_tokens: int | None = None,
        extensions: Sequence[str] = (),
        prefill: Mapping[str, Any] | None = None,
        max_tokens_field: str | None = None,
        encoding: Any = None,
    ) -> None:
        chat = model not in COMPLETION_MODELS if is_chat_model is None else is_chat_model
        limits.boolean("is_chat_model", chat)
        if requests_per_minute is not None:
            limits.integer("requests_per_minute", requests_per_minute, 1, 10**9)
        if num_api_spec_tokens is not None:
            limits.integer("num_api_spec_tokens", num_api_spec_tokens, 1, limits.MAX_TOKENS)
        own = "max_completion_tokens" if chat and base_url is None else "max_tokens"
        self._service = Service(
            _text("model", model),
            chat,
            _extensions(extensions),
            _prefill(prefill),
            limits.boolean("logprobs", logprobs),
            _limit(max_tokens_field) or own,
        )
        self._emulate = limits.boolean("emulate", emulate)
        self._echo = limits.boolean("echo", echo)
        self._ahead_tokens = num_api_spec_tokens
        self._fingerprint = _digest(base_url, self._service, self._emulate, self._echo)
        self._connection = _connection(
            None if base_url is None else address(base_url),
            api_key=None if api_key is None else _text("api_key", api_key),
            timeout=limits.number("timeout", timeout, 0, MAX_SECONDS, above=True),
            max_retries=limits.integer("max_retries", max_retries, 0, 100),
            max_concurrency=limits.integer("max_concurrency", max_concurrency, 1, MAX_CONCURRENCY),
            requests_per_minute=requests_per_minute,
        )
        self._encoding = encoding
        self._texts = TokenTexts()
        self._aheads = Aheads()
        # Not a bound method of self: the finalizer must not keep the backend alive.
        self._finalizer = weakref.finalize(self, self._connection.stop)

    # ------------------------------------------------------------------ Backend

    def generate(self, request: Request) -> Generation:
        """Start one generation (see `Backend`); refusals come as its error."""
        from lmlang.backends.openai_stream import OpenAIStream

        generation = Generation(request, self._connection.cancel)
        try:
            ahead = request.tag.ahead or self._ahead_tokens
            stream = OpenAIStream(
                generation,
                self._service,
                self._texts,
                self._aheads,
                None if self._service.chat else ahead,
            )
        except LMLangError as refusal:
            generation.fail(refusal)
            return generation
        if request.params.max_tokens == 0:
            _end_at_once(generation)
        else:
            self._connection.start(generation, stream.read, generation.fail)
        return generation

    def score(self, request: ScoreRequest) -> Future[Scores]:
        """Start scoring (see `Backend`); refusals come as the future's error."""
        from lmlang.backends.openai_scores import echoed, emulated, refuse_scores

        future: Future[Scores] = Future()
        exact = self._echo and not self._service.chat
        work = partial(echoed if exact else emulated, request, self._service, self._texts)

        async def ask(client: OpenAIClient) -> None:
            scores = await work(client)
            with suppress(InvalidStateError):  # nobody waits any more
                future.set_result(scores)

        try:
            refuse_scores(request, self._service, self._echo, self._emulate)
        except LMLangError as refusal:
            future.set_exception(refusal)
            return future
        connection = self._connection
        connection.start(future, ask, partial(_fail, future))
        future.add_done_callback(lambda f: connection.cancel(f) if f.cancelled() else None)
        return future

    def render(self, prompt: Prompt) -> str:
        """The prompt as text, turns as ``<role>…</role>``: the server's template is its own."""
        return rendered(prompt, vision=False)

    def encode(self, prompt: Prompt) -> list[int]:
        """The ids of the prompt's text in tiktoken's encoding; the template's are not there.

        Raises:
            ProgramError: tiktoken does not know the model, or cannot load its encoding.
        """
        text = "".join([getattr(segment, "text", "") for segment in prompt.segments()])
        found: list[int] = self._loaded().encode(text, disallowed_special=())
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, of `encode` or of outputs."""
        parts: list[str] = []
        plain: list[int] = []
        for token in (*ids, None):
            told = None if token is None else self._texts.text_of(token)
            if token is not None and told is None:
                plain.append(token)
                continue
            if plain:
                parts.append(self._loaded().decode(plain))
                plain = []
            parts.append(told or "")
        return "".join(parts)

    def info(self) -> BackendInfo:
        """The model's name, and what can be had of it.

        The fingerprint stands for the address and the name: what a server has behind a name is
        not known.
        """
        return BackendInfo(
            self._service.model,
            can_score=self._echo and not self._service.chat,
            has_tokens=False,
            fingerprint=self._fingerprint,
        )

    def flush_cache(self) -> None:
        """There is nothing that a client could have the server forget."""

    def end_run(self, run_id: str) -> None:
        """Forget what was asked for beyond the ends of the run's outputs (see `RunAware`)."""
        self._aheads.end_run(run_id)

    def close(self) -> None:
        """End; unfinished work fails with BackendError. A second call does nothing."""
        self._finalizer()

    def __enter__(self) -> OpenAI:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"OpenAI({self._service.model!r})"

    def _loaded(self) -> Any:
        """The encoding of tiktoken."""
        if self._encoding is None or isinstance(self._encoding, str):
            self._encoding = _encoding(self._encoding, self._service.model)
        return self._encoding


def _end_at_once(generation: Generation) -> None:
    """End a generation of no tokens."""
    if generation.request.constraint is not None:
        generation.fail(BudgetExceeded("max_tokens=0, and the constraint needs some: raise it."))
        return
    finish = Finish("length")
    generation.push(Event(0, (), "", (), finish))
    generation.complete(Output("", (), (), finish, Usage(), ()))


def _digest(base_url: str | None, service: Service, *how: bool) -> str:
    """What stands for a model by its name, where it is, and how it is asked."""
    address = os.environ.get("OPENAI_BASE_URL") if base_url is None else base_url
    prefill = sorted((service.prefill or {}).items())
    parts = (address, service.model, service.chat, prefill, service.logprobs, how)
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _connection(base_url: str | None, **parameters: Any) -> Connection[OpenAIClient]:
    from lmlang.backends.connection import Connection

    try:
        from lmlang.backends.openai_client import OpenAIClient
    except ImportError:
        raise ProgramError(
            "lm.OpenAI asks by the openai package, which is not installed: "
            "pip install 'lmlang[openai]'."
        ) from None
    return Connection(OpenAIClient(base_url, **parameters))


def _encoding(name: str | None, model: str) -> Any:
    try:
        import tiktoken
    except ImportError:
        raise ProgramError(
            "tokens are counted by tiktoken, which is not installed: pip install 'lmlang[openai]'."
        ) from None
    try:
        return tiktoken.encoding_for_model(model) if name is None else tiktoken.get_encoding(name)
    except (KeyError, ValueError):
        raise ProgramError(
            f"tiktoken knows no encoding of {quote(name or model)}, so that tokens cannot be "
            "counted: give encoding=… where you know it."
        ) from None
    except OSError as error:
        raise ProgramError(
            f"tiktoken could not load the encoding of {quote(name or model)} "
            f"({type(error).__name__}): it needs the network once, or encoding=…."
        ) from None


def _fail(future: Future[Scores], error: BaseException) -> None:
    with suppress(InvalidStateError):
        future.set_exception(error)


def _text(name: str, value: object) -> str:
    """A parameter that is a text and not empty; it is not shown, as it may be a key."""
    if not isinstance(value, str):
        raise ProgramTypeError(f"{name} must be a text, not {an(type(value).__name__)}.")
    if not value or not value.isascii() or not value.isprintable():
        raise ProgramError(f"{name} is empty, or holds characters that are not printable ASCII.")
    return value


def _extensions(names: Sequence[str]) -> frozenset[str]:
    listed = (names,) if isinstance(names, str) else tuple(names)
    for name in listed:
        if name not in EXTENSIONS:
            raise ProgramError(
                f"extensions: {quote(str(name))} is none of {', '.join(EXTENSIONS)}."
            )
    return frozenset(listed)


def _prefill(fields: object) -> Mapping[str, Any] | None:
    if fields is not None and not isinstance(fields, Mapping):
        raise ProgramTypeError(
            f"prefill must be a dict of fields, not {an(type(fields).__name__)}: {{}} where the "
            "server needs none."
        )
    return fields


def _limit(name: str | None) -> str | None:
    if name not in (None, "max_tokens", "max_completion_tokens"):
        raise ProgramError(
            f"max_tokens_field={quote(str(name))}: give 'max_tokens' or 'max_completion_tokens'."
        )
    return name
