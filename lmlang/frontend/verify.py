"""Is this IR well formed? Asked after every pass, and of all IR that comes from elsewhere.

A program is lines of states. Each line has one newest state, which alone can be taken:

    %0 ─ %1 ─────────── %4 = join %1 %3       a fork begins lines and takes nothing,
          └─ %2 ─ %3                          a join looks at lines that its own began

Beside that: types and ranges of all fields, turns and scopes that match, variables that are
defined before they are referred to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from lmlang import limits
from lmlang.errors import ConstraintError, ProgramError, an, quote
from lmlang.frontend import ir
from lmlang.frontend.fields import check_fields, check_program
from lmlang.frontend.printer import print_node
from lmlang.frontend.reasoning import SUFFIX

NEAR = 16
"""So many lines up a variable is looked for line by line; beyond, where its name is defined."""
FEW = 16
"""... if so few lines define it."""
STEPS_PER_NODE = 64
"""Steps that the search for variables may take for each node, on average ..."""
FREE_STEPS = 10_000_000
"""... beyond these; only programs made to be slow need more."""


def verify(program: ir.Program) -> ir.Program:
    """The same program, if it is well formed.

    Raises:
        ProgramError: It is not; says which line of the printed program is wrong, and why.
    """
    check_program(program)
    if program.version != ir.VERSION:
        raise ProgramError(
            f"the program has version {program.version!r} of the IR, and this lmlang reads "
            f"version {ir.VERSION} only: record it anew."
        )
    if len(program.nodes) > limits.MAX_NODES:
        raise ProgramError(
            f"the program has {len(program.nodes):,} nodes: at most {limits.MAX_NODES:,} are "
            "allowed."
        )
    _Check(program).run()
    return program


class _Line:
    """The states from the start or a fork on, and what is open and defined there.

    ``defined`` maps a variable to where it was first defined here (the number of the node) and to
    its items: 0 for a text, None where unknown.
    """

    __slots__ = (
        *("beside", "defined", "depth", "jump", "newest", "number"),
        *("parent", "role", "scopes", "since"),
    )

    def __init__(self, parent: _Line | None, since: int, number: int, role: str | None) -> None:
        self.parent = parent
        self.since = since
        self.number = number
        self.role = role
        self.newest = 0
        self.scopes: list[str] = []
        self.defined: dict[str, tuple[int, int | None]] = {}
        self.beside: _Siblings | None = None
        # Lines up have jumps of 1, 3, 7, … lines, so that any of them is reached in few.
        self.depth = 0
        self.jump: _Line = self
        if parent is not None:
            far = parent.jump
            even = parent.depth - far.depth == far.depth - far.jump.depth
            self.depth, self.jump = parent.depth + 1, far.jump if even else parent


class _Siblings:
    """The lines of one fork, and whether they have been joined."""

    __slots__ = ("joined", "role")

    def __init__(self, role: str | None) -> None:
        self.role = role
        self.joined = False


class _Check:
    """One program on its way through the checks, node by node."""

    def __init__(self, program: ir.Program) -> None:
        self._nodes = program.nodes
        self._lines: dict[int, _Line] = {}
        self._made_at: dict[int, int] = {}
        self._definers: dict[str, list[_Line]] = {}
        self._at = 0
        self._steps = 0
        self._name = program.name
        self._parameters: set[str] = set()
        for parameter in program.parameters:
            name = parameter.name.lstrip("*")
            if name in self._parameters:
                raise ProgramError(f"{self._name!r}: the parameter {quote(name)} stands twice.")
            self._parameters.add(name)
        self._returned = False

    def run(self) -> None:
        for at, node in enumerate(self._nodes):
            self._at = at
            try:
                check_fields(node)
            except (ProgramError, ConstraintError) as error:
                self._refuse(str(error))
            if isinstance(node, ir.Start) != (self._at == 0):
                self._refuse("start stands once, and first.")
            for state in ir.made_by(node):
                if state in self._made_at:
                    self._refuse(f"%{state} has been made before: each state is made once.")
                self._made_at[state] = self._at
            if isinstance(node, ir.Start):
                self._lines[node.made] = line = _Line(None, 0, 0, None)
                line.newest = node.made
                continue
            line = self._taken(node.state)
            meaning = _MEANING.get(type(node))
            if meaning is not None:
                meaning(self, line, node)
            if not isinstance(node, (ir.Fork, ir.Return)):
                line.newest = node.made
                self._lines[node.made] = line
        if not self._nodes:
            self._refuse("the program is empty: it begins with start.")

    def _refuse(self, why: str) -> NoReturn:
        shown = ""
        if self._at < len(self._nodes):
            try:
                shown = f" ({quote(print_node(self._nodes[self._at]))[1:-1]})"
            except Exception:  # what is wrong with the node keeps it from being printed, too
                shown = f" ({type(self._nodes[self._at]).__name__})"
        raise ProgramError(f"{self._name!r}, line {self._at + 2:,}{shown}: {why}")

    def _taken(self, state: int) -> _Line:
        line = self._lines.get(state)
        if line is None:
            self._refuse(f"%{state} is made by no line above: a state is made before it is taken.")
        if line.newest != state:
            self._refuse(
                f"%{state} has been taken already: %{line.newest} is the newest of its line."
            )
        return line

    # ----------------------------------------------------------------- what kinds of nodes mean

    def _role(self, line: _Line, node: ir.Role) -> None:
        if line.role is not None:
            self._refuse(f"the {line.role} turn is open: end it before another begins.")
        line.role = node.role

    def _end_role(self, line: _Line, node: ir.EndRole) -> None:
        if line.role != node.role:
            open_one = "no turn" if line.role is None else f"the {line.role} turn"
            self._refuse(f"it ends {an(node.role)} turn, and {open_one} is open.")
        line.role = None

    def _scope(self, line: _Line, node: ir.Scope) -> None:
        line.scopes.append(node.name)

    def _end_scope(self, line: _Line, node: ir.EndScope) -> None:
        if not line.scopes or line.scopes[-1] != node.name:
            innermost = f"{line.scopes[-1]!r} is the innermost" if line.scopes else "none"
            self._refuse(f"it ends the scope {node.name!r}, and {innermost} is open here.")
        line.scopes.pop()
        self._define(line, node.name, 0)

    def _gen(self, line: _Line, node: ir.Gen) -> None:
        items = node.n if node.n is not None and node.n > 1 else 0
        self._define(line, node.name, items)
        if node.reasoning is not None:
            self._define(line, node.name + SUFFIX, items)

    def _select(self, line: _Line, node: ir.Select) -> None:
        self._define(line, node.name, 0)

    def _set_var(self, line: _Line, node: ir.SetVar) -> None:
        self._value(line, node.value)
        self._define(line, node.name, None)

    def _fork(self, line: _Line, node: ir.Fork) -> None:
        beside = _Siblings(line.role)
        for number, made in enumerate(node.made):
            child = _Line(line, self._at, number, line.role)
            child.newest, child.beside = made, beside
            self._lines[made] = child

    def _join(self, line: _Line, node: ir.Join) -> None:
        children = [self._taken(state) for state in node.children]
        beside = children[0].beside
        for before, child in zip([None, *children], children, strict=False):
            if child.parent is not line or child.beside is not beside or beside is None:
                self._refuse(f"%{child.newest} is no child of one fork of this line.")
            if before is not None and before.number >= child.number:
                self._refuse(f"%{child.newest} stands out of fork order.")
        if beside is None or beside.joined:
            self._refuse("these children have been joined already.")
        beside.joined = True
        if node.mode == "gather_variable":
            for child in children:
                self._step(len(child.defined))
                for name in child.defined:
                    self._define(line, name, len(children))
        elif any(not line.role == beside.role == child.role for child in children):
            self._refuse("a turn is open at only one end of a text that is appended.")

    def _arg(self, line: _Line, node: ir.Arg) -> None:
        if node.name not in self._parameters:
            self._refuse(f"{node.name!r} is no parameter of the program.")

    def _ref(self, line: _Line, node: ir.Ref) -> None:
        of = line if node.of is None else self._lines.get(node.of)
        if of is None:
            self._refuse(f"%{node.of} is made by no line above.")
        before = self._at if node.of is None else self._made_at[node.of] + 1
        owner = self._owner(of, node.name, before)
        if owner is None:
            self._refuse(f"the variable {node.name!r} is defined by no line above.")
        _, items = owner.defined[node.name]
        if node.index and items is not None and node.index[0] >= items:
            self._refuse(
                f"{node.name!r} has {items:,} items, counted from 0."
                if items
                else f"{node.name!r} is one text and has no items."
            )

    def _call(self, line: _Line, node: ir.Call) -> None:
        for _, value in node.arguments:
            self._value(line, value)

    def _return(self, line: _Line, node: ir.Return) -> None:
        if line.parent is not None:
            self._refuse("a program returns on its own line, and not on a fork's.")
        if self._returned:
            self._refuse("a program returns once.")
        self._returned = True
        self._value(line, node.value)

    def _value(self, line: _Line, value: ir.Datum) -> None:
        if isinstance(value, ir.Ref):
            self._ref(line, value)
        elif isinstance(value, ir.Arg):
            self._arg(line, value)

    # ---------------------------------------------------------------------------- variables

    def _owner(self, line: _Line | None, name: str, before: int) -> _Line | None:
        """The line nearest above, or this one, that defined a variable before a node."""
        walked = 0
        definers = self._definers.get(name, [])
        while line is not None:
            if walked >= NEAR and len(definers) <= FEW:
                return self._nearest(line, name, before, definers)
            self._step(1)
            walked += 1
            if line.defined.get(name, (before, None))[0] < before:
                return line
            before, line = line.since, line.parent
        return None

    def _nearest(self, line: _Line, name: str, before: int, definers: list[_Line]) -> _Line | None:
        """As `_owner`, among the few lines that define the name."""
        nearest: _Line | None = None
        for found in definers:
            at = found.defined[name][0]
            if found.depth > line.depth or (nearest and found.depth <= nearest.depth):
                continue
            if found is line:
                if at < before:
                    nearest = found
                continue
            below = line
            while below.depth > found.depth + 1:
                self._step(1)
                jumped = below.jump
                below = jumped if jumped.depth > found.depth else below.parent or jumped
            if below.parent is found and at < below.since:
                nearest = found
        return nearest

    def _define(self, line: _Line, name: str, items: int | None) -> None:
        known = line.defined.get(name)
        if known is None:
            line.defined[name] = (self._at, items)
            self._definers.setdefault(name, []).append(line)
        elif known[1] != items:
            line.defined[name] = (known[0], None)

    def _step(self, count: int) -> None:
        self._steps += count
        if self._steps > FREE_STEPS + STEPS_PER_NODE * len(self._nodes):
            self._refuse("its forks and variables are too entangled to be checked.")


_MEANING: Mapping[type[ir.Node], Callable[[_Check, _Line, Any], None]] = {
    ir.Role: _Check._role,
    ir.EndRole: _Check._end_role,
    ir.Scope: _Check._scope,
    ir.EndScope: _Check._end_scope,
    ir.Gen: _Check._gen,
    ir.Select: _Check._select,
    ir.SetVar: _Check._set_var,
    ir.Fork: _Check._fork,
    ir.Join: _Check._join,
    ir.Arg: _Check._arg,
    ir.Ref: _Check._ref,
    ir.Call: _Check._call,
    ir.Return: _Check._return,
}
