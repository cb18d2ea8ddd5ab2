"""Tables of bytes: against the language's own verdict, JSON's own parser and brute force."""

from __future__ import annotations

import json
import re
import threading
import time
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.errors import Unsatisfiable
from lmlang.grammar import tables
from lmlang.grammar.automaton import DEAD, LEAVE
from lmlang.grammar.language import ANY, NOTHING, Language, matching, of_length, of_texts, searching
from lmlang.grammar.tables import Spelling, TextTable, spelled
from tests.grammar.patterns import LOOKING, PATTERNS

PROPERTY = settings(max_examples=120, deadline=None, derandomize=True)
LANGUAGES = st.one_of(
    PATTERNS.map(matching),
    LOOKING.map(lambda pattern: ~matching(pattern)),
    st.tuples(PATTERNS, PATTERNS).map(lambda both: matching(both[0]) & ~matching(both[1])),
    st.sampled_from(
        [
            ANY,
            of_length(2, 3),
            of_texts(['a"b', "é", "éa", "🙂"]),
            searching("[é-ü\\ud800-🙂]\\n?$"),
        ]
    ),
)
CHARACTERS = 'ab"\\/\b\n\t\x00\x1f\x7fé٣你\ud7ff\ue000\uffff🙂\U00010000\U0010ffff'
TEXTS = st.text(st.sampled_from(CHARACTERS), max_size=5)


def run(table: TextTable, data: bytes, state: int | None = None) -> int:
    state = table.start if state is None else state
    for byte in data:
        state = table.push(state, byte)
        if state < 0:
            break
    return state


def table_of(language: Language, spelling: Spelling) -> TextTable | None:
    try:
        return spelled(language, spelling)
    except Unsatisfiable:
        assert language.is_empty()
        return None


def read(content: bytes) -> str:
    """The text of what stands between the quotes of a JSON string."""
    text: str = json.loads(b'"' + content + b'"')
    return text


@PROPERTY
@given(LANGUAGES, TEXTS)
def test_texts_are_let_through_as_they_are_spelled(language: Language, text: str) -> None:
    expected = language.contains(text)
    whole = {
        Spelling.PLAIN: text.encode(),
        Spelling.JSON: json.dumps(text, ensure_ascii=False)[1:-1].encode(),
        Spelling.JSON_FREE: json.dumps(text)[1:-1].replace("/", r"\/").encode(),
    }
    for spelling, data in whole.items():
        table = table_of(language, spelling)
        state = DEAD if table is None else run(table, data)
        assert (table is not None and state >= 0 and table.accepting(state)) == expected
        if table is not None and state >= 0:
            quote = table.push(state, ord('"'))
            if spelling is not Spelling.PLAIN:
                assert quote == (LEAVE if expected else DEAD)
            assert table.following(state) == bytes(
                byte for byte in range(256) if table.push(state, byte) != DEAD
            )


@PROPERTY
@given(LANGUAGES, st.sampled_from(Spelling), st.randoms(use_true_random=False))
def test_every_way_leads_to_a_text_of_the_language(
    language: Language, spelling: Spelling, random: Random
) -> None:
    table = table_of(language, spelling)
    if table is None:
        return
    data, state = b"", table.start
    for _ in range(12):
        rest = table.completion(state)
        end = run(table, rest, state)
        assert table.accepting(end)
        whole = data + rest
        text = whole.decode() if spelling is Spelling.PLAIN else read(whole)
        assert language.contains(text)
        if spelling is Spelling.JSON:
            assert whole == json.dumps(text, ensure_ascii=False)[1:-1].encode()
        assert (rest == b"") == table.accepting(state)
        following = [b for b in table.following(state) if table.push(state, b) >= 0]
        if not following:
            break
        byte = random.choice(following)
        data += bytes([byte])
        state = table.push(state, byte)


@PROPERTY
@given(LANGUAGES, st.sampled_from(Spelling), TEXTS, st.integers(0, 30), st.integers(0, 255))
def test_what_is_refused_begins_no_text(
    language: Language, spelling: Spelling, text: str, cut: int, byte: int
) -> None:
    table = table_of(language, spelling)
    if table is None:
        return
    data = (text if spelling is Spelling.PLAIN else json.dumps(text)[1:-1]).encode()[:cut]
    state = run(table, data)
    if state < 0 or table.push(state, byte) != DEAD:
        return
    data += bytes([byte])
    for character in CHARACTERS:
        for spelt in (character, json.dumps(character)[1:-1], json.dumps(character)[1:-1].upper()):
            for more in ("", "a", '\\"', "🙂"):
                for start in range(1, 12):
                    whole = data + spelt.encode()[start:] + more.encode()
                    try:
                        found = whole.decode() if spelling is Spelling.PLAIN else read(whole)
                    except ValueError:
                        continue
                    alone = (
                        spelling is Spelling.JSON
                        and whole.decode() != json.dumps(found, ensure_ascii=False)[1:-1]
                    )
                    assert alone or not language.contains(found), whole


def test_rows_are_what_push_says_however_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "MAX_ROWS", 64)
    table = spelled(matching("(?:[^a]|é){1,400}"), Spelling.JSON_FREE)
    states = [table.start]
    for _ in range(300):
        states.append(table.push(states[-1], ord("b")))
    for some in (states[:3], states[::-1], states[:20] + states[-10:]):
        rows = table.rows(np.array(some, np.int64))
        assert rows.shape == (len(some), 256)
        assert rows.dtype == np.int32
        for state, row in zip(some, rows, strict=True):
            assert [table.push(state, byte) for byte in range(0, 256, 5)] == row[::5].tolist()


def test_any_text_has_few_states_in_json() -> None:
    table = spelled(ANY, Spelling.JSON_FREE)
    todo, seen = [table.start], {table.start}
    while todo:
        new = {int(state) for state in table.rows([todo.pop()])[0] if state >= 0} - seen
        seen |= new
        todo += new
    assert len(seen) < 40
    assert spelled(ANY, Spelling.JSON_FREE) is table


@pytest.mark.parametrize(
    ("content", "good"),
    [
        (b"\\u00e9\\/\\b", True),
        (b"\\uD83D\\uDE00", True),
        (b"\\ud83d", False),
        (b"\\ud83dx", None),
        (b"\\ud83d\\u0041", None),
        (b"\\ude00", None),
        (b"\x1f", None),
        (b"\x7f", True),
        (b"\\x41", None),
        (b"\\U0041", None),
        (b"\xed\xa0\x80", None),
        (b"\xc0\x80", None),
        (b"\xf4\x90\x80\x80", None),
        (b"\xf4\x8f\xbf\xbf", True),
        (b"\xc3", False),
    ],
)
def test_json_strings_are_as_json_has_them(content: bytes, good: bool | None) -> None:
    """Good, or not yet whole, or (None) never."""
    table = spelled(ANY, Spelling.JSON_FREE)
    state = run(table, content)
    if good is None:
        assert state == DEAD
    else:
        assert state >= 0
        assert table.accepting(state) == good


def test_one_spelling_escapes_what_it_must() -> None:
    table = spelled(ANY, Spelling.JSON)
    for text in CHARACTERS:
        content = json.dumps(text, ensure_ascii=False)[1:-1].encode()
        assert table.accepting(run(table, content))
        other = f"\\u{ord(text):04X}".encode()
        assert len(text.encode("utf-16-le")) == 4 or run(table, other) == DEAD or text < " "
    assert run(table, b"\\u001F") == DEAD
    assert table.accepting(run(table, b"\\u001f"))


def test_nothing_has_no_table() -> None:
    for language in (NOTHING, matching("a") & matching("b"), matching("(?!)")):
        with pytest.raises(Unsatisfiable, match="no text at all is possible"):
            spelled(language, Spelling.PLAIN)


def test_a_completion_from_within_a_character_is_the_nearest() -> None:
    language = matching("(?:é[^a]{50}|è|[à-ç]{3})")
    for spelling, begun, rest in (
        (Spelling.PLAIN, b"\xc3", b"\xa8"),
        (Spelling.JSON_FREE, b"\\u00", b"e8"),
        (Spelling.JSON_FREE, b"\\", b"u00e8"),
    ):
        table = spelled(language, spelling)
        assert table.completion(run(table, begun)) == rest


def test_threads_share_a_table() -> None:
    table = spelled(searching("^(?:[a-f]{2,9}é|[^b]{1,40})+$"), Spelling.JSON)
    texts = [("abcdeé" * 8)[start:] for start in range(20)]
    expected = [table.accepting(run(spelled(
        searching("^(?:[a-f]{2,9}é|[^b]{1,40})+$"), Spelling.JSON), text.encode())
    ) for text in texts]  # fmt: skip
    fresh = TextTable(searching("^(?:[a-f]{2,9}é|[^b]{1,40})+$()"), Spelling.JSON)
    found: list[list[bool]] = []

    def ask() -> None:
        states = [run(fresh, text.encode()) for text in texts]
        found.append([state >= 0 and fresh.accepting(state) for state in states])

    asking = [threading.Thread(target=ask) for _ in range(6)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert found == [expected] * 6


TYPICAL = [
    r"\d{4}-\d{2}-\d{2}",
    r"[\w.+-]+@[\w-]+\.[\w.-]+",
    r"https?://[^\s/$.?#].[^\s]*",
    r"(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}",
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[\w.]+)?(\+[\w.]+)?",
    r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})",
    r'[^"]{1,200}',
    ".{1,1000}",
    "|".join(f"word{number}" for number in range(60)),
    r"Name: [A-Z][a-z]+\nAge: \d{1,3}\nCity: (?:Rome|Oslo)\n",
]


def test_typical_patterns_compile_fast() -> None:
    spelled(matching(r"(?i)\d\w\s"), Spelling.PLAIN)  # what Unicode says of characters, once
    times = []
    for pattern in TYPICAL:
        begun = time.thread_time()
        table = spelled(matching(f"(?:{pattern})"), Spelling.PLAIN)
        state = table.start
        for _ in range(20):
            byte = table.completion(state)[:1] or table.following(state)[:1]
            state = table.push(state, byte[0]) if byte else state
        times.append(time.thread_time() - begun)
        assert table.completion(table.start) == b"" or re.fullmatch(
            pattern, table.completion(table.start).decode()
        )
    assert sorted(times)[len(times) // 2] < 0.03
    assert max(times) < 0.3


_UNFLAGGED = PATTERNS.filter(lambda pattern: re.match(r"\(\?[aims]+\)", pattern) is None)
COUNTED = st.one_of(
    st.sampled_from(
        [
            matching("[^a]{1,9}"), matching("(?:ab?){2,8}"), matching("a{3,}b{0,9}"),
            of_length(2, 9), of_length(1, 12) & matching("(?:ab?)*a?b"),
            of_length(0, 14) & ~of_texts(["ab", "b"]), of_length(2, 9) | matching("b{0,12}"),
            of_length(0, 12) & searching("ab"), matching("(?:a|b{2}){0,8}"),
        ]
    ),
    st.builds("(?:{}){{{},{}}}".format, _UNFLAGGED, st.integers(0, 3), st.integers(6, 12)).map(
        lambda pattern: matching(pattern) & of_length(0, 40)
    ),
)  # fmt: skip


@PROPERTY
@given(COUNTED, st.text("ab\n", max_size=9), st.integers(1, 4))
def test_states_that_are_alike_do_the_same_for_a_while(
    language: Language, text: str, length: int
) -> None:
    table = table_of(language, Spelling.JSON)
    state = DEAD if table is None else run(table, text.encode())
    if table is None or state < 0:
        return
    alike = table.alike(state, length)
    assert table.alike(alike, length) == alike
    pairs = [(state, alike)]
    for depth in range(length + 1):
        further = []
        for one, other in pairs:
            assert (one >= 0) == (other >= 0)
            if depth < length and one >= 0:
                assert table.following(one) == table.following(other)
                further += [
                    (table.push(one, byte), table.push(other, byte)) for byte in b'ab"\\n\xc3'
                ]
        pairs = further


def test_counters_have_few_states_that_differ() -> None:
    for language, kinds in (
        (matching(".{1,1000}"), 8),
        (matching('[^"]{1,200}'), 8),
        (of_length(1, 65_536), 3),
        (of_length(0, 300) & matching("[a-z]+(?: [a-z]+)*"), 4),
        (matching(r"(?:\w+ ){0,199}\w+"), 24),
    ):
        table = spelled(language, Spelling.PLAIN)
        states = [table.start]
        while len(states) < 190:
            states.append(table.push(states[-1], b"ab "[len(states) % 3]))
        assert len({table.alike(state, 6) for state in states[: len(states) - 7]}) <= kinds
