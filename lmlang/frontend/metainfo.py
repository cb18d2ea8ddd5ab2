"""Metadata as SGLang writes it: what ``s.get_meta_info("x")`` returns.

A logprob is a triple (log-probability, token id, text); the text is None unless asked for, and the
log-probability of a prompt's first token, which nothing precedes, is None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lmlang.frontend import selection
from lmlang.frontend.choices import METHODS
from lmlang.frontend.meta import Meta
from lmlang.protocol import TopLogprobs

Decode = Callable[[Sequence[int]], str]
Triple = tuple[float | None, int, str | None]


def meta_info(found: Meta, decode: Decode) -> dict[str, Any] | list[dict[str, Any]]:
    """SGLang's metadata; for n above 1 a list of them.

    Args:
        found: Ours.
        decode: The backend's, for the texts of tokens.
    """
    if found.samples:
        return [_of_one(sample, decode) for sample in found.samples]
    return _of_one(found, decode)


def _of_one(found: Meta, decode: Decode) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": found.id,
        "finish_reason": _finish_reason(found),
        "prompt_tokens": found.prompt_tokens,
        "completion_tokens": found.generated_tokens,
        "cached_tokens": found.cached_tokens,
    }
    if found.method is not None:
        return told | _of_choices(found)
    return told | _logprobs(found, decode) if found.report.return_logprob else told


def _finish_reason(found: Meta) -> dict[str, Any] | None:
    if found.finish in ("length", "forced_close"):
        return {"type": "length", "length": found.generated_tokens}
    if found.finish == "stop":
        return {"type": "stop", "matched": found.stop}
    if found.finish == "complete":
        return {"type": "stop", "matched": None}
    if found.finish == "eos":
        return {"type": "stop", "matched": found.tokens[-1] if found.tokens else None}
    return None


def _of_choices(found: Meta) -> dict[str, Any]:
    """What the choices method decided by."""
    if found.method_info is not None:
        return dict(found.method_info)
    method = METHODS.get(found.method or "")
    if method is None or not found.choices:
        return {}
    names = [str(member) for member in found.choices]
    needs = method.requires_unconditional_logprobs
    evidence = selection.evidence_lists(names, tuple(found.choices.values()), needs)
    return method(**evidence).meta_info or {}


def _logprobs(found: Meta, decode: Decode) -> dict[str, Any]:
    def triple(logprob: float | None, token: int) -> Triple:
        return logprob, token, decode([token]) if found.report.return_text_in_logprobs else None

    def triples(logprobs: Sequence[float | None], ids: Sequence[int]) -> list[Triple]:
        return [triple(logprob, token) for logprob, token in zip(logprobs, ids, strict=True)]

    def tops(places: Sequence[TopLogprobs]) -> list[list[Triple] | None]:
        return [[triple(p, token) for token, p in place] or None for place in places]

    inputs = found.input_logprobs
    assert isinstance(found.logprobs, tuple)
    told: dict[str, Any] = {
        "input_token_logprobs": triples(inputs.logprobs, inputs.ids) if inputs else [],
        "output_token_logprobs": triples(found.logprobs, found.tokens),
    }
    if found.report.top_logprobs_num:
        told["input_top_logprobs"] = tops(inputs.top) if inputs else []
        told["output_top_logprobs"] = tops(found.top_logprobs)
    return told
