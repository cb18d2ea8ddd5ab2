"""Reads a program's text, as `printer` shows it, into the same program.

Each kind of node has one function that reads what stands behind its state. There is no recursion
and nothing is evaluated, so what a hostile text can do is be refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from lmlang.errors import ProgramError, ProgramTypeError, an
from lmlang.frontend import ir
from lmlang.frontend.layout import (
    ANNOTATION,
    NODES,
    PARAMETER,
    options_of,
    read_list,
    read_state,
    word_of,
)
from lmlang.frontend.literals import Scanner

MAX_CHARACTERS = 64 * 2**20
"""Longer texts of programs are refused unread."""

_INDEX = re.compile(r"\[(?:0|[1-9][0-9]{0,14})\]")
_KINDS = {word_of(kind): kind for kind in NODES}

Fields = dict[str, Any]


def parse_program(text: str) -> ir.Program:
    """The program that a text shows; in it every state is made once, and above where it is taken.

    What else a program must be is asked by `verify`.

    Raises:
        ProgramError: The text cannot be read; says line, column and what was expected.
    """
    if not isinstance(text, str):
        raise ProgramTypeError(
            f"parse_program takes the text of a program, and this is {an(type(text).__name__)}."
        )
    if len(text) > MAX_CHARACTERS:
        raise ProgramError(
            f"the program's text has {len(text):,} characters: at most {MAX_CHARACTERS:,} are read."
        )
    return _Reader(text).program()


class _Reader:
    """One text on its way to a program, and the states that it has made so far."""

    def __init__(self, text: str) -> None:
        self.scanner = Scanner(text)
        self._claimed: set[int] = set()
        self._made: set[int] = set()

    def program(self) -> ir.Program:
        scanner = self.scanner
        scanner.blank_lines()
        start = scanner.position
        if scanner.word("'program'") != "program":
            scanner.refuse("'program'", start)
        name = scanner.name("the program's name")
        scanner.take("(")
        parameters = tuple(read_list(scanner, _read_parameter, ")"))
        self._version()
        scanner.line_end()
        nodes = []
        scanner.blank_lines()
        while not scanner.at_end():
            nodes.append(self._node())
            scanner.line_end()
            scanner.blank_lines()
        return ir.Program(name, tuple(nodes), parameters)

    def _version(self) -> None:
        scanner = self.scanner
        if scanner.taken("version"):
            scanner.spaces()
            start = scanner.position
            if scanner.number("the version") != ir.VERSION:
                scanner.refuse(f"version {ir.VERSION}, the one that is known here", start)

    def _node(self) -> ir.Node:
        scanner = self.scanner
        made = self._new_states() if scanner.sees("%") else []
        scanner.spaces()
        start = scanner.position
        word = scanner.word("a node")
        kind = _KINDS.get(word)
        if kind is None:
            scanner.refuse(f"a node ({', '.join(_KINDS)})", start)
        if kind is ir.Fork:
            if not made:
                scanner.refuse("the states that a fork makes, as in %1, %2 = fork", start)
        elif len(made) != (0 if kind is ir.Return else 1):
            makes = "nothing" if kind is ir.Return else "one state"
            scanner.refuse(f"a node that makes {len(made):,} states ({word} makes {makes})", start)
        given: Fields = {} if kind is ir.Return else {"made": made[0]}
        if kind is not ir.Start:
            given["state"] = self._old_state()
            _READ[kind](self, given, made)
            self._options(kind, given)
        self._made.update(made)
        return kind(**given)

    def _new_states(self) -> list[int]:
        made = []
        while True:
            state, start = self._state()
            if state in self._claimed:
                self.scanner.refuse("a state that nothing above makes", start)
            self._claimed.add(state)
            made.append(state)
            if not self.scanner.taken(","):
                self.scanner.take("=")
                return made

    def _old_state(self) -> int:
        state, start = self._state()
        if state not in self._made:
            self.scanner.refuse("a state that a line above makes", start)
        return state

    def _state(self) -> tuple[int, int]:
        self.scanner.spaces()
        start = self.scanner.position
        return read_state(self.scanner), start

    def _options(self, kind: type[ir.Node], given: Fields) -> None:
        options = options_of(kind)
        if not options or not self.scanner.taken("["):
            return

        def option(scanner: Scanner) -> None:
            scanner.spaces()
            start = scanner.position
            name = scanner.word("an option's name")
            if name not in options:
                scanner.refuse(f"an option of {word_of(kind)} ({', '.join(options)})", start)
            if name in given:
                scanner.refuse(f"{name} once only", start)
            scanner.take("=")
            given[name] = self._old_state() if name == "of" else options[name].form.read(scanner)

        read_list(self.scanner, option)

    # ------------------------------------------------ what stands behind the state, by kind

    def text(self, given: Fields, made: list[int]) -> None:
        given["text"] = self.scanner.string()

    def name(self, given: Fields, made: list[int]) -> None:
        given["name"] = self.scanner.name("a name")

    def ref(self, given: Fields, made: list[int]) -> None:
        given["name"], given["index"] = _read_ref(self.scanner)

    def role(self, given: Fields, made: list[int]) -> None:
        given["role"] = self.scanner.name("a role")

    def gen(self, given: Fields, made: list[int]) -> None:
        self.scanner.take("->")
        given["name"] = self.scanner.name("a variable's name")

    def select(self, given: Fields, made: list[int]) -> None:
        self.gen(given, made)
        self.scanner.take("[")
        given["choices"] = tuple(read_list(self.scanner, Scanner.string))

    def image(self, given: Fields, made: list[int]) -> None:
        given["image"] = self.scanner.string()

    def set_var(self, given: Fields, made: list[int]) -> None:
        self.gen(given, made)
        self._value(given)

    def fork(self, given: Fields, made: list[int]) -> None:
        self.scanner.spaces()
        start = self.scanner.position
        if self.scanner.number("the number of children") != len(made):
            self.scanner.refuse(f"{len(made)}, the number of states that are made", start)
        given["made"] = tuple(made)

    def join(self, given: Fields, made: list[int]) -> None:
        children = []
        while self.scanner.sees("%"):
            children.append(self._old_state())
        given["children"] = tuple(children)

    def call(self, given: Fields, made: list[int]) -> None:
        given["callee"] = self.scanner.name("a program's name")
        if self.scanner.taken("["):
            given["arguments"] = tuple(read_list(self.scanner, _read_argument))

    def ends(self, given: Fields, made: list[int]) -> None:
        self._value(given)

    def _value(self, given: Fields) -> None:
        scanner = self.scanner
        if not scanner.at_end() and not any(map(scanner.sees, ("\n", "\r\n"))):
            given["value"] = _read_datum(scanner)


_READ: Mapping[type[ir.Node], Callable[[_Reader, Fields, list[int]], None]] = {
    ir.Text: _Reader.text,
    ir.Arg: _Reader.name,
    ir.Ref: _Reader.ref,
    ir.Role: _Reader.role,
    ir.EndRole: _Reader.role,
    ir.Gen: _Reader.gen,
    ir.Select: _Reader.select,
    ir.Image: _Reader.image,
    ir.SetVar: _Reader.set_var,
    ir.Scope: _Reader.name,
    ir.EndScope: _Reader.name,
    ir.Fork: _Reader.fork,
    ir.Join: _Reader.join,
    ir.Call: _Reader.call,
    ir.Return: _Reader.ends,
}


def _read_parameter(scanner: Scanner) -> ir.Parameter:
    def name_or(pattern: re.Pattern[str], expected: str) -> str:
        return scanner.string() if scanner.sees('"') else scanner.matched(pattern, expected)

    name = name_or(PARAMETER, "a parameter's name")
    if not scanner.taken(":"):
        return ir.Parameter(name)
    return ir.Parameter(name, name_or(ANNOTATION, "a type, in quotes where it is no plain one"))


def _read_argument(scanner: Scanner) -> tuple[str, ir.Datum]:
    name = scanner.name("an argument's name")
    scanner.take("=")
    return name, _read_datum(scanner)


def _read_ref(scanner: Scanner) -> tuple[str, tuple[int, ...]]:
    name = scanner.name("a variable's name")
    index = []
    while scanner.text.startswith("[", scanner.position):
        index.append(int(scanner.matched(_INDEX, "an index such as [0]")[1:-1]))
    return name, tuple(index)


def _read_datum(scanner: Scanner) -> ir.Datum:
    expected = "a value: None, True, False, a number, a text in quotes, arg, ref or <type>"
    if scanner.sees('"'):
        return scanner.string()
    if scanner.taken("<"):
        kind = "" if scanner.sees(">") else scanner.name("a type's name")
        scanner.take(">")
        return ir.Opaque(kind)
    scanner.spaces()
    start = scanner.position
    if not scanner.text[start : start + 1].isalpha():
        return scanner.number(expected)
    word = scanner.word(expected)
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    if word == "arg":
        return ir.Arg(ir.UNPLACED, ir.UNPLACED, scanner.name("a parameter's name"))
    if word != "ref":
        scanner.refuse(expected, start)
    return ir.Ref(ir.UNPLACED, ir.UNPLACED, *_read_ref(scanner))


_CONSTANTS: Mapping[str, bool | None] = {"None": None, "True": True, "False": False}
