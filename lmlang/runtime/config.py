"""What a Runtime is made with: its parameters, checked, in our spelling or in SGLang's."""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from lmlang import limits
from lmlang.errors import ProgramError, ProgramTypeError, quote
from lmlang.runtime.policy import POLICIES

log = logging.getLogger("lmlang")

SPELLINGS = {
    "model_path": "model",
    "mem_fraction_static": "memory_fraction",
    "max_total_tokens": "kv_tokens",
    "max_running_requests": "max_running",
    "max_queued_requests": "max_queued",
    "chunked_prefill_size": "max_batch_tokens",
    "quantization": "quantize",
    "kv_cache_dtype": "kv_dtype",
    "schedule_policy": "policy",
    "random_seed": "seed",
    "speculative_algorithm": "speculative",
    "model_impl": "implementation",
    "lora_paths": "lora",
}
"""SGLang's name to ours. (mem_fraction_static is a share of all memory there, of the free memory
here.)"""

AS_IT_IS: Mapping[str, tuple[object, ...]] = {
    "seed": (),
    "tp_size": (1,),
    "dp_size": (1,),
    "pp_size": (1,),
    "load_format": ("auto", "gguf", "safetensors"),
    "page_size": (1,),
    "skip_tokenizer_init": (False,),
    "trust_remote_code": (False,),
    "tokenizer_path": (),
    "tokenizer_mode": ("auto",),
    "context_length": (),
    "reasoning_parser": (),
    "tool_call_parser": (),
    "served_model_name": (),
    "download_dir": (),
    "api_key": (),
}
"""Parameters that this version cannot act on, and the values besides None that ask for nothing
more than what is done anyway."""

WITHOUT_EFFECT = frozenset(
    {
        *("host", "port", "log_level", "stream_interval", "log_requests"),
        *("attention_backend", "grammar_backend", "sampling_backend", "show_time_cost"),
        *("lora_backend", "max_loras_per_batch"),
    }
)
"""Parameters of a server, or of how another engine is built: a log line says so."""

DISABLES: Mapping[str, str] = {
    "disable_radix_cache": "radix_cache",
    "disable_cuda_graph": "cuda_graphs",
}
"""SGLang's name to ours, which says the opposite."""

UNAVAILABLE = "is not available in this version: leave it out."
MENDS: Mapping[str, str] = {
    "trust_remote_code": "the code that comes with a model is never run: leave it out.",
    "seed": "a runtime has no draws of its own: give seed= to the runs.",
    "context_length": "the context is the one that the model has: leave it out.",
}
"""What to do instead, for parameters that no version will have."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "quantize": ("auto", "none", "int8", "blocks", "blocks8"),
    "kv_dtype": ("auto", "int8"),
    "policy": POLICIES,
    "eviction": ("program", "lru"),
    "speculative": ("ngram",),
    "implementation": ("auto", "native", "transformers"),
}
"""What parameters of a few words may be."""
FLAGS = ("offline", "radix_cache", "in_batch_sharing", "deterministic", "cuda_graphs")


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """Checked parameters of a `Runtime`, which documents them.

    Raises:
        ProgramError: One is out of range.
        ProgramTypeError: One is of the wrong type.
    """

    model: str | os.PathLike[str] | None = None
    dtype: str = "auto"
    quantize: str = "auto"
    kv_dtype: str = "auto"
    device: str = "auto"
    implementation: str = "auto"
    revision: str | None = None
    offline: bool = False
    kv_tokens: int | None = None
    memory_fraction: float = 0.8
    host_kv_gb: float = 0.0
    max_batch_tokens: int | None = None
    max_running: int = 128
    max_queued: int = 1 << 16
    policy: str = "program"
    eviction: str = "program"
    radix_cache: bool = True
    in_batch_sharing: bool = True
    speculative: str | None = None
    deterministic: bool = False
    cuda_graphs: bool = True
    heartbeat: float = 120.0
    chat_template: str | os.PathLike[str] | None = None
    lora: Mapping[str, str | os.PathLike[str]] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "lora", _lora(self.lora))
        for name, known in CHOICES.items():
            value = getattr(self, name)
            mend = f"give one of {', '.join(map(repr, known))}."
            if len(known) == 1:
                mend = f"give {known[0]!r}, or leave it out."
            if value is not None and not isinstance(value, str):
                raise ProgramTypeError(
                    f"{name}={quote(str(value))[1:-1]} must be a string, not "
                    f"{type(value).__name__}: {mend}"
                )
            if value is not None and value not in known:
                raise ProgramError(f"{name}={quote(value)} is unknown: {mend}")
        for name in FLAGS:
            limits.boolean(name, getattr(self, name))
        _check_device(self.device)
        limits.number("host_kv_gb", self.host_kv_gb, 0.0, 1 << 20)
        limits.number("heartbeat", self.heartbeat, 0.0, 1e9, above=True)
        limits.integer("max_queued", self.max_queued, 1, 1 << 24)
        if self.host_kv_gb and not self.radix_cache:
            raise ProgramError(
                "host_kv_gb keeps what the radix cache evicts, and radix_cache=False keeps "
                "nothing: leave one of them out."
            )
        limits.number("memory_fraction", self.memory_fraction, 0.0, 1.0, above=True)
        if self.max_batch_tokens is not None:
            limits.integer("max_batch_tokens", self.max_batch_tokens, 1, 1 << 20)
        limits.integer("max_running", self.max_running, 1, 1 << 16)
        if self.kv_tokens is not None:
            limits.integer("kv_tokens", self.kv_tokens, 1, 1 << 31)
        for name in ("model", "chat_template"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, (str, os.PathLike)):
                takes = "a path" if name == "model" else "a name, a path, a template in Jinja"
                mend = "the path of a file" if name == "model" else 'a name such as "chatml"'
                raise ProgramTypeError(
                    f"{name} must be {takes} or None, not {type(value).__name__}: give {mend}, "
                    "or leave it out."
                )

    @classmethod
    def of(cls, given: Mapping[str, object]) -> RuntimeConfig:
        """A config from keywords in either spelling; those that ask for nothing are dropped.

        Raises:
            ProgramError: A value is out of range, cannot be honoured, or is given twice.
            ProgramTypeError: A keyword is unknown.
        """
        ours: dict[str, object] = {}
        for name, value in given.items():
            own = SPELLINGS.get(name, name)
            if name in DISABLES:
                own, value = DISABLES[name], None if value is None else not value
            if own == "speculative" and isinstance(value, str):
                value = value.lower()
            if name in WITHOUT_EFFECT:
                log.info("Runtime(%s=…) has no effect in this process", name)
            elif own in AS_IT_IS:
                _refuse_change(name, value, AS_IT_IS[own])
            elif own not in cls.__dataclass_fields__:
                raise _unknown(cls, name)
            elif own in ours:
                raise ProgramTypeError(f"Runtime got {own!r} twice, once as {name!r}: give one.")
            elif value is not None:
                ours[own] = value
        return cls(**ours)  # type: ignore[arg-type]


def _check_device(device: object) -> None:
    mend = "give 'auto', 'cpu', 'cuda' or a GPU by its number, as 'cuda:1'."
    if not isinstance(device, str):
        raise ProgramTypeError(
            f"device={quote(str(device))[1:-1]} must be a string, not "
            f"{type(device).__name__}: {mend}"
        )
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", device, re.ASCII):
        raise ProgramError(f"device={quote(device)} is unknown: {mend}")


def _lora(given: object) -> Mapping[str, str | os.PathLike[str]] | None:
    """Folders by name, from a mapping or a list of ``"name=folder"`` or ``"folder"``."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        pairs = list(given.items())
    else:
        listed = given if isinstance(given, (list, tuple)) else [given]
        pairs = [_named_folder(each) for each in listed]
    found: dict[str, str | os.PathLike[str]] = {}
    for name, folder in pairs:
        if not isinstance(name, str) or not isinstance(folder, (str, os.PathLike)):
            raise ProgramTypeError(
                f"lora={quote(repr(given))[1:-1]} must map names to folders of adapters, as in "
                '{"french": "adapters/french"}.'
            )
        limits.adapter("lora: the name", name)
        if name in found:
            raise ProgramError(f"lora has the name {quote(name)} twice: give each its own.")
        found[name] = folder
    return found


def _named_folder(entry: object) -> tuple[object, object]:
    """As SGLang's ``lora_paths`` has it: ``"name=folder"``, ``"folder"`` or a dict of both."""
    if isinstance(entry, Mapping):
        return entry.get("lora_name"), entry.get("lora_path")
    if not isinstance(entry, str):
        return None, entry
    name, equals, folder = entry.partition("=")
    return name, folder if equals else name


def _unknown(cls: type[RuntimeConfig], name: str) -> ProgramTypeError:
    known = [*cls.__dataclass_fields__, *SPELLINGS, *AS_IT_IS]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "see help(lm.Runtime)."
    return ProgramTypeError(f"Runtime() has no parameter {name!r}: {hint}")


def _refuse_change(name: str, value: object, same: tuple[object, ...]) -> None:
    if value is not None and not any(value is ok or value == ok for ok in same):
        own = SPELLINGS.get(name, name)
        why = f"is refused: {MENDS[own]}" if own in MENDS else UNAVAILABLE
        raise ProgramError(f"Runtime({name}={quote(repr(value))[1:-1]}) {why}")
