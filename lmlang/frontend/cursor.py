"""Where the recording of one state stands: it places nodes, binds variables and queues them.

Variables are bound when a node is appended (program order), and settled when it has run: so what
a name means never depends on timing.
"""

from __future__ import annotations

from collections.abc import Sequence

from lmlang import limits
from lmlang.errors import ProgramError, ProgramTypeError
from lmlang.frontend import ir
from lmlang.frontend.constraints import Living
from lmlang.frontend.expression import Leaf, as_expression, begin, end, place, role_after
from lmlang.frontend.interpreter import append
from lmlang.frontend.reasoning import SUFFIX
from lmlang.frontend.record import Record
from lmlang.frontend.run import Operation, Run, State, Variable
from lmlang.frontend.source import Here, users_line
from lmlang.protocol import Segment


class Cursor:
    """The end of one state's recording. Appending is for one thread at a time.

    Attributes:
        state: What executes the recording.
        here: Tells library errors that arise in its block where in the program that was.
        head: The node that made the state as it is.
        variables: What each name means here.
        scopes: The variables of the open scopes, innermost last; no name means them yet.
        role: The open chat turn.
        unnamed: Number of the next generation without a name.
    """

    def __init__(self, state: State, head: int = 0) -> None:
        self.state = state
        self.here = Here(state.run.name, state.branch)
        self.head = head
        self.variables: dict[str, Variable] = {}
        self.scopes: list[Variable] = []
        self.role: str | None = None
        self.unnamed = 0
        self._positions = 0
        self._forks = 0

    @property
    def run(self) -> Run:
        """The run of the state."""
        return self.state.run

    # ---------------------------------------------------------------- appending

    def append(self, value: object) -> None:
        """Append a string or an expression."""
        with self.here:
            leaves = as_expression(value).leaves
            role = self.role
            for leaf in leaves:
                role = role_after(role, leaf.node)
        source = users_line()
        append(
            self.state,
            [
                self._place(leaf, _followed_by_end(leaves, i), source)
                for i, leaf in enumerate(leaves)
            ],
        )
        self.role = role

    def _place(self, leaf: Leaf, ends_turn: bool, source: str) -> Operation:
        node, path = leaf.node, ""
        variable: Variable | None = None
        made = self.run.recording.new_state()
        if isinstance(node, (ir.Gen, ir.Select)):
            variable = self.bind(node.name or self._next_unnamed())
            variable.asked = leaf.beside.asked if isinstance(leaf.beside, Living) else None
            path = self._next_path()
        placed = place(node, self.head, made, variable.name if variable else "", ends_turn)
        beside: tuple[tuple[Variable, object], ...] = ()
        if isinstance(placed, ir.Gen) and placed.reasoning is not None:
            beside = ((self.bind(placed.name + SUFFIX), None),)
        self._record(placed, made, source)
        record = None
        if isinstance(placed, (ir.Gen, ir.Select, ir.Image)):
            record = self._noted(placed, path, source)
        return Operation(
            placed, path, source, variable, leaf.members, leaf.beside, (), beside, (), record
        )

    def begin_turn(self, role: str) -> None:
        """Open a chat turn."""
        self.append(begin(role))

    def end_turn(self, role: str, error: BaseException | None) -> None:
        """Close a chat turn, also on an error; where that has closed it, the error counts."""
        if error is None or self.role == role:
            self.append(end(role))

    def set(self, name: str, value: object) -> None:
        """Set a variable, in order with what has been appended."""
        with self.here:
            check_name(name)
        made, source = self.run.recording.new_state(), users_line()
        node = ir.SetVar(self.head, made, name, ir.as_datum(value))
        self._record(node, made, source)
        variable, record = self.bind(name), self._noted(node, "", source)
        append(self.state, [Operation(node, "", source, variable, value=value, record=record)])

    def begin_scope(self, name: str) -> None:
        """Open a scope, whose text will be a variable."""
        with self.here:
            check_name(name)
        variable = Variable(name, scope=True)
        self.scopes.append(variable)
        made, source = self.run.recording.new_state(), users_line()
        node = ir.Scope(self.head, made, name)
        self._record(node, made, source)
        append(self.state, [Operation(node, "", source, variable)])

    def end_scope(self) -> None:
        """Close the innermost scope: its name now means its text."""
        variable = self.scopes.pop()
        made, source = self.run.recording.new_state(), users_line()
        node = ir.EndScope(self.head, made, variable.name)
        self._record(node, made, source)
        self.variables[variable.name] = variable
        record = self._noted(node, "", source)
        append(self.state, [Operation(node, "", source, variable, record=record)])

    def begin_call(self, callee: str, arguments: Sequence[tuple[str, object]]) -> None:
        """Note that another program begins here."""
        made, source = self.run.recording.new_state(), users_line()
        data = tuple((name, ir.as_datum(value)) for name, value in arguments)
        node = ir.Call(self.head, made, callee, data)
        self._record(node, made, source)
        append(self.state, [Operation(node, "", source, record=self._noted(node, "", source))])

    # ---------------------------------------------------------------- forks

    def fork(self, size: int) -> list[Cursor]:
        """Children that begin as this state is here; waits for nothing."""
        with self.here:
            size = limits.integer("size", size, 1, limits.MAX_FORKS)
        run, source = self.run, users_line()
        path = self._next_path()
        prefix = f"{path}/fork{self._forks}."
        self._forks += 1
        ids = tuple(run.recording.new_state() for _ in range(size))
        node = ir.Fork(self.head, ids)
        run.recording.add(node, source)
        children = [
            self._child(self.state.child(i, f"{prefix}{i}/"), made) for i, made in enumerate(ids)
        ]
        states = tuple(child.state for child in children)
        with run.lock:
            run.states.extend(states)
        record = self._noted(node, path, source)
        append(self.state, [Operation(node, path, source, children=states, record=record)])
        return children

    def _child(self, state: State, head: int) -> Cursor:
        child = Cursor(state, head)
        child.variables = dict(self.variables)
        child.unnamed = self.unnamed
        child.role = self.role
        return child

    def join(
        self,
        children: Sequence[Cursor],
        mode: ir.JoinMode,
        gathered: dict[str, list[object]],
        segments: tuple[Segment, ...],
    ) -> None:
        """Take up what children that have ended bring: variables and text."""
        made, source = self.run.recording.new_state(), users_line()
        node = ir.Join(self.head, made, tuple(child.head for child in children), mode)
        self._record(node, made, source)
        self.unnamed = max(self.unnamed, *(child.unnamed for child in children))
        bound = tuple((self.bind(name), values) for name, values in gathered.items())
        record = self._noted(node, "", source)
        operation = Operation(node, "", source, gathered=bound, segments=segments, record=record)
        append(self.state, [operation])

    def returned(self, value: object) -> None:
        """Note what the program's function returned."""
        self.run.recording.add(ir.Return(self.head, ir.as_datum(value)), "")

    # ---------------------------------------------------------------- counting

    def bind(self, name: str) -> Variable:
        """A new variable that the name means from here on."""
        variable = self.variables[name] = Variable(name)
        return variable

    def _record(self, node: ir.Node, made: int, source: str) -> None:
        self.run.recording.add(node, source)
        self.head = made

    def _noted(self, node: ir.Node, path: str, source: str) -> Record:
        """The next record of the run log."""
        record = Record(node, path, source, self.state.prefix, self.state.branch)
        self.run.records.append(record)
        return record

    def _next_unnamed(self) -> str:
        self.unnamed += 1
        return f"_{self.unnamed - 1}"

    def _next_path(self) -> str:
        # Generations, selects and forks count, so that a change of text moves no draw.
        self._positions += 1
        return f"{self.state.prefix}{self._positions - 1}"


def check_name(name: object) -> None:
    """Raise ProgramError for what cannot be a variable's name."""
    if not isinstance(name, str):
        raise ProgramTypeError(
            f"a variable's name is a string, and this is {type(name).__name__}: "
            'write s["name"]. (A state cannot be iterated; forks and s.messages() can.)'
        )
    if not name:
        raise ProgramError("a variable's name cannot be empty.")


def _followed_by_end(leaves: tuple[Leaf, ...], index: int) -> bool:
    return index + 1 < len(leaves) and isinstance(leaves[index + 1].node, ir.EndRole)
