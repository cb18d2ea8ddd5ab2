"""The desk that all work passes: places, tenants, names to abort by, threads beside the loop."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from lmlang.errors import BackendError, Cancelled, LMLangError, QueueFull
from lmlang.protocol import Backend, Generation, Request, ScoreRequest, Scores, Tag
from lmlang.server.bell import Bell
from lmlang.server.caller import Caller
from lmlang.server.config import ServerConfig
from lmlang.server.metrics import Metrics
from lmlang.server.refusals import Refusal

T = TypeVar("T")
THREADS = 4
"""Of the pool: prompts are encoded there, text is rendered, large bodies are parsed."""
LONGEST_NAME = 128
"""Characters of a namespace or a run's id that are kept; longer ones are hashed."""


class Endable(Protocol):
    """Work under way, as the desk knows it."""

    tenant: str
    name: str

    def end(self, reason: LMLangError) -> None:
        """End it; whoever reads gets the reason."""
        ...


class Desk:
    """What is under way in one server; the event loop's own, but for `submit`.

    Args:
        backend: What runs everything.
        config: Checked parameters.
        metrics: What is counted goes there.
    """

    def __init__(self, backend: Backend, config: ServerConfig, metrics: Metrics) -> None:
        self.config = config
        self.metrics = metrics
        self.draining = False
        self.under_way = 0
        """Generations and scores that have not ended."""
        # A backend that can refuse a full queue does so; the others take what they are given.
        self.offer: Callable[[Request], Generation] = getattr(backend, "offer", backend.generate)
        self.offer_score: Callable[[ScoreRequest], Future[Scores]] = getattr(
            backend, "offer_score", backend.score
        )
        self.bell = Bell()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="lmlang-server")
        self._works: dict[tuple[str, str], set[Endable]] = {}

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Run a function on a thread of the pool."""
        return self._pool.submit(function, *arguments)

    def check_open(self) -> None:
        """Refuse new work while the server ends, and where it has no place for any."""
        if self.draining:
            raise Refusal(503, "the server is shutting down: ask another one, or later.")
        self._check_places(1)

    def enter(self, work: Endable, count: int) -> None:
        """Take places for generations; QueueFull where there are not so many."""
        self.check_open()
        self._check_places(count)
        self.under_way += count
        self._works.setdefault((work.tenant, work.name), set()).add(work)

    def leave(self, work: Endable, count: int) -> None:
        """Give the places back."""
        self.under_way -= count
        same = self._works[work.tenant, work.name]
        same.discard(work)
        if not same:
            del self._works[work.tenant, work.name]

    def abort(self, name: str, *, tenant: str | None = None) -> int:
        """End the work of this name; how many there were.

        Args:
            name: The whole name.
            tenant: Whose; None: of every tenant.
        """
        found = [
            work
            for (owner, known), works in self._works.items()
            if known == name and tenant in (None, owner)
            for work in works
        ]
        for work in found:
            work.end(Cancelled("the request was aborted."))
        return len(found)

    def abort_all(self) -> int:
        """End the work of all tenants; how many there were."""
        return sum(self.abort(name, tenant=tenant) for tenant, name in list(self._works))

    def end_all(self) -> None:
        """End everything that is under way, as the server ends."""
        for work in [work for works in self._works.values() for work in works]:
            work.end(
                BackendError(
                    "the server was shut down before this had ended: ask again.",
                    retryable=True,
                    status=503,
                )
            )

    def close(self) -> None:
        """End the pool."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _check_places(self, count: int) -> None:
        if self.under_way + count > self.config.max_requests:
            raise QueueFull(
                f"{self.under_way:,} generations are under way, and this server takes "
                f"{self.config.max_requests:,}: try again later."
            )


def owned(request: Request, caller: Caller) -> Request:
    """A request whose cache and run are the caller's own, whatever it says itself."""
    return replace(
        request,
        namespace=within(caller.tenant, request.namespace),
        tag=owned_tag(request.tag, caller),
    )


def owned_tag(tag: Tag, caller: Caller) -> Tag:
    """A tag whose run is the caller's own."""
    return replace(tag, run_id=within(caller.tenant, tag.run_id)) if tag.run_id else tag


def within(tenant: str, name: str) -> str:
    """A tenant's own name for something; no two tenants have one in common."""
    short = name
    if len(name) > LONGEST_NAME:
        short = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()
    if not tenant:
        return short
    return f"{tenant}/{short}" if short else tenant
