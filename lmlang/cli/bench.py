"""``lmlang bench``: in half a minute, what sharing and batching gain on this machine."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmlang.cli import terminal
from lmlang.cli.command import DONE, Command

if TYPE_CHECKING:
    import lmlang as lm
    from lmlang.frontend.program import Function

DESCRIPTION = """\
Measure on this machine, with everything else at rest, how many times as fast programs run by what
the runtime knows of them. Each line is a ratio of two medians of runs that took turns; above 1 is
faster. It takes about half a minute on a CPU with two cores. The benchmarks of the repository
compare with other libraries.
"""
REPEATS = 3
TOKENS = 16
COUNTRIES = ("France", "Italy", "Japan", "Egypt", "Canada", "Norway", "Peru", "India")
SHOTS = "".join(
    f"Country: {country}\nCapital: {capital}\n\n"
    for country, capital in (
        ("Spain", "Madrid"), ("Germany", "Berlin"), ("Brazil", "Brasília"), ("Belgium", "Brussels"),
        ("Denmark", "Copenhagen"), ("Sweden", "Stockholm"), ("Turkey", "Ankara"),
        ("Mexico", "Mexico City"), ("Argentina", "Buenos Aires"), ("Austria", "Vienna"),
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ratio:
    """What was compared, and the seconds of each run of the two sides."""

    name: str
    slower: tuple[float, ...]
    faster: tuple[float, ...]

    @property
    def value(self) -> float:
        """How many times as fast the second side was."""
        return statistics.median(self.slower) / statistics.median(self.faster)


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="MODEL", help="the embedded model without it")
    parser.add_argument(
        "--device", metavar="DEVICE", help="cpu, cuda, or cuda:1 for the second GPU"
    )
    parser.add_argument("--json", action="store_true", help="all seconds as one line of JSON")


def _run(options: argparse.Namespace) -> int:
    import lmlang as lm

    with lm.Runtime(options.model, device=options.device, max_running=len(COUNTRIES)) as runtime:
        info = runtime.info()
        found = [
            _compared("8 rows in one batch, beside one after another", *_batching(runtime)),
            _compared("8 rows on one prefix, beside a prefix each", *_sharing(runtime)),
            _compared("8 branches of one fork, beside 8 runs with no cache", *_forking(runtime)),
        ]
    if options.json:
        value = {r.name: {"ratio": r.value, "slower": r.slower, "faster": r.faster} for r in found}
        terminal.say(json.dumps({"model": info.model, "kernels": info.kernels, "ratios": value}))
        return DONE
    terminal.say(terminal.shown(f"{info.model}; {info.kernels}"))
    for ratio in found:
        spread = f"{min(ratio.faster):.2f} to {max(ratio.faster):.2f} s"
        terminal.say(f"{ratio.value:6.1f}x  {ratio.name} ({spread})")
    return DONE


Side = Callable[[], None]


def _compared(name: str, slower: Side, faster: Side) -> Ratio:
    """Both sides by turns, once without a clock."""
    taken: tuple[list[float], list[float]] = [], []
    for repeat in range(REPEATS + 1):
        for side, seconds in zip((slower, faster), taken, strict=True):
            began = time.perf_counter()
            side()
            if repeat:
                seconds.append(time.perf_counter() - began)
    return Ratio(name, tuple(taken[0]), tuple(taken[1]))


def _batching(runtime: lm.Runtime) -> tuple[Side, Side]:
    """The prefix is cached on both sides: what is left is decoding."""
    program, rows = _program(runtime), [{"country": name} for name in COUNTRIES]
    return (
        lambda: _ran(program.run_batch(rows, num_threads=1, seed=0)),
        lambda: _ran(program.run_batch(rows, seed=0)),
    )


def _sharing(runtime: lm.Runtime) -> tuple[Side, Side]:
    """As many tokens on both sides, nothing cached before; only the second side's agree."""
    program = _program(runtime)
    apart = [{"country": name, "first": f"List {i}\n"} for i, name in enumerate(COUNTRIES)]
    alike = [{"country": name, "first": "List 0\n"} for name in COUNTRIES]

    def side(rows: Sequence[dict[str, str]]) -> Side:
        def run() -> None:
            runtime.flush_cache()
            _ran(program.run_batch(rows, max_new_tokens=1, seed=0))

        return run

    return side(apart), side(alike)


def _forking(runtime: lm.Runtime) -> tuple[Side, Side]:
    """Sharing and batching together."""
    import lmlang as lm

    single = _program(runtime)

    @lm.function(temperature=0, backend=runtime)
    def forked(s: lm.ProgramState) -> None:
        s += SHOTS
        branches = s.fork(len(COUNTRIES))
        for branch, country in zip(branches, COUNTRIES, strict=True):
            branch += f"Country: {country}\nCapital:" + lm.gen("capital", max_tokens=TOKENS)
        branches.join()

    def slower() -> None:
        for country in COUNTRIES:
            runtime.flush_cache()
            single.run(country=country, seed=0)

    def faster() -> None:
        runtime.flush_cache()
        forked.run(seed=0)

    return slower, faster


def _program(runtime: lm.Runtime) -> Function[Any, Any]:
    import lmlang as lm

    @lm.function(temperature=0, backend=runtime, max_new_tokens=TOKENS)
    def capital(s: lm.ProgramState, country: str, first: str = "") -> None:
        s += first + SHOTS + f"Country: {country}\nCapital:" + lm.gen("capital")

    return capital


def _ran(states: Sequence[lm.ProgramState]) -> None:
    for state in states:
        state.sync()


BENCH = Command("bench", "measure what sharing and batching gain here", DESCRIPTION, _add, _run)
