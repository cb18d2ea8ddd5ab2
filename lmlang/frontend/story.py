"""A run log in the order in which a reader follows it: the text, the turns, and what came of each.

    open      a branch of a fork begins            close    it ends
    turn, end_turn, text, hole                     of the recording alone
    gen, select, image, set, scope, end_scope,
    call, fork, join, return                       with their operations, where the log has them

A fork's branches follow it one after another, before what the parent goes on with. A loop, so that
no nest of forks exhausts a stack.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from lmlang.errors import CaptureError, LMLangError, quote
from lmlang.frontend import ir
from lmlang.frontend.logged import LoggedOperation, Sample
from lmlang.grammar import literals
from lmlang.grammar.spec import Choice, Ebnf, Either, JsonSchema, Regex, Spec

if TYPE_CHECKING:
    from lmlang.grammar.automaton import Automaton

What = Literal[
    "open", "close", "turn", "end_turn", "text", "hole", "gen", "select", "image", "set",
    "scope", "end_scope", "call", "fork", "join", "return",
]  # fmt: skip
LONGEST_WALK = 4_000
"""Characters of an output that are walked through to find what was forced."""
LONGEST_KIND = 28
"""Characters of a constraint's name."""
SHOWN = 3
"""Paths of states that a message names."""

_WHATS: dict[type[ir.Node], What] = {
    ir.Text: "text", ir.Role: "turn", ir.EndRole: "end_turn", ir.Arg: "hole", ir.Ref: "hole",
    ir.Gen: "gen", ir.Select: "select", ir.Image: "image", ir.SetVar: "set", ir.Scope: "scope",
    ir.EndScope: "end_scope", ir.Call: "call", ir.Fork: "fork", ir.Join: "join",
    ir.Return: "return",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a reader comes to.

    Args:
        what: Its kind.
        depth: Forks around it.
        node: Its node; of "open" and "close" the fork.
        operation: What the log tells of it.
        branch: Of "open" and "close": which child of the fork.
        text: Of "text", "turn" and "hole".
    """

    what: What
    depth: int
    node: ir.Node
    operation: LoggedOperation | None = None
    branch: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Story:
    """A run log to be shown.

    Args:
        head: Lines that say what it is a log of, and its sums.
        steps: What happened, in order.
        spelling: What tokens read like.
        seconds: How long the run took, or has taken; 0: unknown.
    """

    head: tuple[str, ...]
    steps: tuple[Step, ...]
    spelling: dict[int, str]
    seconds: float = 0.0

    def made(self) -> Iterator[LoggedOperation]:
        """The generations and selects."""
        for step in self.steps:
            if step.operation is not None and step.what in ("gen", "select"):
                yield step.operation


def steps(
    recording: ir.Program, operations: Iterable[LoggedOperation], within: str = ""
) -> tuple[Step, ...]:
    """The steps of a recording, with the operations of a log.

    Args:
        recording: What a run has recorded.
        operations: Those of its log.
        within: The path of a state, as in "3/fork1.2": only what is its own; "": all.
    """
    told = {each.made: each for each in operations}
    nodes_of: dict[int, list[ir.Node]] = {}
    line_of: dict[int, int] = {}  # a state, and the one that its branch begins with
    roots: list[int] = []
    for node in recording.nodes:
        if isinstance(node, ir.Start):
            roots.append(node.made)
            line_of[node.made] = node.made
            nodes_of[node.made] = []
            continue
        line = line_of[node.state]
        nodes_of[line].append(node)
        for made in ir.made_by(node):
            begun = made if isinstance(node, ir.Fork) else line
            line_of[made] = begun
            nodes_of.setdefault(begun, [])
    if within:
        roots = [_begin(within, told, line_of, nodes_of)]
    return tuple(_told(roots, nodes_of, told))


def _begin(
    within: str,
    told: dict[int, LoggedOperation],
    line_of: dict[int, int],
    nodes_of: dict[int, list[ir.Node]],
) -> int:
    """The state that a branch begins with, by the path of its state."""
    known: list[str] = []
    for nodes in nodes_of.values():
        forks = [node for node in nodes if isinstance(node, ir.Fork)]
        for number, node in enumerate(forks):
            fork = told.get(node.made[0])
            paths = [f"{fork.path}/fork{number}.{i}" for i in range(len(node.made))] if fork else []
            if within in paths:
                return line_of[node.made[paths.index(within)]]
            known += paths[:SHOWN]
    there = f"there are {', '.join(known[:SHOWN])}, …" if known else "it has no forks"
    raise CaptureError(f"no state of the run has the path {quote(str(within))}: {there}.")


def _told(
    roots: list[int], nodes_of: dict[int, list[ir.Node]], told: dict[int, LoggedOperation]
) -> Iterator[Step]:
    nothing: list[ir.Node] = []
    lines: list[tuple[Iterator[ir.Node], int, Step | None]] = []
    lines += [(iter(nodes_of[root]), 0, None) for root in reversed(roots)]
    while lines:
        nodes, depth, end = lines[-1]
        node = next(nodes, None)
        if node is None:
            lines.pop()
            if end is not None:
                yield end
            continue
        made = ir.made_by(node)
        operation = told.get(made[0]) if made else None
        yield Step(_WHATS[type(node)], depth, node, operation, text=_text(node))
        if isinstance(node, ir.Fork):
            for branch in reversed(range(len(node.made))):
                ended = Step("close", depth + 1, node, operation, branch)
                lines.append((iter(nodes_of[node.made[branch]]), depth + 1, ended))
                begun = Step("open", depth + 1, node, operation, branch)
                lines.append((iter(nothing), depth, begun))


def _text(node: ir.Node) -> str:
    match node:
        case ir.Text():
            return node.text
        case ir.Role() | ir.EndRole():
            return node.role
        case ir.Arg() | ir.Ref():
            return node.name
    return ""


# ------------------------------------------------------------------------------ outputs


def kind_of(node: ir.Node) -> str:
    """What an output had to be, in a word or two on one line; "" for free text."""
    if isinstance(node, ir.Select):
        return f"one of {len(node.choices):,}"
    spec = node.constraint if isinstance(node, ir.Gen) else None
    name = "" if spec is None else _name(spec).replace("\n", "\\n")
    return name if len(name) <= LONGEST_KIND else name[: LONGEST_KIND - 1] + "…"


def _name(spec: Spec) -> str:
    match spec:
        case Regex(literals.INTEGER):
            return "int"
        case Regex(literals.REAL):
            return "float"
        case Regex(literals.DATE):
            return "date"
        case Regex():
            return f"/{spec.pattern}/"
        case JsonSchema():
            return _schema_name(spec.text)
        case Choice():
            return f"one of {len(spec.texts):,}"
        case Ebnf():
            return "grammar"
        case Either():
            return " | ".join(map(_name, spec.specs))
    return type(spec).__name__.lower()


def _schema_name(text: str) -> str:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return "JSON"
    found = schema if isinstance(schema, dict) else {}
    named = found.get("title") or str(found.get("$ref", "")).rpartition("/")[2]
    return str(named or found.get("type") or "JSON")


def pieces(sample: Sample, spelling: dict[int, str]) -> list[str] | None:
    """The part of a sample's text that each of its tokens wrote; None: tokens are not spelled.

    A character that several tokens make is the last one's. What a stop cut has no part.
    """
    text, at, done, found = sample.text, 0, 0, []
    data = text.encode("utf-8", "surrogatepass")
    ends = list(accumulate(len(char.encode("utf-8", "surrogatepass")) for char in text))
    for token in sample.tokens:
        if token not in spelling:
            return None
        for spelled in (
            spelling[token].encode("utf-8", "surrogatepass"),
            bytes_of(spelling[token]),
        ):
            if spelled is not None and data.startswith(spelled, at):
                at += len(spelled)
                break
        upto = bisect_right(ends, at)
        found.append(text[done:upto])
        done = upto
    return found


def bytes_of(spelled: str) -> bytes | None:
    r"""The bytes of a spelling that is written as ``\xe2\x82``."""
    if len(spelled) % 4 or not spelled.startswith("\\x"):
        return None
    try:
        return bytes.fromhex(spelled.replace("\\x", ""))
    except ValueError:
        return None


def forced_parts(
    operation: LoggedOperation, node: ir.Node, spelling: dict[int, str]
) -> list[tuple[str, bool]]:
    """The text of an output in parts, and of each whether its constraint left no choice about it.

    By what the runtime has told of each token, where that was asked for; else by the bytes that
    the constraint leaves no choice about, where tokens were forced at all.
    """
    text = operation.text or ""
    if not isinstance(node, ir.Gen) or node.constraint is None or not operation.samples:
        return [(text, False)]
    sample = operation.samples[0]
    found = pieces(sample, spelling) if sample.provenance else None
    if found is not None and "".join(found) == text:
        flags = [each.forced for each in sample.provenance]
        return _runs([(piece, flag) for piece, flag in zip(found, flags, strict=False)], text)
    if operation.usage.forced_tokens and sample.text == text and len(text) <= LONGEST_WALK:
        return _walked(node.constraint, text)
    return [(text, False)]


def _runs(parts: list[tuple[str, bool]], text: str) -> list[tuple[str, bool]]:
    """Neighbours alike as one; what no part has is at the end."""
    found: list[tuple[str, bool]] = []
    for piece, flag in parts:
        if found and found[-1][1] == flag:
            found[-1] = found[-1][0] + piece, flag
        elif piece:
            found.append((piece, flag))
    rest = text[sum(len(piece) for piece, _ in found) :]
    return [*found, (rest, False)] if rest else found


@lru_cache(maxsize=32)
def _automaton(spec: Spec) -> Automaton | None:
    from lmlang.grammar.automaton import Automaton
    from lmlang.grammar.compiler import rules_of

    try:
        return Automaton(rules_of(spec)[0])
    except LMLangError:  # of a log from elsewhere: this constraint cannot be used
        return None


@lru_cache(maxsize=32)
def _walked(spec: Spec, text: str) -> list[tuple[str, bool]]:
    automaton = _automaton(spec)
    if automaton is None:
        return [(text, False)]
    state, parts = automaton.start, []
    for char in text:
        flag = not state.accepting and len(automaton.following(state)) == 1
        onward = automaton.run(state, char.encode("utf-8", "surrogatepass"))
        if onward is None:
            return [(text, False)]
        parts.append((char, flag))
        state = onward
    return _runs(parts, text)
