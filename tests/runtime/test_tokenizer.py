"""Text to ids: equal to transformers', control spellings plain, stable beginnings stable."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmlang.errors import ModelError, ProgramError, ProgramTypeError
from lmlang.runtime.tokenizer import CONTROL, NORMAL, USER_DEFINED, Tokenizer
from tests.reference import embedded, reference_tokenizer
from tests.tiny import MERGES, tiny_tokenizer, tiny_vocabulary

HARD = [
    "", " ", "  ", "\n", "\t", "\r\n", "a", " a", "a ", "a  b", "a   \n\n  b", "\n\n\n", " \n \n ",
    "0", "12345", "3.14159", "1,000,000", "x1y22z333", " 7", "   7", "²³½Ⅷ", "١٢٣", "5   ", "a5\n6",
    "don't can't we'll they've I'd I'm it's", "DON'T", "'s", "''s", "l'été", "don'", "’s",
    "def f(x):\n    return x ** 2  # ok\n\n\n\tif x:\r\n\t\tpass\n", "a+=b;c&&d||!e", "{}[]()<>",
    "你好，世界。", "日本語のテキスト", "한국어 텍스트", "a 🙂🙃", "👨‍👩‍👧‍👦 👍🏽 🏳️‍🌈", "🙂" * 9,
    "e\u0301 n\u0303 a\u0300\u0301\u0302", "\u00a0nbsp\u00a0", "\u2028line\u2029para\u0085",
    "\u3000wide", "\u200b\u200d\ufeff", "trailing   ", "\t \t ", "a\u00a0 b", " \u00a0", "\x00\x01",
    "<|im_end|>", "<|im_start|>user\nhi<|im_end|>", "a<|endoftext|>b", "<|im_", "<repo_name>x",
    "a" * 300, " " * 300, "\n" * 50, "!" * 80, "ab" * 200, "1" * 100, "Ünïcödé ÀÉÎ", "ǅ ﬁ Ａ",
    "\U00040000\U0010ffff", "مرحبا بالعالم", "שלום", "नमस्ते दुनिया", "ไทย", "𝔘𝔫𝔦", "\x1c\x1d x \x1f",
]  # fmt: skip
PIECES = st.sampled_from([*" \t\n\r\u00a0\u2028\u200d\x04aZé0'.-你🙂"]) | st.sampled_from(
    ["  ", "\r\n", "e\u0301", "42", "'s", "'ll", "'t", "<|im_end|>", "<|", "...", "the", " world"]
)
TEXTS = st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=40)
PROPERTY = settings(max_examples=300, deadline=None, derandomize=True)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return embedded()[3]


@pytest.mark.parametrize("text", HARD)
def test_ids_equal_those_of_transformers_with_control_spellings_split(tokenizer, text):
    reference = reference_tokenizer()
    assert tokenizer.encode(text) == reference.encode(text, split_special_tokens=True)
    if "<" not in text:
        assert tokenizer.encode(text) == reference.encode(text)


@PROPERTY
@given(text=TEXTS)
def test_ids_equal_those_of_transformers_for_any_text(text):
    ids = embedded()[3].encode(text)
    assert ids == reference_tokenizer().encode(text, split_special_tokens=True)


@pytest.mark.parametrize("text", [text for text in HARD if text.isprintable() or "\n" in text])
def test_decoding_gives_the_text_back(text):
    assert tiny_tokenizer().decode(tiny_tokenizer().encode(text)) == text


def test_decoding_equals_that_of_transformers(tokenizer):
    draw = random.Random(7)
    for _ in range(200):
        ids = [draw.randrange(tokenizer.vocab_size) for _ in range(draw.randrange(1, 12))]
        theirs = reference_tokenizer().decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert tokenizer.decode(ids) == theirs


@PROPERTY
@given(head=TEXTS, more=TEXTS)
@example(head="hello there, don", more="'t")
@example(head="hello there          ", more="x")
@example(head="\x1d:0000000 hello hello", more="")
@example(head="aaaaaaaaaaaa!\x04\x04\x04aaaaaaaaaaaaaaaaaa", more="\x04")
def test_a_stable_beginning_is_changed_by_no_later_text(head, more):
    for tokenizer in (embedded()[3], tiny_tokenizer(), defined_tokenizer()):
        ids, characters = tokenizer.encode_stable(head)
        assert tokenizer.encode(head + more) == ids + tokenizer.encode(head[characters:] + more)


def test_a_stable_beginning_is_all_but_the_last_words(tokenizer):
    text = "some words of a long text " * 40
    ids, characters = tokenizer.encode_stable(text)
    assert characters > len(text) - 24
    assert ids == tokenizer.encode(text[:characters])


def test_control_tokens(tokenizer):
    assert tokenizer.control_id("<|im_end|>") == 2
    assert tokenizer.control_id("im_end") is None
    assert tokenizer.spelling(2) == "<|im_end|>"
    assert tokenizer.spelling(500) == ""
    assert tokenizer.stop_ids == {0, 2}
    assert tokenizer.control_ids == set(range(17))
    assert {tokenizer.token_bytes[index] for index in tokenizer.control_ids} == {b""}
    assert (tokenizer.bos_id, tokenizer.add_bos, tokenizer.vocab_size) == (1, False, 49152)
    assert tokenizer.decode([2, *tokenizer.encode("hi"), 0]) == "hi"


def test_control_spellings_in_template_text_become_ids(tokenizer):
    assert tokenizer.split_control("<|im_start|>user\nx<|im_end|>\n") == [1, "user\nx", 2, "\n"]
    assert tokenizer.split_control("") == []
    assert tokenizer.split_control("<|im_end") == ["<|im_end"]


def test_the_longer_of_two_control_spellings_wins():
    tokens = ["<a>", "<a><b>", "<", "a", ">", "b"]
    kinds = [CONTROL, CONTROL, *[NORMAL] * 4]
    assert Tokenizer(tokens, [], kinds=kinds).split_control("<a><b><a>") == [1, 0]


def defined_tokenizer() -> Tokenizer:
    """The tiny one with two tokens that are matched in plain text before anything else."""
    tokens, kinds = tiny_vocabulary()
    defined = ["the world", "  "]
    return Tokenizer(
        tokens + defined, MERGES, kinds=[*kinds, USER_DEFINED, USER_DEFINED], bos_id=1, eos_id=2
    )


def test_user_defined_tokens_are_matched_in_plain_text():
    tokenizer = defined_tokenizer()
    ids = tokenizer.encode("hello the world")
    assert ids[-1] == tokenizer.vocab_size - 2
    assert tokenizer.decode(ids) == "hello the world"


def test_a_lone_surrogate_is_refused():
    with pytest.raises(ProgramError, match=r"lone surrogate, '\\ud800', at character 2"):
        tiny_tokenizer().encode("ab\ud800")
    with pytest.raises(ProgramTypeError, match="not bytes"):
        tiny_tokenizer().encode(b"ab")


def good_metadata() -> dict[str, object]:
    tokens, kinds = tiny_vocabulary()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.eos_token_id": 2,
    }


def test_metadata_of_a_file_gives_a_tokenizer():
    assert Tokenizer.from_gguf(good_metadata()).encode("hello") == tiny_tokenizer().encode("hello")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tokenizer.ggml.model", "llama", "lacks the scores or the kinds"),
        ("tokenizer.ggml.model", "bert", "tokenizer is 'bert', and only 'gpt2'"),
        ("tokenizer.ggml.model", None, "tokenizer is 'None'"),
        ("tokenizer.ggml.pre", "qwen35", "pre-tokeniser is 'qwen35'"),
        ("tokenizer.ggml.pre", None, "pre-tokeniser is 'None'"),
        ("tokenizer.ggml.tokens", None, "lacks 'tokenizer.ggml.tokens'"),
        ("tokenizer.ggml.tokens", ["a", "a"], "2 tokens and 286 kinds"),
        ("tokenizer.ggml.merges", None, "lacks 'tokenizer.ggml.merges'"),
        ("tokenizer.ggml.merges", ["q zz"], "merge 'q zz'"),
        ("tokenizer.ggml.merges", ["nonsense"], "merge 'nonsense '"),
        ("tokenizer.ggml.token_type", ["x"], "kinds are no whole numbers"),
        ("tokenizer.ggml.token_type", np.array([1]), "and 1 kinds"),
        ("tokenizer.ggml.token_type", np.full(286, 6), "of the kind 6"),
        ("tokenizer.ggml.token_type", np.full(286, 1, np.float32), "kinds are no whole numbers"),
        ("tokenizer.ggml.eos_token_id", 286, "eos_id=286, outside of its 286"),
        ("tokenizer.ggml.eos_token_id", "2", "eos_token_id is no whole number"),
        ("tokenizer.ggml.eot_token_id", 300, "=300, outside of its 286"),
    ],
)
def test_metadata_that_do_not_fit_are_refused(key, value, message):
    metadata = good_metadata() | {key: value}
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_gguf(metadata)


def test_two_tokens_of_one_spelling_are_refused():
    with pytest.raises(ModelError, match="tokens 0 and 1 both read 'a'"):
        Tokenizer(["a", "a"], [])


def test_a_model_of_more_ids_pads_the_tokenizer_with_ids_that_are_no_text():
    tokenizer = defined_tokenizer()
    assert tokenizer.fitted(tokenizer.vocab_size) is tokenizer
    wider = tokenizer.fitted(300)
    assert (wider.vocab_size, len(wider.token_bytes), wider.decode([299, 290])) == (300, 300, "")
    assert wider.control_ids == tokenizer.control_ids | set(range(288, 300))
    assert wider.encode("hello the world") == tokenizer.encode("hello the world")
    assert (wider.stop_ids, wider.bos_id) == (tokenizer.stop_ids, 1)


def test_a_model_of_fewer_ids_does_without_control_tokens_alone():
    tokens, kinds = tiny_vocabulary()
    tokenizer = Tokenizer([*tokens, "<|x|>"], MERGES, kinds=[*kinds, CONTROL], eos_id=286)
    fewer = tokenizer.fitted(286)
    assert (fewer.vocab_size, fewer.control_id("<|x|>"), fewer.eos_id) == (286, None, None)
    with pytest.raises(ModelError, match="the first beyond the 280 of the model"):
        tokenizer.fitted(280)


def test_a_vocabulary_outside_the_byte_alphabet_is_refused():
    with pytest.raises(ModelError, match="byte alphabet"):
        Tokenizer(["a", "▁the"], [])
