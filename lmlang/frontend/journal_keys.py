"""The keys of a journal: digests of pure requests, and of rows under a version of their program.

    request    fingerprint, prompt, params, constraint, draw key, what is to be told of the answer
    row        version, program, row key, arguments, seed, keywords of the run, fingerprint

What has no influence on an answer is no part of its key: where in a program it was asked for, and
the draw key where nothing is drawn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from lmlang.errors import ProgramError, quote
from lmlang.frontend import draws, runlog
from lmlang.frontend.options import GenDefaults
from lmlang.grammar.spec import Spec
from lmlang.protocol import (
    BackendInfo,
    Image,
    Prompt,
    Request,
    SamplingParams,
    ScoreRequest,
    Text,
)
from lmlang.wire import forms
from lmlang.wire.values import PARAMS, SEGMENT, SPEC


def of_request(request: Request, fingerprint: str) -> bytes:
    """The key of a generation.

    Raises:
        ProgramError: It depends on what has no canonical form.
    """
    if request.processor is not None:
        raise ProgramError(
            "logits_processor is a function, which a journal cannot tell from another one: leave "
            "it out, or run the batch without journal."
        )
    return _digest(
        "generation",
        fingerprint,
        _prompt(request.prompt),
        _params(request.params),
        "" if request.constraint is None else _constraint(request.constraint),
        request.draw_key if request.params.temperature > 0 else None,
        request.top_logprobs,
        request.input_logprobs_from,
        request.probs,
        request.on_budget,
        request.provenance,
    )


def of_scoring(request: ScoreRequest, fingerprint: str) -> bytes:
    """The key of the scores of choices."""
    return _digest(
        "scores",
        fingerprint,
        _prompt(request.prompt),
        list(request.choices),
        request.end_turn,
        request.unconditional,
    )


def of_row(
    version: str,
    program: str,
    row_key: bytes,
    arguments: Mapping[str, object],
    seed: int,
    gen: GenDefaults,
    max_program_tokens: int | None,
    fingerprint: str,
) -> bytes:
    """The key of what a row came to."""
    try:
        told = draws.digest(arguments).hex()
    except draws.NoCanonicalForm:  # then the row has a key that its caller gave
        told = None
    return _digest(
        "row",
        [version, runlog.VERSION],
        program,
        row_key.hex(),
        told,
        seed,
        [_params(gen.params), gen.n, draws.digest(gen.report).hex()],
        max_program_tokens,
        fingerprint,
    )


def fingerprint_of(info: BackendInfo, lora: str | None) -> str:
    """What stands for the model under an adapter.

    Raises:
        ProgramError: The backend does not say what it is.
    """
    if info.fingerprint is None:
        raise ProgramError(
            f"journal: the backend {quote(info.model)} has no fingerprint, so that its answers "
            "could not be told from those of another model: give one whose info().fingerprint "
            "says what it is. (A Runtime has one where its model was loaded from files.)"
        )
    if lora is None:
        return info.fingerprint
    prints = dict(zip(info.adapters, info.adapter_fingerprints, strict=False))
    return forms.dumps([info.fingerprint, lora, prints.get(lora)])


def _digest(*parts: Any) -> bytes:
    text = forms.dumps(parts)
    return hashlib.blake2b(text.encode("ascii"), digest_size=32).digest()


def _prompt(prompt: Prompt) -> list[Any]:
    """A prompt's segments; texts that follow one another are one, as they are when it is read."""
    found: list[Any] = []
    texts: list[str] = []
    for segment in prompt.segments():
        if isinstance(segment, Text):
            texts.append(segment.text)
            continue
        if texts:
            found.append("".join(texts))
            texts = []
        if isinstance(segment, Image):
            found.append({"image": segment.digest})
        else:
            found.append(SEGMENT.write(segment))
    if texts:
        found.append("".join(texts))
    return found


@lru_cache(maxsize=1024)
def _params(params: SamplingParams) -> str:
    return forms.dumps(PARAMS.write(params))


@lru_cache(maxsize=256)
def _constraint(spec: Spec) -> str:
    return forms.dumps(SPEC.write(spec))
