"""Masks are exact: as if every token's bytes were pushed one by one."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.grammar.automaton import DEAD, LEAVE, Automaton, Content, Leaving, State, Table
from lmlang.grammar.compiler import Grammar, compile_spec
from lmlang.grammar.language import of_length
from lmlang.grammar.masks import Mask, Masks
from lmlang.grammar.matcher import GrammarMatcher
from lmlang.grammar.spec import JsonSchema
from lmlang.grammar.tables import Spelling, spelled
from lmlang.grammar.vocabulary import Vocabulary
from tests.grammar.byte_sets import ByteSets, grammar_of, vocabulary_of
from tests.grammar.real import real_vocabulary


class DenseTable:
    """A table whose rows are all there; every state reaches one where it may be left."""

    def __init__(self, rows: Any) -> None:
        self.dense = np.asarray(rows, dtype=np.int32)
        self.asked = 0

    def rows(self, states: Any) -> Any:
        self.asked += 1
        return self.dense[states]

    def push(self, state: int, byte: int) -> int:
        return int(self.dense[state, byte])

    def following(self, state: int) -> bytes:
        return bytes(np.flatnonzero(self.dense[state] != DEAD).tolist())

    def accepting(self, state: int) -> bool:
        return bool((self.dense[state] == LEAVE).any())

    def completion(self, state: int) -> bytes:
        raise NotImplementedError

    def alike(self, state: int, length: int) -> int:
        return state


class Between:
    """A content, then the byte that leaves it, then one of some ends, which the byte decides."""

    def __init__(
        self, tables: Sequence[Table], ends: dict[int, set[bytes]], first: int = 0
    ) -> None:
        self.tables = tables
        self.first = first
        self.ends = {byte: ByteSets(texts) for byte, texts in ends.items()}

    def start(self) -> Any:
        return tuple((number, self.first) for number in range(len(self.tables))), ()

    def push(self, key: Any, byte: int) -> Any:
        inside, ends = key
        going = [(number, self.tables[number].push(state, byte)) for number, state in inside]
        ended = [(last, self.ends[last].push(text, byte)) for last, text in ends]
        after = {(last, text) for last, text in ended if text is not None}
        if byte in self.ends and any(state == LEAVE for _, state in going):
            after.add((byte, b""))
        within = tuple((number, state) for number, state in going if state >= 0)
        return (within, tuple(sorted(after))) if within or after else None

    def following(self, key: Any) -> bytes:
        return bytes(byte for byte in range(256) if self.push(key, byte) is not None)

    def accepting(self, key: Any) -> bool:
        return any(self.ends[last].accepting(text) for last, text in key[1])

    def completion(self, key: Any) -> bytes:
        raise NotImplementedError

    def contents(self, key: Any) -> tuple[Content, ...]:
        inside, ends = key
        return () if ends else tuple((self.tables[number], state) for number, state in inside)

    def leaving(self, key: Any) -> Leaving:
        if not all(self._leaving(table) <= self.ends.keys() for table in self.tables):
            return Leaving.UNKNOWN
        return Leaving.SAME if len(self.tables) == 1 and not key[1] else Leaving.FREE

    def _leaving(self, table: Table) -> set[int]:
        if isinstance(table, DenseTable):
            return set(np.argwhere(table.dense == LEAVE)[:, 1].tolist())
        return {ord('"')}

    def asked(self, key: Any) -> frozenset[bytes]:
        return frozenset()

    def pointer(self, key: Any) -> str:
        return ""


def brute_force(automaton: Automaton, state: State, vocabulary: Vocabulary) -> list[int]:
    return [
        index
        for index, piece in enumerate(vocabulary.pieces)
        if piece and automaton.run(state, piece) is not None
    ]


def check(automaton: Automaton, state: State, vocabulary: Vocabulary) -> Mask:
    mask = vocabulary.masks.mask(automaton, state)
    expected = brute_force(automaton, state, vocabulary)
    assert mask.ids().tolist() == expected
    assert mask.count == len(expected)
    assert not mask.bits.flags.writeable
    assert mask.bits.dtype == np.int32
    assert len(mask.bits) == -(-vocabulary.size // 32)
    assert [i for i in range(vocabulary.size) if mask.allows(i)] == expected
    assert vocabulary.masks.mask(automaton, state) is mask
    return mask


PIECES = st.lists(
    st.binary(max_size=5).map(lambda data: bytes(97 + byte % 4 for byte in data)),
    min_size=1,
    max_size=60,
)


@given(PIECES, st.sets(st.text("abcd", max_size=6).map(str.encode), min_size=1, max_size=8))
def test_of_rules_without_contents(pieces: list[bytes], texts: set[bytes]) -> None:
    vocabulary = vocabulary_of(pieces, special=1)
    automaton = Automaton(ByteSets(texts))
    for text in texts:
        for end in range(len(text) + 1):
            state = automaton.run(automaton.start, text[:end])
            assert state is not None
            check(automaton, state, vocabulary)


@given(PIECES, st.integers(0, 1 << 30), st.integers(1, 3))
def test_of_contents_and_what_comes_behind_them(pieces: list[bytes], seed: int, count: int) -> None:
    draws = random.Random(seed)
    tables = []
    for _ in range(count):
        rows = [[DEAD] * 256 for _ in range(3)]
        for row in rows:
            for byte in b"abc":
                row[byte] = draws.choice([0, 1, 2, DEAD])
            row[ord("d")] = draws.choice([LEAVE, DEAD, 1])
            row[ord("c")] = draws.choice([LEAVE, row[ord("c")]])
        tables.append(DenseTable(rows))
    ends = {ord("d"): {b"", b"a", b"abd"}, ord("c"): {b"bb", b"d"}}
    vocabulary = vocabulary_of(pieces, special=1)
    automaton = Automaton(Between(tables, ends))
    state = automaton.start
    for _ in range(6):
        check(automaton, state, vocabulary)
        onward = [automaton.push(state, byte) for byte in automaton.following(state)]
        if not onward:
            break
        chosen = draws.choice(onward)
        assert chosen is not None
        state = chosen


@given(PIECES, st.integers(0, 1 << 30))
def test_of_contents_that_differ_from_free_text(pieces: list[bytes], seed: int) -> None:
    draws = random.Random(seed)
    rows = [[0] * 256 for _ in range(6)]
    rows[1] = [draws.choice([0, 1, DEAD]) for _ in range(256)]  # reached from free text
    for byte in b"abcd":
        rows[0][byte] = draws.choice([0, 0, 1, DEAD, LEAVE])
        for state in (2, 3, 4, 5):  # not reached from free text, but from the start
            rows[state][byte] = draws.choice([0, 1, 2, 3, 4, 5, DEAD, LEAVE])
    for row in rows:
        row[ord("d")] = draws.choice([LEAVE, DEAD])
    table = DenseTable(rows)
    vocabulary = vocabulary_of(pieces, special=1)
    for start in draws.sample(range(6), 6):
        automaton = Automaton(Between([table], {ord("d"): {b"", b"a", b"abd"}}, start))
        check(automaton, automaton.start, vocabulary)
    again = DenseTable([rows[(state + 1) % 6] for state in range(6)])
    again.dense = np.where(again.dense >= 0, (again.dense - 1) % 6, again.dense)
    automaton = Automaton(Between([again], {ord("d"): {b"b"}}, 5))
    check(automaton, automaton.start, vocabulary)


@settings(max_examples=25)
@given(PIECES, st.integers(0, 12), st.integers(0, 20))
def test_of_lengths_that_are_alike(pieces: list[bytes], least: int, more: int) -> None:
    vocabulary = vocabulary_of(pieces, special=1)
    table = spelled(of_length(least, least + more), Spelling.JSON)
    automaton = Automaton(Between([table], {34: {b"}", b"abcd"}}, table.start))
    state: State | None = automaton.start
    for _ in range(least + more + 1):
        assert state is not None
        check(automaton, state, vocabulary)
        state = automaton.push(state, 97)


def test_long_strings_share_their_masks() -> None:
    vocabulary = vocabulary_of([b"abc", b"ab", b"a", b'b"', b'"'])
    table = spelled(of_length(2, 1_000), Spelling.JSON)
    contents = vocabulary.masks._contents
    made = {contents.inside((table, table.start))}
    state = table.start
    for _ in range(900):
        state = table.push(state, 97)
        made.add(contents.inside((table, state)))
    assert len(made) == 3


@cache
def quoted() -> Automaton:
    """Content of any UTF-8 without quotes and control characters, then `"` and one of some ends."""
    rows = np.full((4, 256), DEAD, dtype=np.int32)
    rows[0, 0x20:0x80] = 0
    rows[0, ord('"')] = LEAVE
    rows[0, 0xC2:0xE0], rows[0, 0xE1:0xED], rows[0, 0xF1:0xF4] = 1, 2, 3
    for state in (1, 2, 3):
        rows[state, 0x80:0xC0] = state - 1
    return Automaton(Between([DenseTable(rows)], {ord('"'): {b"}", b', "age": 3}', b',"x":1}'}}))


@pytest.mark.parametrize("begin", [b"", "Zo\u00eb".encode()[:3], b"a", b'ab"', b'ab",'])
def test_of_the_real_vocabulary(begin: bytes) -> None:
    automaton = quoted()
    state = automaton.run(automaton.start, begin)
    assert state is not None
    mask = check(automaton, state, real_vocabulary())
    assert mask.count > (40_000 if begin in (b"", b"a") else 0)


def test_contents_are_walked_once_for_all_grammars() -> None:
    vocabulary = vocabulary_of([b"ab", b"a", b"b", b'b"', b'"'])
    rows = np.full((1, 256), DEAD, dtype=np.int32)
    rows[0, 97:99] = 0
    rows[0, 34] = LEAVE
    table = DenseTable(rows)
    for ends in ({b"x"}, {b"y"}):
        automaton = Automaton(Between([table], {34: ends}))
        check(automaton, automaton.start, vocabulary)
    walks = table.asked
    check(*(lambda a: (a, a.start))(Automaton(Between([table], {34: {b"z"}}))), vocabulary)
    assert table.asked == walks


def test_special_ids_and_tokens_without_bytes_are_never_legal() -> None:
    vocabulary = Vocabulary([b"a", b"", b"ab", b"b"], special_ids=[3], stop_ids=[2], encode=list)
    grammar = grammar_of({b"ab", b"b"}, vocabulary)
    assert grammar.matcher().mask().ids().tolist() == [0]
    assert not grammar.matcher().accept_token(3)


JSON_PIECES = [
    *(bytes([byte]) for byte in range(0x20, 0x100)),
    *(b'{"', b'":', b'":"', b'","', b'",', b'"}', b'"}}', b'}, "', b'"],', b'[{"', b'""', b'": "'),
    *(b"name", b"na", b"me", b'me"', b'e":', b"true", b"null", b"}}", b"]]", b'x"', b'a"', b"ab"),
    *(b'b"]', b"10", b"12", b"0.", b", ", b": ", b"\\u", b"\\u00", b"e\\u", '"é'.encode(), b"-1"),
]
SCHEMAS: list[dict[str, Any]] = [
    {"properties": {"name": {"type": "string"}, "na": {}}, "required": ["na"]},
    {"type": "object", "additionalProperties": {"type": ["integer", "null"]}, "maxProperties": 2},
    {"type": "array", "items": {"type": "string", "maxLength": 3}, "uniqueItems": True},
    {"type": "object", "patternProperties": {"^x": {"enum": ["ab", "abb", "x"]}, "e$": False}},
    {"anyOf": [{"type": "string", "pattern": "^a+b"}, {"type": "string", "minLength": 3}, {}]},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=10)
def test_of_json_schemas(schema: dict[str, Any], seed: int) -> None:
    vocabulary = json_vocabulary()
    grammar = schema_grammar(json.dumps(schema))
    matcher, draws = grammar.matcher(), random.Random(seed)
    for _ in range(12):
        ids = check(grammar.automaton, matcher.state, vocabulary).ids().tolist()
        if not ids:
            break
        longest = max(ids, key=lambda index: (len(vocabulary.pieces[index]), draws.random()))
        assert matcher.accept_token(draws.choice([*ids, *[longest] * 8]))


@cache
def json_vocabulary() -> Vocabulary:
    return vocabulary_of(JSON_PIECES)


@cache
def schema_grammar(text: str) -> Grammar:
    return compile_spec(JsonSchema(text), json_vocabulary())


def test_what_is_kept_is_bounded() -> None:
    vocabulary = vocabulary_of([b"a", b"b"])
    masks = Masks(vocabulary.trie, most=3)
    automaton = Automaton(ByteSets({b"abababab"}))
    states = [automaton.run(automaton.start, b"abababab"[:end]) for end in range(8)]
    for state in states:
        assert state is not None
        assert masks.mask(automaton, state).count == 1
    assert sum(state is not None and state.masks is not None for state in states) == 3


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"ab": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
        {"properties": {"ab": False}, "propertyNames": {"maxLength": 3}},
        {"patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": {}},
    ],
)
def test_tokens_that_end_a_key_are_judged_by_what_the_schema_says_of_it(schema: Any) -> None:
    more = [b'ab": "', b'ab": 1', b'cd": "', b'cd": 1', b'ab":', b'b": 1', b'ab": 1, "ab']
    pieces = [*(bytes([value]) for value in range(256)), *more]
    vocabulary = Vocabulary(pieces, encode=lambda text: list(text.encode()))
    grammar = compile_spec(JsonSchema.of({"type": "object", **schema}), vocabulary)
    for text in (b'{"', b'{"a', b'{"cd": "x", "', b'{"cd": "x", "a'):
        matcher = GrammarMatcher(grammar)
        assert matcher.accept_tokens(list(text)) == len(text)
        mask = grammar.masks.mask(grammar.automaton, matcher.state)
        due = [i for i, piece in enumerate(pieces) if grammar.automaton.run(matcher.state, piece)]
        assert mask.ids().tolist() == due


@pytest.mark.parametrize("text", ['{"type": "number"}', '{"enum": [1, 12, "12", "1x"]}'])
def test_many_tokens_are_marked_as_few_are(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = vocabulary_of([str(number).encode() for number in range(700)] + [b'"', b"x"])
    masks = []
    for many in (0, 1 << 30):
        monkeypatch.setattr("lmlang.grammar.mask.MANY", many)
        grammar = compile_spec(JsonSchema(text), vocabulary)
        state = grammar.automaton.run(grammar.automaton.start, b"1")
        assert state is not None
        mask = Masks(vocabulary.trie).mask(grammar.automaton, state)
        assert mask.count == len(mask.ids())
        masks.append(mask.ids().tolist())
        due = [n for n in range(702) if grammar.automaton.run(state, vocabulary.pieces[n])]
        assert masks[-1] == due
    assert masks[0] == masks[1]
