"""Formats: against the JSON-Schema-Test-Suite, Python's own parsers and their RFCs' corners."""

from __future__ import annotations

import ipaddress
import json
import random
import re
import uuid
from datetime import date, datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.grammar.formats import format_language
from lmlang.grammar.language import Language, of_length

PROPERTY = settings(max_examples=150, deadline=None, derandomize=True)
SUITE = Path(__file__).parents[3] / "shared" / "data" / "json_schema_test_suite.json"
ASSERTED = [
    "date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
    "uri-reference", "json-pointer",
]  # fmt: skip


def language(name: str) -> Language:
    found = format_language(name)
    assert found is not None
    return found


@cache
def cases() -> list[dict[str, Any]]:
    if not SUITE.exists():
        pytest.skip(f"the test suite's groups are not here: {SUITE}")
    groups = json.loads(SUITE.read_text())
    return [group for group in groups if group["set"] == "optional-format"]


@pytest.mark.parametrize("name", ASSERTED)
def test_a_format_is_what_the_suite_says(name: str) -> None:
    some = language(name)
    known = 0
    for group in cases():
        for test in group["tests"] if group["kw"] == name else ():
            text = test["data"]
            if isinstance(text, str):
                known += 1
                valid = test["valid"] and not (name == "hostname" and "xn--" in text)
                assert some.contains(text) == valid, text
    assert known > 10


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        (r"([abc])+\s+$", True), ("", True), ("a|b", True), ("[a-z0-9_-]+", True), ("[^-]", True),
        (r"^\d{4}-\d{2}$", True), ("(a(b(c)))*?", True), ("日本{2,5}", True), ("[]", False),
        ("^(abc]", False), ("[z-a]", False), ("a**", False), ("(", False), (")", False),
        ("a{2,1}", False), ("\\", False), ("x]", False), ("{", False), ("[", False), (r"\9", False),
    ],
)  # fmt: skip
def test_regular_expressions_are_those_of_both_dialects(text: str, valid: bool) -> None:
    assert language("regex").contains(text) == valid
    if valid:
        assert re.compile(text)


def test_what_is_written_as_a_regular_expression_is_one() -> None:
    for text in (language("regex") & of_length(5, 7)).first(3_000)[::7]:
        assert re.compile(text)


def test_other_names_say_nothing() -> None:
    assert format_language("unknown") is None
    assert format_language("email") is format_language("email")


@pytest.mark.parametrize("name", [*ASSERTED, "iri", "iri-reference", "uri-template", "idn-email",
                                  "relative-json-pointer", "idn-hostname"])  # fmt: skip
def test_a_format_has_texts_of_every_kind(name: str) -> None:
    some = language(name)
    shortest = some.shortest()
    assert shortest is not None
    assert some.contains(shortest)
    assert len(set(some.first(50))) == 50
    assert all(map(some.contains, some.first(50)))
    assert not some.contains("\n")
    assert not some.contains("a b\n")
    assert not (some & of_length(4, 40)).is_empty()


@PROPERTY
@given(st.integers(0, 10_000), st.integers(0, 14), st.integers(0, 33))
def test_dates_are_those_of_the_calendar(year: int, month: int, day: int) -> None:
    text = f"{year:04}-{month:02}-{day:02}"
    try:
        date.fromisoformat(text)
        valid = len(text) == 10
    except ValueError:
        valid = False
    assert language("date").contains(text) == valid
    assert language("date-time").contains(f"{text}T23:59:59.5+23:59") == valid


@PROPERTY
@given(st.integers(0, 1439), st.integers(0, 1439), st.sampled_from("+-"), st.booleans())
def test_leap_seconds_are_at_midnight_of_utc(
    minutes: int, offset: int, sign: str, fits: bool
) -> None:
    ahead = offset if sign == "+" else -offset
    if fits:
        minutes = (1439 + ahead) % 1440
    text = f"{minutes // 60:02}:{minutes % 60:02}:60{sign}{offset // 60:02}:{offset % 60:02}"
    valid = (minutes - ahead) % 1440 == 1439
    assert language("time").contains(text) == valid
    for leap_day in (date(2016, 12, 31), date(2015, 6, 30), date(2016, 3, 31)):
        local = datetime(leap_day.year, leap_day.month, leap_day.day, 23, 59) + timedelta(
            minutes=ahead
        )
        expected = valid and leap_day.month != 3
        assert language("date-time").contains(f"{local.date()}T{text}") == expected
    other = datetime(2016, 12, 29, 12, tzinfo=timezone.utc).date()
    assert not language("date-time").contains(f"{other}T{text}")


@PROPERTY
@given(st.text("0123456789abcfF:.", min_size=2, max_size=24) | st.ip_addresses().map(str))
def test_addresses_are_those_that_python_reads(text: str) -> None:
    for name, make in (("ipv4", ipaddress.IPv4Address), ("ipv6", ipaddress.IPv6Address)):
        try:
            make(text)
            valid = True
        except ValueError:
            valid = False
        assert language(name).contains(text) == valid


@pytest.mark.parametrize("text", ["1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1::3:4:5:6:7:8",
                                  "1:2:3:4:5::1.2.3.4", "::1.2.3.4", "1:2:3:4:5:6::8"])  # fmt: skip
def test_two_colons_stand_for_one_group_or_more(text: str) -> None:
    ipaddress.IPv6Address(text)
    assert language("ipv6").contains(text)
    assert language("uri").contains(f"http://[{text}]/")


@PROPERTY
@given(st.uuids())
def test_uuids_are_uuids(value: uuid.UUID) -> None:
    for text in (str(value), str(value).upper()):
        assert language("uuid").contains(text)
    assert not language("uuid").contains(value.hex)


@PROPERTY
@given(
    st.lists(st.text("aZ0-", min_size=1, max_size=6), min_size=1, max_size=4), st.integers(1, 70)
)
def test_host_names_are_labels_of_letters_digits_and_hyphens(labels: list[str], size: int) -> None:
    labels = [*labels, "x" * size]
    good = all(
        re.fullmatch("[aZ0x](?:[aZ0x-]*[aZ0x])?", label) and label[2:4] != "--" for label in labels
    )
    assert language("hostname").contains(".".join(labels)) == (good and size < 64)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("email", ["a" * 64 + "@b.c", '"a\\"b"@c', "x@xn--9n2bp8q"],
         ["a" * 65 + "@b.c", "a@-b", '"a"b@c', "é@b.c", "a@" + ".".join(["b" * 60] * 5)]),
        ("hostname", ["a." * 126 + "a"], ["a." * 126 + "aa", "XN--a", "ab--c", "a..b"]),
        ("duration", ["P1Y2M3DT4H5M6S", "P1W"], ["p1d", "P1M1Y", "P1Y1D", "PT1H1S"]),
        ("date", [], ["0000-01-01"]),
        ("uri", ["a:", "a:/", "a://", "a:b:c", "http://[v1.a]:", "x://:@h"],
         ["a://[v1]", "a:[", "//a", "a://b@c@d", "a:#a#b", "a:%2"]),
        ("iri", ["http://é.com/你?\ue000#é", "a:\U000e1000"], ["http://é.com/\ue000", "a:\ufffe"]),
        ("iri-reference", ["/é", "é"], ["é b", "\\"]),
        ("uri-template", ["a{b}{?c,d*,e:3}/%20", "{+a.b}", "{|x}"[:0]],
         ["{", "a}", "{}", "{a,}", "{a:0}", "{a:12345}", "'", "{!a}", "{a b}"]),
        ("relative-json-pointer", ["0", "1/a", "0#", "10/"], ["", "01", "-1", "/a", "0##", "1a"]),
        ("json-pointer", ["/\n"], ["/~", "a"]),
    ],
)  # fmt: skip
def test_corners(name: str, good: list[str], bad: list[str]) -> None:
    some = language(name)
    assert [text for text in good if not some.contains(text)] == []
    assert [text for text in bad if some.contains(text)] == []


GOOD_NAMES = [
    "실례.테스트", "münchen.de", "faß.de", "日本語.jp", "ς.gr", "नमस्ते.भारत",
    "www.ab-cd.日本", "ל.ا", "x1.אב", "example.com",
]  # fmt: skip
BAD_NAMES = [
    "a--b.日本", "〮실례.테스트", "실〮례.테스트", "-> $1.00 --", "xn--X", "日本語。jp", "É", "א1",
    "1x.א", "", "실" * 64, "l·l", "e\u0301.de", "-é.de", "é-.de", "ⅷ.de", "\u0300a.de", "a..é",
    "é.", "ا\u0903",
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "valid"), [*((t, True) for t in GOOD_NAMES), *((t, False) for t in BAD_NAMES)]
)
def test_host_names_of_all_scripts(text: str, valid: bool) -> None:
    assert language("idn-hostname").contains(text) == valid
    assert language("idn-email").contains(f"пошта@{text}") == valid


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("실례@실례.테스트", True),
        ("joe.bloggs@example.com", True),
        ("2962", False),
        ("é.@é", False),
    ],
)
def test_addresses_of_all_scripts(text: str, valid: bool) -> None:
    assert language("idn-email").contains(text) == valid


def test_host_names_of_all_scripts_can_be_sent() -> None:
    idna = pytest.importorskip("idna")
    some, draws = language("idn-hostname"), random.Random(0)
    pages = [range(0x80, 0x250), range(0x370, 0x530), range(0x590, 0x700), range(0x900, 0xE00)]
    pages += [range(0x3040, 0x3100), range(0x4E00, 0x5000), range(0xAC00, 0xAD00)]
    found = 0
    for _ in range(4_000):
        page = draws.choice(pages)
        start = draws.choice(page)
        near = [*page[start - page[0] :][:40], ord("a"), ord("7"), ord("-")]
        labels = [
            "".join(chr(draws.choice(near)) for _ in range(draws.randrange(1, 12)))
            for _ in range(draws.randrange(1, 4))
        ]
        text = ".".join(labels)
        if some.contains(text):
            found += 1
            idna.encode(text)  # which raises for what is none
    assert found > 300
