"""Regular expressions as automata: Python's own `re` is the oracle, character for character."""

from __future__ import annotations

import re
import time
import warnings

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from lmlang.errors import GrammarSyntaxError, GrammarTooLarge, Unsatisfiable
from lmlang.grammar.charset import LAST, category, class_ranges, complement, contains
from lmlang.grammar.language import matching
from lmlang.grammar.regex import compile_regex
from lmlang.grammar.search import search_for
from lmlang.grammar.tables import Spelling, TextTable, spelled
from lmlang.grammar.threads import Pattern
from tests.grammar.patterns import ANCHORED, CHARACTERS, LOOKING, PATTERNS, TEXTS

EVERYTHING = "".join(map(chr, range(0x20000)))
PROPERTY = settings(max_examples=200, deadline=None, derandomize=True)


def table_of(pattern: str) -> TextTable | None:
    """The table of a pattern; None where it matches nothing."""
    try:
        return spelled(matching(pattern), Spelling.PLAIN)
    except Unsatisfiable:
        return None


def run(table: TextTable, data: bytes) -> int:
    state = table.start
    for byte in data:
        state = table.push(state, byte)
        if state < 0:
            break
    return state


def check(pattern: str, texts: list[str]) -> None:
    language, table, oracle = matching(pattern), table_of(pattern), re.compile(pattern)
    for text in texts:
        expected = oracle.fullmatch(text) is not None
        assert language.contains(text) == expected, text
        state = -1 if table is None else run(table, text.encode())
        assert (table is not None and state >= 0 and table.accepting(state)) == expected, text


@PROPERTY
@given(PATTERNS | ANCHORED, st.lists(TEXTS, min_size=1, max_size=8))
@example("(?i)[^k]", ["K", "K", "k", "s", "ſ"])
@example("(?i)ſ|İ", ["s", "S", "i", "I", "ı", "İ"])
@example("(?ia)[𐐀b]|𐐁", ["𐐀", "𐐨", "𐐩", "B"])
@example("(?ia)[𐐀-𐐂]", ["𐐁", "𐐩", "𐐨"])
@example(r"(?:^|b)*a$", ["a", "ba", "ab"])
@example(r"a$\s*", ["a", "a\n", "a\n\n", "a "])
@example(r"\B", ["", "a"])
def test_it_matches_what_python_matches(pattern: str, texts: list[str]) -> None:
    check(pattern, texts)


@PROPERTY
@given(LOOKING, st.lists(TEXTS, min_size=1, max_size=8))
@example(r"(?=.*\d)(?=.*[a-z])[^ ]{3,}", ["ab1", "abc", "123", "a1", "a 1b"])
@example(r"(?!.*(?:a|b(?!k))).*", ["bk", "ba", "bkb", "k"])
@example(r"(?:(?=a.*b)a|b(?<=ab))*", ["ab", "aab", "ba", "aabb", ""])
@example(r"(?:.(?<!ab))*", ["a", "ab", "ba", "bab"])
@example(r"(?=a$)a\n", ["a\n", "a"])
@example(r"(?<=(?<!a)b)k|b(?<=(?<!a)b)k", ["bk", "k"])
def test_look_around_is_python_s(pattern: str, texts: list[str]) -> None:
    check(pattern, texts)


@PROPERTY
@given(PATTERNS, st.data())
def test_what_python_finds_it_matches(pattern: str, data: st.DataObject) -> None:
    """Texts made from the pattern, as random ones seldom match."""
    text = data.draw(st.from_regex(pattern, fullmatch=True).filter(lambda t: len(t) < 60))
    assume(not any("\ud800" <= c <= "\udfff" for c in text))
    check(pattern, [text])


@PROPERTY
@given(PATTERNS | ANCHORED | LOOKING, TEXTS, st.integers(0, 20), st.integers(0, 255))
def test_a_byte_is_taken_where_some_match_goes_on_so(
    pattern: str, text: str, cut: int, byte: int
) -> None:
    table = table_of(pattern)
    assume(table is not None)
    data = text.encode()[:cut]
    state = run(table, data)
    assume(state >= 0)
    taken = table.push(state, byte)
    data += bytes([byte])
    if taken >= 0:
        whole = data + table.completion(taken)
        assert re.fullmatch(pattern, whole.decode()) is not None
        return
    known = data.decode("utf-8", "ignore")
    rest = data[len(known.encode()) :]
    for character in CHARACTERS:
        if character.encode().startswith(rest) or not rest:
            for more in ("", "a", "1", "\n", "🙂"):
                tail = (character if rest else "") + more
                assert re.fullmatch(pattern, known + tail) is None


@pytest.mark.parametrize(
    "source",
    [
        r"\d",
        r"\w",
        r"\s",
        r"[^\W\d_]",
        "[a-z]",
        "[^k]",
        "k",
        "ſ",
        "İ",
        "[µ-þ]",
        "[^Ω]",
        "ῼ",
        "[Ά-Ͽ]",
    ],
)
@pytest.mark.parametrize("flags", [0, re.IGNORECASE, re.ASCII, re.ASCII | re.IGNORECASE])
def test_a_class_holds_the_characters_that_python_says(source: str, flags: int) -> None:
    letters = "".join(c for c, on in (("i", flags & re.I), ("a", flags & re.A)) if on)
    automaton = compile_regex(f"(?{letters}:{source})" if letters else source)
    (ranges,) = (automaton.sets[node.reads] for node in automaton.nodes[2:] if node.reads)
    end = len(EVERYTHING)
    runs = re.finditer(f"(?:{source})+", EVERYTHING, flags)
    found = [(first, min(last, end - 1)) for first, last in ranges if first < end]
    assert found == [(run.start(), run.end() - 1) for run in runs]


def test_ranges_and_their_complement_are_apart_and_whole() -> None:
    words = category("w", False)
    assert complement(complement(words)) == words
    assert sum(b - a + 1 for a, b in (*words, *complement(words))) == LAST + 1
    assert contains(class_ranges((("category", "w"),), False, True, False), ord("ſ"))


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("ab[", "unterminated character set at character 2"),
        ("a)", "unbalanced parenthesis at character 1"),
        ("*a", "nothing to repeat at character 0"),
        (r"(a)b\1", "at character 4: a back-reference"),
        ("(?P<n>a)(?P=n)", "at character 8: a back-reference"),
        ("a(?<=(?=b)a)", "at character 1: a look-ahead inside of a look-behind"),
        ("(?<=a$)b", r"at character 5: \$ inside of a look-behind"),
        ("(a)?(?(1)b|c)", "at character 4: a condition on a group"),
        ("a{3,1}", "min repeat greater than max repeat at character"),
        ("a{99999999999}", "the repetition number is too large"),
        ("(?L:a)", "cannot use 'L' flag"),
        ("(?au)a", "are incompatible"),
    ],
)
def test_what_is_no_regular_pattern_is_refused_with_its_place(pattern: str, message: str) -> None:
    with pytest.raises(GrammarSyntaxError, match=message):
        compile_regex(pattern)


@pytest.mark.skipif("sys.version_info < (3, 11)", reason="new in Python 3.11")
@pytest.mark.parametrize(("pattern", "at"), [("ab++", 2), ("x(?>ab)", 1)])
def test_what_changes_how_a_search_goes_back_is_refused(pattern: str, at: int) -> None:
    with pytest.raises(GrammarSyntaxError, match=f"at character {at}: .* goes back"):
        compile_regex(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a{1,500}){1,500}",
        "(?:(?:){65535}){65535}",
        "(" * 10_000 + ")" * 10_000,
        "((a{99}){99}){99}",
        "".join(f"[\\w{chr(0x2200 + i)}]" for i in range(200)),
    ],
)
def test_bombs_are_refused_at_once(pattern: str) -> None:
    begun = time.thread_time()
    with pytest.raises(GrammarTooLarge, match=r"lower its counts|at character 100: flatten"):
        compile_regex(pattern)
    assert time.thread_time() - begun < 1


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a|a)*b",
        "(a|aa)+$",
        "(.*)*x",
        "(a|b)*a(a|b){200}c",
        "(?:a?){300}a{300}",
        "($|a){900}",
    ],
)
def test_patterns_that_send_python_astray_cost_one_pass(pattern: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        language = matching(pattern)
    begun = time.thread_time()
    assert not language.contains("a" * 2_000 + "!")
    assert time.thread_time() - begun < 5


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"a$\s", r"at character 1: \$ stands before"),
        (r"[(]\((?=a)", "at character 5: look-around cannot be searched for"),
        ("a(?<!b)c", "at character 1: look-around cannot be searched for"),
    ],
)
def test_what_cannot_be_searched_for_is_refused_with_its_place(pattern: str, message: str) -> None:
    with pytest.raises(GrammarSyntaxError, match=message):
        search_for((pattern,))


def test_half_a_character_is_a_character_to_a_search() -> None:
    assert search_for(("[^a]b",)).begin().push("a\ud800b") == (1, 3)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(PATTERNS)
def test_classes_are_parted_alike_by_readers_and_one_by_one(pattern: str) -> None:
    automaton = compile_regex(pattern)
    ways = []
    for few in (0, 1 << 30):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("lmlang.grammar.threads.FEW_LETTERS", few)
            kind = Pattern(automaton, pattern)
            start = kind.start()
            assume(start is not None)
            keys = [start]
            for key in keys:
                keys += [to for _, to in kind.edges(key) if to not in keys][: 12 - len(keys)]
            ways.append([kind.edges(key) for key in keys])
    assert ways[0] == ways[1]
