"""Where the walk over a type stands: in which class and field, and what holds of all in there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lmlang.errors import SchemaUnsupported, quote
from lmlang.grammar import type_sets
from lmlang.grammar.type_core import Core, name_of


class Place:
    """A place, which the walk moves; it is what it was behind each ``with``.

    Attributes:
        strings: What the settings of the class say of its strings.
        hashed: The kind of set whose items stand here, which have to be hashed; "" for none.
        once: Whether values that are equal have one spelling, since so many of them must differ.
    """

    def __init__(self) -> None:
        self.strings: Core = {}
        self.hashed, self.once = "", False
        self._classes: list[str] = []
        self._field: str | None = None

    def refusal(self, what: str, why: str) -> SchemaUnsupported:
        """The refusal that says which part of which type it is about."""
        where = self._field or "what is asked for"
        return SchemaUnsupported(
            f"{where} is of the type {quote(what)[1:-1]}, and {why}: take another type for what is "
            "to be generated, or one that is made of it afterwards."
        )

    @contextmanager
    def inside(self, cls: Any, config: Core | None) -> Iterator[None]:
        """In a class with settings of its own, or None: those around it hold in it too."""
        before = self.strings, self.hashed
        if cls.__hash__ is None:
            self.check_hashed({"type": "class", "cls": cls})
        if not type_sets.hashes_its_fields(cls):
            self.hashed = ""
        self.strings = self.strings if config is None else _of_strings(config)
        self._classes.append(cls.__name__)
        yield
        self._classes.pop()
        self.strings, self.hashed = before

    @contextmanager
    def counted(self, core: Core, hashed: str) -> Iterator[None]:
        """In what of its parts are told apart by their values: a set, or the keys of a dict."""
        before = self.hashed, self.once
        self.hashed = hashed
        self.once = self.once or (core.get("min_length") or 0) > 1
        yield
        self.hashed, self.once = before

    @contextmanager
    def at(self, field: str) -> Iterator[None]:
        """In a field of the class."""
        before, cls = self._field, self._classes[-1] if self._classes else ""
        self._field = f"field `{field}` of `{cls}`" if cls else f"field `{field}`"
        yield
        self._field = before

    def check_hashed(self, core: Core) -> None:
        """Refuse what cannot be hashed inside of a set."""
        if self.hashed:
            what = f"{self.hashed} of {name_of(core)}"
            raise self.refusal(what, "those cannot be hashed")


def _of_strings(config: Core) -> Core:
    """What a class's settings say of its strings, as a string would say it of itself."""
    named = {name.removeprefix("str_"): value for name, value in config.items()}
    said = ("min_length", "max_length", "strip_whitespace")
    return {name: named[name] for name in said if named.get(name)}
