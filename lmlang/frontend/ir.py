"""The nodes that a run of a program records, in SSA over states: each takes a state, makes one.

    %0 = start
    %1 = text %0 "Two tips: "
    %2, %3 = fork %1 2          children are made; %1 goes on as the parent
    %4 = gen %2 -> tip
    %5 = gen %3 -> tip
    %6 = join %1 %4 %5

Nodes are pure data: source lines and Python values lie beside them, keyed by the state they make.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

UNPLACED = -1
"""The state ids of a node that stands in an expression and has not been appended yet."""

JoinMode = Literal["gather_variable", "concate_and_append"]


@dataclass(frozen=True, slots=True)
class Start:
    """The empty state that a program begins with."""

    made: int = 0


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text."""

    state: int
    made: int
    text: str


@dataclass(frozen=True, slots=True)
class Role:
    """Opens a chat turn."""

    state: int
    made: int
    role: str


@dataclass(frozen=True, slots=True)
class EndRole:
    """Closes the chat turn of this role."""

    state: int
    made: int
    role: str


@dataclass(frozen=True, slots=True)
class Gen:
    """A generation into a variable; None inherits from the run, an empty name is numbered."""

    state: int
    made: int
    name: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    stop: tuple[str, ...] | None = None
    ignore_eos: bool | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Select:
    """The likeliest of some texts into a variable; an empty name is numbered."""

    state: int
    made: int
    name: str
    choices: tuple[str, ...]
    ends_turn: bool | None = None
    """Whether the end of the turn is scored too; None: decided when it is appended."""


@dataclass(frozen=True, slots=True)
class SetVar:
    """A variable set by the program; its value lies beside the nodes."""

    state: int
    made: int
    name: str


@dataclass(frozen=True, slots=True)
class Fork:
    """Children that begin where the state is; ``state`` itself goes on."""

    state: int
    made: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """The parent, with what its children (their last states, in fork order) bring."""

    state: int
    made: int
    children: tuple[int, ...]
    mode: JoinMode


Node: TypeAlias = Start | Text | Role | EndRole | Gen | Select | SetVar | Fork | Join


@dataclass(frozen=True, slots=True)
class Program:
    """A finished recording: nodes in the order in which they were appended.

    Args:
        name: The program's name.
        nodes: A state is made before it is taken.
        sources: The user's line (``file.py:12``) of the node that made a state.
    """

    name: str
    nodes: tuple[Node, ...]
    sources: dict[int, str] = field(default_factory=dict, compare=False, repr=False)


class Recording:
    """A `Program` in the making. Thread-safe: states of one run may be appended to in parallel."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: list[Node] = [Start()]
        self._sources: dict[int, str] = {}
        self._ids = itertools.count(1)

    def new_state(self) -> int:
        """An id that no node has made yet."""
        return next(self._ids)

    def add(self, node: Node, source: str) -> None:
        """Add a node whose states are in place."""
        self._nodes.append(node)
        for made in node.made if isinstance(node.made, tuple) else (node.made,):
            self._sources[made] = source

    def program(self) -> Program:
        """What has been recorded so far."""
        return Program(self._name, tuple(self._nodes), dict(self._sources))
