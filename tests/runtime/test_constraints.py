"""Outputs under constraints: valid, whole, drawn as they should be, whatever the engine does."""

from __future__ import annotations

import math
import re
import sys
import threading
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

import lmlang as lm
from lmlang.grammar.compiler import Grammar, compile_spec
from lmlang.grammar.matcher import GrammarMatcher
from lmlang.grammar.spec import Choice, Ebnf, Regex, Spec
from lmlang.grammar.vocabulary import Vocabulary
from lmlang.kernels.sampling import log_normalisers
from lmlang.protocol import Finish, Generation, Output, Prompt, Request, SamplingParams, Text
from lmlang.runtime.constraints import Constrained
from lmlang.runtime.local import Runtime
from lmlang.runtime.output import OutputStream
from lmlang.runtime.sampler import Draw, sample
from lmlang.runtime.sequence import GenerateTask, Sequence
from tests.runtime import oracle
from tests.runtime.test_engine import MODEL, TEMPLATE, TOKENIZER
from tests.runtime.test_pressure import Stepped

VOCABULARY = Vocabulary.of(TOKENIZER)
SPECS: tuple[Spec, ...] = (
    Regex(r"(the|hello) world(, hello)*!"),
    Regex(r"\d{1,3}"),
    Regex(r"[a-z ]{3,20}"),
    Regex(r"héllo 日本 😀 (world|user)😀é"),
    Regex(r"the user and the world, (the user|hello)( and)?"),
    Regex(r"(ab)*"),
    Choice(("hello", "hello world", "the user")),
    Choice(("the one and only answer 😀",)),
    Ebnf('root ::= "(" root ")" root | ""'),
)


@cache
def grammar(spec: Spec) -> Grammar:
    return compile_spec(spec, VOCABULARY)


def asking(spec: Spec, text: str = "the user and ", key: int = 0, **params: object) -> Request:
    given = {"max_tokens": 24, **params}
    own = {name: given.pop(name) for name in ("on_budget", "probs", "provenance") if name in given}
    prompt = Prompt().append(Text(text))
    return Request(prompt, SamplingParams(**given), key, constraint=spec, **own)  # type: ignore[arg-type]


def legal(matcher: GrammarMatcher) -> list[int]:
    """Every id that may come next, each tried."""
    found = []
    for index in range(TOKENIZER.vocab_size):
        if matcher.accept_token(index):
            matcher.rollback(1)
            found.append(index)
    return found


def mask_of(ids: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    flags = np.zeros(-(-TOKENIZER.vocab_size // 32) * 32, np.uint8)
    flags[ids] = 1
    return np.packbits(flags, bitorder="little").view(np.int32)


def one_at_a_time(one: Request) -> tuple[list[int], str]:
    """The ids and the finish of an output, every token fed alone and every mask tried out."""
    assert one.constraint is not None
    matcher, params = grammar(one.constraint).matcher(), one.params
    prompt = TOKENIZER.encode("".join(s.text for s in one.prompt.segments()))  # type: ignore[union-attr]
    ids: list[int] = []
    squeezed = False

    def push(tokens: list[int]) -> bool:
        for token in tokens:
            assert matcher.accept_token(token)
        if matcher.fits(params.max_tokens - len(ids) - len(tokens)):
            ids.extend(tokens)
            return True
        matcher.rollback(len(tokens))
        return False

    while True:
        if matcher.is_complete():
            return ids, "forced_close" if squeezed else "complete"
        left = params.max_tokens - len(ids)
        if not left:
            return ids, "forced_close"
        forced = matcher.forced_tokens()
        if forced and push(forced):
            continue
        if not matcher.is_accepting() and not matcher.fits(left - 1):
            return ids + matcher.completion(), "forced_close"
        scores = oracle.logits(MODEL, [*prompt, *ids])[-1:]
        mask = None if matcher.is_accepting() else mask_of(legal(matcher))
        barred: frozenset[int] = frozenset()
        for _ in range(8):
            draw = Draw(0, params, one.draw_key, len(ids), barred=barred, mask=mask)
            token = sample(scores, [draw])[0].token
            if token not in legal(matcher):
                return [*ids, token], "forced_close" if squeezed else "complete"
            if push([token]):
                break
            squeezed, barred = True, barred | {token}
        else:
            return ids + matcher.completion(), "forced_close"


def checked(one: Request, output: Output) -> None:
    """An output is what it must be: valid, as the oracle has it, with the model's logprobs."""
    ids, finish = one_at_a_time(one)
    assert list(output.ids) == ids
    assert output.finish == Finish(finish)  # type: ignore[arg-type]
    assert one.constraint is not None
    assert grammar(one.constraint).match(output.text)
    prompt = TOKENIZER.encode("".join(s.text for s in one.prompt.segments()))  # type: ignore[union-attr]
    wanted = oracle.choice_logprobs(MODEL, prompt, ids)
    assert output.logprobs == pytest.approx(wanted, abs=1e-3)


def begin(engine: Stepped, one: Request) -> Generation:
    """As `Runtime` does, on a loop that the test steps."""
    assert one.constraint is not None
    ids = TOKENIZER.encode("".join(s.text for s in one.prompt.segments()))  # type: ignore[union-attr]
    generation = Generation(one)
    constraint = Constrained(grammar(one.constraint), one)
    known = constraint.run()
    task = GenerateTask(generation, OutputStream(TOKENIZER, one.params, None, constraint))
    growth = one.params.max_tokens + 1
    sequence = Sequence(np.array(ids, np.int64), len(ids) - 1, growth, task, tag=one.tag)
    sequence.generated += known
    engine.loop.add(sequence)
    return generation


@pytest.fixture(scope="module")
def runtime():
    with Runtime.over(MODEL, TOKENIZER, TEMPLATE, kv_tokens=4_000) as rt:
        yield rt


# ---------------------------------------------------------------- the same tokens in every state


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("spec", SPECS)
def test_outputs_equal_those_fed_one_token_at_a_time(
    runtime: Runtime, spec: Spec, temperature: float
) -> None:
    asked = [
        asking(spec, key=key, max_tokens=budget, temperature=temperature)
        for key, budget in enumerate((40, grammar(spec).min_tokens() + 1, 12))
        if budget >= max(1, grammar(spec).min_tokens())
    ]
    for one, generation in [(one, runtime.generate(one)) for one in asked]:
        checked(one, generation.result(timeout=60))
    runtime.check()


@settings(max_examples=12)
@given(
    st.integers(0, 2**32),
    st.sampled_from([5, 9, 48]),
    st.sampled_from([90, 130, 400]),
    st.integers(4, 7),
    st.booleans(),
)
def test_chunks_company_retraction_and_eviction_change_nothing(
    seed: int, budget: int, slots: int, every: int, flush: bool
) -> None:
    rng = np.random.default_rng(seed)
    engine = Stepped(slots, budget, policy="fcfs")
    asked = []
    for key in range(6):
        spec = SPECS[rng.integers(len(SPECS))]
        most = grammar(spec).min_tokens() + int(rng.integers(1, 10))
        text = "the user " * int(rng.integers(1, 3))
        asked.append(asking(spec, text, key, max_tokens=most, temperature=float(key % 2)))
    generations = [begin(engine, one) for one in asked]

    def between(step: int) -> None:
        if step % every == 0:
            engine.retract(step)
        if flush and step % (3 * every) == 0:
            engine.loop.cache.flush()

    engine.run(between)
    for one, generation in zip(asked, generations, strict=True):
        checked(one, generation.result(timeout=0))
    stats = engine.loop.stats()
    outputs = [generation.result(timeout=0) for generation in generations]
    assert stats.prompt_tokens == stats.cached_tokens + stats.prefill_tokens
    assert stats.generated_tokens == sum(len(output.ids) for output in outputs)
    assert stats.forced_tokens == sum(output.usage.forced_tokens for output in outputs)


def test_what_is_forced_costs_no_pass_of_its_own(runtime: Runtime) -> None:
    spec = Regex(r"the user and the world, (hello|the user) and the world!")
    runtime.reset_stats()
    output = runtime.generate(asking(spec, "a new one: ", max_tokens=60)).result(timeout=60)
    stats = runtime.stats()
    assert output.usage.forced_tokens >= len(output.ids) - 2
    assert stats.steps == 1 + len(output.ids) - output.usage.forced_tokens
    assert stats.computed_tokens == (
        stats.prefill_tokens + stats.decode_tokens + stats.forced_tokens
    )
    assert stats.computed_tokens == stats.prompt_tokens + len(output.ids)
    assert output.usage.generated_tokens == len(output.ids)


def test_a_request_has_the_grammar_of_its_namespace(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, used = Regex(r"(the|hello) world[!?]"), []
    mine, others = (runtime.grammar(spec, name).result() for name in ("mine", "others"))
    begin = runtime._begin_constrained

    def noted(generation, prompt, wait, grammar):  # type: ignore[no-untyped-def]
        used.append(grammar.result())
        begin(generation, prompt, wait, grammar)

    monkeypatch.setattr(runtime, "_begin_constrained", noted)
    for name in ("mine", "others"):
        runtime.generate(replace(asking(spec), namespace=name)).result(60)
    assert [each is mine for each in used] == [True, False]
    assert [each is others for each in used] == [False, True]


def test_samples_of_one_prompt_are_constrained_each_for_itself(runtime: Runtime) -> None:
    with lm.use(runtime):
        state = _four.run(seed=3, backend=runtime)
    for text in state["x"]:
        assert re.fullmatch(r"(the|hello) world(, hello)*!", text)


@lm.function
def _four(s: lm.ProgramState) -> None:
    s += "the user " + lm.gen("x", n=4, regex=r"(the|hello) world(, hello)*!", max_tokens=30)


# ---------------------------------------------------------------- budgets


@settings(max_examples=60)
@given(st.sampled_from(SPECS), st.integers(0, 12), st.integers(0, 2**32))
def test_any_budget_from_the_shortest_output_on_gives_a_valid_one(
    spec: Spec, more: int, key: int
) -> None:
    budget = grammar(spec).min_tokens() + more
    one = asking(spec, key=key, max_tokens=budget)
    output = _run(one)
    assert grammar(spec).match(output.text)
    assert len(output.ids) <= budget
    assert output.usage.forced_closes == (output.finish.reason == "forced_close")


def _run(one: Request) -> Output:
    assert one.constraint is not None
    engine = Stepped(400)
    constraint = Constrained(grammar(one.constraint), one)
    if constraint.finish is not None and not constraint.known:
        with Runtime.over(MODEL, TOKENIZER, TEMPLATE, kv_tokens=100) as rt:
            return rt.generate(one).result(timeout=60)
    generation = begin(engine, one)
    engine.run()
    return generation.result(timeout=0)


def test_a_budget_below_the_shortest_output_is_refused_with_both_numbers(runtime: Runtime) -> None:
    spec = Regex(r"\d{9}")
    with pytest.raises(lm.BudgetExceeded, match="has 9 tokens, and max_tokens is 8"):
        runtime.generate(asking(spec, max_tokens=8)).result(timeout=60)
    assert len(runtime.generate(asking(spec, max_tokens=9)).result(timeout=60).text) == 9


def test_closing_is_said_and_can_be_refused(runtime: Runtime) -> None:
    spec = Regex(r"[a-z]+( [a-z]+)*\.")
    closed = runtime.generate(asking(spec, max_tokens=6)).result(timeout=60)
    assert closed.finish.reason == "forced_close"
    assert re.fullmatch(spec.pattern, closed.text)
    with pytest.raises(lm.BudgetExceeded, match="max_tokens=6 is not enough"):
        runtime.generate(asking(spec, max_tokens=6, on_budget="raise")).result(timeout=60)
    runtime.check()


@pytest.mark.parametrize("first", ["", "q"])
def test_a_complete_output_ends_where_no_budget_is_left_for_what_is_wanted(first: str) -> None:
    wanted = tuple((TOKENIZER.encode(letter)[0], 100.0) for letter in "abcdefghijklmnopqrst")
    spec = Regex(first + r"([a-z]{30})*")
    output = _run(asking(spec, max_tokens=5, logit_bias=wanted))
    assert (output.text, output.finish) == (first, Finish("forced_close"))
    with pytest.raises(lm.BudgetExceeded):
        _run(asking(spec, max_tokens=5, logit_bias=wanted, on_budget="raise"))


# ---------------------------------------------------------------- the distribution of draws


def _weights(scores: torch.Tensor, params: SamplingParams, allowed: list[int]) -> np.ndarray:
    """Probabilities of all tokens by the definitions of temperature and truncation."""
    values = np.full(len(scores), -np.inf)
    values[allowed] = scores.numpy().astype(np.float64)[allowed] / params.temperature
    order = np.argsort(-values, kind="stable")
    if params.top_k > 0:
        values[order[params.top_k :]] = -np.inf
    probs = np.exp(values - values.max())
    probs /= probs.sum()
    before = np.cumsum(probs[order]) - probs[order]
    probs[order[before >= params.top_p]] = 0
    probs[probs < params.min_p * probs.max()] = 0
    return probs / probs.sum()


def _distribution(spec: Spec, prompt: list[int], params: SamplingParams) -> dict[str, float]:
    """Probability of every output, by following all of its tokens."""
    found: Counter[str] = Counter()
    todo: list[tuple[list[int], float]] = [([], 1.0)]
    while todo:
        ids, chance = todo.pop()
        matcher = grammar(spec).matcher()
        assert matcher.accept_tokens(ids) == len(ids)
        text = TOKENIZER.decode(ids)
        if matcher.is_complete():
            found[text] += chance
            continue
        forced = matcher.forced_tokens()
        if forced:
            todo.append((ids + forced, chance))
            continue
        possible = legal(matcher)
        everything = list(range(TOKENIZER.vocab_size))
        scores = oracle.logits(MODEL, prompt + ids)[-1]
        probs = _weights(scores, params, everything if matcher.is_accepting() else possible)
        for token in np.flatnonzero(probs):
            if int(token) in possible:
                todo.append(([*ids, int(token)], chance * probs[token]))
            else:
                found[text] += chance * probs[token]
    return dict(found)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.6},
        {"temperature": 1.5, "top_k": 2},
        {"temperature": 1.0, "top_p": 0.6},
        {"temperature": 1.2, "min_p": 0.3},
        {"temperature": 1.0, "top_k": 3, "top_p": 0.8, "min_p": 0.1},
    ],
    ids=str,
)
def test_draws_follow_the_distribution_over_legal_tokens(
    runtime: Runtime, params: dict[str, float]
) -> None:
    spec, count = Regex(r"(the|th|hello|he)( user| world)?|[xyz]{1,2}"), 600
    one = asking(spec, "the user ", max_tokens=16, **params)
    expected = _distribution(spec, TOKENIZER.encode("the user "), one.params)
    assert sum(expected.values()) == pytest.approx(1)
    generations = [runtime.generate(replace(one, draw_key=7 * key)) for key in range(count)]
    seen = Counter(generation.result(timeout=120).text for generation in generations)
    assert set(seen) <= set(expected)
    likely = [text for text, chance in expected.items() if chance * count >= 5]
    rest = 1 - sum(expected[text] for text in likely)
    wanted = [expected[text] * count for text in likely] + [rest * count]
    counts = [seen[text] for text in likely] + [sum(seen[t] for t in seen if t not in likely)]
    if rest * count < 1e-6:
        wanted, counts = wanted[:-1], counts[:-1]
    assert len(wanted) > 1 or counts == [count]
    wanted = [value * sum(counts) / sum(wanted) for value in wanted]
    assert chisquare(counts, wanted).pvalue > 1e-4 if len(wanted) > 1 else True


# ---------------------------------------------------------------- where outputs end


def test_an_open_output_ends_where_the_model_leaves_it(runtime: Runtime) -> None:
    spec = Regex(r"[a-z]*")
    for key in range(20):
        one = asking(spec, key=key, max_tokens=200)
        output = runtime.generate(one).result(timeout=60)
        if output.finish.reason != "complete":
            continue
        *kept, last = output.ids
        assert TOKENIZER.decode(kept) == output.text
        assert not re.fullmatch(r"[a-z]+", TOKENIZER.decode([last]))
        assert output.history == () or output.history[-1].ids == tuple(kept)  # type: ignore[union-attr]


def test_stops_act_where_the_output_is_complete_and_are_content_elsewhere() -> None:
    one = asking(Regex(r"the user and [a-z,]{2}, world!?"), temperature=0, stop=("and", ","))
    output = _run(one)
    assert output.finish.reason in ("complete", "forced_close")
    assert re.fullmatch(r"the user and [a-z,]{2}, world!?", output.text)
    ends = asking(Regex(r"(the user,)+ world|(the user,)+"), temperature=0, stop=("the user,the",))
    output = _run(ends)
    assert output.text in ("the user,", "the user, world") or output.finish.reason != "stop"
    inside = asking(Regex(r"(hello)?, world, the user!"), temperature=0, stop=(", wor",))
    output = _run(inside)  # the stop lies in a forced run, behind a complete (?) or open beginning
    assert output.text in ("hello, world, the user!", ", world, the user!")


def test_a_stop_inside_of_a_forced_run_cuts_it() -> None:
    (comma,) = TOKENIZER.encode(",")
    spec = Regex(r"hello(, world and the user)?")
    one = asking(spec, stop=(", world",), logit_bias=((comma, 100.0),))
    output = _run(one)
    assert (output.text, output.finish) == ("hello", Finish("stop", ", world"))
    assert TOKENIZER.decode(output.ids) == "hello, world"
    assert output.usage.forced_tokens == len(output.ids) - 1
    inside = replace(one, params=replace(one.params, stop=("world",)))
    assert _run(inside).text == "hello, world and the user"  # there it is content


def test_a_stop_token_ends_a_complete_output_only() -> None:
    comma = TOKENIZER.encode(",")[0]
    spec = Regex(r"a,[b-d]+(,[b-d]+)*")
    reasons = set()
    for key in range(60):
        output = _run(asking(spec, key=key, stop_token_ids=(comma,), max_tokens=8))
        assert re.fullmatch(spec.pattern, output.text)
        reasons.add(output.finish.reason)
        if output.finish.reason == "stop":
            assert output.finish.stop == comma
            assert output.text.count(",") == 1
    assert "complete" in reasons


@pytest.mark.parametrize("name", ["min_tokens", "ignore_eos", "stop_regex", "heal"])
def test_what_cannot_act_beside_a_constraint_is_refused(name: str) -> None:
    value = {"min_tokens": 2, "ignore_eos": True, "stop_regex": ("a+",), "heal": True}[name]
    with pytest.raises(lm.ProgramError, match=f"{name} cannot act beside a constraint"):
        asking(SPECS[0], **{name: value})


def test_an_output_that_may_be_empty_alone_is_complete_at_once(runtime: Runtime) -> None:
    output = runtime.generate(asking(Regex(r"a{0}"))).result(timeout=60)
    assert (output.text, output.ids, output.finish) == ("", (), Finish("complete"))
    nothing = runtime.generate(asking(Regex(r"a*"), max_tokens=0)).result(timeout=60)
    assert (nothing.text, nothing.finish) == ("", Finish("forced_close"))


# ---------------------------------------------------------------- what is told


def test_provenance_tells_how_each_token_came_about(runtime: Runtime) -> None:
    spec = Regex(r"(the|hello) world(, hello)*!")
    one = asking(spec, temperature=0, provenance=True, probs=True)
    output = runtime.generate(one).result(timeout=60)
    matcher = grammar(spec).matcher()
    prompt = TOKENIZER.encode("the user and ")
    for index, (token, told) in enumerate(zip(output.ids, output.provenance, strict=True)):
        scores = oracle.logits(MODEL, [*prompt, *output.ids[:index]])[-1]
        probs = scores.softmax(-1)
        possible = legal(matcher)
        if told.forced:
            assert told.masked == pytest.approx(1 - float(probs[token]), abs=1e-4)
            assert (told.legal, output.probs[index]) == (1, 1.0)
        else:
            assert told.legal == len(possible)
            assert told.masked == pytest.approx(1 - float(probs[possible].sum()), abs=1e-4)
        assert told.best == int(probs.argmax())
        assert matcher.accept_token(token)
    assert any(told.forced for told in output.provenance)
    assert not all(told.forced for told in output.provenance)


def test_logprobs_are_the_models_and_probs_those_of_what_could_be_drawn(runtime: Runtime) -> None:
    one = asking(Regex(r"[xy]z"), temperature=1.0, probs=True)
    output = runtime.generate(one).result(timeout=60)
    scores = oracle.logits(MODEL, TOKENIZER.encode("the user and "))[-1]
    x, y = TOKENIZER.encode("x")[0], TOKENIZER.encode("y")[0]
    normal = float(log_normalisers(scores[None])[0])
    assert output.logprobs[0] == pytest.approx(float(scores[output.ids[0]]) - normal, abs=1e-3)
    share = math.exp(scores[output.ids[0]]) / (math.exp(scores[x]) + math.exp(scores[y]))
    assert output.probs[0] == pytest.approx(share, rel=1e-3)


# ---------------------------------------------------------------- failures


def test_a_processor_changes_what_is_drawn_and_not_what_is_reported(runtime: Runtime) -> None:
    wanted = TOKENIZER.encode("w")[0]
    seen: list[tuple[int, ...]] = []

    def only_w(ids: tuple[int, ...], row: torch.Tensor) -> None:
        seen.append(ids)
        row[:wanted] = row[wanted + 1 :] = float("-inf")

    prompt = Prompt().append(Text("the user "))
    free = runtime.generate(Request(prompt, SamplingParams(max_tokens=3), processor=only_w))
    output = free.result(timeout=60)
    assert output.text == "www"
    assert seen == [(), (wanted,), (wanted, wanted)]
    assert all(logprob < 0 for logprob in output.logprobs)


def test_a_processor_runs_for_each_token_where_others_are_drafted() -> None:
    seen: list[tuple[int, ...]] = []
    one = Request(
        Prompt().append(Text("the user ")),
        SamplingParams(max_tokens=12, temperature=0, ignore_eos=True),
    )
    with Runtime.over(MODEL, TOKENIZER, TEMPLATE, kv_tokens=600, speculative="ngram") as rt:
        rt.generate(one).result(timeout=60)
        drafted = rt.generate(one).result(timeout=60)
        assert rt.stats().accepted_tokens
        alone = rt.generate(replace(one, processor=lambda ids, row: seen.append(ids)))
        assert alone.result(timeout=60).ids == drafted.ids
    assert seen == [drafted.ids[:count] for count in range(12)]


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (lambda ids, row: 1 / 0, "logits_processor raised ZeroDivisionError: division by zero."),
        (lambda ids, row: sys.exit(), "logits_processor raised SystemExit."),
        (lambda ids, row: row[:3], r"returned \(3,\): return a tensor of 286"),
        (lambda ids, row: 5, "returned int"),
        (lambda ids, row: row * float("nan"), "returned NaN"),
    ],
)
def test_a_broken_processor_fails_its_own_request_alone(
    runtime: Runtime, processor: object, message: str
) -> None:
    prompt = Prompt().append(Text("the user "))
    good = asking(SPECS[0])
    other = runtime.generate(good)
    bad = runtime.generate(Request(prompt, SamplingParams(max_tokens=3), processor=processor))  # type: ignore[arg-type]
    with pytest.raises(lm.ProgramError, match=message):
        bad.result(timeout=60)
    checked(good, other.result(timeout=60))
    runtime.check()


def test_a_processor_that_leaves_nothing_legal_is_a_dead_end(runtime: Runtime) -> None:
    def no_letters(ids: tuple[int, ...], row: torch.Tensor) -> torch.Tensor:
        row[TOKENIZER.encode("a")[0]] = float("-inf")
        return row

    one = replace(asking(Regex("[a]|bb[a]")), processor=no_letters)
    ids = TOKENIZER.encode("xy")
    barred = replace(
        asking(Regex(r"a[xy]")),
        processor=lambda _, row: row.index_fill_(0, torch.tensor(ids), -math.inf),
    )
    nothing = replace(asking(SPECS[0]), processor=lambda ids, row: row.fill_(-math.inf))
    with pytest.raises(lm.ProgramError, match="left no token at all"):
        runtime.generate(nothing).result(timeout=60)
    assert runtime.generate(one).result(timeout=60).text == "bba"  # the last a is forced
    with pytest.raises(lm.GrammarDeadEnd, match="although the constraint forbids it"):
        runtime.generate(barred).result(timeout=60)
    runtime.check()


def test_a_constraint_that_is_none_fails_its_request_and_the_engine_goes_on(
    runtime: Runtime,
) -> None:
    for spec in (Regex("(a"), Regex(r"(a)\1"), Ebnf("root ::= other"), Regex("[^\\s\\S]")):
        with pytest.raises(lm.ConstraintError):
            runtime.generate(asking(spec)).result(timeout=60)
    checked(asking(SPECS[0]), runtime.generate(asking(SPECS[0])).result(timeout=60))


def test_a_grammar_that_outgrows_its_limits_fails_its_request_and_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = Regex(r"(a|b)*a(a|b){12}c")
    with Runtime.over(MODEL, TOKENIZER, TEMPLATE, kv_tokens=600) as rt:
        before = rt.grammar(spec).result(timeout=60)
        monkeypatch.setattr("lmlang.grammar.machine.MAX_STATES", 20)
        with pytest.raises(lm.GrammarTooLarge):
            rt.generate(asking(spec, max_tokens=60)).result(timeout=60)
        monkeypatch.undo()
        assert rt.grammar(spec).result(timeout=60) is not before
        output = rt.generate(asking(spec, max_tokens=60)).result(timeout=60)
        assert re.fullmatch(spec.pattern, output.text)
        rt.check()


def test_cancelling_and_closing_while_a_constraint_compiles() -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def slow(spec: Spec, vocabulary: Vocabulary) -> Grammar:
        begun.set()
        goes_on.wait(60)
        return compile_spec(spec, vocabulary)

    rt = Runtime.over(MODEL, TOKENIZER, TEMPLATE, kv_tokens=300)
    rt._compiler._service.build = slow
    first = rt.generate(asking(Regex("[a-c]x")))
    assert begun.wait(60)
    others_go_on = rt.generate(Request(Prompt().append(Text("the")), SamplingParams(max_tokens=4)))
    assert others_go_on.result(timeout=60).ids
    first.cancel()
    with pytest.raises(lm.Cancelled):
        first.result(timeout=60)
    late = rt.generate(asking(Regex("[a-c]y")))
    closing = threading.Thread(target=rt.close)
    closing.start()
    goes_on.set()
    closing.join(60)
    with pytest.raises(lm.BackendError, match="closed"):
        late.result(timeout=60)
    with pytest.raises(lm.BackendError, match="closed"):
        rt.generate(asking(SPECS[0])).result(timeout=60)


def test_the_budget_closes_where_the_only_token_left_does_not_fit(runtime: Runtime) -> None:
    (only,) = TOKENIZER.encode("b")

    def only_b(ids: tuple[int, ...], row: torch.Tensor) -> None:
        row[:only] = row[only + 1 :] = float("-inf")

    one = replace(asking(Regex(r"a(b[b]{9}c|e)"), max_tokens=3), processor=only_b)
    output = runtime.generate(one).result(timeout=60)
    assert (output.text, output.finish) == ("ae", Finish("forced_close"))
    with pytest.raises(lm.BudgetExceeded):
        runtime.generate(replace(one, on_budget="raise")).result(timeout=60)
    runtime.check()


def test_cancelling_at_every_step_leaves_neighbours_and_slots_as_they_are() -> None:
    specs = (SPECS[0], SPECS[3], SPECS[4], SPECS[8])
    texts = ("the user and ", "the user and the world ", "hello ", "the user and ")
    asked = [
        asking(spec, text, key, max_tokens=20)
        for key, (spec, text) in enumerate(zip(specs, texts, strict=True))
    ]
    steps = 1
    for cancelled_at in range(40):
        if cancelled_at > steps:
            break
        engine = Stepped(300, 9)
        generations = [begin(engine, one) for one in asked]
        victim = generations[cancelled_at % len(generations)]
        if cancelled_at == 0:
            engine.loop.drop(victim)

        def between(step: int) -> None:
            if step == cancelled_at and not victim.done():  # noqa: B023 - called in this round
                engine.loop.drop(victim)  # noqa: B023

        steps = engine.run(between)
        for one, generation in zip(asked, generations, strict=True):
            if generation.done():
                checked(one, generation.result(timeout=0))
            else:
                assert generation is victim
        engine.loop.cache.flush()
        assert engine.loop.stats().kv_tokens_used == 0
