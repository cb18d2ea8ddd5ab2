"""The tokenizer that a GGUF file's metadata describes.

Source: ``llama-vocab.cpp`` of the llama.cpp project; the merges of the "llama" family come from its
scores, as in sentencepiece: of all pairs that make a token the one of the highest score is merged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lmlang.errors import ModelError, quote
from lmlang.runtime.boundaries import SPACE
from lmlang.runtime.pretokens import BEGINS_WITH_BOS, COMPOSED, KNOWN, WHOLE_PIECES, pre_by_name
from lmlang.runtime.tokenizer_parts import (
    NORMAL,
    USER_DEFINED,
    Prefix,
    TokenizerParts,
    Vocabulary,
    byte_level,
    sentencepiece,
)

MAX_PIECE = 512
"""Characters of a sentencepiece token; every place in it is looked at as a merge."""


def byte_level_parts(
    tokens: Sequence[str], merges: Sequence[str], kinds: Sequence[int] | None, pre: str
) -> TokenizerParts:
    """A byte-level tokenizer as GGUF files write it.

    Args:
        tokens: Spelling of every id.
        merges: ``"left right"``, the first merged first.
        kinds: Kind of every token; None: all are normal.
        pre: Name of the pre-tokeniser.

    Raises:
        ModelError: The parts do not fit one another, or the pre-tokeniser is not known.
    """
    name = pre_by_name(pre)
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    kinds = [NORMAL] * len(tokens) if kinds is None else kinds
    return byte_level(
        Vocabulary(tokens, kinds, pairs),
        KNOWN[name],
        composed=name in COMPOSED,
        whole_pieces=name in WHOLE_PIECES,
    )


def gguf_parts(metadata: Mapping[str, Any]) -> TokenizerParts:
    """The parts of the tokenizer of a GGUF file.

    Raises:
        ModelError: It is of a family that is not known, or something is missing or damaged.
    """
    family = metadata.get("tokenizer.ggml.model")
    kinds = _kinds(metadata)
    if family == "gpt2":
        pre = str(metadata.get("tokenizer.ggml.pre"))
        tokens = _strings(metadata, "tokens")
        parts = byte_level_parts(tokens, _strings(metadata, "merges"), kinds, pre)
        begins = pre_by_name(pre) in BEGINS_WITH_BOS
    elif family == "llama":
        parts = _by_scores(metadata, kinds)
        begins = True
    else:
        raise ModelError(
            f"the file's tokenizer is {quote(str(family))}, and only 'gpt2' (byte-level BPE) and "
            "'llama' (sentencepiece BPE) are known: this model cannot be run."
        )
    ids = {name: _id(metadata, name) for name in ("bos", "eos", "eot", "eom")}
    return replace(
        parts,
        bos_id=ids["bos"],
        eos_id=ids["eos"],
        add_bos=_flag(metadata, "add_bos_token", begins),
        ends=frozenset(end for end in (ids["eot"], ids["eom"]) if end is not None),
    )


def _by_scores(metadata: Mapping[str, Any], kinds: list[int] | None) -> TokenizerParts:
    tokens = _strings(metadata, "tokens")
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, np.ndarray) or scores.dtype.kind != "f" or kinds is None:
        raise ModelError(
            "the file lacks the scores or the kinds of its tokens: it is incomplete, fetch it anew."
        )
    if len(scores) != len(tokens) or len(kinds) != len(tokens) or np.isnan(scores).any():
        raise ModelError(
            f"the file has {len(tokens):,} tokens, {len(scores):,} scores and {len(kinds):,} "
            "kinds, or scores that are no numbers: it is damaged."
        )
    # what is matched in text before anything else is compared with the text as it is
    spelled = [
        token.replace(SPACE, " ") if kind == USER_DEFINED else token
        for token, kind in zip(tokens, kinds, strict=True)
    ]
    merges = _merges_by_score(spelled, kinds, scores.tolist())
    prefix = Prefix() if _flag(metadata, "add_space_prefix", True) else None
    return sentencepiece(Vocabulary(spelled, kinds, merges), prefix=prefix)


def _merges_by_score(
    tokens: Sequence[str], kinds: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """All pairs of tokens that make a token, the token of the highest score first."""
    ids = {token: i for i, token in enumerate(tokens) if kinds[i] == NORMAL}
    found: list[tuple[str, str]] = []
    for token in sorted(ids, key=lambda token: -scores[ids[token]]):  # stable: by id among equals
        if len(token) > MAX_PIECE:
            raise ModelError(
                f"the token {quote(token)} has {len(token):,} characters, at most {MAX_PIECE} are "
                "allowed: the file is damaged."
            )
        pairs = [
            (token[:at], token[at:])
            for at in range(1, len(token))
            if token[:at] in ids and token[at:] in ids
        ]
        if len(pairs) > 1:
            pairs.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        found += pairs
    return found


def _strings(metadata: Mapping[str, Any], name: str) -> list[str]:
    found = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(found, list):
        raise ModelError(
            f"the file lacks 'tokenizer.ggml.{name}': it is incomplete, fetch it anew."
        )
    return found


def _kinds(metadata: Mapping[str, Any]) -> list[int] | None:
    kinds = metadata.get("tokenizer.ggml.token_type")
    if kinds is None:
        return None
    if not isinstance(kinds, np.ndarray) or kinds.dtype.kind not in "iu":
        raise ModelError("the file's token kinds are no whole numbers: it is damaged.")
    found: list[int] = kinds.tolist()
    return found


def _id(metadata: Mapping[str, Any], name: str) -> int | None:
    found = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if found is not None and type(found) is not int:
        raise ModelError(f"the file's {name}_token_id is no whole number: it is damaged.")
    return found


def _flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.{name}")
    return value if isinstance(value, bool) else default
