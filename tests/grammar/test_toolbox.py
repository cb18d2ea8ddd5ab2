"""The toolbox: its page runs as it stands and names all there is."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import lmlang as lm
from lmlang.errors import ConstraintError, ProgramError, ProgramTypeError
from tests import pages
from tests.grammar.byte_sets import vocabulary_of

SECTIONS = {section.title: section for section in pages.sections("docs/reference/grammar.md")}
TEXT = "".join(section.text for section in SECTIONS.values())
VOCABULARY = vocabulary_of([bytes([byte]) for byte in range(128)])


def test_blocks_run_and_give_what_they_say() -> None:
    whole = pages.Section(
        "docs/reference/grammar.md",
        "all",
        TEXT,
        tuple(block for section in SECTIONS.values() for block in section.blocks),
    )
    pages.run(whole)


@pytest.mark.parametrize("name", lm.grammar.__all__)
def test_every_public_name_is_explained(name: str) -> None:
    assert re.search(rf"`(lm\.grammar\.)?{name}\b", TEXT)
    assert getattr(lm.grammar, name) is not None


@pytest.mark.parametrize(
    ("kind", "of"), [("Grammar", "c"), ("GrammarMatcher", "m"), ("Mask", ""), ("Match", "")]
)
def test_every_method_is_explained(kind: str, of: str) -> None:
    for name in vars(getattr(lm.grammar, kind)):
        if not name.startswith("_") and name not in ("ok", "owner", "automaton", "masks"):
            assert re.search(rf"`{of}\.{name}\b", TEXT), name


def test_the_toolbox_is_loaded_when_it_is_used() -> None:
    script = (
        "import sys, lmlang, lmlang.grammar\n"
        "assert not {'numpy', 'pydantic', 'torch'} & sys.modules.keys()\n"
        "assert lmlang.grammar.Regex('a') == lmlang.grammar.Regex('a')\n"
        "assert not {'numpy', 'pydantic', 'torch'} & sys.modules.keys()\n"
        "lmlang.grammar.compile\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=150)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = lm.grammar.nonsense


def test_types_and_specs_are_compiled() -> None:
    assert lm.grammar.compile(int, VOCABULARY).match("-12")
    assert not lm.grammar.compile(bool, VOCABULARY).match("true")
    either = lm.grammar.Either((lm.grammar.Regex("a+"), lm.grammar.Choice(("b",))))
    assert lm.grammar.compile(either, VOCABULARY).match("b")
    with pytest.raises(ConstraintError):
        lm.grammar.compile(object(), VOCABULARY)
    with pytest.raises(ProgramTypeError, match="has no vocabulary"):
        lm.grammar.compile(int, None)


def test_what_could_have_come_is_told_in_few_words() -> None:
    def expected(constraint: object, text: str = "") -> str:
        return lm.grammar.compile(constraint, VOCABULARY).match(text).expected

    assert expected(int) == "'-' or '0' to '9'"
    assert expected(int, "1x") == "'0' to '9' or the end"
    assert (
        expected(lm.grammar.Regex("[abc]|é")) == "'a' or 'b' or 'c' or a character outside of ASCII"
    )
    assert expected(lm.grammar.Regex("[acegikmoqsuwyACEF]")).endswith(
        "'i' or 'k' or 'm' or 'o' or 5 more"
    )
    value = "'\"' or '-' or '0' to '9' or '[' or 'f' or 'n' or 't' or '{'"
    assert expected({}) == value
    grammar = lm.grammar.compile({"enum": ["x" * 100]}, VOCABULARY)
    assert repr(grammar).startswith('<Grammar of JsonSchema(text=\'{"enum": ["xxx')
    assert len(repr(grammar)) < 100


@pytest.mark.parametrize("value", [3, b"3", {"a": 1}, None])
def test_a_value_is_no_text_to_match(value: object) -> None:
    grammar = lm.grammar.compile(int, VOCABULARY)
    with pytest.raises(ProgramTypeError, match=r"^match takes a text, not a"):
        grammar.match(value)  # type: ignore[arg-type]


def test_a_style_beside_a_spec_is_refused() -> None:
    schema = lm.grammar.JsonSchema.of({"type": "array"})
    with pytest.raises(ProgramError, match=r"^json_style='compact' cannot act on a spec"):
        lm.grammar.compile(schema, VOCABULARY, json_style="compact")
    assert lm.grammar.compile(schema, VOCABULARY, json_style="line").match("[1, 2]")
    assert lm.grammar.compile({"type": "array"}, VOCABULARY, json_style="compact").match("[1,2]")
