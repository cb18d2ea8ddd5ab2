"""Text that remembers where it came from while a chat template runs over it.

    "<|user|>" + message.content | trim + "<|end|>"      what the template computes: a str
     str         Piece(turn 0, 2:7)       str            what we keep beside it: parts

A part is the template's own text, a stretch of a turn's content, or content that the template
rewrote. So a user's text is never taken for the template's, whatever it spells; and a rendering
in which the template did not look at contents holds for other contents too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, SupportsIndex, TypeAlias

Strips: TypeAlias = tuple[tuple[str, str | None], ...]
"""Names of str methods and the characters that they take away; None is white space."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Characters ``start`` to ``end`` of the content of a turn.

    Args:
        turn: Index of the turn.
        start: First character.
        end: Behind the last character.
        strips: How they were found in the whole content; None where that cannot be repeated for
            another content.
    """

    turn: int
    start: int
    end: int
    strips: Strips | None = ()


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Text that the template made of contents in another way: upper case, JSON, ..."""

    text: str


Part: TypeAlias = str | Piece | Rewritten


@dataclass(frozen=True, slots=True)
class Condition:
    """Something a template asked about a content: ``method`` of the stripped content gave this."""

    turn: int
    strips: Strips
    method: str
    arguments: tuple[Any, ...]
    answer: Any

    def holds(self, contents: tuple[str, ...]) -> bool:
        """Whether the answer is the same for these contents."""
        content = contents[self.turn]
        for strip, characters in self.strips:
            content = getattr(content, strip)(characters)
        return bool(getattr(content, self.method)(*self.arguments) == self.answer)


class Trace:
    """What one rendering learns of how its template treats contents.

    Attributes:
        contents: Of all turns.
        conditions: What the rendering depends on.
        clocks: Formats of the time that the template wrote, and what they gave.
        reusable: Whether other contents that meet the conditions render to the same parts.
    """

    def __init__(self, contents: tuple[str, ...]) -> None:
        self.contents = contents
        self.conditions: dict[Condition, None] = {}
        self.clocks: dict[str, str] = {}
        self.reusable = True

    def content(self, turn: int) -> MarkedText:
        """The content of a turn, to be handed to the template."""
        return MarkedText(self, (Piece(turn, 0, len(self.contents[turn])),))

    def foreign(self, value: Any) -> Any:
        """A JSON value that is no template's own: its texts, keys too, are taken for contents."""
        if isinstance(value, str):
            return MarkedText(self, (Rewritten(value),))
        if isinstance(value, list):
            return [self.foreign(item) for item in value]
        if isinstance(value, dict):
            return {self.foreign(key): self.foreign(item) for key, item in value.items()}
        return value

    def text(self, part: Part) -> str:
        """What a part reads as."""
        if isinstance(part, Piece):
            return self.contents[part.turn][part.start : part.end]
        return part.text if isinstance(part, Rewritten) else part

    def read_clock(self, form: str) -> str:
        """The time in a format of ``strftime``."""
        self.clocks[form] = datetime.now().strftime(form)
        return self.clocks[form]

    def looked(self, parts: tuple[Part, ...], method: str, arguments: Any, answer: Any) -> None:
        """Note that the template asked something of a text of these parts."""
        if all(type(part) is str for part in parts):
            return
        part = parts[0] if len(parts) == 1 else None
        plain = all(
            argument is None or type(argument) in (str, int, bool) for argument in arguments
        )
        if isinstance(part, Piece) and part.strips is not None and plain:
            condition = Condition(part.turn, part.strips, method, tuple(arguments), answer)
            self.conditions[condition] = None
        else:
            self.reusable = False


class MarkedText(str):
    """A str with its parts. What it computes is a str's; parts follow where they can."""

    __slots__ = ("_parts", "_trace")
    _parts: tuple[Part, ...]
    _trace: Trace

    def __new__(cls, trace: Trace, parts: Iterable[Part]) -> MarkedText:
        """The text of these parts."""
        kept = tuple([part for part in parts if type(part) is not str or part])
        made = super().__new__(cls, "".join([trace.text(part) for part in kept]))
        made._trace, made._parts = trace, kept
        return made

    def __str__(self) -> str:
        return self

    # texts made of this one

    def __add__(self, other: str) -> MarkedText:
        if not isinstance(other, str):
            return NotImplemented
        return MarkedText(self._trace, (*self._parts, *parts_of(other)))

    def __radd__(self, other: str) -> MarkedText:
        if not isinstance(other, str):
            return NotImplemented
        return MarkedText(self._trace, (*parts_of(other), *self._parts))

    def strip(self, characters: str | None = None, /) -> MarkedText:
        """As of ``str``."""
        left = _stripped(self._trace, self._parts, "lstrip", characters)
        return MarkedText(self._trace, _stripped(self._trace, left, "rstrip", characters))

    def lstrip(self, characters: str | None = None, /) -> MarkedText:
        """As of ``str``."""
        return MarkedText(self._trace, _stripped(self._trace, self._parts, "lstrip", characters))

    def rstrip(self, characters: str | None = None, /) -> MarkedText:
        """As of ``str``."""
        return MarkedText(self._trace, _stripped(self._trace, self._parts, "rstrip", characters))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Any]:
        """As of ``str``."""
        return self._found(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Any]:
        """As of ``str``."""
        return self._found(str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[Any]:
        """As of ``str``."""
        return self._found(str.splitlines(self, keepends), None)

    def partition(self, sep: str, /) -> tuple[Any, Any, Any]:
        """As of ``str``."""
        first, middle, last = self._found(list(str.partition(self, sep)), "")
        return first, middle, last

    def rpartition(self, sep: str, /) -> tuple[Any, Any, Any]:
        """As of ``str``."""
        first, middle, last = self._found(list(str.rpartition(self, sep)), "")
        return first, middle, last

    def removeprefix(self, prefix: str, /) -> MarkedText:
        """As of ``str``."""
        return self._between(len(prefix) if self.startswith(prefix) else 0, len(self))

    def removesuffix(self, suffix: str, /) -> MarkedText:
        """As of ``str``."""
        return self._between(0, len(self) - (len(suffix) if self.endswith(suffix) else 0))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> MarkedText:
        """As of ``str``."""
        if old not in self:
            return self
        if not old:
            return rewritten(self._trace, str.replace(self, old, new, count))
        pieces = self._found(str.split(self, old, count), old)
        return MarkedText(self._trace, parts_of(marked_join(self._trace, parts_of(new), pieces)))

    def __getitem__(self, key: Any) -> MarkedText:
        self._trace.reusable = False
        if isinstance(key, slice) and key.step in (None, 1):
            start, end, _ = key.indices(len(self))
            return self._between(start, max(start, end))
        found = str.__getitem__(self, key)
        if isinstance(key, slice):
            return rewritten(self._trace, found)
        start = int(key) % len(self)
        return self._between(start, start + 1)

    def __iter__(self) -> Iterator[Any]:
        self._trace.reusable = False
        for index in range(str.__len__(self)):
            yield self._between(index, index + 1)

    def __hash__(self) -> int:
        self._trace.reusable = False
        return str.__hash__(self)

    def _found(self, texts: list[str], sep: str | None) -> list[MarkedText]:
        """Texts that stand in this one in this order: ``sep`` between, or white space for None."""
        self._trace.reusable = False
        found: list[MarkedText] = []
        at = 0
        for text in texts:
            start = str.find(self, text, at) if sep is None else at
            found.append(self._between(start, start + len(text)))
            at = start + len(text) + (0 if sep is None else len(sep))
        return found

    def _between(self, start: int, end: int) -> MarkedText:
        """The characters from ``start`` to ``end``, which depend on the content."""
        if (start, end) == (0, str.__len__(self)):
            return self
        self._trace.reusable = False
        parts: list[Part] = []
        at = 0
        for part in self._parts:
            text = self._trace.text(part)
            low, high = max(start - at, 0), min(end - at, len(text))
            at += len(text)
            if low >= high:
                continue
            if isinstance(part, Piece):
                parts.append(Piece(part.turn, part.start + low, part.start + high, None))
            else:
                cut = text[low:high]
                parts.append(cut if isinstance(part, str) else Rewritten(cut))
        return MarkedText(self._trace, parts)


def parts_of(text: str) -> tuple[Part, ...]:
    """The parts of a text; a plain one is the template's own."""
    return text._parts if isinstance(text, MarkedText) else (str(text),)


def rewritten(trace: Trace, text: str) -> MarkedText:
    """Text that depends on contents in no way that is known."""
    trace.reusable = False
    return MarkedText(trace, (Rewritten(str(text)),))


def marked_join(trace: Trace, between: tuple[Part, ...], texts: Iterable[str]) -> str:
    """Texts with parts between them; plain where no content is among them."""
    parts: list[Part] = []
    for index, text in enumerate(texts):
        if index:
            parts.extend(between)
        parts.extend(parts_of(text))
    if all(type(part) is str for part in parts):
        return "".join(map(str, parts))
    return MarkedText(trace, parts)


def _stripped(
    trace: Trace, parts: tuple[Part, ...], strip: str, characters: str | None
) -> tuple[Part, ...]:
    """Parts without the characters at one end; ``strip`` is ``"lstrip"`` or ``"rstrip"``."""
    if isinstance(characters, MarkedText):
        trace.reusable = False
        characters = "".join([trace.text(part) for part in characters._parts])
    left = strip == "lstrip"
    kept = list(parts)
    while kept:
        part = kept[0 if left else -1]
        text = trace.text(part)
        rest = getattr(text, strip)(characters)
        if isinstance(part, Piece):
            strips = None if part.strips is None else (*part.strips, (strip, characters))
            start, end = part.start, part.end
            start, end = (end - len(rest), end) if left else (start, start + len(rest))
            stripped: Part = Piece(part.turn, start, end, strips)
            if len(parts) > 1:  # a content of nothing but this lets the strip reach further
                trace.looked((stripped,), "__eq__", ("",), not rest)
        else:
            stripped = rest if isinstance(part, str) else Rewritten(rest)
        kept[0 if left else -1] = stripped
        if rest or len(kept) == 1:
            break
        kept.pop(0 if left else -1)
    return tuple(kept)


def _looking(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def look(self: MarkedText, *arguments: Any) -> Any:
        answer = method(self, *arguments)
        if answer is not NotImplemented:
            self._trace.looked(self._parts, name, arguments, answer)
        return answer

    look.__name__ = name
    return look


def _rewriting(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def rewrite(self: MarkedText, *arguments: Any, **named: Any) -> Any:
        return rewritten(self._trace, method(self, *arguments, **named))

    rewrite.__name__ = name
    return rewrite


def _truth(self: MarkedText) -> bool:
    full = str.__len__(self) > 0
    self._trace.looked(self._parts, "__ne__", ("",), full)
    return full


LOOKING = (
    "__contains__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__len__",
    "startswith", "endswith", "find", "rfind", "index", "rindex", "count", "isalnum", "isalpha",
    "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable",
    "isspace", "istitle", "isupper",
)  # fmt: skip
REWRITING = (
    "capitalize", "casefold", "center", "expandtabs", "format", "join", "ljust", "lower", "rjust",
    "swapcase", "title", "upper", "zfill", "__mul__", "__rmul__", "__mod__",
)  # fmt: skip
for _name in LOOKING:
    setattr(MarkedText, _name, _looking(_name))
for _name in REWRITING:
    setattr(MarkedText, _name, _rewriting(_name))
MarkedText.__bool__ = _truth  # type: ignore[attr-defined]
