"""A run as it goes on, before the eyes of who asked for it by ``show="live"``.

    a notebook    its transcript, in one output that is drawn anew; the last frame stays
    elsewhere     one line on the standard error stream (`StatusLine`)

A thread of its own looks at the run eight times a second at most; what it shows costs the run
nothing but the time to be read.
"""

from __future__ import annotations

import atexit
import contextvars
import logging
import threading
from time import perf_counter
from types import TracebackType
from typing import Any

from lmlang import markup
from lmlang.frontend.run import Run
from lmlang.frontend.runlog import RunLog
from lmlang.frontend.snapshot import run_log
from lmlang.frontend.status_line import INTERVAL, StatusLine, notebook

_log = logging.getLogger("lmlang")

SHARE = 4
"""How many times as long as a frame took to make, the next one is waited for at least."""
_TAIL = 200
"""Characters of the newest text that the line has to choose from."""


class Live:
    """A ``with`` block that shows a run until its end, with a last frame.

    Args:
        run: What is shown.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Live:
        context = contextvars.copy_context()  # which cell of a notebook this is
        self._thread = threading.Thread(
            target=context.run, args=(self._show,), name="lmlang-live", daemon=True
        )
        self._thread.start()
        atexit.register(self._end)  # a thread that writes while the interpreter ends would crash it
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        atexit.unregister(self._end)
        self._end()

    def _end(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self) -> None:
        try:
            self._draw()
        except Exception:  # what shows a run does not end it
            _log.exception("the live view of a run ended")

    def _draw(self) -> None:
        frames: _Cell | _Line = _Line() if notebook() is None else _Cell()
        pause = INTERVAL
        while not self._over.wait(pause):
            begun = perf_counter()
            frames.draw(run_log(self._run))
            pause = max(INTERVAL, SHARE * (perf_counter() - begun))
        frames.end(run_log(self._run))


class _Cell:
    """One output of a notebook."""

    def __init__(self) -> None:
        self._handle: Any = None

    def draw(self, log: RunLog) -> None:
        import IPython.display

        display: Any = IPython.display.display
        frame = log.transcript()._repr_mimebundle_()
        if self._handle is None:
            self._handle = display(frame, raw=True, display_id=True)
        else:
            self._handle.update(frame, raw=True)

    end = draw


class _Line:
    """One line of a terminal."""

    def __init__(self) -> None:
        self._line = StatusLine()

    def draw(self, log: RunLog) -> None:
        if self._line.due:
            self._line.show(status(log))

    def end(self, log: RunLog) -> None:
        self._line.end(status(log))


def status(log: RunLog) -> str:
    """A run in one line: how far it has come, and the newest of its text."""
    asked = [each for each in log.operations if each.kind in ("gen", "select")]
    done = sum(each.status == "done" for each in asked)
    usage = log.usage
    new = usage.generated_tokens + usage.scored_tokens
    parts = [f"{log.program}: {done:,}/{markup.counted(len(asked), 'output')}"]
    parts.append(markup.counted(new, "token"))
    if log.seconds is not None:
        parts.append(f"{log.seconds:,.1f} s")
    if log.error is not None:
        return f"{', '.join(parts)}: {log.error.type}: {log.error.message[:_TAIL]}"
    running = [each for each in asked if each.status == "running" and each.text]
    told = running[-1:] or [each for each in asked if each.status == "done"][-1:]
    if told:
        text = (told[0].text or "")[-_TAIL:]
        room = max(16, markup.columns() - len(", ".join(parts)) - len(told[0].name or "") - 6)
        parts.append(
            f"{told[0].name}: …{text[-room:]}" if len(text) > room else f"{told[0].name}: {text}"
        )
    return ", ".join(parts)
