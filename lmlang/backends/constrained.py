"""Answers under a constraint where tokens are characters: judged, ended and completed as a model's.

"42 legs"   under an integer        "42": what cannot continue a complete output ends it
"4x"        under an integer        GrammarDeadEnd: the script breaks the constraint
"[1, 2, 3"  in 6 tokens             "[1, 2]": completed by the shortest way to fit
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from lmlang.backends.cut import END, Cut
from lmlang.errors import BudgetExceeded, GrammarDeadEnd, ProgramError, quote
from lmlang.grammar.automaton import Automaton, State
from lmlang.grammar.spec import Spec
from lmlang.protocol import Finish, Provenance, Request

LONGEST = 48
"""Bytes that a random answer goes on at most before it is completed."""


def refuse_processor(request: Request) -> None:
    """Raise ProgramError for a function of logits, which such a backend has not."""
    if request.processor is not None:
        raise ProgramError(
            "logits_processor: this backend has no logits that it could change: leave it out, or "
            "use a Runtime."
        )


def constrained_cut(answer: str, request: Request) -> Cut:
    """What of an answer comes out under the request's constraint.

    Raises:
        GrammarDeadEnd: The answer breaks it.
        BudgetExceeded: Its shortest output is longer than ``max_tokens``, or the answer is and
            is not to be completed.
    """
    assert request.constraint is not None
    automaton, params = automaton_of(request.constraint), request.params
    state = automaton.start
    states = [state]
    most = params.max_tokens
    if len(_completion(automaton, state)) > most:
        raise BudgetExceeded(
            f"the shortest output that meets the constraint has "
            f"{len(_completion(automaton, state)):,} tokens, and max_tokens is {most:,}: raise it."
        )
    complete = {0} if state.accepting else set()
    for index, char in enumerate(answer):
        if state.accepting and ord(char) in params.stop_token_ids:
            return _cut(answer[:index], Finish("stop", ord(char)), ord(char), states, request)
        onward = automaton.run(state, char.encode("utf-8", "surrogatepass"))
        if onward is None:
            if not state.accepting:
                raise GrammarDeadEnd(
                    f"the script's answer {quote(answer)} breaks the constraint at character "
                    f"{index:,}, where one of the bytes {automaton.following(state)[:40]!r} must "
                    "come: script an answer that the constraint allows."
                )
            return _cut(answer[:index], Finish("complete"), END, states, request)
        if index + 1 + len(_completion(automaton, onward)) > most:
            return _closed(answer[:index], automaton, states, request)
        state = onward
        states.append(state)
        text = answer[: index + 1]
        if state.accepting:
            complete.add(index + 1)
        for stop in params.stop:
            if text.endswith(stop) and len(text) - len(stop) in complete:
                kept = text[: len(text) - len(stop)]
                return Cut(tuple(map(ord, text)), kept, Finish("stop", stop))
    if not state.accepting:
        raise GrammarDeadEnd(
            f"the script's answer {quote(answer)} ends before the constraint is met, which goes on "
            f"with {quote(_completion(automaton, state))}: script all of it."
        )
    more = END if automaton.following(state) and len(answer) < most else None
    return _cut(answer, Finish("complete"), more, states, request)


def sample(spec: Spec, drawn: Iterator[int]) -> str:
    """A random output of a constraint, by bytes that are drawn."""
    automaton = automaton_of(spec)
    state, made = automaton.start, bytearray()
    while len(made) < LONGEST:
        following = automaton.following(state)
        if state.accepting and (not following or next(drawn) % 2):
            break
        plain = bytes([byte for byte in following if 0x20 <= byte < 0x7F and byte != 0x5C])
        options = plain or following
        made.append(options[next(drawn) % len(options)])
        onward = automaton.push(state, made[-1])
        assert onward is not None
        state = onward
    return (bytes(made) + automaton.completion(state)).decode()


@lru_cache(maxsize=64)
def automaton_of(spec: Spec) -> Automaton:
    """The automaton of a constraint, which all backends of tests share."""
    from lmlang.grammar.compiler import rules_of

    return Automaton(rules_of(spec)[0])


def _closed(text: str, automaton: Automaton, states: list[State], request: Request) -> Cut:
    most = request.params.max_tokens
    if request.on_budget == "raise":
        raise BudgetExceeded(
            f"the output needs more than max_tokens={most:,}: raise it, or let it be completed "
            'with on_budget="close".'
        )
    whole = text + _completion(automaton, states[-1])
    for char in whole[len(text) :]:
        onward = automaton.run(states[-1], char.encode())
        assert onward is not None
        states.append(onward)
    return _cut(whole, Finish("forced_close"), None, states, request)


def _cut(text: str, finish: Finish, more: int | None, states: list[State], request: Request) -> Cut:
    """The output of a text; ``more`` is the token that ended it and is no part of it."""
    assert request.constraint is not None
    automaton = automaton_of(request.constraint)
    ids = (*map(ord, text), *(() if more is None else (more,)))
    forced = sum(_is_forced(automaton, state) for state in states[: len(text)])
    told: tuple[Provenance, ...] = ()
    if request.provenance:
        told = tuple(
            [
                Provenance(
                    _is_forced(automaton, state),
                    len(automaton.following(state)),
                    0.0,
                    token,
                    automaton.rules.pointer(state.key),
                )
                for token, state in zip(ids, states, strict=False)
            ]
        )
    return Cut(ids, text, finish, forced, told)


def _is_forced(automaton: Automaton, state: State) -> bool:
    return not state.accepting and len(automaton.following(state)) == 1


def _completion(automaton: Automaton, state: State) -> str:
    return automaton.completion(state).decode()
