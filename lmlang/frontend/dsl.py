"""The words of the language: they check their arguments and make expressions, and do no work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from lmlang import limits
from lmlang.errors import ProgramError, ProgramTypeError, an
from lmlang.frontend import constraints, expression, reasoning
from lmlang.frontend.arguments import hinting
from lmlang.frontend.choices import METHODS, BuiltIn, ChoicesMethod, greedy_token_selection
from lmlang.frontend.constraints import check_combination, constrained
from lmlang.frontend.expression import Expression, Leaf, as_expression, checked_text
from lmlang.frontend.images import read_image
from lmlang.frontend.ir import UNPLACED, Gen, Image, Select
from lmlang.frontend.members import members_of
from lmlang.frontend.options import (
    REPORTING,
    SAMPLING,
    checked_n,
    checked_reporting,
    checked_sampling,
)
from lmlang.frontend.settings import global_config
from lmlang.grammar.spec import Style
from lmlang.protocol import LogitsProcessor, OnBudget

_INERT_IN_SELECT: Final = (
    "n",
    "seed",
    *REPORTING,
    *(name for name in SAMPLING if name != "temperature"),
    *constraints.KEYWORDS,
)


@hinting
def gen(
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
    json_schema: str | Mapping[str, Any] | bool | None = None,
    *,
    type: Any = None,
    ebnf: str | None = None,
    json_style: Style | None = None,
    on_budget: OnBudget | None = None,
    think: int | None = None,
    tries: int | None = None,
    logits_processor: LogitsProcessor | None = None,
    provenance: bool | None = None,
    heal: bool | None = None,
    include_stop: bool | None = None,
    logit_bias: Mapping[int, float] | None = None,
    seed: int | None = None,
    repetition_penalty: float | None = None,
) -> Expression:
    """A generation into the variable ``name`` (or ``_0``, ``_1``, …); None inherits from the run.

    Args:
        name: The variable.
        max_tokens: Tokens at most; 0 gives "".
        min_tokens: So many tokens before it may end; stop strings are content until then.
        n: Samples. For more than one the value is their list, and the state goes on with the
            first.
        stop: Texts that end the output; they are trimmed.
        stop_token_ids: Tokens that end the output and are no part of its text.
        stop_regex: Regular expressions in Python's syntax whose first match ends the output as a
            stop text does.
        temperature: 0 is greedy.
        top_p: Only the likeliest tokens whose probabilities reach this sum.
        top_k: Only the k likeliest tokens; -1 for all.
        min_p: Only tokens at least this fraction as likely as the likeliest.
        frequency_penalty: Taken from a token's logit for each time it stands in the output.
        presence_penalty: Taken from a token's logit once it stands in the output.
        ignore_eos: Go on past the model's own end.
        return_logprob: Tell log-probabilities in ``s.get_meta_info(name)``, and in
            ``s.meta(name).probs`` with which probability each token was drawn; ``s.meta(name)``
            always has the output's log-probabilities.
        logprob_start_len: From this prompt token on, tell those of the prompt too; -1: none.
        top_logprobs_num: Tell so many of the likeliest tokens beside each.
        return_text_in_logprobs: Tell the texts of these tokens.
        dtype: SGLang's name of ``type``.
        choices: Makes it ``select(name, choices)``.
        choices_method: As in `select`.
        regex: A regular expression in Python's syntax that the whole output matches.
        json_schema: A JSON schema, as text or a dict, that the output is JSON of.
        type: A type that the output is read as; ``s[name]`` is an instance of it, always.
        ebnf: A grammar in the GBNF dialect that derives the output.
        json_style: White space of JSON: "line", "compact" or an indent of 1 to 8 spaces.
        on_budget: Where ``max_tokens`` would cut a constrained output: "close" (None) completes
            it by the shortest way, "raise" raises `BudgetExceeded`.
        think: So many tokens of hidden text at most before the output, for the model to reason
            in: the model reads them, ``s.text()`` and the value have none of them.
        tries: How many values validators of your own (of pydantic, ``__post_init__``) may be
            offered, 3 by default: what they refuse is written anew, that part alone and with what
            they said as a hidden hint; then `ConstraintError`.
        logits_processor: A function of the output's token ids so far and a row of logits, a tensor
            of the backend's, which it changes or returns another for. Every step waits for it.
        provenance: Tell in ``s.meta(name).provenance`` how each token came about.
        heal: Where the text before ends inside of a longer token, let the model write that one:
            behind "wor" it may then go on with " world". What stood there is no part of the value.
        include_stop: Keep the stop text in the value.
        logit_bias: What is added to the logits of tokens, by their ids.
        seed: For this generation's draws, instead of the run's.
        repetition_penalty: Divides the logits of tokens in prompt or output; 1 is none.

    Raises:
        ProgramError: A value is out of range, or contradicts another.
        GrammarSyntaxError: A pattern or grammar is none, or a pattern is not regular.
        GrammarTooLarge: Its automaton would be too large.
        SchemaUnsupported: A part of a type cannot be generated.
    """
    given = dict(locals())
    variable = _name(name, "gen")
    if choices is not None:
        for inert in _INERT_IN_SELECT:
            if given[inert] is not None:
                raise ProgramError(
                    f"gen: {inert} cannot act beside choices, which are scored and not "
                    "generated: leave it out."
                )
        return select(name, choices, 0.0 if temperature is None else temperature, choices_method)
    if choices_method is not None:
        raise ProgramError("gen: choices_method needs choices: give them or leave it out.")
    fields, living = constrained(given)
    node = Gen(
        UNPLACED,
        UNPLACED,
        variable,
        **checked_sampling(given),  # type: ignore[arg-type]
        **checked_reporting("gen", given),  # type: ignore[arg-type]
        n=None if n is None else checked_n(n),
        seed=None if seed is None else limits.integer("seed", seed, 0, limits.MAX_SEED),
        **fields,
    )
    check_combination(node)
    return Expression((Leaf(node, beside=living),))


@hinting
def gen_int(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
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
) -> Expression:
    """An integer into the variable ``name``: ``gen(name, type=int)``, with SGLang's keywords."""
    return gen(**locals(), dtype=int)


@hinting
def gen_string(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
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
) -> Expression:
    """A quoted string into ``name``: ``gen(name, type=str)``, with SGLang's keywords.

    The quotes are part of the text, and not of the value.
    """
    return gen(**locals(), dtype=str)


@hinting
def select(
    name: str | None = None,
    choices: Any = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod | None = None,
    *,
    ends_turn: bool | None = None,
) -> Expression:
    """One of ``choices`` into the variable ``name``, by their scores; its text is appended.

    Args:
        name: The variable; its value is the chosen member itself.
        choices: Strings, Enum members, ints, bools or None in a list or anything else that gives
            them in an order; an Enum class; a Literal; or a dict of label (the value) to text.
            The text of an Enum member is its value.
        temperature: 0 takes what the method decides for; above 0 the choice is drawn, with its
            score divided by it as log-probability.
        choices_method: `joint`, `token_length_normalized`, `greedy_token_selection`,
            `unconditional_likelihood_normalized` or one of your own; None:
            ``global_config.default_choices_method``, which is `joint`.
        ends_turn: Score the end of the turn behind each choice too. By default where the
            appended expression itself ends it there, as in ``lm.assistant(lm.select(…))``.
            Without it the rest of a choice that begins another is empty and scores nothing more,
            so with `joint` it wins over that one, always.

    Raises:
        ProgramError: No choices, an empty one, two that are equal, a method that is none, or a
            temperature for a method without scores to draw from.
    """
    variable = _name(name, "select")
    members, texts = members_of(choices)
    method = global_config.default_choices_method if choices_method is None else choices_method
    if not callable(method):
        raise ProgramTypeError(
            f"select: choices_method is {an(type(method).__name__)}: give a choices method, such "
            "as lm.joint or lm.token_length_normalized."
        )
    own = not isinstance(method, BuiltIn)
    drawn = limits.number("temperature", temperature, 0.0, limits.MAX_TEMPERATURE)
    if drawn and (own or method is greedy_token_selection):
        raise ProgramError(
            f"select: temperature={drawn:g} cannot act with {_method_name(method)}, which gives "
            "no scores to draw from: leave it out, or use lm.joint."
        )
    named = None if method is METHODS["joint"] else _method_name(method)
    if own and named in METHODS:  # a built-in's name means the built-in, wherever the IR is read
        named = f"own {named}"
    node = Select(
        UNPLACED,
        UNPLACED,
        variable,
        texts,
        None if ends_turn is None else limits.boolean("ends_turn", ends_turn),
        drawn or None,
        named,
    )
    return Expression((Leaf(node, members, method if own else None),))


def _method_name(method: object) -> str:
    for holder in (method, type(method)):
        found = getattr(holder, "name", None) or getattr(holder, "__name__", None)
        if isinstance(found, str) and found:
            return found
    return "a method of its own"


def image(source: Any) -> Expression:
    """A picture, for a backend that has vision.

    Args:
        source: The path of its file, the bytes of it, or a PIL image. Read at once.

    Raises:
        ProgramError: It cannot be read, is empty, too large or no picture: PNG, JPEG, GIF, WebP
            or BMP by its first bytes.
    """
    found = read_image(source)
    node = Image(UNPLACED, UNPLACED, found.name, found.digest)
    return Expression((Leaf(node, beside=found),))


def separate_reasoning(
    expr: str | Expression | None = None, model_type: str | None = None
) -> Expression:
    """``expr`` with the reasoning cut out of its generations.

    ``s["x"]`` is then the answer alone, ``s["x_reasoning_content"]`` the reasoning, which leaves
    the prompt too. Selects have none and stay as they are.

    Args:
        expr: What generates, as in ``lm.gen("x")``; its generations have names.
        model_type: Whose markers: "deepseek-r1", "qwen3", "qwen3-thinking", "glm45", "kimi" or
            "step3".

    Raises:
        ProgramError: An unknown model type, or nothing in expr generates under a name.
    """
    markers = reasoning.checked_type(model_type)
    leaves = as_expression("" if expr is None else expr).leaves
    if not any(isinstance(leaf.node, Gen) for leaf in leaves):
        raise ProgramError(
            'separate_reasoning: nothing in it generates: write separate_reasoning(lm.gen("x"), '
            "model_type=…)."
        )
    if any(isinstance(leaf.node, Gen) and not leaf.node.name for leaf in leaves):
        raise ProgramError(
            "separate_reasoning: a generation has no name, which the variable of its reasoning "
            'is called after: write lm.gen("x").'
        )
    cut = [
        replace(leaf, node=replace(leaf.node, reasoning=markers))
        if isinstance(leaf.node, Gen)
        else leaf
        for leaf in leaves
    ]
    for leaf in cut:
        if isinstance(leaf.node, Gen):
            check_combination(leaf.node)
    return Expression(tuple(cut))


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


def system(expr: str | Expression = "") -> Expression:
    """A system turn."""
    return expression.turn("system", expr)


def user(expr: str | Expression = "") -> Expression:
    """A user turn."""
    return expression.turn("user", expr)


def assistant(expr: str | Expression = "") -> Expression:
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
