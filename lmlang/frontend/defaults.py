"""Which backend a run uses: its own, else that of `use`, else the default, else the embedded model.

The frontend knows no backend; the package's face injects the factory of the last one.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import cast

from lmlang.errors import ProgramError, ProgramTypeError, an
from lmlang.protocol import Backend

_METHODS = ("generate", "score", "render", "encode", "info", "flush_cache", "close")

_log = logging.getLogger("lmlang")
_in_use: contextvars.ContextVar[tuple[Backend, ...]] = contextvars.ContextVar(
    "lmlang_backends", default=()
)
"""The backends of the `use` blocks around here, innermost last."""


class _Defaults:
    """The process's default backend and how it comes about. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.backend: Backend | None = None
        self.factory: Callable[[], Backend] | None = None


_defaults = _Defaults()


def set_factory(factory: Callable[[], Backend]) -> None:
    """Say how the backend is made that runs use when none is set; called at most once."""
    _defaults.factory = factory


def set_default_backend(backend: Backend | None) -> None:
    """Set the backend of all runs that name none; None: the embedded model again. Thread-safe."""
    checked = None if backend is None else checked_backend(backend)
    with _defaults.lock:
        _defaults.backend = checked


def default_backend() -> Backend | None:
    """The backend that was set for all runs, or the embedded one once it is loaded."""
    return _defaults.backend


class use:  # noqa: N801 - a word of the language
    """``with lm.use(backend):`` runs in this block use it; safe in threads and tasks."""

    def __init__(self, backend: Backend) -> None:
        self._backend = checked_backend(backend)

    def __enter__(self) -> Backend:
        _in_use.set((*_in_use.get(), self._backend))
        return self._backend

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _in_use.set(_in_use.get()[:-1])


def flush_cache(backend: Backend | None = None) -> None:
    """Forget all cached prefixes that nothing uses, of this backend or the one in use."""
    found = chosen(backend)
    if found is not None:
        found.flush_cache()


def resolve(backend: Backend | None) -> Backend:
    """The backend of a run that was given ``backend`` (None: nothing)."""
    found = chosen(backend)
    if found is not None:
        return found
    with _defaults.lock:
        if _defaults.backend is None:
            if _defaults.factory is None:
                raise ProgramError(
                    "no backend is set: call lm.set_default_backend(…) or give backend=…."
                )
            _log.info("no backend is set: loading the embedded model, once for this process")
            _defaults.backend = _defaults.factory()
        return _defaults.backend


def checked_backend(backend: object) -> Backend:
    """The same object, if it has the methods of a `Backend`."""
    if isinstance(backend, type):
        raise ProgramTypeError(
            f"backend={backend.__name__} is a class: make one of it, {backend.__name__}(…)."
        )
    missing = [name for name in _METHODS if not callable(getattr(backend, name, None))]
    if missing:
        raise ProgramTypeError(
            f"backend is {an(type(backend).__name__)}, which is no backend (it has no "
            f"{missing[0]}()): give an lm.Runtime or another backend."
        )
    return cast(Backend, backend)


def chosen(backend: Backend | None) -> Backend | None:
    """The backend given, in use or set; None where that is the embedded model, not yet loaded."""
    if backend is not None:
        return checked_backend(backend)
    in_use = _in_use.get()
    return in_use[-1] if in_use else _defaults.backend
