"""The page about serving: its commands and programs run, against a real ``lmlang serve``."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lmlang.cli import main
from lmlang.runtime.models.fetch import find_embedded_model
from lmlang.server import auth
from tests import pages
from tests.server.test_cli import process
from tests.server.test_sglang_client import FIRST, python_with

PAGE = "docs/how-to/serve.md"
TEXT = (pages.ROOT / PAGE).read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:30000"
SECTIONS = {section.title: section for section in pages.sections(PAGE)}
BLOCKS = re.compile(
    r"<!-- run: [^\n]+ -->\n```(sh|python)\n(.*?)```\n(?:```text\n(.*?)```\n)?", re.DOTALL
)
COMMANDS = [found.groups() for found in BLOCKS.finditer(TEXT)]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with process(find_embedded_model(), "--kv-tokens", "8192") as server:
        yield f"http://127.0.0.1:{server.port}"


def output_of(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("kind", "source", "printed"), COMMANDS)
def test_commands_give_what_the_page_says(
    url: str, kind: str, source: str, printed: str, tmp_path: Path
) -> None:
    assert ADDRESS in source
    source = source.replace(ADDRESS, url)
    if kind == "python":
        path = tmp_path / "program.py"
        path.write_text(source)
        command = [python_with(FIRST), str(path)]
    else:
        if shutil.which("curl") is None:
            pytest.skip("there is no curl on this machine")
        command = ["bash", "-e", "-o", "pipefail", "-c", source]
    said = output_of(command)
    pattern = re.escape(printed.strip("\n")).replace("…", ".*")
    assert re.fullmatch(pattern, said.strip("\n"), re.DOTALL), said


@pytest.mark.parametrize("title", [title for title in SECTIONS if SECTIONS[title].blocks])
def test_programs_give_what_the_page_says(url: str, title: str) -> None:
    section = SECTIONS[title]
    blocks = [
        replace(block, source=block.source.replace(ADDRESS, url), backend="embedded")
        for block in section.blocks
    ]
    assert all(url in block.source for block in blocks)
    pages.run(replace(section, blocks=tuple(blocks)))


def test_its_options_and_routes_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    known = capsys.readouterr().out
    options = set(re.findall(r"--[a-z][a-z-]+", TEXT)) - {"--help"}
    assert len(options) > 6
    assert {option for option in options if option not in known} == set()
    watched = pages.table(SECTIONS["Watch it"], "route")
    for route, who, _ in watched:
        (path,) = re.findall(r"/\w+", route)
        assert (path in auth.OPEN_PATHS) == (who == "everyone")
        assert (path in auth.ADMIN_PATHS) == (who == "administrators")
    for link in re.findall(r"\]\((\.\./[^)#]+)", TEXT):
        assert (pages.ROOT / "docs" / "how-to" / link).exists(), link
