"""One output under a constraint: what may come, what must come, when it is over. No torch here.

    draw -> take -> what is forced -> draw -> ...      each token passes the matcher
    only room for the shortest completion is left      it is played to its end

Tokens are known before they are told: what is forced is computed like a prompt, in one pass, and
told with its log-probabilities once that pass has run.
"""

from __future__ import annotations

from lmlang.errors import BudgetExceeded, GrammarDeadEnd
from lmlang.grammar.automaton import State
from lmlang.grammar.compiler import Grammar
from lmlang.grammar.masks import Mask
from lmlang.grammar.matcher import GrammarMatcher
from lmlang.protocol import Finish, Request

PATIENCE = 8
"""Tokens of one draw that may be refused for the budget before the output is completed."""


class Constrained:
    """The matcher of one output and what it has decided; the engine thread's own.

    Args:
        grammar: What the output must be.
        request: What was asked for.

    Raises:
        BudgetExceeded: The shortest output has more than ``max_tokens``.
    """

    def __init__(self, grammar: Grammar, request: Request) -> None:
        self._matcher = grammar.matcher()
        self._vocabulary = grammar.vocabulary
        self._params = request.params
        self._raises = request.on_budget == "raise"
        self.finish: Finish | None = None
        """How the output ends with the last known token."""
        self.dropped = False
        """Whether the last known token only says that it ends."""
        self.known = 0
        """Tokens that are known, told or not."""
        self.forced: list[bool] = []
        """Of each known token, whether there was no choice about it."""
        self.pointers: list[str] = []
        """In which part of the constraint each begins; kept where the request wants to know."""
        self.legal: list[int] = []
        """How many tokens were possible in its place; kept likewise."""
        self._squeezed = False
        self._held: int | None = None
        self._wants_provenance = request.provenance
        self._characters = 0
        self._complete_at: set[int] = {0} if self._matcher.is_accepting() else set()
        if not self._matcher.fits(self._left):
            raise BudgetExceeded(
                f"the shortest output that meets the constraint has {_tokens(self._matcher)}, and "
                f"max_tokens is {self._left:,}: raise it, or max_program_tokens where that left "
                "no more."
            )
        self._end_where_nothing_follows()

    @property
    def held(self) -> int | None:
        """The token that will probably be drawn next, as the tokenizer spells what is forced so."""
        return self._held

    @property
    def _left(self) -> int:
        return self._params.max_tokens - self.known

    def mask(self) -> Mask | None:
        """What may be drawn next; None: everything, as what cannot go on ends the output.

        Raises:
            GrammarDeadEnd: The vocabulary has no token for what must come.
        """
        if self._matcher.is_accepting():
            return None
        mask = self._matcher.mask()
        if not mask.count:
            automaton = self._matcher.grammar.automaton
            following = automaton.following(self._matcher.state)
            raise GrammarDeadEnd(
                f"no token of this vocabulary can go on here, where the constraint wants one of "
                f"the bytes {following[:40]!r}: use another model, or a constraint that this one "
                "can spell."
            )
        return mask

    def made_mask(self) -> Mask | None:
        """`mask` if it is known: what is drawn without it has to be judged by `is_legal`."""
        matcher = self._matcher
        return None if matcher.is_accepting() else matcher.grammar.masks.made(matcher.state)

    def is_legal(self, token: int) -> bool:
        """Whether `mask` has a token; it is not made for that."""
        return self._matcher.is_accepting() or self._matcher.allows(token)

    def masks_behind(self, tokens: tuple[int, ...]) -> list[Mask | None]:
        """What may be drawn behind each of some tokens, as far as there is anything; see `mask`."""
        masks: list[Mask | None] = []
        matcher = self._matcher
        for token in tokens:
            if not matcher.accept_token(token):
                break
            mask = None if matcher.is_accepting() else matcher.mask()
            if mask is not None and not mask.count:
                matcher.rollback(1)
                break
            masks.append(mask)
        matcher.rollback(len(masks))
        return masks

    def take(self, token: int) -> bool:
        """Take a drawn token; False where the output could not be completed behind it.

        Raises:
            GrammarDeadEnd: The token is not one that the mask allows.
            BudgetExceeded: It was refused, and the request wants that raised.
        """
        matcher = self._matcher
        accepting = matcher.is_accepting()
        if accepting and token in self._params.stop_token_ids:
            self._end_by(Finish("stop", token))
            return True
        before = matcher.state
        pointer = matcher.pointer() if self._wants_provenance else ""
        legal = self._count_legal() if self._wants_provenance else 0
        if not matcher.accept_token(token):
            if not accepting:
                raise GrammarDeadEnd(
                    f"token {token:,} was drawn although the constraint forbids it: no token that "
                    "it allows has a finite logit. Check logits_processor and logit_bias."
                )
            self._end_by(Finish("forced_close") if self._squeezed else Finish("complete"))
            return True
        if not matcher.fits(self._left - 1):
            matcher.rollback(1)
            self._squeeze()
            return False
        self._note([token], before, [pointer], legal, forced=False)
        self._end_where_nothing_follows()
        return True

    def allows(self, token: int) -> bool:
        """Whether a token may be drawn next."""
        return self._matcher.is_accepting() or self._matcher.mask().allows(token)

    def would_take(self, token: int) -> bool:
        """Whether `take` would take a token, or end with it; nothing changes."""
        matcher = self._matcher
        if not matcher.accept_token(token):
            return True
        fits = matcher.fits(self._left - 1)
        matcher.rollback(1)
        return fits

    def run(self) -> list[int]:
        """The tokens that come next without a draw; they are known from here on.

        Raises:
            BudgetExceeded: They are the shortest completion, and the request wants that raised.
        """
        tokens: list[int] = []
        matcher = self._matcher
        while self.finish is None:
            forced = matcher.forced_tokens()
            if not forced or not self._play(forced):
                break
            tokens += forced
            self._end_where_nothing_follows()
        if self.finish is None and not matcher.is_accepting() and not matcher.fits(self._left - 1):
            tokens += self.complete()
        self._held = None if self.finish is not None else matcher.held_token()
        return tokens

    def complete(self) -> list[int]:
        """The tokens of the shortest completion, which are known from here on: the end.

        Raises:
            BudgetExceeded: The request wants that raised.
        """
        self._squeeze()
        tokens = self._matcher.completion()
        played = self._play(tokens)
        assert played, "a completion that fitted does not fit any more"
        self.finish = Finish("forced_close")
        return tokens

    def finish_at(self, count: int) -> Finish | None:
        """How the output ends with its ``count``-th token; None where it goes on."""
        return self.finish if count == self.known else None

    def is_complete_at(self, character: int) -> bool:
        """Whether the output would be complete if it ended before this character."""
        return character in self._complete_at

    def _play(self, tokens: list[int]) -> bool:
        """Take tokens that are not drawn, all of them or, where the rest does not fit, none."""
        matcher = self._matcher
        before, pointers = matcher.state, []
        for number, token in enumerate(tokens):
            if self._wants_provenance:
                pointers.append(matcher.pointer())
            if not matcher.accept_token(token):
                matcher.rollback(number)
                raise GrammarDeadEnd(
                    f"the vocabulary's own encoding of what must come next breaks the constraint "
                    f"at token {token:,}."
                )
        if not matcher.fits(self._left - len(tokens)):
            matcher.rollback(len(tokens))
            return False
        self._note(tokens, before, pointers, 1, forced=True)
        return True

    def _note(
        self, tokens: list[int], before: State, pointers: list[str], legal: int, *, forced: bool
    ) -> None:
        self.known += len(tokens)
        self.forced += [forced] * len(tokens)
        if self._wants_provenance:
            self.pointers += pointers
            self.legal += [legal] * len(tokens)
        if not self._params.stop:
            return
        push = self._matcher.grammar.automaton.push
        state: State | None = before
        for token in tokens:
            for byte in self._vocabulary.pieces[token]:
                assert state is not None
                state = push(state, byte)
                assert state is not None
                self._characters += byte & 0xC0 != 0x80
                if state.accepting:
                    self._complete_at.add(self._characters)

    def _count_legal(self) -> int:
        return (
            len(self._vocabulary.token_bytes)
            if self._matcher.is_accepting()
            else (self._matcher.mask().count)
        )

    def _end_by(self, finish: Finish) -> None:
        """End with a token that is no part of the output."""
        if self._wants_provenance:
            self.pointers.append(self._matcher.pointer())
            self.legal.append(self._count_legal())
        self.known += 1
        self.forced.append(False)
        self.finish, self.dropped = finish, True

    def _end_where_nothing_follows(self) -> None:
        if self._matcher.is_complete():
            self.finish = Finish("forced_close" if self._squeezed else "complete")
        elif not self._left:
            self._squeeze()
            self.finish = Finish("forced_close")

    def _squeeze(self) -> None:
        """Note that the budget has changed the output."""
        if self._raises:
            raise BudgetExceeded(
                f"max_tokens={self._params.max_tokens:,} is not enough for what the model wanted "
                "to write under the constraint: raise it, or take the shortest completion with "
                'on_budget="close".'
            )
        self._squeezed = True


def _tokens(matcher: GrammarMatcher) -> str:
    count = matcher.distance()
    return "1 token" if count == 1 else f"{count:,} tokens"
