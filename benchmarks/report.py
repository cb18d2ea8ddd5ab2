"""What benchmarks of a model have in common: options, interleaved repetitions, the setup."""

from __future__ import annotations

from lmlang.runtime import openmp  # noqa: F401 - before anything that loads torch

# isort: split
import argparse
import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
import transformers
from tables import print_json as print_json
from tables import print_table as print_table

from lmlang.runtime.models.fetch import find_embedded_model

A = TypeVar("A")

OURS = "lmlang"
"""As it comes: a quantised GGUF file in its own blocks."""
OURS_FLOAT32 = "lmlang float32"
OURS_BFLOAT16 = "lmlang bfloat16"
"""The subjects that the others are compared with."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a benchmark runs.

    Args:
        repeat: Repetitions of each subject, after one warm-up.
        small: Sizes that only show that everything works; their seconds mean nothing.
        model: The file of a plain Llama.
        only: The one part to run; None for all.
    """

    repeat: int
    small: bool
    model: Path
    only: str | None = None


@dataclass(frozen=True, slots=True)
class Measured(Generic[A]):
    """One subject's repetitions: all their seconds, and the answer of the first."""

    seconds: tuple[float, ...]
    answer: A

    @property
    def median(self) -> float:
        """The median of the seconds."""
        return statistics.median(self.seconds)


def options(description: str | None, parts: Collection[str] = ()) -> Options:
    """Read the command line, and pin torch's threads for all subjects alike.

    Args:
        description: Of the script.
        parts: Names of its parts, where one of them may be run alone.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--threads", type=_positive, help="torch threads of every subject (default: torch's own)"
    )
    parser.add_argument("--repeat", type=_positive, default=3, help="repetitions (default: 3)")
    parser.add_argument(
        "--small", action="store_true", help="tiny sizes, to see that it runs; times mean nothing"
    )
    parser.add_argument(
        "--model", type=Path, help="a .gguf file of a plain Llama (default: the embedded model)"
    )
    if parts:
        parser.add_argument("--only", choices=parts, help="one part (default: all)")
    given = parser.parse_args()
    torch.set_num_threads(given.threads or torch.get_num_threads())
    # What transformers advises about this use of its caches is no part of a report.
    transformers.logging.set_verbosity_error()
    chosen = given.only if parts else None
    return Options(given.repeat, given.small, given.model or find_embedded_model(), chosen)


def timed(work: Callable[[], A]) -> tuple[float, A]:
    """Seconds that a piece of work took, and what it returned."""
    started = time.perf_counter()
    done = work()
    return time.perf_counter() - started, done


def interleaved(
    subjects: Mapping[str, Callable[[], tuple[float, A]]],
    repeat: int,
    once: Collection[str] = (),
) -> dict[str, Measured[A]]:
    """Measure the subjects in turns, so that a slow minute of the machine falls on all of them.

    Args:
        subjects: By name: runs once and returns its seconds and its answer.
        repeat: Rounds.
        once: Names of those that take part in the first round only.
    """
    taken: dict[str, list[tuple[float, A]]] = {name: [] for name in subjects}
    for number in range(repeat):
        for name, subject in subjects.items():
            if number == 0 or name not in once:
                gc.collect()
                taken[name].append(subject())
    return {
        name: Measured(tuple(seconds for seconds, _ in runs), runs[0][1])
        for name, runs in taken.items()
    }


def ratios(measured: Mapping[str, Measured[A]], ours: str = OURS) -> dict[str, float]:
    """By subject: how many times as fast as it ours is; empty where ours was not measured."""
    if ours not in measured:
        return {}
    unit = measured[ours].median
    return {name: subject.median / unit for name, subject in measured.items()}


def require(equal: bool, what: str) -> None:
    """End the benchmark where answers differ: times of different work are not to be compared."""
    if not equal:
        sys.exit(f"the answers differ, so no times are compared: {what}")


def setup(model: str) -> dict[str, Any]:
    """What the numbers depend on besides the code."""
    return {
        "model": os.path.basename(model),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def print_setup(facts: Mapping[str, Any], repeat: int) -> None:
    """Say on what, and how, everything below was measured."""
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(f"Medians of {repeat} interleaved repetitions after a warm-up; greedy; one process.")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive: give 1 or more")
    return number
