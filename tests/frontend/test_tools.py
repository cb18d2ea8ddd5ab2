"""Tools: functions that models call with arguments typed as theirs, and what comes of it."""

from __future__ import annotations

import asyncio
import enum
import functools
import json
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal, Optional, cast

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

import lmlang as lm
from lmlang.protocol.tools import FORMS
from lmlang.runtime.local import Runtime
from lmlang.testing import RandomBackend, ScriptedBackend
from tests.runtime.test_chat_tools import BARE, TAGGED
from tests.tiny import tiny_model


class Unit(enum.Enum):
    CELSIUS = "C"
    FAHRENHEIT = "F"


@dataclass
class Place:
    city: str
    country: Annotated[str, Field(pattern="^[A-Z]{2}$")]


class Span(BaseModel):
    start: int
    end: Annotated[int, Field(ge=0, le=9)]


def add(a: int, b: int = 1) -> int:
    """Adds two numbers.

    Both are whole.

    Args:
        a: The one,
            on two lines.
        b (int): The other.

    Returns:
        The sum.
    """
    return a + b


def weather(place: Place, day: date, unit: Unit = Unit.CELSIUS) -> str:
    """The weather.

    :param place: Where.
    :param day: When.
    """
    return f"{place.city} {day.year} {unit.value}"


def convert(amount: Annotated[Decimal, Field(ge=0)], to: Literal["EUR", "USD"]) -> dict[str, Any]:
    return {"amount": amount, "to": to}


def note(text: Annotated[str, "What to keep"], tags: list[str] | None = None) -> None:
    """Keeps a note."""


def spans(of: list[Span], /, *, strict: bool) -> list[Span]:
    return of if strict else []


def maybe(x: Optional[int], title: float) -> float:  # noqa: UP045 - the old way to write it
    return title if x is None else x / 0


def nothing() -> None:
    """Does nothing."""


def point(at: tuple[int, int]) -> tuple[int, int]:
    return at


TOOLS = [add, weather, convert, note, spans, maybe, nothing, point]


# ------------------------------------------------------------------------------ the type


def calls(seeds: range, backend: Any) -> list[Any]:
    @lm.function
    def program(s: lm.ProgramState) -> None:
        s += "Call " + lm.gen("call", type=lm.ToolCall[tuple(TOOLS)], max_tokens=300)

    return [program(backend=backend, seed=seed)["call"] for seed in seeds]


def test_arguments_are_of_the_named_functions_types_always() -> None:
    found = calls(range(120), RandomBackend())
    by_name = {each.name for each in found}
    assert by_name == {tool.__name__ for tool in TOOLS}
    functions = {tool.__name__: tool for tool in TOOLS}
    for call in found:
        assert isinstance(call, lm.ToolCall)
        assert call.function is functions[call.name]
        named = dict(call.arguments)
        if call.name == "spans":
            assert all(isinstance(each, Span) for each in named["of"])
        elif call.name == "weather":
            assert isinstance(named["place"], Place)
            assert isinstance(named["day"], date)
        elif call.name == "convert":
            assert isinstance(named["amount"], Decimal)
        seen = call.observe()
        assert (seen.error is None) == (call.name != "maybe" or named["x"] is None)
        assert isinstance(seen.text, str)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"name": "add", "arguments": {"a": 1}}', True),
        ('{"name": "add", "arguments": {"a": 1, "b": -2}}', True),
        ('{"name": "add", "arguments": {"at": [1, 2]}}', False),
        ('{"name": "point", "arguments": {"a": 1}}', False),
        ('{"name": "point", "arguments": {"at": [1, 2]}}', True),
        ('{"name": "nothing", "arguments": {}}', True),
        ('{"name": "nothing", "arguments": {"a": 1}}', False),
        ('{"name": "sub", "arguments": {"a": 1}}', False),
        ('{"arguments": {"a": 1}, "name": "add"}', False),
        ('{"name": "add"}', False),
    ],
)
def test_only_arguments_of_the_named_function_fit(text: str, fits: bool) -> None:
    @lm.function
    def program(s: lm.ProgramState) -> None:
        s += lm.gen("call", type=lm.ToolCall[tuple(TOOLS)], on_budget="raise")

    with ScriptedBackend([text]) as backend:
        if fits:
            call = program.run(backend=backend)["call"]
            assert call.name == json.loads(text)["name"]
            assert call.arguments.keys() == json.loads(text)["arguments"].keys()
        else:
            with pytest.raises(lm.GrammarDeadEnd):
                program.run(backend=backend)


def test_a_call_is_run_and_its_errors_are_observed() -> None:
    whole = TypeAdapter(lm.ToolCall[tuple(TOOLS)])

    def call(name: str, **arguments: Any) -> Any:
        return whole.validate_python({"name": name, "arguments": arguments})

    assert call("add", a=2).run() == 3
    assert call("spans", of=[{"start": 1, "end": 2}], strict=True).run() == [Span(start=1, end=2)]
    seen = call("spans", of=[{"start": 1, "end": 2}], strict=True).observe()
    assert (seen.text, seen.error) == ('[{"start": 1, "end": 2}]', None)
    assert call("nothing").observe().text == "null"
    assert (
        call("convert", amount="1.5", to="EUR").observe().text == '{"amount": "1.5", "to": "EUR"}'
    )
    failed = call("maybe", x=1, title=2.0)
    with pytest.raises(ZeroDivisionError):
        failed.run()
    seen = failed.observe()
    assert (seen.text, type(seen.error)) == (
        "ZeroDivisionError: division by zero",
        ZeroDivisionError,
    )
    with pytest.raises(ValidationError):
        call("add", b=2)


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


def test_whatever_a_tool_gives_or_raises_is_text_for_a_model() -> None:
    circle: list[Any] = []
    circle.append(circle)
    values = [circle, b"\xff", 10**5000, _Unprintable(), "a\udcffb", {"a": "\ud800"}, "\U0001f600"]
    told = [
        "[[...]]",
        r"b'\xff'",
        "<int>",
        "<_Unprintable>",
        "a\ufffdb",
        '{"a": "\ufffd"}',
        "\U0001f600",
    ]

    def give(number: int) -> object:
        return values[number]

    def fail(message: str) -> None:
        raise _Unprintable(message) if message == "unprintable" else ValueError(message)

    calls = [lm.ToolCall("give", {"number": number}, give) for number in range(len(values))]
    assert [call.observe().text for call in calls] == told
    failed = [lm.ToolCall("fail", {"message": m}, fail) for m in ("unprintable", "\udcff")]
    assert [call.observe().text for call in failed] == [
        "_Unprintable: <_Unprintable>",
        "ValueError: \ufffd",
    ]


def test_defaults_and_types_that_cannot_be_told_end_no_program() -> None:
    @dataclass
    class Unhashable:
        __name__ = "unhashable"

        def __call__(self, number: int = 10**5000, other: int = cast("int", _Unprintable())) -> int:
            return number + other

    def misspelt(number: int) -> None:
        pass

    misspelt.__annotations__["number"] = "1 +"

    (told,) = lm.ToolCall[Unhashable()].signatures
    assert told.schema["properties"] == {
        "number": {"type": "integer"},
        "other": {"type": "integer"},
    }
    with pytest.raises(lm.ConstraintError, match="the types of the tool 'misspelt' cannot be read"):
        lm.ToolCall[misspelt]
    with pytest.raises(lm.ConstraintError, match="'max' does not say which parameters"):
        lm.ToolCall[max]


def test_a_run_that_has_ended_is_no_observation() -> None:
    def late() -> None:
        raise lm.DeadlineExceeded("late")

    call = TypeAdapter(lm.ToolCall[late]).validate_python({"name": "late", "arguments": {}})
    with pytest.raises(lm.DeadlineExceeded):
        call.observe()
    with pytest.raises(lm.DeadlineExceeded):
        asyncio.run(call.aobserve())


def test_async_tools_are_awaited() -> None:
    async def twice(x: int) -> int:
        await asyncio.sleep(0)
        return 4 // x

    made = TypeAdapter(lm.ToolCall[twice, add])
    call = made.validate_python({"name": "twice", "arguments": {"x": 2}})
    assert asyncio.run(call.arun()) == 2
    assert asyncio.run(call.aobserve()).value == 2
    failed = made.validate_python({"name": "twice", "arguments": {"x": 0}})
    assert "division" in asyncio.run(failed.aobserve()).text
    for wrong in (call.run, call.observe):
        with pytest.raises(lm.ProgramTypeError, match=r"twice is an async function: write await"):
            wrong()
    plain = made.validate_python({"name": "add", "arguments": {"a": 2}})
    assert asyncio.run(plain.aobserve()).value == 3


def test_methods_are_tools_too() -> None:
    class Till:
        def __init__(self) -> None:
            self.total = 0

        def pay(self, amount: int) -> int:
            self.total += amount
            return self.total

    till = Till()
    call = TypeAdapter(lm.ToolCall[till.pay]).validate_python(
        {"name": "pay", "arguments": {"amount": 3}}
    )
    assert (call.run(), till.total) == (3, 3)


def due(on: date, urgent: bool = False) -> str:
    """When it is due."""
    return f"{on} {urgent}"


def test_types_of_a_tool_are_those_of_its_module_whatever_the_program_calls_so() -> None:
    date, bool = "2020-01-01", "yes"
    (signature,) = lm.ToolCall[due].signatures
    assert signature.schema["properties"]["on"] == {"format": "date", "type": "string"}
    assert signature.schema["properties"]["urgent"]["type"] == "boolean"
    assert (date, bool) == ("2020-01-01", "yes")


def test_tools_may_stand_in_functions_and_be_objects_that_are_called() -> None:
    class Kept(BaseModel):
        size: int

    def keep(what: Kept) -> int:
        return what.size + later

    class Counter:
        __name__ = "count"

        def __call__(self, by: int) -> int:
            return by + 1

    @functools.wraps(add)
    def wrapped(*args: Any, **kwargs: Any) -> int:
        return -add(*args, **kwargs)

    made = TypeAdapter(lm.ToolCall[keep, Counter(), wrapped])
    later = 1
    kept = made.validate_python({"name": "keep", "arguments": {"what": {"size": 2}}})
    assert kept.run() == 3
    assert made.validate_python({"name": "count", "arguments": {"by": 2}}).run() == 3
    assert made.validate_python({"name": "add", "arguments": {"a": 2}}).run() == -3


def untyped(a, b: int):  # type: ignore[no-untyped-def]
    pass


def many(*numbers: int) -> None:
    pass


def keywords(**numbers: int) -> None:
    pass


def callback(after: Any, then: type[int]) -> None:
    pass


def missing(x: Nowhere) -> None:  # type: ignore[name-defined] # noqa: F821
    pass


class Opaque:
    pass


def opaque(thing: Opaque) -> None:
    pass


@pytest.mark.parametrize(
    ("tools", "error", "message"),
    [
        ((untyped,), lm.SchemaUnsupported, "parameter 'a' of the tool 'untyped' has no type"),
        ((many,), lm.SchemaUnsupported, "'numbers' of the tool 'many' takes any number"),
        ((keywords,), lm.SchemaUnsupported, "'numbers' of the tool 'keywords' takes any number"),
        ((opaque,), lm.SchemaUnsupported, "'thing' of the tool 'opaque'.*Opaque"),
        ((callback,), lm.SchemaUnsupported, "'then' of the tool 'callback'"),
        ((missing,), lm.ConstraintError, "types of the tool 'missing' name 'Nowhere'"),
        ((add, add), lm.ConstraintError, "two tools are called 'add'"),
        ((lambda: 0,), lm.ConstraintError, "has '<lambda>': write it with def"),
        ((3,), lm.ProgramTypeError, "this is an int"),
        ((int,), lm.ProgramTypeError, "this is a type"),
        ((lm.function(lambda s: 0),), lm.ProgramTypeError, "is a program, which would need"),
        ((), lm.ProgramError, "there is no tool"),
    ],
)
def test_what_cannot_be_a_tool_is_told_by_name(tools: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        lm.ToolCall[tools]
    with pytest.raises(error, match=message):
        lm.function(lambda s: s.tools(list(tools))).run(backend=ScriptedBackend())


# ---------------------------------------------------------------------------- the prompt


def test_a_model_is_told_what_docstrings_and_types_say() -> None:
    box = lm.function(lambda s: s.tools(TOOLS)).run(backend=ScriptedBackend()).ret_value
    told = {each["function"]["name"]: each["function"] for each in box.definitions()}
    assert told["add"] == {
        "name": "add",
        "description": "Adds two numbers.\n\nBoth are whole.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "description": "The one, on two lines."},
                "b": {"type": "integer", "description": "The other.", "default": 1},
            },
            "required": ["a"],
        },
    }
    assert told["note"]["parameters"]["properties"]["text"]["description"] == "What to keep"
    assert told["weather"]["parameters"]["properties"]["day"] == {
        "type": "string",
        "format": "date",
        "description": "When.",
    }
    assert told["weather"]["parameters"]["properties"]["unit"]["default"] == "C"
    assert told["weather"]["description"] == "The weather."
    assert told["maybe"]["parameters"]["properties"]["title"] == {"type": "number"}
    assert told["nothing"]["parameters"] == {"type": "object", "properties": {}}


@lm.function
def agent(s: lm.ProgramState, ask: str, turns: int, tools: int = len(TOOLS)) -> list[str]:
    """Thought, a typed call, what comes of it."""
    s += lm.system("You calculate and look up.")
    box = s.tools(TOOLS[:tools])
    s += lm.user(ask)
    seen = []
    for turn in range(turns):
        s += lm.assistant("Thought: " + lm.gen(f"thought{turn}", max_tokens=8, stop="\n") + "\n")
        s += lm.assistant(box.call(f"call{turn}", max_tokens=80))
        observation = s[f"call{turn}"].observe()
        s += box.result(observation)
        seen.append(observation.text)
    s += lm.assistant(lm.gen("answer", max_tokens=6))
    return seen


def prefilled(state: lm.ProgramState, turns: int) -> list[int]:
    """Prompt tokens of each generation that were computed, though others had come before them."""
    names = [name for turn in range(turns) for name in (f"thought{turn}", f"call{turn}")]
    computed = []
    before = 0
    for name in [*names, "answer"]:
        meta = state.meta(name)
        computed.append(max(0, before - meta.cached_tokens))
        before = meta.prompt_tokens
    return computed


@pytest.mark.parametrize("source", [None, TAGGED, BARE])
def test_an_agent_never_prefills_its_history_again(source: str | None) -> None:
    model, tokenizer, template = tiny_model(max_positions=8_192)
    if source is not None:
        template = type(template)(source, bos_token="<|im_start|>", eos_token="<|im_end|>")
    with Runtime.over(model, tokenizer, template, kv_tokens=16_000) as rt:
        form = rt.info().tools
        assert form == {None: None, TAGGED: "tagged", BARE: "bare"}[source]
        state = agent("hello the world", 3, backend=rt, seed=2)
        assert max(prefilled(state, 3)) <= 1
        text = state.text()
        for turn, seen in enumerate(state.ret_value):
            call = FORMS[form or "tagged"].opening + state.text_of(f"call{turn}")
            result = seen if form else f"<tool_response>\n{seen}\n</tool_response>"
            assert call in text
            assert result in text
        roles = [message["role"] for message in state.messages()]
        assert roles[:3] == ["system", "user", "assistant"]
        assert ("tool" in roles) == (form is not None)
        rt.check()


def test_an_agent_on_a_real_model_never_prefills_its_history_again() -> None:
    with Runtime(kv_tokens=2_048) as rt:
        state = agent("What is 2 + 3?", 2, tools=1, backend=rt, temperature=0)
        assert max(prefilled(state, 2)) <= 1
        assert all(isinstance(state[f"call{turn}"].run(), int) for turn in range(2))
        stats = rt.stats()
        prompts = [
            state.meta(name) for name in ("thought0", "call0", "thought1", "call1", "answer")
        ]
        assert stats.prefill_tokens <= prompts[-1].prompt_tokens + len(prompts)
        rt.check()


def test_an_agent_runs_on_any_backend_and_its_log_again() -> None:
    with RandomBackend() as backend:
        state = agent("go", 4, backend=backend, seed=1)
        assert state.ret_value == agent("go", 4, backend=backend, seed=1).ret_value
        again = state.run_log().replay(backend)
        assert again.text() == state.text()
        past = state.run_log().fork_at("call2", backend)
        past += "nothing"
        assert past.text().endswith("<tool_call>\nnothing")


def test_a_preview_shows_the_offer() -> None:
    preview = agent.preview(ask="go", turns=1, backend=ScriptedBackend())
    assert '"name": "weather"' in preview.prompt
    assert preview.prompt.endswith("<assistant>Thought: ")


def test_an_offer_is_checked_where_it_is_written() -> None:
    def within(s: lm.ProgramState) -> None:
        with s.user():
            s.tools([add])

    with pytest.raises(lm.ProgramError, match="cannot begin inside the open user turn"):
        lm.function(within).run(backend=ScriptedBackend())
    with pytest.raises(lm.ProgramTypeError, match="a function is no list"):
        lm.function(lambda s: s.tools(add)).run(backend=ScriptedBackend())
    box = lm.function(lambda s: s.tools([add])).run(backend=ScriptedBackend()).ret_value
    with pytest.raises(lm.ProgramTypeError, match="an int is no text"):
        box.result(3)
    assert repr(box) == "<Toolbox: add>"


def test_a_hosted_chat_is_told_by_the_systems_message() -> None:
    from lmlang.backends.openai_fields import messages_of
    from lmlang.protocol import EndTurn, Prompt, Text, Turn
    from lmlang.protocol.tools import offered

    state = lm.function(lambda s: s.tools([add])).run(backend=ScriptedBackend())
    offer = state._state.prompt
    said = offered(state.ret_value.definitions())
    prompt = offer.append(Turn("user")).append(Text("Hi")).append(EndTurn())
    messages, _ = messages_of(prompt.append(Turn("assistant")))
    assert messages == [{"role": "system", "content": said}, {"role": "user", "content": "Hi"}]
    prompt = Prompt.of(Turn("system"), Text("Be kind."), EndTurn(), *offer.segments())
    messages, _ = messages_of(prompt.append(Turn("assistant")))
    assert messages == [{"role": "system", "content": f"Be kind.\n\n{said}"}]
