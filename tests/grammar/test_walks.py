"""Walks of all tokens at once: shorter ways to the same as a walk of each."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.grammar import alike as alike_module
from lmlang.grammar import contents as contents_module
from lmlang.grammar.alike import Alike
from lmlang.grammar.automaton import DEAD, LEAVE
from lmlang.grammar.compiler import Grammar, compile_spec
from lmlang.grammar.contents import Contents
from lmlang.grammar.frontier import Frontiers
from lmlang.grammar.language import Language, matching, of_length, of_texts
from lmlang.grammar.likeness import Likeness
from lmlang.grammar.merged import merged
from lmlang.grammar.spec import JsonSchema
from lmlang.grammar.tables import Spelling, TextTable, spelled
from lmlang.grammar.token_trie import TokenTrie
from lmlang.grammar.vocabulary import Vocabulary

TEXTS = ["Zoë", "a.b@c-d", "x\\n\\u00e9", 'ab"', '\\"}', "日本", "\\ud83d\\ude42", "12-3"]
LANGUAGES = [
    matching(r"[a-z]{1,6}(?:\.[a-z]{1,4}){0,3}@[a-z0-9-]{1,9}"),
    matching(r"[^\s]{0,20}"),
    matching(r"(?:\w|-){0,12}\n?"),
    of_length(2, 9) & matching(r"[a-zé]*(?: [a-z]+)*"),
    of_texts(["abc", "a\nb", "Zoë", 'q"']) | matching("[0-9-]{3,7}"),
]


def pieces_of(seed: int) -> list[bytes]:
    """Parts of some texts, cut anywhere, and all bytes."""
    draws = random.Random(seed)
    found = {bytes([byte]) for byte in range(256)}
    for _ in range(120):
        text = "".join(draws.choices([*TEXTS, "a", "bc", ".", "\\", "\n"], k=3)).encode()
        begin = draws.randrange(len(text))
        found.add(text[begin : begin + draws.randint(1, 12)])
    return sorted(found)


def walked(trie: TokenTrie, table: TextTable, start: int) -> tuple[list[bool], set[int]]:
    """For each id whether its bytes stay inside, and the nodes that a byte leads to that leaves."""
    inside, left = [], set()
    nodes, states = [0], [start]
    at = {0: start}
    while nodes:
        node, state = nodes.pop(), states.pop()
        for child in range(trie.starts[node], trie.starts[node + 1]):
            onward = table.push(state, trie.labels[child])
            if onward >= 0:
                at[child] = onward
                nodes.append(child)
                states.append(onward)
            elif onward == LEAVE:
                left.add(child)
    inside = [int(node) in at for node in trie.node_of]
    return inside, left


@pytest.mark.parametrize("spelling", Spelling)
@pytest.mark.parametrize("walks", [0, 1 << 30])
@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=12)
def test_a_merged_tree_says_what_the_tree_says(walks: int, spelling: Spelling, seed: int) -> None:
    draws = random.Random(seed)
    trie = TokenTrie(pieces_of(seed))
    table = TextTable(draws.choice(LANGUAGES), spelling)
    contents = Contents(trie, Frontiers(trie))
    state = table.start
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents_module, "WALKS", walks)
        patch.setattr("lmlang.grammar.merged.SMALLER", draws.choice([0, 0, 6]))
        patch.setattr("lmlang.grammar.byte_tree.MANY_NODES", draws.choice([0, 4_000]))
        patch.setattr("lmlang.grammar.byte_tree.FEW_NODES", draws.choice([0, 200]))
        for _ in range(8):
            found = contents.inside((table, state))
            inside, left = walked(trie, table, state)
            flags = np.unpackbits(found.bits.view(np.uint8), bitorder="little")
            assert flags[: trie.size].tolist() == inside
            assert {node for node, _ in found.left} == left
            assert all(path == trie.path(node) for node, path in found.left)
            following = [byte for byte in table.following(state) if table.push(state, byte) >= 0]
            if not following:
                break
            state = table.push(state, draws.choice(following))


def test_few_nodes_are_left_of_a_merged_tree() -> None:
    letters = [bytes([a, b, c]) for a in b"abcdefgh" for b in b"abcdefgh" for c in b"abcdefgh"]
    trie = TokenTrie([*letters, b"\\ab", b"\\ba", b'a"', b'b"', b'bc"'])
    table = spelled(matching("[a-z]*"), Spelling.JSON)
    firsts = table.firsts(table.start)
    assert firsts is not None
    found = merged(trie, firsts, escapes=True)
    assert found is not None
    assert len(found.tree) == 1 + 3 + 5 + 2  # the root; aaa; \ab and \ba; a" and aa"
    assert sorted(map(len, found.quotes.values())) == [1, 2]
    assert table.firsts(table.push(table.start, ord("a"))) == firsts
    assert merged(trie, bytes(range(256)), escapes=True) is None
    free = spelled(matching("[a-z]*\n"), Spelling.JSON)
    assert free.firsts(free.push(free.start, ord("\\"))) is None


LONG = [
    matching("[a-c]{1,90}(?:x[a-c]{1,3})?"),
    matching("[ab]{3,40}@[ab.]{1,70}"),
    of_length(3, 80) & matching("[a-c]{1,64}@[a-c]+"),
    matching("(?:[a-c]{1,20}\\.){1,5}"),
]


@pytest.mark.parametrize("language", LONG)
def test_long_tokens_near_an_end_are_told_apart(language: Language) -> None:
    draws = random.Random(0)
    pieces = {bytes([byte]) for byte in range(0x20, 0x80)}
    for size in (2, 7, 8, 15, 16, 17, 18, 31, 32, 33, 34, 40, 63, 64, 65, 70, 80):
        for more in (b"", b"@", b".", b"x", b'"', b"@a", b'b"'):
            pieces.add(b"a" * (size - len(more)) + more)
            pieces.add(bytes(draws.choices(b"ab", k=size - len(more))) + more)
    trie = TokenTrie(sorted(pieces))
    contents = Contents(trie, Frontiers(trie))
    table = TextTable(language, Spelling.JSON)
    state = table.start
    for _ in range(90):
        found = contents.inside((table, state))
        inside, left = walked(trie, table, state)
        flags = np.unpackbits(found.bits.view(np.uint8), bitorder="little")
        assert flags[: trie.size].tolist() == inside
        assert {node for node, _ in found.left} == left
        onward = table.push(state, draws.choice(b"aaaaab"))
        state = onward if onward >= 0 else table.push(state, draws.choice(b"@."))
        if state < 0:
            break


def test_rows_as_tokens_see_them_are_those_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike_module, "MAX_ROWS", 16)
    table = TextTable(matching("[a-c]{1,90}é?"), Spelling.JSON)
    states = [table.start]
    for _ in range(80):
        states.append(table.push(states[-1], ord("a")))
    alike, draws = Alike(table, 5), random.Random(0)
    shown = []
    for _ in range(60):
        some = draws.choices(states, k=draws.choice([1, 3, 24]))
        store, places = alike.places(np.array(some))
        assert (store[0] == DEAD).all()
        shown.append((some, store, places))
        assert list(alike.row(some[0])) == store[places[0]].tolist()
    for some, store, places in shown:  # also those that were there before it began anew
        for state, row in zip(some, store[places], strict=True):
            (own,) = table.rows([state])
            due = [table.alike(int(to), 5) if to >= 0 else int(to) for to in own]
            assert row.tolist() == due
    assert len(alike.rows(states[:3])) == 3


@given(st.integers(2, 30), st.integers(0, 1 << 30), st.lists(st.integers(0, 40), max_size=6))
@settings(max_examples=60)
def test_nodes_are_alike_that_do_the_same(size: int, seed: int, lengths: list[int]) -> None:
    draws = random.Random(seed)
    kinds = {node: draws.choice("ab") for node in range(size)}
    onward = {n: frozenset(draws.choices([*range(size), (n + 1) % size], k=2)) for n in kinds}
    likeness = Likeness(kinds, onward)
    for length in lengths:
        due: dict[int, Any] = dict(kinds)
        for _ in range(length):
            due = {n: (due[n], frozenset(due[other] for other in onward[n])) for n in kinds}
            names = {name: number for number, name in enumerate(dict.fromkeys(due.values()))}
            due = {node: names[name] for node, name in due.items()}
        found = likeness.classes(length)
        pairs = {(due[node], found[node]) for node in kinds}
        assert len(pairs) == len(set(due.values())) == len(set(found.values()))


KEYS: list[tuple[dict[str, Any], list[Any]]] = [
    ({"additionalProperties": {"type": "integer"}}, [{"a": 1, "b": 2, "a:": 3}, {}, {"": 0}]),
    (
        {"properties": {"ab": {"type": "integer"}, "a": {}}, "additionalProperties": {}},
        [{"ab": 1, "a": "x", "b": {"ab": "x"}}, {"b": 1, "ba": 2}],
    ),
    (
        {"patternProperties": {"^a": {"type": "integer"}, "b$": {"enum": [1, 2]}}},
        [{"ab": 1, "a": 3, "cb": 2, "c": "x"}, {"x": {"a": 1}}],
    ),
    (
        {"propertyNames": {"maxLength": 2}, "minProperties": 2, "maxProperties": 3},
        [{"a": 1, "b": 2, "c": 3}, {"a": {}, "bb": {"x": 1}}],
    ),
    (
        {"additionalProperties": {"additionalProperties": {"type": ["string", "null"]}}},
        [{"a": {"a": "x", "b": None}, "b": {}}, {"c": {"d": "a"}}],
    ),
]


@cache
def crossing(number: int, spaces: bool) -> tuple[Grammar, list[bytes]]:
    """A grammar with tokens that cross keys and values anywhere, and some texts."""
    schema, values = KEYS[number]
    separators = (", ", ": ") if spaces else (",", ":")
    texts = [json.dumps(value, separators=separators).encode() for value in values]
    pieces = {bytes([byte]) for byte in range(256)}
    for text in [*texts, *(text.replace(b"a", b"b") for text in texts)]:
        for begin in range(len(text)):
            pieces.update(text[begin:end] for end in range(begin + 2, min(len(text), begin + 15)))
    vocabulary = Vocabulary(sorted(pieces), encode=lambda text: list(text.encode()))
    spec = JsonSchema.of({"type": "object", **schema}, style="line" if spaces else "compact")
    return compile_spec(spec, vocabulary), texts


@pytest.mark.parametrize("spaces", [False, True])
@pytest.mark.parametrize("number", range(len(KEYS)))
def test_tokens_that_cross_keys_are_those_that_are_possible(number: int, spaces: bool) -> None:
    grammar, texts = crossing(number, spaces)
    automaton, pieces = grammar.automaton, grammar.vocabulary.pieces
    for text in texts:
        for end in range(len(text)):
            state = automaton.run(automaton.start, text[:end])
            assert state is not None, text[:end]
            found = grammar.masks.mask(automaton, state).ids().tolist()
            due = [i for i, piece in enumerate(pieces) if automaton.run(state, piece) is not None]
            assert found == due


def test_what_states_have_in_common_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmlang.grammar.masks.MAX_ALIKE", 2)
    monkeypatch.setattr("lmlang.grammar.masks.MAX_EXITS", 1)
    crossing.cache_clear()
    for number in range(len(KEYS)):
        test_tokens_that_cross_keys_are_those_that_are_possible(number, True)
        assert len(crossing(number, True)[0].automaton.alike) <= 2


def test_threads_share_what_is_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike_module, "MAX_ROWS", 32)
    language = of_length(3, 60) & matching(r"[a-z]{1,40}(?:\.[a-zé]+)*")
    trie = TokenTrie(pieces_of(0))
    table = TextTable(language, Spelling.JSON)
    states = [table.start]
    for byte in b"abc.defghijklm.nopqrstuvwxyz.abcdefghijklm":
        states.append(table.push(states[-1], byte))
    due = []
    for state in states:
        inside, left = walked(trie, table, state)
        due.append((inside, left))
    contents = Contents(trie, Frontiers(trie))

    def found(seed: int) -> None:
        for number in random.Random(seed).sample(range(len(states)), len(states)):
            inside = contents.inside((table, states[number]))
            flags = np.unpackbits(inside.bits.view(np.uint8), bitorder="little")
            assert flags[: trie.size].tolist() == due[number][0]
            assert {node for node, _ in inside.left} == due[number][1]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(found, range(8)))
