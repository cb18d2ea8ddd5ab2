"""A generation that is made of others, one after the other: each is followed without blocking."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lmlang.errors import Cancelled
from lmlang.frontend.dispatcher import dispatcher
from lmlang.protocol import Generation, Output, Request


class Following(Generation):
    """A generation whose next part begins when the last has ended. Thread-safe."""

    def __init__(self, request: Request) -> None:
        super().__init__(request, on_cancel=lambda _: self._cancel())
        self._lock = threading.Lock()
        self._under_way: Generation | None = None

    def follow(
        self, part: Generation, then: Callable[[Output], None], may_wait: bool = False
    ) -> None:
        """Have ``then(output)`` called when a part has ended well; else fail as it did.

        Args:
            part: What is under way now.
            then: Called on the dispatcher thread.
            may_wait: Whether it runs code of the program's own, for which all other programs would
                wait there: it is called on a thread of its own.
        """
        with self._lock:
            self._under_way = part
        if self.cancelled:
            part.cancel()

        def go_on() -> None:
            self._go_on(part, then)

        def go_on_elsewhere() -> None:
            try:
                threading.Thread(target=go_on, name="lmlang-validators", daemon=True).start()
            except RuntimeError as error:  # no more threads
                self.fail(error)

        part.add_done_callback(lambda _: dispatcher().put(go_on_elsewhere if may_wait else go_on))

    def _go_on(self, part: Generation, then: Callable[[Output], None]) -> None:
        try:
            outcome = part.outcome()
            if isinstance(outcome, BaseException):
                self.fail(outcome)
            elif not self.ended_by_cancelling():
                then(outcome)
        except BaseException as error:  # also what validators raise: else whoever asked would hang
            self.fail(error)

    def ended_by_cancelling(self) -> bool:
        """Whether it has been cancelled; it then fails with that."""
        if self.cancelled:
            self.fail(Cancelled("the generation was cancelled."))
        return self.cancelled

    def _cancel(self) -> None:
        with self._lock:
            under_way = self._under_way
        if under_way is not None:
            under_way.cancel()
