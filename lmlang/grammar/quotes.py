"""Quotes: strings that stand word for word in a text, as a type that knows where.

Quote("It was cold. It rained.")            a class
…("It rained").start, .end                  13, 22: source[13:22] == "It rained"
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, NoReturn

from lmlang.errors import ConstraintError, ProgramTypeError, an, quote

MAX_SOURCE = 50_000
"""Characters of a text that is quoted from."""
SAID = "lmlang"
"""Where a core schema of pydantic tells what is to be generated besides."""


class Quote(str):
    """``Quote(source)`` is the type of strings that stand, as they are, in a text.

    It is for ``gen(type=Quote(source))`` and for fields, as ``Annotated[str, Quote(source)]``. A
    value is a string with offsets: ``source[value.start:value.end] == value``. Of several places
    where it stands, these are of the first. Values are immutable, so thread-safe.

    Args:
        source: The text, of at most 50,000 characters.
        min_length: Characters of a quote at least.
        max_length: Characters of a quote at most; None: any number.

    Attributes:
        start: Characters of the source before it.
        end: Those up to its end.
        source: The text, of the class too.

    Raises:
        ProgramTypeError: The source is no string.
        ConstraintError: It is shorter than a quote, too long, or has a lone surrogate.

    Example:
        >>> Rain = Quote("It was cold. It rained.")
        >>> found = Rain("It rained")
        >>> found.start, found.end
        (13, 22)
    """

    source: ClassVar[str] = ""
    min_length: ClassVar[int] = 1
    max_length: ClassVar[int | None] = None
    start: int
    end: int

    def __new__(  # noqa: D102 - the class says what it makes
        cls, source: str, *, min_length: int = 1, max_length: int | None = None
    ) -> Any:
        if cls is Quote:
            return _class_of(*_checked(source, min_length, max_length))
        return cls._read(source)

    @classmethod
    def _read(cls, text: str) -> Quote:
        """The value of a text; a ValueError (a `ConstraintError`) where it is no quote."""
        start = cls.source.find(text)
        fits = len(text) >= cls.min_length
        fits = fits and (cls.max_length is None or len(text) <= cls.max_length)
        if start < 0 or not fits:
            raise NotQuoted(
                f"{quote(text)} does not stand in the text that is quoted from, "
                f"{quote(cls.source)}, as it is: quote a part of it."
                if start < 0
                else f"{quote(text)} has {len(text):,} characters: quote at least "
                f"{cls.min_length:,} and at most {cls.max_length or len(cls.source):,}."
            )
        value: Quote = str.__new__(cls, text)
        value.start, value.end = start, start + len(text)
        return value

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """How pydantic reads it: a string, of which `_read` makes a value."""
        if cls is Quote:
            raise TypeError("Quote is a type only of a text: write Quote(text)")
        longest = {} if cls.max_length is None else {"maxLength": cls.max_length}
        said = {"type": "string", KEYWORD: cls.source, "minLength": cls.min_length, **longest}
        return {
            "type": "function-after",
            "function": {"type": "no-info", "function": cls._read},
            "schema": {"type": "str"} if source is cls else handler(source),
            "metadata": {SAID: said},
        }

    def __init_subclass__(cls, **given: Any) -> None:
        if cls.__module__ != __name__:
            raise ProgramTypeError("Quote cannot be inherited from: write Quote(text).")

    def __reduce__(self) -> Any:
        cls = type(self)
        return again, (cls.source, cls.min_length, cls.max_length, str(self))

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("start", "end") or name in vars(self):
            self._refuse(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        raise AttributeError(f"a quote is a value: {name!r} of it cannot be changed")


class NotQuoted(ConstraintError, ValueError):
    """A text that is no quote from a source; a ValueError, as pydantic expects of who reads."""


KEYWORD = "x-lmlang-quoted-from"
"""Our keyword of JSON schemas: the string stands, as it is, in this text."""


def _checked(source: Any, least: Any, most: Any) -> tuple[str, int, int | None]:
    if not isinstance(source, str):
        raise ProgramTypeError(
            f"Quote: the source is {an(type(source).__name__)}: give the text that is quoted from."
        )
    source = str.__str__(source)
    least = _length("min_length", least, 0)
    most = None if most is None else _length("max_length", most, max(1, least))
    if any("\ud800" <= character <= "\udfff" for character in source):
        raise ConstraintError("Quote: the source has a lone surrogate: replace it.")
    if len(source) > MAX_SOURCE:
        raise ConstraintError(
            f"Quote: the source has {len(source):,} characters, and {MAX_SOURCE:,} are possible: "
            "make it of the parts that matter."
        )
    if len(source) < max(1, least):
        raise ConstraintError(
            f"Quote: the source {quote(source)} has {len(source):,} characters, and a quote has at "
            f"least {max(1, least):,}: lower min_length, or give a longer text."
        )
    return source, least, most


def _length(name: str, value: Any, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ProgramTypeError(f"Quote: {name} is {an(type(value).__name__)}: give a number.")
    if not low <= value <= MAX_SOURCE:
        raise ConstraintError(f"Quote: {name}={value:,} must be from {low:,} to {MAX_SOURCE:,}.")
    return value


@lru_cache(maxsize=64)
def _class_of(source: str, least: int, most: int | None) -> type[Quote]:
    """The class of a source; equal ones are one, as long as they are in use."""
    said = {"source": source, "min_length": least, "max_length": most, "__module__": __name__}
    return type("Quote", (Quote,), {**said, "__doc__": f"A part of {quote(source)}."})


def again(source: str, least: int, most: int | None, text: str) -> Quote:
    """The value that was made of a text of a class of these properties."""
    value: Quote = _class_of(source, least, most)(text)
    return value
