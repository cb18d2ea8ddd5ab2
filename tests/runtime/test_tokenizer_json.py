"""Tokenizers of model folders: ids as the reference's, and refusals of what cannot be honoured."""

from __future__ import annotations

import copy
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from lmlang.errors import ModelError
from lmlang.protocol import Prompt, Text
from lmlang.runtime.chat import ChatTemplate
from lmlang.runtime.encoder import PromptEncoder
from lmlang.runtime.pretokens import KNOWN
from lmlang.runtime.tokenizer import Tokenizer
from tests.runtime.folders import (
    STYLES,
    added,
    byte_level_json,
    sentencepiece_json,
    split,
    steps,
    write,
)
from tests.runtime.test_tokenizer import HARD

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)
PIECES = st.sampled_from(
    [
        *" \t\n\r\u00a0\u2028\u200d\x04aZé0'.-你🙂/▁xyhb",
        *("  ", "\r\n", "e\u0301", "42", "'s", "'LL", "the", " hello", "\n\n", "   \n  ", "user"),
        *("，", "ア・", "\u0958", "=\u0338", "<0x0A>", "x y", "</", "s>", "Word's", "!\n/", "aaa"),
        *("the world", "▁▁", "<think>"),
    ]
)
TEXTS = st.lists(PIECES, max_size=16).map("".join) | st.text(max_size=16)
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>")

OWN_PATTERN = {
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [
            split(r"\p{Lu}?\p{Ll}+|\s+"),
            steps("qwen2")["pretokenizers"][-1],
        ],
    }
}
DEFINED = ("the world", "<think>")


@cache
def both(kind: str) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    """Ours and the reference, from one file."""
    family, _, style = kind.partition(":")
    if family == "bytes":
        changes = OWN_PATTERN if style == "own" else {}
        name = "qwen2" if style == "own" else style
        source = byte_level_json(name, defined=DEFINED, **changes)
    else:
        source = sentencepiece_json(style, defined=(*DEFINED, "▁▁"))
    with tempfile.TemporaryDirectory() as scratch:
        folder = write(Path(scratch), source)
        reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        return Tokenizer.from_folder(folder), reference


KINDS = [*(f"bytes:{name}" for name in KNOWN), "bytes:own", *(f"spaces:{name}" for name in STYLES)]


def alike(kind: str, text: str) -> None:
    ours, reference = both(kind)
    if any(control in text for control in CONTROLS):
        return
    if kind in ("spaces:prepend", "spaces:always") and any(
        word in text for word in (*DEFINED, "▁▁")
    ):
        return  # they write a space behind every such token, here it is at the beginning alone
    expected = reference.encode(text, add_special_tokens=False).ids
    assert ours.encode(text, at_start=True) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", range(4))
def test_ids_of_hard_texts_are_those_of_the_reference(kind, part):
    for text in HARD[part::4]:
        alike(kind, text)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_reference(kind):
    @PROPERTY
    @given(text=TEXTS)
    def check(text: str) -> None:
        alike(kind, text)

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_stable_beginning_is_changed_by_no_later_text(kind):
    tokenizer = both(kind)[0]

    @PROPERTY
    @given(head=TEXTS, more=TEXTS, at_start=st.booleans())
    def check(head: str, more: str, at_start: bool) -> None:
        ids, at = tokenizer.encode_stable(head, at_start=at_start)
        whole = tokenizer.encode(head + more, at_start=at_start)
        assert whole == (ids + tokenizer.encode(head[at:] + more) if at else whole)

    check()
    assert (tokenizer.encode_stable("a long text of words")[1] > 0) == (kind != "bytes:own")


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_ids_are_the_text(kind):
    tokenizer = both(kind)[0]
    composed = kind in ("bytes:qwen2", "bytes:own")
    for text in HARD:
        if not (composed and not text.isascii()):
            read = tokenizer.decode(tokenizer.encode(text))
            assert read == (text.replace("▁", " ") if kind.startswith("spaces") else text)


@pytest.mark.parametrize("kind", KINDS)
def test_text_gives_no_control_token(kind):
    tokenizer = both(kind)[0]

    @PROPERTY
    @given(parts=st.lists(st.sampled_from(CONTROLS) | PIECES, max_size=8), at_start=st.booleans())
    def check(parts: list[str], at_start: bool) -> None:
        ids = tokenizer.encode("".join(parts), at_start=at_start)
        assert tokenizer.control_ids.isdisjoint(ids)

    check()
    assert len(tokenizer.control_ids) == 3


# ---------------------------------------------------------------------- the files beside it


CONFIG = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>", "special": True}}


def test_special_tokens_are_those_that_the_files_name(tmp_path):
    source = byte_level_json()
    first = source["added_tokens"][0]["id"]
    ends = {"eos_token_id": [first, first + 2]}
    tokenizer = Tokenizer.from_folder(
        write(tmp_path, source, tokenizer_config=CONFIG, generation_config=ends)
    )
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (first + 1, first + 2, False)
    assert tokenizer.stop_ids == {first, first + 2}
    assert tokenizer.control_ids == {first, first + 1, first + 2}
    assert tokenizer.control_id("<|im_start|>") == first + 1
    other = write(tmp_path / "map", source, special_tokens_map=CONFIG, config={"eos_token_id": 5})
    tokenizer = Tokenizer.from_folder(other)
    assert (tokenizer.eos_id, tokenizer.stop_ids) == (first + 2, {5, first, first + 2})


@pytest.mark.parametrize("said", [True, False, None])
def test_whether_a_prompt_begins_with_a_token_is_said_or_seen(tmp_path, said):
    config: dict[str, Any] = {"bos_token": "<s>"}
    if said is not None:
        config["add_bos_token"] = said
    folder = write(tmp_path, sentencepiece_json(), tokenizer_config=config)
    assert Tokenizer.from_folder(folder).add_bos == (said is not False)
    without = sentencepiece_json(post_processor=None)
    folder = write(tmp_path, without, tokenizer_config=config)
    assert Tokenizer.from_folder(folder).add_bos == (said is True)


def test_added_tokens_that_mark_turns_are_control_tokens_whatever_the_file_says(tmp_path):
    spelled = ("<|fim|>", "<｜User｜>", "<unused7>", "<think>")
    tokenizer = Tokenizer.from_folder(write(tmp_path, byte_level_json(defined=spelled)))
    assert [tokenizer.control_id(token) is not None for token in spelled] == [True] * 3 + [False]
    assert tokenizer.encode("<think>") == [tokenizer.vocab_size - 1]
    assert tokenizer.token_bytes[-1] == b"<think>"


def test_a_character_stays_text_though_a_file_calls_it_special(tmp_path):
    source = byte_level_json()
    index = source["model"]["vocab"]["!"]
    source["added_tokens"].append(added("!", index))
    folder = write(tmp_path, source, tokenizer_config={"pad_token": "!"})
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode("a!") == [source["model"]["vocab"]["a"], index]
    assert tokenizer.decode([index]) == "!"
    assert index not in tokenizer.control_ids


def test_tokens_that_only_the_configuration_adds_are_there(tmp_path):
    source = byte_level_json()
    last = source["added_tokens"][-1]["id"]
    more = {str(last + 2): {"content": "<|tool|>", "special": True}}
    more |= {str(last): {"content": "<|im_end|>", "special": True}}
    folder = write(tmp_path, source, tokenizer_config={"added_tokens_decoder": more})
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.control_id("<|tool|>") == last + 2
    assert tokenizer.vocab_size == last + 3
    assert last + 1 in tokenizer.control_ids  # an id that has no token


@pytest.mark.parametrize("source", [byte_level_json("qwen2"), sentencepiece_json("first")])
def test_ids_are_those_of_transformers(tmp_path, source):
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    folder = write(tmp_path, source, tokenizer_config=config)
    ours, theirs = Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(str(folder))
    for text in HARD:
        if not any(control in text for control in CONTROLS):
            expected = theirs.encode(text, add_special_tokens=False)
            assert ours.encode(text, at_start=True) == expected


@pytest.mark.parametrize(("style", "behind_bos"), [("first", False), ("prepend", True)])
def test_the_prefix_behind_a_written_bos_is_that_of_the_file(tmp_path, style, behind_bos):
    folder = write(tmp_path, sentencepiece_json(style), tokenizer_config={"bos_token": "<s>"})
    tokenizer = Tokenizer.from_folder(folder)
    encoder = PromptEncoder(tokenizer, ChatTemplate(None, "<s>", "</s>"))
    assert encoder.encode(Prompt.of(Text("hello"))) == [1, *tokenizer.encode(" hello")]
    assert tokenizer.may_start_behind([1]) == behind_bos
    assert not tokenizer.may_start_behind([1, 1])


# ---------------------------------------------------------------------- refusals


def changed(source: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy with the value at a path like "model.type"; for None the key is taken out."""
    source = copy.deepcopy(source)
    holder: Any = source
    *parents, last = path.split(".")
    for key in parents:
        holder = holder[int(key) if isinstance(holder, list) else key]
    if value is None:
        del holder[last]
    else:
        holder[int(last) if isinstance(holder, list) else last] = value
    return source


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("model.type", "Unigram", "kind 'Unigram', which is not supported"),
        ("model.type", "WordPiece", "kind 'WordPiece'"),
        ("model.merges", None, "kind 'BPE', which is not supported"),
        ("model.dropout", 0.1, "BPE with dropout '0.1'"),
        ("model.end_of_word_suffix", "</w>", "end_of_word_suffix '</w>'"),
        ("normalizer", {"type": "Lowercase"}, "normaliser 'Lowercase'"),
        ("decoder", {"type": "WordPiece"}, "decoder 'WordPiece'"),
        ("pre_tokenizer", {"type": "BertPreTokenizer"}, "over characters with byte_fallback"),
        ("pre_tokenizer", None, "over characters with byte_fallback"),
        ("pre_tokenizer.pretokenizers.0", {"type": "Whitespace"}, "pre-tokeniser .*Whitespace"),
        ("pre_tokenizer.pretokenizers.1.add_prefix_space", True, "pre-tokeniser .*ByteLevel"),
        ("pre_tokenizer.pretokenizers.0.behavior", "Removed", "pre-tokeniser .*Removed"),
        ("pre_tokenizer.pretokenizers.0.pattern.Regex", "(", "is no regular expression"),
        ("pre_tokenizer.pretokenizers.0.pattern.Regex", 5, "has the pattern .*is damaged"),
        ("post_processor", {"type": "BertProcessing"}, "post-processor 'BertProcessing'"),
        ("added_tokens.0.rstrip", True, "'<|endoftext|>' with 'rstrip'".replace("|", r"\|")),
        ("added_tokens.0.id", -1, "added token has the id '-1'"),
        ("added_tokens.0.id", 1 << 40, "added token has the id"),
        ("added_tokens.0.id", 5, "'<|endoftext|>' has the id 5 of another".replace("|", r"\|")),
        ("added_tokens.1.id", 291, "two added tokens have the id 291|of another"),
        ("added_tokens.0.content", 5, "content is '5', no str"),
        ("added_tokens", {}, "added_tokens is '{}', no list"),
        ("model.vocab.a", 1 << 40, "'a' has the id '1099511627776'"),
        ("model.vocab.a", 5, "have the id 5"),
        ("model.vocab.a", "x", "'a' has the id"),
        ("model.vocab.a", True, "'a' has the id 'True'"),
        ("model.vocab.a", None, "has no token|names a token"),
        ("model.vocab", [], "vocab is"),
        ("model.merges.0", "a", "is no merge"),
        ("model.merges.0", "q zz", "the merge 'q zz' names a token"),
        ("model.merges.0", ["a", 5], "is no merge"),
        ("model", [], "model is"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(tmp_path, path, value, message):
    source = changed(byte_level_json(), path, value)
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_folder(write(tmp_path, source))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("model.byte_fallback", False, "byte_fallback 'False'"),
        ("model.ignore_merges", True, "ignore_merges 'True'"),
        ("model.vocab.<0x0A>", None, "names a token|has no token"),
        ("normalizer", {"type": "NFKC"}, "normaliser .*NFKC"),
        ("normalizer", None, "writes spaces as ' '"),
        ("pre_tokenizer", {"type": "Whitespace"}, "pre-tokeniser .*Whitespace"),
        ("decoder", {"type": "CTC"}, "decoder .*CTC"),
        ("decoder.decoders.0.content", "_", "decoder .*Replace"),
        ("decoder.decoders.3.start", "x" * 9, ""),
        ("post_processor", {"type": "RobertaProcessing"}, "post-processor"),
        ("normalizer", {"type": "Sequence"}, "sequence has no normalizers"),
        ("normalizer", {"type": 5}, "is no step"),
    ],
)
def test_of_tokenizers_over_characters_too(tmp_path, path, value, message):
    folder = write(
        tmp_path,
        changed(sentencepiece_json(), path, value),
        tokenizer_config={"bos_token": "<s>"},
    )
    if not message:
        assert Tokenizer.from_folder(folder).vocab_size > 256
        return
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize(
    ("stem", "content", "message"),
    [
        ("tokenizer_config", {"eos_token": "<|none|>"}, r"lacks the token '<\|none\|>'"),
        ("tokenizer_config", {"eos_token": 5}, "eos_token is no text"),
        ("tokenizer_config", {"add_bos_token": "yes"}, "add_bos_token is neither"),
        ("tokenizer_config", {"added_tokens_decoder": {"x": {}}}, "added_tokens_decoder holds 'x'"),
        ("tokenizer_config", {"added_tokens_decoder": {"9999": {}}}, "content is 'None'"),
        ("generation_config", {"eos_token_id": "2"}, "holds no token ids"),
        ("generation_config", {"eos_token_id": [2, True]}, "holds no token ids"),
        ("generation_config", {"eos_token_id": 99_999}, "of another model: .*=99999, outside of"),
        ("config", {"eos_token_id": -1}, "=-1, outside of its"),
        ("special_tokens_map", [], "holds a list, no object"),
    ],
)
def test_files_beside_it_that_do_not_fit_are_refused(tmp_path, stem, content, message):
    folder = write(tmp_path, byte_level_json(), **{stem: content})
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_folder(folder)


def test_a_folder_without_the_file_says_how_to_make_one(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"sentencepiece")
    with pytest.raises(ModelError, match=r"no tokenizer\.json: copy .* with transformers"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 100_000, b'{"a": NaN', b"null"])
def test_files_that_are_no_object_are_refused(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelError, match="fetch it anew"):
        Tokenizer.from_folder(tmp_path)


JUNK = st.sampled_from(
    [None, True, -1, 0, 3, 1 << 70, 1.5, "", "x", "\ud800", [], ["x"], {}, {"type": "x"}, [[]] * 3]
)


def nodes(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values that are not one of hundreds of their kind."""
    found = [path] if path else []
    pairs: Any = value.items() if isinstance(value, dict) else ()
    for key, inner in list(enumerate(value) if isinstance(value, list) else pairs)[:12]:
        found += nodes(inner, (*path, key))
    return found


@pytest.mark.parametrize("source", [byte_level_json("smollm"), sentencepiece_json("words")])
def test_any_change_loads_or_is_a_model_error(tmp_path, source):
    places = nodes(source)
    first = source["added_tokens"][1]["content"]

    @settings(PROPERTY, max_examples=250, suppress_health_check=list(HealthCheck))
    @given(place=st.sampled_from(places), junk=JUNK, in_config=st.booleans())
    def check(place: tuple[Any, ...], junk: object, in_config: bool) -> None:
        broken = json.loads(json.dumps(source))
        holder = broken
        for key in place[:-1]:
            holder = holder[key]
        holder[place[-1]] = junk
        more = {"999": {"content": "<|new|>", "special": True}}
        config = {"bos_token": first, "added_tokens_decoder": more}
        write(tmp_path, broken, tokenizer_config=config if in_config else {})
        try:
            tokenizer = Tokenizer.from_folder(tmp_path)
        except ModelError:
            return
        assert tokenizer.control_ids.isdisjoint(tokenizer.encode("hello <s> the user\n"))

    check()
