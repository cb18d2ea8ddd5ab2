"""The progress of a batch on the standard error stream: by tqdm in terminals, else as a plain bar.

[█████·····] 20/40 rows, 310 tokens/s, 87% cached, 12% forced, 1 failed, 0:09 left
"""

from __future__ import annotations

import threading
from time import monotonic
from types import TracebackType
from typing import Any

from lmlang import limits
from lmlang.frontend.reuse import Reused
from lmlang.frontend.status_line import StatusLine, is_terminal
from lmlang.protocol import Usage

BAR = 10
"""Columns of the plain bar."""
NOTHING, NONE = Usage(), Reused()


class Progress:
    """Counts rows that have ended; shows them if that was wanted. Thread-safe.

    Args:
        wanted: Whether to show a bar.
        total: How many rows there are; None: nobody knows.
    """

    def __init__(self, wanted: bool, total: int | None) -> None:
        self._lock = threading.Lock()
        self._wanted = limits.boolean("progress_bar", wanted)
        self._total = total
        self._begun = monotonic()
        self._ended = self._failed = 0
        self._usage, self._reused = NOTHING, NONE
        self._kept = 0  # rows of which a journal had everything: they took no time
        self._bar: Any = _tqdm(total) if self._wanted and is_terminal() else None
        self._line = StatusLine() if self._wanted and self._bar is None else None

    def one_ended(
        self, usage: Usage = NOTHING, failed: bool = False, reused: Reused = NONE
    ) -> None:
        """One more row has ended.

        Args:
            usage: What it took.
            failed: Whether it failed.
            reused: What of it a journal had.
        """
        with self._lock:
            if not self._wanted:  # or the batch has been left, and this row ends behind it
                return
            self._ended += 1
            self._failed += failed
            self._usage += usage
            self._reused += reused
            self._kept += 0 < reused.tokens == usage.generated_tokens + usage.scored_tokens
            if self._bar is not None:
                self._bar.set_postfix_str(", ".join(self._numbers()), refresh=False)
                self._bar.update(1)
            elif self._line is not None and self._line.due:
                self._line.show(self.text())

    def text(self) -> str:
        """Where the batch stands, in one line."""
        left = []
        if self._total is None:
            rows = f"{self._ended:,} row{'' if self._ended == 1 else 's'}"
        else:
            full = BAR if not self._total else BAR * self._ended // self._total
            rows = f"[{'█' * full}{'·' * (BAR - full)}] {self._ended:,}/{self._total:,} rows"
            if self._kept < self._ended < self._total:
                each = (monotonic() - self._begun) / (self._ended - self._kept)
                left = [f"{_clock(each * (self._total - self._ended))} left"]
        return ", ".join([rows, *self._numbers(), *left])

    def _numbers(self) -> list[str]:
        usage, took = self._usage, max(monotonic() - self._begun, 1e-3)
        new = usage.generated_tokens + usage.scored_tokens - self._reused.tokens
        found = [f"{new / took:,.0f} tokens/s"]
        if usage.prompt_tokens:
            found.append(f"{usage.cached_tokens / usage.prompt_tokens:.0%} cached")
        if usage.forced_tokens:
            found.append(f"{usage.forced_tokens / usage.generated_tokens:.0%} forced")
        if self._reused.tokens:
            found.append(f"{self._reused.tokens:,} tokens from the journal")
        if self._failed:
            found.append(f"{self._failed:,} failed")
        return found

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            self._wanted = False
            if self._bar is not None:
                self._bar.close()  # it stays as it stands
            if self._line is not None:
                self._line.end(self.text())


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _tqdm(total: int | None) -> Any:
    """A bar of tqdm; None where it is not installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    # With an interval of 0 tqdm starts no thread of its own.
    quiet = type("tqdm", (tqdm,), {"monitor_interval": 0})
    return quiet(total=total, unit="row", dynamic_ncols=True)
