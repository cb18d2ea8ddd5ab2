"""Ctrl-C where something has to be brought to an end first: it is noted, and raised behind that.

with Held() as held:
    …                  whatever reads ``held.count``: how often it was pressed in here
─────────────────>     KeyboardInterrupt, where there was one that `take` has not taken
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

from lmlang.frontend.dispatcher import dispatcher

SOON = 0.02
"""Seconds after which an interrupt comes that a closing generator may not raise: Python would
print it, and forget it."""


class Held:
    """Around what no interrupt may break off. On the main thread alone: others get none.

    A handler of the user's own is asked, as ever: what counts is the KeyboardInterrupt that it
    raises.

    Attributes:
        count: How many there have been.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: Any = None

    def __enter__(self) -> Held:
        here = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGINT) if here and not sys.is_finalizing() else None
        if callable(before):
            self._before = before
            with contextlib.suppress(ValueError):  # in an interpreter that is not the first one
                signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        try:
            self._before(number, frame)
        except KeyboardInterrupt:
            self.count += 1

    def take(self) -> bool:
        """Whether there was one, of which the caller then tells."""
        taken, self.count = self.count > 0, 0
        return taken

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._before is not None:
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGINT, self._before)
        if not self.count or isinstance(error, KeyboardInterrupt):
            return
        if isinstance(error or sys.exc_info()[1], GeneratorExit):
            dispatcher().after(SOON, _interrupt)
        else:
            raise KeyboardInterrupt


def _interrupt() -> None:
    """As if somebody pressed Ctrl-C now."""
    if hasattr(signal, "pthread_kill"):  # which wakes a main thread that waits
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)
    else:
        signal.raise_signal(signal.SIGINT)
