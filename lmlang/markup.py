"""What a model wrote, made safe for a terminal or a static page; pages of bounded size.

    text ── plain, line ──> a terminal     no control byte, nothing that hides or turns text round
    text ── element ──────> HTML           the same, escaped; only `Html` passes as it is
    Html ── Sheet ────────> a page         what does not fit is left out, and that is said

Pages have inline styles alone, which read on light and on dark, and say nothing by colour alone.
"""

from __future__ import annotations

import html
import re
import shutil
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

PAGE_BYTES = 60_000
"""Bytes of a page at most."""
NARROWEST, WIDEST = 20, 120
"""Columns that text is laid out for, whatever the terminal says."""
DEEPEST = 24
"""Elements in one another; a browser ends at some hundreds."""

_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\ud800-\udfff\ufeff\ufff0-\ufffb\ufffe\uffff\U000e0000-\U0010ffff]"
)
"""Controls, zero widths, directions, separators, surrogates, tags, private planes."""
_RESERVE = 240
"""Bytes kept for the note that something was left out."""

# ------------------------------------------------------------------------------ text


def plain(text: str) -> str:
    """A text whose every character shows itself; line ends stay, a tab is four spaces."""
    return _HIDDEN.sub(_escape, text.replace("\r\n", "\n").replace("\t", "    "))


def line(text: str) -> str:
    """The same on one line."""
    kept = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")
    return _HIDDEN.sub(_escape, kept.replace("\r", "\\r"))


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )


def start(text: str, most: int) -> str:
    """The beginning of a text, in as many columns of a terminal."""
    if width(text) <= most:
        return text
    kept, used = [], 1
    for char in text:
        used += _columns(char)
        if used > most:
            break
        kept.append(char)
    return "".join(kept) + "…"


def middle(text: str, most: int) -> str:
    """A text of which the middle is left out, where it is longer than so many characters."""
    if len(text) <= most:
        return text
    head, tail = most * 2 // 3, most // 3
    left = len(text) - head - tail
    return f"{text[:head]} […{left:,} characters…] {text[len(text) - tail :]}"


def width(text: str) -> int:
    """Columns that a terminal shows a text in."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def columns() -> int:
    """Columns of the terminal, within limits; 80 where there is none."""
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size((80, 24)).columns))


def wrapped(text: str, most: int, indent: str = "") -> list[str]:
    """The lines of a text behind an indent, each of at most so many columns."""
    room = max(8, most - width(indent))
    lines = []
    for each in text.split("\n"):
        at = 0
        while True:
            window = each[at : at + room + 1]
            if width(window) <= room:
                lines.append(indent + window)
                at += len(window)
                if at >= len(each):
                    break
                continue
            cut = start(window, room + 1)[:-1] or window[:1]
            blank = cut.rfind(" ") + 1
            cut = cut[:blank] if blank > room // 2 else cut
            lines.append(indent + cut)
            at += len(cut)
    return [each.rstrip() for each in lines]


def table(rows: Sequence[Sequence[str]], right: Iterable[int], most: int) -> list[str]:
    """Rows as lines whose columns are aligned; the last column is cut, then the widest ones.

    Args:
        rows: The first is the head.
        right: Columns that are aligned to the right.
        most: Columns of the terminal.
    """
    numbers = set(right)
    widths = [max(width(row[i]) for row in rows) for i in range(len(rows[0]))]
    while sum(widths) + 2 * (len(widths) - 1) > most and max(widths) > 3:
        widest = max(range(len(widths)), key=lambda i: (widths[i], i))
        widths[widest] -= 1
    lines = []
    for row in rows:
        cells = []
        for i, room in enumerate(widths):
            cell = start(row[i], room)
            space = " " * (room - width(cell))
            cells.append(space + cell if i in numbers else cell + space)
        lines.append(start("  ".join(cells).rstrip(), most))
    return lines


def counted(count: int, noun: str) -> str:
    """A number of things, as in "1 token" and "2,000 tokens"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


# ------------------------------------------------------------------------------ HTML


class Html(str):
    """Text that is HTML already; `element` alone makes it."""

    __slots__ = ()


def escaped(text: str) -> Html:
    """A text as HTML, which shows it and nothing else."""
    return text if isinstance(text, Html) else Html(html.escape(plain(text)))


def element(name: str, *children: str, style: str = "", title: str = "") -> Html:
    """An element; children that are no `Html` are escaped.

    Args:
        name: Of the tag, and what attributes it has besides.
        children: What it holds.
        style: Declarations of CSS.
        title: What a pointer that rests on it shows.
    """
    attributes = f' style="{html.escape(style)}"' if style else ""
    attributes += f' title="{html.escape(line(title))}"' if title else ""
    inside = "".join(map(escaped, children))
    return Html(f"<{name}{attributes}>{inside}</{name.split()[0]}>")


def joined(parts: Iterable[str]) -> Html:
    """Parts behind one another."""
    return Html("".join(map(escaped, parts)))


PAGE = "font-size:14px;line-height:1.45;max-width:72em;overflow-wrap:anywhere"
MUTED = "opacity:.72;font-size:12px"
CODE = "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12.5px"
TEXT = (
    "margin:0;padding:0;border:0;background:transparent;color:inherit;font:inherit;"
    "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere;overflow:visible"
)
"""Of a <pre>, so that spaces and lines show where styles are stripped too; Jupyter's cuts words."""
BOX = "border:1px solid rgba(128,128,128,.45);border-radius:6px"
TABLE = 'table cellpadding="5"'
TABLE_STYLE = "border-collapse:collapse;table-layout:auto;margin:4px 0;font-size:13px"
ROW = "border-bottom:1px solid rgba(128,128,128,.3)"
LEFT, RIGHT = "text-align:left", "text-align:right;white-space:nowrap"
BLUE, ORANGE, GREEN, RED = (
    f"rgba({rgb},{{alpha}})" for rgb in ("30,136,229", "230,159,0", "0,158,115", "213,94,0")
)
"""Tints that eyes of all kinds tell apart (after Okabe and Ito), on light and on dark."""


def tint(colour: str, alpha: float) -> str:
    """One of these as the background of a text."""
    return f"background:{colour.format(alpha=f'{alpha:.2f}')}"


def row(
    cells: Sequence[str],
    right: Iterable[int] = (),
    head: bool = False,
    styles: Mapping[int, str] | None = None,
) -> Html:
    """A row of a table.

    Args:
        cells: What stands in it.
        right: Columns that are aligned to the right.
        head: Whether it is the head of the table.
        styles: More declarations for some columns.
    """
    numbers, name, more = set(right), "th" if head else "td", styles or {}
    found = []
    for i, cell in enumerate(cells):
        style = RIGHT if i in numbers else LEFT
        found.append(element(name, cell, style=f"{style};{more[i]}" if i in more else style))
    return element('tr valign="top"', *found, style=ROW)


class Sheet:
    """A page in the making, of at most so many bytes.

    Elements are opened and closed; what no longer fits is left out and counted. For one thread.
    """

    def __init__(self, most: int = PAGE_BYTES) -> None:
        self._parts: list[str] = []
        self._open: list[str | None] = []
        self._left = most - _RESERVE
        self.left_out = 0

    @property
    def full(self) -> bool:
        """Whether something was left out."""
        return self.left_out > 0

    def open(self, name: str, style: str = "") -> None:
        """Begin an element; `close` ends it."""
        begun, _, end = element(name, style=style).rpartition("</")
        deep = sum(each is not None for each in self._open) >= DEEPEST
        fits = not deep and (not self._open or self._open[-1] is not None)
        if fits and self._take(begun, len(end) + 2):
            self._open.append(f"</{end}")
        else:
            self.left_out += 1
            self._open.append(None)

    def close(self) -> None:
        """End the innermost element."""
        end = self._open.pop()
        if end is not None:
            self._parts.append(end)

    def add(self, content: str) -> bool:
        """Add content; False: there was no room for it, nor will there be for what follows."""
        if self._open and self._open[-1] is None:
            return False
        if self.full or not self._take(escaped(content), 0):
            self.left_out += 1
            return False
        return True

    def _take(self, content: str, more: int) -> bool:
        size = len(content.encode()) + more
        if size > self._left:
            return False
        self._left -= size
        self._parts.append(content)
        return True

    def end(self, instead: str) -> Html:
        """The page, with a note where something was left out.

        Args:
            instead: How to see all of it.
        """
        while self._open:
            self.close()
        if self.full:
            note = f"… more was left out: {instead}"
            self._parts.append(element("p", element("i", note[:100])))
        return Html("".join(self._parts))


# ------------------------------------------------------------------------------ views


@dataclass(frozen=True, slots=True, repr=False)
class View:
    """Something to look at: text by ``print()``, HTML in a notebook. A value, thread-safe.

    Args:
        lines: Makes its lines for so many columns.
        page: Makes its HTML.
    """

    lines: Callable[[int], Sequence[str]]
    page: Callable[[], Html]

    def text(self, width: int | None = None) -> str:
        """The view as text.

        Args:
            width: Columns; None: those of the terminal, 80 where there is none.
        """
        most = columns() if width is None else max(NARROWEST, width)
        return "\n".join(self.lines(most))

    def html(self) -> str:
        """The view as static HTML: no script, inline styles alone, less than 60 KB."""
        return str(self.page())

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": self.html()}


def facts(title: str, pairs: Iterable[tuple[str, str]]) -> Html:
    """A page of names and what stands under each."""
    sheet = Sheet()
    sheet.open("div", PAGE)
    sheet.add(element("div", element("b", title)))
    sheet.open(TABLE, TABLE_STYLE)
    for name, value in pairs:
        sheet.add(
            row((name, element("pre", value, style=TEXT)), styles={0: f"{CODE};white-space:nowrap"})
        )
    return sheet.end("print() shows all of it")
