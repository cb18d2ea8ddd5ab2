"""What an example writes a line with."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]
