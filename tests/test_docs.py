"""The reference of the language: its blocks run, its tables are those of the code."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

import pytest

import lmlang as lm
from lmlang import errors
from lmlang.frontend.feed import StreamEvent
from lmlang.frontend.forks import Forks
from lmlang.frontend.options import RUN_KEYWORDS, RunOptions
from lmlang.frontend.program import Function
from lmlang.runtime.config import RuntimeConfig
from tests import pages

PAGE = "docs/reference/language.md"
SECTIONS = {section.title: section for section in pages.sections(PAGE)}
TEXT = "".join(section.text for section in SECTIONS.values())


def rows(section: str, heading: str = "keyword") -> dict[str, list[str]]:
    """The other cells of a table's rows, by each name in their first cell."""
    found = pages.table(SECTIONS[section], heading)
    names = [name for first, *_ in found for name in pages.coded(first)]
    assert len(set(names)) == len(names)
    return {name: rest for first, *rest in found for name in pages.coded(first)}


def defaults(function: Any) -> dict[str, object]:
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in ("self", "rows", "given", "others")
    }


@pytest.mark.parametrize("title", [title for title in SECTIONS if SECTIONS[title].blocks])
def test_blocks_run_and_give_what_they_say(title: str) -> None:
    pages.run(SECTIONS[title])


@pytest.mark.parametrize("name", lm.__all__)
def test_every_public_name_is_explained(name: str) -> None:
    assert re.search(rf"\blm\.{name}\b|lmlang\.{name}\b|[`─ ]{name}\b", TEXT)


@pytest.mark.parametrize("kind", [lm.ProgramState, Forks, Function, lm.BatchResult])
def test_every_method_is_explained(kind: type) -> None:
    for name in vars(kind):
        if not name.startswith("_"):
            assert re.search(rf"\.{name}\b", TEXT), name


def test_gen_has_these_keywords() -> None:
    assert list(rows("Generations")) == list(defaults(lm.gen))


def test_gen_inherits_what_runs_have() -> None:
    inherited = {name for name, cells in rows("Generations").items() if cells[0] == "the run's"}
    assert inherited == {"max_tokens"} | (set(RUN_KEYWORDS) & set(defaults(lm.gen)))


def test_runs_have_these_keywords_and_defaults() -> None:
    table = rows("Programs and runs")
    assert set(table) == set(RUN_KEYWORDS)
    options = RunOptions()
    places = (options.gen.params, options.gen.report, options.gen, options)
    for name, cells in table.items():
        own = {"max_new_tokens": "max_tokens"}.get(name, name)
        held = [getattr(place, own) for place in places if hasattr(place, own)]
        assert held == ([eval(cells[0].strip("`"))] if held else []), name


@pytest.mark.parametrize(
    ("section", "heading", "function"),
    [("Select", "keyword", lm.select), ("Batches", "keyword", Function.run_batch)],
)
def test_tables_have_the_defaults_of_the_code(section: str, heading: str, function: Any) -> None:
    said = {name: eval(cells[0].strip("`")) for name, cells in rows(section, heading).items()}
    assert said == defaults(function)


def test_runtime_has_these_keywords_and_defaults() -> None:
    table = rows("Backends", "keyword of `Runtime`")
    assert list(table) == list(defaults(lm.Runtime))
    said = {name: eval(cells[0].strip("`")) for name, cells in table.items()}
    assert said == dataclasses.asdict(RuntimeConfig())


def test_endpoints_have_these_keywords_and_defaults() -> None:
    table = rows("Backends", "keyword of `RuntimeEndpoint`")
    said = {name: eval(cells[0].strip("`")) for name, cells in table.items()}
    own = {name: default for name, default in defaults(lm.RuntimeEndpoint).items() if name != "url"}
    assert said == own
    assert defaults(lm.connect) == defaults(lm.RuntimeEndpoint)


def run_with(**given: Any) -> None:
    """The checks of a run's keywords; room for min_tokens, which is compared with the maximum."""
    RunOptions.of({"max_new_tokens": 1_000_000, **given})


RANGE = re.compile(r"(above )?(-?[\d,]+)(?: to |, at most )(-?[\d,]+)")
RANGES = [
    pytest.param(make, name, found, id=f"{make.__name__}-{name}")
    for make, section in ((lm.gen, "Generations"), (run_with, "Programs and runs"))
    for name, cells in rows(section).items()
    if (found := RANGE.fullmatch(cells[1]))
]
FRACTIONS = (
    *("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty"),
    *("repetition_penalty", "deadline"),
)


@pytest.mark.parametrize(("make", "name", "said"), RANGES)
def test_ranges_are_those_of_the_code(make: Any, name: str, said: re.Match[str]) -> None:
    low, high = (int(text.replace(",", "")) for text in said.groups()[1:])
    make(**{name: high})
    make(**{name: (low + high) / 2 if name in FRACTIONS else (low + high) // 2})
    if not said[1]:
        make(**{name: low})
    for outside in (low if said[1] else low - 1, high + 1):
        with pytest.raises(lm.ProgramError, match=rf"^{name}="):
            make(**{name: outside})


def test_metadata_and_events_have_these_fields() -> None:
    for section, heading, kind in (
        ("Metadata", "field", lm.Meta),
        ("Streams", "event's field", StreamEvent),
    ):
        fields = {field.name for field in dataclasses.fields(kind)}
        derived = {name for name, value in vars(kind).items() if isinstance(value, property)}
        assert set(rows(section, heading)) == fields | derived


def test_the_tree_of_errors_is_that_of_the_code() -> None:
    (tree,) = re.findall(r"```text\n(.*?)```", SECTIONS["Errors"].text, re.DOTALL)
    line_of: list[str] = []
    for line in tree.splitlines():
        found = re.match(r"([│├└─ ]*)(\w+)", line)
        assert found is not None
        depth = len(found[1]) // 4
        line_of[depth:] = [found[2]]
        error = getattr(errors, found[2])
        if depth:
            assert getattr(errors, line_of[depth - 1]) in error.__bases__
    named = {name for name in lm.__all__ if hasattr(errors, name)}
    assert set(re.findall(r"^[│├└─ ]*(\w+)", tree, re.MULTILINE)) == named
