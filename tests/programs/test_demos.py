"""The examples of ``lmlang demo`` run through, on a model that knows nothing, and say something."""

from __future__ import annotations

import importlib

import pytest

from lmlang import demo
from tests.programs.properties import silent


@pytest.mark.parametrize("name", demo.NAMES)
def test_a_demo_runs_and_has_no_errors_of_check(name, untrained, capfd):
    module = importlib.import_module(f"lmlang.demo.{name}")
    lines: list[str] = []
    module.run(untrained, lines.append)
    assert len(lines) >= 2
    silent(capfd)
    programs = [value for value in vars(module).values() if type(value).__name__ == "Function"]
    assert programs
    for program in programs:
        assert [str(each) for each in program.check() if each.level != "note"] == []
