"""What tests of programs need: backends without a model, and a pytest fixture of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lmlang.backends.random import RandomBackend
from lmlang.backends.scripted import ScriptedBackend
from lmlang.frontend.defaults import use

__all__ = ["RandomBackend", "ScriptedBackend", "backend_fixture"]


def backend_fixture(make: Callable[[], Any] = ScriptedBackend) -> Any:
    """A pytest fixture: a new backend for each test, in use while it runs and closed behind it.

    In a conftest.py: ``backend = lmlang.testing.backend_fixture(RandomBackend)``.

    Args:
        make: Makes the backend, as a class or a function without arguments.
    """
    import pytest

    def backend() -> Iterator[Any]:
        made = make()
        with made, use(made):
            yield made

    return pytest.fixture(backend)
