"""The pages of the site that no other test runs: read from the top, they give what they say."""

from __future__ import annotations

import re

import pytest

import lmlang as lm
from tests import pages

RUN_ELSEWHERE = {"reference/language.md", "reference/grammar.md", "how-to/serve.md"}
PAGES = sorted(
    name
    for path in (pages.ROOT / "docs").rglob("*.md")
    if (name := path.relative_to(pages.ROOT / "docs").as_posix()) not in RUN_ELSEWHERE
)
BLOCKS = {
    name: tuple(block for section in pages.sections(f"docs/{name}") for block in section.blocks)
    for name in PAGES
}


@pytest.mark.parametrize("name", [name for name in PAGES if BLOCKS[name]])
def test_blocks_run_and_give_what_they_say(name: str) -> None:
    pages.run(pages.Section(f"docs/{name}", name, "", BLOCKS[name]))


def test_the_navigation_and_the_list_for_language_models_have_every_page() -> None:
    site = (pages.ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = (pages.ROOT / "docs/llms.txt").read_text(encoding="utf-8")
    for path in (pages.ROOT / "docs").rglob("*.md"):
        name = path.relative_to(pages.ROOT / "docs").as_posix()
        assert f"- {name}\n" in site, name
        title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        assert name == "index.md" or f"- [{title}]({name}): " in listed, name


def test_the_python_interface_has_every_public_name() -> None:
    page = (pages.ROOT / "docs/reference/api.md").read_text(encoding="utf-8")
    assert [name for name in lm.__all__ if not re.search(rf"\b{name}\b", page)] == []
