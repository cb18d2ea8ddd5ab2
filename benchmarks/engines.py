"""Engines of constraints behind one face: ours, llguidance, xgrammar; the others may be missing.

Each fills the same int32 bitmask. JSON is compact for all of them, keys in the order of the schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from lmlang.grammar.compiler import REHEARSAL, compile_spec
from lmlang.grammar.rehearsal import rehearse
from lmlang.grammar.spec import JsonSchema, Regex
from lmlang.grammar.vocabulary import Vocabulary

OURS = "lmlang"


class Output(Protocol):
    """One output as it grows."""

    def fill(self) -> None:
        """Write the mask of the next token into `row`."""

    def allows(self, index: int) -> bool:
        """Whether the mask that was filled last has a token."""

    def accept(self, index: int) -> None:
        """Take a token that is legal."""


class Engine(Protocol):
    """Compiles constraints for one vocabulary; what it cannot compile raises, whatever it is."""

    name: str

    def schema(self, text: str) -> Any:
        """A JSON schema compiled; nothing is kept of an earlier time."""

    def regex(self, pattern: str) -> Any:
        """A regular expression compiled."""

    def ready(self, compiled: Any) -> None:
        """What is done while the prompt of a first output is read."""

    def begin(self, compiled: Any) -> Output:
        """An output at its beginning."""


class Row:
    """A bitmask of one row."""

    def __init__(self, size: int) -> None:
        self.bits = np.zeros((1, -(-size // 32)), dtype=np.int32)

    def allows(self, index: int) -> bool:
        """Whether the mask has a token."""
        return bool(self.bits[0, index >> 5] >> (index & 31) & 1)


class Ours:
    """lmlang."""

    name = OURS

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        vocabulary.masks  # noqa: B018 - made once, as at the start of a runtime

    def schema(self, text: str) -> Any:
        """A JSON schema compiled."""
        return compile_spec(JsonSchema(text, "compact"), self._vocabulary)

    def regex(self, pattern: str) -> Any:
        """A regular expression compiled."""
        return compile_spec(Regex(pattern), self._vocabulary)

    def ready(self, compiled: Any) -> None:
        """What outputs may come to is worked out, as the compile service does it."""
        rehearse(compiled, REHEARSAL)

    def begin(self, compiled: Any) -> Output:
        """An output at its beginning."""
        return _OurOutput(compiled.matcher(), self._vocabulary.size)


class _OurOutput(Row):
    def __init__(self, matcher: Any, size: int) -> None:
        super().__init__(size)
        self.matcher = matcher
        self._row = self.bits[0]

    def fill(self) -> None:
        self.matcher.fill_bitmask(self._row)

    def accept(self, index: int) -> None:
        if not self.matcher.accept_token(index):
            raise ValueError(f"token {index} was refused")


class Guidance:
    """llguidance, told to write JSON as we do."""

    name = "llguidance"

    def __init__(self, vocabulary: Vocabulary) -> None:
        import llguidance
        import llguidance.numpy

        self._lib, self._fill = llguidance, llguidance.numpy.fill_next_token_bitmask
        tokenizer = llguidance.TokenizerWrapper(_Tokens(vocabulary))
        slices = llguidance.LLTokenizer.json_slices()
        self._tokenizer = llguidance.LLTokenizer(tokenizer, slices=slices)
        self._size = vocabulary.size

    def schema(self, text: str) -> Any:
        """A JSON schema compiled."""
        options = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
        return self._made(self._lib.LLMatcher.grammar_from_json_schema(text, overrides=options))

    def regex(self, pattern: str) -> Any:
        """A regular expression compiled."""
        return self._made(self._lib.LLMatcher.grammar_from_regex(pattern))

    def ready(self, compiled: Any) -> None:
        """Nothing."""

    def begin(self, compiled: Any) -> Output:
        """An output at its beginning."""
        return _GuidanceOutput(compiled.deep_copy(), self._fill, self._size)

    def _made(self, grammar: str) -> Any:
        matcher = self._lib.LLMatcher(self._tokenizer, grammar, log_level=0)
        if error := matcher.get_error():
            raise ValueError(error)
        return matcher


class _Tokens:
    """A vocabulary as llguidance wants it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        specials = set(vocabulary.special_ids)
        self.tokens = [
            b"\xff<%d>" % index if index in specials else piece
            for index, piece in enumerate(vocabulary.token_bytes)
        ]
        self.special_token_ids = sorted(specials)
        self.eos_token_id, self.bos_token_id = min(vocabulary.stop_ids), None
        self._encode = vocabulary.encode

    def __call__(self, text: str | bytes) -> Sequence[int]:
        return self._encode(text if isinstance(text, str) else text.decode("utf-8", "replace"))


class _GuidanceOutput(Row):
    def __init__(self, matcher: Any, fill: Any, size: int) -> None:
        super().__init__(size)
        self._matcher, self._fill = matcher, fill

    def fill(self) -> None:
        self._fill(self._matcher, self.bits, 0)

    def accept(self, index: int) -> None:
        self._matcher.consume_token(index)


class Xgrammar:
    """xgrammar, told to write JSON as we do."""

    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        self._lib, self._size = xgrammar, vocabulary.size
        specials = vocabulary.special_ids
        tokens = [b"" if n in specials else t for n, t in enumerate(vocabulary.token_bytes)]
        self._info = xgrammar.TokenizerInfo(
            tokens, vocab_size=len(tokens), stop_token_ids=sorted(vocabulary.stop_ids)
        )

    def schema(self, text: str) -> Any:
        """A JSON schema compiled."""
        compiler = self._lib.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)
        return compiler.compile_json_schema(
            text, any_whitespace=False, separators=(",", ":"), strict_mode=False
        )

    def regex(self, pattern: str) -> Any:
        """A regular expression compiled."""
        compiler = self._lib.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)
        return compiler.compile_regex(pattern)

    def ready(self, compiled: Any) -> None:
        """Nothing."""

    def begin(self, compiled: Any) -> Output:
        """An output at its beginning."""
        return _XgrammarOutput(self._lib.GrammarMatcher(compiled), self._lib, self._size)


class _XgrammarOutput:
    def __init__(self, matcher: Any, lib: Any, size: int) -> None:
        self._matcher = matcher
        self._bits = lib.allocate_token_bitmask(1, size)

    def fill(self) -> None:
        self._matcher.fill_next_token_bitmask(self._bits)

    def allows(self, index: int) -> bool:
        return bool(int(self._bits[0, index >> 5]) >> (index & 31) & 1)

    def accept(self, index: int) -> None:
        if not self._matcher.accept_token(index):
            raise ValueError(f"token {index} was refused")


def engines(vocabulary: Vocabulary, skip: Sequence[str] = ()) -> tuple[list[Engine], list[str]]:
    """Ours first, then the others that are installed; and why others are not here."""
    found: list[Engine] = [Ours(vocabulary)]
    missing = []
    for other in (Guidance, Xgrammar):
        if other.name in skip:
            missing.append(f"{other.name} is not measured: it was to be skipped")
            continue
        try:
            found.append(other(vocabulary))
        except ImportError as error:
            missing.append(f"{other.name} is not measured: {error}")
    return found, missing
