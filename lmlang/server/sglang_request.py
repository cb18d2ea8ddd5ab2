"""The body of SGLang's ``/generate`` as requests of ours: pure translation, refusals by name.

A field that is null says nothing. What a field has as a list, it has one of for each prompt.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmlang import limits
from lmlang.errors import ProgramError, ProgramTypeError, an, quote
from lmlang.grammar.spec import Ebnf, JsonSchema, Regex, Spec
from lmlang.protocol import (
    Backend,
    Prompt,
    Request,
    SamplingParams,
    Tag,
    Text,
    TokenAware,
    Tokens,
)
from lmlang.server.config import ServerConfig

MAX_NEW_TOKENS = 128
"""Where a request does not say."""
LONGEST_ID = 128
"""Characters of a rid."""
ANY_JSON = "$$ANY$$"
"""What stands for any JSON in ``json_schema``."""

SAMPLING: Mapping[str, str] = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids")},
    **{name: name for name in ("stop_regex", "frequency_penalty", "presence_penalty")},
    **{name: name for name in ("repetition_penalty", "ignore_eos", "logit_bias")},
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "no_stop_trim": "include_stop",
}
"""Fields of ``sampling_params`` and what they are called here."""
CONSTRAINTS: Mapping[str, Callable[[Any], Spec]] = {
    "regex": Regex,
    "json_schema": lambda schema: JsonSchema.of(True if schema == ANY_JSON else schema),
    "ebnf": Ebnf,
}
OTHERS = frozenset({"n", "sampling_seed", "skip_special_tokens", "spaces_between_special_tokens"})
"""Fields of ``sampling_params`` that are no parameters of sampling here."""

BODY = frozenset(
    {
        *("text", "input_ids", "sampling_params", "rid", "stream", "extra_key", "priority"),
        "lora_path",
        *("return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs"),
    }
)
MENDS: Mapping[str, str] = {
    "custom_logit_processor": "a server runs no code of its clients",
    "custom_params": "a server runs no code of its clients",
    "image_data": "this model reads text alone",
    "session_params": "send the whole text each time: what was computed of it is kept",
    "structural_tag": "say it as json_schema, regex or ebnf",
    "token_ids_logprob": "ask for top_logprobs_num",
}
"""What to do instead of what is not available."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a client wants to be told of one output.

    Args:
        prompt_tokens: Of its prompt.
        logprobs: Whether log-probabilities are told.
        top: Of how many of the likeliest tokens, at each place.
        texts: Whether tokens are told as texts too.
        silent: No token was asked for, and one is drawn for its log-probability alone.
    """

    prompt_tokens: int
    logprobs: bool = False
    top: int = 0
    texts: bool = False
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """What a body asks for.

    Args:
        requests: The samples of the first prompt, then those of the second, ….
        reports: One for each request.
        is_list: Whether the answer is a list.
        stream: Whether it comes in pieces.
        rid: The client's name for all of it; None: it gave none.
        constraint: The field that holds the first constraint; "" where there is none.
    """

    requests: tuple[Request, ...]
    reports: tuple[Report, ...]
    is_list: bool
    stream: bool
    rid: str | None
    constraint: str = ""


@dataclass(frozen=True, slots=True)
class Sampling:
    """What ``sampling_params`` ask for; ``field`` is the one that holds the constraint."""

    params: SamplingParams
    constraint: Spec | None
    field: str
    n: int
    seed: int | None

    def draw_key(self, sample: int) -> int:
        """The noise of one sample: the seed's, or new."""
        if self.seed is None:
            return secrets.randbits(64)
        digest = hashlib.blake2b(f"{self.seed} {sample}".encode(), digest_size=8)
        return int.from_bytes(digest.digest(), "little")


def asked_for(body: Mapping[str, Any], backend: Backend, config: ServerConfig) -> Asked:
    """The requests of a body. Encodes its prompts: not for the event loop.

    Raises:
        LMLangError: What is refused; the message names the field.
    """
    given = _known("", body, BODY)
    prompts, is_list = _prompts(given, backend, config)
    count = len(prompts)
    stream = _flag(given, "stream")
    texts = _flag(given, "return_text_in_logprobs")
    samplings = [
        _sampling({} if held is None else held)
        for held in _each("sampling_params", given, count, None)
    ]
    config.check_counts(count, samplings[0].n)
    if any(sampling.n != samplings[0].n for sampling in samplings):
        raise ProgramError("sampling_params: n must be the same for all prompts.")
    columns = {
        name: _each(name, given, count, default)
        for name, default in [
            ("return_logprob", False),
            ("logprob_start_len", -1),
            ("top_logprobs_num", 0),
            ("extra_key", ""),
            ("priority", 0),
            ("lora_path", None),
        ]
    }
    requests: list[Request] = []
    reports: list[Report] = []
    for number, ((prompt, length), sampling) in enumerate(zip(prompts, samplings, strict=True)):
        row = {name: column[number] for name, column in columns.items()}
        made, report = _request(prompt, length, sampling, row, texts, config)
        requests += [made(sample) for sample in range(sampling.n)]
        reports += [report] * sampling.n
    return Asked(
        tuple(requests),
        tuple(reports),
        is_list or samplings[0].n > 1,
        stream,
        _rid(given.get("rid")),
        next((sampling.field for sampling in samplings if sampling.field), ""),
    )


def prompt_of(text: str, backend: Backend) -> Prompt:
    """A prompt whose template the client has written: what spells a control token in it is one.

    A backend that knows of no control tokens reads it as the text that it is.
    """
    if isinstance(backend, TokenAware):
        return Prompt.of(Tokens(tuple(backend.template_ids(text)), text))
    return Prompt.of(Text(text))


def ids_of(name: str, value: object) -> tuple[int, ...]:
    """A list of token ids."""
    if not isinstance(value, list):
        raise _mistyped(name, "a list of token ids", value)
    for token in value:
        limits.integer(name, token, 0, 2**31 - 1)
    return tuple(value)


def _request(
    prompt: Prompt,
    length: int,
    sampling: Sampling,
    row: Mapping[str, Any],
    texts: bool,
    config: ServerConfig,
) -> tuple[Callable[[int], Request], Report]:
    """What makes the request of each sample, and what is told of all of them."""
    logprobs = limits.boolean("return_logprob", row["return_logprob"])
    start = limits.integer("logprob_start_len", row["logprob_start_len"], -1, limits.MAX_TOKENS)
    top = limits.integer("top_logprobs_num", row["top_logprobs_num"], 0, config.max_top_logprobs)
    priority = limits.integer("priority", row["priority"], -(2**31), 2**31 - 1)
    namespace = _text("extra_key", row["extra_key"])
    lora = limits.adapter("lora_path", row["lora_path"])
    params = sampling.params
    silent = logprobs and params.max_tokens == 0 and sampling.constraint is None
    if silent:
        start = max(start, 0)
        params = replace(params, max_tokens=1)
    if logprobs and start >= max(1, length):
        raise ProgramError(
            f"logprob_start_len={start:,} lies behind the prompt, which has {length:,} tokens."
        )

    def made(sample: int) -> Request:
        return Request(
            prompt,
            params,
            draw_key=sampling.draw_key(sample),
            top_logprobs=top if logprobs else 0,
            input_logprobs_from=first_told(start) if logprobs else None,
            tag=Tag(priority=priority),
            namespace=namespace,
            constraint=sampling.constraint,
            lora=lora,
        )

    return made, Report(length, logprobs, top if logprobs else 0, texts, silent)


def first_told(start: int) -> int | None:
    """The first prompt token whose log-probability is told; None: none is.

    By ``logprob_start_len`` L it is the one behind token L; for 0 it is the very first, which has
    none. Only so do all choices methods of SGLang's frontend work.
    """
    if start < 0:
        return None
    return start + 1 if start else 0


def _sampling(held: object) -> Sampling:
    """What one object of ``sampling_params`` asks for."""
    if not isinstance(held, dict):
        raise _mistyped("sampling_params", "an object", held)
    given = _known("sampling_params.", held, OTHERS | SAMPLING.keys() | CONSTRAINTS.keys())
    if not _flag(given, "skip_special_tokens", True):
        raise ProgramError(
            "skip_special_tokens=false is not available: control tokens are no part of an "
            "output's text here; read output_ids."
        )
    _flag(given, "spaces_between_special_tokens", True)  # of which there are none
    most = limits.integer(
        "max_new_tokens", given.get("max_new_tokens", MAX_NEW_TOKENS), 0, limits.MAX_TOKENS
    )
    least = limits.integer("min_new_tokens", given.get("min_new_tokens", 0), 0, limits.MAX_TOKENS)
    if least > most:
        raise ProgramError(f"min_new_tokens={least:,} is more than max_new_tokens={most:,}.")
    _flag(given, "no_stop_trim")
    field, constraint = _constraint(given)
    if constraint is not None and least:
        raise ProgramError(
            f"min_new_tokens={least:,} cannot act beside a constraint, which says where the "
            "output ends: leave one of them out."
        )
    own = {ours: given[theirs] for theirs, ours in SAMPLING.items() if theirs in given}
    own |= {"max_tokens": most, "min_tokens": least, "logit_bias": _bias(given.get("logit_bias"))}
    seed = given.get("sampling_seed")
    if seed is not None:
        seed = limits.integer("sampling_seed", seed, -(2**63), 2**63 - 1)
    n = limits.integer("n", given.get("n", 1), 1, limits.MAX_SAMPLES)
    return Sampling(SamplingParams(**own), constraint, field, n, seed)


def _constraint(given: Mapping[str, Any]) -> tuple[str, Spec | None]:
    """The one constraint there is, and the field that holds it."""
    named = [name for name in CONSTRAINTS if name in given]
    if not named:
        return "", None
    if len(named) > 1:
        raise ProgramError(f"{' and '.join(named)} cannot both act: leave one of them out.")
    (name,) = named
    value = given[name]
    if not isinstance(value, str) and not (name == "json_schema" and isinstance(value, dict)):
        raise _mistyped(name, "a text", value)
    if not value and isinstance(value, str):
        raise ProgramError(f"{name} is an empty text: leave it out, or say what is allowed.")
    return name, CONSTRAINTS[name](value)


def _bias(held: object) -> dict[int, Any]:
    if held is None:
        return {}
    if not isinstance(held, dict):
        raise _mistyped("logit_bias", "an object of token ids and numbers", held)
    for key in held:
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise ProgramError(f"logit_bias has the key {quote(key)}: its keys are token ids.")
    return {int(key): bias for key, bias in held.items()}


def _prompts(
    given: Mapping[str, Any], backend: Backend, config: ServerConfig
) -> tuple[list[tuple[Prompt, int]], bool]:
    """The prompts with their lengths in tokens, and whether they came as a list."""
    if ("text" in given) == ("input_ids" in given):
        raise ProgramError("a request has either text or input_ids: give one of them.")
    if "text" in given:
        value, is_list = given["text"], isinstance(given["text"], list)
    else:
        value = given["input_ids"]
        is_list = isinstance(value, list) and bool(value) and isinstance(value[0], list)
    held = value if is_list else [value]
    if not held:
        raise ProgramError("text is an empty list: give at least one prompt.")
    config.check_counts(len(held))
    prompts = []
    for one in held:
        if "text" in given:
            prompt = prompt_of(_text("text", one), backend)
        else:
            ids = ids_of("input_ids", one)
            prompt = Prompt.of(Tokens(ids, backend.decode(ids)))
        length = len(backend.encode(prompt))
        if not length:
            name = "text" if "text" in given else "input_ids"
            raise ProgramError(f"{name} is empty: there is nothing to go on from.")
        prompts.append((prompt, length))
    return prompts, is_list


def _each(name: str, given: Mapping[str, Any], count: int, default: object) -> Sequence[Any]:
    """A field's value for each prompt."""
    value = given.get(name)
    if not isinstance(value, list):
        return [default if value is None else value] * count
    if len(value) != count:
        raise ProgramError(f"{name} has {len(value):,} values for {count:,} prompts.")
    return [default if one is None else one for one in value]


def _known(place: str, given: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """The fields that say something; the others are refused, unless they ask for nothing."""
    for name, value in given.items():
        if (
            name not in known
            and not _asks_nothing(value)
            and (name, value) != ("log_metrics", True)
        ):
            mend = MENDS.get(name, "leave it out")
            raise ProgramError(f"{quote(place + name)[1:-1]} is not available here: {mend}.")
    return {name: given[name] for name in given if name in known and given[name] is not None}


def _asks_nothing(value: object) -> bool:
    return all(map(_asks_nothing, value)) if isinstance(value, list) else not value


def _rid(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, list):
        raise ProgramTypeError(
            "rid is a list: give one name for the whole request, which is ended as a whole."
        )
    text = _text("rid", value)
    if not 0 < len(text) <= LONGEST_ID:
        raise ProgramError(
            f"rid has {len(text):,} characters: it must have from 1 to {LONGEST_ID}."
        )
    return text


def _flag(given: Mapping[str, Any], name: str, default: bool = False) -> bool:
    return limits.boolean(name, given.get(name, default))


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise _mistyped(name, "a text", value)
    return value


def _mistyped(name: str, must: str, value: object) -> ProgramTypeError:
    kinds = {"dict": "object", "str": "text", "NoneType": "null"}
    kind = type(value).__name__
    return ProgramTypeError(f"{name} must be {must}, not {an(kinds.get(kind, kind))}.")
