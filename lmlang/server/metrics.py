"""What the server counts, under the names that SGLang's dashboards know, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from lmlang.errors import Cancelled
from lmlang.protocol import Event, Generation, Output
from lmlang.server.caller import Caller

WAITS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
"""Bounds of the histograms, in seconds."""
GAUGES = {
    "num_running_reqs": ("running", "Sequences that hold slots"),
    "num_queue_reqs": ("waiting", "Sequences that wait to run"),
    "num_grammar_queue_reqs": ("grammars_waiting", "Constraints that are being compiled"),
    "num_used_tokens": ("kv_tokens_used", "Slots of the KV pool in use"),
    "max_total_num_tokens": ("kv_tokens_total", "Slots of the KV pool"),
}
COUNTERS = {
    "cached_tokens": ("cached_tokens", "Prompt tokens found in the cache"),
    "evicted_tokens": ("evicted_tokens", "Tokens evicted from the cache"),
    "num_retracted_reqs": ("retractions", "Sequences that gave up their slots for others"),
    "num_grammar": ("grammars_made", "Constraints compiled"),
    "num_grammar_cache_hit": ("grammar_hits", "Constraints found compiled"),
}
"""Name to the field of the runtime's numbers that it shows."""


class Metrics:
    """Counters and histograms of one server; used on the event loop."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        histogram, counter = self._histogram, self._counter
        self._first = histogram("time_to_first_token_seconds", "Time to the first token")
        self._between = histogram("inter_token_latency_seconds", "Time between two tokens")
        self._whole = histogram("e2e_request_latency_seconds", "Time of a whole request")
        self._queued = histogram("queue_time_seconds", "Time until a sequence is admitted")
        self._prompt = counter("prompt_tokens", "Prompt tokens")
        self._generated = counter("generation_tokens", "Generated tokens")
        self._requests = counter("num_requests", "Generations that have ended")
        self._aborted = counter("num_aborted_requests", "Generations that were given up")

    def event(self, timing: Timing, index: int, event: Event) -> None:
        """An event is passed on."""
        if not event.ids:
            return
        now = perf_counter()
        before = timing.last[index]
        if before is None:
            self._first.observe(now - timing.began)
        else:
            for _ in event.ids:
                self._between.observe((now - before) / len(event.ids))
        timing.last[index] = now

    def ended(self, timing: Timing, caller: Caller, generations: Sequence[Generation]) -> None:
        """Generations are over, one way or the other."""
        for generation in generations:
            self._requests.inc()
            self._whole.observe(perf_counter() - timing.began)
            outcome = generation.outcome() if generation.done() else Cancelled()
            if isinstance(outcome, Output):
                self._prompt.inc(outcome.usage.prompt_tokens)
                self._generated.inc(outcome.usage.generated_tokens)
                caller.prompt_tokens += outcome.usage.prompt_tokens
                caller.generated_tokens += outcome.usage.generated_tokens
            elif isinstance(outcome, Cancelled):
                self._aborted.inc()
            if generation.admitted_at is not None:
                self._queued.observe(max(0.0, generation.admitted_at - timing.began))

    def text(self, stats: Any | None) -> bytes:
        """Everything in Prometheus' format.

        Args:
            stats: The runtime's numbers; None: the backend has none.
        """
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Numbers(stats))
        return generate_latest(self._registry) + generate_latest(registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"lmlang:{name}", text, buckets=WAITS, registry=self._registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"lmlang:{name}", text, registry=self._registry)


class Timing:
    """When some generations were asked for, and when each last said something."""

    __slots__ = ("began", "last")

    def __init__(self, count: int) -> None:
        self.began = perf_counter()
        self.last: list[float | None] = [None] * count


class _Numbers:
    """The runtime's own numbers at one moment, as Prometheus collects them."""

    def __init__(self, stats: Any | None) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        if stats is None:
            return
        for name, (field, text) in GAUGES.items():
            if hasattr(stats, field):
                yield GaugeMetricFamily(f"lmlang:{name}", text, value=getattr(stats, field))
        for name, (field, text) in COUNTERS.items():
            if hasattr(stats, field):
                yield CounterMetricFamily(f"lmlang:{name}", text, value=getattr(stats, field))
        if getattr(stats, "grammar_waits", ()):
            yield _grammar_times(stats)
        used = stats.kv_tokens_used / stats.kv_tokens_total
        yield GaugeMetricFamily("lmlang:token_usage", "Share of the KV pool in use", value=used)
        hits = stats.cached_tokens / stats.prompt_tokens if stats.prompt_tokens else 0.0
        yield GaugeMetricFamily(
            "lmlang:cache_hit_rate", "Share of prompt tokens found in the cache", value=hits
        )


def _grammar_times(stats: Any) -> Metric:
    """The histogram of compile times, as the runtime has counted them."""
    buckets = [(str(bound), count) for bound, count in stats.grammar_waits]
    return HistogramMetricFamily(
        "lmlang:grammar_compile_time_seconds",
        "Time that requests have waited for their constraints",
        buckets=[*buckets, ("+Inf", stats.grammars_made)],
        sum_value=stats.grammar_seconds,
    )
