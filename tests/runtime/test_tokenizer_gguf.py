"""Tokenizers of GGUF families: sentencepiece against its own algorithm, others by their pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.errors import ModelError
from lmlang.protocol import EndTurn, Prompt, Text, Tokens, Turn
from lmlang.runtime.chat import ChatTemplate
from lmlang.runtime.encoder import PromptEncoder
from lmlang.runtime.tokenizer import Tokenizer
from lmlang.runtime.tokenizer_parts import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED
from tests.tiny import MERGES, tiny_vocabulary

PROPERTY = settings(max_examples=300, deadline=None, derandomize=True)
WORDS = [
    *("▁", "▁▁", "▁▁▁▁", "▁a", "▁b", "ab", "▁ab", "aba", "ba", "bab", "▁ba", "aa", "aaa", "é"),
    *("b▁a", ".", ",\n", "a", "b", "\n", ",", "</s>x", "s>", "</", "<", "s", ">", "/", "x"),
]
PIECES = st.sampled_from(
    [*WORDS, " ", "  ", "▁", "z", "你", "🙂", "\x00", "</s>", "<0x41>", "<s>", "\r"]
)
SIZE = 3 + 256 + len(WORDS)
TEXTS = st.lists(PIECES, max_size=16).map("".join) | st.text(max_size=12)


def spm(order: list[str], *, defined: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
    """Metadata of a sentencepiece vocabulary; ``order`` gives the scores, the highest first."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS, *defined]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(WORDS)]
    kinds += [USER_DEFINED] * len(defined)
    scores = [-float(order.index(token)) if token in order else 0.0 for token in tokens]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    } | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}


def by_hand(text: str, metadata: dict[str, Any]) -> list[int]:
    """sentencepiece's own loop: the pair that makes the token of the highest score, leftmost."""
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    ids = {token: i for i, token in enumerate(tokens) if kinds[i] == NORMAL}
    scores = metadata["tokenizer.ggml.scores"]
    symbols = list(text.replace(" ", "▁"))
    while True:
        made = [
            (-scores[ids[symbols[at] + symbols[at + 1]]], at)
            for at in range(len(symbols) - 1)
            if symbols[at] + symbols[at + 1] in ids
        ]
        if not made:
            break
        at = min(made)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    found: list[int] = []
    for symbol in symbols:
        found += [ids[symbol]] if symbol in ids else [3 + byte for byte in symbol.encode()]
    return found


@PROPERTY
@given(text=TEXTS, order=st.permutations(WORDS))
def test_merges_by_score_are_those_of_sentencepiece(text, order):
    metadata = spm(order)
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.encode(text) == by_hand(text, metadata)
    prefixed = by_hand(" " + text, metadata) if text else []
    assert tokenizer.encode(text, at_start=True) == prefixed
    assert tokenizer.decode(tokenizer.encode(text)) == text.replace("▁", " ")


@PROPERTY
@given(head=TEXTS, more=TEXTS, order=st.permutations(WORDS), at_start=st.booleans())
def test_a_stable_beginning_is_changed_by_no_later_text(head, more, order, at_start):
    for defined in ((), ("ab\n", "  ", "▁▁▁")):
        tokenizer = Tokenizer.from_gguf(spm(order, defined=defined))
        ids, at = tokenizer.encode_stable(head, at_start=at_start)
        whole = tokenizer.encode(head + more, at_start=at_start)
        assert whole == (ids + tokenizer.encode(head[at:] + more) if at else whole)


@PROPERTY
@given(text=TEXTS, order=st.permutations(WORDS))
def test_text_gives_no_control_token(text, order):
    tokenizer = Tokenizer.from_gguf(spm(order))
    ids = tokenizer.encode("</s><s><unk>" + text + "</s>", at_start=True)
    assert tokenizer.control_ids == {0, 1, 2}
    assert tokenizer.control_ids.isdisjoint(ids)


def test_what_a_sentencepiece_file_says():
    tokenizer = Tokenizer.from_gguf(spm(WORDS))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (1, 2, True)
    assert tokenizer.stop_ids == {2}
    assert tokenizer.token_bytes[3 + 0x41] == b"A"
    assert tokenizer.token_bytes[3 + 0xFF] == b"\xff"
    assert [tokenizer.token_bytes[i] for i in tokenizer.encode(" ab")] == [b" ab"]
    plain = Tokenizer.from_gguf(spm(WORDS, add_space_prefix=False, add_bos_token=False))
    assert plain.encode("a", at_start=True) == plain.encode("a")
    assert not plain.add_bos


def test_user_defined_tokens_are_matched_before_the_merges():
    tokenizer = Tokenizer.from_gguf(spm(WORDS, defined=("ab\n", "▁▁▁")))
    last = tokenizer.vocab_size - 1
    assert tokenizer.encode("xab\nx")[1] == last - 1
    assert tokenizer.encode("a   b")[1] == last
    assert tokenizer.decode([last]) == "   "


def test_the_prefix_stands_at_the_beginning_of_the_prompt_alone():
    tokenizer = Tokenizer.from_gguf(spm(WORDS))
    template = ChatTemplate(
        "{{ bos_token }}{% for m in messages %}b{{ m.content }}</s>{% endfor %}", "<s>", "</s>"
    )
    encoder = PromptEncoder(tokenizer, template)
    a, pa, b, pb = (tokenizer.encode(text)[0] for text in ("a", " a", "b", " b"))
    assert encoder.encode(Prompt.of(Text("a"))) == [1, pa]
    assert encoder.encode(Prompt.of(Text(""), Text("a"))) == [1, pa]
    assert encoder.encode(Prompt.of(Tokens((1,), ""), Text("a"))) == [1, pa]
    assert encoder.encode(Prompt.of(Tokens((a,), "a"), Text("b"))) == [1, a, b]
    turns = Prompt.of(Turn("user"), Text("x"), EndTurn(), Turn("user"), Text("x"), EndTurn())
    x = tokenizer.encode("x")[0]
    assert encoder.encode(turns) == [1, pb, x, 2, b, x, 2]


@PROPERTY
@given(parts=st.lists(TEXTS, max_size=5), at_start=st.booleans())
def test_text_in_parts_gives_the_ids_of_the_whole(parts, at_start):
    """Also where the parts are long enough that a stable beginning is kept."""
    tokenizer = Tokenizer.from_gguf(spm(WORDS))
    encoder = PromptEncoder(tokenizer, ChatTemplate(None))
    prompt, before = Prompt(), []
    if not at_start:
        prompt, before = prompt.append(Tokens((5, 6), "\x02\x03")), [5, 6]
    text = ""
    for part in parts:
        text += part + "ab a" * 20
        prompt = prompt.append(Text(part + "ab a" * 20))
        assert encoder.encode(prompt) == [1, *before, *tokenizer.encode(text, at_start=at_start)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "lacks the scores or the kinds"),
        ({"scores": [1]}, "lacks the scores or the kinds"),
        ({"token_type": None}, "lacks the scores or the kinds"),
        ({"scores": np.zeros(3, np.float32)}, "3 scores"),
        (
            {"scores": np.full(SIZE, np.nan, np.float32)},
            "scores that are no numbers",
        ),
        ({"tokens": ["a"] * SIZE}, "both read 'a'|kind 6"),
        ({"token_type": np.full(SIZE, 1, np.int32)}, "tokens for 0 bytes of 256"),
        ({"bos_token_id": 9_999}, "bos_id=9999"),
    ],
)
def test_damaged_sentencepiece_metadata_are_refused(changes, message):
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_gguf(spm(WORDS, **changes))


def test_a_token_of_a_thousand_characters_is_refused():
    metadata = spm(WORDS)
    metadata["tokenizer.ggml.tokens"][-1] = "a" * 1_000
    with pytest.raises(ModelError, match="1,000 characters, at most 512"):
        Tokenizer.from_gguf(metadata)


def byte_tokenizer(pre: str, **more: Any) -> Tokenizer:
    tokens, kinds = tiny_vocabulary()
    tokens = [*tokens, "Ġhello"]  # a token that no merge makes
    return Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": np.array([*kinds, NORMAL], np.int32),
            "tokenizer.ggml.merges": list(MERGES),
            "tokenizer.ggml.bos_token_id": 1,
        }
        | more
    )


@pytest.mark.parametrize(
    ("pre", "add_bos"),
    [
        *(("gpt-2", False), ("smollm", False), ("qwen2", False), ("deepseek-r1-qwen", False)),
        *(("llama-bpe", True), ("llama3", True), ("tekken", True)),
        *(("deepseek-v3", False), ("gpt-4o", False)),
    ],
)
def test_families_begin_prompts_as_they_were_trained(pre, add_bos):
    assert byte_tokenizer(pre).add_bos == add_bos
    assert not byte_tokenizer(pre, **{"tokenizer.ggml.add_bos_token": False}).add_bos
    assert byte_tokenizer(pre, **{"tokenizer.ggml.add_bos_token": True}).add_bos


def test_qwen_text_is_composed_first():
    qwen, llama = byte_tokenizer("qwen2"), byte_tokenizer("llama-bpe")
    assert qwen.encode("e\u0301") == qwen.encode("é") == llama.encode("é")
    assert llama.encode("e\u0301") != llama.encode("é")


def test_a_piece_that_is_a_token_is_one_where_the_family_says_so():
    whole = len(tiny_vocabulary()[0])
    assert byte_tokenizer("llama-bpe").encode(" hello") == [whole]
    assert whole not in byte_tokenizer("qwen2").encode(" hello")
