"""The README's program prints what stands below it, on the embedded model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_first_program_prints_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    ((program, printed),) = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", README, re.DOTALL)
    exec(compile(program, "README.md", "exec"), {})
    chosen, *rows = capsys.readouterr().out.splitlines()
    said, *said_of_rows = printed.splitlines()
    assert chosen == said
    # What a model of this size writes freely may be another sentence on another processor.
    assert [row.split("|")[0] for row in rows] == [row.split("|")[0] for row in said_of_rows]
    assert all(row.split("|")[1].strip() for row in rows)


def test_every_make_target_and_file_it_names_exists() -> None:
    root = Path(__file__).parent.parent
    makefile = (root / "Makefile").read_text()
    for target in re.findall(r"^    make (\w+)|`make (\w+)`", README, re.MULTILINE):
        assert f"\n{''.join(target)}:" in makefile
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert (root / link).exists()
