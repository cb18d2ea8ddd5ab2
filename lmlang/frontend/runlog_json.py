"""The parts of a run log as JSON and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lmlang.errors import LMLangError, WireError
from lmlang.frontend import ir
from lmlang.frontend.logged import Choice, Failure, LoggedOperation, Sample
from lmlang.frontend.parser import parse_program
from lmlang.frontend.printer import print_program
from lmlang.frontend.verify import verify
from lmlang.protocol import Provenance, SamplingParams, Usage
from lmlang.wire import forms
from lmlang.wire.forms import COUNT, FLAG, FLOAT, INTEGER, TEXT

_STOP = forms.optional(forms.either(TEXT, INTEGER))
TIME = forms.optional(FLOAT)
MAYBE_COUNT = forms.optional(COUNT)
PARAMS = forms.record(
    SamplingParams,
    {
        "max_tokens": COUNT,
        "temperature": FLOAT,
        "top_p": FLOAT,
        "top_k": INTEGER,
        "min_p": FLOAT,
        "stop": forms.sequence(TEXT),
        "ignore_eos": FLAG,
        "min_tokens": COUNT,
        "stop_token_ids": forms.sequence(COUNT),
        "include_stop": FLAG,
        "frequency_penalty": FLOAT,
        "presence_penalty": FLOAT,
        "repetition_penalty": FLOAT,
        "logit_bias": forms.sequence(forms.pair(COUNT, FLOAT)),
        "stop_regex": forms.sequence(TEXT),
        "heal": FLAG,
    },
)
_USAGE = forms.record(
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
FAILURE = forms.optional(forms.record(Failure, {"type": TEXT, "message": TEXT}))
_TOP = forms.sequence(forms.sequence(forms.pair(COUNT, FLOAT)))
_PROVENANCE = forms.record(
    Provenance,
    {"forced": FLAG, "legal": COUNT, "masked": FLOAT, "best": COUNT, "pointer": TEXT},
)
_SAMPLE = forms.short_record(
    Sample,
    {
        "text": TEXT,
        "tokens": forms.sequence(COUNT),
        "logprobs": forms.sequence(FLOAT),
        "finish": forms.optional(forms.word("stop", "eos", "length", "complete", "forced_close")),
        "stop": _STOP,
        "probs": forms.sequence(FLOAT),
        "top_logprobs": _TOP,
        "top_probs": _TOP,
        "provenance": forms.sequence(_PROVENANCE),
        "thought": TEXT,
        "tries": COUNT,
    },
)
OPERATION = forms.record(
    LoggedOperation,
    {
        "kind": forms.word("gen", "select", "fork", "join", "set", "image", "scope", "call"),
        "status": forms.word("queued", "running", "done", "failed", "cancelled", "skipped"),
        "path": TEXT,
        "state": TEXT,
        "branch": MAYBE_COUNT,
        "source": TEXT,
        "name": forms.optional(TEXT),
        "children": COUNT,
        "usage": _USAGE,
        "samples": forms.sequence(_SAMPLE),
        "choices": forms.sequence(forms.record(Choice, {"text": TEXT, "logprob": FLOAT})),
        "draw_keys": forms.sequence(forms.hexadecimal(16)),
        "first_draw": COUNT,
        "text": forms.optional(TEXT),
        "error": FAILURE,
        "queued": FLOAT,
        "submitted": TIME,
        "first_token": TIME,
        "finished": TIME,
        "made": COUNT,
    },
)


def _write_recording(program: ir.Program) -> dict[str, Any]:
    sources = [[made, source] for made, source in program.sources.items()]
    return {"ir": print_program(program), "sources": sources}


def _read_recording(value: Any, place: str) -> ir.Program:
    found = forms.read_fields(value, place, _RECORDING)
    try:
        program = parse_program(found["ir"])
        verify(program)
    except LMLangError as error:
        raise WireError(f"{place}.ir: {error}") from None
    return replace(program, sources=dict(found["sources"]))


_RECORDING = {"ir": TEXT, "sources": forms.sequence(forms.pair(COUNT, TEXT))}
RECORDING = forms.Form(_write_recording, _read_recording)
SPELLING = forms.sequence(forms.pair(COUNT, TEXT))
