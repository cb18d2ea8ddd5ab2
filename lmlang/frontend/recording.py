"""A program in the making: nodes in the order in which a run appends them."""

from __future__ import annotations

import itertools

from lmlang.frontend import ir


class Recording:
    """A `Program` in the making. Thread-safe: states of one run may be appended to in parallel."""

    def __init__(self, name: str, parameters: tuple[ir.Parameter, ...] = ()) -> None:
        self._name = name
        self._parameters = parameters
        self._nodes: list[ir.Node] = [ir.Start()]
        self._sources: dict[int, str] = {}
        self._ids = itertools.count(1)
        self._closed = False

    def new_state(self) -> int:
        """An id that no node has made yet."""
        return next(self._ids)

    def add(self, node: ir.Node, source: str) -> None:
        """Add a node whose states are in place; nothing, once it is closed."""
        if self._closed:
            return
        self._nodes.append(node)
        for made in ir.made_by(node):
            self._sources[made] = source

    def close(self) -> None:
        """Record nothing more."""
        self._closed = True

    def program(self) -> ir.Program:
        """What has been recorded so far."""
        return ir.Program(
            self._name, tuple(self._nodes), self._parameters, sources=dict(self._sources)
        )
