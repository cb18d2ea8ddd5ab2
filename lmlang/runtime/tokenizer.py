"""Text to token ids and back; control tokens are reached by id alone, never by spelling."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from lmlang.errors import ModelError, ProgramError, ProgramTypeError, quote

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Values of ``tokenizer.ggml.token_type``."""

END_SPELLINGS = frozenset(
    {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"}
    | {"<|end|>", "<end_of_turn>", "</s>"}
)
"""Control tokens that end an output in the models known to us."""

LOOK_AHEAD = 8
"""Characters that a pre-tokeniser may look past a pre-token's end.

GPT-2's pattern looks at two (white space before a word); contractions take three.
"""


def _by_pre(pre: str) -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre == "gpt-2":
        return words
    if pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, words])
    raise ModelError(
        f"the file's pre-tokeniser is {quote(pre)}, and only 'smollm' and 'gpt-2' are known: "
        "another would cut text wrongly, so this model cannot be run."
    )


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins of the 256 bytes: character to byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


class Tokenizer:
    """A byte-level BPE tokenizer. Immutable and thread-safe.

    A byte that the vocabulary has no token for is left out, as the reference does: SmolLM's lacks
    a few control characters and bytes of planes that Unicode has not assigned.

    Args:
        tokens: Spelling of every id, in GPT-2's byte alphabet; control tokens as they read.
        merges: ``"left right"``, the first merged first.
        kinds: Kind of every token (``tokenizer.ggml.token_type``); None: all are normal.
        pre: Name of the pre-tokeniser: ``"smollm"`` or ``"gpt-2"``.
        bos_id: The token that begins a text, if there is one.
        eos_id: The token that ends an output, if there is one.
        add_bos: Whether a prompt begins with ``bos_id``.

    Attributes:
        vocab_size: Number of ids.
        token_bytes: The bytes of every id; ``b""`` for control tokens.
        control_ids: Ids that no plain text gives.
        stop_ids: Control tokens that end an output.

    Raises:
        ModelError: The parts do not fit one another.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        merges: Sequence[str],
        *,
        kinds: Sequence[int] | None = None,
        pre: str = "smollm",
        bos_id: int | None = None,
        eos_id: int | None = None,
        add_bos: bool = False,
    ) -> None:
        kinds = [NORMAL] * len(tokens) if kinds is None else list(kinds)
        ids = {token: index for index, token in enumerate(tokens)}
        if len(ids) != len(tokens) or len(kinds) != len(tokens):
            raise ModelError(
                f"the vocabulary has {len(tokens):,} tokens, {len(ids):,} of them distinct, and "
                f"{len(kinds):,} kinds: the three must be equal. The file is damaged."
            )
        for name, known in (("bos_id", bos_id), ("eos_id", eos_id)):
            if known is not None and not 0 <= known < len(tokens):
                raise ModelError(
                    f"the file says {name}={known}, outside of its {len(tokens):,} tokens: it is "
                    "damaged."
                )
        self.vocab_size = len(tokens)
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.add_bos = add_bos and bos_id is not None
        control = (CONTROL, UNKNOWN, UNUSED)
        self._controls = {t: i for i, t in enumerate(tokens) if kinds[i] in control and t}
        self._spellings = {i: t for t, i in self._controls.items()}
        self.control_ids = frozenset(i for i, kind in enumerate(kinds) if kind in control)
        ends = {i for token, i in self._controls.items() if token in END_SPELLINGS}
        self.stop_ids = frozenset(ends if eos_id is None else ends | {eos_id})
        self.token_bytes = _token_bytes(tokens, kinds)
        longest_first = sorted(self._controls, key=len, reverse=True)
        self._control_pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._encoder = _encoder(ids, merges, pre)
        defined = [t for i, t in enumerate(tokens) if kinds[i] == USER_DEFINED]
        self._encoder.add_tokens(
            [tokenizers.AddedToken(t, normalized=False, special=False) for t in defined]
        )
        self._has_defined = bool(defined)
        self._look_ahead = LOOK_AHEAD + max(map(len, defined), default=0)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer that a GGUF file's metadata describes.

        Raises:
            ModelError: It is of another family than byte-level BPE, or something is missing.
        """
        family = metadata.get("tokenizer.ggml.model")
        if family != "gpt2":
            raise ModelError(
                f"the file's tokenizer is {quote(str(family))}, and only 'gpt2' (byte-level BPE) "
                "is known: this model cannot be run."
            )
        for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges"):
            if not isinstance(metadata.get(key), list):
                raise ModelError(f"the file lacks {key!r}: it is incomplete, fetch it anew.")
        kinds = metadata.get("tokenizer.ggml.token_type")
        if kinds is not None and (
            not isinstance(kinds, np.ndarray) or kinds.dtype.kind not in "iu"
        ):
            raise ModelError("the file's token kinds are no whole numbers: it is damaged.")
        numbers = {name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
        for name, number in numbers.items():
            if number is not None and type(number) is not int:
                raise ModelError(f"the file's {name}_token_id is no whole number: it is damaged.")
        return cls(
            metadata["tokenizer.ggml.tokens"],
            metadata["tokenizer.ggml.merges"],
            kinds=None if kinds is None else kinds.tolist(),
            pre=str(metadata.get("tokenizer.ggml.pre")),
            bos_id=numbers["bos"],
            eos_id=numbers["eos"],
            add_bos=metadata.get("tokenizer.ggml.add_bos_token") is True,
        )

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text; what spells a control token is ordinary characters.

        Raises:
            ProgramError: The text holds a lone surrogate, which has no UTF-8 form.
        """
        return list(self._encode(text).ids)

    def encode_stable(self, text: str) -> tuple[list[int], int]:
        """The beginning of ``encode(text)`` that no text appended later can change.

        Returns:
            ``ids, characters``: for every ``more``,
            ``encode(text + more) == ids + encode(text[characters:] + more)``.
        """
        if len(text) <= self._look_ahead:
            return [], 0
        encoding = self._encode(text)
        ids, words = encoding.ids, encoding.word_ids
        ends = self._word_ends(text, encoding)
        final = len(ids) if ends else 0
        while final and (
            ends[final - 1] > len(text) - self._look_ahead
            or words[final - 1] == (words[final] if final < len(ids) else words[-1])
        ):
            final -= 1
        return ids[:final], ends[final - 1] if final else 0

    def _word_ends(self, text: str, encoding: tokenizers.Encoding) -> list[int]:
        """For each token a character where it or its word ends; empty where none is known."""
        ids = encoding.ids
        if sum([len(self.token_bytes[index]) for index in ids]) == len(text.encode()):
            return [end for _, end in encoding.offsets]
        # bytes were left out, and the tokens' own offsets do not count those
        if self._has_defined:
            return []
        words = self._encoder.pre_tokenizer.pre_tokenize_str(text)
        return [words[word][1][1] for word in encoding.word_ids]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; control tokens give nothing, broken UTF-8 gives U+FFFD."""
        return b"".join([self.token_bytes[index] for index in ids]).decode("utf-8", "replace")

    def control_id(self, spelling: str) -> int | None:
        """The id of the control token that reads so, or None."""
        return self._controls.get(spelling)

    def spelling(self, control_id: int) -> str:
        """How a control token reads in template text; "" for other ids."""
        return self._spellings.get(control_id, "")

    def split_control(self, text: str) -> list[str | int]:
        """Template text as plain stretches and control ids; of two spellings the longer wins.

        Only text that a template wrote may come here, never a user's.
        """
        parts: list[str | int] = []
        at = 0
        for match in self._control_pattern.finditer(text):
            if match.start() > at:
                parts.append(text[at : match.start()])
            parts.append(self._controls[match.group()])
            at = match.end()
        if at < len(text):
            parts.append(text[at:])
        return parts

    def _encode(self, text: str) -> tokenizers.Encoding:
        try:
            return self._encoder.encode(text, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):
            raise _no_text(text) from None


def _no_text(text: object) -> ProgramError:
    if not isinstance(text, str):
        return ProgramTypeError(f"only text can be encoded, not {type(text).__name__}: give a str.")
    at = next(i for i, character in enumerate(text) if "\ud800" <= character <= "\udfff")
    return ProgramError(
        f"the text has a lone surrogate, {text[at]!r}, at character {at:,}: it is no Unicode "
        "text; decode its source with the right encoding."
    )


def _token_bytes(tokens: Sequence[str], kinds: Sequence[int]) -> tuple[bytes, ...]:
    alphabet = _byte_alphabet()
    found: list[bytes] = []
    for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind == NORMAL:
            try:
                found.append(bytes([alphabet[character] for character in token]))
            except KeyError:
                raise ModelError(
                    f"token {index} {quote(token)} is not written in the byte alphabet: the "
                    "vocabulary is damaged or not byte-level."
                ) from None
        elif kind == USER_DEFINED:
            found.append(token.encode("utf-8", "replace"))
        elif kind in (CONTROL, UNKNOWN, UNUSED):
            found.append(b"")
        else:
            raise ModelError(
                f"token {index} {quote(token)} is of the kind {kind}, which a byte-level "
                "vocabulary has not: the file is damaged or not supported."
            )
    return tuple(found)


def _encoder(ids: dict[str, int], merges: Sequence[str], pre: str) -> tokenizers.Tokenizer:
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise ModelError(
                f"the merge {quote(merge)} names a token that the vocabulary lacks: the file is "
                "damaged."
            )
        pairs.append((left, right))
    encoder = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=pairs))
    encoder.pre_tokenizer = _by_pre(pre)
    encoder.decoder = decoders.ByteLevel()
    return encoder
