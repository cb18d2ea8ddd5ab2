"""Places to cut: for every known pattern and any text, the parts' pieces are those of the whole."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from lmlang.runtime.boundaries import NoBoundaries, PairBoundaries, WordBoundaries
from lmlang.runtime.pretokens import KNOWN, Split, is_known, pre_tokenizer

PROPERTY = settings(max_examples=400, deadline=None, derandomize=True)
PIECES = st.sampled_from(
    [
        *" \t\n\r\u00a0\u2028\u3000\u200d\x04\x1caZé09/'.-，。」你あア・ー각\u1161🙂",
        *("   ", "\n\n", " \n ", "\r\n", "e\u0301", "\u0301", "क\u093c", "\u0958", "=\u0338", "'s"),
        *("'LL", "Word", "ǅX", "12345", "!\n/", "//", "\u2581", "<|", "\u1100\u1161", "\u212b"),
    ]
)
TEXTS = st.lists(PIECES, max_size=14).map("".join) | st.text(max_size=14)
WORDS = WordBoundaries()


CUTTERS = {name: pre_tokenizer(steps) for name, steps in KNOWN.items()}


def pieces(text: str, name: str, composed: bool = False) -> list[str]:
    """What the ``tokenizers`` library cuts a text into, in the byte alphabet."""
    text = normalizers.NFC().normalize_str(text) if composed else text
    return [piece for piece, _ in CUTTERS[name].pre_tokenize_str(text)]


@PROPERTY
@given(head=TEXTS, more=TEXTS)
@example(head="a!\nx", more="/")
@example(head="ア・", more="")
@example(head="a\n x", more="")
@example(head="\u0958, you", more="")
@example(head="don't a 's", more="'s")
@example(head="a   \n     ", more="\n")
def test_word_boundaries_cut_no_piece_of_any_known_pattern(head, more):
    at = WORDS.last(head)
    for name in KNOWN:
        for composed in (False, True):
            parts = pieces(head[:at], name, composed) + pieces(head[at:] + more, name, composed)
            assert parts == pieces(head + more, name, composed), (name, composed)


@pytest.mark.parametrize("name", KNOWN)
def test_word_boundaries_hold_beside_characters_of_all_planes(name):
    for code in [*range(0x3000), *range(0x3000, 0x20000, 97)]:
        if 0xD800 <= code < 0xE000:
            continue
        character = chr(code)
        for text in (f"x{character} ", f"x\n{character}", f"x{character}", f"{character},"):
            at = WORDS.last(text)
            if at:
                parts = pieces(text[:at], name) + pieces(text[at:] + "y", name)
                assert parts == pieces(text + "y", name), hex(code)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("", 0), ("a", 0), ("a ", 1), ("ab cd", 2), ("a  b", 1), ("a\nb", 2), ("a\n\nb", 0),
        ("a\n/", 0), ("你好，世", 2), ("it's", 0), ("ア・", 1), ("\u0958,", 0), ("!?", 0),
    ],
)  # fmt: skip
def test_where_words_part(text, at):
    assert WORDS.last(text) == at


def test_what_is_matched_before_anything_else_is_not_cut():
    assert WordBoundaries(["the world"]).last("the world") == 0
    assert WordBoundaries(["the world"]).last("no world") == 2


def test_pairs_that_no_token_has():
    pairs = PairBoundaries(["\u2581the", "th", "  x", "\u2581\u2581"])
    assert pairs.last("a the") == 1
    assert pairs.last("the") == 0
    assert pairs.last("thx") == 2
    assert pairs.last("   ") == 0
    assert pairs.last("e x") == 1  # " x" stands in a token, "e " in none
    assert NoBoundaries().last("a b c") == 0


def test_only_the_known_patterns_have_word_boundaries():
    assert is_known(list(KNOWN["smollm"]))
    assert not is_known([Split(r"\w+|\W+")])
