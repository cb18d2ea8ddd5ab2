"""The keywords of generations and runs: how they are checked, and what a run starts with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Literal

from lmlang import limits
from lmlang.errors import ProgramError, quote
from lmlang.frontend.defaults import checked_backend
from lmlang.protocol import Backend, SamplingParams

SAMPLING = tuple(f.name for f in fields(SamplingParams))
"""Keywords of `gen` that are sampling parameters; in a run max_tokens is max_new_tokens."""

REPORTING = ("return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs")
"""Keywords of `gen` and of a run that say what is told about an output besides its text."""

RUN_KEYWORDS = (
    "max_new_tokens",
    *(name for name in SAMPLING if name != "max_tokens"),
    "n",
    "lora",
    *REPORTING,
    "seed",
    "backend",
    "stream",
    "use_thread",
    "deadline",
    "max_program_tokens",
    "priority",
    "num_api_spec_tokens",
    "ship",
    "show",
)
"""Keywords of a run. use_thread is accepted for SGLang's sake: no program here has a thread of its
own."""

Given = Mapping[str, object]
"""Keywords by name; None is as good as not given."""


@dataclass(frozen=True, slots=True)
class Report:
    """What is told of the log-probabilities of one output, with SGLang's names.

    Args:
        return_logprob: Whether `get_meta_info` has them; `meta` always has those of the output.
        logprob_start_len: Prompt tokens from this index on have theirs too; -1: none.
        top_logprobs_num: Likeliest tokens told beside each.
        return_text_in_logprobs: Whether each comes with its token's text.
    """

    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    return_text_in_logprobs: bool = False


SILENT = Report()


def checked_sampling(given: Given) -> dict[str, object]:
    """Canonical values of the sampling parameters among ``given``, by their names.

    Raises:
        ProgramError: One is out of range, or two contradict each other.
    """
    asked = {name: given[name] for name in SAMPLING if given.get(name) is not None}
    if not asked:
        return asked
    if all(type(value) in _PLAIN for value in asked.values()):
        return _remembered(tuple([(name, type(value), value) for name, value in asked.items()]))
    return _checked(asked)


_PLAIN = (int, float, bool, str)
"""Types whose values may be keys of what was checked before."""


@lru_cache(maxsize=1024)
def _remembered(asked: tuple[tuple[str, type, object], ...]) -> dict[str, object]:
    """What was checked before; the types keep True and 1 apart. Nobody changes what it returns."""
    return _checked({name: value for name, _, value in asked})


def _checked(asked: Given) -> dict[str, object]:
    if "max_tokens" not in asked and "min_tokens" in asked:  # whatever the run's maximum is
        checked = SamplingParams(max_tokens=limits.MAX_TOKENS, **asked)  # type: ignore[arg-type]
    else:
        checked = SamplingParams(**asked)  # type: ignore[arg-type]
    return {name: getattr(checked, name) for name in asked}


def checked_reporting(where: str, given: Given) -> dict[str, object]:
    """Canonical values of the reporting keywords among ``given``, by their names.

    Raises:
        ProgramError: One is out of range, or return_logprob=False forbids what another asks for.
    """
    asked = {name: given[name] for name in REPORTING if given.get(name) is not None}
    for name, value in asked.items():
        if name.startswith("return_"):
            limits.boolean(name, value)
        elif name == "logprob_start_len":
            limits.integer(name, value, -1, limits.MAX_TOKENS)
        else:
            limits.integer(name, value, 0, limits.MAX_TOP_LOGPROBS)
    if asked.get("return_logprob") is False:
        for name, value in asked.items():
            if value != getattr(SILENT, name):
                raise ProgramError(
                    f"{where}: {name}={value} cannot act beside return_logprob=False: leave one "
                    "of them out."
                )
    return asked


def report_of(asked: Given, base: Report = SILENT) -> Report:
    """What checked reporting keywords ask for over ``base``; asking for details asks for all."""
    if not asked:
        return base
    if asked.get("return_logprob") is False:
        return SILENT
    values = {name: getattr(base, name) for name in REPORTING} | dict(asked)
    values["return_logprob"] = base.return_logprob or any(
        asked.get(name, quiet) != quiet for name, quiet in _QUIET
    )
    return Report(**values)


_QUIET = tuple((name, getattr(SILENT, name)) for name in REPORTING)


def checked_n(value: object) -> int:
    """A number of samples."""
    return limits.integer("n", value, 1, limits.MAX_SAMPLES)


@dataclass(frozen=True, slots=True)
class GenDefaults:
    """What a run's generations inherit where they say nothing else."""

    params: SamplingParams = field(default_factory=SamplingParams)
    n: int = 1
    report: Report = SILENT
    lora: str | None = None
    """The adapter that acts on the model, in its selects too."""
    ahead: int | None = None
    """What a completion endpoint is asked for at least, for the generations that come next."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run starts with, checked; without a backend it takes the one in use.

    Args:
        gen: What its generations inherit.
        seed: Of its draws.
        backend: What runs it.
        stream: Return at once, before the program has ended.
        deadline: Seconds until it is cancelled.
        max_program_tokens: Generated tokens of all its generations together.
        priority: The higher, the sooner, where the runtime's policy asks for it.
        ship: Whether the server of the backend runs the program, and not each generation.
        show: "live": the run is shown as it goes on; None: it is not.
    """

    gen: GenDefaults = field(default_factory=GenDefaults)
    seed: int | None = None
    backend: Backend | None = None
    stream: bool = False
    deadline: float | None = None
    max_program_tokens: int | None = None
    priority: int = 0
    ship: bool = False
    show: Literal["live"] | None = None

    @classmethod
    def of(cls, given: Given) -> RunOptions:
        """Checked options from keywords of a run; other keywords are not looked at.

        Raises:
            ProgramError: A value is out of range or not available in this version.
        """
        asked = {k: v for k, v in given.items() if k in RUN_KEYWORDS and v is not None}
        if "max_new_tokens" in asked:
            most = asked.pop("max_new_tokens")
            asked["max_tokens"] = limits.integer("max_new_tokens", most, 0, limits.MAX_TOKENS)
        params = checked_sampling(asked)
        for name in ("use_thread", "stream", "ship"):
            limits.boolean(name, asked.get(name, False))
        return cls(
            gen=GenDefaults(
                SamplingParams(**params),  # type: ignore[arg-type]
                checked_n(asked.get("n", 1)),
                report_of(checked_reporting("run", asked)),
                limits.adapter("lora", asked.get("lora")),
                _optional(
                    asked.get("num_api_spec_tokens"), "num_api_spec_tokens", 1, limits.MAX_TOKENS
                ),
            ),
            seed=_optional(asked.get("seed"), "seed", 0, limits.MAX_SEED),
            backend=None if "backend" not in asked else checked_backend(asked["backend"]),
            stream=bool(asked.get("stream", False)),
            deadline=(
                None
                if "deadline" not in asked
                else limits.number("deadline", asked["deadline"], 0.0, 1e9, above=True)
            ),
            max_program_tokens=_optional(
                asked.get("max_program_tokens"), "max_program_tokens", 1, 2**53
            ),
            priority=limits.integer("priority", asked.get("priority", 0), -(2**31), 2**31 - 1),
            ship=bool(asked.get("ship", False)),
            show=_checked_show(asked.get("show")),
        )


def _checked_show(value: object) -> Literal["live"] | None:
    if value is None or value == "live":
        return "live" if value else None
    shown = quote(value) if isinstance(value, str) else type(value).__name__
    raise ProgramError(f'show={shown}: give "live" to see the run as it goes on, or leave it out.')


def _optional(value: object, name: str, low: int, high: int) -> int | None:
    return None if value is None else limits.integer(name, value, low, high)
