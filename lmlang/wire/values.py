"""The values of the protocol as JSON: prompts, requests, events, outputs, scores.

    prompt    [{"turn": "user"}, {"text": "Hi"}, {"end_turn": true}, {"ids": [5, 9], "text": "Yes"}]
    request   {"prompt": [...], "params": {"max_tokens": 8}, "constraint": {"regex": "[0-9]+"}}
    event     {"index": 0, "ids": [5], "text": "Ye", "logprobs": [-0.25]}

Fields that have their default value are left out.
"""

from __future__ import annotations

from typing import Any, NoReturn

from lmlang.errors import ProgramError
from lmlang.grammar.spec import Choice, Ebnf, Either, Hole, JsonSchema, Regex, Spec
from lmlang.protocol import (
    BackendInfo,
    ChoiceScore,
    EndTurn,
    Event,
    Finish,
    Image,
    InputLogprobs,
    Output,
    Prompt,
    Provenance,
    Request,
    SamplingParams,
    ScoreRequest,
    Scores,
    Segment,
    Tag,
    Text,
    Tokens,
    Turn,
    Usage,
)
from lmlang.wire.forms import (
    COUNT,
    FLAG,
    INTEGER,
    NUMBER,
    TEXT,
    Form,
    either,
    made,
    optional,
    pair,
    read_fields,
    refuse,
    scalar,
    sequence,
    short_record,
    word,
)

ID = scalar(int, "a token id from 0 to 2147483647", lambda value: 0 <= value < 2**31)
IDS = sequence(ID)
_LOWEST = float("-inf")


def _write_logprob(value: float) -> float | str:
    return "-inf" if value == _LOWEST else value


def _read_logprob(value: Any, place: str) -> float:
    return _LOWEST if value == "-inf" else NUMBER.read(value, place)


LOGPROB = Form(_write_logprob, _read_logprob)
"""A number, or "-inf": that of what cannot be."""

# ------------------------------------------------------------------------------ prompts


def _write_segment(segment: Segment) -> dict[str, Any]:
    match segment:
        case Text(text):
            return {"text": text}
        case Turn(role):
            return {"turn": role}
        case EndTurn():
            return {"end_turn": True}
        case Tokens(ids, text, heals):
            found: dict[str, Any] = {"ids": list(ids), "text": text}
            return found | {"heals": True} if heals else found
        case Image():
            raise ProgramError(
                "a picture cannot be sent to a server: run the program on a backend in this "
                "process that has vision."
            )


def _read_segment(value: Any, place: str) -> Segment:
    # "ids" before "text", which tokens have too
    kinds = ("ids", "text", "turn", "end_turn")
    kind = next((kind for kind in kinds if isinstance(value, dict) and kind in value), None)
    if kind is None:
        refuse(place, "a segment: text, turn, end_turn or ids with their text", value)
    if kind == "ids":
        return Tokens(**read_fields(value, place, _TOKENS, ("heals",)))
    if kind == "text":
        return Text(**read_fields(value, place, {"text": TEXT}))
    if kind == "turn":
        role = read_fields(value, place, {"turn": TEXT})["turn"]
        turn: Turn = made(Turn, {"role": role}, place)
        return turn
    read_fields(value, place, {"end_turn": _TRUE})
    return EndTurn()


_TRUE = scalar(bool, "true", bool)
_TOKENS = {"ids": IDS, "text": TEXT, "heals": FLAG}
SEGMENT = Form(_write_segment, _read_segment)
_SEGMENTS = sequence(SEGMENT)
PROMPT = Form(
    lambda prompt: _SEGMENTS.write(prompt.segments()),
    lambda value, place: Prompt.of(*_SEGMENTS.read(value, place)),
)

# ------------------------------------------------------------------------------ constraints

_TEXTS = sequence(TEXT)
_STYLE = either(TEXT, INTEGER)


def _write_spec(spec: Spec) -> dict[str, Any]:
    match spec:
        case Regex(pattern):
            return {"regex": pattern}
        case JsonSchema(text, style):
            return {"json_schema": text, "style": style}
        case Ebnf(text, root):
            return {"ebnf": text, "root": root}
        case Choice(texts):
            return {"choice": list(texts)}
        case Either(specs):
            return {"either": [_write_spec(each) for each in specs]}
        case Hole(schema, before, lead, after):
            return {"hole": _write_spec(schema), "before": before, "lead": lead, "after": after}


_SPECS: dict[str, tuple[type, dict[str, tuple[str, Form]]]] = {
    "regex": (Regex, {"regex": ("pattern", TEXT)}),
    "json_schema": (JsonSchema, {"json_schema": ("text", TEXT), "style": ("style", _STYLE)}),
    "ebnf": (Ebnf, {"ebnf": ("text", TEXT), "root": ("root", TEXT)}),
    "choice": (Choice, {"choice": ("texts", _TEXTS)}),
}
"""Kinds of specs by the field that tells them apart: its fields in JSON, those of the spec."""


def _read_spec(value: Any, place: str) -> Spec:
    """A spec; alternatives hold no alternatives, so that nothing nests."""
    if isinstance(value, dict) and "either" in value:
        specs = read_fields(value, place, {"either": sequence(_PLAIN_SPEC)})["either"]
        either_: Spec = made(Either, {"specs": specs}, place)
        return either_
    if isinstance(value, dict) and "hole" in value:
        fields = {"hole": _PLAIN_SPEC, "before": TEXT, "lead": TEXT, "after": optional(TEXT)}
        held = read_fields(value, place, fields)
        hole: Spec = made(Hole, {"schema": held.pop("hole"), **held}, place)
        return hole
    return _read_plain_spec(value, place)


def _read_plain_spec(value: Any, place: str) -> Spec:
    kind = next((kind for kind in _SPECS if isinstance(value, dict) and kind in value), None)
    if kind is None:
        refuse(place, "a constraint: regex, json_schema, ebnf, choice, either or hole", value)
    make, forms = _SPECS[kind]
    found = read_fields(value, place, {key: form for key, (_, form) in forms.items()}, _OPTIONAL)
    spec: Spec = made(make, {forms[key][0]: held for key, held in found.items()}, place)
    return spec


_OPTIONAL = ("style", "root")
_PLAIN_SPEC = Form(_write_spec, _read_plain_spec)
SPEC = Form(_write_spec, _read_spec)

# ------------------------------------------------------------------------------ requests

PARAMS = short_record(
    SamplingParams,
    {
        "max_tokens": COUNT,
        "temperature": NUMBER,
        "top_p": NUMBER,
        "top_k": INTEGER,
        "min_p": NUMBER,
        "stop": _TEXTS,
        "ignore_eos": FLAG,
        "min_tokens": COUNT,
        "stop_token_ids": IDS,
        "include_stop": FLAG,
        "frequency_penalty": NUMBER,
        "presence_penalty": NUMBER,
        "repetition_penalty": NUMBER,
        "logit_bias": sequence(pair(ID, NUMBER)),
        "stop_regex": _TEXTS,
        "heal": FLAG,
    },
)
_TAG = short_record(Tag, {"run_id": TEXT, "op_path": TEXT, "priority": INTEGER})


def _read_draw_key(value: Any, place: str) -> int:
    if type(value) is str and value.isdecimal() and value.isascii() and len(value) <= 20:
        value = int(value)
    if type(value) is not int or not 0 <= value < 2**64:
        refuse(place, "an integer from 0 to 18446744073709551615, or its decimal digits", value)
    return value


DRAW_KEY = Form(str, _read_draw_key)
"""As decimal digits: many readers of JSON have 53 bits only."""


def _write_processor(_: object) -> NoReturn:
    raise ProgramError(
        "logits_processor is a function of this process, which no server can call: leave it out, "
        "or run the program on a Runtime in this process."
    )


def _read_processor(value: Any, place: str) -> NoReturn:
    refuse(place, "no such field: functions are never sent", value)


REQUEST = short_record(
    Request,
    {
        "prompt": PROMPT,
        "params": PARAMS,
        "draw_key": DRAW_KEY,
        "top_logprobs": COUNT,
        "input_logprobs_from": optional(COUNT),
        "tag": _TAG,
        "namespace": TEXT,
        "probs": FLAG,
        "constraint": optional(SPEC),
        "on_budget": word("close", "raise"),
        "provenance": FLAG,
        "processor": Form(_write_processor, _read_processor),
        "resumed": IDS,
        "lora": optional(TEXT),
    },
)
SCORE_REQUEST = short_record(
    ScoreRequest,
    {
        "prompt": PROMPT,
        "choices": _TEXTS,
        "end_turn": FLAG,
        "tag": _TAG,
        "unconditional": FLAG,
        "namespace": TEXT,
        "lora": optional(TEXT),
    },
)

# ------------------------------------------------------------------------------ answers

_LOGPROBS = sequence(LOGPROB)
_TOP = sequence(sequence(pair(ID, LOGPROB)))
FINISH = short_record(
    Finish,
    {
        "reason": word("stop", "eos", "length", "complete", "forced_close"),
        "stop": optional(either(TEXT, ID)),
    },
)
USAGE = short_record(
    Usage,
    {
        "prompt_tokens": COUNT,
        "cached_tokens": COUNT,
        "generated_tokens": COUNT,
        "scored_tokens": COUNT,
        "forced_tokens": COUNT,
        "forced_closes": COUNT,
    },
)
EVENT = short_record(
    Event,
    {
        "index": COUNT,
        "ids": IDS,
        "text": TEXT,
        "logprobs": _LOGPROBS,
        "finish": optional(FINISH),
        "top_logprobs": _TOP,
    },
)
_INPUT_LOGPROBS = short_record(
    InputLogprobs,
    {"start": COUNT, "ids": IDS, "logprobs": sequence(optional(LOGPROB)), "top": _TOP},
)
_PROVENANCE = short_record(
    Provenance,
    {"forced": FLAG, "legal": COUNT, "masked": NUMBER, "best": ID, "pointer": TEXT},
)
OUTPUT = short_record(
    Output,
    {
        "text": TEXT,
        "ids": IDS,
        "logprobs": _LOGPROBS,
        "finish": FINISH,
        "usage": USAGE,
        "history": _SEGMENTS,
        "top_logprobs": _TOP,
        "input_logprobs": optional(_INPUT_LOGPROBS),
        "probs": sequence(NUMBER),
        "top_probs": sequence(sequence(pair(ID, NUMBER))),
        "provenance": sequence(_PROVENANCE),
    },
)
_CHOICE_SCORE = short_record(
    ChoiceScore,
    {"ids": IDS, "logprobs": _LOGPROBS, "unconditional": sequence(optional(LOGPROB))},
)
SCORES = short_record(Scores, {"choices": sequence(_CHOICE_SCORE), "usage": USAGE})
INFO = short_record(
    BackendInfo,
    {
        "model": TEXT,
        "context_length": optional(COUNT),
        "can_score": FLAG,
        "has_tokens": FLAG,
        "has_vision": FLAG,
        "thinking": optional(pair(ID, ID)),
        "implementation": optional(TEXT),
        "kernels": optional(TEXT),
        "weights": optional(TEXT),
        "adapters": _TEXTS,
        "fingerprint": optional(TEXT),
        "adapter_fingerprints": _TEXTS,
        "tools": optional(word("tagged", "bare")),
    },
)
