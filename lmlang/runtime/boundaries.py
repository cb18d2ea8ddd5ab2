"""Where text can be cut so that both parts are tokenised as in the whole, whatever follows.

    "Hello there, you a"
          ^     ^    ^    a word ends before a space or a mark: the next pre-token begins there

Each rule looks only at the characters beside the cut, so that it holds for the whole text too.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol
from unicodedata import category, is_normalized, ucd_3_2_0

KEPT_PAIRS = 1 << 16
SPACE = "\u2581"
"""What a space is in the spellings of sentencepiece: a low block."""


class Boundaries(Protocol):
    """Finds places to cut. Immutable in effect, thread-safe."""

    def last(self, text: str) -> int:
        """The last place in a text where it may be cut, 0 for none.

        With ``at`` the place, ``ids(text + more) == ids(text[:at]) + ids(text[at:] + more)`` for
        every ``more``.
        """


class NoBoundaries:
    """For pre-tokenisers that are not known: all text is tokenised as one."""

    def last(self, text: str) -> int:
        """No place."""
        return 0


class WordBoundaries:
    r"""Places where each pattern of `pretokens` ends one match and begins another.

    - A letter, digit or mark before a space: every pattern has white space at the beginning of a
      match or alone, but for line breaks behind marks.
    - A single line break between two such characters: it ends a match in every pattern, since the
      look-ahead of ``\s+(?!\S)`` needs two white spaces to make a difference. A slash may follow
      a line break in GPT-4o's match.
    - A letter or digit before a mark: words do not hold marks, but for the apostrophe.

    Characters count as such only where Unicode 3.2 has them in the same class as today, so that
    it does not matter which version the pattern engine knows. None of these cuts lies within what
    Unicode's normal form C puts together.

    Args:
        defined: Spellings that are matched before anything else; none is cut.
    """

    def __init__(self, defined: Iterable[str] = ()) -> None:
        self._defined = "\0".join(defined)

    def last(self, text: str) -> int:
        """The last place where words part."""
        for at in range(len(text) - 1, 0, -1):
            if _parts_words(text, at) and text[at - 1 : at + 1] not in self._defined:
                return at
        return 0


class PairBoundaries:
    """Places between two characters that no token has side by side.

    Holds for byte-pair encoding over whole texts: no merge can ever cross such a place, so that
    the merges of one side do not depend on the other.

    Args:
        spellings: Of all tokens that text can give, spaces written as `SPACE`, and as they are
            in those that are matched before anything else.
    """

    def __init__(self, spellings: Iterable[str]) -> None:
        self._spellings = "\0".join(spellings)
        self._known: dict[str, bool] = {}

    def last(self, text: str) -> int:
        """The last place that no token spans."""
        spelled = text.replace(" ", SPACE)
        for at in range(len(text) - 1, 0, -1):
            pair = slice(at - 1, at + 1)
            if not self._stand_together(spelled[pair]) and not self._stand_together(text[pair]):
                return at
        return 0

    def _stand_together(self, pair: str) -> bool:
        known = self._known.get(pair)
        if known is None:
            if len(self._known) >= KEPT_PAIRS:
                self._known.clear()
            known = self._known[pair] = pair in self._spellings
        return known


def _parts_words(text: str, at: int) -> bool:
    left, right = text[at - 1], text[at]
    if right == " ":
        return _kind(left) != ""
    if left == "\n":
        return at > 1 and right != "/" and _kind(text[at - 2]) != "" and _kind(right) != ""
    return _kind(left) == "word" and _kind(right) == "mark"


@lru_cache(maxsize=1 << 14)
def _kind(character: str) -> str:
    """What a character is in every pattern: "word", "mark", "other", or "" where that is unsure."""
    now, then = category(character)[0], ucd_3_2_0.category(character)[0]
    if now != then or now not in "LNPS":
        return ""
    if now in "LN":  # some letters are a letter and an accent in normal form
        return "word" if is_normalized("NFC", character) else "other"
    return "other" if character == "'" else "mark"
