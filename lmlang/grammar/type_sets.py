"""What tells the items of a set apart: whether what is in them is hashed, and which are equal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from lmlang.grammar.type_core import Core, peeled
from lmlang.grammar.type_scalars import Refusal, members


def hashes_its_fields(cls: Any) -> bool:
    """Whether hashing an instance hashes what is in its fields: tuples, and what is generated."""
    code = getattr(cls.__hash__, "__code__", None)
    if code is None:
        return issubclass(cls, tuple)
    return bool(code.co_filename == "<string>" or cls.__hash__.__module__.startswith("pydantic"))


def check_apart(choices: Iterable[Core], refusal: Refusal) -> None:
    """Refuse True beside 1, which are equal, where so many values have to differ.

    Raises:
        SchemaUnsupported: A value may be either.
    """
    if len({kind for choice in choices for kind in _words_and_numbers(choice, refusal)}) > 1:
        raise refusal("a set of truth values and numbers", "True is 1: how many differ is not told")


def _words_and_numbers(core: Core, refusal: Refusal) -> Iterator[bool]:
    """Whether a scalar, or a union of some, may be a truth value, and whether a number."""
    core = peeled(core)
    if core["type"] in ("bool", "int", "float", "decimal"):
        yield core["type"] == "bool"
    elif core["type"] in ("literal", "enum"):
        for value, _ in members(core, refusal):
            if isinstance(value, (bool, int, float)):
                yield isinstance(value, bool)
    elif core["type"] in ("union", "nullable"):
        for choice in core.get("choices") or [core["schema"]]:
            yield from _words_and_numbers(
                choice[0] if isinstance(choice, tuple) else choice, refusal
            )
