"""Parts of typed outputs: where they stand, how sure the model was, what is complete of them."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import math
import time
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmlang as lm
from lmlang.errors import CaptureError
from lmlang.frontend.confidence import Place, confidence
from lmlang.frontend.json_text import Scan, as_written, name_of, parsed, place_of, walk
from lmlang.frontend.partial import Growing
from lmlang.frontend.units import Unit, are_told_apart, kept_before, segments_of, units_of
from lmlang.grammar.type_parts import part_of
from lmlang.protocol import Event, Finish, Output, Text, Tokens, Usage
from lmlang.testing import ScriptedBackend
from tests.tiny import tiny_model

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet='ab"\\{}[],:é😀\n'),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(alphabet='ab"\\ .é', max_size=3), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


# ------------------------------------------------------------------------ where parts stand


@settings(max_examples=150, deadline=None)
@given(JSON, st.booleans(), st.sampled_from([None, 1]))
def test_every_value_of_json_text_stands_where_it_is_said_to(value, ascii_only, indent):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    root = parsed(text)
    for path, node in walk(root):
        here = value
        for step in path:
            here = here[step]
        assert json.loads(text[node.start : node.end]) == here
        assert place_of(root, path) == (path, node)
    names = [name_of(path) for path, _ in walk(root)]
    assert len(set(names)) == len(names)


@settings(max_examples=150, deadline=None)
@given(JSON, st.data())
def test_what_is_complete_of_a_beginning_stays_as_it_is(value, data):
    text = json.dumps(value, ensure_ascii=False)
    begun = text[: data.draw(st.integers(0, len(text)))]
    scan, cut = Scan(), data.draw(st.integers(0, len(begun)))
    scan.push(begun[:cut])
    scan.push(begun[cut:])
    whole = dict(walk(parsed(text)))
    for path, node in [] if scan.root is None else walk(scan.root):
        due = whole[path]
        assert node.start == due.start
        assert node.end in (None, due.end)
        if node.kind == "string" and node.end is None:
            full = json.loads(text[due.start : due.end])
            assert full.startswith(as_written(begun, node))


def test_names_of_parts_and_steps_that_lead_nowhere():
    root = parsed('{"a": [{"b c": 1, "d": {"0": 2}}], "e": null}')
    assert [name_of(path) for path, _ in walk(root)] == [
        "", "a", "a[0]", 'a[0]["b c"]', "a[0].d", 'a[0].d["0"]', "e",
    ]  # fmt: skip
    path, node = place_of(root, ("a", 0, "Union[X]", "d", "missing"))
    assert (path, node.start) == (("a", 0, "d"), 23)


# --------------------------------------------------------------------- tokens and their text


def output(text, ids):
    finish = Finish("complete")
    return Output(
        text, tuple(ids), (-1.0,) * len(ids), finish, Usage(), (), probs=(0.5,) * len(ids)
    )


def test_pieces_are_tokens_by_their_events_and_one_where_these_do_not_say():
    made = output('{"é"', (5, 6, 7, 8, 9))
    events = [Event(i, (i + 5,), text, (-1.0,)) for i, text in enumerate(('{"', "", "é", '"', ""))]
    units = units_of(ScriptedBackend(), events, made)
    assert [(unit.text, unit.ids) for unit in units] == [
        ('{"', (5,)), ("é", (6, 7)), ('"', (8,)), ("", (9,)),
    ]  # fmt: skip
    assert are_told_apart(units)
    assert [kept_before(units, place) for place in (0, 1, 2, 3, 4)] == [0, 0, 0, 2, 4]
    assert segments_of([*units[:1], Unit("", hidden=Tokens((1,), "")), *units[1:], Unit("!")]) == [
        Tokens((5,), '{"'), Tokens((1,), ""), Tokens((6, 7, 8), 'é"'), Text("!"),
    ]  # fmt: skip
    whole = [Event(0, (5, 6, 7, 8, 9), '{"é"', (-1.0,) * 5)]
    (unit,) = units_of(ScriptedBackend(), whole, made)
    assert (unit.text, unit.ids) == ('{"é"', made.ids)
    assert not are_told_apart([unit])

    for wrong in ([], events[:2], [*events, Event(5, (1,), "?", (-1.0,))]):
        assert len(units_of(ScriptedBackend(), wrong, made)) == 1


def test_an_output_that_one_event_told_of_is_asked_for_token_by_token():
    class Spelling(ScriptedBackend):
        def decode(self, ids):
            return "".join([{5: '{"', 6: "ab", 7: '"', 9: " dropped"}[token] for token in ids])

    made = replace(output('{"ab"', (5, 6, 7, 9)), history=(Tokens((5, 6, 7), '{"ab"'),))
    whole = [Event(0, made.ids, made.text, (-1.0,) * 4)]
    assert [(unit.text, unit.ids) for unit in units_of(Spelling(), whole, made, asking=True)] == [
        ('{"', (5,)), ("ab", (6,)), ('"', (7,)), ("", (9,)),
    ]  # fmt: skip
    units = units_of(Spelling(), whole, made)
    assert [unit.ids for unit in units] == [(5, 6, 7), (9,)]
    assert not are_told_apart(units)


# ------------------------------------------------------------------------------- confidence


class Line(pydantic.BaseModel):
    item: str = pydantic.Field(pattern="^[a-z]{0,3}$")
    amount: int = pydantic.Field(ge=0, le=99)


class Bill(pydantic.BaseModel):
    kind: Literal["A", "B"]
    lines: list[Line] = pydantic.Field(min_length=1, max_length=2)
    on: dt.date


@lm.function
def bill(s):
    s += "Bill: "
    s += lm.gen("x", type=Bill, max_tokens=90, return_logprob=True, top_logprobs_num=3)


@pytest.fixture(scope="module")
def ran():
    with lm.Runtime.over(*tiny_model(), kv_tokens=2_000) as runtime:
        yield runtime, bill.run(backend=runtime, seed=5)


def test_confidence_is_the_product_of_the_probabilities_of_a_part_s_tokens(ran):
    runtime, state = ran
    meta, text = state.meta("x"), state.text_of("x")
    at, ends = 0, []
    for token in meta.tokens:  # all characters are ASCII, so bytes are characters
        size = len(runtime.token_bytes(token)) if at < len(text) else 0
        ends.append((at, at + size))
        at += size
    assert at == len(text)
    assert text.isascii()
    for path, node in walk(parsed(text)):
        number = text[node.start] in "0123456789"
        inside = [
            prob
            for (start, end), prob in zip(ends, meta.probs, strict=True)
            if start < node.end + number and end > node.start
        ]
        if path:
            assert meta.confidence[name_of(path)] == pytest.approx(math.prod(inside))
    assert meta.confidence[""] == pytest.approx(math.prod(meta.probs))
    assert meta.confidence["kind"] < 1.0
    with pytest.raises(CaptureError, match="no part 'kin'; it has 'kind'"):
        meta.confidence["kin"]


def test_what_ends_a_number_belongs_to_it():
    spec, text = lm.grammar.JsonSchema.of({}), '{"a": 12, "b": "c", "d": [3]}'
    places = [Place(at, at + 1, (ord(char),), (1 - at / 64,)) for at, char in enumerate(text)]
    found = confidence(spec, text, places)
    for name, part in (("a", "12,"), ("b", '"c"'), ("d", "[3]"), ("d[0]", "3]")):
        start = text.index(part)
        due = math.prod(1 - at / 64 for at in range(start, start + len(part)))
        assert found[name] == pytest.approx(due), name


def test_alternatives_are_told_where_there_were_some(ran):
    _runtime, state = ran
    (spot,) = state.alternatives("x")["kind"]
    assert spot.text in ('"A', "A", '"B', "B")
    assert spot.prob == pytest.approx(state.meta("x").confidence["kind"])
    assert sum(prob for _, prob in spot.others) == pytest.approx(1 - spot.prob, abs=1e-4)
    assert state.text_of("x")[spot.start :].startswith(spot.text)


def test_confidence_that_was_not_asked_for_says_how_to_ask():
    backend = ScriptedBackend(["7"])

    @lm.function
    def program(s):
        s += lm.gen("x", type=int)

    meta = program.run(backend=backend).meta("x")
    assert meta.confidence == {}
    with pytest.raises(CaptureError, match="return_logprob=True"):
        meta.confidence[""]


def test_scalars_and_groups_of_patterns_have_a_confidence_too():
    backend = ScriptedBackend(["12:30", "42."])

    @lm.function
    def program(s):
        s += lm.gen("x", regex=r"(?P<hour>\d+):\d+") + lm.gen("n", type=int)

    state = program.run(backend=backend, return_logprob=True)
    assert set(state.meta("x").confidence) == {"", "hour"}
    assert state.meta("x").confidence["hour"] == pytest.approx(math.exp(-2))
    # Two digits, and the token that ended the number.
    assert state.meta("n").confidence == {"": pytest.approx(math.exp(-3))}


# ----------------------------------------------------------------------------- partial values


class Point(NamedTuple):
    x: int
    y: float


class Options(TypedDict, total=False):
    point: Point
    on: dt.date


@dataclass
class Mixed:
    options: Options
    bills: list[Bill]
    either: int | list[dt.date] | None = None


TEXT = (
    '{"options": {"point": [1, 2.5], "on": "2024-02-03"}, "bills": [{"kind": "A", "lines": '
    '[{"item": "ab", "amount": 12}], "on": "2020-01-01"}], '
    '"either": ["2021-01-01", "2021-01-02"]}'
)


def test_partial_values_grow_and_what_is_complete_is_what_it_will_be():
    growing, last = Growing(Mixed), None
    whole = pydantic.TypeAdapter(Mixed).validate_json(TEXT)
    finals = {}
    seen: dict[str, object] = {}
    for char in TEXT:
        found = growing.push(char)
        assert last is None or last.complete <= found.complete
        for name in found.complete - (frozenset() if last is None else last.complete):
            seen.setdefault(name, found.text)
        if not found.complete >= {""}:
            finals[len(found.text)] = found.value
        last = found
    assert last.complete >= {"", "options.point[1]", "bills[0].lines[0].amount", "either[0]"}
    assert seen["options.point[0]"].endswith('"point": [1,')
    assert seen["bills[0].on"].endswith('"2020-01-01"')
    before = finals[TEXT.index('"amount"')]
    assert before["options"]["point"] == Point(1, 2.5)
    assert before["options"]["on"] == dt.date(2024, 2, 3)
    assert before["bills"] == [{"kind": "A", "lines": [{"item": "ab"}]}]
    after = finals[TEXT.index(', "either"')]
    assert after["bills"] == whole.bills
    assert growing.end(whole).value == whole
    assert finals[TEXT.index("2020-01-01") + 4]["bills"][0]["on"] == "2020"


@settings(max_examples=60, deadline=None)
@given(JSON.filter(lambda value: isinstance(value, (list, dict))), st.data())
def test_partial_values_are_the_same_however_the_text_comes(value, data):
    text = json.dumps(value)
    spec, at = lm.grammar.JsonSchema.of({}), 0
    growing = Growing(spec)
    while at < len(text):
        end = data.draw(st.integers(at + 1, len(text)))
        found = growing.push(text[at:end])
        assert found == Growing(spec).push(text[:end])
        at = end
    assert (found.value, "" in found.complete) == (value, True)


def test_a_long_value_grows_in_time_that_its_length_takes():
    class Line(pydantic.BaseModel):
        item: str
        amount: float

    lines = [{"item": f'"{number}" of them', "amount": number / 2} for number in range(500)]
    text = json.dumps({"lines": lines, "note": "word " * 2_000})
    growing = Growing(dict[str, list[Line] | str])
    before = time.thread_time()
    for at in range(0, len(text), 3):
        found = growing.push(text[at : at + 3])
    assert time.thread_time() - before < 8  # read anew with each piece, it takes minutes
    assert found.value["lines"][-1] == Line(item='"499" of them', amount=249.5)


def test_the_types_of_parts():
    assert part_of(Mixed, "options") is Options
    assert part_of(Options, "on") is dt.date
    assert part_of(Point, 1) is float
    assert part_of(list[int] | None, 0) is int
    assert part_of(list[int] | dict[str, str], 0) is int
    assert part_of(list[int] | tuple[str, ...], 0) is Any
    assert part_of(dict[str, list[int]], "k") == list[int]
    assert part_of(tuple[int, str], 1) is str
    assert part_of(tuple[int, ...], 5) is int
    assert part_of(int, 0) is None


@pytest.mark.parametrize(
    ("tp", "text", "value"),
    [
        ({"type": "object", "properties": {"a": {}}}, '{"a": [1, "b"]}', {"a": [1, "b"]}),
        (lm.grammar.JsonSchema.of({"type": "array"}), "[[1], 2]", [[1], 2]),
        (dict[str, Annotated[list[int], pydantic.Field(examples=[[1]])]], '{"k": [1]}', {"k": [1]}),
        (lm.Quote("a b"), '"a b"', "a b"),
        (list[Bill] | None, "null", None),
    ],
)
def test_types_of_every_kind_grow(tp, text, value):
    growing = Growing(tp)
    found = [growing.push(char) for char in text]
    assert found[-1].value == value
    assert "" in found[-1].complete
    assert all("" not in each.complete for each in found[:-1])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_stream_of_a_typed_variable_is_partial_values(asynchronous):
    answer = '{"kind": "B", "lines": [{"item": "ab", "amount": 7}], "on": "2020-01-01"}'
    backend = ScriptedBackend([answer, "Hello"], completes="when released", chunk=1)

    @lm.function
    def program(s):
        s += lm.gen("x", type=Bill, max_tokens=200) + lm.gen("t")

    state = program.run(backend=backend, stream=True)
    backend.wait_for(1)
    backend.release()

    async def collected():
        return [each async for each in state.partial_async_iter("x")]

    found = asyncio.run(collected()) if asynchronous else list(state.partial_iter("x"))
    assert found[-1].done
    assert found[-1].value == state["x"] == Bill.model_validate_json(answer)
    assert found[-1].text == answer
    backend.wait_for(1)
    backend.release()
    texts = [each.value for each in state.partial_iter("t")]
    assert texts[-1] == "Hello"
    backend.close()


def test_events_of_a_run_have_the_partial_value():
    answer = '{"kind": "B", "lines": [{"item": "ab", "amount": 7}], "on": "2020-01-01"}'
    backend = ScriptedBackend([answer], completes="on a thread", chunk=1)

    @lm.function
    def program(s):
        s += "Bill: " + lm.gen("x", type=Bill, max_tokens=200)
        s += lm.select("sure", ["yes", "no"])

    found = [event for event in program.stream(backend=backend) if event.variable]
    last = next(event for event in found if event.finish)
    assert last.partial.value == Bill.model_validate_json(answer)
    assert last.partial.text == answer
    (chosen,) = [event for event in found if event.variable == "sure"]
    assert chosen.partial.done
    assert chosen.partial.value in ("yes", "no")
    backend.close()


def test_the_partial_values_of_a_scope_are_its_text():
    backend = ScriptedBackend(["12", "b"], completes="on a thread", chunk=1)

    @lm.function
    def program(s):
        s += "before "
        with s.var_scope("x"):
            s += "a" + lm.gen("x", type=int) + "-" + lm.gen("y")

    state = program.run(backend=backend, stream=True)
    values = [(each.value, each.text, each.done) for each in state.partial_iter("x")]
    assert values[-1] == ("a12-b", "a12-b", True)
    assert all(value == text and not done for value, text, done in values[:-1])
    assert all("a12-b".startswith(value) for value, *_ in values)
    backend.close()


def test_of_several_samples_the_first_is_streamed():
    backend = ScriptedBackend(["1", "2"], completes="on a thread")

    @lm.function
    def program(s):
        s += lm.gen("x", type=int, n=2)

    state = program.run(backend=backend, stream=True)
    *_, last = state.partial_iter("x")
    assert (last.value, state["x"]) == (1, [1, 2])
    backend.close()
