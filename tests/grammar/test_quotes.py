"""Quotes: what stands in a text and nothing else, with offsets, as a type and as a constraint."""

from __future__ import annotations

import copy
import json
import pickle
import time
from dataclasses import dataclass
from typing import Annotated, Literal, Optional

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.errors import (
    ConstraintError,
    GrammarSyntaxError,
    ProgramTypeError,
    SchemaUnsupported,
)
from lmlang.grammar.automaton import Automaton
from lmlang.grammar.compiler import compile_spec, rules_of
from lmlang.grammar.language import standing_in
from lmlang.grammar.matcher import GrammarMatcher
from lmlang.grammar.quotes import MAX_SOURCE, Quote
from lmlang.grammar.spec import JsonSchema
from lmlang.grammar.types import reader_of, spec_of
from lmlang.grammar.vocabulary import Vocabulary

SOURCES = st.text(alphabet='ab"\\\né€😀', min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(SOURCES, st.integers(0, 4), st.none() | st.integers(0, 6), st.data())
def test_the_language_is_what_stands_in_the_text(source, least, more, data):
    most = None if more is None else least + more
    every = {source[i:j] for i in range(len(source) + 1) for j in range(i, len(source) + 1)}
    due = {text for text in every if least <= len(text) <= (len(source) if most is None else most)}
    language = standing_in(source, least, most)
    assert language.is_empty() is (not due)
    if due:
        assert set(language.first(1000)) == due
        assert language.size(1000) == len(due)
        assert len(language.shortest()) == min(map(len, due))
    other = data.draw(st.text(alphabet='ab"\\\né€😀', max_size=5))
    assert language.contains(other) is (other in due)


@settings(max_examples=60, deadline=None)
@given(SOURCES, st.integers(1, 3), st.data())
def test_any_way_through_the_constraint_is_a_quote_with_its_first_place(source, least, data):
    if least > len(source):
        return
    tp = Quote(source, min_length=least)
    automaton, made = Automaton(rules_of(spec_of(tp))[0]), bytearray()
    state = automaton.start
    while not state.accepting:
        byte = data.draw(st.sampled_from(list(automaton.following(state))))
        made.append(byte)
        state = automaton.push(state, byte)
        rest = automaton.completion(state)
        assert json.loads(bytes(made) + rest) in source
    value = reader_of(tp)(made.decode())
    assert value == source[value.start : value.end]
    assert value.start == source.find(str(value))
    assert isinstance(value, Quote)
    assert type(value) is tp


def test_masks_let_through_what_can_go_on_token_by_token():
    source = 'It was "cold".\nIt rained, né.'
    pieces = [bytes([b]) for b in range(256)] + [
        b"It",
        b" rain",
        b"\\n",
        b'\\"',
        b"cold",
        b"ned",
        "é.".encode(),
        b"d, n",
        b"ow",
        b'".',
    ]
    vocabulary = Vocabulary(pieces, encode=lambda text: list(text.encode()))
    matcher = GrammarMatcher(compile_spec(spec_of(Quote(source)), vocabulary))
    for text in (b'"', b"I", b"t", b" "):
        assert matcher.accept_token(pieces.index(text))
    escaped = json.dumps(source, ensure_ascii=False)[1:-1].encode()
    for index, piece in enumerate(pieces):
        due = b"It " + piece in escaped or (piece[:1] == b'"' and piece == b'"')
        legal = matcher.accept_token(index)
        if legal:
            matcher.rollback(1)
        assert legal is due, piece


ROWS = " ".join(f"The {n * n % 977}th of {n % 13} rows says {n}." for n in range(700))


@pytest.mark.parametrize("source", [ROWS[:20_000], "-" * 50_000], ids=["prose", "a long line"])
def test_a_long_source_costs_little_and_has_few_states(source):
    vocabulary = Vocabulary(
        [bytes([b]) for b in range(256)] + [b"The ", b" rows", b"th of", b"says 1"],
        encode=lambda text: list(text.encode()),
    )
    begun = time.thread_time()  # which no other process or thread lengthens
    grammar = compile_spec(spec_of(Quote(source)), vocabulary)
    matcher = GrammarMatcher(grammar)
    for byte in b'"' + source[5_000:5_400].encode() + b'"':
        assert matcher.accept_token(byte)
    assert matcher.is_accepting()
    assert len(grammar.automaton) < 5_000
    assert time.thread_time() - begun < 5.0


def test_a_quote_is_a_field_of_classes_with_lengths_of_its_own():
    source = "red green blue"

    @dataclass
    class Claim:
        quote: Annotated[str, Quote(source, min_length=3)]
        other: Optional[Annotated[str, pydantic.Field(max_length=4), Quote(source)]] = None  # noqa: UP045

    read = reader_of(Claim)
    found = read('{"quote": "green", "other": "blue"}')
    assert (found.quote.start, found.quote.end, found.other.start) == (4, 9, 10)
    automaton = Automaton(rules_of(spec_of(Claim))[0])
    for text, fits in (
        ('{"quote": "red", "other": null}', True),
        ('{"quote": "re"', False),
        ('{"quote": "greed', False),
        ('{"quote": "red", "other": "green', False),
        ('{"quote": "d g", "other": " gre"}', True),
    ):
        assert (automaton.run(automaton.start, text.encode()) is not None) is fits, text
    with pytest.raises(ConstraintError, match="does not stand in the text"):
        read('{"quote": "yellow"}')


def test_a_quote_of_the_passage_that_is_cited_or_too_little_evidence():
    class First(pydantic.BaseModel):
        passage: Literal[1]
        quote: Quote("The cat sat.")

    class Second(pydantic.BaseModel):
        passage: Literal[2]
        quote: Quote("A dog ran.")

    tp = list[First | Second] | Literal["insufficient evidence"]
    automaton = Automaton(rules_of(spec_of(tp))[0])
    for text, fits in (
        ('[{"passage": 1, "quote": "cat sat"}, {"passage": 2, "quote": "dog"}]', True),
        ('[{"passage": 1, "quote": "dog', False),
        ('"insufficient evidence"', True),
        ('"cat sat"', False),
    ):
        end = automaton.run(automaton.start, text.encode())
        assert (end is not None and end.accepting) is fits, text
    first, second = reader_of(tp)(
        '[{"passage": 1, "quote": "cat sat"}, {"passage": 2, "quote": "dog"}]'
    )
    assert (first.quote.start, second.quote.start) == (4, 2)
    assert reader_of(tp)('"insufficient evidence"') == "insufficient evidence"


def test_a_quote_beside_other_texts_is_told_apart_by_its_quotation_marks():
    tp = Quote("no or yes") | Literal["no"]
    assert reader_of(tp)("no") == "no"
    assert not isinstance(reader_of(tp)("no"), Quote)
    assert reader_of(tp)('"no"').start == 0


def test_quotes_are_values():
    made = Quote("abcabc", max_length=3)
    assert made is Quote("abcabc", max_length=3)
    value = made("bc")
    assert (value, value.start, value.end, made.source) == ("bc", 1, 3, "abcabc")
    for other in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value)):
        assert (other, other.start, other.end) == ("bc", 1, 3)
    with pytest.raises(AttributeError, match="cannot be changed"):
        value.start = 4
    with pytest.raises(ConstraintError, match="has 4 characters"):
        made("abca")
    with pytest.raises(ValueError, match="does not stand"):
        made("x")


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ((b"abc",), ProgramTypeError, "the source is a bytes"),
        (("",), ConstraintError, "at least 1"),
        (("ab", 3), ConstraintError, "at least 3"),
        (("a\ud800",), ConstraintError, "surrogate"),
        (("a" * (MAX_SOURCE + 1),), ConstraintError, "50,001"),
        (("abc", 2, 1), ConstraintError, "max_length=1"),
        (("abc", True), ProgramTypeError, "min_length"),
    ],
)
def test_what_is_no_source_is_refused(given, error, said):
    names = dict(zip(("min_length", "max_length"), given[1:], strict=False))
    with pytest.raises(error, match=said):
        Quote(given[0], **names)


@pytest.mark.parametrize("source", [7, "a" * (MAX_SOURCE + 1), "a\ud800"])
def test_a_schema_quotes_from_a_text_as_long_as_a_class_may(source):
    schema = {"type": "string", "x-lmlang-quoted-from": source}
    with pytest.raises(GrammarSyntaxError, match=r"surrogate|at most 50,000 characters"):
        rules_of(JsonSchema.of(schema))


def test_the_bare_class_and_other_types_are_refused():
    with pytest.raises((ConstraintError, SchemaUnsupported), match="Quote"):
        spec_of(Quote)
    with pytest.raises(ProgramTypeError, match="cannot be inherited"):
        type("Mine", (Quote,), {})
