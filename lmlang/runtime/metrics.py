"""What the runtime counts, and the numbers that it reports."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from concurrent.futures import Future
from dataclasses import dataclass, fields
from typing import Any

from lmlang import markup

GRAMMAR_BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0)
"""Seconds that waits for constraints are sorted by."""


@dataclass(slots=True)
class Counters:
    """Totals since start or the last reset; changed by the engine thread only."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    host_tokens: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    forced_tokens: int = 0
    recomputed_tokens: int = 0
    sampled_tokens: int = 0
    scored_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    steps: int = 0
    forward_seconds: float = 0.0
    step_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Stats:
    """A runtime's numbers at one moment.

    Tokens: prompt = cached + prefill once all admitted prompts are computed; computed = prefill
    + decode + forced + recomputed; generated = sampled + forced. Scored tokens (of select's
    choices) and drafted tokens (of speculation and what a constraint holds open, the accepted
    among them) are counted apart.
    Printed, they are a table.
    """

    requests: int
    prompt_tokens: int
    cached_tokens: int
    host_tokens: int
    """Tokens that came back from the host tier; those of prompts are cached ones too."""
    prefill_tokens: int
    decode_tokens: int
    forced_tokens: int
    recomputed_tokens: int
    """Computed once more, after a retraction or after the eviction of own tokens."""
    computed_tokens: int
    sampled_tokens: int
    generated_tokens: int
    scored_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    """Drafted tokens that were the ones drawn, and so cost no step of their own."""
    steps: int
    retractions: int
    evicted_tokens: int
    running: int
    waiting: int
    kv_tokens_total: int
    kv_tokens_used: int
    """Slots in the tree or owned by sequences."""
    kv_tokens_tree: int
    kv_tokens_host: int
    """Tokens that the host tier holds."""
    forward_seconds: float
    """Time inside the model's forward passes."""
    step_seconds: float
    """Time of whole steps; the rest is planning, sampling and bookkeeping."""
    grammars_made: int = 0
    """Constraints that were compiled, or refused."""
    grammars_waiting: int = 0
    """Requests that wait for theirs."""
    grammar_hits: int = 0
    """Requests whose constraint had been compiled before."""
    grammar_seconds: float = 0.0
    """Time that requests have waited for their constraints."""
    grammar_waits: tuple[tuple[float, int], ...] = ()
    """Some times in seconds, and how many of these requests have waited no longer than that."""

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        rows = [(name, value.strip()) for name, value in map(str.split, str(self).splitlines())]
        return {"text/plain": str(self), "text/html": str(markup.facts("runtime", rows))}

    def __str__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        del values["grammar_waits"]  # a curve, and no number
        shown = {n: f"{v:,.3f}" if isinstance(v, float) else f"{v:,}" for n, v in values.items()}
        name_width, width = max(map(len, shown)), max(map(len, shown.values()))
        return "\n".join(f"{n:<{name_width}}  {v:>{width}}" for n, v in shown.items())


class GrammarCounts:
    """What is counted of constraints on their way to the engine. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = 0
        self.reset()

    def reset(self) -> None:
        """Set all totals to 0."""
        with self._lock:
            self._made = self._hits = 0
            self._seconds = 0.0
            self._waits = [0] * len(GRAMMAR_BOUNDS)

    def asked(self, grammar: Future[Any]) -> None:
        """A constraint was asked for; it may be there already."""
        with self._lock:
            if grammar.done():
                self._hits += 1
                return
            self._waiting += 1
        begun = time.perf_counter()
        grammar.add_done_callback(lambda _: self._came(time.perf_counter() - begun))

    def _came(self, seconds: float) -> None:
        with self._lock:
            self._waiting -= 1
            self._made += 1
            self._seconds += seconds
            for at in range(bisect_left(GRAMMAR_BOUNDS, seconds), len(GRAMMAR_BOUNDS)):
                self._waits[at] += 1

    def numbers(self) -> dict[str, Any]:
        """The fields of `Stats` that are about constraints."""
        with self._lock:
            return {
                "grammars_made": self._made,
                "grammars_waiting": self._waiting,
                "grammar_hits": self._hits,
                "grammar_seconds": self._seconds,
                "grammar_waits": tuple(zip(GRAMMAR_BOUNDS, self._waits, strict=True)),
            }
