"""Backends over a network: their names, which say that this version has none of them yet."""

from __future__ import annotations

from typing import Any, NoReturn

from lmlang.errors import ProgramError


class OpenAI:
    """A hosted model behind OpenAI's interface; not available in this version."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("OpenAI")


def _refuse(name: str) -> NoReturn:
    raise ProgramError(
        f"lm.{name}(…) is not available in this version of lmlang: run the model in this process, "
        "with lm.Runtime(…)."
    )
