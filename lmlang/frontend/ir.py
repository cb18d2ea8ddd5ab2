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

import math
from dataclasses import dataclass, field
from importlib import import_module
from typing import Literal, TypeAlias

from lmlang.frontend.content import content_digest
from lmlang.grammar.spec import Spec

VERSION = 1
"""Of the nodes and their meaning; a reader refuses what is newer than itself."""

UNPLACED = -1
"""The state ids of a node that stands in an expression or as a value, not in a program's line."""

StateId: TypeAlias = int
JoinMode = Literal["gather_variable", "concate_and_append"]


@dataclass(frozen=True, slots=True)
class Opaque:
    """Stands for a value that is no data; ``kind`` is its type's name, or empty."""

    kind: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """The empty state that a program begins with."""

    made: int = 0


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text, whatever it spells.

    Args:
        text: The text.
    """

    state: int
    made: int
    text: str


@dataclass(frozen=True, slots=True)
class Arg:
    """A hole of a trace: the text of an argument that was not known.

    Args:
        name: The program's parameter.
    """

    state: int
    made: int
    name: str


@dataclass(frozen=True, slots=True)
class Ref:
    """A hole of a trace: the text of a variable that only a run knows.

    Args:
        name: The variable.
        index: Which item of the lists that joins and several samples make, outermost first.
        of: The state whose variable it is, where this state has no such one of its own.
    """

    state: int
    made: int
    name: str
    index: tuple[int, ...] = ()
    of: StateId | None = None


@dataclass(frozen=True, slots=True)
class Role:
    """Opens a chat turn.

    Args:
        role: Whose turn it is.
    """

    state: int
    made: int
    role: str


@dataclass(frozen=True, slots=True)
class EndRole:
    """Closes the open chat turn.

    Args:
        role: Whose turn it was.
    """

    state: int
    made: int
    role: str


@dataclass(frozen=True, slots=True)
class Gen:
    """A generation into a variable; what is not given inherits from the run.

    Args:
        name: The variable.
        max_tokens: Tokens at most.
        min_tokens: Tokens before it may end.
        n: Samples; more than one make the value a list.
        stop: Texts that end the output.
        stop_token_ids: Tokens that end it.
        stop_regex: Patterns whose match ends it.
        temperature: 0 is greedy.
        top_p: Only the likeliest tokens whose probabilities reach this sum.
        top_k: Only so many of the likeliest tokens.
        min_p: Only tokens at least this fraction as likely as the likeliest.
        frequency_penalty: Taken from a token's logit for each time that it came.
        presence_penalty: Taken from a token's logit once it came.
        repetition_penalty: Divides the logits of tokens that came.
        ignore_eos: Go on past the model's own end.
        return_logprob: Whether log-probabilities are wanted.
        logprob_start_len: From which prompt token on.
        top_logprobs_num: Of how many of the likeliest tokens too.
        return_text_in_logprobs: With the tokens' texts.
        include_stop: Keep the stop text in the value.
        heal: Whether the token that the text before ends with may become a longer one.
        logit_bias: What is added to the logits of tokens, by their ids.
        seed: For this generation's draws.
        reasoning: The model type whose reasoning is cut out, into a variable of its own.
        constraint: What the output must be.
        on_budget: Whether an output that its budget would cut is closed, or refused.
        think: Tokens of hidden text at most before the output.
        provenance: Whether it is told how each token came about.
        processor: The name of the program's own function of logits.
    """

    state: int
    made: int
    name: str
    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    stop: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    stop_regex: tuple[str, ...] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None
    include_stop: bool | None = None
    heal: bool | None = None
    logit_bias: tuple[tuple[int, float], ...] | None = None
    seed: int | None = None
    reasoning: str | None = None
    constraint: Spec | None = None
    on_budget: str | None = None
    think: int | None = None
    provenance: bool | None = None
    processor: str | None = None


@dataclass(frozen=True, slots=True)
class Select:
    """One of some texts into a variable, by their log-probabilities.

    Args:
        name: The variable.
        choices: The texts.
        ends_turn: Whether the end of the turn is scored too.
        temperature: Above 0 the choice is drawn.
        method: The name of the choices method.
    """

    state: int
    made: int
    name: str
    choices: tuple[str, ...]
    ends_turn: bool | None = None
    temperature: float | None = None
    method: str | None = None


@dataclass(frozen=True, slots=True)
class Image:
    """A picture; its bytes lie beside the nodes.

    Args:
        image: Its path, or another name for it.
        digest: SHA-256 of its bytes, in hexadecimal digits.
    """

    state: int
    made: int
    image: str
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class SetVar:
    """A variable set by the program.

    Args:
        name: The variable.
        value: What it is set to.
    """

    state: int
    made: int
    name: str
    value: Datum = Opaque()


@dataclass(frozen=True, slots=True)
class Scope:
    """Begins a variable whose value is the text up to the end of the scope.

    Args:
        name: The variable.
    """

    state: int
    made: int
    name: str


@dataclass(frozen=True, slots=True)
class EndScope:
    """Ends the innermost scope of this state.

    Args:
        name: The variable.
    """

    state: int
    made: int
    name: str


@dataclass(frozen=True, slots=True)
class Fork:
    """Children that begin where the state is; the state itself goes on."""

    state: int
    made: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """The parent, with what children of one fork bring.

    Args:
        children: Their newest states, in fork order.
        mode: Variables as lists, or text.
    """

    state: int
    made: int
    children: tuple[int, ...]
    mode: JoinMode = "gather_variable"


@dataclass(frozen=True, slots=True)
class Call:
    """Another program begins on this state; what it does follows.

    Args:
        callee: Its name.
        arguments: Its arguments by parameter.
    """

    state: int
    made: int
    callee: str
    arguments: tuple[tuple[str, Datum], ...] = ()


@dataclass(frozen=True, slots=True)
class Return:
    """The end of the program.

    Args:
        value: What its function returned.
    """

    state: int
    value: Datum = None


Datum: TypeAlias = bool | int | float | str | Arg | Ref | Opaque | None
"""A value in a node. Arg and Ref are unplaced here; floats are finite."""

Node: TypeAlias = (
    Start | Text | Arg | Ref | Role | EndRole | Gen | Select | Image | SetVar | Scope | EndScope
    | Fork | Join | Call | Return
)  # fmt: skip


def as_datum(value: object) -> Datum:
    """A Python value as data, or as the `Opaque` that names its type."""
    plain = type(value) in (type(None), bool, int, str, Opaque)
    if plain or (type(value) is float and math.isfinite(value)):
        return value  # type: ignore[return-value]
    unknown = getattr(type(value), "as_datum", None)  # of the values of a trace
    return Opaque(type(value).__name__) if unknown is None else unknown(value)


def made_by(node: Node) -> tuple[int, ...]:
    """The states that a node makes."""
    if isinstance(node, Return):
        return ()
    return node.made if isinstance(node.made, tuple) else (node.made,)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a program: its name, stars included, and its type as text or empty."""

    name: str
    annotation: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a trace ended before its program did, and what depends there on a run."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True, repr=False)
class Program:
    """A recording or a trace: nodes in the order in which they were appended.

    Args:
        name: The program's name.
        nodes: A state is made before it is taken.
        parameters: Those behind the state, in order.
        version: Of the nodes and their meaning.
        sources: The user's line (``file.py:12``) of the node that made a state.
        stopped: Of a trace that did not reach the end: where its static part ended.
        tries: Of a trace: how many values validators are offered, of the generations (by the state
            that each makes) whose values validators may refuse.
    """

    name: str
    nodes: tuple[Node, ...]
    parameters: tuple[Parameter, ...] = ()
    version: int = VERSION
    sources: dict[int, str] = field(default_factory=dict, compare=False, repr=False)
    stopped: Stop | None = field(default=None, compare=False)
    tries: dict[int, int] = field(default_factory=dict, compare=False, repr=False)

    def digest(self) -> str:
        """SHA-256 of the content, the same everywhere; equal programs have equal ones."""
        return content_digest((self.version, self))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        # By its name: the printer is made of the nodes.
        found: dict[str, str] = import_module("lmlang.frontend.view_program").bundle(self)
        return found

    def __repr__(self) -> str:
        name, count = str(self.name)[:80], len(self.nodes or ())
        return f"<ir.Program {name!r}: {count:,} nodes, shown by print_program>"
