"""A program of IR is run again: its nodes are appended to the states of a run, as a body would.

    %2, %3 = fork %1 2   ──>  cursor of %1 ── fork(2) ──> cursors of %2, %3
    %6 = join %1 %4 %5   ──>  yields the states of %4, %5; goes on when they have ended

The interpreter executes what is appended. Equal operations have equal paths, so that they draw
alike with the same seed and row key.
"""

from __future__ import annotations

from collections.abc import Iterator

from lmlang.errors import ProgramError
from lmlang.frontend import ir
from lmlang.frontend.choices import METHODS
from lmlang.frontend.cursor import Cursor
from lmlang.frontend.expression import Expression, Leaf
from lmlang.frontend.forks import Forks
from lmlang.frontend.run import Run, State


def why_not(node: ir.Node) -> str | None:
    """What keeps a node from being run where its program's Python is not; None: nothing."""
    match node:
        case ir.Image():
            return "a picture"
        case ir.Gen(processor=str()):
            return "a logits_processor, which is a function of the program's own"
        case ir.Select(method=str(name)) if name not in METHODS:
            return "a choices method of the program's own"
        case ir.Arg() | ir.Ref():
            return "a hole of a trace, whose text only a run knows"
    return None


def replay(
    run: Run, program: ir.Program, cursors: dict[int, Cursor] | None = None
) -> Iterator[tuple[State, ...]]:
    """Append a program's nodes to the root of a run.

    Args:
        run: Nothing has been appended to it.
        program: Verified; `why_not` has nothing against its nodes.
        cursors: Takes up where each state stands, by the last node that it has come to.

    Yields:
        At a join, the states that must have ended before the next item is taken.

    Raises:
        LMLangError: What a child that is joined has failed with.
    """
    cursors = {} if cursors is None else cursors
    forks: dict[Cursor, tuple[Forks[State], list[Cursor]]] = {}
    for node in program.nodes:
        if isinstance(node, ir.Start):
            cursors[node.made] = Cursor(run.root)
            continue
        cursor = cursors[node.state] if isinstance(node, ir.Fork) else cursors.pop(node.state)
        match node:
            case ir.Text() | ir.Role() | ir.EndRole() | ir.Gen():
                cursor.append(Expression((Leaf(node),)))
            case ir.Select():
                cursor.append(Expression((Leaf(node, node.choices),)))
            case ir.SetVar():
                cursor.set(node.name, node.value)
            case ir.Scope():
                cursor.begin_scope(node.name)
            case ir.EndScope():
                cursor.end_scope()
            case ir.Fork():
                children = cursor.fork(len(node.made))
                made = Forks(cursor, [child.state for child in children], children)
                forks.update((child, (made, children)) for child in children)
                cursors.update(zip(node.made, children, strict=True))
            case ir.Join():
                joined = [cursors[state] for state in node.children]
                made, children = forks[joined[0]]
                if joined != children:
                    raise ProgramError(
                        "a join of some of a fork's children cannot be run: join all."
                    )
                yield tuple([child.state for child in children])
                made.join(node.mode)
            case ir.Call():
                cursor.begin_call(node.callee, node.arguments)
            case ir.Return():
                pass  # the value is no part of the text
            case _:
                raise ProgramError(f"{type(node).__name__.lower()} cannot be run again.")
        if not isinstance(node, (ir.Fork, ir.Return)):
            cursors[node.made] = cursor
        elif isinstance(node, ir.Return):
            cursors[node.state] = cursor
