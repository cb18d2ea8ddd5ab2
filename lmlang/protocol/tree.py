"""What a radix cache holds, as a value that prints: for people who want to see what is shared."""

from __future__ import annotations

from dataclasses import dataclass

SHOWN_TEXT = 60
"""Characters of a node's text that are printed."""
SHOWN_NODES = 200
"""Nodes that are printed."""


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A run of tokens that everything below it shares.

    Args:
        depth: Nodes above it; the children of a node follow it, one deeper.
        ids: Its tokens.
        text: Their text; a character that is cut at a border reads U+FFFD.
        in_use: Requests under way that read it.
        live: States of running programs that may go on from it or from below it.
        last_used: Rank in time: the higher, the later.
        namespace: Whose cache it belongs to.
    """

    depth: int
    ids: tuple[int, ...]
    text: str
    in_use: int
    live: int
    last_used: int
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class CacheTree:
    """The radix cache at one moment: its nodes, depth-first, the children of one by first token."""

    nodes: tuple[TreeNode, ...]

    @property
    def tokens(self) -> int:
        """Tokens in all nodes."""
        return sum(len(node.ids) for node in self.nodes)

    def __str__(self) -> str:
        nodes = f"{len(self.nodes):,} node{'' if len(self.nodes) == 1 else 's'}"
        lines = [f"radix cache: {_tokens(self.tokens)} in {nodes}"]
        namespace = ""
        for node in self.nodes[:SHOWN_NODES]:
            if node.namespace != namespace:
                namespace = node.namespace
                lines.append(f"namespace {namespace!r}")
            lines.append("  " * (node.depth + 1) + _line(node))
        if len(self.nodes) > SHOWN_NODES:
            lines.append(f"  … {len(self.nodes) - SHOWN_NODES:,} more nodes")
        return "\n".join(lines)


def _tokens(count: int) -> str:
    return f"{count:,} token{'' if count == 1 else 's'}"


def _line(node: TreeNode) -> str:
    shown = repr(node.text)
    if len(shown) > SHOWN_TEXT:
        half = SHOWN_TEXT // 2
        shown = f"{shown[:half]} … {shown[-half:]}"
    held = f", read by {node.in_use}" if node.in_use else ""
    live = f", {node.live} live" if node.live else ""
    return f"{shown}  ({_tokens(len(node.ids))}{held}{live})"
