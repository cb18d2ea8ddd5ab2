"""The benchmarks run on a tiny model: equal answers and a well-formed JSON line, never seconds."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.loads import LOADS, Load, optimum
from benchmarks.machine import Machine
from lmlang.runtime.models.loader import load_gguf
from tests.tiny import tiny_shape, write_tiny_gguf

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
IDS = st.lists(st.integers(0, 2), min_size=1, max_size=10)
ASKED = st.lists(st.tuples(IDS, IDS), max_size=8)


def json_of(script: str, *arguments: str) -> dict[str, Any]:
    """Run a benchmark in its own process, small; its JSON."""
    command = [sys.executable, str(BENCHMARKS / script), "--small", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert value["small"] is True
    assert value["benchmark"] == script.removesuffix(".py")
    return value


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return write_tiny_gguf(path, tiny_shape(max_positions=4_096))


def last_line(script: str, model: Path) -> dict[str, Any]:
    """The same of a benchmark that measures subjects in turns, once."""
    value = json_of(script, "--repeat", "1", "--model", str(model))
    assert value["model"] == model.name
    for result in value["results"]:
        assert result["equal"] is True
        assert result["ratio"]["lmlang"] == 1.0
        assert result.get("ratio_bfloat16", {}).get("lmlang bfloat16", 1.0) == 1.0
        assert result["ratio"].keys() == result["seconds"].keys()
        assert all(len(seconds) == 1 for seconds in result["seconds"].values())
    return value


def test_decode_gives_the_same_tokens_as_transformers_and_with_drafts(model: Path) -> None:
    one, two, copied, ordinary = last_line("decode.py", model)["results"]
    for result, batch in ((one, 1), (two, 2)):
        assert (result["workload"], result["batch"]) == ("decode", batch)
        assert result["tokens_per_second"].keys() == result["ratio"].keys()
        assert result["outside"].keys() == {"lmlang", "lmlang float32", "lmlang bfloat16"}
    for result, text in ((copied, "copied text"), (ordinary, "ordinary text")):
        assert result["workload"] == f"speculation, {text}"
        assert result["drafted"] >= result["accepted"] >= 0
        assert result["our_steps"] + result["accepted"] == result["steps"]


def test_prefill_gives_the_same_tokens_as_transformers_and_knows_its_floor(model: Path) -> None:
    results = last_line("prefill.py", model)["results"]
    assert [result["batch"] for result in results] == [1, 2, 1]
    assert all({"floor float32", "floor bfloat16"} < result["ratio"].keys() for result in results)
    assert all("floor float32" not in result["rows_equal"] for result in results)


def test_programs_give_the_same_answers_with_all_ways_of_sharing(model: Path) -> None:
    results = {result["workload"]: result for result in last_line("programs.py", model)["results"]}
    rows = {"choices": "questions", "forks": "forks", "extractions": "extractions"}
    rows |= {"chats": "chats", "tree": "nodes"}
    assert results.keys() == rows.keys()
    for name, result in results.items():
        counted = result["counters"]
        for ours, counters in counted.items():
            spared = counters["prompt_tokens"] - counters["prefill_tokens"]
            assert counters["cached_tokens"] == spared
            assert (spared == 0) == ("no cache" in ours or "neither" in ours)
        asked = [each["prompt_tokens"] for ours, each in counted.items() if "float" not in ours]
        assert len(asked) == 4
        assert len(set(asked)) == 1
        shared = counted["lmlang"]
        assert shared["cached_tokens"] >= (result[rows[name]] - 1) * result["prefix_tokens"]
        assert result["gain"]["tokens"] > 1
    for name, turns in (("forks", 1), ("chats", results["chats"]["turns"]), ("tree", 1)):
        written = results[name][rows[name]] * turns * results[name]["tokens"]
        assert results[name]["counters"]["lmlang"]["generated_tokens"] == written


def test_programs_compute_no_more_prompt_tokens_than_their_union_has(model: Path) -> None:
    results = last_line("prefix_reuse.py", model)["results"]
    loads = ["few-shot", "chats", "forks", "tree", "react", "mixed"]
    assert [result["workload"] for result in results] == loads
    for result in results:
        assert result["prefill_tokens"] == result["optimum"]
        assert result["cached_tokens"] == result["prompt_tokens"] - result["optimum"] > 0
        assert result["no_cache"] == result["prompt_tokens"]


def test_every_policy_finds_all_that_is_shared_where_there_is_room() -> None:
    results = json_of("scheduling.py")["results"]
    assert {result["load"] for result in results} == {"few-shot", "fork"}
    assert {result["policy"] for result in results} >= {"fcfs", "lpm", "dfs", "program"}
    assert {result["eviction"] for result in results} == {"program", "lru"}
    for result in results:
        assert 0 < result["hit"] < 1
        assert result["optimum"] == 1 or result["pool"] < 1
        assert 0 < result["optimum"] <= 1
        assert 0 <= result["mean"] <= result["p99"] <= result["steps"]
    assert results == json_of("scheduling.py")["results"]


def test_quality_tells_what_fewer_bits_cost(model: Path) -> None:
    value = json_of("quality.py", "--model", str(model))
    exact, bfloat16, *others = value["results"]
    blocks, blocks8, one_digit, layers, weights, kv, both = others
    assert exact["top1"] == 1.0
    assert abs(exact["kl"]) < 1e-6
    assert blocks["kl"] < blocks8["kl"] < one_digit["kl"]
    for result in (bfloat16, *others):
        assert 0 < result["kl"] < 0.1
        assert result["by_kind"].keys() == {"prose", "code", "json"}
        assert result["perplexity"] == pytest.approx(exact["perplexity"], rel=0.05)
        assert 0.5 < result["top1"] <= 1
    assert weights["weights"] < 0.55 * bfloat16["weights"] < 0.3 * exact["weights"]
    assert weights["weights"] < layers["weights"]
    assert kv["kv_bytes"] < exact["kv_bytes"] / 2
    assert (both["weights"], both["kv_bytes"]) == (weights["weights"], kv["kv_bytes"])


def test_frontend_tells_what_the_language_costs_in_round_trips() -> None:
    value = json_of("frontend.py", "--repeat", "1")
    unit, *others = value["results"]
    assert (unit["workload"], unit["ratio"]) == ("empty round trip", 1.0)
    assert {result["workload"] for result in others} >= {"generation, read at the end", "fork"}
    assert all(len(result["seconds"]) == 1 for result in value["results"])


def test_constraints_force_only_what_documents_have(model: Path) -> None:
    value = json_of("grammar.py", "--repeat", "1", "--model", str(model))
    assert value["model"] == model.name
    (result,) = value["results"]
    schema, mask, forced = result["schema"], result["mask"], result["forced"]
    assert schema["taken"]["lmlang"] == schema["schemas"] >= schema["common"] > 0
    assert mask["documents"] > 0
    for measured in (result["regex"]["compile"], schema["compile"], mask["first"], mask["again"]):
        for times in measured.values():
            assert 0 < times["p50"] <= times["p90"] <= times["p99"] <= times["max"]
    assert result["regex"]["patterns"]["lmlang"].keys() >= {"date", "line", "60 words"}
    assert forced["runs_unlike_the_document"] == 0
    assert 0 < forced["forced"] < 1
    assert forced["held_open"] >= 0
    saved = forced["forced"] + forced["held_open"]
    assert forced["passes"] == pytest.approx((1 - saved) * forced["tokens"], rel=1e-3)


def test_constraints_take_a_part_of_each_step(model: Path) -> None:
    value = json_of("constrained.py", "--model", str(model))
    assert [(r["outputs"], r["temperature"]) for r in value["results"]] == [
        ("first", 0), ("again", 0), ("first", 1), ("again", 1)
    ]  # fmt: skip
    for result in value["results"]:
        assert result["schemas"] > 0
        assert 0 < result["median_share"] <= result["worst_share"] < 1
        assert result["micros_a_draw"] > 0


def test_serving_gives_the_same_texts_to_clients_as_to_threads(model: Path) -> None:
    value = json_of("serving.py", "--repeat", "1", "--model", str(model))
    results = value["results"]
    loads = ["closed 1", "closed 8", "closed 32", "open"]
    assert [result["load"] for result in results[::2]] == loads
    assert {result["subject"] for result in results} == {"in the process", "lmlang serve"}
    for result in results:
        assert result["equal"] == 1
        assert result["tokens"] == 4 * result["requests"] > 0
        for name in ("first", "between", "whole"):
            assert 0 <= result[name]["p50"] <= result[name]["p99"]
        assert result["whole"]["p50"] >= result["first"]["p50"] > 0
    ours, served = results[2:4]
    gain = served["tokens_per_second"] / ours["tokens_per_second"]
    assert value["overhead"] == pytest.approx(1 - gain, abs=0.002)


@settings(max_examples=100)
@given(st.lists(st.tuples(IDS, st.lists(st.integers(0, 2), min_size=1, max_size=5)), max_size=8))
def test_the_optimum_is_the_union_of_all_beginnings(
    asked: list[tuple[list[int], list[int]]],
) -> None:
    known: set[tuple[int, ...]] = set()
    fewest = 0
    for prompt, output in asked:
        new = {tuple(prompt[:n]) for n in range(1, len(prompt) + 1)} - known
        fewest += len(new) or 1
        text = [*prompt, *output]
        known |= {tuple(text[:n]) for n in range(1, len(text))} | new
    assert optimum(asked) == (fewest, len(known))


@pytest.mark.parametrize("make", LOADS)
def test_a_load_is_the_same_every_time_and_comes_to_its_end(make: Callable[[int], Load]) -> None:
    runs = []
    for _ in range(2):
        machine = Machine(1 << 20)
        machine.run(make(3))
        machine.cache.check()
        runs.append((machine.asked, machine.steps, machine.waits))
        fewest, size = optimum(machine.asked)
        assert machine.cached_tokens == machine.prompt_tokens - fewest
        assert machine.cache.tree.total_tokens == size
    assert runs[0] == runs[1]


def test_growth_tells_what_more_work_costs(model: Path) -> None:
    value = json_of("growth.py", "--repeat", "1", "--model", str(model))
    requests, forks, rows = value["results"]
    assert requests["MB"].keys() == {"20", "60"}
    assert min(requests["MB"].values()) > 0
    for result, unit in ((forks, "ms/token"), (rows, "ms/question")):
        costs = list(result[unit].values())
        assert result["rise"] == pytest.approx(costs[-1] / costs[0], rel=0.01)
        assert result["met"] == (result["rise"] <= 1.1)


def test_subjects_in_processes_of_their_own_are_compared(model: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "peers" / "compare.py"), "--small", "--repeat", "2"]
    command += ["--model", str(model), "--only", "fork", "typed", "decode 8", "select"]
    command += ["--subjects", "lmlang", "lmlang float32"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout.splitlines()[-1])
    assert value["missing"] == {}
    assert list(value["results"]) == ["fork", "typed", "decode 8"]
    for found in value["results"]["fork"].values():
        assert (found["same"], found["of"], len(found["seconds"])) == (2, 2, 2)
        assert found["counters"]["steps"] > 2
    for found in value["results"]["typed"].values():
        assert (found["valid"], found["of"]) == (2, 2)
    assert value["steps"]["decode 8"] == 4
    (select,) = value["select"].values()
    assert select["items"] == 16
    assert select["beyond"] == 0


SUBJECT = """
import os, time

def made(model, folder):
    def run(name, work):
        if name == "die":
            os._exit(1)
        if name == "sleep":
            time.sleep(600)
        return 0.5, [os.getpid(), *work]
    return run
"""


def test_a_subject_that_is_late_or_has_died_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "some_subject.py").write_text(SUBJECT)
    subjects = of_peers("subjects")
    kind = subjects.Kind("some_subject", environment={"PYTHONPATH": str(tmp_path)})
    subject = subjects.Subject(kind, tmp_path / "model.gguf", 1)
    try:
        first, *rest = subject.ask("x", [1, 2], 60)["answer"]
        assert rest == [1, 2]
        assert subject.ask("x", [], 60)["answer"] == [first]
        with pytest.raises(RuntimeError):
            subject.ask("die", [], 60)
        second = subject.ask("x", [], 60)["answer"]
        with pytest.raises(subjects.Late, match="no answer within 0 s"):
            subject.ask("sleep", [], 0.1)
        subject.end()
        third = subject.ask("x", [], 60)["answer"]
        assert len({first, *second, *third}) == 3
    finally:
        subject.end()


def of_peers(name: str) -> Any:
    """A module of the comparison."""
    paths = [str(BENCHMARKS / "peers"), str(BENCHMARKS)]
    sys.path[:0] = paths
    try:
        return importlib.import_module(name)
    finally:
        for path in paths:
            sys.path.remove(path)


class Counting:
    """An engine whose every token is the sum of all before it; it keeps nothing."""

    def fresh(self) -> None:
        """Nothing."""

    def complete(self, rows: list[list[int]], tokens: int, ends: Any = ()) -> list[list[int]]:
        """See `plays.Engine`."""
        found = []
        for row in rows:
            new: list[int] = []
            while len(new) < tokens and not (new and new[-1] in ends):
                new.append((sum(row) + sum(new)) % 7)
            found.append(new)
        return found

    def choose(self, prefix: list[int], questions: list[dict[str, Any]]) -> list[int]:
        """The one whose ids have the largest sum."""
        sums = [[sum(ids) for ids in question["ids"]] for question in questions]
        return [each.index(max(each)) for each in sums]


def test_what_peers_play_are_the_rows_that_a_program_makes() -> None:
    plays, page = of_peers("plays"), of_peers("page")
    engine = Counting()

    def grown(row: list[int], tokens: int, ends: Any = ()) -> list[int]:
        return [*row, *engine.complete([row], tokens, ends)[0]]

    rows = [[1, 2, 3], [1, 2, 4, 5]]
    fork = {"ids": rows, "tokens": 3}
    assert plays.play(engine, "fork", fork)[1] == [grown(row, 3) for row in rows]
    assert plays.play(engine, "raw", fork)[1] == [grown(row, 3) for row in rows]
    records = fork | {"ends": [0, 5]}
    assert plays.play(engine, "json", records)[1] == [grown(row, 3, (0, 5)) for row in rows]
    chat = {"turns": [[[1, 2], [3]], [[1, 4], [5]]], "close": [6], "tokens": 2}
    wanted = [[*grown([*grown(turns[0], 2), *turns[1]], 2), 6] for turns in chat["turns"]]
    assert plays.play(engine, "chat", chat)[1] == wanted
    tree = {"root": [1, 2], "steps": [[3], [4]], "depth": 2, "tokens": 2}
    level = [grown([1, 2, step], 2) for step in (3, 4)]
    wanted = [grown([*node, step], 2) for node in level for step in (3, 4)]
    assert plays.play(engine, "tree", tree)[1] == wanted
    asked = {"prefix": [1], "ids": [[[1, 2], [1, 3]]], "questions": [{"choices": ["a", "b"]}]}
    assert plays.play(engine, "choose", asked)[1] == [1]

    told = {
        "model": "m", "cores": 2, "threads": 2, "torch": "2", "transformers": "5", "python": "3",
        "repeat": 3, "size": "half", "missing": {"other": "not installed"},
        "groups": {
            "lmlang": "ours", "lmlang, fcfs": "without", "products": "floor", "quick": "other",
            "late": "other", "other": "other",
        },
        "steps": {"fork": 0, "typed": 0, "decode 8": 64},
        "results": {
            "fork": {
                "lmlang": {"seconds": [2.0, 4.0, 3.0], "same": 2, "of": 2},
                "lmlang, fcfs": {"seconds": [4.5], "same": 2, "of": 2},
                "quick": {"seconds": [1.5], "same": 0, "of": 2},
                "late": {"seconds": [], "error": "no answer"},
            },
            "typed": {
                "lmlang": {"seconds": [1.0], "valid": 20, "of": 20, "right": 3},
                "quick": {"seconds": [2.0], "valid": 7, "of": 20, "right": 1},
            },
            "decode 8": {
                "lmlang": {"seconds": [0.64], "same": 8, "of": 8},
                "products": {"seconds": [0.32]},
            },
        },
        "select": {
            "lmlang": {"items": 9, "equal": 8, "beyond": 0, "margins": [0.01], "apart": 0.25}
        },
        "start": {"lmlang": {"first": 3.0, "warm": [1.0, 2.0, 1.5]}},
    }  # fmt: skip
    table = page.table(told)
    for line in (
        "| lmlang | 3.00 (2/2) | 10.0 (8/8) |",
        "| late | failed |  |",
        "| products |  | 5.0 |",
        "lmlang is so many times as fast as the fastest of the others: typed 2.00 (quick).",
        "Ahead of lmlang: quick in fork, 2.00 times as fast.",
        "lmlang takes so many times as long as the int8 products alone: decode 8 2.00.",
        "| quick | 2.00 | 7 | 1 |",
        "| lmlang, fcfs | 4.50 (× 1.50) |",
        "| lmlang | 9 | 8 | 0 | 0.010 | 0.250 |",
        "| lmlang | 3.0 | 1.5 |",
        "Not measured: other (not installed); late in fork (no answer).",
    ):
        assert line in table.splitlines(), line
    assert "Not in this run: lmlang blocks; " in table


LOGPROBS = st.lists(st.integers(-400, 0).map(lambda n: n / 100), min_size=3, max_size=3)


def test_selects_that_differ_from_float32_are_told_with_its_margins() -> None:
    told = of_peers("agreement").told

    @given(st.lists(st.tuples(LOGPROBS, LOGPROBS), min_size=1, max_size=6))
    def check(rows: list[tuple[list[float], list[float]]]) -> None:
        mine, exact = [row for row, _ in rows], [row for _, row in rows]
        questions = [{"choices": ["a", "b", "c"], "answer": "b"} for _ in rows]
        found = told([mine], [exact], [{"questions": questions}])
        turned = [b for a, b in rows if a.index(max(a)) != b.index(max(b))]
        margins = sorted(max(row) - sorted(row)[1] for row in turned)
        assert found["items"] == len(rows)
        assert found["equal"] == len(rows) - len(turned)
        assert found["margins"] == pytest.approx(margins, abs=1e-4)
        assert found["beyond"] == sum(margin > 0.0501 for margin in margins)
        assert found["right"] == sum(row.index(max(row)) == 1 for row in mine)

    check()


def test_a_record_counts_where_it_is_json_of_the_schema() -> None:
    read = of_peers("typed").read
    record = {"day": "Monday", "meal": "lunch", "place": "at the bar", "dish": "soup"}
    assert read(json.dumps(record, indent=2) + "\n") == record
    assert read(json.dumps(record)[:-1]) is None
    for other in ({"day": "Moonday"}, {"place": "x" * 25}, {"dish": 1}, {"more": "x"}):
        assert read(json.dumps(record | other)) is None
    assert read(json.dumps({"day": "Monday"})) is None


def test_the_floor_is_the_products_of_the_model_and_nothing_else(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    floor = of_peers("of_floor").made(str(model), "")
    product, done = torch._int_mm, []

    def counted(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        done.append((a.shape[0], b.numel()))
        return product(a, b)

    monkeypatch.setattr(torch, "_int_mm", counted)
    seconds, answer = floor("raw", {"ids": [[0] * 300] * 3, "tokens": 4})
    assert seconds > 0
    assert answer is None
    weights = load_gguf(model).weights
    layers = sum(
        weight.numel()
        for name, weight in weights.items()
        if name.startswith("layers.") and weight.ndim == 2
    )
    head = weights.get("head", weights["embed"]).numel()
    chunks = 512 + 388
    assert sum(rows * size for rows, size in done) == chunks * layers + 2 * 3 * head + 3 * 3 * (
        layers + head
    )


def test_starts_are_timed_in_processes_of_their_own(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    startup = of_peers("startup")
    monkeypatch.setattr(startup, "FORMS", {"lmlang": ""})
    monkeypatch.setattr(startup, "READ", ())
    (found,) = startup.measured(model, 1, 1).values()
    assert min(found["first"], *found["warm"]) > 0.1
    (broken := model.with_name("broken.gguf")).write_bytes(b"GGUF")
    with pytest.raises(RuntimeError, match="did not start"):
        startup.measured(broken, 1, 1)
