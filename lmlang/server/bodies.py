"""Bodies of requests: read within limits of size, time and depth before anything is parsed."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from starlette.requests import ClientDisconnect, Request

from lmlang.errors import QueueFull, quote
from lmlang.server.config import ServerConfig
from lmlang.server.refusals import Refusal

AT_ONCE = 32_768
"""Bytes that are parsed on the event loop; more go to the pool."""

MAX_CONTAINERS = 100_000
"""Lists and objects in one body."""

SHOWN = 40
"""Characters of a key that a message shows."""

_STEPS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]', re.DOTALL)
"""Strings, and what opens and closes."""


class Room:
    """The memory for bodies that are being read; the event loop's own.

    Args:
        most: Bytes that all of them may hold together.
    """

    def __init__(self, most: int) -> None:
        self._left = most

    @contextmanager
    def taken(self) -> Iterator[Callable[[int], None]]:
        """What takes some bytes, as they come; they are given back at the end of the block."""
        held = 0

        def take(count: int) -> None:
            nonlocal held
            if count > self._left:
                raise QueueFull(
                    "the bodies of other requests fill the room that this server has for them: "
                    "try again later."
                )
            self._left -= count
            held += count

        try:
            yield take
        finally:
            self._left += held


async def json_body(
    http: Request,
    config: ServerConfig,
    room: Room,
    pooled: Callable[..., Awaitable[dict[str, Any]]],
) -> dict[str, Any]:
    """The JSON object that a request carries.

    Args:
        http: The request.
        config: The limits.
        room: Where its bytes are held.
        pooled: Runs a function on a thread.

    Raises:
        Refusal: 400, 408, 413 or 415, which the message explains.
        QueueFull: There is no room.
    """
    _check_type(http)
    with room.taken() as take:
        data = await _read(http, config.max_body, config.body_timeout, take)
        if len(data) <= AT_ONCE:
            return parsed(data, config.max_depth)
        return await pooled(parsed, data, config.max_depth)


def parsed(data: bytes, max_depth: int) -> dict[str, Any]:
    """The JSON object of a body.

    Raises:
        Refusal: 400: it is none, or nested too deep.
    """
    if not data.strip():
        raise _bad("the body is empty: send a JSON object.")
    depth, containers = shape_of(data, max_depth)
    if depth > max_depth:
        raise _bad(f"the JSON is nested deeper than {max_depth} levels: flatten it.")
    if containers > MAX_CONTAINERS:
        raise _bad(f"the JSON has more than {MAX_CONTAINERS:,} lists and objects: send fewer.")
    try:
        found = json.loads(data.decode(), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise _bad(f"the body is no UTF-8 at byte {error.start:,}: encode it as such.") from None
    except json.JSONDecodeError as error:
        raise _bad(
            f"the body is no JSON: {error.msg} at line {error.lineno:,}, column {error.colno:,}."
        ) from None
    except ValueError:  # an integer of more digits than Python reads
        raise _bad("the body has a number of thousands of digits: no field takes it.") from None
    if not isinstance(found, dict):
        raise _bad(f"the body is a JSON {_kind(found)}: send an object.")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, none of whose keys stands twice: readers disagree about which of them acts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, times in Counter(n for n, _ in pairs).items() if times > 1)
        raise _bad(f"the key {quote(twice[:SHOWN])} stands twice in one object: give it once.")
    return found


def shape_of(data: bytes, max_depth: int) -> tuple[int, int]:
    """How deep lists and objects are nested, and how many there are; for anything, JSON or not.

    Beyond `MAX_CONTAINERS` and ``max_depth`` it does not look further.
    """
    deepest = depth = count = 0
    if data.count(b"[") + data.count(b"{") <= min(max_depth, MAX_CONTAINERS):
        return 0, 0  # not even if all of them were nested
    for step in _STEPS.finditer(data):
        sign = data[step.start()]
        if sign in b"[{":
            depth, count = depth + 1, count + 1
            deepest = max(deepest, depth)
            if deepest > max_depth or count > MAX_CONTAINERS:
                break
        elif sign in b"]}":
            depth -= 1
    return deepest, count


def _check_type(http: Request) -> None:
    """Refuse what does not say that it is JSON; so no web page's form can send it."""
    media, _, rest = http.headers.get("content-type", "").partition(";")
    kind = media.strip().lower()
    charset = rest.replace(" ", "").replace('"', "").lower()
    if kind != "application/json" or charset not in ("", "charset=utf-8"):
        raise Refusal(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "the body must be JSON in UTF-8: send the header Content-Type: application/json.",
        )
    if http.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body is compressed: send it as it is."
        )


async def _read(http: Request, limit: int, seconds: float, take: Callable[[int], None]) -> bytes:
    announced = http.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise _too_large(limit)
    # Not wait_for, which before Python 3.12 loses a cancellation that comes with the last byte: the
    # work of a client that is gone would then begin.
    reading = asyncio.ensure_future(_all_of(http, limit, take))
    try:
        await asyncio.wait({reading}, timeout=seconds)
        if reading.done():
            return reading.result()
    finally:
        reading.cancel()
    raise Refusal(
        HTTPStatus.REQUEST_TIMEOUT,
        f"the body did not arrive within {seconds:g} s: send it at once.",
        headers={"Connection": "close"},
    )


async def _all_of(http: Request, limit: int, take: Callable[[int], None]) -> bytes:
    parts, size = [], 0
    try:
        async for part in http.stream():
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            take(len(part))
            parts.append(part)
    except ClientDisconnect:
        raise asyncio.CancelledError from None
    return b"".join(parts)


def _too_large(limit: int) -> Refusal:
    return Refusal(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the body is larger than {limit:,} bytes: send less.",
        headers={"Connection": "close"},
    )


def _bad(message: str) -> Refusal:
    return Refusal(HTTPStatus.BAD_REQUEST, message)


def _kind(value: object) -> str:
    names = {list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
