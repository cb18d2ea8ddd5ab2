"""The words of the language: they check their arguments and make expressions, and do no work."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from lmlang import limits
from lmlang.errors import ProgramError, ProgramTypeError, quote
from lmlang.frontend import expression
from lmlang.frontend.choices import joint
from lmlang.frontend.expression import Expression, Leaf, checked_text
from lmlang.frontend.ir import UNPLACED, Gen, Select
from lmlang.frontend.options import LATER_IN_GEN, refuse_later
from lmlang.protocol import ChoiceScore, SamplingParams

ChoicesMethod = Callable[[Sequence[ChoiceScore]], tuple[float, ...]]

_INERT_IN_SELECT: Final = (
    "max_tokens",
    "stop",
    "top_p",
    "top_k",
    "min_p",
    "ignore_eos",
    "seed",
)


def gen(  # noqa: D417 - the others are listed in options.LATER_IN_GEN
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: Any = None,
    choices: Any = None,
    choices_method: ChoicesMethod | None = None,
    regex: str | None = None,
    json_schema: Any = None,
    *,
    type: Any = None,
    ebnf: str | None = None,
    think: int | None = None,
    heal: bool = False,
    include_stop: bool | None = None,
    logit_bias: Mapping[int, float] | None = None,
    seed: int | None = None,
    repetition_penalty: float | None = None,
) -> Expression:
    """A generation into the variable ``name`` (or ``_0``, ``_1``, …); None inherits from the run.

    Keywords that are not described here belong to later versions and raise.

    Args:
        name: The variable.
        max_tokens: Tokens at most; 0 gives "".
        stop: Texts that end the output; they are trimmed.
        temperature: 0 is greedy.
        top_p: Only the likeliest tokens whose probabilities reach this sum.
        top_k: Only the k likeliest tokens; -1 for all.
        min_p: Only tokens at least this fraction as likely as the likeliest.
        ignore_eos: Go on past the model's own end.
        choices: Makes it ``select(name, choices)``.
        choices_method: As in `select`.
        seed: For this generation's draws, instead of the run's.

    Raises:
        ProgramError: A value is out of range, or not available in this version.
    """
    given = dict(locals())
    variable = _name(name, "gen")
    refuse_later("gen", given, LATER_IN_GEN)
    if choices is not None:
        for inert in _INERT_IN_SELECT:
            if given[inert] is not None:
                raise ProgramError(
                    f"gen: {inert} cannot act beside choices, which are scored and not "
                    "generated: leave it out."
                )
        drawn = 0.0 if temperature is None else temperature
        return select(name, choices, drawn, choices_method or joint)
    if choices_method is not None:
        raise ProgramError("gen: choices_method needs choices: give them or leave it out.")
    acting = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "ignore_eos", "stop")
    params = {key: given[key] for key in acting if given[key] is not None}
    checked = SamplingParams(**params)
    node = Gen(
        UNPLACED,
        UNPLACED,
        variable,
        **{key: getattr(checked, key) for key in params},
        seed=None if seed is None else limits.integer("seed", seed, 0, limits.MAX_SEED),
    )
    return Expression((Leaf(node),))


def select(
    name: str | None = None,
    choices: Any = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod = joint,
    *,
    ends_turn: bool | None = None,
) -> Expression:
    """The likeliest of ``choices`` into the variable ``name``; its text is appended.

    Args:
        name: The variable; its value is the chosen member itself.
        choices: Strings, Enum members, ints, bools or None in a list or tuple; an Enum class; a
            Literal; or a dict of label (the value) to text.
        temperature: 0; drawing is not available in this version.
        choices_method: `joint`; others are not available in this version.
        ends_turn: Score the end of the turn behind each choice too. By default where the
            appended expression itself ends it there, as in ``lm.assistant(lm.select(…))``.

    Raises:
        ProgramError: No choices, an empty one, one twice, or something not available.
    """
    variable = _name(name, "select")
    if limits.number("temperature", temperature, 0.0, limits.MAX_TEMPERATURE) > 0:
        raise ProgramError(
            f"select: temperature={temperature:g} is not available in this version of lmlang: "
            "leave it out, and read s.meta(name).probs to draw yourself."
        )
    if choices_method is not joint:
        raise ProgramError(
            "select: a choices_method other than lm.joint is not available in this version of "
            "lmlang: leave it out."
        )
    members, texts = _members(choices)
    node = Select(
        UNPLACED,
        UNPLACED,
        variable,
        texts,
        None if ends_turn is None else limits.boolean("ends_turn", ends_turn),
    )
    return Expression((Leaf(node, members),))


def _name(name: object, where: str) -> str:
    if name is None:
        return ""
    if not isinstance(name, str):
        hint = (
            'write lm.select("name", [...]), or lm.select(choices=[...]) without a name.'
            if where == "select"
            else 'write lm.gen("name", …).'
        )
        raise ProgramTypeError(
            f"{where}: the first argument is the variable's name, a string, and not "
            f"{type(name).__name__}: {hint}"
        )
    if not name:
        raise ProgramError(f"{where}: name='' is empty: give a name, or leave it out.")
    return checked_text(name)


def _members(choices: object) -> tuple[tuple[object, ...], tuple[str, ...]]:
    """The values of choices and their texts."""
    if typing.get_origin(choices) is typing.Literal:
        choices = typing.get_args(choices)
    members: tuple[object, ...]
    if isinstance(choices, Mapping):
        members = tuple(choices)
        texts = tuple(_label_text(label, text) for label, text in choices.items())
    elif isinstance(choices, (list, tuple)) or (
        isinstance(choices, type) and issubclass(choices, Enum)
    ):
        members = tuple(choices)
        texts = tuple(_choice_text(member) for member in members)
    else:
        raise ProgramTypeError(
            f"choices={quote(repr(choices))[1:-1]} must be a list, a tuple, an Enum, a Literal "
            f'or a dict of label to text, not {type(choices).__name__}: write ["yes", "no"].'
        )
    if not texts:
        raise ProgramError("choices=[]: there is nothing to choose from; give at least one.")
    if len(texts) > limits.MAX_CHOICES:
        raise ProgramError(f"{len(texts):,} choices: at most {limits.MAX_CHOICES:,} are allowed.")
    seen: set[str] = set()
    for text in texts:
        if not text:
            raise ProgramError("a choice is the empty text '': every choice needs some text.")
        if text in seen:
            raise ProgramError(f"the choice {quote(text)} stands twice: choices must differ.")
        seen.add(text)
    return members, texts


def _label_text(label: object, text: object) -> str:
    if not isinstance(text, str):
        raise ProgramTypeError(
            f"the choice {quote(repr(label))[1:-1]} has a {type(text).__name__} as its text: "
            "a dict of choices maps each label to a string."
        )
    return checked_text(text)


def _choice_text(member: object) -> str:
    value = member.value if isinstance(member, Enum) else member
    if value is None or isinstance(value, (str, bool, int)):
        return checked_text(value if isinstance(value, str) else str(value))
    raise ProgramTypeError(
        f"the choice {quote(repr(member))[1:-1]} of type {type(member).__name__} has no text of "
        "its own: give strings, Enum members, ints, bools, or a dict of label to text."
    )


def system(expr: str | Expression | None = None) -> Expression:
    """A system turn."""
    return expression.turn("system", expr)


def user(expr: str | Expression | None = None) -> Expression:
    """A user turn."""
    return expression.turn("user", expr)


def assistant(expr: str | Expression | None = None) -> Expression:
    """An assistant turn, as in ``lm.assistant(lm.gen("answer"))``."""
    return expression.turn("assistant", expr)


def system_begin() -> Expression:
    """Opens a system turn."""
    return expression.begin("system")


def system_end() -> Expression:
    """Closes the system turn."""
    return expression.end("system")


def user_begin() -> Expression:
    """Opens a user turn."""
    return expression.begin("user")


def user_end() -> Expression:
    """Closes the user turn."""
    return expression.end("user")


def assistant_begin() -> Expression:
    """Opens an assistant turn."""
    return expression.begin("assistant")


def assistant_end() -> Expression:
    """Closes the assistant turn."""
    return expression.end("assistant")
