"""When a request to a server is sent again: after which answers, how often, after which pause."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

from lmlang.errors import LMLangError

STATUSES = (429, 502, 503)
"""Too many requests, nobody behind a proxy, overloaded: the same request may succeed later."""
FIRST_PAUSE = 0.25
"""Seconds; every further pause without a token in between may be twice as long."""
LONGEST_PAUSE = 10.0
"""Seconds, unless the server itself asks for more."""
MINUTE = 60.0


class Again(Exception):
    """What happened may pass: the request may be sent again.

    Args:
        error: What it is, for whoever waits when there is no further try.
        after: Seconds after which the server wants to be asked again; None: it does not say.
    """

    def __init__(self, error: LMLangError, after: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.after = after


class Retries:
    """How often one request has failed, and how long to wait now.

    Args:
        most: Failures in a row that are followed by a further try.
        patience: Seconds at most that a server may ask to be waited for.
        draw: A number from 0 to 1, the jitter, so that clients that fail together return apart.
    """

    def __init__(
        self, most: int, patience: float, draw: Callable[[], float] = random.random
    ) -> None:
        self._most = most
        self._patience = patience
        self._draw = draw
        self._failed = 0

    def progressed(self) -> None:
        """Something came that is not lost with the next failure."""
        self._failed = 0

    def pause(self, again: Again) -> float:
        """Seconds to wait before the next try.

        Raises:
            LMLangError: There is none: it has failed too often, or would have to wait too long.
        """
        wanted = again.after or 0.0
        if self._failed >= self._most or wanted > self._patience:
            raise again.error from None
        longest: float = min(LONGEST_PAUSE, FIRST_PAUSE * 2**self._failed)
        self._failed += 1
        return wanted + longest * self._draw()


class Rate:
    """So many requests in any minute.

    Args:
        most: Requests; None: any number.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._begun: deque[float] = deque()

    def delay(self, now: float) -> float:
        """Seconds until one more may begin; at 0 it has begun, and counts."""
        if self._most is None:
            return 0.0
        while self._begun and self._begun[0] <= now - MINUTE:
            self._begun.popleft()
        if len(self._begun) < self._most:
            self._begun.append(now)
            return 0.0
        return self._begun[0] + MINUTE - now


def seconds_of(header: str | None, now: datetime | None = None) -> float | None:
    """The seconds of a ``Retry-After`` header, a number or a date; None where it has none."""
    text = (header or "").strip()
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return max(0.0, (moment - (now or datetime.now(timezone.utc))).total_seconds())
