"""Forced tokens are those of the whole text's own encoding, whatever comes behind them."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Sequence
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from lmlang.grammar.grammar import Grammar
from lmlang.grammar.vocabulary import Vocabulary
from tests.grammar.byte_sets import grammar_of
from tests.grammar.real import real_vocabulary
from tests.grammar.templates import Part, template_grammar, template_of


def forced_share(grammar: Grammar, text: str) -> tuple[int, int]:
    """Feed a text's own tokens, forced ones first; how many were forced, of how many."""
    pieces = grammar.vocabulary.pieces
    ids = list(grammar.vocabulary.encode(text))
    matcher, at, forced = grammar.matcher(), 0, 0
    while at < len(ids):
        tokens = matcher.forced_tokens()
        own = ids[at : at + len(tokens)]
        assert tokens == own, (text, [pieces[i] for i in tokens], [pieces[i] for i in own])
        assert (
            b"".join([pieces[index] for index in tokens])
            == (matcher.forced_bytes()[: sum(len(pieces[index]) for index in tokens)])
        )
        step = tokens or [ids[at]]
        assert matcher.accept_tokens(step) == len(step)
        at += len(step)
        forced += len(tokens)
    assert matcher.is_accepting()
    return forced, len(ids)


def merging(
    merges: Sequence[tuple[str, str]], letters: str, *, words: bool, cut: bool = False
) -> Vocabulary:
    """A byte-pair vocabulary over some letters; with ``words`` letters and marks never merge.

    With ``cut`` it is known that so it is.
    """
    tokens = list(dict.fromkeys([*letters, *(left + right for left, right in merges)]))
    encoder = tokenizers.Tokenizer(
        models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[*merges])
    )
    if words:
        encoder.pre_tokenizer = pre_tokenizers.Split(
            tokenizers.Regex(" ?[a-z]+|[.,]+| +"), "isolated"
        )
    return Vocabulary(
        [token.encode() for token in tokens],
        encode=lambda text: list(encoder.encode(text).ids),
        cut=last_parting if words and cut else None,
    )


def last_parting(text: str) -> int:
    """The last place before a space or, behind a letter, a mark."""
    for at in range(len(text) - 1, 0, -1):
        if text[at - 1] != " " and (
            text[at] == " " or (text[at - 1].isalpha() and text[at] in ".,")
        ):
            return at
    return 0


@st.composite
def merges(draw: Any, letters: str) -> list[tuple[str, str]]:
    """Merges in a random order of ranks, each of what there is before it."""
    tokens = list(letters)
    found = []
    for _ in range(draw(st.integers(0, 14))):
        pair = (draw(st.sampled_from(tokens)), draw(st.sampled_from(tokens)))
        if len("".join(pair)) <= 6 and pair not in found:
            found.append(pair)
            tokens.append("".join(pair))
    return found


@settings(max_examples=300)
@given(
    merges("ab. "),
    st.sets(st.text("ab. ", min_size=1, max_size=9), min_size=1, max_size=5),
    st.booleans(),
    st.booleans(),
)
def test_whatever_the_merges(
    pairs: list[tuple[str, str]], texts: set[str], words: bool, cut: bool
) -> None:
    vocabulary = merging(pairs, "ab. ", words=words, cut=cut)
    grammar = grammar_of([text.encode() for text in texts], vocabulary)
    for text in texts:
        forced_share(grammar, text)


@settings(max_examples=60)
@given(merges("ab. "), st.booleans(), st.integers(0, 1 << 30))
def test_behind_tokens_that_are_not_its_own_bytes_are_those_that_are_forced(
    pairs: list[tuple[str, str]], words: bool, seed: int
) -> None:
    draws = random.Random(seed)
    vocabulary = merging(pairs, "ab. ", words=words, cut=True)
    grammar = grammar_of({b"ab.ab ab", b"ab.abba", b"ba ba"}, vocabulary)
    matcher = grammar.matcher()
    while not matcher.is_complete():
        data = matcher.forced_bytes()
        tokens = matcher.forced_tokens()
        assert data.startswith(b"".join([vocabulary.pieces[index] for index in tokens]))
        assert matcher.accept_tokens(tokens) == len(tokens)
        ids = matcher.mask().ids().tolist()
        if ids:
            matcher.accept_token(draws.choice(ids))


@settings(max_examples=200)
@given(
    merges("ab. "),
    st.sets(st.text("ab. ", min_size=1, max_size=9), min_size=2, max_size=5),
    st.booleans(),
    st.booleans(),
)
def test_what_few_texts_share_however_far_they_are_read_is_forced(
    pairs: list[tuple[str, str]], texts: set[str], words: bool, cut: bool
) -> None:
    vocabulary = merging(pairs, "ab. ", words=words, cut=cut)
    grammar = grammar_of([text.encode() for text in texts], vocabulary)
    for text in texts:
        ids = list(vocabulary.encode(text))
        for at in range(len(ids)):
            matcher = grammar.matcher()
            matcher.accept_tokens(ids[:at])
            run = matcher.forced_bytes()
            known = b"".join([vocabulary.pieces[index] for index in ids[:at]]).decode()
            least = len(known) + len(run)
            read = {other[:end] for other in texts for end in range(least, len(other) + 1)}
            read = {other for other in read if other.startswith(known)}
            others = [list(vocabulary.encode(other)) for other in read]
            if any(other[:at] != ids[:at] for other in others):
                continue
            certain, left = list[int](), len(run)
            for index, *more in zip(*[other[at:] for other in others], strict=False):
                left -= len(vocabulary.pieces[index])
                if left < 0 or any(each != index for each in more):
                    break
                certain.append(index)
            assert matcher.forced_tokens()[: len(certain)] == certain


@settings(max_examples=150)
@given(merges("ab. "), st.sets(st.text("ab. ", min_size=1, max_size=9), min_size=1, max_size=5))
def test_where_text_may_be_cut_no_less_is_forced(
    pairs: list[tuple[str, str]], texts: set[str]
) -> None:
    data = {text.encode() for text in texts}
    known, unknown = (
        grammar_of(data, merging(pairs, "ab. ", words=True, cut=cut)) for cut in (True, False)
    )
    for text in texts:
        matcher, other = known.matcher(), unknown.matcher()
        for index in known.vocabulary.encode(text):
            fewer = other.forced_tokens()
            assert matcher.forced_tokens()[: len(fewer)] == fewer
            assert matcher.accept_token(index)
            assert other.accept_token(index)


DOCUMENTS: list[object] = [
    {"name": "Zoë Müller", "age": 41, "tags": ["a", "b c", ""], "address": {"city": "Łódź"}},
    {"id": 7, "items": [{"sku": "x-1", "count": 2}, {"sku": "", "count": 10}], "note": None},
    {"title": "東京 📦 'quoted' $5", "isActive": True, "ratio": 2.5, "nested": [[], {}, [1, 22]]},
    {"created_at": "2024-02-29", "url": "https://example.org/a?b=c", "camelCaseKey": "…"},
]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_documents_of_the_real_vocabulary(indent: int | None, separators: tuple[str, str]) -> None:
    style: dict[str, Any] = {"indent": indent, "separators": separators}
    forced = total = 0
    for document in DOCUMENTS:
        text = json.dumps(document, ensure_ascii=False, **style)
        grammar = template_grammar(template_of(document, **style), real_vocabulary())
        counts = forced_share(grammar, text)
        forced, total = forced + counts[0], total + counts[1]
    assert forced >= 0.3 * total


def test_a_token_that_could_go_on_is_held_back() -> None:
    vocabulary = real_vocabulary()
    parts: list[Part] = [b'{"name":"', "string", b'"}']
    matcher = template_grammar(parts, vocabulary).matcher()
    assert matcher.forced_bytes() == b'{"name":"'
    assert [vocabulary.pieces[i] for i in matcher.forced_tokens()] == [b'{"', b"name"]
    closed: list[Part] = [b'{"name":"', "digits", b'"}']
    matcher = template_grammar(closed, vocabulary).matcher()
    pieces = [vocabulary.pieces[i] for i in matcher.forced_tokens()]
    assert pieces == [b'{"', b"name", b'":"']


@pytest.mark.parametrize(("separator", "wanted"), [(":", b'":"'), (": ", b' "')])
def test_what_is_held_back_is_guessed_where_hardly_anything_else_comes(
    separator: str, wanted: bytes
) -> None:
    vocabulary = real_vocabulary()
    opened = f'{{"name"{separator}"'.encode()
    matcher = template_grammar([opened, "string", b'"}'], vocabulary).matcher()
    known = matcher.forced_tokens()
    assert matcher.accept_tokens(known) == len(known)
    assert matcher.forced_tokens() == []
    held = matcher.held_token()
    assert held is not None
    assert vocabulary.pieces[held] == wanted
    assert vocabulary.encode((opened + b"Jo").decode())[: len(known) + 1] == [*known, held]
    assert vocabulary.encode((opened + b'"}').decode())[len(known)] != held
    assert matcher.accept_token(held)
    assert matcher.forced_tokens() == []
    assert matcher.held_token() is None


def test_nothing_is_guessed_where_few_others_may_come() -> None:
    vocabulary = real_vocabulary()
    matcher = grammar_of([b'{"a":{"b":1}}', b'{"a":{}}', b'{"a":{"c":1}}'], vocabulary).matcher()
    matcher.accept_tokens(matcher.forced_tokens())
    assert matcher.forced_tokens() == []
    assert matcher.forced_bytes() == b"{"
    assert matcher.held_token() is None


def test_of_more_tokens_than_are_tried_none_is_ruled_out() -> None:
    follow = string.ascii_letters
    known = merging([("x", "z")], f"x{follow}", words=False)
    spelled = [*known.pieces, *(f"x{letter}".encode() for letter in follow if letter != "z")]
    vocabulary = Vocabulary(spelled, encode=known.encode)
    matcher = grammar_of([f"x{letter}".encode() for letter in follow], vocabulary).matcher()
    assert matcher.forced_bytes() == b"x"
    assert matcher.forced_tokens() == []  # before z there is none of x alone


def test_a_token_that_the_tokenizer_never_takes_holds_nothing_back() -> None:
    vocabulary = real_vocabulary()
    assert vocabulary.trie.child(vocabulary.trie.child(0, ord(":")), ord("{")) > 0
    matcher = grammar_of([b'{"name":{}}', b'{"name":{"a":1}}'], vocabulary).matcher()
    assert [vocabulary.pieces[i] for i in matcher.forced_tokens()] == [b'{"', b"name", b'":']


def test_a_forced_run_may_end_inside_of_a_character() -> None:
    vocabulary = real_vocabulary()
    matcher = grammar_of({"say é".encode(), "say è".encode()}, vocabulary).matcher()
    assert matcher.forced_bytes() == "say é".encode()[:-1]
    assert b"".join([vocabulary.pieces[i] for i in matcher.forced_tokens()]) == b"say"
    matcher.accept_bytes("say é".encode()[:-1])
    assert matcher.forced_tokens() == []
    matcher = grammar_of({"日本".encode(), "日出".encode()}, vocabulary).matcher()
    data = b"".join([vocabulary.pieces[index] for index in matcher.forced_tokens()])
    assert "日".encode().startswith(data)


def test_long_runs_are_forced_piece_by_piece() -> None:
    vocabulary = real_vocabulary()
    text = json.dumps([f"the {number} words" for number in range(200)])
    matcher = grammar_of({text.encode()}, vocabulary).matcher()
    ids: list[int] = []
    while tokens := matcher.forced_tokens():
        matcher.accept_tokens(tokens)
        ids += tokens
    assert ids == list(vocabulary.encode(text))
    assert matcher.is_complete()


def test_nothing_is_forced_where_the_output_may_end() -> None:
    matcher = grammar_of({b"ab", b"abab"}, merging([("a", "b")], "ab", words=False)).matcher()
    assert matcher.forced_tokens() == [2]
    matcher.accept_token(2)
    assert matcher.forced_bytes() == b""
    assert matcher.forced_tokens() == []
