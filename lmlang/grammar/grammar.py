"""A compiled constraint: immutable, shared by all sequences that have it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from lmlang.errors import BudgetExceeded, ProgramTypeError, an, quote
from lmlang.grammar.automaton import Automaton, State
from lmlang.grammar.canonical import Canonical
from lmlang.grammar.closing import Closings
from lmlang.grammar.matcher import GrammarMatcher, Shared
from lmlang.grammar.spec import Spec
from lmlang.grammar.vocabulary import Vocabulary

SAMPLE_TOKENS = 256
CLOSING_SHARE = 0.15
"""How often a random output takes a step toward its end."""
MOST_EXPECTED = 12
"""Characters, or runs of them, that a mismatch names."""
MOST_SHOWN = 80
"""Characters of a spec that the repr shows."""


@dataclass(frozen=True, slots=True)
class Match:
    """Whether a text is an output of a grammar; false where it is not.

    Args:
        ok: Whether it is.
        position: Where it is not: the first character that cannot stand there, or the text's end.
        expected: What could have come there instead.
        pointer: Which part of the constraint that place belongs to.
    """

    ok: bool
    position: int
    expected: str = ""
    pointer: str = ""

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        if self.ok:
            return "ok"
        where = f" (at {self.pointer})" if self.pointer else ""
        return f"at character {self.position:,}{where}: expected {self.expected}"


class Grammar:
    """A compiled constraint. Thread-safe: what it keeps is a cache.

    Args:
        spec: What was compiled.
        vocabulary: Whose tokens spell its outputs.
        automaton: Its states.
        explain: Tells how the spec was understood.
    """

    def __init__(
        self,
        spec: Spec,
        vocabulary: Vocabulary,
        automaton: Automaton,
        explain: Callable[[], str] | None = None,
    ) -> None:
        self._explain = explain
        self.spec = spec
        self.vocabulary = vocabulary
        self.automaton = automaton
        self.masks = vocabulary.masks
        self.closings = Closings(vocabulary, automaton)
        canonical = Canonical(vocabulary, automaton)
        self._shared = Shared(vocabulary, automaton, self.masks, self.closings, canonical)

    def matcher(self) -> GrammarMatcher:
        """One output at its beginning."""
        return GrammarMatcher(self._shared)

    def min_tokens(self) -> int:
        """Tokens of a shortest output, or of the shortest that was found.

        Raises:
            GrammarDeadEnd: The vocabulary cannot spell any.
        """
        return len(self.closings.tokens(self.automaton.start))

    def match(self, text: str) -> Match:
        """Whether a text is an output of the grammar, and where and why it is not.

        Raises:
            ProgramTypeError: It is no text.
        """
        if not isinstance(text, str):
            raise ProgramTypeError(
                f"match takes a text, not {an(type(text).__name__)}: a value is matched as the "
                "text that it is written as, and bytes once they are decoded."
            )
        state = self.automaton.start
        for position, character in enumerate(text):
            behind = self.automaton.run(state, character.encode("utf-8", "surrogatepass"))
            if behind is None:
                return self._mismatch(state, position)
            state = behind
        return Match(True, len(text)) if state.accepting else self._mismatch(state, len(text))

    def sample(self, seed: int = 0, *, budget: int = SAMPLE_TOKENS) -> str:
        """A random output of at most ``budget`` tokens; the same for the same seed.

        Raises:
            BudgetExceeded: No output that was found is so short.
            GrammarDeadEnd: The vocabulary cannot spell any.
        """
        matcher = self.matcher()
        if not matcher.fits(budget):
            raise BudgetExceeded(
                f"budget={budget}: {self.min_tokens():,} is the least that an output can have; "
                "allow so many."
            )
        draws = random.Random(seed)
        data = bytearray()
        while not matcher.is_complete():
            if matcher.is_accepting() and draws.random() < 0.5:
                break
            budget -= 1
            index = self._drawn(matcher, draws, budget)
            if index is None:
                ids = matcher.completion()
                matcher.accept_tokens(ids)
                data += b"".join([self.vocabulary.pieces[index] for index in ids])
                break
            data += self.vocabulary.pieces[index]
        return data.decode()

    def _drawn(self, matcher: GrammarMatcher, draws: random.Random, budget: int) -> int | None:
        """Take one random token that leaves an output within the budget; None for none."""
        if draws.random() < CLOSING_SHARE and (completion := matcher.completion()):
            matcher.accept_token(completion[0])
            if matcher.fits(budget):
                return completion[0]
            matcher.rollback(1)
            return None
        ids = matcher.mask().ids()
        for _ in range(8):
            if not len(ids):
                return None
            index = int(ids[draws.randrange(len(ids))])
            matcher.accept_token(index)
            if matcher.fits(budget):
                return index
            matcher.rollback(1)
        return None

    def explain(self) -> str:
        """What was decided for each part of the constraint, as text."""
        return repr(self.spec) if self._explain is None else self._explain()

    def _mismatch(self, state: State, position: int) -> Match:
        pointer = self.automaton.rules.pointer(state.key)
        return Match(False, position, self._expected(state), pointer)

    def _expected(self, state: State) -> str:
        following = sorted(self.automaton.following(state))
        parts = _runs([byte for byte in following if byte < 0x80])
        if len(parts) > MOST_EXPECTED:
            parts[MOST_EXPECTED:] = [f"{len(parts) - MOST_EXPECTED:,} more"]
        if following and following[-1] >= 0x80:
            parts.append("a character outside of ASCII")
        if state.accepting:
            parts.append("the end")
        return " or ".join(parts)

    def __repr__(self) -> str:
        spec = repr(self.spec)
        shown = spec if len(spec) <= MOST_SHOWN else spec[: MOST_SHOWN - 1] + "…"
        return f"<Grammar of {shown}>"


def _runs(characters: list[int]) -> list[str]:
    """ASCII characters, in order, as a message shows them: four in a row by their ends alone."""
    parts: list[str] = []
    begun = 0
    for place, code in enumerate(characters, 1):
        if place < len(characters) and characters[place] == code + 1:
            continue
        run = [quote(chr(each)) for each in characters[begun:place]]
        parts += run if len(run) < 4 else [f"{run[0]} to {run[-1]}"]
        begun = place
    return parts
