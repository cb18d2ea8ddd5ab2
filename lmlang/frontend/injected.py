"""What the package's face injects, so that a value can be asked for what is built above it.

RunLog.replay ──> `rerunning` ──> frontend/rerun.py, which makes runs, which make run logs
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Rerunning(Protocol):
    """What runs a run log again."""

    def rerun(self, log: Any, backend: Any, tolerance: float) -> Any:
        """The final state."""

    def fork_at(self, log: Any, at: str, backend: Any, tolerance: float) -> Any:
        """The state before an operation."""


_rerunning: list[Callable[[], Rerunning]] = []


def set_rerunning(load: Callable[[], Rerunning]) -> None:
    """Say what runs a run log again; ``load()`` is called when it is first asked for."""
    _rerunning[:] = [load]


def rerunning() -> Rerunning:
    """What runs a run log again."""
    return _rerunning[0]()
