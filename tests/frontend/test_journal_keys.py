import dataclasses
import enum
import json
import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmlang as lm
from lmlang.frontend import journal_keys, journal_values
from lmlang.frontend.journal_values import NotKept
from lmlang.grammar import Regex
from lmlang.protocol import (
    BackendInfo,
    EndTurn,
    Image,
    Prompt,
    Request,
    SamplingParams,
    ScoreRequest,
    Tag,
    Text,
    Tokens,
    Turn,
)
from lmlang.wire import forms

# ------------------------------------------------------------------------------ requests

PROMPT = Prompt.of(Turn("user"), Text("Hi"), EndTurn(), Turn("assistant"))
BASE = Request(PROMPT, SamplingParams(), draw_key=5)
OTHERS = {
    "prompt": [
        Prompt.of(Turn("user"), Text("Hi!"), EndTurn(), Turn("assistant")),
        Prompt.of(Turn("user"), Tokens((72, 105), "Hi"), EndTurn(), Turn("assistant")),
        Prompt.of(Text("Hi")),
        Prompt.of(Turn("user"), Image("a" * 64, "a.png", b"")),
        Prompt.of(Turn("user"), Image("b" * 64, "a.png", b"")),
    ],
    "params": [
        SamplingParams(max_tokens=9),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=0),
        SamplingParams(stop=("a", "b")),
        SamplingParams(stop=("ab",)),
        SamplingParams(logit_bias=((1, 2.0),)),
    ],
    "draw_key": [6],
    "top_logprobs": [1],
    "input_logprobs_from": [0],
    "probs": [True],
    "constraint": [Regex("a"), Regex("b")],
    "on_budget": ["raise"],
    "provenance": [True],
}
NO_PART = {"tag", "namespace", "processor", "resumed", "lora"}
"""lora is a part of the fingerprint; functions are refused; the others say nothing of an answer."""


def key(request, fingerprint="f"):
    return journal_keys.of_request(request, fingerprint)


def test_every_part_of_a_request_that_says_something_of_its_answer_is_one_of_its_key():
    assert {field.name for field in dataclasses.fields(Request)} == OTHERS.keys() | NO_PART
    requests = [
        dataclasses.replace(BASE, **{name: value})
        for name, each in OTHERS.items()
        for value in each
    ]
    keys = {key(BASE), key(BASE, "g"), *map(key, requests)}
    assert len(keys) == len(requests) + 2
    assert key(dataclasses.replace(BASE, tag=Tag("run", "3/0", 1), namespace="n")) == key(BASE)


def test_where_nothing_is_drawn_the_draw_key_does_not_matter():
    greedy = dataclasses.replace(BASE, params=SamplingParams(temperature=0))
    assert key(greedy) == key(dataclasses.replace(greedy, draw_key=9))


@given(st.lists(st.text(), min_size=1), st.lists(st.integers(0, 100)))
def test_a_text_in_pieces_is_the_text(texts, cuts):
    whole = "".join(texts)
    assert key(Request(Prompt.of(Turn("user"), *map(Text, texts)))) == key(
        Request(Prompt.of(Turn("user"), Text(whole)))
    )


def test_scorings_have_keys_of_their_own():
    base = ScoreRequest(PROMPT, ("a", "b"))
    others = [
        dataclasses.replace(base, **each)
        for each in (
            {"choices": ("b", "a")},
            {"choices": ("ab",)},
            {"end_turn": True},
            {"unconditional": True},
            {"prompt": Prompt.of(Text("x"))},
        )
    ]
    keys = {journal_keys.of_scoring(each, "f") for each in (base, *others)}
    keys |= {journal_keys.of_scoring(base, "g")}
    assert len(keys) == 7
    told = dataclasses.replace(base, tag=Tag("run"), namespace="n")
    assert journal_keys.of_scoring(told, "f") in keys


def test_an_adapter_has_the_fingerprint_of_model_and_adapter():
    def of(lora, adapters=("a", "b"), prints=("1", "2")):
        info = BackendInfo("m", fingerprint="f", adapters=adapters, adapter_fingerprints=prints)
        return journal_keys.fingerprint_of(info, lora)

    assert of(None) == "f"
    assert len({of(None), of("a"), of("b"), of("a", prints=("3", "2"))}) == 4
    assert of("a") == of("a", ("a", "b", "c"), ("1", "2", "3"))  # others do not matter
    with pytest.raises(lm.ProgramError, match="'m' has no fingerprint"):
        journal_keys.fingerprint_of(BackendInfo("m"), None)


# ------------------------------------------------------------------------------ values


class Color(enum.Enum):
    RED = "red"
    BLUE = 2


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    x: object
    tags: tuple = ()


@dataclasses.dataclass
class Doubled:
    """One whose constructor does more than to keep what it is given."""

    x: int

    def __post_init__(self):
        self.x *= 2


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")

    name: str = pydantic.Field(alias="Name")
    born: date | None = None


class Tags(pydantic.RootModel[list[str]]):
    pass


class Swapped(pydantic.BaseModel):
    a: int = pydantic.Field(alias="b")
    b: int = pydantic.Field(alias="a")


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=())),
    st.binary(),
    st.dates(),
    st.datetimes(),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.sampled_from(Color),
    st.integers(0, 3).map(Rights),
)
hashable = st.one_of(st.integers(), st.text(), st.dates(), st.sampled_from(Color))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.sets(hashable, max_size=3),
        st.frozensets(hashable, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.dictionaries(hashable, inner, max_size=3),
        st.dictionaries(st.just("$"), inner),
        st.builds(Point, inner, st.lists(inner, max_size=2).map(tuple)),
        st.builds(Person, Name=st.text(), born=st.none() | st.dates(), more=st.integers()),
        st.builds(Tags, st.lists(st.text(), max_size=2)),
        st.builds(Swapped, a=st.integers(), b=st.integers()),
    ),
    max_leaves=8,
)


def kept(value):
    """A value as it comes back, by the text that is kept."""
    return journal_values.from_json(forms.loads(forms.dumps(journal_values.to_json(value))))


def alike(one, other):
    """Whether two values are equal, and so are the types of all that is in them."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=False)
        return len(one) == len(other) and all(alike(*each) for each in pairs)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == other and (isinstance(one, (set, frozenset)) or repr(one) == repr(other))


@settings(max_examples=50)
@given(values)
def test_values_come_back_with_their_types(value):
    assert alike(value, kept(value))


def test_what_an_object_holds_comes_back_as_it_is_and_not_as_it_was_given():
    assert kept(Doubled(2)) == Doubled(2)
    assert kept(Doubled(2)).x == 4
    assert math.isnan(kept(float("nan")))
    assert kept([date(2024, 2, 29), datetime(2024, 2, 29), time(1), timedelta(-1, 2, 3)]) == [
        date(2024, 2, 29),
        datetime(2024, 2, 29),
        time(1),
        timedelta(-1, 2, 3),
    ]
    assert kept(Decimal("1.50")).as_tuple() == Decimal("1.50").as_tuple()
    assert kept(UUID(int=1)) == UUID(int=1)


class Named(str):
    pass


@pytest.mark.parametrize("value", [object(), print, {1: [object]}, Named("a"), Point(lambda: 0)])
def test_what_has_no_form_is_refused(value):
    with pytest.raises(NotKept):
        journal_values.to_json(value)


def test_what_holds_itself_is_refused():
    endless = []
    endless.append(endless)
    with pytest.raises(NotKept, match="nested too deep"):
        journal_values.to_json(endless)


@pytest.mark.parametrize(
    "value",
    [
        {"$": "os:system", "of": "ls"},
        {"$": "subprocess:Popen", "of": {"args": "ls"}},
        {"$": "builtins:eval", "of": "1"},
        {"$": f"{__name__}:Gone", "of": {}},
        {"$": f"{__name__}:Color", "of": "GREEN"},
        {"$": "date", "of": "2024-13-01"},
        {"$": "int", "of": "many"},
        {"$": 3},
    ],
)
def test_what_nobody_wrote_is_refused_and_calls_nothing(value):
    with pytest.raises(lm.WireError):
        journal_values.from_json(json.loads(json.dumps(value)))


def test_quotes_are_kept_with_their_places():
    value = lm.Quote("It was cold.", max_length=8)("cold")
    again = kept({"quote": value})["quote"]
    assert (again, again.start, again.end) == ("cold", 7, 11)
    assert type(again) is type(value)
