"""One output under a constraint as it grows: which tokens are legal, forced, or complete it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmlang.errors import ProgramError, ProgramTypeError, an
from lmlang.grammar.automaton import Automaton, State
from lmlang.grammar.canonical import Canonical
from lmlang.grammar.closing import Closings
from lmlang.grammar.masks import Mask, Masks
from lmlang.grammar.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Shared:
    """What all outputs of one grammar share. Thread-safe."""

    vocabulary: Vocabulary
    automaton: Automaton
    masks: Masks
    closings: Closings
    canonical: Canonical


class GrammarMatcher:
    """The state of one output. Not thread-safe; what it shares with others is.

    Args:
        shared: That of its grammar.

    Attributes:
        grammar: The same.
    """

    __slots__ = ("_ids", "_states", "grammar")

    def __init__(self, shared: Shared) -> None:
        self.grammar = shared
        self._ids: list[int] = []  # -1 for bytes that did not come as a token
        self._states: list[State] = [shared.automaton.start]

    @property
    def state(self) -> State:
        """Where the output stands; equal states of one grammar are one object."""
        return self._states[-1]

    def __repr__(self) -> str:
        pieces = self.grammar.vocabulary.pieces
        data = b"".join([pieces[index] if index >= 0 else b"..." for index in self._ids[-12:]])
        ends = ", may end" if self.is_accepting() else ""
        return f"<GrammarMatcher after {len(self):,}, {data[-40:]!r}{ends}>"

    def __len__(self) -> int:
        """What has been accepted: tokens, and runs of bytes."""
        return len(self._ids)

    # ------------------------------------------------------------------ taking

    def accept_token(self, index: int) -> bool:
        """Take a token; False, and nothing changes, where it is not legal."""
        pieces = self.grammar.vocabulary.pieces
        try:
            index = operator.index(index)  # which those of NumPy have too
        except TypeError:
            raise ProgramTypeError(
                f"a token is an id, not {an(type(index).__name__)}: {index!r}."
            ) from None
        if not 0 <= index < len(pieces) or not pieces[index]:
            return False
        return self._take(pieces[index], index)

    def accept_tokens(self, ids: Sequence[int]) -> int:
        """Take tokens up to the first one that is not legal; how many were taken."""
        for count, index in enumerate(ids):
            if not self.accept_token(index):
                return count
        return len(ids)

    def accept_bytes(self, data: bytes) -> bool:
        """Take bytes that did not come as tokens; False, and nothing changes, if they cannot."""
        if not isinstance(data, bytes):
            raise ProgramTypeError(
                f"accept_bytes takes bytes, not {an(type(data).__name__)}: give text.encode()."
            )
        return self._take(data, -1)

    def _take(self, data: bytes, index: int) -> bool:
        onward = self.grammar.automaton.run(self._states[-1], data)
        if onward is None:
            return False
        self._ids.append(index)
        self._states.append(onward)
        return True

    def rollback(self, count: int) -> None:
        """Take back the last ones that were accepted.

        Raises:
            ProgramError: There are not so many.
        """
        if not 0 <= count <= len(self._ids):
            raise ProgramError(
                f"rollback({count}): {len(self._ids):,} were accepted; give a number up to that."
            )
        if count:
            del self._ids[-count:]
            del self._states[-count:]

    def reset(self) -> None:
        """Begin anew."""
        self.rollback(len(self._ids))

    def fork(self) -> GrammarMatcher:
        """Another one that has accepted the same; neither changes the other."""
        twin = GrammarMatcher.__new__(GrammarMatcher)
        twin.grammar = self.grammar
        twin._ids = self._ids.copy()
        twin._states = self._states.copy()
        return twin

    # ------------------------------------------------------------------ asking

    def is_accepting(self) -> bool:
        """Whether the output may end here."""
        return self._states[-1].accepting

    def is_complete(self) -> bool:
        """Whether it must end here: it may, and nothing may follow."""
        state = self._states[-1]
        return state.accepting and not self.grammar.automaton.following(state)

    def allows(self, index: int) -> bool:
        """Whether a token is legal; the mask is not made for that."""
        pieces = self.grammar.vocabulary.pieces
        if not 0 <= index < len(pieces) or not pieces[index]:
            return False
        return self.grammar.automaton.run(self._states[-1], pieces[index]) is not None

    def mask(self) -> Mask:
        """The tokens that may come next; exact, shared, read-only."""
        return self.grammar.masks.mask(self.grammar.automaton, self._states[-1])

    def fill_bitmask(self, row: Any) -> None:
        """Write the mask into a row.

        Args:
            row: int32 [at least ceil(V / 32)]; what is beyond becomes 0.
        """
        bits = self.mask().bits
        size = len(bits)
        if getattr(row, "dtype", None) != bits.dtype or len(row) < size:
            raise ProgramTypeError(
                f"a row of bits is an int32 array of at least {size:,} words: give one."
            )
        row[:size] = bits
        if len(row) > size:
            row[size:] = 0

    def forced_bytes(self) -> bytes:
        """The bytes that must come next; empty where there is a choice or the output may end."""
        return self.grammar.automaton.forced(self._states[-1])

    def forced_tokens(self) -> list[int]:
        """Of the forced bytes, the tokens that the tokenizer would certainly give."""
        return list(self.grammar.canonical.forced(self._states[-1], self._ids))

    def held_token(self) -> int | None:
        """The one that the tokenizer gives for all forced bytes, where few outputs have another."""
        return self.grammar.canonical.held(self._states[-1], self._ids)

    def completion(self) -> list[int]:
        """Tokens that complete the output: few, but always the same in the same state.

        Raises:
            GrammarDeadEnd: The vocabulary cannot spell any.
        """
        return list(self.grammar.closings.tokens(self._states[-1]))

    def distance(self) -> int:
        """How many tokens `completion` has.

        Raises:
            GrammarDeadEnd: The vocabulary cannot spell any.
        """
        return len(self.grammar.closings.tokens(self._states[-1]))

    def fits(self, budget: int) -> bool:
        """Whether ``budget`` more tokens are enough to complete the output.

        Where it says so, `completion` then has no more than that.
        """
        return self.grammar.closings.fits(self._states[-1], budget)

    def pointer(self) -> str:
        """Which part of the constraint the next byte belongs to; "" for all of it."""
        automaton = self.grammar.automaton
        return automaton.rules.pointer(self._states[-1].key)
