"""Text to token ids and back; control tokens are reached by id alone, never by spelling."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lmlang.errors import ModelError, ProgramError, ProgramTypeError, quote
from lmlang.runtime.boundaries import SPACE
from lmlang.runtime.tokenizer_gguf import byte_level_parts, gguf_parts
from lmlang.runtime.tokenizer_json import folder_parts
from lmlang.runtime.tokenizer_parts import (
    CONTROL,
    NEVER_TEXT,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    TokenizerParts,
)

__all__ = ["CONTROL", "NORMAL", "UNUSED", "USER_DEFINED", "Tokenizer"]

END_SPELLINGS = frozenset(
    {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"}
    | {"<|end|>", "<end_of_turn>", "<eos>", "</s>", "<｜end▁of▁sentence｜>"}
)
"""Control tokens that end an output in the models known to us."""
PIECE = 1 << 14
"""Characters that are encoded at once: long texts are faster in pieces, where they can be cut."""
SHORT = 1 << 10
"""Characters up to which it is faster to hold other threads up than to let them run."""


class Tokenizer:
    """A BPE tokenizer, byte-level or sentencepiece's. Immutable and thread-safe.

    In a byte-level vocabulary a byte that it has no token for is left out, as the reference does:
    SmolLM's lacks a few control characters and bytes of planes that Unicode has not assigned.

    Args:
        tokens: Spelling of every id, in GPT-2's byte alphabet; control tokens as they read.
        merges: ``"left right"``, the first merged first.
        kinds: Kind of every token (``tokenizer.ggml.token_type``); None: all are normal.
        pre: Name of the pre-tokeniser, as GGUF files have it (``"smollm"``, ``"qwen2"``, …).
        bos_id: The token that begins a text, if there is one.
        eos_id: The token that ends an output, if there is one.
        add_bos: Whether a prompt begins with ``bos_id``.

    Attributes:
        vocab_size: Number of ids.
        token_bytes: The bytes of every id; ``b""`` for control tokens.
        control_ids: Ids that no plain text gives.
        stop_ids: Tokens that end an output.

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
        parts = byte_level_parts(tokens, merges, kinds, pre)
        self._take(replace(parts, bos_id=bos_id, eos_id=eos_id, add_bos=add_bos))

    @classmethod
    def from_parts(cls, parts: TokenizerParts) -> Tokenizer:
        """The tokenizer of these parts."""
        made = cls.__new__(cls)
        made._take(parts)
        return made

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer that a GGUF file's metadata describes.

        Raises:
            ModelError: It is of another family than byte-level or sentencepiece's BPE, or
                something is missing or damaged.
        """
        return cls.from_parts(gguf_parts(metadata))

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> Tokenizer:
        """The tokenizer of a model folder: its ``tokenizer.json`` and the files beside it.

        Raises:
            ModelError: There is none, it is damaged, or it holds what cannot be honoured.
        """
        return cls.from_parts(folder_parts(Path(folder)))

    def fitted(self, vocab: int) -> Tokenizer:
        """The same tokenizer for a model of ``vocab`` ids: padded with ids that no text gives.

        Raises:
            ModelError: The model lacks an id that text can give.
        """
        parts = self._parts
        size = len(parts.tokens)
        if vocab == size:
            return self
        beyond = [i for i in range(vocab, size) if parts.kinds[i] not in NEVER_TEXT]
        if beyond:
            raise ModelError(
                f"the tokenizer has {size:,} tokens, {quote(parts.tokens[beyond[0]])} the first "
                f"beyond the {vocab:,} of the model: they belong to different models."
            )
        more = max(0, vocab - size)
        bos, eos = (
            known if known is not None and known < vocab else None
            for known in (parts.bos_id, parts.eos_id)
        )
        return self.from_parts(
            replace(
                parts,
                tokens=[*parts.tokens[:vocab], *[""] * more],
                kinds=[*parts.kinds[:vocab], *[UNUSED] * more],
                token_bytes=(*parts.token_bytes[:vocab], *[b""] * more),
                bos_id=bos,
                eos_id=eos,
                ends=frozenset(end for end in parts.ends if end < vocab),
            )
        )

    def _take(self, parts: TokenizerParts) -> None:
        self._parts = parts
        self._encoder = parts.encoder
        self.vocab_size = len(parts.tokens)
        self.bos_id = parts.bos_id
        self.eos_id = parts.eos_id
        self.add_bos = parts.add_bos and parts.bos_id is not None
        self.token_bytes = parts.token_bytes
        self.control_ids = frozenset(i for i, kind in enumerate(parts.kinds) if kind in NEVER_TEXT)
        self._controls = {parts.tokens[i]: i for i in self.control_ids if parts.tokens[i]}
        self._spellings = {i: token for token, i in self._controls.items()}
        named = {i for token, i in self._controls.items() if token in END_SPELLINGS}
        own = parts.ends if parts.eos_id is None else parts.ends | {parts.eos_id}
        self.stop_ids = frozenset(named | own)
        self._control_pattern = _any_of(self._controls)
        self._defined_pattern = _any_of(parts.defined)

    def encode(self, text: str, *, at_start: bool = False) -> list[int]:
        """Token ids of plain text; what spells a control token is ordinary characters.

        Args:
            text: Any text.
            at_start: Whether it begins a prompt; sentencepiece models then write a space first.

        Raises:
            ProgramError: The text holds a lone surrogate, which has no UTF-8 form.
        """
        prefix = self._parts.prefix
        try:
            if (
                at_start
                and prefix is not None
                and text
                and (prefix.doubled or text[0] not in (" ", SPACE))
                and not self._defined_pattern.match(text)
            ):
                text = " " + text
            ids: list[int] = []
            for piece in self._pieces(text):
                if len(piece) > SHORT:  # in a batch, even of one, other threads run meanwhile
                    (found,) = self._encoder.encode_batch_fast([piece], add_special_tokens=False)
                else:
                    found = self._encoder.encode(piece, add_special_tokens=False)
                ids += found.ids
            return ids
        except (TypeError, UnicodeEncodeError):
            raise _no_text(text) from None

    def _pieces(self, text: str) -> Iterator[str]:
        """A text in pieces that are encoded apart, about `PIECE` characters each where it can."""
        start, size = 0, PIECE
        while len(text) - start > size:
            at = self._parts.boundaries.last(text[start : start + size])
            if at:
                yield text[start : start + at]
            start, size = start + at, PIECE if at else 2 * size
        yield text[start:]

    def encode_stable(self, text: str, *, at_start: bool = False) -> tuple[list[int], int]:
        """The beginning of ``encode(text)`` that no text appended later can change.

        Returns:
            ``ids, characters``: if there are any, for every ``more``
            ``encode(text + more) == ids + encode(text[characters:] + more)``, where the first
            two begin a prompt if ``at_start``, and the third does not.
        """
        at = self.stable_end(text)
        return (self.encode(text[:at], at_start=at_start), at) if at else ([], 0)

    def stable_end(self, text: str) -> int:
        """The ``characters`` of `encode_stable` alone: the last place to cut, 0 for none."""
        return self._parts.boundaries.last(text)

    def may_start_behind(self, ids: Sequence[int]) -> bool:
        """Whether text behind these first ids of a prompt begins it, for ``at_start``."""
        if not ids:
            return True
        prefix = self._parts.prefix
        return prefix is not None and prefix.after_bos and list(ids) == [self.bos_id]

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

    def whole(self, text: str) -> int | None:
        """The token, of control or not, that is this text; None where it takes several."""
        parts = self.split_control(text)
        ids = self.encode(text) if isinstance(parts[0], str) else parts
        return ids[0] if len(ids) == 1 and isinstance(ids[0], int) else None


def _any_of(spellings: Iterable[str]) -> re.Pattern[str]:
    """Matches each of these, the longer of two."""
    longest_first = sorted(spellings, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _no_text(text: object) -> ProgramError:
    if not isinstance(text, str):
        return ProgramTypeError(f"only text can be encoded, not {type(text).__name__}: give a str.")
    at = next(i for i, character in enumerate(text) if "\ud800" <= character <= "\udfff")
    return ProgramError(
        f"the text has a lone surrogate, {text[at]!r}, at character {at:,}: it is no Unicode "
        "text; decode its source with the right encoding."
    )
