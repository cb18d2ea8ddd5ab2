"""Passes over IR: each takes well-formed programs and keeps what they mean.

merge_text      %1 = text %0 "a", %2 = text %1 "b"   ->   %2 = text %0 "ab"
own_refs        ref x [of=%3]   ->   ref x           where x here is the one of %3
prefix          the prompt of a program up to the first thing that only a run or a caller knows
shared_prefix   what the prefixes of many programs have in common, for batches
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from lmlang.frontend import ir
from lmlang.frontend.reasoning import SUFFIX
from lmlang.frontend.verify import verify
from lmlang.protocol import EndTurn, Segment, Text, Turn


def merge_text(program: ir.Program) -> ir.Program:
    """The same program with adjacent texts joined. A second time changes nothing."""
    taken: Counter[int] = Counter()
    for node in program.nodes:
        if not isinstance(node, ir.Start):
            taken[node.state] += 1
        if isinstance(node, ir.Join):
            taken.update(node.children)
        if isinstance(node, ir.Ref) and node.of is not None:
            taken[node.of] += 1
    nodes: list[ir.Node | None] = []
    ends: dict[int, tuple[int, int, list[str]]] = {}  # state: its node, what that takes, its texts
    sources = dict(program.sources)
    for node in program.nodes:
        if isinstance(node, ir.Text):
            place, state, texts = -1, node.state, [node.text]
            if node.state in ends and taken[node.state] == 1:
                place, state, texts = ends.pop(node.state)
                texts.append(node.text)
                nodes[place] = None
                if node.state in sources:
                    sources[node.made] = sources.pop(node.state)
            ends[node.made] = (len(nodes), state, texts)
        nodes.append(node)
    for made, (place, state, texts) in ends.items():
        nodes[place] = ir.Text(state, made, "".join(texts))
    kept = tuple(node for node in nodes if node is not None)
    return verify(replace(program, nodes=kept, sources=sources))


class _Names:
    """What names mean on one line of states: the state that each was last defined by."""

    __slots__ = ("inherited", "now")

    def __init__(self, inherited: dict[str, int]) -> None:
        self.inherited = inherited
        self.now = dict(inherited)

    def new(self) -> list[str]:
        """The names that have got a meaning of this line's own."""
        return [name for name, state in self.now.items() if self.inherited.get(name) != state]


def own_refs(program: ir.Program) -> ir.Program:
    """The same program; a Ref names a state only where its own has no such variable.

    Refs that are values in other nodes, where they cannot name a state, become opaque.
    """
    lines: dict[int, _Names] = {}
    nodes: list[ir.Node] = []
    for node in program.nodes:
        if isinstance(node, ir.Start):
            lines[node.made] = _Names({})
            nodes.append(node)
            continue
        line = lines[node.state]
        placed = _with_own_refs(node, line.now)
        nodes.append(placed)
        if isinstance(placed, ir.Fork):
            inherited = dict(line.now)
            lines.update((made, _Names(inherited)) for made in placed.made)
        elif not isinstance(placed, ir.Return):
            line.now.update((name, placed.made) for name in _defined(placed, lines))
            lines[placed.made] = line
    return verify(replace(program, nodes=tuple(nodes)))


def _with_own_refs(node: ir.Node, meant: dict[str, int]) -> ir.Node:
    match node:
        case ir.Ref():
            return _own_ref(node, meant)
        case ir.SetVar() | ir.Return():
            return replace(node, value=_own_value(node.value, meant))
        case ir.Call():
            given = ((name, _own_value(value, meant)) for name, value in node.arguments)
            return replace(node, arguments=tuple(given))
    return node


def _own_ref(ref: ir.Ref, meant: dict[str, int]) -> ir.Ref:
    return replace(ref, of=None) if meant.get(ref.name) == ref.of else ref


def _own_value(value: ir.Datum, meant: dict[str, int]) -> ir.Datum:
    if not isinstance(value, ir.Ref):
        return value
    own = _own_ref(value, meant)
    return own if own.of is None else ir.Opaque("str")


def _defined(node: ir.Node, lines: dict[int, _Names]) -> list[str]:
    """The variables that a node defines."""
    match node:
        case ir.Gen() if node.reasoning is not None:
            return [node.name, node.name + SUFFIX]
        case ir.Gen() | ir.Select() | ir.SetVar() | ir.EndScope():
            return [node.name]
        case ir.Join() if node.mode == "gather_variable":
            return [name for child in node.children for name in lines[child].new()]
    return []


def prefix(program: ir.Program) -> tuple[Segment, ...]:
    """A program's prompt up to what only a run or a caller knows; texts are joined.

    It is that of the program's own line: what its forks add is not in it.
    """
    return prefix_and_rest(program)[0]


def prefix_and_rest(program: ir.Program) -> tuple[tuple[Segment, ...], tuple[ir.Node, ...]]:
    """The `prefix` of a program, and the nodes that are not in it."""
    segments: list[Segment] = []
    texts: list[str] = []
    rest: list[ir.Node] = []
    head: int | None = None
    for node in program.nodes:
        if isinstance(node, ir.Start):
            head = node.made
        elif node.state != head or not isinstance(node, _STATIC) or _appends(node):
            rest.append(node)
            head = None if node.state == head and not isinstance(node, ir.Fork) else head
        else:
            if isinstance(node, ir.Text):
                texts.append(node.text)
            elif isinstance(node, (ir.Role, ir.EndRole)):
                segments += [Text("".join(texts))] if any(texts) else []
                segments.append(Turn(node.role) if isinstance(node, ir.Role) else EndTurn())
                texts = []
            head = node.made
    segments += [Text("".join(texts))] if any(texts) else []
    return tuple(segments), tuple(rest)


_STATIC = (ir.Text, ir.Role, ir.EndRole, ir.SetVar, ir.Scope, ir.EndScope, ir.Call, ir.Join)


def _appends(node: ir.Node) -> bool:
    return isinstance(node, ir.Join) and node.mode != "gather_variable"


def shared_prefix(programs: Iterable[ir.Program]) -> tuple[Segment, ...]:
    """The longest beginning that the prompts of all programs have in common.

    The last text may be cut at any character: a backend keeps the tokens that are safe.
    """
    shared: tuple[Segment, ...] | None = None
    for program in programs:
        own = prefix(program)
        shared = own if shared is None else _common(shared, own)
    return shared or ()


def _common(one: tuple[Segment, ...], other: tuple[Segment, ...]) -> tuple[Segment, ...]:
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            if not (isinstance(a, Text) and isinstance(b, Text)):
                return one[:index]
            pairs = enumerate(zip(a.text, b.text, strict=False))
            agree = next((i for i, (x, y) in pairs if x != y), min(len(a.text), len(b.text)))
            return (*one[:index], Text(a.text[:agree])) if agree else one[:index]
    return min(one, other, key=len)
