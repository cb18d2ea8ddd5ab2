"""``global_config``: what holds for all programs of the process, with SGLang's names."""

from __future__ import annotations

import dataclasses
from typing import Any

from lmlang import limits
from lmlang.errors import ProgramError, ProgramTypeError, quote
from lmlang.frontend import choices, defaults
from lmlang.frontend.choices import ChoicesMethod
from lmlang.protocol import Backend


class GlobalConfig:
    """Settings of the process. Thread-safe; an unknown name or a value that cannot act raises.

    Attributes:
        default_choices_method: Of a `select` that names none.
        enable_precache_with_tracing: Accepted; shared prefixes are found without tracing.
        enable_parallel_encoding: Accepted; joined texts are always read exactly, one after another.
    """

    def __init__(self) -> None:
        self.default_choices_method: ChoicesMethod = choices.joint
        self.enable_precache_with_tracing: bool = True
        self.enable_parallel_encoding: bool = True

    @property
    def default_backend(self) -> Backend | None:
        """The backend of runs that name none; None: the embedded model, loaded when needed."""
        return defaults.default_backend()

    @default_backend.setter
    def default_backend(self, backend: Backend | None) -> None:
        defaults.set_default_backend(backend)

    @property
    def verbosity(self) -> int:
        """0: nothing is printed; read s.text() where you want to see a run."""
        return 0

    @property
    def skip_special_tokens_in_output(self) -> bool:
        """True: control tokens are never part of a text."""
        return True

    @property
    def spaces_between_special_tokens_in_out(self) -> bool:
        """True, and without effect, as control tokens are not part of a text."""
        return True

    def __setattr__(self, name: str, value: object) -> None:
        if name in _FIXED:
            if value != _FIXED[name]:
                raise ProgramError(
                    f"global_config.{name}={quote(repr(value))[1:-1]} is not available in this "
                    f"version of lmlang: leave it at {_FIXED[name]!r}."
                )
            return
        if name not in _SETTABLE:
            raise ProgramError(
                f"global_config has no {quote(name)} to set; it has "
                f"{', '.join((*_SETTABLE, *_FIXED))}."
            )
        if name == "default_choices_method" and not callable(value):
            raise ProgramTypeError(
                f"global_config.default_choices_method={quote(repr(value))[1:-1]} must be a "
                "choices method, such as lm.joint or lm.token_length_normalized."
            )
        if name.startswith("enable_"):
            limits.boolean(f"global_config.{name}", value)
        object.__setattr__(self, name, value)


_SETTABLE = (
    "default_backend",
    "default_choices_method",
    "enable_precache_with_tracing",
    "enable_parallel_encoding",
)
_FIXED: dict[str, object] = {
    "verbosity": 0,
    "skip_special_tokens_in_output": True,
    "spaces_between_special_tokens_in_out": True,
}

global_config = GlobalConfig()


def get_server_info(backend: Backend | None = None) -> dict[str, Any] | None:
    """What a backend says of itself: model_path, context_length, and counters where it has some.

    None where no backend is given, set or in use yet.
    """
    chosen = defaults.chosen(backend)
    if chosen is None:
        return None
    info = chosen.info()
    found: dict[str, Any] = {
        "model_path": info.model,
        "context_length": info.context_length,
        "can_score": info.can_score,
        "has_tokens": info.has_tokens,
        "has_vision": info.has_vision,
    }
    stats = getattr(chosen, "stats", None)
    if callable(stats):
        counters = stats()
        if dataclasses.is_dataclass(counters) and not isinstance(counters, type):
            found["stats"] = dataclasses.asdict(counters)
    return found
