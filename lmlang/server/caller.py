"""One HTTP request as the log and the metrics see it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any


@dataclass(slots=True)
class Caller:
    """Who asks, and what became of it; changed on the event loop only.

    Args:
        request_id: Its name: the client's own, or a new one.
        tenant: Whose caches it uses; "" where the server has no keys.
        admin: Whether it comes from an administrator.
        began: When it came, by `time.perf_counter`.
        error: The class of the error that it ended with, "" where it did not.
        prompt_tokens: Of all its generations.
        generated_tokens: Likewise.
        stream: What its answer is made of, if that is a stream; closed when the request is over.
    """

    request_id: str
    tenant: str = ""
    admin: bool = False
    began: float = field(default_factory=perf_counter)
    error: str = ""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    stream: AsyncGenerator[Any, None] | None = None
