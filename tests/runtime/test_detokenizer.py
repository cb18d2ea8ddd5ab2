"""Streams of tokens: whole characters, stops where they first end, outputs that stops cut."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmlang.grammar.stops import StopMatcher
from lmlang.runtime.detokenizer import Detokenizer, history
from tests.reference import embedded
from tests.tiny import tiny_tokenizer

PROPERTY = settings(max_examples=300, deadline=None, derandomize=True)
TINY_IDS = st.lists(st.integers(0, tiny_tokenizer().vocab_size - 1), max_size=16)
UNICODE_IDS = st.text("aé🙂你\n", max_size=8).map(tiny_tokenizer().encode)


@PROPERTY
@given(ids=TINY_IDS | UNICODE_IDS)
def test_joined_pieces_equal_the_decoded_whole(ids):
    tokenizer = tiny_tokenizer()
    stream = Detokenizer(tokenizer)
    pieces = [stream.push(index) for index in ids]
    assert "".join(pieces) + stream.finish() == tokenizer.decode(ids)


@PROPERTY
@given(ids=UNICODE_IDS)
def test_no_replacement_character_is_shown_for_a_character_in_pieces(ids):
    stream = Detokenizer(tiny_tokenizer())
    assert "\ufffd" not in "".join([stream.push(index) for index in ids]) + stream.finish()


def test_a_control_token_gives_nothing_and_a_cut_character_gives_one_replacement():
    tokenizer = tiny_tokenizer()
    stream = Detokenizer(tokenizer)
    assert stream.push(tokenizer.control_id("<|im_end|>")) == ""
    first = tokenizer.encode("🙂")[0]
    assert stream.push(first) == ""
    assert stream.finish() == "\ufffd"


def brute_force(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop that ends first, the longest of those; tried end by end."""
    for end in range(len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


@PROPERTY
@given(
    pieces=st.lists(st.text("abc", max_size=6), max_size=20),
    stops=st.lists(st.text("abc", min_size=1, max_size=9), max_size=16, unique=True),
)
@example(pieces=["aab", "aac"], stops=["aac", "aabaad"])
@example(pieces=["ab", "c"], stops=["abc", "c", "bc"])
@example(pieces=["a", "b"], stops=["ab", "abc"])
def test_a_stop_is_found_where_it_first_ends_however_the_stream_is_cut(pieces, stops):
    matcher = StopMatcher(stops)
    text, expected = "".join(pieces), brute_force("".join(pieces), stops)
    shown, found = "", None
    for piece in pieces:
        more, found = matcher.push(piece)
        shown += more
        assert expected[0].startswith(shown)
        if found is not None:
            break
    shown += matcher.finish()
    assert (shown, found) == expected, text


def test_without_stops_nothing_is_held_back():
    matcher = StopMatcher(())
    assert matcher.push("abc") == ("abc", None)
    assert matcher.finish() == ""


def test_only_what_may_begin_a_stop_is_held_back():
    matcher = StopMatcher(["\n\n", "END"])
    assert matcher.push("one\n") == ("one", None)
    assert matcher.push("two E") == ("\ntwo ", None)
    assert matcher.push("N") == ("", None)
    assert matcher.push("D and more") == ("", "END")
    assert matcher.push("ignored") == ("", "END")
    assert matcher.finish() == ""


def test_a_stop_may_span_six_tokens():
    tokenizer = tiny_tokenizer()
    stop = "qxzjkv"
    ids = tokenizer.encode(f"hello{stop}hello")
    assert len(tokenizer.encode(stop)) == 6
    stream, matcher = Detokenizer(tokenizer), StopMatcher([stop])
    shown = ""
    for index in ids:
        text, found = matcher.push(stream.push(index))
        shown += text
        if found:
            break
    assert (shown, found) == ("hello", stop)


@PROPERTY
@given(ids=TINY_IDS | UNICODE_IDS, data=st.data())
def test_history_keeps_whole_tokens_and_the_kept_text(ids, data):
    tokenizer = tiny_tokenizer()
    text = tokenizer.decode(ids)
    kept = text[: data.draw(st.integers(0, len(text)))]
    whole, rest = history(ids, kept, tokenizer)
    assert list(whole) == ids[: len(whole)]
    assert tokenizer.decode(whole) + rest == kept
    joined = b"".join(tokenizer.token_bytes[index] for index in ids)
    if "\ufffd" not in joined.decode("utf-8", "replace"):
        assert "\ufffd" not in rest
        after = ids[len(whole) : len(whole) + 1]
        if rest == "" and after:  # the next token did not fit
            assert not kept.startswith(tokenizer.decode([*whole, *after])) or kept == text


@pytest.mark.parametrize("cut", range(6))
def test_history_moves_the_tokens_of_a_cut_character_into_the_text(cut):
    tokenizer = tiny_tokenizer()
    by_byte = [tokenizer.encode("x")[0] - ord("x") + byte for byte in range(256)]
    if tokenizer.token_bytes[by_byte[0xF0]] != b"\xf0":
        by_byte = [tokenizer.token_bytes.index(bytes([byte])) for byte in range(256)]
    ids = [by_byte[byte] for byte in "ab🙂".encode()]
    whole, rest = history(ids[:cut], tokenizer.decode(ids[:cut]), tokenizer)
    assert tokenizer.decode(whole) + rest == tokenizer.decode(ids[:cut])


def test_history_of_a_token_that_holds_the_end_of_one_character_and_the_stop():
    tokenizer = embedded()[3]
    cuts = [
        (index, piece)
        for index, piece in enumerate(tokenizer.token_bytes)
        if piece and piece[0] & 0xC0 == 0x80 and piece[-1] < 0x80
    ]
    for index, piece in cuts[:20]:
        inside = next(length for length, byte in enumerate(piece) if byte & 0xC0 != 0x80)
        for lead in ([0xC3], [0xE4, 0xBD], [0xF0, 0x9F, 0x99]):
            before = [tokenizer.token_bytes.index(bytes([byte])) for byte in lead]
            raw = bytes(lead) + piece
            if inside != 1:
                continue
            kept = raw[: len(lead) + 1].decode()
            assert history([*tokenizer.encode("ok"), *before, index], "ok" + kept, tokenizer) == (
                tuple(tokenizer.encode("ok")), kept,
            )  # fmt: skip
