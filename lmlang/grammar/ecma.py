r"""JavaScript's regular expressions, read into the parts that Python's own parser gives.

    ^\d+$   ->   AT beginning, MAX_REPEAT 1.. of IN 0-9, AT end          for `regex.py` to build

What ECMA-262 means by its signs is settled here: ``\d``, ``\w`` and ``\b`` are ASCII, ``\s`` and
``.`` have its lists, ``^`` and ``$`` stand for the whole text's ends. A text is its code points, as
under the flag ``u``; escapes that only other modes have (``\-``) are taken as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, TypeAlias
from unicodedata import category

from lmlang.errors import GrammarSyntaxError, GrammarTooLarge, quote
from lmlang.grammar.charset import EVERYTHING, LAST, Ranges, complement, union

MAX_DEPTH = 100
"""Groups inside of groups."""
UNBOUNDED = 1 << 32
"""The upper count of a repeat without one; larger counts are the same."""


@dataclass(frozen=True, slots=True)
class Op:
    """What a part is, by the name that Python's parser gives it."""

    name: str


Part: TypeAlias = tuple[Op, Any]

_LINE_ENDS: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))
_DIGITS: Ranges = ((48, 57),)
_WORDS: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACES: Ranges = (
    (9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
    (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
_CLASSES = {"d": _DIGITS, "w": _WORDS, "s": _SPACES}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_NAMES = {
    "Letter": "L", "Cased_Letter": "LC", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll",
    "Titlecase_Letter": "Lt", "Modifier_Letter": "Lm", "Other_Letter": "Lo", "Mark": "M",
    "Combining_Mark": "M", "Nonspacing_Mark": "Mn", "Spacing_Mark": "Mc", "Enclosing_Mark": "Me",
    "Number": "N", "Decimal_Number": "Nd", "digit": "Nd", "Letter_Number": "Nl",
    "Other_Number": "No", "Punctuation": "P", "punct": "P", "Connector_Punctuation": "Pc",
    "Dash_Punctuation": "Pd", "Open_Punctuation": "Ps", "Close_Punctuation": "Pe",
    "Initial_Punctuation": "Pi", "Final_Punctuation": "Pf", "Other_Punctuation": "Po",
    "Symbol": "S", "Math_Symbol": "Sm", "Currency_Symbol": "Sc", "Modifier_Symbol": "Sk",
    "Other_Symbol": "So", "Separator": "Z", "Space_Separator": "Zs", "Line_Separator": "Zl",
    "Paragraph_Separator": "Zp", "Other": "C", "Control": "Cc", "cntrl": "Cc", "Format": "Cf",
    "Surrogate": "Cs", "Private_Use": "Co", "Unassigned": "Cn",
}  # fmt: skip
_COUNT = re.compile(r"\{([0-9]+)(,([0-9]*))?\}")
_NAME = re.compile(r"<([A-Za-z_$\u0080-\U0010ffff][\w$]*)>")
_PROPERTY = re.compile(r"\{(?:(General_Category|gc)=)?([A-Za-z_]+)\}")
_HEX4 = re.compile("[0-9A-Fa-f]{4}")
_HEX2 = re.compile("[0-9A-Fa-f]{2}")
_HEX_BRACES = re.compile(r"\{0*([0-9A-Fa-f]{1,6})\}")


def parse(pattern: str) -> list[Part]:
    """The parts of a pattern.

    Raises:
        GrammarSyntaxError: It is no regular expression of ECMA-262, or not regular; with the place.
        GrammarTooLarge: Its groups are nested too deeply.
    """
    return _Parser(pattern).parsed()


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def parsed(self) -> list[Part]:
        parts = self._ways(0)
        if self._at < len(self._pattern):
            raise self._wrong("unbalanced parenthesis")
        return parts

    def _wrong(self, why: str, at: int | None = None) -> GrammarSyntaxError:
        place = self._at if at is None else at
        return GrammarSyntaxError(
            f"the pattern {quote(self._pattern)} is no regular expression of ECMA-262 that can be "
            f"compiled: {why} at character {place:,}."
        )

    def _take(self, text: str) -> bool:
        if self._pattern.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _match(self, shape: re.Pattern[str]) -> re.Match[str] | None:
        found = shape.match(self._pattern, self._at)
        if found is not None:
            self._at = found.end()
        return found

    def _ways(self, depth: int) -> list[Part]:
        """Alternatives up to the end of a group."""
        if depth > MAX_DEPTH:
            raise GrammarTooLarge(
                f"the pattern {quote(self._pattern)} nests more than {MAX_DEPTH} groups at "
                f"character {self._at:,}: flatten it."
            )
        ways: list[list[Part]] = [[]]
        while self._at < len(self._pattern) and self._pattern[self._at] != ")":
            if self._take("|"):
                ways.append([])
            else:
                ways[-1].append(self._repeated(self._atom(depth)))
        return ways[0] if len(ways) == 1 else [(Op("BRANCH"), (None, ways))]

    def _repeated(self, atom: Part) -> Part:
        at, counts = self._at, self._match(_COUNT)
        if counts is not None:
            least = min(int(counts[1][:10]), UNBOUNDED)
            most = least if counts[2] is None else UNBOUNDED
            if counts[3]:
                most = min(int(counts[3][:10]), UNBOUNDED)
            if most < least:
                raise self._wrong("min repeat greater than max repeat", at)
        else:
            sign = self._pattern[self._at : self._at + 1]
            if not sign or sign not in "*+?":
                return atom
            self._at += 1
            least, most = {"*": (0, UNBOUNDED), "+": (1, UNBOUNDED), "?": (0, 1)}[sign]
        if atom[0].name == "AT":
            raise self._wrong("nothing to repeat", at)
        self._take("?")
        return Op("MAX_REPEAT"), (least, most, [atom])

    def _atom(self, depth: int) -> Part:
        at, sign = self._at, self._pattern[self._at]
        counted = _COUNT.match(self._pattern, at)
        self._at += 1
        if sign == "(":
            return self._group(at, depth)
        if sign == "[":
            return self._class()
        if sign == "\\":
            return self._escape(at)
        if sign == ".":
            return _reading(complement(_LINE_ENDS))
        if sign in "^$":
            return Op("AT"), Op("AT_BEGINNING_STRING" if sign == "^" else "AT_END_STRING")
        if sign in "*+?" or counted is not None:
            raise self._wrong("nothing to repeat", at)
        return Op("LITERAL"), ord(sign)

    def _group(self, at: int, depth: int) -> Part:
        operation, direction = Op("SUBPATTERN"), 0
        if self._take("?"):
            looks = {"=": ("ASSERT", 1), "!": ("ASSERT_NOT", 1), "<=": ("ASSERT", -1)}
            looks["<!"] = ("ASSERT_NOT", -1)
            for sign, (name, way) in looks.items():
                if self._take(sign):
                    operation, direction = Op(name), way
                    break
            else:
                if not self._take(":") and self._match(_NAME) is None:
                    raise self._wrong("a group that ECMA-262 does not know", at)
        inside = self._ways(depth + 1)
        if not self._take(")"):
            raise self._wrong("a group is not closed", at)
        return operation, ((direction, inside) if direction else (None, 0, 0, inside))

    def _escape(self, at: int) -> Part:
        """What a backslash outside of a class means."""
        if self._take("b"):
            return Op("AT"), Op("AT_BOUNDARY")
        if self._take("B"):  # also in an empty text, where Python's has said otherwise
            return Op("AT"), Op("AT_NON_BOUNDARY_OF_ECMA")
        following = self._pattern[self._at : self._at + 1]
        if following == "k" or (following in "123456789" and following):
            raise self._wrong(
                "a back-reference would have to remember text (spell out what may stand there)", at
            )
        some = self._escaped(at)
        return (Op("LITERAL"), some) if isinstance(some, int) else _reading(some)

    def _escaped(self, at: int) -> int | Ranges:
        """A character, or a class of them, behind a backslash."""
        if self._at >= len(self._pattern):
            raise self._wrong("nothing behind a backslash", at)
        sign = self._pattern[self._at]
        self._at += 1
        if sign.lower() in _CLASSES:
            some = _CLASSES[sign.lower()]
            return some if sign.islower() else complement(some)
        if sign in _CONTROLS:
            return _CONTROLS[sign]
        if sign in "pP":
            return self._property(at, sign == "P")
        if sign in "ux":
            return self._code(at, sign)
        if sign == "c":
            letter = self._pattern[self._at : self._at + 1]
            if not (letter.isascii() and letter.isalpha()):
                raise self._wrong("a control escape without a letter", at)
            self._at += 1
            return ord(letter) % 32
        if sign.isdigit():
            if sign != "0" or self._pattern[self._at : self._at + 1].isdigit():
                raise self._wrong(r"an octal escape (write \x or \u)", at)
            return 0
        if sign.isascii() and sign.isalpha():
            raise self._wrong(f"\\{sign} is no escape", at)
        return ord(sign)

    def _code(self, at: int, sign: str) -> int:
        braces = self._match(_HEX_BRACES) if sign == "u" else None
        found = braces or self._match(_HEX4 if sign == "u" else _HEX2)
        code = int(found[found.lastindex or 0], 16) if found is not None else LAST + 1
        if code > LAST:
            raise self._wrong(f"a \\{sign} without its hexadecimal digits", at)
        if 0xD800 <= code <= 0xDBFF and braces is None and self._take("\\u"):
            low = self._match(_HEX4)
            if low is not None and 0xDC00 <= int(low[0], 16) <= 0xDFFF:
                return 0x10000 + ((code - 0xD800) << 10) + int(low[0], 16) - 0xDC00
            self._at = at + len("\\uXXXX")
        return code

    def _property(self, at: int, negated: bool) -> Ranges:
        found = self._match(_PROPERTY)
        name = "" if found is None else found[2]
        some = _property(name)
        if some is None or found is None or (found[1] and name in ("Any", "ASCII", "Assigned")):
            raise self._wrong(
                r"\p{…} of a property that is not known here (general categories are, and Any, "
                "ASCII, Assigned)",
                at,
            )
        return complement(some) if negated else some

    def _class(self) -> Part:
        at = self._at - 1
        negated = self._take("^")
        found: list[tuple[int, int]] = []
        while not self._take("]"):
            first = self._member(at)
            rest = self._pattern[self._at : self._at + 2]
            if rest[:1] != "-" or rest in ("-]", "-"):
                found += [(first, first)] if isinstance(first, int) else first
                continue
            middle = self._at
            self._at += 1
            last = self._member(at)
            if isinstance(first, int) and isinstance(last, int):
                if last < first:
                    raise self._wrong("a range out of order", middle)
                found.append((first, last))
            else:  # no range, as in [\w-.]
                for some in (first, ord("-"), last):
                    found += [(some, some)] if isinstance(some, int) else some
        some = union(found)
        return _reading(complement(some) if negated else some)

    def _member(self, at: int) -> int | Ranges:
        """One character of a class, or an escape for several."""
        if self._at >= len(self._pattern):
            raise self._wrong("a class is not closed", at)
        place, sign = self._at, self._pattern[self._at]
        self._at += 1
        if sign != "\\":
            return ord(sign)
        if self._take("b"):
            return 8
        return self._escaped(place)


def _reading(some: Ranges) -> Part:
    if not some:
        return Op("FAILURE"), ()
    return Op("IN"), [(Op("RANGE"), each) for each in some]


def _property(name: str) -> Ranges | None:
    """The characters of a general category or of one of three other properties."""
    if name == "Any":
        return EVERYTHING
    if name == "ASCII":
        return ((0, 127),)
    if name == "Assigned":
        return complement(_categories()["Cn"])
    name = _NAMES.get(name, name)
    members = ("Lu", "Ll", "Lt") if name == "LC" else (name,)
    found = [
        each
        for known, ranges in _categories().items()
        if known.startswith(members)
        for each in ranges
    ]
    return union(found) if found and len(name) <= 2 else None


@lru_cache(maxsize=1)
def _categories() -> dict[str, Ranges]:
    """The code points of every general category; those between planes 3 and 14 have none."""
    found: dict[str, list[tuple[int, int]]] = {"Cn": [(0x40000, 0xDFFFF)]}
    for codes in (range(0x40000), range(0xE0000, 0xF0000)):
        for kind, run in groupby(codes, lambda code: category(chr(code))):
            members = list(run)
            found.setdefault(kind, []).append((members[0], members[-1]))
    for plane in (0xF0000, 0x100000):
        found["Co"].append((plane, plane + 0xFFFD))
        found["Cn"].append((plane + 0xFFFE, plane + 0xFFFF))
    return {kind: union(ranges) for kind, ranges in found.items()}
