"""Programs in files, and the command line called as a function."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from lmlang.cli import main, target

CAPITAL = """
    import datetime
    import enum
    import sys
    from typing import Literal

    import lmlang as lm
    from lmlang.testing import RandomBackend

    backend = RandomBackend()


    class Tone(enum.Enum):
        DRY = "dry"
        WARM = "warm"


    @lm.function(backend=backend)
    def capital(s, country: str, year: int = 2000, tone: Tone = Tone.DRY, *, loud: bool = False):
        \"\"\"The capital of a country.

        More about it.
        \"\"\"
        print("from the body")
        s += f"In {year} ({tone.value}, {loud}) the capital of " + country + " is "
        s += lm.gen("city", max_tokens=6)
        if country == "Nowhere":
            raise ValueError("there is no such place")
        s["country"] = country


    @lm.function(backend=backend)
    def typed(s, days: list[datetime.date], pair: tuple[int, float], kind: Literal["a", 1],
              name: str | None = None, seed: int = 0):
        return {"days": days, "pair": pair, "kind": kind, "name": name, "seed": seed}


    def plain(s):
        pass
"""


class Ran(NamedTuple):
    """What a command gave."""

    code: int
    out: str
    err: str


Lmlang = Callable[..., Ran]


@pytest.fixture
def lmlang(capfd: pytest.CaptureFixture[str]) -> Lmlang:
    """Call ``main``; argparse's way out counts as its exit code."""

    def call(*arguments: object) -> Ran:
        capfd.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = int(end.code or 0)
        return Ran(code, *capfd.readouterr())

    return call


@pytest.fixture
def program(tmp_path: Path, request: pytest.FixtureRequest):
    """Write a file of programs; what importing it leaves behind goes at the end."""
    paths, modules = list(sys.path), set(sys.modules)

    def write(source: str = CAPITAL, name: str = "capitals.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        return path

    yield write
    sys.path[:] = paths
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    target._module.cache_clear()
