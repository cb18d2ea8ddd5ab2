"""Ctrl-C where something has to be brought to an end first: it is noted, and raised behind that.

with Held() as held:
    …                  whatever reads ``held.count``: how often it was pressed in here
─────────────────>     KeyboardInterrupt, where there was one that `take` has not taken
"""

from __future__ import annotations

import contextlib
import inspect
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from types import FrameType, TracebackType
from typing import Any

from lmlang.frontend.dispatcher import dispatcher

SOON = 0.02
"""Seconds after which an interrupt comes that a closing generator may not raise: Python would
print it, and forget it. Where it is still closing then, so many more."""
LOOKS = 100
"""How often at most it is looked whether it has closed."""


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
            closer = _closer(sys._getframe())
            dispatcher().after(SOON, partial(_interrupt_behind, closer, closer.f_lasti, LOOKS))
        else:
            raise KeyboardInterrupt


def _frames(innermost: FrameType | None) -> Iterator[FrameType]:
    """A frame and all those that wait for it."""
    while innermost is not None:
        yield innermost
        innermost = innermost.f_back


def _closer(innermost: FrameType) -> FrameType:
    """Who closes the generators that a frame is in: the first around them that is none."""
    inside = False
    for frame in _frames(innermost):
        generator = frame.f_code.co_flags & inspect.CO_GENERATOR
        if inside and not generator:
            return frame
        inside = inside or bool(generator)
    return innermost


def _interrupt_behind(closer: FrameType, at: int, looks: int) -> None:
    """As if somebody pressed Ctrl-C once a frame of the main thread has gone on behind a place."""
    main = threading.main_thread().ident
    assert main is not None
    stack = _frames(sys._current_frames().get(main))
    if looks and any(frame is closer for frame in stack) and closer.f_lasti == at:
        dispatcher().after(SOON, partial(_interrupt_behind, closer, at, looks - 1))
        return
    if hasattr(signal, "pthread_kill"):  # which wakes a main thread that waits
        signal.pthread_kill(main, signal.SIGINT)
    else:
        signal.raise_signal(signal.SIGINT)
