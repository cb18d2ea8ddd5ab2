"""Settings of all tests: the same examples every time, and no limit on seconds."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("lmlang", derandomize=True, deadline=None)
settings.load_profile("lmlang")
