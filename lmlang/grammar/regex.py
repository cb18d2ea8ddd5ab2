r"""A regular expression in Python's syntax as a nondeterministic automaton over characters.

    a(b|c)*   ->   [a] -> < -> [b] -> back to <        [x] reads a character of a set
                          < -> [c] -> back to <        <   goes on in any of several ways
                          < -> end                     ^   goes on where an assertion holds

The standard library parses, so the syntax is Python's to the letter; `ecma` parses JavaScript's
into the same parts. What no finite automaton can do (back-references) or what means nothing for one
(atomic groups) is refused with its position; what would grow too large is refused by its size,
before it is built.
Source: Thompson, "Regular expression search algorithm" (1968).
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from lmlang.errors import GrammarSyntaxError, GrammarTooLarge, quote
from lmlang.grammar import ecma
from lmlang.grammar.charset import (
    EVERYTHING,
    SURROGATES,
    Item,
    Ranges,
    class_ranges,
    complement,
    contains,
)
from lmlang.grammar.nodes import ANYTHING, END, Assertion, Automaton, Look, Node, leading_to, pruned

IGNORECASE, ASCII, DOTALL, MULTILINE = map(int, (re.I, re.A, re.S, re.M))

MAX_NODES = 10_000
"""Nodes of one automaton."""
MAX_RANGES = 100_000
"""Ranges of characters in all classes of one automaton; ``\\w`` has more than 700."""
MAX_CHARACTERS = 100_000
"""Characters of one pattern."""
MAX_DEPTH = 100
"""Groups inside of groups."""

_parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")


@lru_cache(maxsize=64)
def compile_regex(*patterns: str) -> Automaton:
    """The automaton of what one of some patterns matches in full.

    Raises:
        GrammarSyntaxError: A pattern is none, or is not regular; with the position.
        GrammarTooLarge: The automaton would have more than `MAX_NODES` nodes.
    """
    builder = _Builder()
    starts = [builder.add(pattern) for pattern in patterns]
    return builder.finished(starts)


@lru_cache(maxsize=64)
def compile_search(pattern: str) -> Automaton:
    """The automaton of all texts in which a pattern of ECMA-262 is found.

    Raises:
        GrammarSyntaxError: It is none, or is not regular; with the position.
        GrammarTooLarge: Its automaton would be too large.
    """
    builder = _Builder()
    return builder.finished([builder.add_search(pattern)])


def refused(pattern: str, positions: dict[str, int], spelling: str, why: str) -> GrammarSyntaxError:
    """The error for a part of a pattern that is not possible."""
    at = positions.get(spelling)
    place = "" if at is None else f" at character {at:,}"
    return GrammarSyntaxError(f"the pattern {quote(pattern)}{place}: {why}.")


_AT = {
    "AT_BEGINNING": Assertion.BEGINNING,
    "AT_BEGINNING_STRING": Assertion.BEGINNING,
    "AT_END": Assertion.DOLLAR,
    "AT_END_STRING": Assertion.END,
    "AT_BOUNDARY": Assertion.BOUNDARY,
    "AT_NON_BOUNDARY": Assertion.NO_BOUNDARY,
    "AT_NON_BOUNDARY_OF_ECMA": Assertion.ECMA_NO_BOUNDARY,
}
_IN_LINES = {
    Assertion.DOLLAR: Assertion.END_OF_LINE,
}
_IN_ASCII = {
    Assertion.BOUNDARY: Assertion.ASCII_BOUNDARY,
    Assertion.NO_BOUNDARY: Assertion.NO_ASCII_BOUNDARY,
}
_NOT_REGULAR = {
    "GROUPREF": "a back-reference would have to remember text; spell out what may stand there",
    "GROUPREF_EXISTS": "a condition on a group would have to remember it; write both cases with |",
    "ATOMIC_GROUP": "an atomic group changes how a search goes back, and nothing goes back here; "
    "write (?:…)",
    "POSSESSIVE_REPEAT": "a possessive repeat changes how a search goes back, and nothing goes "
    "back here; leave out its last +",
}


class _Builder:
    """An automaton as it grows, from its end to its beginning."""

    def __init__(self) -> None:
        self._nodes: list[Node] = [Node(()), Node((ANYTHING,), reads=0)]
        self._sets: dict[Ranges, int] = {EVERYTHING: 0}
        self._monitors: list[int] = []
        self._looks: dict[tuple[int, int], Look] = {}
        self._behind = False
        self._of_number: dict[int, Ranges] = {}
        self._classes: dict[tuple[object, ...], int] = {}
        self._ranges = 0
        self._pattern = ""
        self._positions: dict[str, int] = {}
        self._work = 0

    def add(self, pattern: str) -> int:
        """Where a pattern begins."""
        _check_length(pattern)
        self._pattern, self._positions = pattern, _outline(pattern)
        self._looks.clear()
        try:
            tree = _parser.parse(pattern)
        except re.error as error:
            at = "" if error.pos is None else f" at character {error.pos:,}"
            raise GrammarSyntaxError(
                f"the pattern {quote(pattern)} is no regular expression: {error.msg}{at}."
            ) from None
        except (ValueError, OverflowError) as error:
            raise GrammarSyntaxError(
                f"the pattern {quote(pattern)} is no regular expression: {error}."
            ) from None
        start = self._sequence(tree, tree.state.flags, END)
        self._open_dollars()
        return start

    def add_search(self, pattern: str) -> int:
        """Where a text begins in which a pattern of ECMA-262 is found anywhere."""
        _check_length(pattern)
        self._pattern = pattern
        start = self._sequence(ecma.parse(pattern), ASCII, ANYTHING)
        ahead, todo = set[int](), [start]
        while todo:  # what comes first, if it is not bound to the beginning
            number = todo.pop()
            if number not in ahead and self._nodes[number].asserts is not Assertion.BEGINNING:
                ahead.add(number)
                todo += () if self._nodes[number].reads is not None else self._nodes[number].onward
        if all(self._nodes[n] == Node(self._nodes[n].onward) and n != END for n in ahead):
            return start
        loop = self._fork([])
        again = self._made(Node((loop,), reads=0))
        self._nodes[loop] = Node((again, start))
        return loop

    def finished(self, starts: list[int]) -> Automaton:
        """The automaton that begins at any of some nodes."""
        start = starts[0] if len(starts) == 1 else self._made(Node(tuple(starts)))
        monitors, sets = tuple(self._monitors), tuple(self._sets)
        return Automaton(pruned(self._nodes), start, monitors, sets, self._positions, self._pattern)

    def _made(self, node: Node) -> int:
        if len(self._nodes) >= MAX_NODES:
            raise self._too_large()
        self._nodes.append(node)
        return len(self._nodes) - 1

    def _too_large(self) -> GrammarTooLarge:
        return GrammarTooLarge(
            f"the pattern {quote(self._pattern)} needs more than {MAX_NODES:,} nodes of an "
            f"automaton, or classes of more than {MAX_RANGES:,} ranges (all patterns together): "
            "lower its counts, or write fewer classes."
        )

    def _sequence(self, items: Iterable[Any], flags: int, onward: int) -> int:
        """Where some parts begin that stand one behind the other."""
        for operation, argument in reversed(list(items)):
            onward = self._part(operation.name, argument, flags, onward)
        return onward

    def _part(self, name: str, argument: Any, flags: int, onward: int) -> int:
        self._spend()
        if name == "LITERAL":
            return self._reading([("range", argument, argument)], False, flags, onward)
        if name == "NOT_LITERAL":
            return self._reading([("range", argument, argument)], True, flags, onward)
        if name == "ANY":
            dot = EVERYTHING if flags & DOTALL else complement(((10, 10),))
            number = self._sets.setdefault(dot, len(self._sets))
            return self._made(Node((onward,), reads=number))
        if name == "IN":
            negated = argument[0][0].name == "NEGATE"
            return self._reading(_items(argument[negated:]), negated, flags, onward)
        if name == "BRANCH":
            return self._fork([self._sequence(way, flags, onward) for way in argument[1]])
        if name == "SUBPATTERN":
            _, added, taken, inside = argument
            return self._sequence(inside, (flags | added) & ~taken, onward)
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, inside = argument
            return self._repeat(least, most, inside, flags, onward)
        if name == "AT":
            asserts = _assertion(argument.name, flags)
            if self._behind and asserts is Assertion.DOLLAR:
                why = r"$ inside of a look-behind looks ahead; write \Z or (?m:$)"
                raise refused(self._pattern, self._positions, "$", why)
            return self._made(Node((onward,), asserts=asserts))
        if name == "FAILURE":
            return self._fork([])
        if name in ("ASSERT", "ASSERT_NOT"):
            look = self._look(name == "ASSERT_NOT", argument, flags)
            return self._made(Node((onward,), looks=look))
        why = _NOT_REGULAR.get(name, f"{name} is not known here")
        raise refused(self._pattern, self._positions, name, why)

    def _reading(self, items: list[Item], negated: bool, flags: int, onward: int) -> int:
        ignore_case, ascii_only = bool(flags & IGNORECASE), bool(flags & ASCII)
        written = (tuple(items), negated, ignore_case, ascii_only)
        number = self._classes.get(written)
        if number is None:
            ranges = class_ranges(*written)
            number = self._classes[written] = self._sets.setdefault(ranges, len(self._sets))
            self._of_number[number] = ranges
            self._ranges += len(ranges)
            if self._ranges > MAX_RANGES:
                raise self._too_large()
        ranges = self._of_number[number]
        nothing = all(first >= SURROGATES[0] and last <= SURROGATES[1] for first, last in ranges)
        return self._made(Node(() if nothing else (onward,), reads=number))

    def _fork(self, ways: list[int]) -> int:
        return self._made(Node(tuple(dict.fromkeys(ways))))

    def _repeat(self, least: int, most: int, inside: Any, flags: int, onward: int) -> int:
        if most >= _parser.MAXREPEAT:
            loop = self._fork([])
            again = self._sequence(inside, flags, loop)
            self._nodes[loop] = Node((again, onward))
            start = loop
        else:
            start = onward
            for _ in range(most - least):
                self._spend()
                start = self._fork([self._sequence(inside, flags, start), onward])
        for _ in range(least):
            self._spend()
            start = self._sequence(inside, flags, start)
        return start

    def _look(self, negated: bool, argument: Any, flags: int) -> Look:
        """A look-around, made once however often what holds it is repeated."""
        known = self._looks.get((id(argument), flags))
        if known is not None:
            return known
        direction, inside = argument
        if direction > 0:
            if self._behind:
                why = "a look-ahead inside of a look-behind cannot be compiled; write it outside"
                raise refused(self._pattern, self._positions, "ASSERT", why)
            look = Look("ASSERT", self._sequence(inside, flags, ANYTHING), negated)
        else:
            outer, self._behind = self._behind, True
            start = self._sequence(inside, flags, END)
            self._behind = outer
            self._monitors.append(start)
            look = Look("ASSERT", start, negated, len(self._monitors) - 1)
        self._looks[id(argument), flags] = look
        return look

    def _spend(self) -> None:
        """Count a part that is built, as parts may be empty and repeated without end."""
        self._work += 1
        if self._work > 4 * MAX_NODES:
            raise self._too_large()

    def _open_dollars(self) -> None:
        """Let a $ behind which a line may end look ahead: nothing else may follow that."""
        if all(node.asserts is not Assertion.DOLLAR for node in self._nodes):
            return
        ends = [contains(ranges, ord("\n")) for ranges in self._sets]
        readers = [n for n, node in enumerate(self._nodes) if node.reads is not None]
        before = leading_to(self._nodes, [n for n in readers if ends[self._nodes[n].reads or 0]])
        dollars = [n for n in before if self._nodes[n].asserts is Assertion.DOLLAR]
        if dollars:
            end = self._made(Node((ANYTHING,), asserts=Assertion.END))
            line_end = self._reading([("range", 10, 10)], False, 0, end)
            look = Look("$", self._fork([line_end, end]))
            for number in dollars:
                self._nodes[number] = Node(self._nodes[number].onward, looks=look)


def _check_length(pattern: str) -> None:
    if len(pattern) > MAX_CHARACTERS:
        raise GrammarTooLarge(
            f"the pattern {quote(pattern)} has {len(pattern):,} characters, but {MAX_CHARACTERS:,} "
            "are the limit: a list of texts is better given as choices or as an enum."
        )


def _items(members: Iterable[Any]) -> list[Item]:
    """The parts of a class."""
    found: list[Item] = []
    for operation, argument in members:
        if operation.name == "LITERAL":
            found.append(("range", argument, argument))
        elif operation.name == "RANGE":
            found.append(("range", *argument))
        else:
            kind = argument.name.removeprefix("CATEGORY_")
            letter = kind.removeprefix("NOT_")[0]
            found.append(("category", letter if "NOT_" in kind else letter.lower()))
    return found


def _assertion(name: str, flags: int) -> Assertion:
    found = _AT[name]
    if name == "AT_BEGINNING" and flags & MULTILINE:
        return Assertion.BEGINNING_OF_LINE
    if flags & MULTILINE:
        found = _IN_LINES.get(found, found)
    return _IN_ASCII.get(found, found) if flags & ASCII else found


_SPELLINGS = re.compile(
    r"""(?P<skipped>\[\^?\]?(?:[^\]\\]|\\.)*\])        # a class
    |(?P<GROUPREF>\\[1-9]|\(\?P=)|(?P<escape>\\.)
    |(?P<ASSERT>\(\?<?[=!])|(?P<ATOMIC_GROUP>\(\?>)|(?P<GROUPREF_EXISTS>\(\?\()
    |(?P<POSSESSIVE_REPEAT>[*+?}]\+)|(?P<open>\()|(?P<close>\))|(?P<dollar>\$)""",
    re.VERBOSE | re.DOTALL,
)


def _outline(pattern: str) -> dict[str, int]:
    """Where parts of a pattern first stand; GrammarTooLarge for groups nested too deeply."""
    found: dict[str, int] = {}
    depth = 0
    for match in _SPELLINGS.finditer(pattern):
        kind = match.lastgroup or ""
        name = {"escape": match[0], "dollar": "$"}.get(kind, kind)
        found.setdefault(name, match.start())
        depth += match[0].startswith("(") - (kind == "close")
        if depth > MAX_DEPTH:
            raise GrammarTooLarge(
                f"the pattern {quote(pattern)} nests more than {MAX_DEPTH} groups at character "
                f"{match.start():,}: flatten it."
            )
    return found
