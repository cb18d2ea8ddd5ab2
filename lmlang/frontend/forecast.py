"""What one row of a batch will cost, and what rows share: the walk behind ``f.estimate``.

text ── gen a ── text ── gen b      line.prompt: the texts, an output being no tokens
└─────exact─────┘ └ + a's size ┘    line.holes: how many tokens the outputs may have
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from lmlang.errors import LMLangError
from lmlang.frontend import ir
from lmlang.frontend.mending import HINT
from lmlang.frontend.options import GenDefaults
from lmlang.frontend.selection import method_of, needs_unconditional
from lmlang.frontend.thinking import around
from lmlang.grammar.spec import Spec
from lmlang.protocol import Backend, EndTurn, Prompt, Text, Tokens, Turn

if TYPE_CHECKING:
    from lmlang.grammar.grammar import Grammar

SLACK = 2
"""Tokens by which text at the border of an output may come otherwise than by itself."""


class Range(NamedTuple):
    """From and to, both included; ``high`` is None where nobody knows."""

    low: int
    high: int | None

    def __contains__(self, value: object) -> bool:
        return (
            isinstance(value, int)
            and self.low <= value
            and (self.high is None or value <= self.high)
        )

    def __add__(self, other: object) -> Range:
        assert isinstance(other, Range)
        if self.high is None or other.high is None:
            return Range(self.low + other.low, None)
        return Range(self.low + other.low, self.high + other.high)

    def __str__(self) -> str:
        if self.high is None:
            return f"at least {self.low:,}"
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,} to {self.high:,}"


NOTHING = Range(0, 0)


@dataclass(slots=True)
class _Line:
    """What is known of one line of states.

    Args:
        prompt: The prompt, an output in it being no tokens.
        holes: Tokens that the outputs in it have.
        cached: Of its tokens, those that its own requests have computed; None: it had none.
    """

    prompt: Prompt = field(default_factory=Prompt)
    holes: Range = NOTHING
    cached: int | None = None

    def child(self) -> _Line:
        return _Line(self.prompt, self.holes, self.cached)


class RowForecast:
    """One walk over the trace of a row."""

    def __init__(
        self,
        program: ir.Program,
        backend: Backend,
        inherited: GenDefaults,
        outputs: Outputs,
        cache: Sequences,
    ) -> None:
        self._backend = backend
        self._inherited = inherited
        self._outputs = outputs
        self._cache = cache
        self._sizes: dict[str, Range] = {}
        self.stop = program.stopped
        self.requests = 0
        self.prompts = self.cached = self.generated = self.scored = NOTHING
        self.kv: int | None = 0
        self.common: int = 0
        lines: dict[int, _Line] = {}
        for node in program.nodes:
            if isinstance(node, ir.Start):
                lines[node.made] = _Line()
                continue
            line = lines[node.state]
            self._take(node, line, program)
            if isinstance(node, ir.Fork):
                lines.update((made, line.child()) for made in node.made)
            elif not isinstance(node, ir.Return):
                lines[node.made] = line

    def _take(self, node: ir.Node, line: _Line, program: ir.Program) -> None:
        match node:
            case ir.Text():
                line.prompt = line.prompt.append(Text(node.text))
            case ir.Role():
                line.prompt = line.prompt.append(Turn(node.role))
            case ir.EndRole():
                line.prompt = line.prompt.append(EndTurn())
            case ir.Gen():
                self._gen(node, line, program.tries.get(node.made, 1))
            case ir.Select():
                self._select(node, line)
            case ir.Ref() | ir.Arg():
                size = self._sizes.get(node.name, Range(0, None))
                self._hole(line, Range(0, None if size.high is None else size.high + SLACK))
            case ir.Join() if node.mode != "gather_variable":
                self._hole(line, Range(0, None))  # the children's texts, again

    def _gen(self, node: ir.Gen, line: _Line, tries: int) -> None:
        params = self._inherited.params
        most = params.max_tokens if node.max_tokens is None else node.max_tokens
        n = self._inherited.n if node.n is None else node.n
        least = self._outputs.least(node.constraint) if most else 0
        least = max(least, node.min_tokens or params.min_tokens)
        size = Range(min(least, most), most)
        self._sizes[node.name] = size
        ids = self._backend.encode(line.prompt)
        before = len(ids)
        if node.think:
            begin, end = around(self._backend)
            line.holes += Range(begin, begin)
            self._ask(ids, line, n, n * node.think)
            self.generated += Range(0, n * node.think)
            line.cached = before + line.holes.low
            line.holes += Range(end, end + node.think)
        if node.heal:  # the last token of the prompt may be written anew
            line.holes += Range(-1, 0)
        self._ask(ids, line, n, n * most)
        self.generated += Range(n * size.low, n * most * tries)
        line.cached = before + line.holes.low
        if tries > 1:  # how often one is refused, and how much of it then stays, nobody knows
            self.prompts, self.cached = Range(self.prompts.low, None), Range(self.cached.low, None)
            if self.kv is not None:
                self.kv += n * (tries - 1) * (most + HINT)
        line.prompt = line.prompt.append(Tokens((), ""))
        line.holes += Range(0, most + SLACK + (tries - 1) * HINT)

    def _select(self, node: ir.Select, line: _Line) -> None:
        if len(node.choices) == 1:
            line.prompt = line.prompt.append(Text(node.choices[0]))
            return
        whole = self._backend.encode(line.prompt)
        behind = []
        for choice in node.choices:
            prompt = line.prompt.append(Text(choice))
            behind.append(
                self._backend.encode(prompt.append(EndTurn()) if node.ends_turn else prompt)
            )
        stem = behind[0][: min(_agree(behind[0], other) for other in behind[1:])]
        scored = Sequences()
        for ids in behind:
            scored.add(ids[len(stem) :])
        room = scored.nodes
        if needs_unconditional(method_of(node.method, None)):  # they are scored alone, too
            room += sum(len(self._backend.encode(Prompt.of(Text(c)))) + SLACK for c in node.choices)
        self.scored += Range(0, room)
        sizes = [len(self._backend.encode(line.prompt.append(Text(c)))) for c in node.choices]
        self._sizes[node.name] = Range(1, max(sizes) - len(whole) + SLACK)
        low, high = sorted((len(stem), len(whole)))
        self._ask(stem, line, 1, room)
        self.prompts += Range(low - len(stem), high - len(stem))
        line.cached = max(0, low + line.holes.low - SLACK)
        shortest = min(range(len(sizes)), key=sizes.__getitem__)
        line.prompt = line.prompt.append(Text(node.choices[shortest]))
        spread = max(sizes) - min(sizes)
        if spread or len(set(node.choices)) > 1:
            line.holes += Range(-min(SLACK, 1), spread + SLACK)

    def _ask(self, ids: Sequence[int], line: _Line, n: int, room: int) -> None:
        """Count one request: n samples behind a prompt."""
        total = Range(len(ids), len(ids)) + line.holes
        if line.holes == NOTHING:
            found = min(self._cache.add(ids), max(0, len(ids) - 1))
            cached = Range(found, found)
            new: int | None = len(ids) - (found if self.requests else 0)
            if not self.requests:
                self.common = found if self._cache.nodes > len(ids) else len(ids)
        else:
            low = min(line.cached or 0, total.low)
            cached = Range(low, None if total.high is None else max(low, total.high - 1))
            new = None if total.high is None else total.high - low
        self.requests += n
        self.prompts += Range(n * total.low, None if total.high is None else n * total.high)
        rest = Range(
            (n - 1) * max(0, total.low - 1),
            None if total.high is None else (n - 1) * total.high,
        )
        self.cached += cached + rest
        self.kv = None if self.kv is None or new is None else self.kv + new + room

    def _hole(self, line: _Line, size: Range) -> None:
        line.prompt = line.prompt.append(Tokens((), ""))
        line.holes += size


class Sequences:
    """Token sequences, and how much of each stands at the beginning of one before it.

    What a sequence shares with all others it shares with its neighbours in their order.
    """

    def __init__(self) -> None:
        self._known: list[tuple[int, ...]] = []
        self.nodes = 0

    def add(self, ids: Sequence[int]) -> int:
        """How many tokens of the sequence were known; it is known from now on."""
        key = tuple(ids)
        place = bisect.bisect_left(self._known, key)
        shared = max(
            (_agree(key, other) for other in self._known[max(0, place - 1) : place + 1]), default=0
        )
        if shared < len(key):
            self._known.insert(place, key)
            self.nodes += len(key) - shared
        return shared


def _agree(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences have in common from their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # slices compare at the speed of C
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Outputs:
    """Sizes of constrained outputs, by drawing some; each constraint is looked at once."""

    DRAWN = 3

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._least: dict[Spec, int] = {}
        self._forced: list[tuple[int, int]] = []
        self._blind = False

    def least(self, constraint: Spec | None) -> int:
        """Tokens of the shortest output."""
        if constraint is None:
            return 1
        if constraint not in self._least:
            self._least[constraint] = self._look(constraint)
        return self._least[constraint]

    def _look(self, constraint: Spec) -> int:
        from lmlang.grammar.toolbox import compile

        try:
            grammar = compile(constraint, self._backend)
            for seed in range(self.DRAWN):
                self._forced.append(_forced(grammar, grammar.sample(seed)))
            return grammar.min_tokens()
        except LMLangError:  # a backend that shows no vocabulary; a constraint that is refused
            self._blind = True
            return 1

    def forced_share(self) -> float | None:
        """Of the tokens of outputs under constraints, those that are forced."""
        if self._blind:
            return None
        total = sum(count for _, count in self._forced)
        return sum(forced for forced, _ in self._forced) / total if total else 0.0


def _forced(grammar: Grammar, text: str) -> tuple[int, int]:
    """Of the tokens of one output, how many are forced, and how many there are."""
    matcher, data = grammar.matcher(), text.encode()
    ahead: list[int] = []
    forced = 0
    while data:
        ids = matcher.forced_tokens()
        if ids:
            forced += len(ids)
            ahead = []
        else:
            ahead = ahead or list(grammar.vocabulary.encode(data.decode(errors="ignore")))
            ids, ahead = ahead[:1], ahead[1:]
        taken = len(b"".join([grammar.vocabulary.pieces[index] for index in ids]))
        if not taken or matcher.accept_tokens(ids) < len(ids):
            break
        data = data[taken:]
    return forced, len(matcher)
