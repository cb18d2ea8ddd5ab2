r"""How names, texts and numbers stand in printed IR, and a scanner that reads them back exactly.

    name      tip   "two words"                 quoted where it is no ASCII identifier
    text      "a\n\"b\" \ud800"                all that a line cannot show is escaped
    number    7   -0x1f…   0.7                  integers of more than 63 bits are hexadecimal

What is escaped is fixed here and not taken from Python's Unicode tables, so that a program prints
alike under every version of Python. Reading is a loop: no nesting in a text can exhaust a stack.
"""

from __future__ import annotations

import math
import re
from typing import NoReturn

from lmlang.errors import ProgramError, quote

SHOWN = 24
"""Characters of the text that an error of the scanner quotes."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_ESCAPE = re.compile(r'\\(?:(["\\nrt])|x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))')
_NUMBER = re.compile(
    r"-?(?:(?P<hex>0x[0-9a-f]+)|[0-9]+(?P<float>\.[0-9]+(?:e[+-]?[0-9]+)?|e[+-]?[0-9]+)?)"
)
_SPACES = re.compile(r"[ \t]*")
_BLANK_LINES = re.compile(r"(?:[ \t]*\r?\n)*")
_LONGEST_DECIMAL = 400
"""Digits; no limit of Python's on reading integers is lower, and no finite float has more."""

_SHORT = {'"': '"', "\\": "\\", "n": "\n", "r": "\r", "t": "\t"}
_SHORT_OF = {char: "\\" + letter for letter, char in _SHORT.items()}
_ESCAPED = re.compile(
    r'["\\\x00-\x1f\x7f-\xa0\xad'  # quotes, controls, no-break space, soft hyphen
    r"\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # zero width, separators, directions
    r"\ud800-\udfff\ufeff\ufff0-\uffff\U000e0000-\U0010ffff]"  # surrogates, specials, tags
)


def name_text(name: str) -> str:
    """A name, quoted where it is no identifier."""
    return name if _NAME.fullmatch(name) else quoted(name)


def quoted(text: str) -> str:
    """A text in double quotes, on one line."""
    return f'"{_ESCAPED.sub(_escape, text)}"'


def integer_text(value: int) -> str:
    """An integer; a large one in hexadecimal digits, which take linear time and have no limit."""
    return f"{value:d}" if value.bit_length() <= 63 else f"{value:#x}"


def float_text(value: float) -> str:
    """The shortest decimal that reads back as the same finite float.

    Raises:
        ProgramError: It is infinite, or not a number.
    """
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ProgramError(f"{number} cannot stand in a program: only finite numbers can.")
    return repr(number)


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    code = ord(char)
    if char in _SHORT_OF:
        return _SHORT_OF[char]
    return (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )


class Scanner:
    """Reads one text from left to right. Every refusal is a ProgramError with line and column."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    # ----------------------------------------------------------------------- tokens

    def spaces(self) -> None:
        """Skip spaces."""
        self.position = _SPACES.match(self.text, self.position).end()  # type: ignore[union-attr]

    def blank_lines(self) -> None:
        """Skip lines without content, and the spaces before the next one."""
        found = _BLANK_LINES.match(self.text, self.position)
        self.position = found.end()  # type: ignore[union-attr]
        self.spaces()

    def at_end(self) -> bool:
        """Whether nothing is left."""
        return self.position == len(self.text)

    def line_end(self) -> None:
        """Skip the end of a line, or be at the end of the text."""
        self.spaces()
        if not self.at_end() and not self.taken("\n") and not self.taken("\r\n"):
            self.refuse("the end of the line")

    def sees(self, token: str) -> bool:
        """Whether this comes next, spaces skipped."""
        self.spaces()
        return self.text.startswith(token, self.position)

    def taken(self, token: str) -> bool:
        """Take this if it comes next, spaces skipped."""
        if not self.sees(token):
            return False
        self.position += len(token)
        return True

    def take(self, token: str) -> None:
        """Take what must come next."""
        if not self.taken(token):
            self.refuse(quote(token))

    def matched(self, pattern: re.Pattern[str], expected: str) -> str:
        """Take what must match a pattern, spaces skipped."""
        self.spaces()
        found = pattern.match(self.text, self.position)
        if found is None:
            self.refuse(expected)
        self.position = found.end()
        return found.group()

    def word(self, expected: str) -> str:
        """An identifier."""
        return self.matched(_NAME, expected)

    def name(self, expected: str) -> str:
        """An identifier, or any name in quotes."""
        return self.string(expected) if self.sees('"') else self.word(expected)

    def string(self, expected: str = "a text in double quotes") -> str:
        """A text in quotes."""
        if not self.taken('"'):
            self.refuse(expected)
        parts = []
        while True:
            plain = _PLAIN.match(self.text, self.position)
            parts.append(plain.group())  # type: ignore[union-attr]
            self.position += len(parts[-1])
            if self.text.startswith('"', self.position):
                self.position += 1
                return "".join(parts)
            escape = _ESCAPE.match(self.text, self.position)
            if escape is None:
                self.refuse(
                    'a closing quote, or one of the escapes \\" \\\\ \\n \\r \\t \\x \\u \\U'
                )
            short, *codes = escape.groups()
            code = int(next(filter(None, codes), "0"), 16)
            if code > 0x10FFFF:
                self.refuse("a code point of at most 10ffff")
            parts.append(_SHORT[short] if short else chr(code))
            self.position = escape.end()

    def number(self, expected: str = "a number") -> int | float:
        """An integer or a finite float."""
        self.spaces()
        start = self.position
        found = _NUMBER.match(self.text, start)
        if found is None:
            self.refuse(expected)
        token = found.group()
        if found["hex"]:
            self.position = found.end()
            return int(token, 16)
        if len(token) > _LONGEST_DECIMAL:
            self.refuse(
                f"at most {_LONGEST_DECIMAL} decimal digits (hexadecimal ones have no limit)"
            )
        value = float(token) if found["float"] else int(token)
        if isinstance(value, float) and not math.isfinite(value):
            self.refuse("a number that a float can hold")
        self.position = found.end()
        return value

    # ----------------------------------------------------------------------- refusals

    def refuse(self, expected: str, at: int | None = None) -> NoReturn:
        """Raise a ProgramError that says where, what was expected and what stands there."""
        at = self.position if at is None else at
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        there = self.text[at : at + SHOWN].split("\n", 1)[0]
        found = (
            quote(there) if there else "the end of the line" if at < len(self.text) else "the end"
        )
        raise ProgramError(
            f"the program's text cannot be read at line {line:,}, column {column:,}: expected "
            f"{expected}, found {found}."
        )
