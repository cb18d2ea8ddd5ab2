"""Programs over rows: P1 invoices, P3 triage of mail, P13 synthetic records, P15 evaluation."""

from __future__ import annotations

import json
import math
import random
import statistics
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

import lmlang as lm
from lmlang.demo.invoices import Invoice, invoice, texts
from lmlang.demo.triage import CLOSE, MAILS, PRIORITIES, Department, triage
from lmlang.frontend.passes import prefix
from lmlang.protocol import Prompt
from tests.programs.properties import ran, same_alone, silent, value_of


def test_invoices_are_valid_closed_in_time_and_their_instruction_is_computed_once(
    runtime, untrained, capfd
):
    few = runtime is not untrained
    rows = [{"text": text} for text in texts(2 if few else 30)]
    forecast = invoice.estimate(rows, backend=runtime)
    states = ran(invoice, rows, runtime)
    for state in states:
        found, written = state.ret_value, json.loads(state.text_of("invoice"))
        assert isinstance(found, Invoice)
        assert list(written) == ["vendor", "date", "currency", "lines", "total"]
        assert Invoice.model_validate(written) == found
        assert state.meta("invoice").generated_tokens <= 160
        assert state.meta("invoice").finish in ("eos", "complete", "forced_close")
    stats = runtime.stats()
    assert forecast.prompt_tokens.low == forecast.prompt_tokens.high == stats.prompt_tokens
    shared = len(runtime.encode(Prompt.of(*prefix(invoice.trace()))))
    assert stats.cached_tokens >= (len(rows) - 1) * (shared - 2)
    assert "outside" not in forecast.beside(
        sum((state.usage() for state in states[1:]), states[0].usage())
    )
    if not few:
        same_alone(invoice, rows[:3], states[:3], runtime)
    silent(capfd)


def test_mail_is_sorted_by_exact_probabilities(runtime, untrained, capfd):
    draws = random.Random(3)
    words = [word for mail in MAILS for word in mail.split()]
    mails = [
        " ".join(draws.choices(words, k=12)) for _ in range(180 if runtime is untrained else 4)
    ]
    rows = [{"mail": mail} for mail in (*MAILS, *mails)]
    states = ran(triage, rows, runtime)
    for state in states:
        found = state.ret_value
        assert found.department in Department
        assert found.priority in PRIORITIES
        margins = []
        for name, count in (("department", 6), ("priority", 4)):
            meta = state.meta(name)
            assert len(meta.probs) == count
            assert sum(meta.probs.values()) == pytest.approx(1)
            best = sorted(meta.probs.values())[-2:]
            assert meta.margin == pytest.approx(best[1] - best[0], abs=1e-6)
            margins.append(meta.margin)
        assert found.human == (min(margins) < CLOSE)
    assert runtime.stats().generated_tokens == 0
    if runtime is untrained:
        same_alone(triage, rows[:3], states[:3], runtime)
    silent(capfd)


def test_an_irrelevant_choice_leaves_the_ratios_of_the_others(untrained):
    @lm.function(backend=untrained)
    def sort(s, choices):
        s += lm.user(MAILS[0]) + lm.assistant(lm.select("x", choices))

    few = sort(["billing", "shipping", "sales"]).meta("x").probs
    more = sort(["billing", "shipping", "sales", "the colour of the sky"]).meta("x").probs
    for one in few:
        assert few[one] / few["billing"] == pytest.approx(more[one] / more["billing"], rel=1e-4)


def test_probabilities_are_those_of_brute_force(untrained):
    """Each choice alone as the output: its tokens' log-probabilities, one after another."""
    names = ["shipping", "billing", "sales"]

    @lm.function(backend=untrained)
    def sort(s):
        s += "Mail: " + MAILS[0] + "\nDepartment:" + lm.select("x", [f" {name}." for name in names])

    @lm.function(backend=untrained, temperature=0)
    def spelled(s, name):
        s += "Mail: " + MAILS[0] + "\nDepartment:"
        s += lm.gen("x", regex=rf" {name}\.", max_tokens=40, return_logprob=True)

    probs = sort().meta("x").probs
    brute = {}
    for name in names:
        meta = spelled(name).meta("x")
        told = [p for p, t in zip(meta.logprobs, meta.tokens, strict=True) if untrained.decode([t])]
        brute[f" {name}."] = math.exp(sum(told))
    total = sum(brute.values())
    for choice, value in brute.items():
        assert probs[choice] == pytest.approx(value / total, abs=1e-4)


class Record(BaseModel):
    name: Annotated[str, Field(min_length=1, max_length=10)]
    age: Annotated[int, Field(ge=0, le=120)]
    plan: Literal["free", "team", "company"]


@lm.function
def synthetic(s, number: int):
    s += f"Customer number {number} as JSON: " + lm.gen("record", type=Record, max_tokens=60)
    return s["record"]


def test_synthetic_records_are_valid_and_shuffled_rows_keep_theirs(runtime, untrained, capfd):
    rows = [{"number": number} for number in range(120 if runtime is untrained else 6)]
    states = ran(synthetic, rows, runtime)
    found = {row["number"]: value_of(state) for row, state in zip(rows, states, strict=True)}
    assert all(isinstance(record, Record) for record, _ in found.values())
    assert len({record.name for record, _ in found.values()}) > len(rows) // 3
    if runtime is untrained:
        mixed = random.Random(1).sample(rows, 40)
        for row, state in zip(mixed, ran(synthetic, mixed, runtime), strict=True):
            assert value_of(state) == found[row["number"]]
    silent(capfd)


@lm.function
def judge(s, text: str, prompt: str):
    s += prompt + "\nText: " + text + "\nIt is"
    s += lm.select("verdict", {"good": " good.", "bad": " bad."})
    verdict = s["verdict"]  # which the journal then has, also of a row that fails behind it
    if text == "broken":
        raise ValueError("this row is broken")
    return verdict


def test_an_evaluation_reports_and_costs_nothing_again(runtime, untrained, tmp_path, capfd):
    texts_of = [f"text {number}" for number in range(100 if runtime is untrained else 6)]
    labels = ["good" if number % 3 else "bad" for number in range(len(texts_of))]
    texts_of[2] = "broken"

    def evaluate(prompt: str) -> dict[str, float]:
        rows = [{"text": text, "prompt": prompt} for text in texts_of]
        states = judge.run_batch(
            rows, backend=runtime, seed=1, on_error="return", journal=tmp_path / "run.sqlite"
        )
        right = [
            float(state.ret_value == label)
            for state, label in zip(states, labels, strict=True)
            if state.error() is None
        ]
        mean = statistics.fmean(right)
        half = 1.96 * math.sqrt(mean * (1 - mean) / len(right))
        return {"n": len(right), "mean": mean, "half": half, "failed": len(rows) - len(right)}

    prompts = ("Judge the text.", "Is this text good or bad?")
    first = [evaluate(prompt) for prompt in prompts]
    runtime.reset_stats()
    assert [evaluate(prompt) for prompt in prompts] == first
    assert runtime.stats().steps == 0
    for report in first:
        assert (report["n"], report["failed"]) == (len(texts_of) - 1, 1)
        assert 0 <= report["mean"] <= 1
    silent(capfd)
