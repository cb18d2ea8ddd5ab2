r"""A grammar in the GBNF dialect as a network: nodes that bytes and calls of rules lead between.

    list ::= "[" (item ("," item)*)? "]"

    o -"["-> o -item-> o -","-> o -item-> o -"]-> o      an arrow: a byte of a range, or a rule
             \_______________________________/           that is called and comes back there

Nothing is recursive in here: a repeated part is a run of nodes that is copied, and a group is a
frame on a list. Source: the GBNF guide of llama.cpp, whose token references (`<think>`) are not
text and are refused. A rule may go on in the next line anywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TypeAlias

from lmlang.errors import GrammarSyntaxError, GrammarTooLarge, quote
from lmlang.grammar.charset import EVERYTHING, Ranges, complement, union

MAX_TEXT = 1_000_000
"""Characters of a grammar."""
MAX_NODES = 60_000
"""Nodes of its network, after repetitions and small rules have been written out."""


Bytes: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges of the bytes that spell a character, one for each."""


class Network:
    """Nodes as they grow; a number stands for each.

    Attributes:
        moves: Of each node: (first byte, last byte, target).
        free: Of each node: where it leads without a byte.
        calls: Of each node: a rule, and where it comes back.
    """

    def __init__(self) -> None:
        self.moves: list[list[tuple[int, int, int]]] = []
        self.free: list[list[int]] = []
        self.calls: list[list[tuple[str, int]]] = []

    def node(self) -> int:
        """A new node."""
        self.moves.append([])
        self.free.append([])
        self.calls.append([])
        return len(self.moves) - 1

    def copy(self, numbers: range | list[int]) -> dict[int, int]:
        """Copies of some nodes that lead only to each other, by what they are copies of."""
        new = {number: self.node() for number in numbers}
        for number, twin in new.items():
            self.moves[twin] += [(low, high, new[to]) for low, high, to in self.moves[number]]
            self.free[twin] += [new[to] for to in self.free[number]]
            self.calls[twin] += [(rule, new[to]) for rule, to in self.calls[number]]
        return new


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Args:
        start: Node where it begins.
        end: Node where it may end.
        nodes: All of its nodes.
    """

    start: int
    end: int
    nodes: range


@dataclass(slots=True)
class Frame:
    """A group, or a rule, of which the end has not been read yet."""

    entry: int
    at: int
    opened: int
    ends: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Part:
    """What has been read last and may be repeated: all nodes from `first` on."""

    first: int
    entry: int
    exit: int


def parse_grammar(text: str) -> tuple[Network, dict[str, Rule]]:
    """The network of a grammar, and its rules in the order of the text.

    Raises:
        GrammarSyntaxError: It is none; with line and column.
        GrammarTooLarge: It has more than `MAX_TEXT` characters or `MAX_NODES` nodes.
    """
    if len(text) > MAX_TEXT:
        raise GrammarTooLarge(
            f"a grammar of {len(text):,} characters is longer than {MAX_TEXT:,}: shorten it."
        )
    return _Reader(text).read()


def unknown_rule(text: str, offset: int | None, name: str, known: list[str]) -> GrammarSyntaxError:
    """The error for a rule that nobody defines."""
    near = get_close_matches(name, known, 3)
    if offset is None:  # it is the root
        mend = f"did you mean {', '.join(near)}?" if near else "define it, or name another root."
        return GrammarSyntaxError(f"the grammar has no rule {quote(name)} to begin with; {mend}")
    mend = f"did you mean {', '.join(near)}?" if near else "define it, or take the reference out."
    place = _place(text, offset)
    return GrammarSyntaxError(f"the grammar, {place}: there is no rule {quote(name)}; {mend}")


_TOKEN = re.compile(
    r"""(?P<skipped>[ \t\r\n\ufeff]+|\#[^\r\n]*)
    |(?P<head>[A-Za-z0-9_-]+)[ \t\r\n]*::=
    |(?P<name>[A-Za-z0-9_-]+)
    |(?P<text>"(?:[^"\\]|\\.)*")
    |(?P<class>\[(?:[^\]\\]|\\.)*\])
    |(?P<any>\.)|(?P<open>\()|(?P<close>\))|(?P<or>\|)|(?P<sign>[*+?])
    |(?P<count>\{[ \t]*(?P<least>[0-9]+)[ \t]*(?P<comma>,[ \t]*(?P<most>[0-9]*)[ \t]*)?\})""",
    re.VERBOSE | re.DOTALL,
)
_UNIT = re.compile(
    r"""\\(?:x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})
    |(?P<letter>[tnr\\"\[\]-]))|(?P<plain>[^\\])""",
    re.VERBOSE | re.DOTALL,
)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r"}
_STRANGE = {
    '"': "this string does not end; close it with a quote",
    "[": "this class does not end; close it with ]",
    "{": "a count is written {3}, {3,} or {3,5}, with {0,5} for at most five",
    "<": "tokens of a vocabulary are not text, and cannot be matched; write the text",
    "!": "tokens of a vocabulary are not text, and cannot be matched; write a class such as [^<]",
    "}": "this } closes nothing; take it out",
    "'": 'strings are written in double quotes; write "…"',
    ":": "a rule is written name ::= …",
    "=": "a rule is written name ::= …",
}


class _Reader:
    """One pass over the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._network = Network()
        self._rules: dict[str, Rule] = {}
        self._called: dict[str, int] = {}
        self._frames: list[Frame] = []
        self._name = ""
        self._part: Part | None = None

    def read(self) -> tuple[Network, dict[str, Rule]]:
        at = 0
        while at < len(self._text):
            token = _TOKEN.match(self._text, at)
            if token is None:
                strange = self._text[at]
                raise self._error(at, _STRANGE.get(strange, f"{strange!r} means nothing here"))
            at = token.end()
            if token.lastgroup != "skipped":
                self._take(token)
        self._end_rule(at)
        if not self._rules:
            raise self._error(0, "there is no rule; write one, as in root ::= …")
        for name, offset in self._called.items():
            if name not in self._rules:
                raise unknown_rule(self._text, offset, name, list(self._rules))
        return self._network, self._rules

    def _take(self, token: re.Match[str]) -> None:
        kind, at = token.lastgroup or "", token.start()
        if kind == "head":
            self._end_rule(at)
            self._name = token["head"]
            if self._name in self._rules:
                raise self._error(at, f"the rule {quote(self._name)} is defined twice; drop one")
            self._open(at)
        elif not self._frames:
            lark = re.match(r"[?!]?[\w-]+[ \t]*:=?[^:]", self._text[at:])
            mend = "; in place of the : of Lark write ::=, and name the first rule root"
            raise self._error(at, f"a rule begins with its name and ::={mend if lark else ''}")
        elif kind == "sign":
            self._repeat(at, *{"*": (0, None), "+": (1, None), "?": (0, 1)}[token["sign"]])
        elif kind == "count":
            self._repeat(at, *self._counts(token))
        elif kind == "or":
            self._link()
            frame = self._frames[-1]
            frame.ends.append(frame.at)
            frame.at = frame.entry
        elif kind == "open":
            self._link()
            self._open(at)
        elif kind == "close":
            if len(self._frames) == 1:
                raise self._error(at, "this ) closes nothing; take it out")
            self._part = self._close()
        else:
            self._link()
            self._part = self._symbol(kind, token[0], at)

    def _symbol(self, kind: str, spelled: str, at: int) -> Part:
        """A text, a class or the name of a rule."""
        network, entry = self._network, self._node()
        if kind == "name":
            self._called.setdefault(spelled, at)
            network.calls[entry].append((spelled, self._node()))
        elif kind == "text":
            characters = "".join(chr(code) for code, _ in self._units(spelled[1:-1], at + 1))
            here = entry
            for byte in characters.encode():
                onward = self._node()
                network.moves[here].append((byte, byte, onward))
                here = onward
        else:
            ranges = EVERYTHING if kind == "any" else self._class(spelled, at)
            self._characters(entry, ranges)  # the node where it ends is the last one
        return Part(entry, entry, len(network.moves) - 1)

    def _class(self, spelled: str, at: int) -> Ranges:
        negated = spelled.startswith("[^")
        units = self._units(spelled[1 + negated : -1], at + 1 + negated)
        parts: list[tuple[int, int]] = []
        number = 0
        while number < len(units):
            first = last = units[number][0]
            number += 1
            if number + 1 < len(units) and units[number] == (ord("-"), False):
                last = units[number + 1][0]
                number += 2
            if last < first:
                raise self._error(at, f"a range runs from {chr(first)!r} back to {chr(last)!r}")
            parts.append((first, last))
        found = complement(union(parts)) if negated else union(parts)
        if not parts or not found:
            raise self._error(at, "this class has no characters; say which")
        return found

    def _units(self, spelled: str, at: int) -> list[tuple[int, bool]]:
        """Code points, and whether each was escaped."""
        found = []
        place = 0
        while place < len(spelled):
            unit = _UNIT.match(spelled, place)
            if unit is None:
                raise self._error(
                    at + place,
                    r"this escape is not known; there are \n \r \t \\ \" \[ \] \- \xHH \uHHHH "
                    r"\UHHHHHHHH",
                )
            code = ord(unit["plain"] or _LETTERS.get(unit["letter"] or "", unit["letter"] or "\0"))
            digits = unit["x"] or unit["u"] or unit["U"]
            if digits:
                code = int(digits, 16)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                raise self._error(at + place, f"U+{code:04X} is no character of any text")
            found.append((code, unit["plain"] is None))
            place = unit.end()
        return found

    def _characters(self, entry: int, ranges: Ranges) -> None:
        """Lead a node to a new one by each character; nodes for equal ends are made once."""
        sequences = [each for first, last in ranges for each in utf8_ranges(first, last)]
        rests = {rest: self._node() for rest in sorted(_rests(sequences), key=len, reverse=True)}
        for lead, *rest in sequences:
            self._network.moves[entry].append((*lead, rests[tuple(rest)]))
        for left, node in rests.items():
            if left:
                self._network.moves[node].append((*left[0], rests[left[1:]]))

    def _counts(self, token: re.Match[str]) -> tuple[int, int | None]:
        least, most = token["least"], token["most"]
        if max(len(least), len(most or "")) > 9:
            raise self._too_large(token.start())
        low = int(least)
        if not token["comma"]:
            return low, low
        if most and int(most) < low:
            raise self._error(token.start(), f"from {low} to {most} is no count")
        return low, int(most) if most else None

    def _repeat(self, at: int, least: int, most: int | None) -> None:
        """Write the last part out as often as it may stand."""
        part, network = self._part, self._network
        if part is None:
            raise self._error(at, "there is nothing to repeat; write what before it")
        if most == 0:
            node = self._node()
            self._part = Part(part.first, node, node)
            return
        copies = most or least or 1
        nodes = range(part.first, len(network.moves))
        if len(network.moves) + (copies - 1) * len(nodes) > MAX_NODES:
            raise self._too_large(at)
        parts = [(part.entry, part.exit)]
        for _ in range(copies - 1):
            twins = network.copy(nodes)
            parts.append((twins[part.entry], twins[part.exit]))
        entry, exit_ = self._node(), self._node()
        network.free[entry].append(part.entry)
        for number, (begin, end) in enumerate(parts):
            network.free[end].append(parts[number + 1][0] if number + 1 < copies else exit_)
            if number >= least:
                network.free[begin if number else entry].append(exit_)
        if most is None:
            begin, end = parts[-1]
            network.free[end].append(begin)
        self._part = Part(part.first, entry, exit_)

    def _open(self, at: int) -> None:
        entry = self._node()
        self._frames.append(Frame(entry, entry, at))

    def _link(self) -> None:
        """Put the last part, which is not repeated any more, behind what stands before it."""
        if self._part is not None:
            frame = self._frames[-1]
            self._network.free[frame.at].append(self._part.entry)
            frame.at = self._part.exit
            self._part = None

    def _close(self) -> Part:
        """The innermost group as one part."""
        self._link()
        frame = self._frames.pop()
        exit_ = self._node()
        for end in (*frame.ends, frame.at):
            self._network.free[end].append(exit_)
        return Part(frame.entry, frame.entry, exit_)

    def _end_rule(self, at: int) -> None:
        if len(self._frames) > 1:
            raise self._error(self._frames[-1].opened, "this ( is not closed; close it with )")
        if self._frames:
            part = self._close()
            nodes = range(part.first, len(self._network.moves))
            self._rules[self._name] = Rule(part.entry, part.exit, nodes)

    def _node(self) -> int:
        if len(self._network.moves) >= MAX_NODES:
            raise self._too_large(self._frames[-1].opened if self._frames else 0)
        return self._network.node()

    def _error(self, at: int, why: str) -> GrammarSyntaxError:
        return GrammarSyntaxError(f"the grammar, {_place(self._text, at)}: {why}.")

    def _too_large(self, at: int) -> GrammarTooLarge:
        return GrammarTooLarge(
            f"the grammar, {_place(self._text, at)}: written out, it needs more than "
            f"{MAX_NODES:,} nodes; lower its counts, or shorten it."
        )


def utf8_ranges(first: int, last: int) -> list[Bytes]:
    """Sequences of byte ranges that together spell the characters of a range, surrogates left out.

    Each byte of a sequence is independent of the others.
    """
    found = []
    sizes = ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF))
    todo = [(max(first, low), min(last, high)) for low, high in reversed(sizes)]
    while todo:
        low, high = todo.pop()
        if low > high:
            continue
        for bits in (18, 12, 6):  # split where the bytes behind would depend on this one
            tail = (1 << bits) - 1
            if high < 0x80 or low >> bits == high >> bits:
                continue
            if low & tail:
                todo += [((low | tail) + 1, high), (low, low | tail)]
                break
            if high & tail != tail:
                todo += [(high & ~tail, high), (low, (high & ~tail) - 1)]
                break
        else:
            found.append(tuple(zip(chr(low).encode(), chr(high).encode(), strict=True)))
    return found


def _rests(sequences: list[Bytes]) -> set[Bytes]:
    """What may be left of some sequences behind their first bytes."""
    return {(), *(each[start:] for each in sequences for start in range(1, len(each)))}


def _place(text: str, offset: int) -> str:
    line = text.count("\n", 0, offset) + 1
    return f"line {line:,}, column {offset - text.rfind(chr(10), 0, offset):,}"
