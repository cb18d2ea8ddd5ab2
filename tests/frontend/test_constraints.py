"""Typed and constrained generations: what they give, what they refuse, what is known of them."""

import datetime as dt
import enum
import json
import re
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

import pydantic
import pytest

import lmlang as lm
from lmlang.backends.constrained import automaton_of
from lmlang.frontend import ir
from lmlang.frontend.captures import Capture, captures
from lmlang.frontend.verify import verify
from lmlang.grammar.spec import Choice, Either, JsonSchema, Regex
from lmlang.testing import RandomBackend, ScriptedBackend


@dataclass
class Person:
    name: str
    age: int


class Span(pydantic.BaseModel):
    start: int
    end: int

    @pydantic.model_validator(mode="after")
    def ordered(self):
        if self.start > self.end:
            raise ValueError("it ends before it starts")
        return self


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


def run(expression, *answers, **keywords):
    backend = ScriptedBackend(list(answers)) if answers else RandomBackend(3)

    @lm.function
    def program(s):
        s += "Say: "
        s += expression

    return program(backend=backend, **keywords)


# ---------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("tp", "answer", "value", "text"),
    [
        (int, "42 legs", 42, "42"),
        (float, "2.50.", 2.5, "2.50"),
        (bool, "True", True, "True"),
        (type(None), "None", None, "None"),
        (str, '"a\\n"', "a\n", '"a\\n"'),
        (Color, "blue", Color.BLUE, "blue"),
        (Literal["a", 7], "7", 7, "7"),
        (dt.date, "2024-02-29, a leap day", dt.date(2024, 2, 29), "2024-02-29"),
        (Decimal, "1.10", Decimal("1.1"), "1.10"),
        (int | None, "None", None, "None"),
        (Person, '{"name": "A", "age": 3}', Person("A", 3), '{"name": "A", "age": 3}'),
        ({"type": "array"}, "[1, 2]", [1, 2], "[1, 2]"),
    ],
)
@pytest.mark.parametrize("keyword", ["type", "dtype"])
def test_the_value_is_an_instance_and_the_text_is_as_it_was_written(
    keyword, tp, answer, value, text
):
    state = run(lm.gen("x", **{keyword: tp}), answer)
    assert state["x"] == value
    assert type(state["x"]) is type(value)
    assert state.text_of("x") == text
    assert state.text() == f"Say: {text}"
    assert "".join(state.text_iter("x")) == text
    assert state.meta("x").finish == "complete"
    assert state.meta("x").text == text


@pytest.mark.parametrize(
    "keyword",
    [
        {"regex": r"\d{2}:\d{2}"},
        {"json_schema": {"type": "integer", "minimum": 3}},
        {"json_schema": '{"enum": ["a", 1]}'},
        {"ebnf": 'root ::= "a"+ "."'},
    ],
    ids=str,
)
def test_a_constrained_text_is_a_string_that_the_constraint_allows(keyword):
    for seed in range(5):
        state = run(lm.gen("x", **keyword), seed=seed)
        constraint = state.meta("x").constraint
        automaton = automaton_of(constraint)
        assert automaton.run(automaton.start, state["x"].encode()).accepting
        assert state["x"] == state.text_of("x") == state.meta("x").text


def test_several_samples_have_a_value_and_a_text_each():
    state = run(lm.gen("x", type=Person, n=3), seed=1)
    metas = state.meta("x").samples
    assert all(isinstance(value, Person) for value in state["x"])
    assert [json.loads(meta.text) for meta in metas] == [vars(value) for value in state["x"]]
    assert state.text() == f"Say: {metas[0].text}"
    (operation,) = state.run_log().operations
    assert [sample.text for sample in operation.samples] == [meta.text for meta in metas]
    assert lm.RunLog.from_json(state.run_log().to_json()) == state.run_log()


@pytest.mark.parametrize("style", ["line", "compact", 2])
def test_json_has_the_style_that_was_asked_for(style):
    layout = {"line": {}, "compact": {"separators": (",", ":")}, 2: {"indent": 2}}[style]
    for expression in (
        lm.gen("x", type=list[Person], json_style=style),
        lm.gen(
            "x", json_schema={"type": "array", "items": {"enum": [1, {"a": 2}]}}, json_style=style
        ),
    ):
        text = run(expression, seed=5).text_of("x")
        assert text == json.dumps(json.loads(text), ensure_ascii=False, **layout)


def test_values_are_there_for_forks_batches_and_async_programs():
    @lm.function
    async def child(s, i):
        s += str(i) + lm.gen("n", type=int)
        return await s.aget("n")

    states = child.run_batch([(i,) for i in range(4)], backend=RandomBackend(1))
    assert all(type(state.ret_value) is int for state in states)

    @lm.function
    def program(s):
        forks = s.fork(2)
        forks += lm.gen("n", type=int)
        forks.join()
        return sum(s["n"])

    assert type(program(backend=RandomBackend(1)).ret_value) is int


# ---------------------------------------------------------------------------------- errors


def test_a_value_that_validators_refuse_is_an_error_with_its_place():
    backend = ScriptedBackend(['{"start": 3, "end": 1}'])

    @lm.function
    def program(s):
        s += "Span: " + lm.gen("span", type=Span, tries=1)

    (state,) = program.run_batch([()], backend=backend, on_error="return")
    with pytest.raises(lm.ConstraintError, match="it ends before it starts") as caught:
        state["span"]
    context = caught.value.context
    assert context.program == "program"
    assert "test_constraints.py:" in context.source
    assert state.usage().generated_tokens == 22
    (operation,) = state.run_log().operations
    assert operation.status == "failed"
    assert operation.text == '{"start": 3, "end": 1}'


def test_an_output_that_was_cut_is_an_error():
    class Cutting(ScriptedBackend):
        def generate(self, request):
            return super().generate(replace(request, constraint=None, on_budget="close"))

    for expression in (
        lm.gen("x", type=int, max_tokens=2),
        lm.gen("x", regex=r"\d+", max_tokens=2),
    ):

        @lm.function
        def program(s, expression=expression):
            s += "x" + expression

        with pytest.raises(lm.BudgetExceeded, match="'x' was cut at 2 tokens, before"):
            program(backend=Cutting(["123456"]))


def test_a_schema_whose_parts_repeat_beyond_measure_is_refused():
    schema = {"type": "string"}
    for _ in range(40):
        schema = {"anyOf": [schema, schema]}
    with pytest.raises(lm.ConstraintError, match="comes to 4,398,046,511,102 values"):
        JsonSchema.of(schema)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"regex": "a", "type": int}, "gen: regex cannot act beside type"),
        ({"ebnf": 'root ::= "a"', "json_schema": {}}, "gen: ebnf cannot act beside json_schema"),
        ({"dtype": int, "type": int}, "gen: dtype cannot act beside type"),
        ({"regex": ""}, "a regular expression is empty"),
        ({"regex": "(a|b)\\1"}, "at character 5: a back-reference"),
        ({"regex": 3}, "gen: regex is a text, and this is an int"),
        ({"regex": re.compile("a")}, r"this is a Pattern: give its \.pattern, with its flags"),
        (
            {"type": re.compile("a")},
            r"re\.compile\('a'\), which is no type but a value: write regex=",
        ),
        ({"type": 5}, r"5, which is no type but a value: write int, or Literal\[5\] for this"),
        ({"type": list[0.5]}, "0.5, which is no type but a value: write float"),
        ({"ebnf": "root ::= ("}, "line 1"),
        ({"ebnf": ""}, "a grammar is empty"),
        ({"json_schema": 3}, "a JSON schema is a dict, a bool or JSON text, not an int"),
        ({"json_schema": Person}, "json_schema=Person is a class: write type=Person"),
        ({"json_schema": {"enum": {1, 2}}}, "this schema is no JSON"),
        ({"type": int, "json_style": "wide"}, "json_style='wide': give"),
        ({"regex": "a", "json_style": "line"}, "json_style='line' cannot act without type"),
        ({"json_style": "compact"}, "json_style='compact' cannot act without type"),
        ({"on_budget": "raise"}, "on_budget cannot act without a constraint"),
        ({"type": int, "on_budget": "cut"}, 'on_budget=\'cut\': give "close" or "raise"'),
        ({"type": int, "min_tokens": 2}, "min_tokens cannot act beside a constraint"),
        ({"type": int, "ignore_eos": True}, "ignore_eos cannot act beside a constraint"),
        ({"type": int, "stop_regex": "a"}, "stop_regex cannot act beside a constraint"),
        ({"type": int, "include_stop": True}, "include_stop cannot act beside a constraint"),
        ({"type": int, "heal": True}, "heal cannot act beside a constraint"),
        ({"type": bytes}, "of the type bytes"),
        ({"think": -1}, "think=-1 is out of range"),
        ({"think": "yes"}, "think='yes' must be an integer"),
        ({"provenance": 1}, "provenance=1 must be True or False"),
        ({"logits_processor": 1}, "logits_processor is an int: give a function"),
    ],
    ids=str,
)
def test_keywords_that_cannot_act_raise_where_they_are_written(keywords, message):
    with pytest.raises((lm.ProgramError, lm.ConstraintError), match=message):
        lm.gen("x", **keywords)


TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}},
}


@pytest.mark.parametrize("keyword", ["json_schema", "type"])
@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (TOOL, "['function']['parameters']"),
        (TOOL["function"], "['parameters']"),
        ({"name": "f", "input_schema": {"type": "object"}}, "['input_schema']"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, "['json_schema']['schema']"),
        ({"name": "f", "strict": True, "schema": {"type": "object"}}, "['schema']"),
    ],
)
def test_what_only_holds_a_schema_is_not_taken_for_one_that_allows_anything(keyword, schema, place):
    with pytest.raises(lm.ProgramError, match=re.escape(f"give that part, {keyword}=…{place}.")):
        lm.gen("x", **{keyword: schema})


@pytest.mark.parametrize(
    "schema", [{}, {"title": "schema"}, {"properties": {}, "schema": {}}, {"parameters": 1}, TOOL]
)
def test_unknown_keywords_of_a_schema_say_nothing(schema):
    schema = schema["function"]["parameters"] if schema is TOOL else schema
    lm.gen("x", json_schema=schema)


@pytest.mark.parametrize(
    ("word", "keyword", "hint"),
    [
        (lm.gen, "schema", " (did you mean json_schema?)"),
        (lm.gen, "pattern", " (did you mean regex?)"),
        (lm.gen, "response_model", " (did you mean type?)"),
        (lm.gen, "max_new_tokens", " (did you mean max_tokens?)"),
        (lm.gen, "temprature", " (did you mean temperature?)"),
        (lm.gen, "nothing_like_it", ""),
        (lm.gen_int, "schema", ""),
        (lm.gen_string, "max_token", " (did you mean max_tokens?)"),
        (lm.select, "options", " (did you mean choices?)"),
    ],
)
def test_a_keyword_that_there_is_not_is_told_with_the_one_that_was_meant(word, keyword, hint):
    said = f"{word.__name__}(): got an unexpected keyword argument {keyword!r}{hint}."
    with pytest.raises(lm.ProgramTypeError, match=f"^{re.escape(said)}$"):
        word("x", **{keyword: 1})


def test_what_a_run_asks_for_cannot_act_beside_a_constraint_either():
    for keyword in ("ignore_eos", "include_stop"):
        with pytest.raises(lm.ProgramError, match=f"{keyword} cannot act beside a constraint"):
            run(lm.gen("x", type=int), **{keyword: True})


def test_reasoning_is_cut_out_of_free_text_only():
    for expression in (lm.gen("x", type=int), lm.gen("x", think=5)):
        with pytest.raises(lm.ProgramError, match="think=N of gen lets the model reason"):
            lm.separate_reasoning(expression, model_type="qwen3")


def test_a_function_of_logits_needs_logits():
    with pytest.raises(lm.ProgramError, match="this backend has no logits"):
        run(lm.gen("x", logits_processor=lambda ids, row: row))


# ------------------------------------------------------------------------ ends and budgets


def test_stops_act_only_where_the_output_is_complete():
    expression = lm.gen("x", regex=r"[a-z ,]*!", stop=[",", "!"])
    assert run(expression, "one, two!")["x"] == "one, two!"
    state = run(lm.gen("x", regex="[a-z,]+", stop=","), "one,two")
    assert (state["x"], state.meta("x").finish, state.meta("x").stop) == ("one", "stop", ",")


def test_an_output_is_closed_to_fit_or_raises():
    expression = lm.gen("x", type=list[int], max_tokens=8)
    state = run(expression, "[1, 2, 3, 4]")
    assert (state["x"], state.meta("x").finish) == ([1, 2], "forced_close")
    assert state.usage().forced_closes == 1
    assert state.get_meta_info("x")["finish_reason"] == {"type": "length", "length": 6}
    with pytest.raises(lm.BudgetExceeded, match='on_budget="close"'):
        run(lm.gen("x", type=list[int], max_tokens=8, on_budget="raise"), "[1, 2, 3, 4]")
    for most in (0, 1):
        with pytest.raises(lm.BudgetExceeded, match=f"has 2 tokens, and max_tokens is {most}"):
            run(lm.gen("x", type=list[int], max_tokens=most), "[]")


def test_a_script_that_breaks_its_constraint_is_an_error():
    with pytest.raises(lm.GrammarDeadEnd, match="'4x' breaks the constraint at character 1"):
        run(lm.gen("x", regex=r"\d\d"), "4x")
    with pytest.raises(lm.GrammarDeadEnd, match="'4' ends before the constraint is met"):
        run(lm.gen("x", regex=r"\d\d"), "4")


def test_what_is_known_of_a_constrained_output():
    state = run(lm.gen("x", regex="ab[cd]", provenance=True), "abd")
    meta = state.meta("x")
    assert (meta.generated_tokens, meta.forced_tokens, meta.sampled_tokens) == (3, 2, 1)
    assert [each.forced for each in meta.provenance] == [True, True, False]
    assert meta.constraint == Regex("ab[cd]")
    assert state.usage().forced_tokens == 2
    assert state.get_meta_info("x")["finish_reason"] == {"type": "stop", "matched": None}


# -------------------------------------------------------------------------------- captures


def test_named_groups_are_captured():
    spec = Either((Choice(("none",)), Regex(r"(?P<h>\d\d):(?P<m>\d\d)(?P<s>:\d\d)?")))
    assert captures(spec, "12:30") == {"h": Capture("12", 0, 2), "m": Capture("30", 3, 5)}
    assert captures(spec, "none") == {}
    assert captures(None, "12:30") == {}


@pytest.mark.parametrize("indent", [None, 2])
def test_leaves_of_json_are_captured_by_their_pointers(indent):
    value = {"a": [1, {"b/~": 'x\\"]'}, []], "é\n": None, "": {"c": {}}, "d": [[True]]}
    text = json.dumps(value, indent=indent)
    found = captures(JsonSchema("{}"), text)
    assert {pointer: json.loads(part.text) for pointer, part in found.items()} == {
        "/a/0": 1, "/a/1/b~1~0": 'x\\"]', "/a/2": [], "/é\n": None, "//c": {}, "/d/0/0": True,
    }  # fmt: skip
    for part in found.values():
        assert text[part.start : part.end] == part.text
    assert captures(JsonSchema("{}"), "7") == {"": Capture("7", 0, 1)}
    deep = "[" * 20_000 + "]" * 20_000
    assert next(iter(captures(JsonSchema("{}"), deep).values())).text == "[]"


# -------------------------------------------------------------------------------- thinking


def test_thoughts_are_read_by_the_model_and_seen_by_nobody():
    backend = ScriptedBackend(["Hm, four.</think>", "4", "done"])

    @lm.function
    def program(s):
        s += lm.user("Legs?")
        s += lm.assistant("A cat has " + lm.gen("n", type=int, think=30) + lm.gen("rest"))

    state = program(backend=backend)
    assert (state["n"], state["rest"]) == (4, "done")
    assert state.text() == "<user>Legs?</user><assistant>A cat has 4done</assistant>"
    assert state.messages()[1]["content"] == "A cat has 4done"
    assert state.meta("n").thought == "Hm, four."
    assert [state.meta("n").text, state.meta("n").generated_tokens] == ["4", 17 + 2]
    asked = [backend.render(request.prompt) for request in backend.requests]
    begun = "<user>Legs?</user><assistant>A cat has "
    assert asked[:2] == [begun + "<think>\n", begun + "<think>\nHm, four.\n</think>\n\n"]
    assert [request.params.max_tokens for request in backend.requests] == [30, 128, 128]
    assert state.usage().generated_tokens == 17 + 2 + 5
    assert "".join(event.text for event in program.stream(backend=ScriptedBackend(
        ["Hm.</think>", "4", "done"], chunk=1))) == state.text()  # fmt: skip


def test_thoughts_stay_in_the_tokens():
    @lm.function
    def program(s):
        s += "n: " + lm.gen("n", type=int, think=5)
        s += lm.gen("rest")

    backend = ScriptedBackend(["thought</think>", "4", "done"])
    prompt = program(backend=backend)._state.prompt
    ids = [token for segment in prompt.segments() for token in getattr(segment, "ids", ())]
    spelled = "".join(map(chr, ids))
    assert spelled == "<think>\nthoug\n</think>\n\n4done"


def test_each_sample_thinks_by_itself_and_errors_and_cancelling_arrive():
    state = run(lm.gen("x", type=bool, think=8, n=3), seed=4)
    thoughts = [meta.thought for meta in state.meta("x").samples]
    assert len(set(thoughts)) == 3
    assert all(type(value) is bool for value in state["x"])
    for fail_at in (0, 1):
        backend = ScriptedBackend(fail_at=fail_at)

        @lm.function
        def program(s):
            s += "x" + lm.gen("x", type=bool, think=8)

        with pytest.raises(lm.BackendError, match=f"call {fail_at} was scripted to fail"):
            program(backend=backend)
    waiting = ScriptedBackend(["a</think>", "True"], completes="when released")
    begun = program(backend=waiting, stream=True)
    waiting.wait_for(1)
    waiting.release()
    waiting.wait_for(1)
    begun.cancel()
    with pytest.raises(lm.Cancelled):
        begun["x"]
    assert waiting.pending() == []


def test_thinking_is_within_what_a_program_may_generate():
    backend = ScriptedBackend(lambda prompt: "thinking on and on" if "</" not in prompt else "True")

    @lm.function
    def program(s):
        s += "x" + lm.gen("x", type=bool, think=50, max_tokens=6)

    program(backend=backend, max_program_tokens=10)
    assert [request.params.max_tokens for request in backend.requests] == [4, 6]


# ------------------------------------------------------------------------- before and as IR


def test_a_trace_knows_that_a_typed_value_is_no_text():
    @lm.function
    def program(s):
        s += "n: " + lm.gen("n", type=int)
        s += s.text_of("n")
        s += lm.gen("name", type=str)
        s += s["name"]
        if s["n"] > 3:
            s += "many"

    traced = program.trace()
    kinds = [type(node) for node in traced.nodes]
    assert kinds == [ir.Start, ir.Text, ir.Gen, ir.Ref, ir.Gen, ir.Ref]
    assert "'n' is not known before a run, and it is compared" in traced.stopped.reason
    for use in (lambda v: v + 1, lambda v: 1 + v, str, lambda v: f"{v}", lambda v: v.year, bool):

        @lm.function
        def using(s, use=use):
            s += lm.gen("n", type=int)
            use(s["n"])
            s += "more"

        assert using.trace().stopped is not None
        assert len(using.trace().nodes) == 2
    forked = lm.function(_forked).trace()
    assert "it is compared" in forked.stopped.reason


def _forked(s):
    forks = s.fork(2)
    forks += lm.gen("n", type=int, n=2)
    forks.join()
    if s["n"][1][0] == 3:
        s += "never"


def test_a_recording_has_specs_and_can_be_read_back():
    state = run(lm.gen("x", type=Person, on_budget="raise", think=3, provenance=True), seed=1)
    (node,) = [node for node in state.program().nodes if isinstance(node, ir.Gen)]
    assert isinstance(node.constraint, JsonSchema)
    assert (node.on_budget, node.think, node.provenance) == ("raise", 3, True)
    printed = lm.print_program(state.program())
    assert lm.parse_program(printed) == state.program()
    assert verify(state.program()) == state.program()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"constraint": Regex("a"), "min_tokens": 3}, "min_tokens cannot act beside a constraint"),
        ({"constraint": "a"}, "is no value of the type Spec"),
        ({"on_budget": "close"}, "on_budget cannot act without a constraint"),
        ({"constraint": Regex("a"), "on_budget": "cut"}, "on_budget='cut'"),
        ({"think": -1}, "think=-1 is out of range"),
        ({"think": 3, "reasoning": "qwen3"}, "separate_reasoning cannot act beside think"),
    ],
)
def test_verify_refuses_what_gen_would(fields, message):
    program = ir.Program("p", (ir.Start(), ir.Gen(0, 1, "x", **fields)))
    with pytest.raises(lm.ProgramError, match=message):
        verify(program)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("number(3)", "expected a constraint"),
        ('regex("")', "a constraint that can be .*is empty"),
        ('regex("a", "b")', "a constraint that can be"),
        ("choice()", "expected a text"),
        ('choice("a", "a")', "stands twice"),
        ('json_schema("{}", 9)', "json_style=9"),
        ('json_schema("{}", 2.5)', "expected"),
        ('either(either(regex("a")))', "expected a constraint"),
        ("either()", "expected a constraint"),
    ],
)
def test_texts_of_constraints_that_are_none_are_refused(text, message):
    program = f"program p()\n  %0 = start\n  %1 = gen %0 -> x [constraint={text}]\n"
    with pytest.raises(lm.ProgramError, match=message):
        lm.parse_program(program)
