"""The benchmarks run at tiny sizes: equal answers and a well-formed JSON line, never seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def json_of(script: str) -> dict[str, Any]:
    """Run a benchmark in its own process, small and once; its JSON."""
    command = [sys.executable, str(BENCHMARKS / script), "--small", "--repeat", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert value["small"] is True
    return value


def last_line(script: str) -> dict[str, Any]:
    """The same of a benchmark that compares us with others."""
    value = json_of(script)
    for result in value["results"]:
        assert result["equal"] is True
        assert result["ratio"]["lmlang float32"] == 1.0
        assert result["ratio"].keys() == result["seconds"].keys()
        assert all(len(seconds) == 1 for seconds in result["seconds"].values())
    return value


def test_decode_gives_the_same_tokens_as_transformers() -> None:
    value = last_line("decode.py")
    assert value["benchmark"] == "decode"
    measured = [(result["workload"], result["batch"]) for result in value["results"]]
    assert measured == [("prefill", 1), ("prefill", 2), ("decode", 1), ("decode", 2)]
    for result in value["results"]:
        assert result["tokens_per_second"].keys() == result["ratio"].keys()


def test_programs_give_the_same_answers_and_share_their_prompts() -> None:
    value = last_line("programs.py")
    assert value["benchmark"] == "programs"
    choices, forks = value["results"]
    assert (choices["workload"], forks["workload"]) == ("choices", "forks")
    for result, rows in ((choices, choices["questions"]), (forks, forks["forks"])):
        counters = result["counters"]
        assert counters["prompt_tokens"] == counters["cached_tokens"] + counters["prefill_tokens"]
        assert counters["cached_tokens"] >= (rows - 1) * result["prefix_tokens"]
    assert forks["counters"]["generated_tokens"] == forks["forks"] * forks["tokens"]


def test_frontend_tells_what_the_language_costs_in_round_trips() -> None:
    value = json_of("frontend.py")
    assert value["benchmark"] == "frontend"
    unit, *others = value["results"]
    assert (unit["workload"], unit["ratio"]) == ("empty round trip", 1.0)
    assert {result["workload"] for result in others} >= {"generation, read at the end", "fork"}
    assert all(len(result["seconds"]) == 1 for result in value["results"])
