"""A generation that is made of others, one after the other: each is followed without blocking."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lmlang.errors import Cancelled
from lmlang.frontend.dispatcher import dispatcher
from lmlang.protocol import Generation, Output, Request


class Following(Generation):
    """A generation whose next part begins when the last has ended. Thread-safe.

    What a part came to is looked at on the dispatcher thread.
    """

    def __init__(self, request: Request) -> None:
        super().__init__(request, on_cancel=lambda _: self._cancel())
        self._lock = threading.Lock()
        self._under_way: Generation | None = None

    def follow(self, part: Generation, then: Callable[[Output], None]) -> None:
        """Have ``then(output)`` called when a part has ended well; else fail as it did."""
        with self._lock:
            self._under_way = part
        if self.cancelled:
            part.cancel()

        def ended(_: Generation) -> None:
            dispatcher().put(lambda: self._go_on(part, then))

        part.add_done_callback(ended)

    def _go_on(self, part: Generation, then: Callable[[Output], None]) -> None:
        try:
            outcome = part.outcome()
            if isinstance(outcome, BaseException):
                self.fail(outcome)
            elif self.cancelled:
                self.fail(Cancelled("the generation was cancelled."))
            else:
                then(outcome)
        except BaseException as error:  # also what validators raise: else whoever asked would hang
            self.fail(error)

    def _cancel(self) -> None:
        with self._lock:
            under_way = self._under_way
        if under_way is not None:
            under_way.cancel()
