"""``s``, the state that a program's function sees: it records nodes; reading alone waits.

Variables are bound when a node is appended (program order), and settled when it has run: so what
``s["x"]`` means never depends on timing.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, overload

from lmlang import limits
from lmlang.errors import CaptureError, ProgramError, ProgramTypeError, fresh, quote
from lmlang.frontend import ir
from lmlang.frontend.expression import Expression, Leaf, as_expression, begin, end, role_after, turn
from lmlang.frontend.interpreter import append
from lmlang.frontend.meta import Meta
from lmlang.frontend.metainfo import meta_info
from lmlang.frontend.reasoning import SUFFIX
from lmlang.frontend.run import Operation, Phase, State, Variable
from lmlang.frontend.source import users_line
from lmlang.protocol import EndTurn, Image, Prompt, Segment, Turn, Usage


class ProgramState:
    """One growing prompt with its variables; the first parameter of a program.

    Appending is for one thread at a time; everything else is thread-safe.

    Attributes:
        ret_value: What the program's function returned, once it has.
    """

    ret_value: Any = None

    def __init__(self, state: State, node_id: int = 0) -> None:
        self._state = state
        self._head = node_id
        self._variables: dict[str, Variable] = {}
        self._unnamed = 0
        self._positions = 0
        self._forks = 0
        self._role: str | None = None

    # ---------------------------------------------------------------- appending

    def __iadd__(self, other: object) -> ProgramState:
        leaves = as_expression(other).leaves
        role = self._role
        for leaf in leaves:
            role = role_after(role, leaf.node)
        source = users_line()
        append(
            self._state,
            [
                self._place(leaf, _followed_by_end(leaves, i), source)
                for i, leaf in enumerate(leaves)
            ],
        )
        self._role = role
        return self

    def _place(self, leaf: Leaf, ends_turn: bool, source: str) -> Operation:
        node, path = leaf.node, ""
        variable: Variable | None = None
        made = self._state.run.recording.new_state()
        if isinstance(node, (ir.Gen, ir.Select)):
            variable = self._bind(node.name or self._next_unnamed())
            path = self._next_path()
            if isinstance(node, ir.Select) and node.ends_turn is None:
                node = replace(node, ends_turn=ends_turn)
            node = replace(node, name=variable.name)
        beside: tuple[tuple[Variable, object], ...] = ()
        if isinstance(node, ir.Gen) and node.reasoning is not None:
            beside = ((self._bind(node.name + SUFFIX), None),)
        placed = replace(node, state=self._head, made=made)
        self._record(placed, made, source)
        return Operation(placed, path, source, variable, leaf.members, leaf.beside, gathered=beside)

    def __setitem__(self, name: str, value: object) -> None:
        _check_name(name)
        made, source = self._state.run.recording.new_state(), users_line()
        node = ir.SetVar(self._head, made, name)
        self._record(node, made, source)
        append(self._state, [Operation(node, "", source, self._bind(name), value=value)])

    @overload
    def system(self) -> OpenTurn: ...
    @overload
    def system(self, expr: str | Expression) -> None: ...
    def system(self, expr: str | Expression | None = None) -> OpenTurn | None:
        """``with s.system():`` is a system turn; ``s.system(expr)`` appends one."""
        return self._turn("system", expr)

    @overload
    def user(self) -> OpenTurn: ...
    @overload
    def user(self, expr: str | Expression) -> None: ...
    def user(self, expr: str | Expression | None = None) -> OpenTurn | None:
        """``with s.user():`` is a user turn; ``s.user(expr)`` appends one."""
        return self._turn("user", expr)

    @overload
    def assistant(self) -> OpenTurn: ...
    @overload
    def assistant(self, expr: str | Expression) -> None: ...
    def assistant(self, expr: str | Expression | None = None) -> OpenTurn | None:
        """``with s.assistant():`` is an assistant turn; ``s.assistant(expr)`` appends one."""
        return self._turn("assistant", expr)

    def _turn(self, role: str, expr: str | Expression | None) -> OpenTurn | None:
        if expr is None:
            return OpenTurn(self, role)
        self += turn(role, expr)
        return None

    def fork(self, size: int = 1) -> Forks:
        """Children that begin with this state's prompt, variables and open turn as they are here.

        Waits for nothing. ``size`` is from 1 to 100,000.
        """
        size = limits.integer("size", size, 1, limits.MAX_FORKS)
        run, source = self._state.run, users_line()
        path = self._next_path()
        prefix = f"{path}/fork{self._forks}."
        self._forks += 1
        ids = tuple(run.recording.new_state() for _ in range(size))
        node = ir.Fork(self._head, ids)
        run.recording.add(node, source)
        children = [
            self._child(State(run, i, f"{prefix}{i}/", Phase.UNBORN), made)
            for i, made in enumerate(ids)
        ]
        states = tuple(child._state for child in children)
        run.states.extend(states)
        append(self._state, [Operation(node, path, source, children=states)])
        return Forks(self, children)

    def _child(self, state: State, node_id: int) -> ProgramState:
        child = ProgramState(state, node_id)
        child._variables = dict(self._variables)
        child._unnamed = self._unnamed
        child._role = self._role
        return child

    def _record(self, node: ir.Node, made: int, source: str) -> None:
        self._state.run.recording.add(node, source)
        self._head = made

    def _bind(self, name: str) -> Variable:
        variable = self._variables[name] = Variable(name)
        return variable

    def _next_unnamed(self) -> str:
        self._unnamed += 1
        return f"_{self._unnamed - 1}"

    def _next_path(self) -> str:
        # Generations, selects and forks count, so that a change of text moves no draw.
        self._positions += 1
        return f"{self._state.prefix}{self._positions - 1}"

    # ---------------------------------------------------------------- reading

    def __getitem__(self, name: str) -> Any:
        """The value of a variable; waits for it.

        Raises:
            CaptureError: Nothing that has been appended defines it.
        """
        return self._settled(name).value

    def __contains__(self, name: object) -> bool:
        return name in self._variables

    def text_of(self, name: str) -> str:
        """The raw text of a variable; waits for it. ``str()`` of a value that was set."""
        variable = self._settled(name)
        return str(variable.value) if variable.text is None else variable.text

    def meta(self, name: str) -> Meta:
        """Tokens, log-probabilities and more of a generation or select; waits for it.

        Raises:
            CaptureError: The variable is undefined, or was set and not generated.
        """
        found = self._settled(name).meta
        if found is None:
            raise CaptureError(
                f"{quote(name)} was set by the program or a join, so it has no metadata: ask "
                "the state that generated it, as in forks[0].meta(name)."
            )
        return found

    def get_meta_info(self, name: str) -> dict[str, Any] | list[dict[str, Any]]:
        """As `meta`, with SGLang's keys; a list where the generation has several samples.

        Raises:
            CaptureError: The variable is undefined, or was set and not generated.
        """
        return meta_info(self.meta(name), self._state.run.backend.decode)

    def text(self) -> str:
        """The whole prompt as the backend renders it, once everything appended has run."""
        return self._state.run.backend.render(self._finished())

    def token_ids(self) -> list[int]:
        """The whole prompt as token ids, once everything appended has run."""
        return self._state.run.backend.encode(self._finished())

    def messages(self) -> list[dict[str, str]]:
        """The turns so far as ``{"role": …, "content": …}``; text in no turn is left out."""
        found: list[dict[str, str]] = []
        parts: list[str] | None = None
        for segment in [*self._finished().segments(), EndTurn()]:
            if isinstance(segment, Turn):
                found.append({"role": segment.role, "content": ""})
                parts = []
            elif isinstance(segment, EndTurn):
                if parts is not None:
                    found[-1]["content"] = "".join(parts)
                parts = None
            elif parts is not None and not isinstance(segment, Image):
                parts.append(segment.text)
        return found

    def sync(self) -> None:
        """Wait until everything appended has run; raises what failed."""
        self._finished()

    def error(self) -> BaseException | None:
        """What this state failed with, once everything appended has run; None if nothing did."""
        self._state.wait()
        failure = self._state.failure()
        return None if failure is None else fresh(failure)

    def usage(self) -> Usage:
        """Tokens of all operations of this run that have ended, those of forks included."""
        return self._state.run.usage

    def program(self) -> ir.Program:
        """What this run has recorded so far, in its forks too."""
        return self._state.run.recording.program()

    def __repr__(self) -> str:
        names = ", ".join(self._variables)
        return f"<ProgramState of {self._state.run.name}: {names or 'no variables'}>"

    def _settled(self, name: str) -> Variable:
        _check_name(name)
        variable = self._variables.get(name)
        if variable is None:
            near = difflib.get_close_matches(name, self._variables, n=3, cutoff=0.5)
            there = near or list(self._variables)[:8]
            hint = (
                f"did you mean {' or '.join(map(quote, there))}?"
                if near
                else f"defined are {', '.join(map(quote, there))}."
                if there
                else 'nothing is defined yet: append lm.gen(name) or set s["name"] first.'
            )
            raise CaptureError(f"no variable {quote(name)} has been appended here; {hint}")
        run = self._state.run
        if not variable.settled:
            run.wait(lambda: variable.settled)
        error = variable.error if variable.settled else run.ended
        if error is not None:
            raise fresh(error)
        return variable

    def _finished(self) -> Prompt:
        self._state.wait()
        failure = self._state.failure()
        if failure is not None:
            raise fresh(failure)
        return self._state.prompt


class OpenTurn:
    """``with s.user():`` a turn around a block; it is closed on exceptions too."""

    def __init__(self, state: ProgramState, role: str) -> None:
        self._state = state
        self._role = role

    def __enter__(self) -> ProgramState:
        self._state += begin(self._role)
        return self._state

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None or self._state._role == self._role:  # else the body's error is what counts
            self._state += end(self._role)


class Forks:
    """The children of one fork, in order. Thread-safe but for `join`."""

    def __init__(self, parent: ProgramState, children: list[ProgramState]) -> None:
        self._parent = parent
        self._children = children
        self._variables = dict(parent._variables)
        self._role = parent._role
        self._joined = False

    def __len__(self) -> int:
        return len(self._children)

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self._children)

    @overload
    def __getitem__(self, index: int) -> ProgramState: ...
    @overload
    def __getitem__(self, index: slice) -> list[ProgramState]: ...
    def __getitem__(self, index: int | slice) -> ProgramState | list[ProgramState]:
        return self._children[index]

    def join(self, mode: ir.JoinMode = "gather_variable") -> None:
        """Wait for all children and bring what they made to the parent.

        Args:
            mode: "gather_variable": each variable set in a child since the fork becomes a list
                in fork order, None where a child lacks it. "concate_and_append": each child's
                own text is appended.

        Raises:
            ProgramError: A second join, an unknown mode, or turns that would not fit together.
            LMLangError: What a child failed with, ``.context.branch`` being its index; the
                parent goes on.
        """
        if mode not in ("gather_variable", "concate_and_append"):
            raise ProgramError(
                f"mode={quote(str(mode))} is unknown: use 'gather_variable' or "
                "'concate_and_append'."
            )
        if self._joined:
            raise ProgramError("these forks have been joined already: join once.")
        self._joined = True
        for child in self._children:
            child._state.wait()
        for child in self._children:
            child._state.joined = True
        for child in self._children:
            failure = child._state.failure()
            if failure is not None:
                raise fresh(failure)
        parent, source = self._parent, users_line()
        segments = self._own_segments() if mode == "concate_and_append" else ()
        gathered = self._gather() if mode == "gather_variable" else ()
        made = parent._state.run.recording.new_state()
        node = ir.Join(parent._head, made, tuple(c._head for c in self._children), mode)
        parent._record(node, made, source)
        parent._unnamed = max(parent._unnamed, *(c._unnamed for c in self._children))
        append(parent._state, [Operation(node, "", source, gathered=gathered, segments=segments)])

    def _gather(self) -> tuple[tuple[Variable, object], ...]:
        names: dict[str, list[object]] = {}
        for index, child in enumerate(self._children):
            for name, variable in child._variables.items():
                if variable is not self._variables.get(name):
                    values = names.setdefault(name, [None] * len(self._children))
                    values[index] = variable.value
        return tuple((self._parent._bind(name), values) for name, values in names.items())

    def _own_segments(self) -> tuple[Segment, ...]:
        segments: list[Segment] = []
        for index, child in enumerate(self._children):
            if not self._parent._role == self._role == child._role:
                raise ProgramError(
                    f"the text of fork {index} cannot be appended: a chat turn is open at only "
                    "one end of it. Close turns in the children that opened them."
                )
            own: list[Segment] = []
            node = child._state.prompt
            while node is not child._state.origin:
                assert node.segment is not None
                assert node.parent is not None
                own.append(node.segment)
                node = node.parent
            segments += reversed(own)
        return tuple(segments)


def _followed_by_end(leaves: tuple[Leaf, ...], index: int) -> bool:
    return index + 1 < len(leaves) and isinstance(leaves[index + 1].node, ir.EndRole)


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise ProgramTypeError(
            f"a variable's name is a string, and this is {type(name).__name__}: "
            'write s["name"]. (A state cannot be iterated; forks and s.messages() can.)'
        )
    if not name:
        raise ProgramError("a variable's name cannot be empty.")
