"""States that nobody has met before: what is known of whole runs of bytes is what bytes come to."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from lmlang.grammar.automaton import DEAD, LEAVE, Automaton, State, Swift
from lmlang.grammar.compiler import Grammar, compile_spec
from lmlang.grammar.formats import format_language
from lmlang.grammar.frontier import Frontiers
from lmlang.grammar.language import ANY, Language, matching, of_length, of_texts, searching
from lmlang.grammar.schema.rules import SchemaRules
from lmlang.grammar.spec import JsonSchema
from lmlang.grammar.tables import Spelling, TextTable
from lmlang.grammar.vocabulary import Vocabulary
from tests.grammar.byte_sets import vocabulary_of
from tests.grammar.real import real_vocabulary

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "nation": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["red", "reddish", "green", 7, None]},
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        "home": {"type": "object", "properties": {"zip": {"pattern": "^[0-9]{2}$"}}},
        "score": {"type": "number"},
        "mail": {"type": "string", "format": "email"},
        "on": {"anyOf": [{"type": "boolean"}, {"type": "string", "format": "date"}]},
    },
    "required": ["name"],
}
DOCUMENTS = [
    '{"name":"Zoë \\"x\\"","nation":"abcde","age":15,"kind":"red","tags":["a","ab"],'
    '"home":{"zip":"12","y":[1,{}]},"score":-0.5,"mail":"a.b@c.de","on":true,"other":{"a":null}}',
    '{"name":"","kind":null,"tags":[],"on":"2024-02-29","na":1,"nam":"","z":[[]]}',
]
STYLES = ["compact", "line", 2]


@cache
def grammar_of(closed: bool, style: Any) -> Grammar:
    schema = {**PERSON, "additionalProperties": False} if closed else PERSON
    return compile_spec(JsonSchema(json.dumps(schema), style), real_vocabulary())


def written(document: str, closed: bool, style: Any) -> bytes:
    value = json.loads(document)
    if closed:
        value = {key: item for key, item in value.items() if key in PERSON["properties"]}
        if "home" in value:
            value["home"].pop("y", None)
    indent = style if isinstance(style, int) else None
    separators = (",", ":") if style == "compact" else (", ", ": ") if indent is None else None
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators).encode()


def pushed(automaton: Automaton, key: Any, data: bytes) -> Any:
    for byte in data:
        if key is None:
            return None
        key = automaton.rules.push(key, byte)
    return key


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("document", DOCUMENTS)
def test_runs_come_to_what_their_bytes_come_to(document: str, closed: bool, style: Any) -> None:
    automaton = grammar_of(closed, style).automaton
    rules, draws = automaton.rules, random.Random(7)
    assert isinstance(rules, Swift)
    data = written(document, closed, style)
    assert rules.accepting(pushed(automaton, rules.start(), data))
    key, at = rules.start(), 0
    while at < len(data):
        size = draws.choice([1, 1, 2, 3, 5, 8])
        piece = data[at : at + size]
        onward = rules.run(key, piece)
        assert onward is pushed(automaton, key, piece), piece
        for wrong in (piece[:-1] + b"}", piece + b'"', b'","' + piece, piece + data[at:][:40]):
            assert rules.run(key, wrong) is pushed(automaton, key, wrong), (data[:at], wrong)
        key, at = onward, at + size


def runs_at(automaton: Automaton, key: Any) -> tuple[bytes, ...] | None:
    assert isinstance(automaton.rules, Swift)
    return automaton.rules.runs(key)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("document", DOCUMENTS)
def test_runs_are_all_that_may_come(document: str, closed: bool, style: Any) -> None:
    automaton = grammar_of(closed, style).automaton
    rules = automaton.rules
    key, known = rules.start(), 0
    for byte in written(document, closed, style):
        runs = runs_at(automaton, key)
        if runs is not None:
            known += 1
            assert list(runs) == sorted(set(runs))
            for begun in {run[:size] for run in runs for size in range(len(run))}:
                here = pushed(automaton, key, begun)
                if begun in runs:
                    continue  # it goes on behind the run, too
                following = {run[len(begun)] for run in runs if run.startswith(begun)}
                assert {b for b in range(256) if rules.push(here, b) is not None} == following
                assert not begun or not rules.accepting(here)
        key = rules.push(key, byte)
    assert known > 20


def below(automaton: Automaton, state: Any, vocabulary: Vocabulary) -> Iterator[int]:
    """The tokens that may come next, byte by byte, without anything that is known beforehand."""
    trie, push = vocabulary.trie, automaton.rules.push
    open_, known = [(state, 0)], dict[tuple[Any, int], Any]()
    while open_:
        key, node = open_.pop()
        for child in range(trie.starts[node], trie.starts[node + 1]):
            way = (key, trie.labels[child])
            if way not in known:
                known[way] = push(*way)
            if known[way] is not None:
                yield from trie.ids(child)
                open_.append((known[way], child))


@cache
def some_real_tokens() -> Vocabulary:
    """Those with marks of JSON, and a few of the others."""
    pieces = real_vocabulary().pieces
    marks = set(b'":,{}[]')
    kept = [p for n, p in enumerate(pieces) if len(p) == 1 or n % 61 == 0 or marks & set(p)]
    return Vocabulary([b"", *kept], special_ids=[0], encode=lambda text: list(text.encode()))


@pytest.mark.parametrize("closed", [False, True])
def test_masks_of_real_tokens_are_those_of_bytes(closed: bool) -> None:
    real, draws = grammar_of(closed, "compact"), random.Random(int(closed))
    vocabulary, seen = real.vocabulary if closed else some_real_tokens(), set[State]()
    grammar = compile_spec(real.spec, vocabulary) if not closed else real
    for document in DOCUMENTS:
        data = written(document, closed, "compact")
        for end in draws.sample(range(len(data) + 1), 14):
            state = grammar.automaton.run(grammar.automaton.start, data[:end])
            assert state is not None
            if state in seen:
                continue
            seen.add(state)
            mask = grammar.masks.mask(grammar.automaton, state)
            due = sorted(below(grammar.automaton, state.key, vocabulary))
            assert mask.ids().tolist() == due, data[:end]
            assert mask.count == len(due)
    assert len(seen) > 20


TEXTS = [
    b"a",
    b"ab",
    b"b",
    b'"',
    b'a"',
    b'ab"',
    b"\\",
    b'\\"',
    b"\\u",
    b"\\u00e9",
    b"\\n",
    b"-" * 40,
]
TEXTS += [
    "é".encode(),
    "é".encode()[:1],
    "é".encode()[1:],
    "aé🙂".encode(),
    "🙂".encode()[:2],
    b"1",
    b"12",
]
TEXTS += [b"a" * size for size in (5, 15, 16, 17, 33)] + [
    b"a@b.c",
    b"@",
    b".",
    b"/api/v",
    b'"}',
    b"a\n",
]


@cache
def text_vocabulary() -> Vocabulary:
    return vocabulary_of([b"", *TEXTS], special=3)


@pytest.mark.parametrize("spelling", list(Spelling))
@pytest.mark.parametrize(
    "language",
    [
        ANY,
        of_length(0, 0),
        of_length(0, 7),
        of_length(3, None),
        of_length(2, 40),
        of_texts(["a", "ab", 'a"é']),
        matching("[a-c]{1,20}é?"),
        searching("/api/v[0-9]+/ab") & of_length(0, 30),
        format_language("email"),
        ~of_texts(["ab", "a"]),
    ],
    ids=lambda language: language.name[:30],
)
def test_tokens_inside_of_contents(language: Language, spelling: Spelling) -> None:
    vocabulary = text_vocabulary()
    trie, contents = vocabulary.trie, vocabulary.masks._contents
    table = TextTable(language, spelling)
    for begun in ("", "a", "ab", "aa", "aaaaa", "/api/v1", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"):
        state = table.start
        for byte in begun.encode():
            state = table.push(state, byte) if state >= 0 else state
        if state < 0:
            continue
        inside, left = set[int](), dict[int, bytes]()
        for index, piece in enumerate(vocabulary.pieces):
            here = state
            for place, byte in enumerate(piece):
                here = table.push(here, byte)
                if here == LEAVE:
                    left[walked(trie, piece[: place + 1])] = piece[: place + 1]
                if here < 0:
                    break
            if piece and here >= 0:
                inside.add(index)
        found = contents.inside((table, state))
        bits = np.unpackbits(found.bits.view(np.uint8), bitorder="little")
        assert set(np.flatnonzero(bits).tolist()) == inside, begun
        assert dict(found.left) == left, begun
        for node in left:
            assert trie.labels[node] == ord('"')


def walked(trie: Any, path: bytes) -> int:
    node = 0
    for byte in path:
        node = trie.child(node, byte)
    return int(node)


def test_a_run_does_in_the_tree_what_its_bytes_do() -> None:
    trie = real_vocabulary().trie
    frontiers, draws = Frontiers(trie), random.Random(3)
    tokens = [piece for piece in real_vocabulary().pieces if len(piece) > 2]
    for _ in range(200):
        token = draws.choice(tokens)
        size = draws.randint(1, len(token) - 1)
        first = frontiers.step(frontiers.root, token[:size])
        assert first.onward is not None
        at, ids = 0, list[int]()
        for end in range(1, size + 1):
            at = trie.child(at, token[end - 1])
            ids += trie.ids(at)
        assert (first.onward.nodes, list(first.ids)) == ((at,), ids)
        assert set(first.onward.heads) == {
            trie.labels[child] for child in range(trie.starts[at], trie.starts[at + 1])
        }
        assert frontiers.step(frontiers.root, token[:size]) is first
        assert frontiers.step(frontiers.root, token + b"\xff").onward is None


def test_keys_of_one_cell_may_differ_in_what_comes_behind_the_next_one() -> None:
    longer = [b'x":1,"x":', b'x":1,"y":', b'y":1,"x":', b'":1,"x":', b'":1,"yx":', b'":[],"']
    longer += [b'":{"x":{"', b'":1,""', b'":1,"":', b'":1,"x"', b'x":1,"x"', b'":{},"']
    singles = [bytes([byte]) for byte in range(0x20, 0x7F)]
    vocabulary = Vocabulary(
        [b"", *singles, *longer], special_ids=[0], encode=lambda text: list(text.encode())
    )
    grammar = compile_spec(JsonSchema('{"type": "object"}', "compact"), vocabulary)
    for begun in (b'{"', b'{"x', b'{"y', b'{"x":1,"', b'{"x":1,"y', b'{"yx":[],"'):
        state = grammar.automaton.run(grammar.automaton.start, begun)
        assert state is not None
        mask = grammar.masks.mask(grammar.automaton, state)
        due = [i for i, piece in enumerate(vocabulary.pieces) if piece]
        due = [i for i in due if grammar.automaton.run(state, vocabulary.pieces[i]) is not None]
        assert mask.ids().tolist() == due, begun
        assert DEAD not in due


OF_KEYS = [
    '{"a":{"x":1,"ab":22},"ab":{"x":1,"y":[{"x":{}},{"y":0}]},"b":{}}',
    '{"k":[],"kk":{"kk":{"k":1,"kk":2},"k":{"kk":null}},"":true}',
]


@pytest.mark.parametrize("document", OF_KEYS)
def test_where_more_may_come_it_is_what_was_written_before(document: str) -> None:
    rules = compile_spec(JsonSchema("{}", "compact"), some_real_tokens()).automaton.rules
    assert isinstance(rules, Swift)
    key, forgotten = rules.start(), 0
    for at, byte in enumerate(document.encode()):
        wide = rules.widened(key)
        assert rules.widened(wide) is wide
        more, less = set(rules.following(wide)), set(rules.following(key))
        assert less <= more
        assert not more - less or (more - less == {ord('"')} and key is not wide)
        for each in sorted(less)[:: 1 + at % 7]:
            behind, other = rules.push(key, each), rules.push(wide, each)
            assert rules.accepting(behind) == rules.accepting(other)
            if each < 0x80 and each != ord("\\"):  # else a character has begun
                assert rules.widened(behind) is rules.widened(other)
        forgotten += key is not wide
        key = rules.push(key, byte)
    assert rules.accepting(key)
    assert forgotten > 20
    one, other = (rules.run(rules.start(), text) for text in (b'{"a":{"b":1},"', b'{"c":0,"d":9,"'))
    assert one is not other
    assert rules.widened(one) is rules.widened(other)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{}", json.loads(OF_KEYS[0])),
        ('{"additionalProperties": {"type": "integer"}}', {"name": 1, "na": 22, "": 3}),
    ],
)
def test_what_is_forced_does_not_depend_on_what_is_forgotten(
    text: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = real_vocabulary()
    known = compile_spec(JsonSchema(text), vocabulary)
    exact = compile_spec(JsonSchema(text), vocabulary)
    monkeypatch.setattr(exact.automaton, "widened", lambda state: state)
    matcher, other, at = known.matcher(), exact.matcher(), 0
    ids = vocabulary.encode(json.dumps(value))
    while at < len(ids):
        run = matcher.forced_tokens()
        assert run == other.forced_tokens() == ids[at : at + len(run)]
        run = run or [ids[at]]
        assert matcher.accept_tokens(run) == other.accept_tokens(run) == len(run)
        at += len(run)
    assert matcher.is_accepting()


@pytest.mark.parametrize("document", OF_KEYS)
def test_masks_behind_keys_do_not_depend_on_those_that_have_been_written(document: str) -> None:
    singles = [bytes([byte]) for byte in range(0x20, 0x7F)]
    longer = [document[at : at + size].encode() for at in range(0, 40, 2) for size in (3, 5, 8)]
    longer += [b'":1}', b'":1},', b'":1},"', b'":{"', b'":{"x', b'":1,"x"', b'":1,"ab":', b'x":[{']
    vocabulary = Vocabulary(
        [b"", *dict.fromkeys(singles + longer)],
        special_ids=[0],
        encode=lambda text: list(text.encode()),
    )
    grammar = compile_spec(JsonSchema("{}", "compact"), vocabulary)
    for begun in (document, document.replace("x", "z")):
        for end in range(len(begun)):
            state = grammar.automaton.run(grammar.automaton.start, begun[:end].encode())
            assert state is not None
            due = sorted(below(grammar.automaton, state.key, vocabulary))
            assert grammar.masks.mask(grammar.automaton, state).ids().tolist() == due, begun[:end]


@pytest.mark.parametrize("text", ["{}", '{"properties": {"abc": {}, "kkk": {}}}'])
def test_keys_that_nothing_known_begins_like_go_on_alike(text: str) -> None:
    rules = compile_spec(JsonSchema(text, "compact"), some_real_tokens()).automaton.rules
    assert isinstance(rules, SchemaRules)
    for document in OF_KEYS:
        key, shared = rules.start(), 0
        for byte in document.encode():
            level = key.level
            frame, context = level.frame, rules._levels._context
            if level.like is not level:
                shared += 1
                assert level.following() == frame.following(context)
                assert level.finish() == frame.finish(context)
                assert level.contents() == frame.contents()
                assert not frame.known
            key = rules.push(key, byte)
        assert shared > 5


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_is_forced_is_what_follows_byte_by_byte(document: str, closed: bool) -> None:
    automaton = grammar_of(closed, "line").automaton
    rules, lengths = automaton.rules, set[int]()
    data = written(document, closed, "line")
    for end in range(len(data)):
        state = automaton.run(automaton.start, data[:end])
        assert state is not None
        key, due = state.key, b""
        while not rules.accepting(key) and len(following := rules.following(key)) == 1:
            due += following
            key = rules.push(key, following[0])
        assert automaton.forced(state) == due
        assert automaton.forced(state, 3) == due[:3]
        lengths.add(len(due))
    assert max(lengths) > 3
