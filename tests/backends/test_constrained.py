"""Backends of characters under a constraint: what comes out is allowed, fits, or is an error."""

import itertools
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.backends.constrained import automaton_of, sample
from lmlang.backends.cut import END
from lmlang.errors import BudgetExceeded, GrammarDeadEnd
from lmlang.grammar.spec import Choice, Ebnf, Either, JsonSchema, Regex
from lmlang.protocol import Finish, Prompt, Request, SamplingParams, Text, Tokens
from lmlang.testing import RandomBackend, ScriptedBackend

PROMPT = Prompt.of(Text("x"))
PATTERNS = ["a*b", "[ab]{2,4}", "(a|ab)(c|bcd)", "é+a?", "a(b(c)?)?", "(ab|cd)+"]
SPECS = [
    *map(Regex, PATTERNS),
    JsonSchema('{"type": "array", "items": {"enum": [1, "é"]}}'),
    Choice(("yes", "yes, sir", "no")),
    Ebnf('root ::= "(" root ")" | "x"'),
    Either((Regex("a+"), Choice(("b",)))),
]


def shortest(pattern):
    """Characters of the shortest text that a pattern matches."""
    texts = (("".join(t) for t in itertools.product("abcdé", repeat=n)) for n in range(9))
    return next(n for n, of_n in enumerate(texts) if any(re.fullmatch(pattern, t) for t in of_n))


def asked(spec, answers, **given):
    params = {k: given.pop(k) for k in ("max_tokens", "stop", "stop_token_ids") if k in given}
    request = Request(PROMPT, SamplingParams(**params), constraint=spec, **given)
    return ScriptedBackend(answers).generate(request)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(PATTERNS),
    st.text("abcdé", max_size=8),
    st.integers(0, 8),
    st.sampled_from(["close", "raise"]),
)
def test_an_output_is_allowed_and_fits_or_there_is_an_error(pattern, answer, most, on_budget):
    generation = asked(Regex(pattern), [answer], max_tokens=most, on_budget=on_budget)
    allowed = [n for n in range(len(answer) + 1) if re.fullmatch(pattern, answer[:n])]
    try:
        output = generation.result(0)
    except BudgetExceeded:
        assert on_budget == "raise" or most < shortest(pattern)
        return
    except GrammarDeadEnd:
        return
    assert re.fullmatch(pattern, output.text)
    assert len(output.text) <= most
    assert output.ids in (tuple(map(ord, output.text)), (*map(ord, output.text), END))
    assert output.usage.forced_closes == (output.finish.reason == "forced_close")
    if output.finish.reason == "complete":
        assert answer.startswith(output.text)
        assert len(output.text) in allowed
    else:
        assert on_budget == "close"
    assert "".join(event.text for event in generation.events()) == output.text
    text = output.text
    assert output.history == ((Tokens(tuple(map(ord, text)), text),) if text else ())


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_random_answers_are_allowed(spec):
    automaton = automaton_of(spec)
    for seed in range(20):
        drawn = random.Random(seed)
        text = sample(spec, (drawn.randrange(256) for _ in itertools.count()))
        state = automaton.run(automaton.start, text.encode())
        assert state is not None
        assert state.accepting
        for backend in (RandomBackend(seed), ScriptedBackend()):
            request = Request(PROMPT, constraint=spec, draw_key=seed)
            output = backend.generate(request).result(0)
            state = automaton.run(automaton.start, output.text.encode())
            assert state is not None
            assert state.accepting
            assert output == backend.generate(request).result(0)


def test_what_cannot_continue_a_complete_output_ends_it():
    output = asked(Regex("[0-9]+"), ["42 legs"]).result(0)
    assert (output.text, output.finish) == ("42", Finish("complete"))
    assert output.ids == (52, 50, END)
    assert asked(Regex("ab"), ["ab and more"]).result(0).ids == (97, 98, END)
    assert asked(Regex("ab"), ["ab"]).result(0).ids == (97, 98)


def test_stops_and_stop_tokens_act_where_the_output_is_complete():
    spec = Regex("[a-c]*c")
    output = asked(spec, ["acbbc"], stop=("b",)).result(0)
    assert (output.text, output.finish) == ("ac", Finish("stop", "b"))
    output = asked(spec, ["abcac"], stop_token_ids=(97,)).result(0)
    assert (output.text, output.finish, output.ids) == ("abc", Finish("stop", 97), (97, 98, 99, 97))


def test_completions_are_counted_in_characters():
    spec = JsonSchema('{"enum": [["éé"], ["é"]]}')
    output = asked(spec, ['["éé"]'], max_tokens=6).result(0)
    assert (output.text, output.finish) == ('["éé"]', Finish("complete"))
    output = asked(spec, ['["éé"]'], max_tokens=5).result(0)
    assert (output.text, output.finish) == ('["é"]', Finish("forced_close"))
    with pytest.raises(BudgetExceeded, match="has 5 tokens, and max_tokens is 4"):
        asked(spec, ['["é"]'], max_tokens=4).result(0)
