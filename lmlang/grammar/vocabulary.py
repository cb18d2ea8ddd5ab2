"""A vocabulary: the bytes of every token id, which ids are never text, and how text is encoded.

What a constraint needs of a tokenizer, and no more.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

from lmlang.errors import ProgramError, ProgramTypeError, an
from lmlang.grammar.follow import Answers
from lmlang.grammar.masks import Masks
from lmlang.grammar.token_trie import TokenTrie

PROBE = '{"name": "Zoë", "ages": [12, 3.5], "ok": true}\n  The end, isn\'t it?'
"""A text whose encoding tells tokenizers of the same tokens apart."""

MAX_ENCODED = 8_192
"""Short texts whose ids are kept."""


class Vocabulary:
    """The tokens of one tokenizer. Immutable and thread-safe, if ``encode`` is.

    Args:
        token_bytes: The bytes of every id; b"" for ids that stand for no text.
        special_ids: Ids that are never legal under a constraint.
        stop_ids: Ids that end an output; never legal as text either.
        encode: Plain text to ids, nothing put before or behind it; what it cannot spell is left
            out.
        cut: The last place in a text where it may be cut so that ids on both sides are those of
            the whole text, whatever follows; 0 for none. It tells by a few characters around the
            place, so that it is one in all texts that have these. None: nothing is known of that.
        fingerprint: What equals it has the same tokens and encodes alike; None: it is computed.

    Attributes:
        size: Number of ids.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        *,
        special_ids: Iterable[int] = (),
        stop_ids: Iterable[int] = (),
        encode: Callable[[str], Sequence[int]],
        cut: Callable[[str], int] | None = None,
        fingerprint: str | None = None,
    ) -> None:
        if not token_bytes:
            raise ProgramError("a vocabulary without tokens can spell nothing: give its tokens.")
        self.token_bytes = tuple(token_bytes)
        self.size = len(self.token_bytes)
        self.stop_ids = frozenset(stop_ids)
        self.special_ids = frozenset(special_ids) | self.stop_ids
        for index in self.special_ids:
            if not 0 <= index < self.size:
                raise ProgramError(
                    f"the special id {index} is outside of the {self.size:,} tokens: give ids of "
                    "this vocabulary."
                )
        self.encode = encode
        self.cut = cut
        self._fingerprint = fingerprint
        self._encoded: dict[str, tuple[int, ...]] = {}
        self._source: Any = None
        self.answers = Answers()
        """What is found out of what may follow a text; owned by `endings.py`."""
        self._tree: tuple[TokenTrie, Masks] | None = None
        self._lock = threading.Lock()
        self.pieces = tuple(
            b"" if index in self.special_ids else piece
            for index, piece in enumerate(self.token_bytes)
        )
        """The bytes of every id that may be legal; b"" for all others."""

    @staticmethod
    def of(source: Any) -> Vocabulary:
        """The vocabulary of a tokenizer, made once for each.

        Args:
            source: A Vocabulary, a Runtime or its tokenizer, or a Hugging Face tokenizer.

        Raises:
            ProgramTypeError: It is none of these.
            ProgramError: It is a tokenizer whose tokens are not known to spell text.
        """
        if isinstance(source, Vocabulary):
            return source
        inner = getattr(source, "tokenizer", None)
        if inner is not None and hasattr(inner, "encode"):
            return Vocabulary.of(inner)
        with _making:
            made = _made.get(id(source))
            if made is None or made._source is not source:
                made = Vocabulary._made_of(source)
                made._source = source
                _made[id(source)] = made
            return made

    @staticmethod
    def _made_of(source: Any) -> Vocabulary:
        if hasattr(source, "token_bytes") and hasattr(source, "control_ids"):
            return _of_ours(source)
        if hasattr(source, "convert_ids_to_tokens") and hasattr(source, "all_special_ids"):
            from lmlang.grammar.hf_tokens import tokens_of

            return Vocabulary(**tokens_of(source)._asdict())
        raise ProgramTypeError(
            f"{an(type(source).__name__)} has no vocabulary: give a Runtime, its tokenizer, a "
            "Hugging Face tokenizer or a Vocabulary."
        )

    @property
    def trie(self) -> TokenTrie:
        """Its tokens as a tree."""
        return self._with_masks()[0]

    @property
    def masks(self) -> Masks:
        """The masks of all grammars that have this vocabulary."""
        return self._with_masks()[1]

    def _with_masks(self) -> tuple[TokenTrie, Masks]:
        if self._tree is None:
            with self._lock:
                if self._tree is None:
                    trie = TokenTrie(self.pieces)
                    self._tree = (trie, Masks(trie))
        return self._tree

    def encoded(self, text: str) -> Sequence[int]:
        """The ids of a short text, which are kept."""
        found = self._encoded.get(text)
        if found is None:
            if len(self._encoded) >= MAX_ENCODED:
                self._encoded.clear()
            found = self._encoded[text] = tuple(self.encode(text))
        return found

    @cached_property
    def missing_bytes(self) -> bytes:
        """The bytes that no token holds, in ascending order."""
        held = b"".join(self.pieces)
        return bytes(byte for byte in range(256) if byte not in held)

    @cached_property
    def byte_ids(self) -> tuple[int, ...]:
        """For each byte the id of the token that is just it, -1 for none."""
        return tuple(
            -1 if (node := self.trie.child(0, byte)) < 0 else self.trie.id_at[node]
            for byte in range(256)
        )

    @cached_property
    def fingerprint(self) -> str:
        """What two vocabularies share that have the same tokens and encode alike."""
        if self._fingerprint is not None:
            return self._fingerprint
        digest = hashlib.sha256()
        for piece in self.token_bytes:
            digest.update(len(piece).to_bytes(4, "little") + piece)
        digest.update(repr((sorted(self.special_ids), sorted(self.stop_ids))).encode())
        digest.update(repr(list(self.encode(PROBE))).encode())
        return digest.hexdigest()

    def __repr__(self) -> str:
        return f"<Vocabulary of {self.size:,} tokens, {self.fingerprint[:12]}>"


def _of_ours(tokenizer: Any) -> Vocabulary:
    return Vocabulary(
        tokenizer.token_bytes,
        special_ids=tokenizer.control_ids,
        stop_ids=tokenizer.stop_ids,
        encode=tokenizer.encode,
        cut=getattr(tokenizer, "stable_end", None),
    )


_made: weakref.WeakValueDictionary[int, Vocabulary] = weakref.WeakValueDictionary()
"""Vocabularies in use by the identity of their tokenizer, which each of them keeps alive."""
_making = threading.Lock()
