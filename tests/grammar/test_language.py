"""Languages and their algebra, against Python's re and against all texts of a small alphabet."""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lmlang.errors import GrammarSyntaxError, GrammarTooLarge
from lmlang.grammar import ecma
from lmlang.grammar.charset import LAST, category, contains
from lmlang.grammar.language import (
    ANY,
    NOTHING,
    Language,
    matching,
    of_length,
    of_texts,
    searching,
)

PROPERTY = settings(max_examples=150, deadline=None, derandomize=True)
TEXTS = ["".join(letters) for size in range(6) for letters in product("ab", repeat=size)]
"""All texts of two letters, up to five of them."""

Oracle = Callable[[str], bool]
Pair = tuple[Language, Oracle]


def _pattern(pattern: str) -> Pair:
    return matching(pattern), lambda text: re.fullmatch(pattern, text) is not None


def _texts(texts: list[str]) -> Pair:
    return of_texts(texts), lambda text: text in texts


def _length(least: int, more: int | None) -> Pair:
    most = None if more is None else least + more
    return of_length(least, most), lambda t: least <= len(t) <= (99 if most is None else most)


_leaves = st.one_of(
    st.sampled_from(
        ["a*", "(?:ab)*", "a?b+", "(?:a|bb)+", "[ab]{2,3}", "(?=.*bb).*", "(?!a).*", r"(?:\Ba|b)*",
         "(?:(?:a{2})+|b)*", ".*(?<!ab)", "a", "", "(?!)"]
    ).map(_pattern),
    st.lists(st.sampled_from(TEXTS), max_size=4).map(_texts),
    st.builds(_length, st.integers(0, 4), st.none() | st.integers(0, 2)),
    st.sampled_from([(ANY, lambda text: True), (NOTHING, lambda text: False)]),
)  # fmt: skip


def _combined(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    return st.one_of(
        inner.map(lambda one: (~one[0], lambda text: not one[1](text))),
        st.tuples(inner, inner).map(
            lambda both: (both[0][0] & both[1][0], lambda t: both[0][1](t) and both[1][1](t))
        ),
        st.tuples(inner, inner).map(
            lambda both: (both[0][0] | both[1][0], lambda t: both[0][1](t) or both[1][1](t))
        ),
    )


LANGUAGES = st.recursive(_leaves, _combined, max_leaves=6)


@PROPERTY
@given(LANGUAGES)
def test_the_algebra_is_that_of_sets(pair: Pair) -> None:
    language, oracle = pair
    inside = [text for text in TEXTS if oracle(text)]
    assert [text for text in TEXTS if language.contains(text)] == inside
    narrow = language & matching("[ab]{0,5}")
    assert narrow.is_empty() == (not inside)
    assert narrow.size(1_000) == len(inside)
    assert narrow.size(3) == min(3, len(inside))
    assert sorted(narrow.first(1_000)) == sorted(inside)
    assert [len(text) for text in narrow.first(7)] == [len(text) for text in inside[:7]]
    shortest = narrow.shortest()
    assert shortest is None if not inside else len(shortest or "") == len(inside[0])


@PROPERTY
@given(LANGUAGES)
def test_questions_about_all_texts_agree(one: Pair) -> None:
    language = one[0]
    assert (language & ~language).is_empty()
    assert (~(language | ~language)).is_empty()
    if not language.is_empty():
        shortest = language.shortest()
        assert shortest is not None
        assert language.contains(shortest)
        assert one[1](shortest)
        assert (language & of_length(0, len(shortest) - 1)).is_empty()
        assert all(map(one[1], language.first(5)))
        assert len(set(language.first(20))) == language.size(20)


def test_what_is_made_alike_is_one_object() -> None:
    assert matching("a") & matching("b") is matching("b") & matching("a")
    assert ~~matching("a") is matching("a")
    assert of_texts(["x", "y"]) is of_texts(("y", "x"))
    assert of_texts(["x"]) | of_texts(["y"]) is of_texts(["x", "y"])
    assert of_length(1, None) & of_length(0, 5) is of_length(1, 5)
    assert matching("a") | ~matching("a") is ANY
    assert ~ANY is NOTHING
    assert of_texts(["ab", "c"]) & matching("a.*") is of_texts(["ab"])
    assert of_length(3, 2) is NOTHING
    assert of_texts(["\ud800"]) is NOTHING


def test_a_name_is_short() -> None:
    made = matching("a" * 999) & searching("b" * 999) & ~searching("c") | matching("d") & ANY
    assert made.name.startswith(f"what is made of the pattern '{'a' * 79}…', the pattern '")
    assert made.name.endswith("and 1 more")
    assert (
        repr(of_length(2, 1_000)) == "<Language: texts of at least 2 and at most 1,000 characters>"
    )
    assert of_texts(["x"]).name == "1 text"


def nested(depth: int) -> Language:
    language = matching("a+")
    for number in range(depth):
        other = matching(f"b{{{number}}}a*")
        language = language & other if number % 2 else language | other
    return language


def test_nesting_is_bounded() -> None:
    assert nested(91).contains("b" * 90 + "a")
    assert nested(91).shortest() == "b" * 90
    with pytest.raises(GrammarTooLarge, match="nests more than 100 times"):
        nested(10_000)


def test_surrogates_belong_to_no_language() -> None:
    assert not ANY.contains("\ud800")
    assert not (~of_texts(["a"])).contains("a\udfff")
    assert searching(r"^[\ud83d\ude00-\ud83d\ude42]$").contains("🙂")
    assert searching(r"\ud800").is_empty()


SPACES = "\t\n\v\f\r \xa0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
ECMA = [
    (r"a", ["xay", "a"], ["", "b"]),
    (r"^a$", ["a"], ["a\n", "\na", "xa"]),
    (r"^a|b$", ["ax", "xb"], ["xa", "bx"]),
    (r"^\d+$", ["019"], ["٣", "1٣", ""]),
    (r"^\w$", ["a", "_", "0"], ["é", "ſ", "\u212a"]),
    (r"^\W$", ["é", " ", "🙂"], ["a", "🙂🙂"]),
    (r"^\s$", list(SPACES), ["\x85", "\x1c", "a", "\u200b"]),
    (r"^\S$", ["\x85", "\u180e", "a"], list(SPACES)),
    (r"^.$", ["a", "\x85", "🙂"], ["\n", "\r", "\u2028", "\u2029", ""]),
    (r"^[^]$", ["\n", "a"], ["", "ab"]),
    (r"^[]$", [], ["", "a"]),
    (r"^[^a-c]$", ["d", "\n"], ["b", "dd"]),
    (r"\bfoo\b", ["foo", "a foo.", "éfoo"], ["foobar", "_foo"]),
    (r"^\B$", [""], ["a"]),
    (r"a\B", ["ab"], ["a", "a b"]),
    (r"^\/\-\.\@$", ["/-.@"], ["x"]),
    (r"^[\w-.]+$", ["a-b.c"], ["a b"]),
    (r"^[\b]\cJ\0$", ["\b\n\0"], ["b"]),
    (r"^\x41\u00e9\u{1F600}\ud83d\ude42$", ["Aé😀🙂"], ["A"]),
    (r"^\p{Lu}\p{Letter}\P{L}$", ["Éa1", "Ωω "], ["éa1", "Aa!b", "AaB"]),
    (r"^[\p{Nd}\P{ASCII}]+$", ["1é٣"], ["a"]),
    (r"^\p{gc=Decimal_Number}\p{Any}$", ["٣a"], ["aa"]),
    (r"^(?<year>\d{4})-(?:\d{2})?$", ["2024-", "2024-10"], ["2024-1"]),
    (r"^(?=.*\d)(?=.*[a-z]).{3,5}$", ["ab1", "1bcd5"], ["abc", "a1", "abcd12"]),
    (r"^(?!.*\.\.)[a-z.]+$", ["a.b"], ["a..b", ""]),
    (r"foo(?!bar)", ["foo", "xfoobaz", "foobarfoo"], ["foobar", "fo"]),
    (r"(?<=\$)\d+(?<!0)\b", ["$5", "a$15"], ["5", "$10"]),
    (r"^(?<=x*)a", ["a"], ["xa"]),
    (r"^a{,2}$|^x{$|^]}$", ["a{,2}", "x{", "]}"], ["aa", "a"]),
    (r"^a{2}b{1,}c{0,1}?$", ["aab", "aabbc"], ["ab", "aac"]),
    (r"^(?:)$", [""], ["a"]),
    (r"", ["", "a\nb"], []),
    (r"^[\u{61}-\u{63}]+?$", ["abc"], ["d"]),
    (r"^[^\d\s]+$", ["é", "ab"], ["a1", "a\ufeff"]),
]
"""Pattern, texts in which JavaScript's `new RegExp(pattern, "u").test` finds it, and others; the
flag left out for three that only other modes take."""


@pytest.mark.parametrize(("pattern", "found", "others"), ECMA, ids=lambda value: repr(value)[:40])
def test_a_search_is_javascript_s(pattern: str, found: list[str], others: list[str]) -> None:
    language = searching(pattern)
    assert [text for text in found if not language.contains(text)] == []
    assert [text for text in others if language.contains(text)] == []
    assert language.is_empty() == (not found)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("ab[", "a class is not closed at character 2"),
        ("a)", "unbalanced parenthesis at character 1"),
        ("(a", "a group is not closed at character 0"),
        ("*a", "nothing to repeat at character 0"),
        ("a**", "nothing to repeat at character 2"),
        ("a*+", "nothing to repeat at character 2"),
        ("^*", "nothing to repeat at character 1"),
        (r"\B+", "nothing to repeat at character 2"),
        ("{1}", "nothing to repeat at character 0"),
        ("a{3,1}", "min repeat greater than max repeat at character 1"),
        ("[b-a]", "a range out of order at character 2"),
        (r"(a)\1", "a back-reference .* at character 3"),
        (r"(?<n>a)\k<n>", "a back-reference .* at character 7"),
        ("(?i)a", "a group that ECMA-262 does not know at character 0"),
        ("(?P<n>a)", "a group that ECMA-262 does not know at character 0"),
        (r"\p{Greek}", r"\\p{…} of a property that is not known here .* at character 0"),
        (r"[\p{L]", r"\\p{…} of a property .* at character 1"),
        (r"\u12", "without its hexadecimal digits at character 0"),
        (r"\xg0", "without its hexadecimal digits at character 0"),
        (r"\u{110000}", "without its hexadecimal digits at character 0"),
        (r"\07", "an octal escape .* at character 0"),
        (r"a\A", r"\\A is no escape at character 1"),
        ("a\\", "nothing behind a backslash at character 1"),
        (r"\c1", "a control escape without a letter at character 0"),
        (r"(?<=(?=a)a)b", "a look-ahead inside of a look-behind"),
    ],
)
def test_what_is_no_search_is_refused_with_its_place(pattern: str, message: str) -> None:
    with pytest.raises(GrammarSyntaxError, match=message):
        searching(pattern)


def test_categories_are_those_of_unicode() -> None:
    known = ecma._categories()
    assert sum(last - first + 1 for some in known.values() for first, last in some) == LAST + 1
    for code in (*range(0, 0x30000, 97), *range(0x30000, LAST + 1, 1009), 0xFFFFF, LAST):
        assert contains(known[unicodedata.category(chr(code))], code)
    everything = "".join(map(chr, range(LAST + 1)))
    for name in "dsw":
        runs = re.finditer(rf"\{name}+", everything)
        assert category(name, False) == tuple((run.start(), run.end() - 1) for run in runs)


@pytest.mark.parametrize(
    "make",
    [
        lambda: matching("(a{1,500}){1,500}"),
        lambda: searching("(a{1,500}){1,500}"),
        lambda: searching("(" * 10_000 + ")" * 10_000),
        lambda: searching("(?:(?:){65535}){65535}"),
        lambda: searching("a" * 10_000_000),
        lambda: matching("|".join(map(str, range(100_000)))),
        lambda: matching("(?:a|b)*a(?:a|b){14}") & matching("(?:a|b)*b(?:a|b){14}b?c"),
    ],
)
def test_bombs_are_refused_soon(make: Callable[[], Language]) -> None:
    begun = time.thread_time()
    with pytest.raises(GrammarTooLarge, match=r"lower its counts|flatten it|are the limit"):
        make().is_empty()
    assert time.thread_time() - begun < 3


def test_large_languages_answer_at_once() -> None:
    begun = time.thread_time()
    wide = of_length(1, 65_536) & ANY
    assert wide.shortest() is not None
    assert wide.size(5) == 5
    assert len(set(ANY.first(20_000))) == 20_000
    assert len(set(matching("[a-z]{8,}").first(2_000))) == 2_000
    words = of_texts(f"{number:05}-é" for number in range(20_000))
    assert words.size(50_000) == 20_000
    assert (words & searching("7")).size(10**6) == 20_000 - 9**4 * 2
    few = of_texts(words.first(1_000))
    assert (~few & matching("[0-9]{5}-é")).size(10**6) == 99_000
    assert [len(text) for text in (~words & searching("^0")).first(3)] == [1, 2, 2]
    assert len((of_length(5_000, 6_000) & searching("^[a-c]*b$")).shortest() or "") == 5_000
    assert searching("(a+)+$").contains("a" * 1_000)
    assert matching("(?:(?=a*b)a|b)*").contains("a" * 300 + "b")
    deep = matching("(?:" * 99 + "a" + ")?" * 99)
    assert deep.first(3) == ["", "a"]
    assert time.thread_time() - begun < 4


@PROPERTY
@given(st.lists(st.text("ab\U0010ffff\ue000", max_size=4), max_size=6), st.text("ab\U0010ffff"))
def test_lists_of_texts_hold_these(texts: list[str], text: str) -> None:
    language = of_texts(texts)
    assume(texts)
    assert language.first(10) == sorted(set(texts), key=lambda text: (len(text), text))
    assert all(map(language.contains, texts))
    assert language.contains(text) == (text in texts)
