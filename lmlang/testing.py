"""What tests of programs need: backends without a model, and a pytest fixture of one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from lmlang.backends.random import RandomBackend
from lmlang.backends.scripted import ScriptedBackend
from lmlang.frontend.defaults import use

__all__ = ["RandomBackend", "ScriptedBackend", "assert_matches_golden", "backend_fixture"]


def assert_matches_golden(result: object, path: str | os.PathLike[str]) -> None:
    """Assert that a result is what a golden file beside the test has.

    The file has the program's recording, with prompts, options and constraints, and below each
    generation or select what came of it: nothing that is of one run alone.

    Args:
        result: A `ProgramState`, `RunLog` or `BatchResult`; a text; a value that JSON can say.
        path: The file. It is written, and nothing asserted, with LMLANG_UPDATE_GOLDEN=1 in the
            environment; never where CI is set.

    Raises:
        AssertionError: The file is missing or has something else; the message has the difference.
    """
    __tracebackhide__ = True
    from lmlang.frontend.golden import compare

    compare(result, path)


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
