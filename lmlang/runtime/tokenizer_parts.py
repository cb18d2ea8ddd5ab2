"""What a tokenizer is made of, from whatever file it came; the two families that are known.

byte-level     text -> pieces by pattern -> bytes in GPT-2's alphabet -> merges
sentencepiece  text, spaces as U+2581 -> characters, unknown ones as <0xNN> bytes -> merges
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from lmlang.errors import ModelError, quote
from lmlang.runtime.boundaries import (
    SPACE,
    Boundaries,
    NoBoundaries,
    PairBoundaries,
    WordBoundaries,
)
from lmlang.runtime.pretokens import Step, is_known, pre_tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Kinds of tokens, as ``tokenizer.ggml.token_type`` numbers them."""
NEVER_TEXT = frozenset({UNKNOWN, CONTROL, UNUSED})
"""Kinds that plain text never gives."""

MAX_TOKENS = 1 << 21
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True, slots=True)
class Prefix:
    """The space that sentencepiece models write before a text.

    Args:
        after_bos: Also where the token that begins a text stands before it.
        doubled: Also where the text begins with a space.
    """

    after_bos: bool = True
    doubled: bool = True


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """All tokens.

    Args:
        tokens: Spelling of every id; unused ids may spell anything.
        kinds: Kind of every id.
        merges: Pairs of spellings, the first merged first.
    """

    tokens: Sequence[str]
    kinds: Sequence[int]
    merges: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """What `Tokenizer` is made of.

    Args:
        tokens: Spelling of every id.
        kinds: Kind of every id.
        token_bytes: Bytes of every id; ``b""`` for those that are never text.
        encoder: Text to ids, without control tokens and without a prefix.
        boundaries: Where its text may be cut.
        defined: Spellings that are matched in text before anything else.
        prefix: What stands before a text, None for nothing.
        bos_id: The token that begins a text.
        eos_id: The token that ends an output.
        add_bos: Whether a prompt begins with ``bos_id``.
        ends: Further ids that end an output.
    """

    tokens: Sequence[str]
    kinds: Sequence[int]
    token_bytes: tuple[bytes, ...]
    encoder: tokenizers.Tokenizer
    boundaries: Boundaries
    defined: tuple[str, ...] = ()
    prefix: Prefix | None = None
    bos_id: int | None = None
    eos_id: int | None = None
    add_bos: bool = False
    ends: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        named = [("bos_id", self.bos_id), ("eos_id", self.eos_id)]
        for name, known in [*named, *(("an id that ends outputs", end) for end in self.ends)]:
            if known is not None and not 0 <= known < len(self.tokens):
                raise ModelError(
                    f"the file says {name}={known}, outside of its {len(self.tokens):,} tokens: "
                    "it is damaged."
                )


def byte_level(
    vocabulary: Vocabulary,
    steps: Sequence[Step],
    *,
    composed: bool = False,
    whole_pieces: bool = False,
    normalized: Collection[str] = (),
) -> TokenizerParts:
    """A byte-level tokenizer.

    A byte that the vocabulary has no token for is left out of what is encoded.

    Args:
        vocabulary: Its tokens; those that text gives in the byte alphabet, user-defined ones as
            they read.
        steps: How text is cut.
        composed: Whether text is put into normal form C first.
        whole_pieces: Whether a piece that is a token is one, whatever the merges say.
        normalized: User-defined tokens that are looked for in the text in normal form.

    Raises:
        ModelError: The parts do not fit one another.
    """
    ids = _ids(vocabulary)
    defined = _defined(vocabulary)
    token_bytes = _bytes_by_alphabet(vocabulary)
    encoder = tokenizers.Tokenizer(
        models.BPE(vocab=ids, merges=_merges(vocabulary, ids), ignore_merges=whole_pieces)
    )
    encoder.pre_tokenizer = pre_tokenizer(steps)
    if composed:
        encoder.normalizer = normalizers.NFC()
    _add_defined(encoder, defined, normalized)
    unsure = not is_known(steps) or (composed and not defined.isdisjoint(normalized))
    boundaries = NoBoundaries() if unsure else WordBoundaries(defined)
    return TokenizerParts(
        vocabulary.tokens, vocabulary.kinds, token_bytes, encoder, boundaries, tuple(defined)
    )


def sentencepiece(
    vocabulary: Vocabulary,
    *,
    prefix: Prefix | None,
    words: bool = False,
    normalized: Collection[str] = (),
) -> TokenizerParts:
    """A byte-pair tokenizer over characters, with bytes for those that it does not know.

    Args:
        vocabulary: Its tokens, spaces written as `SPACE`; one of the kind `BYTE` for every byte.
        prefix: What stands before a text.
        words: Whether text is cut before every space.
        normalized: User-defined tokens that are looked for in the text with spaces as `SPACE`.

    Raises:
        ModelError: The parts do not fit one another, or a byte has no token.
    """
    ids = _ids(vocabulary)
    defined = _defined(vocabulary)
    token_bytes = _bytes_by_characters(vocabulary)
    encoder = tokenizers.Tokenizer(
        models.BPE(vocab=ids, merges=_merges(vocabulary, ids), byte_fallback=True)
    )
    if words:
        encoder.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="never", split=True)
    else:
        encoder.normalizer = normalizers.Replace(" ", SPACE)
    _add_defined(encoder, defined, normalized)
    boundaries = PairBoundaries(ids)
    return TokenizerParts(
        vocabulary.tokens,
        vocabulary.kinds,
        token_bytes,
        encoder,
        boundaries,
        tuple(defined),
        prefix,
    )


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    """Id of every token that text can give."""
    tokens, kinds = vocabulary.tokens, vocabulary.kinds
    if len(kinds) != len(tokens):
        raise ModelError(
            f"the vocabulary has {len(tokens):,} tokens and {len(kinds):,} kinds: the file is "
            "damaged."
        )
    try:
        "".join(tokens).encode()
    except UnicodeEncodeError as error:
        raise ModelError(
            f"the vocabulary has a token with {error.object[error.start]!r}, which is no Unicode "
            "text: the file is damaged."
        ) from None
    ids: dict[str, int] = {}
    for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind not in NEVER_TEXT and ids.setdefault(token, index) != index:
            raise ModelError(
                f"the tokens {ids[token]} and {index} both read {quote(token)}: the file is "
                "damaged."
            )
    return ids


def _defined(vocabulary: Vocabulary) -> set[str]:
    pairs = zip(vocabulary.tokens, vocabulary.kinds, strict=True)
    return {token for token, kind in pairs if kind == USER_DEFINED and token}


def _merges(vocabulary: Vocabulary, ids: dict[str, int]) -> list[tuple[str, str]]:
    """The merges, without those that touch a token which text may not give by its spelling."""
    kinds = zip(vocabulary.tokens, vocabulary.kinds, strict=True)
    never = {token for token, kind in kinds if kind in NEVER_TEXT or kind == BYTE}
    found: list[tuple[str, str]] = []
    for left, right in vocabulary.merges:
        whole = left + right
        for part in (left, right, whole):
            if part not in ids and part not in never:
                raise ModelError(
                    f"the merge {quote(f'{left} {right}')} names a token that the vocabulary "
                    "lacks: the file is damaged."
                )
        if left not in never and right not in never and whole not in never:
            found.append((left, right))
    return found


def _bytes_by_alphabet(vocabulary: Vocabulary) -> tuple[bytes, ...]:
    alphabet = byte_alphabet()
    found: list[bytes] = []
    for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)):
        if kind == NORMAL:
            try:
                found.append(bytes([alphabet[character] for character in token]))
            except KeyError:
                raise ModelError(
                    f"token {index} {quote(token)} is not written in the byte alphabet: the "
                    "vocabulary is damaged or not byte-level."
                ) from None
        elif kind == USER_DEFINED:
            found.append(token.encode())
        elif kind in NEVER_TEXT:
            found.append(b"")
        else:
            raise ModelError(
                f"token {index} {quote(token)} is of the kind {kind}, which a byte-level "
                "vocabulary has not: the file is damaged or not supported."
            )
    return tuple(found)


def _bytes_by_characters(vocabulary: Vocabulary) -> tuple[bytes, ...]:
    found: list[bytes] = []
    single: set[int] = set()
    for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)):
        if kind in (NORMAL, USER_DEFINED):
            found.append(token.replace(SPACE, " ").encode())
        elif kind in NEVER_TEXT:
            found.append(b"")
        elif kind == BYTE and (match := BYTE_TOKEN.fullmatch(token)):
            found.append(bytes([int(match[1], 16)]))
            single.add(int(match[1], 16))
        else:
            raise ModelError(
                f"token {index} {quote(token)} is of the kind {kind}, which it cannot be: the "
                "file is damaged or not supported."
            )
    if len(single) != 256:
        raise ModelError(
            f"the vocabulary has tokens for {len(single)} bytes of 256: characters outside of it "
            "could not be written, so this model cannot be run."
        )
    return tuple(found)


def _add_defined(
    encoder: tokenizers.Tokenizer, defined: Iterable[str], normalized: Collection[str]
) -> None:
    encoder.add_tokens(
        [
            tokenizers.AddedToken(token, normalized=token in normalized, special=False)
            for token in sorted(defined)
        ]
    )


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins of the 256 bytes: character to byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}
