"""The README's program runs as it stands, on the embedded model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_first_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(program, "README.md", "exec"), {})
    chosen, reply, *rows = capsys.readouterr().out.splitlines()
    teams = {"billing", "shipping", "other"}
    assert chosen.split()[0] in teams
    assert reply
    assert len(rows) == 2
    assert {row.split(" | ")[0] for row in rows} <= teams


def test_every_make_target_and_file_it_names_exists() -> None:
    root = Path(__file__).parent.parent
    makefile = (root / "Makefile").read_text()
    for target in re.findall(r"^    make (\w+)|`make (\w+)`", README, re.MULTILINE):
        assert f"\n{''.join(target)}:" in makefile
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert (root / link).exists()
