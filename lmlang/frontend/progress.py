"""The progress bar of a batch, drawn by tqdm on the standard error stream where it is installed."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from lmlang import limits
from lmlang.errors import ProgramError


class Progress:
    """Counts rows that have ended; shows them if that was wanted. Thread-safe.

    Args:
        wanted: Whether to show a bar.
        total: How many rows there are; None: nobody knows.

    Raises:
        ProgramError: A bar is wanted, and tqdm is not installed.
    """

    def __init__(self, wanted: bool, total: int | None) -> None:
        self._lock = threading.Lock()
        self._bar: Any = _bar(total) if limits.boolean("progress_bar", wanted) else None

    def one_ended(self) -> None:
        """One more row has ended."""
        if self._bar is not None:
            with self._lock:
                self._bar.update(1)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()  # it stays as it stands


def _bar(total: int | None) -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        raise ProgramError(
            "progress_bar=True needs tqdm, which is not installed: "
            "pip install 'lmlang[progress]', or leave it out."
        ) from None
    # With an interval of 0 tqdm starts no thread of its own.
    quiet = type("tqdm", (tqdm,), {"monitor_interval": 0})
    return quiet(total=total, unit="row")
