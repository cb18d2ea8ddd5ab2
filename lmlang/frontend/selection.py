"""How a select comes from its scores to a member: the choices method, a draw, the metadata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lmlang import noise
from lmlang.errors import BackendError, ProgramError, quote
from lmlang.frontend import meta as metadata
from lmlang.frontend.choices import (
    METHODS,
    BuiltIn,
    ChoicesMethod,
    Evidence,
    Ranking,
    argmax,
    joint,
    mean,
)
from lmlang.frontend.meta import Meta
from lmlang.protocol import ChoiceScore, Scores


def method_of(name: str | None, given: object) -> ChoicesMethod:
    """The method of a select: the one of its own that it was given, else the built-in one."""
    return given if callable(given) else METHODS[name] if name else joint


def needs_unconditional(method: ChoicesMethod) -> bool:
    """Whether a method needs the log-probabilities of choices without the prompt."""
    return bool(getattr(method, "requires_unconditional_logprobs", False))


def choose(
    scores: Scores,
    texts: Sequence[str],
    members: tuple[object, ...],
    method: ChoicesMethod,
    temperature: float,
    draw_key: int,
) -> tuple[int, Meta]:
    """The index of the chosen member and the metadata of the select.

    Raises:
        BackendError: The scores are not those of the choices.
        ModelError: A log-probability is not a number.
        ProgramError: A method of the program's own decided for none of the choices.
    """
    if len(scores.choices) != len(texts):
        raise BackendError(
            f"the backend scored {len(scores.choices):,} choices where {len(texts):,} were "
            "asked: this is an error of the backend."
        )
    info: dict[str, Any] | None = None
    if isinstance(method, BuiltIn):
        ranking = method.rank(_evidence(scores.choices, method))
    else:
        decided = method(**evidence_lists(texts, scores.choices, needs_unconditional(method)))
        ranking = Ranking(_index(decided, texts, method), None, {})
        info = decided.meta_info
    index = ranking.index
    if temperature > 0 and ranking.scores is not None:
        noisy = [
            score / temperature + noise.gumbel(draw_key, 0, number)
            for number, score in enumerate(ranking.scores)
        ]
        index = argmax(noisy)
    found = metadata.of_choices(members, scores.choices, index, ranking.scores, scores.usage)
    return index, found if info is None else replace(found, method_info=info)


def evidence_lists(
    texts: Sequence[str], choices: Sequence[ChoiceScore], unconditional: bool
) -> dict[str, Any]:
    """The keywords of a choices method, as SGLang gives them."""
    return {
        "choices": list(texts),
        "normalized_prompt_logprobs": [mean(choice.logprobs) for choice in choices],
        "input_token_logprobs": [
            [(logprob, token, None) for token, logprob in zip(c.ids, c.logprobs, strict=True)]
            for c in choices
        ],
        "output_token_logprobs": [[] for _ in choices],
        "unconditional_token_logprobs": (
            [
                [(p, token, None) for token, p in zip(c.ids, c.unconditional, strict=True)]
                for c in choices
            ]
            if unconditional
            else None
        ),
    }


def _evidence(choices: Sequence[ChoiceScore], method: BuiltIn) -> Evidence:
    return Evidence(
        [mean(choice.logprobs) for choice in choices],
        [choice.logprobs for choice in choices],
        [choice.unconditional for choice in choices]
        if method.requires_unconditional_logprobs
        else None,
    )


def _index(decided: object, texts: Sequence[str], method: object) -> int:
    decision = getattr(decided, "decision", decided)
    if decided is not decision and isinstance(decision, str) and decision in texts:
        return texts.index(decision)
    raise ProgramError(
        f"the choices method {quote(repr(method))[1:-1]} decided for "
        f"{quote(repr(decision))[1:-1]}, which is no decision for one of the choices: return "
        "lm.ChoicesDecision(decision=…) with one of them."
    )
