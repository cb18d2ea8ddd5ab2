"""Bytes as the fewest tokens: equal to trying every way to spell them."""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from lmlang.grammar.fewest import BEGIN, NONE, Spelled, go_on, goes_on, least
from tests.grammar.byte_sets import vocabulary_of

BYTES = st.text("abc", max_size=12).map(str.encode)
PIECES = st.sets(st.text("abc", min_size=1, max_size=5).map(str.encode), min_size=1, max_size=9)


def count_of(pieces: set[bytes], data: bytes) -> int:
    """The fewest tokens of some bytes; `NONE` for none."""

    @cache
    def fewest(at: int) -> int:
        ways = [len(piece) for piece in pieces if data.startswith(piece, at)]
        counts = [fewest(at + size) for size in ways]
        return 0 if at == len(data) else min((count + 1 for count in counts), default=NONE)

    return min(fewest(0), NONE)


@given(PIECES, st.lists(BYTES, min_size=1, max_size=6))
def test_what_ends_alike_is_spelled_once_and_as_if_it_were_alone(
    pieces: set[bytes], texts: list[bytes]
) -> None:
    vocabulary = vocabulary_of(sorted(pieces))
    before: Spelled | None = None
    for data in texts:
        alone, before = Spelled(vocabulary.trie, data), Spelled(vocabulary.trie, data, before)
        tokens = before.tokens()
        assert tokens == alone.tokens()
        assert (NONE if tokens is None else len(tokens)) == count_of(pieces, data)
        assert b"".join([vocabulary.pieces[index] for index in tokens or ()]) in {data, b""}


@given(PIECES, BYTES, BYTES)
def test_what_ends_alike_tells_how_many_tokens_are_enough(
    pieces: set[bytes], data: bytes, other: bytes
) -> None:
    whole = {*pieces, b"a", b"b", b"c"}
    trie = vocabulary_of(sorted(whole)).trie
    assert count_of(whole, data) <= Spelled(trie, other).most(data) <= len(data)


@given(PIECES, BYTES, st.lists(st.tuples(st.integers(0, 12), st.sampled_from(b"abc"), BYTES)))
def test_bytes_of_which_the_end_changes_are_counted_from_what_is_under_way(
    pieces: set[bytes], data: bytes, ends: list[tuple[int, int, bytes]]
) -> None:
    trie = vocabulary_of(sorted(pieces)).trie
    known = dict[bytes, Spelled]()
    for at, byte, rest in ends:
        opens, more = go_on(trie, BEGIN, data[: at // 2])
        opens, further = go_on(trie, opens, data[at // 2 : at])
        assert not opens or min(opens)[0] == 0
        spelled = known.setdefault(rest, Spelled(trie, rest))
        count = more + further + least(trie, opens, byte, spelled)
        due = count_of(pieces, data[:at] + bytes([byte]) + rest)
        assert min(count, NONE) == due
        assert more + further + 1 <= due or not opens
        onward, beyond = go_on(trie, opens, bytes([byte]))
        assert goes_on(trie, opens, byte) == (bool(onward) and not beyond)
