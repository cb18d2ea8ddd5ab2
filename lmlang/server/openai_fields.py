"""Fields of OpenAI's requests: read one by one, refused by name, unknown ones too."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from lmlang import limits
from lmlang.errors import (
    BudgetExceeded,
    ConstraintError,
    ContextOverflow,
    LMLangError,
    ProgramError,
    SchemaUnsupported,
    an,
    quote,
)
from lmlang.protocol import SamplingParams
from lmlang.server.refusals import Refusal

T = TypeVar("T")

IGNORED: Mapping[str, type] = {
    **dict.fromkeys(("metadata", "prediction", "prompt_cache_options"), dict),
    **dict.fromkeys(("prompt_cache_key", "prompt_cache_retention", "safety_identifier"), str),
    **dict.fromkeys(("service_tier", "user"), str),
}
"""Fields of OpenAI's that change no answer here, and their types: who asks, how it is billed, what
may be cached."""

SETTLED: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "reasoning_effort": ("none",),
    "store": (False,),
    "suffix": ("",),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields that would change the answer and are not available, and their values that would not."""

MENDS: Mapping[str, str] = {
    "best_of": "ask for n answers and choose among them",
    "chat_template": "a template belongs to the server",
    "chat_template_kwargs": "a template belongs to the server",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "suffix": "this model writes at the end only",
}

SAMPLING = frozenset(
    {
        *("temperature", "top_p", "n", "seed", "stop", "logit_bias"),
        *("frequency_penalty", "presence_penalty", "max_tokens", "stream", "stream_options"),
        *("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids"),
        *("regex", "ebnf"),
    }
)
"""Fields of both routes. The last two lines are ours, in the words that other servers have too."""


def wrong(param: str | None, message: str, code: str = "invalid_value") -> Refusal:
    """The refusal of a field."""
    return Refusal(400, message, param=param, code=code)


def checked(param: str, check: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """What a check gives; its refusal names the field."""
    try:
        return check(*arguments, **named)
    except TypeError as error:
        raise wrong(param, str(error), "invalid_type") from None
    except ProgramError as error:
        raise wrong(param, str(error)) from None
    except ConstraintError as error:
        raise refused(error, {"constraint": param}) from None


def refused(error: LMLangError, params: Mapping[str, str]) -> LMLangError:
    """An error as OpenAI's clients know it, with the field that it is about.

    Args:
        error: What a generation ended with.
        params: The fields of the request that hold its "prompt", "budget" and "constraint".
    """
    message = str(Exception.__str__(error))
    if isinstance(error, ContextOverflow):
        return wrong(params.get("prompt"), message, "context_length_exceeded")
    if isinstance(error, BudgetExceeded):
        return wrong(params.get("budget"), message)
    if isinstance(error, SchemaUnsupported):
        place = f" (at {quote(error.pointer)})" if error.pointer not in message else ""
        return wrong(params.get("constraint"), message + place, "unsupported_schema")
    if isinstance(error, ConstraintError):
        return wrong(params.get("constraint"), message, "invalid_constraint")
    if isinstance(error, ProgramError):
        if message.startswith("the constraint "):
            return wrong(params.get("constraint"), message)
        # other messages begin with the parameter that they are about, or are of the prompt
        named = re.match("[a-z_]+", message)
        known = named is not None and named[0] in SAMPLING
        return wrong(named[0] if named and known else params.get("prompt"), message)
    return error


class Fields:
    """The fields of one JSON object; null is the same as none.

    Args:
        held: The object.
        known: Its fields, besides `IGNORED` and `SETTLED`.
        place: Where it stands in the body; "" for the body itself.

    Raises:
        Refusal: It has another field, or one of `SETTLED` that asks for something.
    """

    def __init__(self, held: object, known: frozenset[str], place: str = "") -> None:
        self._place = place
        if not isinstance(held, dict):
            raise wrong(place, f"{place} must be an object, not {kind(held)}.", "invalid_type")
        self._held = {name: value for name, value in held.items() if value is not None}
        for name, value in self._held.items():
            if name in known:
                continue
            if not place and name in IGNORED:
                if not isinstance(value, IGNORED[name]):
                    must = "an object" if IGNORED[name] is dict else "a string"
                    raise self.mistyped(name, must, value)
                continue
            if not place and name in SETTLED:
                if not any(same(value, harmless) for harmless in SETTLED[name]):
                    mend = MENDS.get(name, "leave it out")
                    raise wrong(
                        name, f"{name} is not available here: {mend}.", "unsupported_parameter"
                    )
                continue
            raise wrong(
                quote(self.path(name))[1:-1],
                f"unknown parameter: {quote(self.path(name))}.",
                "unknown_parameter",
            )

    def __contains__(self, name: str) -> bool:
        return name in self._held

    def path(self, name: str) -> str:
        """A field as OpenAI's errors name it."""
        return f"{self._place}.{name}" if self._place else name

    def get(self, name: str) -> Any:
        """The value as it is; None where there is none."""
        return self._held.get(name)

    def need(self, name: str) -> Any:
        """The value as it is."""
        if name not in self._held:
            raise wrong(
                self.path(name),
                f"missing required parameter: {quote(self.path(name))}.",
                "missing_required_parameter",
            )
        return self._held[name]

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        value = self.need(name) if default is None else self._held.get(name, default)
        if not isinstance(value, str):
            raise self.mistyped(name, "a string", value)
        return value

    def listed(self, name: str) -> list[Any]:
        """A list; an empty one where there is none."""
        value = self._held.get(name, [])
        if not isinstance(value, list):
            raise self.mistyped(name, "a list", value)
        return value

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """An integer within bounds."""
        value = self._held.get(name, default)
        return checked(self.path(name), limits.integer, self.path(name), value, low, high)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """A finite number within bounds."""
        value = self._held.get(name, default)
        return checked(self.path(name), limits.number, self.path(name), value, low, high)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._held.get(name, default)
        if not isinstance(value, bool):
            raise self.mistyped(name, "true or false", value)
        return value

    def mistyped(self, name: str, must: str, value: object) -> Refusal:
        """The refusal of a value of the wrong type."""
        path = self.path(name)
        return wrong(path, f"{path} must be {must}, not {kind(value)}.", "invalid_type")


def sampling(fields: Fields, max_tokens: int) -> SamplingParams:
    """How the tokens are drawn, by the fields of `SAMPLING`."""
    top_p, top_k = fields.number("top_p", 1.0, 0.0, 1.0), fields.get("top_k")
    if top_p == 0:  # the likeliest token alone
        top_p, top_k = 1.0, 1
    given: dict[str, Any] = {
        "temperature": fields.number("temperature", 1.0, 0.0, 2.0),
        "frequency_penalty": fields.number("frequency_penalty", 0.0, -2.0, 2.0),
        "presence_penalty": fields.number("presence_penalty", 0.0, -2.0, 2.0),
        "min_p": fields.number("min_p", 0.0, 0.0, 1.0),
        "stop": checked("stop", limits.stop_strings, fields.get("stop")),
        "logit_bias": _biases(fields),
        "top_k": -1 if top_k is None else checked("top_k", limits.top_k, top_k),
        "stop_token_ids": checked(
            "stop_token_ids", limits.token_ids, "stop_token_ids", fields.get("stop_token_ids")
        ),
        "min_tokens": fields.integer("min_tokens", 0, 0, max_tokens),
        "ignore_eos": fields.flag("ignore_eos"),
    }
    if "repetition_penalty" in fields:
        given["repetition_penalty"] = checked(
            "repetition_penalty",
            *(limits.number, "repetition_penalty", fields.get("repetition_penalty"), 0.0, 10.0),
            above=True,
        )
    return SamplingParams(max_tokens=max_tokens, top_p=top_p, **given)


def seed_of(fields: Fields) -> int | None:
    """The seed; None where there is none."""
    if "seed" not in fields:
        return None
    seed = fields.integer("seed", 0, -limits.MAX_SEED - 1, limits.MAX_SEED)
    return seed & limits.MAX_SEED if seed < 0 else seed


def wants_usage(fields: Fields) -> bool:
    """Whether a stream ends with its usage; refuses stream_options without a stream."""
    if "stream_options" not in fields:
        return False
    known = frozenset({"include_usage", "include_obfuscation"})
    options = Fields(fields.get("stream_options"), known, "stream_options")
    if not fields.flag("stream"):
        raise wrong("stream_options", "stream_options is for streams: set stream to true.")
    options.flag("include_obfuscation")  # random padding against eavesdroppers; none is sent
    return options.flag("include_usage")


def _biases(fields: Fields) -> tuple[tuple[int, float], ...]:
    held = fields.get("logit_bias")
    if held is None:
        return ()
    if not isinstance(held, dict):
        raise fields.mistyped("logit_bias", "an object of token ids and numbers", held)
    pairs = []
    for name, bias in held.items():
        if not (name.isascii() and name.isdecimal() and len(name) <= 10):
            raise wrong("logit_bias", f"logit_bias has the key {quote(name)}: keys are token ids.")
        pairs.append((int(name), bias))
    return checked("logit_bias", limits.logit_bias, pairs)


def same(value: object, other: object) -> bool:
    """Whether two JSON values are the same; true is not 1."""
    return type(value) is type(other) and value == other


def kind(value: object) -> str:
    """What a JSON value is, for messages."""
    names = {dict: "object", list: "list", str: "string", bool: "boolean", int: "integer"}
    return "null" if value is None else an(names.get(type(value), "number"))
