"""Ways to understand an object: which shape it has, and where between its properties it is."""

from __future__ import annotations

from typing import NamedTuple

from lmlang.grammar.schema.object_plan import ObjectPlan
from lmlang.grammar.schema.shapes import Node
from lmlang.grammar.schema.spots import Spot
from lmlang.grammar.tables import TextTable

NO_NODE: Node = -1


class Reading(NamedTuple):
    """One way to understand an object.

    Attributes:
        spot: Where; behind a key, the spot behind its property.
        node: Behind a key, what its value must be anyway; else `NO_NODE`.
        meets: Behind a key, the demands that the value may meet.
    """

    goal: Node
    plan: ObjectPlan
    spot: Spot
    node: Node = NO_NODE
    meets: int = 0

    def widened(self) -> Reading:
        """The one of all that differ in the keys that have been written."""
        wide = self.plan.widened(self.spot)
        if wide is self.spot:
            return self
        return Reading(self.goal, self.plan, wide, self.node, self.meets)


class KeyReading(NamedTuple):
    """One way to understand a key that is being written.

    Attributes:
        named: Whether it may be one of the names that may come next.
        cells: Other keys that it may be: the numbers of the cells and their tables.
    """

    goal: Node
    plan: ObjectPlan
    spot: Spot
    named: bool
    cells: tuple[tuple[int, TextTable], ...]

    def widened(self) -> KeyReading:
        """The one of all that differ in the keys that have been written."""
        wide = self.plan.widened(self.spot)
        if wide is self.spot:
            return self
        return KeyReading(self.goal, self.plan, wide, self.named, self.cells)
