"""RuntimeEndpoint: a server's runtime as a Backend, over HTTP.

Request --POST /lm/generate--> events … output        the Generation, event by event
           lost after n tokens --the same, with these n as `resumed`--> events from n on
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from lmlang import limits, wire
from lmlang.backends.addresses import address
from lmlang.backends.retries import Again, Retries
from lmlang.errors import (
    BackendError,
    LMLangError,
    ProgramError,
    ProgramTypeError,
    QueueFull,
    WireError,
    an,
)
from lmlang.protocol import (
    BackendInfo,
    Event,
    Generation,
    Output,
    Prompt,
    Request,
    ScoreRequest,
    Scores,
)
from lmlang.wire.programs import RoundTrip, Told, answer_from_wire, program_to_wire

if TYPE_CHECKING:
    from lmlang.backends.client import Client
    from lmlang.backends.connection import Connection

MAX_SECONDS = 1e6
MAX_CONCURRENCY = 65_536
MAX_TOKEN_TEXTS = 1 << 18
"""Texts of single tokens that are kept: metadata asks for one at a time."""


class RuntimeEndpoint:
    """The runtime of a server that ``lmlang serve`` started, as a backend. Needs httpx.

    Nothing is asked before it is used. A request that finds the server busy (429, 503) or loses
    its connection is sent again, after growing pauses with jitter, or the one that the server asks
    for; a stream that breaks goes on behind the tokens that have come. Thread-safe. Use it as a
    context manager, or call `close`; at the end of the process, or when nothing refers to it any
    more, it closes by itself. After ``os.fork`` it cannot be used in the child, if it has been
    used before.

    Args:
        url: The server's address, as in "http://localhost:30000".
        api_key: The key that the server asks for; None: none.
        timeout: Seconds without a byte from the server after which a request is given up; above 0.
        max_retries: How often in a row a request is sent again, 0 to 100.
        max_concurrency: Generations and scores under way at a time; others wait here.
        requests_per_minute: Requests that begin in any minute; None: any number.

    Raises:
        ProgramError: A parameter is out of range, or httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = 600.0,
        max_retries: int = 4,
        max_concurrency: int = 128,
        requests_per_minute: int | None = None,
    ) -> None:
        self._url = address(url)
        if requests_per_minute is not None:
            limits.integer("requests_per_minute", requests_per_minute, 1, 10**9)
        self._connection = _connection(
            self._url,
            api_key=_key(api_key),
            timeout=limits.number("timeout", timeout, 0, MAX_SECONDS, above=True),
            max_retries=limits.integer("max_retries", max_retries, 0, 100),
            max_concurrency=limits.integer("max_concurrency", max_concurrency, 1, MAX_CONCURRENCY),
            requests_per_minute=requests_per_minute,
        )
        self._info: BackendInfo | None = None
        self._token_texts: dict[int, str] = {}
        # Not a bound method of self: the finalizer must not keep the endpoint alive.
        self._finalizer = weakref.finalize(self, self._connection.stop)

    # ------------------------------------------------------------------ Backend

    def generate(self, request: Request) -> Generation:
        """Start one generation (see `Backend`); refusals come as its error."""
        generation = Generation(request, self._connection.cancel)
        try:
            message = wire.to_wire(request)
        except LMLangError as refusal:
            generation.fail(refusal)
            return generation
        stream = _Stream(generation, message)
        self._connection.start(generation, stream.read, generation.fail)
        return generation

    def score(self, request: ScoreRequest) -> Future[Scores]:
        """Start scoring (see `Backend`); refusals come as the future's error."""
        future: Future[Scores] = Future()
        try:
            message = wire.to_wire(request)
        except LMLangError as refusal:
            future.set_exception(refusal)
            return future
        connection = self._connection
        connection.start(future, partial(_score, future, message), partial(_fail, future))
        future.add_done_callback(lambda f: connection.cancel(f) if f.cancelled() else None)
        return future

    def render(self, prompt: Prompt) -> str:
        """The prompt as the model reads it, template text included."""
        return wire.text_from_wire(self._ask("/lm/render", wire.to_wire(prompt)))

    def encode(self, prompt: Prompt) -> list[int]:
        """The prompt's token ids."""
        return wire.ids_from_wire(self._ask("/lm/encode", wire.to_wire(prompt)))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; control tokens give nothing. A single one is asked for once."""
        known = self._token_texts.get(ids[0]) if len(ids) == 1 else None
        if known is not None:
            return known
        text = wire.text_from_wire(self._ask("/lm/decode", wire.ids_to_wire(ids)))
        if len(ids) == 1 and len(self._token_texts) < MAX_TOKEN_TEXTS:
            self._token_texts[ids[0]] = text
        return text

    def info(self) -> BackendInfo:
        """The model's name, its context length, and what marks its reasoning; asked for once."""
        return self._info or self.info_now()

    def info_now(self) -> BackendInfo:
        """As `info`, asked for again: the server may have another model by now."""
        answer = self._connection.wait_for(lambda client: client.ask("GET", "/lm/info"))
        info = self._info = wire.info_from_wire(answer)
        return info

    def flush_cache(self) -> None:
        """Forget all cached prefixes of all who use the server; needs an administrator's key."""
        self._ask("/flush_cache", {})

    def end_run(self, run_id: str) -> None:
        """Have the server keep nothing for a run any more (see `RunAware`); does not wait."""
        message = wire.run_to_wire(run_id)

        async def tell(client: Client) -> None:
            await client.ask("POST", "/lm/end_run", message)

        self._connection.start(object(), tell, _unheard)

    def run_program(self, trip: RoundTrip) -> Callable[[], None]:
        """Have the server run a program; returns at once, with what cancels it.

        One whose connection is lost is sent again, with what has been told by then.
        """
        self._connection.start(trip, partial(_run_program, trip), trip.ended)
        return partial(self._connection.cancel, trip)

    def close(self) -> None:
        """End; unfinished work fails with BackendError. A second call does nothing."""
        self._finalizer()

    def __enter__(self) -> RuntimeEndpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RuntimeEndpoint({self._url!r})"

    def _ask(self, path: str, message: dict[str, Any]) -> Any:
        return self._connection.wait_for(lambda client: client.ask("POST", path, message))


def connect(
    url: str,
    *,
    api_key: str | None = None,
    timeout: float = 600.0,
    max_retries: int = 4,
    max_concurrency: int = 128,
    requests_per_minute: int | None = None,
) -> RuntimeEndpoint:
    """A server's runtime by its address: another name of `RuntimeEndpoint`."""
    return RuntimeEndpoint(
        url,
        api_key=api_key,
        timeout=timeout,
        max_retries=max_retries,
        max_concurrency=max_concurrency,
        requests_per_minute=requests_per_minute,
    )


class _Stream:
    """One generation's events and output, over as many connections as it takes.

    Args:
        generation: What they are told to.
        message: Its request.
    """

    def __init__(self, generation: Generation, message: dict[str, Any]) -> None:
        self._generation = generation
        self._message = message
        self._given = generation.request.resumed
        self._ids = list(self._given)
        self._texts: list[str] = []
        self._finished = False
        self._ended = False

    async def read(self, client: Client) -> None:
        """Tell the generation everything, to its end."""
        async with client.place:
            await client.retrying(partial(self._attempt, client))

    async def _attempt(self, client: Client, retries: Retries) -> None:
        """Read one connection's part of the stream."""
        try:
            async with aclosing(client.events("/lm/generate", self._asking())) as events:
                async for data in events:
                    if self._ended:
                        break
                    self._read(wire.item_from_wire(wire.loads(data)), retries)
                if not self._ended:
                    raise WireError("the server's stream ended without an output or an error.")
        except Again:
            if not self._ended:
                raise

    def _read(self, item: wire.Item, retries: Retries) -> None:
        if isinstance(item, Event):
            if self._take(item):
                retries.progressed()
        elif isinstance(item, Output):
            self._end(item)
        elif _passes(item):
            raise Again(item)
        else:
            raise item

    def _asking(self) -> dict[str, Any]:
        """The request as it stands: behind the tokens that have come.

        Those whose probabilities are asked for must be drawn again, all of them: as they do not
        depend on anything but the request, they are the same, and are not told again.
        """
        request, received = self._generation.request, self._ids
        if request.probs:
            return self._message
        if self._finished or len(received) >= request.params.max_tokens:
            received = received[:-1]  # the last is asked for again, for the sake of the output
        return {**self._message, "resumed": received} if received else self._message

    def _take(self, event: Event) -> bool:
        """Pass an event on; False: it has been told before."""
        behind = event.index + len(event.ids)
        if self._finished or (event.ids and behind <= len(self._ids)):
            return False
        if event.index != len(self._ids):
            raise WireError(
                f"the server's stream has tokens from number {event.index:,} on, and those from "
                f"number {len(self._ids):,} on were due: it lost some, or sent some twice."
            )
        self._ids += event.ids
        self._texts.append(event.text)
        self._finished = event.finish is not None
        self._generation.push(event)
        return bool(event.ids)

    def _end(self, output: Output) -> None:
        told = "".join(self._texts)
        same = output.text == told if not self._given else output.text.endswith(told)
        if not same or list(output.ids) != self._ids:
            raise WireError(
                "the output that the server ends with is not what it streamed: servers of "
                "different models answer at this address, or one that is not lmlang's."
            )
        self._ended = True
        self._generation.complete(output)


def _passes(error: object) -> bool:
    """Whether what a stream tells is an error that the same request may not meet again."""
    return isinstance(error, QueueFull) or (isinstance(error, BackendError) and error.retryable)


async def _run_program(trip: RoundTrip, client: Client) -> None:
    """Tell a round trip everything, to its end."""
    async with client.place:
        await client.retrying(partial(_attempt, trip, client))
    trip.ended(None)


async def _attempt(trip: RoundTrip, client: Client, retries: Retries) -> None:
    """Read one connection's part of what is told of a program."""
    ended, message = False, program_to_wire(trip.asked())
    try:
        async with aclosing(client.events("/lm/programs", message)) as events:
            async for data in events:
                answer = answer_from_wire(wire.loads(data))
                error = answer.item if isinstance(answer, Told) else answer
                if isinstance(error, LMLangError) and _passes(error):
                    raise Again(error)
                if answer is None:
                    ended = True
                elif not isinstance(answer, Told):
                    raise answer
                elif trip.told(answer):
                    retries.progressed()
            if not ended:
                raise WireError("the server's stream ended before the program had.")
    except Again:
        if not ended:
            raise


async def _score(future: Future[Scores], message: dict[str, Any], client: Client) -> None:
    async with client.place:
        answer = await client.ask("POST", "/lm/score", message)
    scores = wire.scores_from_wire(answer)
    with suppress(InvalidStateError):  # nobody waits any more
        future.set_result(scores)


def _fail(future: Future[Scores], error: BaseException) -> None:
    with suppress(InvalidStateError):
        future.set_exception(error)


def _unheard(_: BaseException) -> None:
    """A hint that did not arrive; the server forgets the run by itself, only later."""


def _connection(url: str, **parameters: Any) -> Connection[Client]:
    try:
        from lmlang.backends.client import Client
        from lmlang.backends.connection import Connection
    except ImportError:
        raise ProgramError(
            "a server is asked by httpx, which is not installed: pip install 'lmlang[remote]'."
        ) from None
    return Connection(Client(url, **parameters))


def _key(key: object) -> str | None:
    """A key that a header can carry; it is shown nowhere."""
    if key is None:
        return None
    if not isinstance(key, str):
        raise ProgramTypeError(f"api_key must be a text, not {an(type(key).__name__)}.")
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ProgramError(
            "api_key is empty, or holds characters that no HTTP header carries: it may have a "
            "line's end or a space too many."
        )
    return key
