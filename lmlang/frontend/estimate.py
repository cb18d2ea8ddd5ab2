"""``f.estimate(rows)``: what a batch will cost, from the traces of its rows; nothing is run.

    row 1   text ── gen a ── text ── gen b        a's prompt is known, so its tokens are exact;
    row 2   text ── gen a ── text ── gen b        b's holds a's output, so its tokens have bounds
            └────┘ common: computed once

Prompt tokens are counted by the backend's own tokenizer. Cached ones are what a cache that forgets
nothing gives to rows in their order, on nothing cached before. Where a row's trace stops, the
numbers are those of the part before, and so lower bounds.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from lmlang.errors import LMLangError, ProgramTypeError
from lmlang.frontend import ir
from lmlang.frontend.options import GenDefaults
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
_FIELDS = ("prompt_tokens", "cached_tokens", "generated_tokens", "scored_tokens")


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a batch is likely to cost. A value; ``print()`` shows it, `beside` what came of it.

    Args:
        rows: How many.
        requests: Generations (each sample counts) and selects that the traces show.
        prompt_tokens: Of all requests; exact where no prompt holds an output. A select's may
            differ by the tokens that its choices begin with.
        cached_tokens: Of these; up to `SLACK` tokens a request less or more than the range says.
        generated_tokens: From the shortest outputs to max_tokens.
        scored_tokens: Of the choices of selects, at most.
        forced_share: The part of generated tokens that constraints leave no choice about, by
            outputs drawn at random; 0 without constraints, None where the backend does not show
            its vocabulary.
        peak_kv_tokens: Slots of the KV pool at most, with so many rows in flight at a time.
        stops: Where traces ended before their program, and in how many rows: what follows there
            is in no number.
    """

    rows: int
    requests: int
    prompt_tokens: Range
    cached_tokens: Range
    generated_tokens: Range
    scored_tokens: Range
    forced_share: float | None
    peak_kv_tokens: int | None
    stops: tuple[tuple[ir.Stop, int], ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every row was traced to its end."""
        return not self.stops

    def beside(self, result: Any) -> str:
        """The forecast and what came of it, as a table.

        Args:
            result: A `Usage`, or what has one: a finished state, or the result of a batch.

        Raises:
            ProgramTypeError: It has no counts of tokens.
        """
        usage = getattr(result, "usage", result)
        usage = usage() if callable(usage) else usage
        if not all(isinstance(getattr(usage, name, None), int) for name in _FIELDS):
            raise ProgramTypeError(
                f"beside: {type(result).__name__} has no counts of tokens: give a Usage, a "
                "finished state or the result of run_batch."
            )
        lines = [("", "forecast", "actual", "")]
        for name in _FIELDS:
            forecast, actual = getattr(self, name), getattr(usage, name)
            slack = SLACK * self.requests if name == "cached_tokens" else 0
            within = Range(
                forecast.low - slack, None if forecast.high is None else forecast.high + slack
            )
            told = "" if actual in within else "outside"
            lines.append((name, str(forecast), f"{actual:,}", told))
        share = usage.forced_tokens / usage.generated_tokens if usage.generated_tokens else 0.0
        forecast_share = "unknown" if self.forced_share is None else f"{self.forced_share:.0%}"
        lines.append(("forced share", forecast_share, f"{share:.0%}", ""))
        return "\n".join(
            f"{name:<16}  {one:>22}  {other:>14}  {told}".rstrip()
            for name, one, other, told in lines
        )

    def __str__(self) -> str:
        share = "unknown" if self.forced_share is None else f"about {self.forced_share:.0%}"
        peak = "unknown" if self.peak_kv_tokens is None else f"at most {self.peak_kv_tokens:,}"
        lines = [
            f"{self.rows:,} row{'' if self.rows == 1 else 's'}, {self.requests:,} requests",
            f"  prompt tokens     {self.prompt_tokens}",
            f"  cached of these   {self.cached_tokens}",
            f"  generated tokens  {self.generated_tokens}, of these forced {share}",
            f"  scored tokens     {self.scored_tokens}",
            f"  KV tokens         {peak}",
        ]
        for stop, count in self.stops:
            rows = "1 row" if count == 1 else f"{count:,} rows"
            lines.append(f"  and what follows {stop.source} in {rows}: {stop.reason}")
        return "\n".join(lines)


def estimate(
    traces: Iterable[ir.Program],
    backend: Backend,
    inherited: GenDefaults,
    max_program_tokens: int | None,
    threads: int,
) -> Estimate:
    """The forecast for rows whose traces are given.

    Args:
        traces: One for each row, with all its arguments.
        backend: Counts the tokens.
        inherited: What generations inherit.
        max_program_tokens: Generated tokens of a row at most.
        threads: Rows in flight.
    """
    outputs = _Outputs(backend)
    cache = _Cache()
    rows = [_Row(trace, backend, inherited, outputs, cache) for trace in traces]
    stops: dict[ir.Stop, int] = {}
    for row in rows:
        if row.stop is not None:
            stops[row.stop] = stops.get(row.stop, 0) + 1
    generated = NOTHING
    for row in rows:
        high = row.generated.high
        if max_program_tokens is not None and high is not None:
            high = min(high, max_program_tokens)
        generated += Range(min(row.generated.low, high or 0), high)
    open_ended = Range(0, None) if stops else NOTHING
    common = min((row.common for row in rows), default=0)
    own = sorted((max(0, row.kv - common) for row in rows), reverse=True)
    return Estimate(
        rows=len(rows),
        requests=sum(row.requests for row in rows),
        prompt_tokens=_sum(row.prompts for row in rows) + open_ended,
        cached_tokens=_sum(row.cached for row in rows) + open_ended,
        generated_tokens=generated + open_ended,
        scored_tokens=_sum(row.scored for row in rows) + open_ended,
        forced_share=outputs.forced_share(),
        peak_kv_tokens=None if stops else common + sum(own[:threads]),
        stops=tuple(stops.items()),
    )


def _sum(ranges: Iterable[Range]) -> Range:
    total = NOTHING
    for each in ranges:
        total += each
    return total


# ---------------------------------------------------------------------------- one row


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


class _Row:
    """One walk over the trace of a row."""

    def __init__(
        self,
        program: ir.Program,
        backend: Backend,
        inherited: GenDefaults,
        outputs: _Outputs,
        cache: _Cache,
    ) -> None:
        self._backend = backend
        self._inherited = inherited
        self._outputs = outputs
        self._cache = cache
        self._sizes: dict[str, Range] = {}
        self.stop = program.stopped
        self.requests = 0
        self.prompts = self.cached = self.generated = self.scored = NOTHING
        self.kv = 0
        self.common: int = 0
        lines: dict[int, _Line] = {}
        for node in program.nodes:
            if isinstance(node, ir.Start):
                lines[node.made] = _Line()
                continue
            line = lines[node.state]
            self._take(node, line)
            if isinstance(node, ir.Fork):
                lines.update((made, line.child()) for made in node.made)
            elif not isinstance(node, ir.Return):
                lines[node.made] = line

    def _take(self, node: ir.Node, line: _Line) -> None:
        match node:
            case ir.Text():
                line.prompt = line.prompt.append(Text(node.text))
            case ir.Role():
                line.prompt = line.prompt.append(Turn(node.role))
            case ir.EndRole():
                line.prompt = line.prompt.append(EndTurn())
            case ir.Gen():
                self._gen(node, line)
            case ir.Select():
                self._select(node, line)
            case ir.Ref() | ir.Arg():
                size = self._sizes.get(node.name, Range(0, None))
                self._hole(line, Range(0, None if size.high is None else size.high + SLACK))
            case ir.Join() if node.mode != "gather_variable":
                self._hole(line, Range(0, None))  # the children's texts, again

    def _gen(self, node: ir.Gen, line: _Line) -> None:
        params = self._inherited.params
        most = params.max_tokens if node.max_tokens is None else node.max_tokens
        n = self._inherited.n if node.n is None else node.n
        least = self._outputs.least(node.constraint) if most else 0
        least = max(least, node.min_tokens or params.min_tokens)
        most += node.think or 0
        size = Range(min(least, most), most)
        self.generated += Range(n * size.low, n * most)
        self._sizes[node.name] = size
        ids = self._backend.encode(line.prompt)
        before = len(ids)
        self._ask(ids, line, n, n * most)
        line.cached = before + line.holes.low
        self._hole(line, Range(0, most + SLACK))

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
        scored = _Cache()
        for ids in behind:
            scored.add(ids[len(stem) :])
        self.scored += Range(0, scored.nodes)
        sizes = [len(self._backend.encode(line.prompt.append(Text(c)))) for c in node.choices]
        self._sizes[node.name] = Range(1, max(sizes) - len(whole) + SLACK)
        low, high = sorted((len(stem), len(whole)))
        self._ask(stem, line, 1, scored.nodes)
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
            new = len(ids) - (found if self.requests else 0)
            if not self.requests:
                self.common = found if self._cache.nodes > len(ids) else len(ids)
        else:
            low = min(line.cached or 0, total.low)
            cached = Range(low, None if total.high is None else max(low, total.high - 1))
            new = 0 if total.high is None else total.high - low
        self.requests += n
        self.prompts += Range(n * total.low, None if total.high is None else n * total.high)
        rest = Range(
            (n - 1) * max(0, total.low - 1),
            None if total.high is None else (n - 1) * total.high,
        )
        self.cached += cached + rest
        self.kv += new + room

    def _hole(self, line: _Line, size: Range) -> None:
        line.prompt = line.prompt.append(Tokens((), ""))
        line.holes += size


class _Cache:
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


class _Outputs:
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
