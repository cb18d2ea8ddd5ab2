"""What stands before a backend and is one: it is asked for answers, and all else goes through."""

from __future__ import annotations

from collections.abc import Sequence

from lmlang.protocol import Backend, BackendInfo, Prompt, RunAware, TokenAware, ToolAware

_ABILITIES = {
    RunAware: ("end_run",),
    TokenAware: ("token_bytes", "token_name", "template_ids"),
    ToolAware: ("tool_form", "with_tools"),
}
"""What some backends can besides; whoever stands before one then can what that can."""


class Through:
    """A backend but for `generate` and `score`, which each kind has of its own. Thread-safe.

    Args:
        backend: The one behind it, which it does not close.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        for ability, names in _ABILITIES.items():
            if isinstance(backend, ability):
                for name in names:
                    if not hasattr(type(self), name):
                        setattr(self, name, getattr(backend, name))

    def render(self, prompt: Prompt) -> str:
        """As the backend does."""
        return self._backend.render(prompt)

    def encode(self, prompt: Prompt) -> list[int]:
        """As the backend does."""
        return self._backend.encode(prompt)

    def decode(self, ids: Sequence[int]) -> str:
        """As the backend does."""
        return self._backend.decode(ids)

    def info(self) -> BackendInfo:
        """What the backend says of itself."""
        return self._backend.info()

    def flush_cache(self) -> None:
        """As the backend does."""
        self._backend.flush_cache()

    def close(self) -> None:
        """Nothing: the backend is another's."""
