"""From a JSON schema to the graph of its nodes, with every decision taken."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator

from lmlang.errors import GrammarTooLarge, SchemaUnsupported, Unsatisfiable, quote
from lmlang.grammar.budget import OutOfTime, spend
from lmlang.grammar.formats import format_language
from lmlang.grammar.schema.dialect import Reader
from lmlang.grammar.schema.document import ANNOTATIONS, FALSE, TRUE, Document, Literal
from lmlang.grammar.schema.expand import Expander
from lmlang.grammar.schema.explain import told, why_empty
from lmlang.grammar.schema.frames import goals, shortest_of
from lmlang.grammar.schema.resources import where
from lmlang.grammar.schema.rules import check_unique
from lmlang.grammar.schema.shapes import Array, Node, Object, Shape
from lmlang.grammar.schema.source import read
from lmlang.grammar.spec import JsonSchema, Style

MAX_NODES = 20_000
"""Nodes of one schema."""


class SchemaGraph:
    """The nodes of one schema (see `shapes.Graph`). Immutable once it is made.

    Args:
        text: The schema.
        style: White space of the output.

    Attributes:
        root: The node of the whole output.
        document: The schema as it was read.
        silent: Keywords of schemas that were read and that say nothing, with the reason.
    """

    def __init__(self, text: str, style: Style) -> None:
        self.document = Document(read(text))
        self._style = style
        self._literals: list[tuple[Literal, ...]] = []
        self._nodes: dict[tuple[Literal, ...], Node] = {}
        self._shapes: list[tuple[Shape, ...]] = []
        self._shortest: list[bytes | None] = []
        self._filled: list[list[bool]] = []
        self._both: dict[tuple[Node, Node], Node] = {}
        self._complete = False
        self.root = self._node((self.document.root,))
        expander = Expander(self.document)  # holds far more than is needed later
        self._expand(expander)
        self._find_shortest()
        self._check_satisfiable()
        while self._prune():
            self._find_shortest()
            self._check_satisfiable()
        self._filled.clear()
        self._complete = True
        self.silent = self._silent(expander.reader)

    def __len__(self) -> int:
        return len(self._literals)

    def shapes(self, node: Node) -> tuple[Shape, ...]:
        """What a node comes to; none where it is empty."""
        return self._shapes[node]

    def both(self, one: Node, other: Node) -> Node:
        """The node of what is of both, with the names of the first one first."""
        found = self._both.get((one, other))
        if found is None:
            literals = dict.fromkeys((*self._literals[one], *self._literals[other]))
            found = self._both[one, other] = self._node(tuple(literals))
        return found

    def shortest(self, node: Node) -> bytes | None:
        """The shortest JSON text of a node in the style of the spec; None where it is empty."""
        return self._shortest[node]

    def pointer(self, node: Node) -> str:
        """Where in the schema it comes from."""
        literals = self._literals[node]
        return self.document.schemas[literals[0] >> 1].pointer if literals else ""

    def pointers(self, node: Node) -> list[str]:
        """All places in the schema that it comes from, what is negated behind "not"."""
        schemas = self.document.schemas
        return [
            ("not " if literal & 1 else "") + where(schemas[literal >> 1].pointer)
            for literal in self._literals[node]
        ]

    def _silent(self, reader: Reader) -> list[str]:
        found = []
        for schema in self.document.schemas[1:]:
            if reader.has_read(schema.number):
                keywords, place = reader.keywords(schema.number), where(schema.pointer)
                found += [
                    f"{keyword} at {place} is of another draft and says nothing"
                    for keyword in keywords.ignored
                ]
                if keywords.format is not None and format_language(keywords.format) is None:
                    found.append(f"format {quote(keywords.format)} at {place} is an annotation")
        return found

    def _keywords(self, node: Node) -> list[str]:
        """The keywords of the schemas that a node comes from, annotations left out."""
        values = (self.document.schemas[lit >> 1].place.value for lit in self._literals[node])
        return sorted({k for v in values if isinstance(v, dict) for k in v if k not in ANNOTATIONS})

    def _node(self, literals: Iterable[Literal]) -> Node:
        """The node of what all of some literals allow; their order is that of its names."""
        literals = tuple(literal for literal in literals if literal != TRUE)
        if len(literals) > 1:
            some = frozenset(literals)
            if FALSE in some or any(literal ^ 1 in some for literal in literals):
                literals = (FALSE,)
        found = self._nodes.get(literals)
        if found is None:
            assert not self._complete, f"literals {literals} were not foreseen to meet"
            if len(self._literals) >= MAX_NODES:
                raise GrammarTooLarge(
                    f"the JSON schema comes to more than {MAX_NODES:,} combinations of its parts: "
                    "use fewer, or tell the branches of anyOf and oneOf apart."
                )
            found = self._nodes[literals] = len(self._literals)
            self._literals.append(literals)
        return found

    def _sorted(self, literals: frozenset[Literal]) -> Node:
        return self._node(sorted(literals))

    def _expand(self, expander: Expander) -> None:
        """Expand all nodes that can be reached, those behind pairs of nodes too."""
        while len(self._shapes) < len(self._literals):
            node = len(self._shapes)
            with self._located(node):
                found = expander.shapes(self._literals[node], self._sorted)
                self._shapes.append(tuple(found))
                for shape in found:
                    goals(shape, self)

    def _find_shortest(self) -> None:
        """The shortest text of each node: the least fixpoint of what their shapes say."""
        count = len(self._literals)
        self._shortest = [None] * count
        self._filled = [[False] * len(shapes) for shapes in self._shapes]
        users: list[dict[Node, None]] = [{} for _ in range(count)]
        todo = deque(range(count - 1, -1, -1))
        waiting = [True] * count
        asked: set[Node] = set()

        def of(node: Node) -> bytes | None:
            asked.add(node)
            return self._shortest[node]

        while todo:
            node = todo.popleft()
            waiting[node] = False
            asked.clear()
            best = self._shortest[node]
            with self._located(node):
                for number, shape in enumerate(self._shapes[node]):
                    spend(20)
                    found = shortest_of(shape, of, self._style, self)
                    if found is not None:
                        self._filled[node][number] = True
                        if best is None or len(found) < len(best):
                            best = found
            for other in asked:
                users[other][node] = None
            if best is not self._shortest[node]:
                self._shortest[node] = best
                for user in users[node]:
                    if not waiting[user]:
                        waiting[user] = True
                        todo.append(user)

    def _check_satisfiable(self) -> None:
        if self._shortest[self.root] is None:
            raise Unsatisfiable(
                f"no JSON value fits this schema: {why_empty(self, self._keywords)}."
            )

    def _prune(self) -> bool:
        """Take out of the shapes what nothing fits.

        Returns:
            Whether texts have to be looked for again.
        """
        for node, shapes in enumerate(self._shapes):
            self._shapes[node] = tuple(
                self._pruned(shape)
                for shape, filled in zip(shapes, self._filled[node], strict=True)
                if filled
            )
        again = False
        for node, shapes in enumerate(self._shapes):
            if any(isinstance(shape, Array) and shape.unique for shape in shapes):
                with self._located(node):
                    kept = tuple(shape for shape in shapes if self._can_be_filled(shape))
                if len(kept) < len(shapes):
                    self._shapes[node] = kept
                    again = True
        return again

    def _can_be_filled(self, shape: Shape) -> bool:
        if not isinstance(shape, Array) or not shape.unique:
            return True
        return check_unique(shape, self, self._style)

    def _pruned(self, shape: Shape) -> Shape:
        if isinstance(shape, Object):
            names = tuple(name for name in shape.names if self._fits(name.node))
            others = tuple(others for others in shape.others if self._fits(others.node))
            return Object(names, others, shape.least, shape.most, shape.some)
        if isinstance(shape, Array):
            prefix, rest, most = shape.prefix, shape.rest, shape.most
            for index, node in enumerate(prefix):
                if not self._fits(node):
                    prefix, rest, most = prefix[:index], None, index
                    break
            if rest is not None and not self._fits(rest):
                rest, most = None, len(prefix) if most is None else min(most, len(prefix))
            tallies = tuple(
                tally for tally in shape.tallies if tally.least or self._fits(tally.inside)
            )
            return Array(prefix, rest, shape.least, most, tallies, shape.unique)
        return shape

    def _fits(self, node: Node) -> bool:
        """Whether a node is not empty."""
        return self._shortest[node] is not None

    @contextlib.contextmanager
    def _located(self, node: Node) -> Iterator[None]:
        """Errors that do not know where they belong are told the place of a node."""
        try:
            yield
        except SchemaUnsupported as error:
            error.pointer = error.pointer or self.pointer(node)
            raise
        except OutOfTime:
            raise
        except GrammarTooLarge as error:
            raise GrammarTooLarge(f"{where(self.pointer(node))}: {error}") from None


def compile_schema(spec: JsonSchema) -> SchemaGraph:
    """The graph of a schema.

    Raises:
        GrammarSyntaxError: It is no JSON Schema.
        SchemaUnsupported: A part of it cannot be honoured exactly; with keyword and pointer.
        GrammarTooLarge: It comes to more than is allowed.
        Unsatisfiable: No JSON value fits it.
    """
    try:
        return SchemaGraph(spec.text, spec.style)
    except RecursionError:
        raise GrammarTooLarge(
            "the JSON schema needs more of the call stack than is left: nest less, or compile it "
            "from a shallower place."
        ) from None


def explain(graph: SchemaGraph) -> str:
    """What each part of a schema comes to, one node a line, with its places in the schema."""
    lines = [
        f"{node:>4}  {told(graph, node)}    <- {' and '.join(graph.pointers(node)) or 'anything'}"
        for node in range(len(graph))
    ]
    lines += [f"      {line}" for line in graph.silent]
    return "\n".join(lines)
