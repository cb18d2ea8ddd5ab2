"""Matchers: what they let through is always right, and what they are asked changes nothing."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmlang.errors import BudgetExceeded, GrammarDeadEnd, ProgramError, ProgramTypeError
from lmlang.grammar.matcher import GrammarMatcher
from tests.grammar.byte_sets import grammar_of, vocabulary_of
from tests.grammar.real import real_vocabulary

LETTERS = [bytes([b]) for b in b"abc"]
PIECES = [*LETTERS, b"ab", b"ba", b"cab", b"aa", b"bcb", b"ab", b"\xc3\xa9", b"\xc3", b"\xa9"]
VOCABULARY = vocabulary_of(PIECES, special=2)
TEXTS = st.sets(st.text("abcé", max_size=7).map(str.encode), min_size=1, max_size=6)


def spelled(ids: list[int]) -> bytes:
    return b"".join(VOCABULARY.pieces[index] for index in ids)


def legal(matcher: GrammarMatcher) -> list[int]:
    return matcher.mask().ids().tolist()


@given(TEXTS, st.integers(0, 1 << 30))
def test_a_walk_over_legal_tokens_ends_in_an_allowed_text(texts: set[bytes], seed: int) -> None:
    draws = random.Random(seed)
    matcher = grammar_of(texts, VOCABULARY).matcher()
    walked: list[int] = []
    while not matcher.is_complete():
        if matcher.is_accepting() and draws.random() < 0.3:
            break
        ids = legal(matcher)
        assert ids
        walked.append(draws.choice(ids))
        assert matcher.accept_token(walked[-1])
    assert spelled(walked) in texts


@given(TEXTS, st.integers(0, 1 << 30))
def test_only_legal_tokens_are_accepted_and_the_others_change_nothing(
    texts: set[bytes], seed: int
) -> None:
    draws = random.Random(seed)
    matcher = grammar_of(texts, VOCABULARY).matcher()
    written = b""
    for _ in range(4):
        allowed = set(legal(matcher))
        for index in range(-1, VOCABULARY.size + 1):
            inside = 0 <= index < VOCABULARY.size and bool(VOCABULARY.pieces[index])
            longer = written + (VOCABULARY.pieces[index] if inside else b"")
            fits = inside and any(text.startswith(longer) for text in texts)
            assert fits == (index in allowed)
            before = matcher.state
            assert matcher.accept_token(index) == fits
            if fits:
                matcher.rollback(1)
            assert matcher.state is before
        if not allowed:
            break
        index = draws.choice(sorted(allowed))
        written += VOCABULARY.pieces[index]
        matcher.accept_token(index)


@given(TEXTS, st.integers(0, 1 << 30))
def test_a_completion_completes_and_its_length_is_the_distance(
    texts: set[bytes], seed: int
) -> None:
    draws = random.Random(seed)
    matcher = grammar_of(texts, VOCABULARY).matcher()
    written = b""
    while True:
        completion = matcher.completion()
        assert written + spelled(completion) in texts
        assert matcher.distance() == len(completion)
        for budget in range(len(completion) + 2):
            assert matcher.fits(budget) >= (budget >= len(completion))
            if matcher.fits(budget):
                assert matcher.distance() <= budget
        if matcher.is_complete():
            break
        index = draws.choice(legal(matcher))
        written += VOCABULARY.pieces[index]
        matcher.accept_token(index)


@given(TEXTS)
def test_the_fewest_tokens_are_found(texts: set[bytes]) -> None:
    grammar = grammar_of(texts, VOCABULARY)

    def fewest(data: bytes) -> int:
        return min(
            (
                1 + fewest(data[len(piece) :])
                for piece in VOCABULARY.pieces
                if piece and data.startswith(piece)
            ),
            default=0 if not data else 99,
        )

    assert grammar.min_tokens() == min(fewest(text) for text in texts)
    assert grammar.matcher().fits(grammar.min_tokens())
    assert not grammar.min_tokens() or not grammar.matcher().fits(grammar.min_tokens() - 1)


@given(TEXTS, st.integers(0, 1 << 30))
def test_forks_rollbacks_and_resets_are_as_if_walked_anew(texts: set[bytes], seed: int) -> None:
    draws = random.Random(seed)
    grammar = grammar_of(texts, VOCABULARY)
    matcher, walked = grammar.matcher(), list[int]()
    for _ in range(12):
        action = draws.randrange(4)
        if action == 0 and walked:
            count = draws.randrange(len(walked) + 1)
            matcher.rollback(count)
            del walked[len(walked) - count :]
        elif action == 1:
            twin = matcher.fork()
            for index in legal(twin)[:1]:
                twin.accept_token(index)
        elif action == 2 and draws.random() < 0.2:
            matcher.reset()
            walked = []
        elif ids := legal(matcher):
            walked.append(draws.choice(ids))
            matcher.accept_token(walked[-1])
        again = grammar.matcher()
        assert again.accept_tokens(walked) == len(walked) == len(matcher)
        assert again.state is matcher.state
        assert again.forced_tokens() == matcher.forced_tokens()


def test_bytes_are_taken_like_tokens() -> None:
    matcher = grammar_of({b"abc", b"abab"}, VOCABULARY).matcher()
    assert matcher.accept_bytes(b"a")
    assert not matcher.accept_bytes(b"c")
    assert matcher.forced_bytes() == b"b"
    assert matcher.accept_bytes(b"bab")
    assert matcher.is_complete()
    assert matcher.pointer() == "/4"
    matcher.rollback(1)
    assert matcher.forced_bytes() == b"b"


def test_more_than_was_accepted_cannot_be_taken_back() -> None:
    matcher = grammar_of({b"abc"}, VOCABULARY).matcher()
    matcher.accept_bytes(b"a")
    with pytest.raises(ProgramError, match=r"^rollback\(2\): 1 were accepted"):
        matcher.rollback(2)


def test_rows_of_masks_are_filled_to_their_end() -> None:
    matcher = grammar_of({b"ab"}, VOCABULARY).matcher()
    row = np.full(3, -1, dtype=np.int32)
    matcher.fill_bitmask(row)
    assert [i for i in range(96) if row[i // 32] >> (i % 32) & 1] == legal(matcher)


def test_what_cannot_be_spelled_is_left_for_what_can() -> None:
    grammar = grammar_of({b"xyz", b"xab", b"xabca"}, vocabulary_of([b"x", b"a", b"b", b"ca"]))
    matcher = grammar.matcher()
    assert matcher.completion() == [0, 1, 2]
    assert grammar.vocabulary.missing_bytes.translate(None, b"abcx") == bytes(
        byte for byte in range(256) if byte not in b"abcx"
    )


def test_where_nothing_can_be_spelled_the_byte_is_named() -> None:
    grammar = grammar_of({b"ab", b"aab"}, vocabulary_of([b"a"]))
    with pytest.raises(GrammarDeadEnd, match="no token for the byte 0x62, which"):
        grammar.matcher().distance()
    assert not grammar.matcher().fits(99)
    with pytest.raises(GrammarDeadEnd):
        grammar.min_tokens()


def test_bytes_that_only_longer_tokens_hold_are_a_dead_end_too() -> None:
    grammar = grammar_of({b"ac"}, vocabulary_of([b"a", b"ca"]))
    with pytest.raises(GrammarDeadEnd, match="no token for the bytes b'c'"):
        grammar.matcher().completion()


def test_samples_fit_their_budget() -> None:
    grammar = grammar_of({b"ab", b"abcabcabc", b"aaaaaaa"}, VOCABULARY)
    texts = {grammar.sample(seed, budget=2) for seed in range(20)}
    assert texts == {"ab"}
    texts = {grammar.sample(seed) for seed in range(60)}
    assert texts == {"ab", "abcabcabc", "aaaaaaa"}
    assert grammar.sample(7) == grammar.sample(7)
    with pytest.raises(BudgetExceeded, match=r"^budget=0: 1 is the least"):
        grammar.sample(budget=0)


def test_a_text_that_is_none_is_told_where_and_why() -> None:
    grammar = grammar_of({"aé".encode(), b"ab"}, VOCABULARY)
    assert grammar.match("aé")
    assert str(grammar.match("ab")) == "ok"
    wrong = grammar.match("ac")
    assert not wrong
    assert (wrong.position, wrong.pointer) == (1, "/1")
    assert str(wrong) == "at character 1 (at /1): expected 'b' or a character outside of ASCII"
    assert str(grammar.match("abb")) == "at character 2 (at /2): expected the end"
    assert grammar.match("").position == 0
    assert not grammar.match("a\ud800")


def test_an_id_may_be_a_number_of_numpy() -> None:
    matcher = grammar_of({b"ab", b"abc"}, VOCABULARY).matcher()
    legal = next(i for i in range(len(VOCABULARY.pieces)) if matcher.mask().allows(i))
    assert matcher.accept_token(np.int64(legal))  # type: ignore[arg-type]


def test_what_is_no_token_and_no_bytes_is_told_as_such() -> None:
    matcher = grammar_of({b"ab", b"abc"}, VOCABULARY).matcher()
    with pytest.raises(ProgramTypeError, match="a token is an id, not a str"):
        matcher.accept_token("a")  # type: ignore[arg-type]
    with pytest.raises(ProgramTypeError, match=r"give text\.encode\(\)"):
        matcher.accept_bytes("a")  # type: ignore[arg-type]
    for row in (np.zeros(1, np.int64), np.zeros(0, np.int32), [0]):
        with pytest.raises(ProgramTypeError, match="an int32 array of at least"):
            matcher.fill_bitmask(row)
    assert not matcher.mask().allows(10**8)
    assert matcher.accept_bytes(b"ab")
    assert repr(matcher) == "<GrammarMatcher after 1, b'...', may end>"
    assert repr(matcher.mask()) == f"<Mask of {matcher.mask().count} tokens>"


def test_what_is_allowed_is_what_is_taken() -> None:
    matcher = grammar_of([b"cat", b"car"], real_vocabulary()).matcher()
    pieces = matcher.grammar.vocabulary.pieces
    for index in (*range(-1, len(pieces), 7), *matcher.mask().ids().tolist(), len(pieces)):
        allowed = matcher.allows(index)
        assert allowed == (0 <= index < len(pieces) and matcher.mask().allows(index))
        assert allowed == matcher.accept_token(index)
        matcher.rollback(allowed)
