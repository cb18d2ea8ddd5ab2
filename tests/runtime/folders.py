"""Model folders as Hugging Face lays them out, made here: tokenizers of both families, a Llama."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmlang.runtime.pretokens import KNOWN, Split, Words
from tests.tiny import MERGES, tiny_vocabulary

MORE_MERGES = (*MERGES, "1 2", "Ċ Ċ", "Ġ h", "Ì ģ", ", Ċ")
SPECIAL = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
PIECES = [
    *("▁", "▁▁", "▁a", "▁ab", "ab", "a", "b", "aa", "aaa", "▁h", "he", "▁he", "h", "e", "l", "ll"),
    *("o", "llo", "hello", "▁hello", ".", ",", "\n", "\n\n", "x▁y", "x", "y", "▁y", "x▁", "é", "t"),
    *("th", "the", "▁the", "▁t", "us", "er", "user", "u", "s", "r", "</", "s>", "</s>", "<", ">"),
]


def added(content: str, index: int, *, special: bool = True, **changes: Any) -> dict[str, Any]:
    return {"id": index, "content": content, "special": special, **SPECIAL, **changes}


def split(pattern: str) -> dict[str, Any]:
    behavior = {"behavior": "Isolated", "invert": False}
    return {"type": "Split", "pattern": {"Regex": pattern}, **behavior}


def steps(name: str) -> dict[str, Any]:
    """The pre-tokeniser of a known family as tokenizer.json has it."""
    found: list[dict[str, Any]] = []
    for step in KNOWN[name]:
        if isinstance(step, Split):
            found.append(split(step.pattern))
        elif not isinstance(step, Words):
            found.append({"type": "Digits", "individual_digits": True})
    words = Words() in KNOWN[name]
    found.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": words})  # fmt: skip
    return {"type": "Sequence", "pretokenizers": found}


def byte_level_json(
    name: str = "llama-bpe", *, defined: Sequence[str] = (), **changes: Any
) -> dict[str, Any]:
    """A byte-level tokenizer.json; the three control tokens are added ones, outside the model."""
    tokens = tiny_vocabulary()[0]
    base = [*tokens[3:], *(m.replace(" ", "") for m in MORE_MERGES[len(MERGES) :]), "Ġhello"]
    first = len(base)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            *(added(token, first + i) for i, token in enumerate(tokens[:3])),
            *(added(token, first + 3 + i, special=False) for i, token in enumerate(defined)),
        ],
        "normalizer": {"type": "NFC"} if name == "qwen2" else None,
        "pre_tokenizer": steps(name),
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False,
                           "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": name in ("llama-bpe", "tekken"),
            "vocab": {token: i for i, token in enumerate(base)}, "merges": list(MORE_MERGES),
        },
    } | changes  # fmt: skip


METASPACE = {"type": "Metaspace", "replacement": "▁", "split": False}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
STYLES: dict[str, dict[str, Any]] = {
    "prepend": {
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, REPLACE]}, "pre_tokenizer": None},
    "gemma": {"normalizer": REPLACE, "pre_tokenizer": {
        "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
        "invert": False}},
    "first": {"normalizer": None, "pre_tokenizer": METASPACE | {"prepend_scheme": "first"}},
    "always": {"normalizer": None, "pre_tokenizer": METASPACE | {"prepend_scheme": "always"}},
    "never": {"normalizer": None, "pre_tokenizer": METASPACE | {"prepend_scheme": "never"}},
    "words": {"normalizer": None, "pre_tokenizer": METASPACE | {
        "prepend_scheme": "first", "split": True}},
}  # fmt: skip
"""Ways in which sentencepiece's spaces are written in tokenizer.json."""


def sentencepiece_json(
    style: str = "prepend", *, defined: Sequence[str] = (), **changes: Any
) -> dict[str, Any]:
    """A tokenizer.json over characters with a token for every byte."""
    controls = ["<unk>", "<s>", "</s>"]
    vocab = [*controls, *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab += [piece for piece in PIECES if piece not in vocab]
    ids = {token: index for index, token in enumerate(vocab)}
    merges = [
        [piece[:at], piece[at:]]
        for piece in PIECES
        for at in range(1, len(piece))
        if piece[:at] in ids and piece[at:] in ids
    ]
    template = [
        {"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            *(added(token, i) for i, token in enumerate(controls)),
            *(added(token, ids.get(token, len(vocab) + i), special=False)
              for i, token in enumerate(defined)),
        ],
        "post_processor": {
            "type": "TemplateProcessing", "single": template, "pair": template,
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": True,
            "continuing_subword_prefix": None, "end_of_word_suffix": None, "byte_fallback": True,
            "vocab": ids, "merges": merges,
        },
    } | STYLES[style] | changes  # fmt: skip


def write(folder: Path, source: dict[str, Any], **files: dict[str, Any]) -> Path:
    """A folder with this tokenizer.json, and further files by the names of their stems."""
    folder.mkdir(parents=True, exist_ok=True)
    for stem, content in {"tokenizer": source, **files}.items():
        (folder / f"{stem}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder
