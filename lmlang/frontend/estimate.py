"""``f.estimate(rows)``: what a batch will cost, from the traces of its rows; nothing is run.

    row 1   text ── gen a ── text ── gen b        a's prompt is known, so its tokens are exact;
    row 2   text ── gen a ── text ── gen b        b's holds a's output, so its tokens have bounds
            └────┘ common: computed once

Prompt tokens are counted by the backend's own tokenizer. Cached ones are what a cache that forgets
nothing gives to rows in their order, on nothing cached before. Where a row's trace stops, the
numbers are those of the part before, and so lower bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from lmlang.errors import ProgramTypeError
from lmlang.frontend import ir
from lmlang.frontend.arguments import named
from lmlang.frontend.forecast import NOTHING, SLACK, Outputs, Range, RowForecast, Sequences
from lmlang.frontend.options import GenDefaults
from lmlang.frontend.rows import OnError, Row
from lmlang.frontend.source import raised_at
from lmlang.protocol import Backend

_FIELDS = ("prompt_tokens", "cached_tokens", "generated_tokens", "scored_tokens")


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a batch is likely to cost. A value; ``print()`` shows it, `beside` what came of it.

    Args:
        rows: How many.
        requests: Generations (each sample counts) and selects that the traces show.
        prompt_tokens: Of all requests; exact where no prompt holds an output. A select's may
            differ by the tokens that its choices begin with. No upper bound where validators may
            refuse values, which are then written anew.
        cached_tokens: Of these; up to `SLACK` tokens a request less or more than the range says.
        generated_tokens: From the shortest outputs to max_tokens.
        scored_tokens: Of the choices of selects, at most.
        forced_share: The part of generated tokens that constraints leave no choice about, by
            outputs drawn at random; 0 without constraints, None where the backend does not show
            its vocabulary.
        peak_kv_tokens: Slots of the KV pool at most, with so many rows in flight at a time; None
            where nobody knows.
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

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": str(self)}

    def __str__(self) -> str:
        share = "unknown" if self.forced_share is None else f"about {self.forced_share:.0%}"
        peak = "unknown" if self.peak_kv_tokens is None else f"at most {self.peak_kv_tokens:,}"
        lines = [
            f"{_counted(self.rows, 'row')}, {_counted(self.requests, 'request')}",
            f"  prompt tokens     {self.prompt_tokens}",
            f"  cached of these   {self.cached_tokens}",
            f"  generated tokens  {self.generated_tokens}, of these forced {share}",
            f"  scored tokens     {self.scored_tokens}",
            f"  KV tokens         {peak}",
        ]
        for stop, count in self.stops:
            lines.append(
                f"  and what follows {stop.source} in {_counted(count, 'row')}: {stop.reason}"
            )
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
    outputs = Outputs(backend)
    cache = Sequences()
    rows = [RowForecast(trace, backend, inherited, outputs, cache) for trace in traces]
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
    kv = [row.kv for row in rows if row.kv is not None]
    own = sorted((max(0, each - common) for each in kv), reverse=True)
    return Estimate(
        rows=len(rows),
        requests=sum(row.requests for row in rows),
        prompt_tokens=_sum(row.prompts for row in rows) + open_ended,
        cached_tokens=_sum(row.cached for row in rows) + open_ended,
        generated_tokens=generated + open_ended,
        scored_tokens=_sum(row.scored for row in rows) + open_ended,
        forced_share=outputs.forced_share(),
        peak_kv_tokens=None if stops or len(kv) < len(rows) else common + sum(own[:threads]),
        stops=tuple(stops.items()),
    )


def traces_of(
    name: str,
    rows: Iterable[Row],
    trace: Callable[..., ir.Program],
    on_error: OnError,
) -> Iterator[ir.Program]:
    """The traces of rows; with on_error="return" one that fails has stopped at its beginning.

    Raises:
        Exception: With on_error="raise", what the body raises by itself.
    """
    for row in rows:
        failed = row.error
        if row.arguments is not None:
            try:
                yield trace(**named(row.arguments))
                continue
            except Exception as error:
                if on_error == "raise":
                    raise
                failed = error
        at = (raised_at(failed) if failed is not None else None) or name
        said = f"{type(failed).__name__}: {str(failed).splitlines()[0] if str(failed) else ''}"
        yield ir.Program(name, (ir.Start(),), stopped=ir.Stop(at, f"it raises {said}"))


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _sum(ranges: Iterable[Range]) -> Range:
    total = NOTHING
    for each in ranges:
        total += each
    return total
