"""What a radix cache holds, as a value that prints: for people who want to see what is shared."""

from __future__ import annotations

from dataclasses import dataclass

from lmlang import markup
from lmlang.markup import BLUE, CODE, GREEN, MUTED, Html, element, tint

SHOWN_TEXT = 60
"""Characters of a node's text that are printed."""
SHOWN_NODES = 200
"""Nodes that are printed."""
DEEPEST = 40
"""Levels by which a node is indented at most."""


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

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": str(_page(self, self._head()))}

    def _head(self) -> str:
        nodes = f"{len(self.nodes):,} node{'' if len(self.nodes) == 1 else 's'}"
        return f"radix cache: {_tokens(self.tokens)} in {nodes}"

    def __str__(self) -> str:
        lines = [self._head()]
        namespace = ""
        for node in self.nodes[:SHOWN_NODES]:
            if node.namespace != namespace:
                namespace = node.namespace
                lines.append(f"namespace {namespace!r}")
            lines.append("  " * (min(node.depth, DEEPEST) + 1) + _line(node))
        if len(self.nodes) > SHOWN_NODES:
            lines.append(f"  … {len(self.nodes) - SHOWN_NODES:,} more nodes")
        return "\n".join(lines)


def _page(tree: CacheTree, head: str) -> Html:
    sheet = markup.Sheet()
    sheet.open("div", markup.PAGE)
    sheet.add(element("div", element("b", head)))
    most = max([1, *(len(node.ids) for node in tree.nodes)])
    namespace = ""
    for node in tree.nodes[:SHOWN_NODES]:
        if node.namespace != namespace:
            namespace = node.namespace
            sheet.add(element("div", f"namespace {namespace!r}", style=MUTED))
        if not sheet.add(_node(node, most)):
            break
    if len(tree.nodes) > SHOWN_NODES:
        more = f"… {len(tree.nodes) - SHOWN_NODES:,} more nodes"
        sheet.add(element("div", element("i", more), style=MUTED))
    if any(node.in_use or node.live for node in tree.nodes):
        sheet.add(element("div", "● read by requests, ○ of live programs", style=MUTED))
    return sheet.end("print(rt.tree()) shows more")


def _node(node: TreeNode, most: int) -> Html:
    """A node behind the bar of its depth; the longer its own bar, the more tokens it has."""
    mark = "● " if node.in_use else "○ " if node.live else ""
    wide = max(3, round(60 * len(node.ids) / most))
    colour = GREEN if node.in_use or node.live else BLUE
    bar = element(
        "span", "\u00a0", style=f"display:inline-block;width:{wide}px;{tint(colour, 0.6)}"
    )
    text = element("span", f" {mark}{_shown(node.text)} ", style=CODE)
    said = element("span", _said(node), style=MUTED)
    depth = min(node.depth, DEEPEST)
    guides = element("span", "│\u00a0\u00a0" * depth, style=f"{CODE};opacity:.4")
    return element("div", guides, bar, text, said)


def _tokens(count: int) -> str:
    return f"{count:,} token{'' if count == 1 else 's'}"


def _line(node: TreeNode) -> str:
    return f"{_shown(node.text)}  ({_said(node)})"


def _shown(text: str) -> str:
    shown = repr(text)
    if len(shown) > SHOWN_TEXT:
        half = SHOWN_TEXT // 2
        shown = f"{shown[:half]} … {shown[-half:]}"
    return markup.plain(shown)


def _said(node: TreeNode) -> str:
    held = f", read by {node.in_use}" if node.in_use else ""
    live = f", {node.live} live" if node.live else ""
    return f"{_tokens(len(node.ids))}{held}{live}"
