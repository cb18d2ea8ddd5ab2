"""The radix cache as a protocol value, for people."""

from __future__ import annotations

from lmlang.protocol import CacheTree, TreeNode
from lmlang.runtime.cache.radix import Node, RadixCache
from lmlang.runtime.tokenizer import Tokenizer


def view(tree: RadixCache, tokenizer: Tokenizer) -> CacheTree:
    """The tree of every namespace, depth-first, with the text of its nodes."""
    found: list[TreeNode] = []
    for namespace, root in sorted(tree.roots.items()):
        stack: list[tuple[Node, int]] = _children(root, 0)
        while stack:
            node, depth = stack.pop()
            stack += _children(node, depth + 1)
            ids = tuple(node.tokens.tolist())
            text = tokenizer.decode(ids)
            used = node.last_used
            found.append(TreeNode(depth, ids, text, node.locks, node.live, used, namespace))
    return CacheTree(tuple(found))


def _children(node: Node, depth: int) -> list[tuple[Node, int]]:
    """To be taken from the end."""
    return [(child, depth) for _, child in sorted(node.children.items(), reverse=True)]
