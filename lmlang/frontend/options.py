"""The keywords of generations and runs: which act in this version, and what a run starts with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lmlang import limits
from lmlang.errors import ProgramError, quote
from lmlang.frontend.defaults import checked_backend
from lmlang.protocol import Backend, SamplingParams

Accepted = tuple[object, ...]

LATER_IN_GEN: Mapping[str, Accepted] = {
    "min_tokens": (0,),
    "n": (1,),
    "stop_token_ids": (),
    "stop_regex": (),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "return_logprob": (),
    "logprob_start_len": (),
    "top_logprobs_num": (),
    "return_text_in_logprobs": (),
    "dtype": (),
    "regex": (),
    "json_schema": (),
    "type": (),
    "ebnf": (),
    "think": (0,),
    "heal": (False,),
    "include_stop": (False,),
    "logit_bias": (),
    "repetition_penalty": (1,),
}
"""Keywords of `gen` that this version knows but cannot act on, and the values besides None that
ask for nothing more than what is done anyway."""

LATER_IN_RUN: Mapping[str, Accepted] = {
    "stream": (False,),
    "use_thread": (True,),
    "deadline": (),
    "max_program_tokens": (),
    "min_tokens": (0,),
    "stop_token_ids": (),
    "stop_regex": (),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "return_logprob": (False,),
    "logprob_start_len": (),
    "top_logprobs_num": (),
    "return_text_in_logprobs": (),
}
"""The same for the keywords of a run."""

RUN_KEYWORDS = (
    "max_new_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "stop",
    "ignore_eos",
    "seed",
    "backend",
)
"""Keywords of a run that act."""

Given = Mapping[str, object]
"""Keywords of a run by name; None is as good as not given."""


def refuse_later(where: str, given: Given, table: Mapping[str, Accepted]) -> None:
    """Raise ProgramError for the first keyword that this version cannot act on."""
    for name, value in given.items():
        if name not in table or value is None:
            continue
        if not any(_same(value, ok) for ok in table[name]):
            shown = quote(repr(value))[1:-1]
            raise ProgramError(
                f"{where}: {name}={shown} is not available in this version of lmlang: leave it out."
            )


def _same(value: object, accepted: object) -> bool:
    """Equal numbers or the same object; True is no 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value is accepted
    return not isinstance(accepted, bool) and value == accepted


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run starts with, checked; without a backend it takes the one in use."""

    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int | None = None
    backend: Backend | None = None

    @classmethod
    def of(cls, given: Given) -> RunOptions:
        """Checked options from keywords of a run.

        Raises:
            ProgramError: A value is out of range or not available in this version.
        """
        refuse_later("run", given, LATER_IN_RUN)
        set_ones = {k: v for k, v in given.items() if k in RUN_KEYWORDS and v is not None}
        seed = set_ones.pop("seed", None)
        backend = set_ones.pop("backend", None)
        if "max_new_tokens" in set_ones:
            asked = set_ones.pop("max_new_tokens")
            set_ones["max_tokens"] = limits.integer("max_new_tokens", asked, 0, limits.MAX_TOKENS)
        return cls(
            params=SamplingParams(**set_ones),  # type: ignore[arg-type]
            seed=None if seed is None else limits.integer("seed", seed, 0, limits.MAX_SEED),
            backend=None if backend is None else checked_backend(backend),
        )
