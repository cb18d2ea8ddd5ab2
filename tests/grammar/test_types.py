"""Types as constraints: what is allowed is read as the type, and every instance can be written."""

import collections
import datetime as dt
import enum
import itertools
import json
import math
import random
import re
import sys
import typing
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import Annotated, Any, Literal, NamedTuple, Optional, Union

import jsonschema
import pydantic
import pytest
import typing_extensions
from annotated_types import Ge, Le, Len
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, UrlConstraints

from lmlang.backends.constrained import automaton_of, sample
from lmlang.errors import ConstraintError, SchemaUnsupported
from lmlang.grammar import literals
from lmlang.grammar.spec import Choice, Either, JsonSchema, Regex
from lmlang.grammar.types import reader_of, spec_of


class Color(enum.Enum):
    RED = "red"
    ONE = 1
    NONE = None
    HALF = 0.5


class Same(enum.Enum):
    NUMBER = 1
    TEXT = "1"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 20


class Access(enum.Flag):
    READ = 1


@dataclass
class Person:
    name: str
    age: Annotated[int, Field(ge=0, le=150)]
    born: dt.date | None
    color: Color = Color.RED
    tags: list[str] = field(default_factory=list)
    number: int = field(default=7, init=False)


class Point(NamedTuple):
    x: int
    y: float = 0.5


class Movie(typing.TypedDict, total=False):
    title: typing_extensions.Required[str]
    year: int


class Node(BaseModel):
    value: int
    children: list["Node"] = []
    other: Optional["Node"] = None


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: Annotated[int, Ge(1), Le(9)]


class Dog(BaseModel):
    kind: Literal["dog", "wolf"]
    name: str = Field(validation_alias=pydantic.AliasChoices("Name", "nom"))


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: int = Field(alias="X")


class Ranged(BaseModel):
    start: int
    end: int

    @pydantic.model_validator(mode="after")
    def ordered(self) -> "Ranged":
        if self.start > self.end:
            raise ValueError("it ends before it starts")
        return self


@dataclass
class Fork:
    both: Annotated[Cat | Dog, Field(discriminator="kind")]
    pair: tuple[int, str]
    point: Point
    seen: set[int]
    by_day: dict[dt.date, bool]


@dataclass
class Tree:
    value: int
    left: Optional["Tree"] = None


@dataclass
class Shelf:
    movies: list[Movie]
    best: Movie | None


T = typing.TypeVar("T")


class Boxed(BaseModel, typing.Generic[T]):
    content: T


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
reals = st.decimals(-(10**9), 10**9, places=4).map(float).map(lambda x: x + 0.0)
dates = st.dates()
offsets = st.integers(-1439, 1439).map(lambda m: dt.timezone(dt.timedelta(minutes=m)))
moments = st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1), timezones=st.none() | offsets)
colors, sizes = st.sampled_from(list(Color)), st.sampled_from(list(Size))
people = st.builds(
    Person,
    texts,
    st.integers(0, 150),
    st.none() | dates,
    colors,
    st.lists(texts, max_size=2),
)
points = st.builds(Point, st.integers(), reals)
nodes = st.recursive(
    st.builds(lambda value: Node(value=value), st.integers()),
    lambda inner: st.builds(
        lambda value, children, other: Node(value=value, children=children, other=other),
        st.integers(),
        st.lists(inner, max_size=2),
        st.none() | inner,
    ),
    max_leaves=4,
)
cats = st.builds(lambda lives: Cat(lives=lives), st.integers(1, 9))
dogs = st.builds(lambda k, n: Dog(kind=k, Name=n), st.sampled_from(["dog", "wolf"]), texts)
movies = st.fixed_dictionaries({"title": texts}, optional={"year": st.integers()}).map(
    lambda movie: dict(sorted(movie.items()))  # in the order of their fields
)
trees = st.recursive(
    st.builds(Tree, st.integers()),
    lambda inner: st.builds(Tree, st.integers(), inner),
    max_leaves=4,
)
urls = st.sampled_from(["https://a.b/", "http://localhost/", "https://a-b.c:80/d"])
numbers = st.dictionaries(texts, st.integers(), max_size=3)
bounded = Annotated[dt.date, Ge(dt.date(1999, 12, 30)), Le(dt.date(2024, 2, 29))]
money = Annotated[Decimal, Field(max_digits=6, decimal_places=2, ge=0)]
trimmed = Annotated[str, pydantic.StringConstraints(strip_whitespace=True, min_length=1)]

INSTANCES = [
    (int, st.integers(-(10**40), 10**40)),
    (
        Annotated[int, Field(gt=-5, lt=1000, multiple_of=5)],
        st.integers(0, 199).map(lambda i: i * 5),
    ),
    (float, reals),
    (Annotated[float, Field(gt=0, lt=1)], st.integers(1, 999).map(lambda i: i / 1000)),
    (bool, st.booleans()),
    (type(None), st.none()),
    (str, texts),
    (Annotated[str, Field(min_length=2, max_length=4, pattern="^[a-c]")], st.just("abz")),
    (trimmed, st.sampled_from(["a", "a b", "\x00"])),
    (Literal["a b", 1, True, None], st.sampled_from(["a b", 1, True, None])),
    (Literal[1, "1", ""], st.sampled_from([1, "1", ""])),
    (Color, colors),
    (Same, st.sampled_from(list(Same))),
    (Size, sizes),
    (dt.date, dates),
    (bounded, st.dates(dt.date(1999, 12, 30), dt.date(2024, 2, 29))),
    (dt.datetime, moments),
    (pydantic.AwareDatetime, moments.filter(lambda m: m.tzinfo is not None)),
    (dt.time, st.times()),
    (dt.timedelta, st.timedeltas(dt.timedelta(-90_000_000), dt.timedelta(90_000_000))),
    (
        Annotated[dt.timedelta, Ge(dt.timedelta(0))],
        st.timedeltas(dt.timedelta(0), dt.timedelta(90_000_000)),
    ),
    (uuid.UUID, st.uuids()),
    (pydantic.UUID4, st.uuids(version=4)),
    (Decimal, st.decimals(-(10**8), 10**8, places=3)),
    (money, st.decimals(0, 9999, places=2)),
    (Annotated[Decimal, Field(max_digits=2, decimal_places=2)], st.just(Decimal("0.05"))),
    (Annotated[Decimal, Field(gt=10**9)], st.decimals(10**9 + 1, 10**10 - 1, places=5)),
    (int | None, st.none() | st.integers()),
    (Optional[str], st.none() | texts),  # noqa: UP045
    (Union[int, dt.date, Literal["x"]], st.integers() | dates | st.just("x")),  # noqa: UP007
    (int | list[int], st.integers() | st.lists(st.integers(), max_size=3)),
    (list[int], st.lists(st.integers(), max_size=3)),
    (Annotated[list[bool], Len(1, 2)], st.lists(st.booleans(), min_size=1, max_size=2)),
    (list[Decimal], st.lists(st.decimals(-9999, 9999, places=2), max_size=2)),
    (Sequence[str], st.lists(texts, max_size=2)),
    (tuple[int, str], st.tuples(st.integers(), texts)),
    (tuple[float, ...], st.lists(reals, max_size=3).map(tuple)),
    (tuple[()], st.just(())),
    (set[int], st.sets(st.integers(), max_size=3)),
    (frozenset[Size], st.frozensets(sizes)),
    (dict[str, int], numbers),
    (Mapping[int, str], st.dictionaries(st.integers(), texts, max_size=2)),
    (dict[Size, bool], st.dictionaries(sizes, st.booleans())),
    (collections.OrderedDict[str, int], numbers.map(collections.OrderedDict)),
    (Person, people),
    (Point, points),
    (Movie, movies),
    (list[Movie], st.lists(movies, max_size=2)),
    (Node, nodes),
    (Annotated[Cat | Dog, Field(discriminator="kind")], cats | dogs),
    (Open, st.builds(lambda x, rest: Open(X=x, **rest), st.integers(), st.just({"y": [1, "a"]}))),
    (
        Fork,
        st.builds(
            Fork,
            cats | dogs,
            st.tuples(st.integers(), texts),
            points,
            st.sets(st.integers(), max_size=3),
            st.dictionaries(dates, st.booleans(), max_size=2),
        ),
    ),
    (Annotated[int | float, Field(gt=1, le=3)], st.sampled_from([2, 2.5, 3])),
    (
        Annotated[str | list[bool], Len(1, 2)],
        st.sampled_from(["a", "ab"]) | st.lists(st.booleans(), min_size=1, max_size=2),
    ),
    (
        Annotated[int, Ge(5)] | Annotated[int, Le(-5)],
        st.integers(5) | st.integers(max_value=-5),
    ),
    (set[Any], st.sets(st.sampled_from([None, 2, "a"]))),
    (Tree, trees),
    (Shelf, st.builds(Shelf, st.lists(movies, max_size=2), st.none() | movies)),
    (IPv4Address, st.ip_addresses(v=4)),
    (pydantic.HttpUrl, urls.map(pydantic.HttpUrl)),
    (Annotated[pydantic.AnyUrl, UrlConstraints(max_length=19)], urls.map(pydantic.AnyUrl)),
    (set[pydantic.AnyHttpUrl], st.sets(urls.map(pydantic.AnyHttpUrl))),
    (Boxed[int], st.builds(lambda x: Boxed[int](content=x), st.integers())),
    (Any, st.sampled_from([None, 1, "a", [1, {"a": []}]])),
]


class Key(NamedTuple):
    name: str
    day: dt.datetime | None = None


@dataclass(frozen=True)
class Span:
    start: dt.time
    length: dt.timedelta = dt.timedelta(0)


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    name: str = ""
    span: Span | None = None
    any: Any = None


class ByIdentity:
    """Hashed as itself, whatever is in it."""


@dataclass(eq=False)
class Loose(ByIdentity):
    items: list[int]


@dataclass(frozen=True)
class Listed:
    items: list[int]


several = Len(2)
DISTINCT = [
    Annotated[set[dt.datetime], several],
    Annotated[set[dt.time | None], several],
    Annotated[frozenset[dt.timedelta], several],
    Annotated[set[IPv6Address], several],
    Annotated[set[Any], several],
    Annotated[set[Key], several],
    Annotated[set[Span], several],
    Annotated[set[Frozen], several],
    Annotated[dict[dt.datetime, set[Frozen]], several],
    Annotated[set[tuple[Any, bool]], several],
    set[dt.date | Any | Key],
    set[Frozen],
    set[Loose],
    set[frozenset[int]],
]
NAMES = [str(tp).replace("typing.", "") for tp, _ in INSTANCES]


def plain_number(value: float | Decimal) -> str:
    """A number without an exponent."""
    text = format(Decimal(repr(value)) if isinstance(value, float) else value, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def as_json(value: Any) -> str:
    """JSON of a value in the style of the outputs; field names by alias."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        pairs = [(first_name(name, fields[name]), getattr(value, name)) for name in fields]
        pairs += list((value.model_extra or {}).items())
        return as_json(dict(pairs))
    if isinstance(value, Person):
        return as_json({n: v for n, v in vars(value).items() if n != "number"})
    if isinstance(value, (Fork, Tree, Shelf)):
        return as_json(vars(value))
    if isinstance(value, enum.Enum):
        return as_json(value.value)
    if value is None or isinstance(value, (bool, int)):
        return json.dumps(value)
    if isinstance(value, (float, Decimal)):
        return plain_number(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        pairs = (f"{as_json(as_text(k))}: {as_json(v)}" for k, v in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, (list, tuple, set, frozenset)):
        return f"[{', '.join(map(as_json, value))}]"
    return as_json(as_text(value))


def first_name(name: str, info: Any) -> str:
    alias = info.validation_alias or name
    return alias if isinstance(alias, str) else alias.choices[0]


def as_text(value: Any) -> str:
    """A scalar as a plain literal."""
    if isinstance(value, enum.Enum):
        return as_text(value.value)
    if isinstance(value, (float, Decimal)):
        return plain_number(value)
    if isinstance(value, dt.timedelta):
        sign, value = ("-", -value) if value < dt.timedelta() else ("", value)
        return f"{sign}P{value.days}DT{value.seconds}.{value.microseconds:06}S"
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    return str(value)


def written(spec: Any, value: Any) -> str:
    if isinstance(spec, Either):
        found = [written(each, value) for each in spec.specs if fits(each, value)]
        return found[0]
    return as_json(value) if isinstance(spec, JsonSchema) else as_text(value)


def fits(spec: Any, value: Any) -> bool:
    return allows(spec, written(spec, value))


def allows(spec: Any, text: str) -> bool:
    """Whether the automaton of a spec has a text."""
    automaton = automaton_of(spec)
    state = automaton.run(automaton.start, text.encode())
    return state is not None and state.accepting


@pytest.mark.parametrize(("tp", "instances"), INSTANCES, ids=NAMES)
def test_every_instance_can_be_written_and_read(tp: Any, instances: Any) -> None:
    spec, read = spec_of(tp), reader_of(tp)

    @settings(max_examples=25, deadline=None)
    @given(instances)
    def check(value: Any) -> None:
        text = written(spec, value)
        assert allows(spec, text), text
        if isinstance(spec, JsonSchema):
            schema = json.loads(spec.text, parse_float=Decimal)
            jsonschema.validate(json.loads(text, parse_float=Decimal), schema)
        assert read(text) == value
        assert type(read(text)) is type(value)

    check()


@pytest.mark.parametrize("tp", [tp for tp, _ in INSTANCES], ids=NAMES)
@pytest.mark.parametrize("style", ["line", "compact", 2])
def test_whatever_is_allowed_is_read(tp: Any, style: Any) -> None:
    spec, read = spec_of(tp, json_style=style), reader_of(tp)
    for seed in range(15):
        drawn = random.Random(seed)
        text = sample(spec, (drawn.randrange(256) for _ in itertools.count()))
        value = read(text)
        if isinstance(value, float):
            assert math.isfinite(value)


@pytest.mark.parametrize("tp", DISTINCT, ids=str)
def test_items_that_have_to_differ_do(tp: Any) -> None:
    spec, read = spec_of(tp), reader_of(tp)
    for seed in range(20):
        drawn = random.Random(seed)
        assert isinstance(
            read(sample(spec, (drawn.randrange(256) for _ in itertools.count()))),
            collections.abc.Collection,
        )


def test_each_item_of_several_has_one_spelling() -> None:
    spec = spec_of(Annotated[set[dt.timedelta], several])
    assert allows(spec, '["P1DT0S", "-P0DT1.5S"]')
    for same in ("PT86400S", "P1DT0.0S", "-P0DT0S", "P0DT86400S", "P1D"):
        assert not allows(spec, f'["P2DT0S", "{same}"]'), same
    spec = spec_of(Annotated[set[dt.datetime], several])
    assert allows(spec, '["2024-01-01T00:00:00Z", "2024-01-01T00:00:00"]')
    assert not allows(spec, '["2024-01-01T00:00:00Z", "2024-01-01T01:00:00+01:00"]')
    assert not allows(spec_of(Annotated[set[Any], several]), "[true, 1]")
    assert not allows(spec_of(Annotated[set[Key], several]), '[["a"], ["a", null]]')


def test_scalars_are_plain_literals_and_the_rest_is_json() -> None:
    assert spec_of(bool) == Choice(("True", "False"))
    assert spec_of(Color) == Choice(("red", "1", "None", "0.5"))
    assert spec_of(Literal["a", 1, None]) == Choice(("a", "1", "None"))
    assert isinstance(spec_of(dt.date), Regex)
    assert isinstance(spec_of(str), JsonSchema)
    assert isinstance(spec_of(int | None), Either)
    assert isinstance(spec_of(int | list[int]), JsonSchema)
    assert isinstance(spec_of(Same), JsonSchema)
    assert spec_of(Person, json_style="compact").style == "compact"
    schema = json.loads(spec_of(Person).text)
    assert list(schema["properties"]) == ["name", "age", "born", "color", "tags"]
    assert schema["required"] == ["name", "age", "born"]
    assert schema["additionalProperties"] is False


def test_the_order_of_a_union_counts_whatever_was_asked_before() -> None:
    assert type(reader_of(int | float)("5")) is int
    assert type(reader_of(float | int)("5")) is float


ATOMS = st.sampled_from(
    [
        *(
            "a",
            "é",
            ".",
            r"\d",
            r"\w",
            r"\s",
            "[a-c]",
            "[^a]",
            r"[^\n]",
            r"[\d_]",
            "(?:ab|c)",
            "(?P<x>a)",
        ),
        *(
            r"\.",
            r"\x41",
            r"\u00e9",
            r"\-",
            "[+-]",
            "(a|)",
            "^",
            "$",
            r"\D",
            r"\S",
            r"[^\s]",
            r"[\s\S]",
            r"[^\d]",
            r"\b",
            "(?i)a",
        ),
        *("[]a]", "[a&&b]", r"\x{41}", r"\pL", "[[:alpha:]]", "{", "a{,2}", "]", "}"),
    ]
)
PATTERNS = st.lists(
    st.tuples(ATOMS, st.sampled_from(["", "", "*", "+?", "{2}", "{1,2}"])), min_size=1, max_size=4
).map(lambda parts: "".join(atom + count for atom, count in parts))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of Python's re, on Rust's classes
@settings(max_examples=150, deadline=None)
@given(PATTERNS, st.sampled_from(["rust-regex", "python-re"]), st.integers(0, 99))
def test_texts_under_a_pattern_are_read_whatever_reads_them(
    pattern: str, engine: Any, seed: int
) -> None:
    class Model(BaseModel):
        model_config = ConfigDict(regex_engine=engine, defer_build=True)
        x: str = Field(pattern=pattern)

    try:
        spec = spec_of(Model)
        drawn = random.Random(seed)
        text = sample(spec, (drawn.randrange(256) for _ in itertools.count()))
    except ConstraintError:
        return  # refused, which is right where they differ
    reader_of(Model)(text)


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[A-Z]{2}\d{3,}$", r"[a-z0-9._-]+@\w+", "(?P<y>[0-9]+)|x", r"^\S+@\S+$", r"^[^\s@]+$",
        r"^[\s\S]{1,9}$",
    ],
)  # fmt: skip
def test_usual_patterns_are_kept(pattern: str) -> None:
    assert spec_of(Annotated[str, Field(pattern=pattern)])


def test_names_of_types_and_specs_and_schemas_are_taken() -> None:
    assert spec_of("int") == spec_of(int)
    assert reader_of("str")('"a"') == "a"
    assert spec_of(Regex("a+")) == Regex("a+")
    assert reader_of(Regex("a+"))("aa") == "aa"
    schema = {"type": "array", "items": {"type": "integer"}}
    assert json.loads(spec_of(schema).text) == schema
    assert reader_of(schema)("[1, 2]") == [1, 2]


@pytest.mark.parametrize(
    ("tp", "text"),
    [
        (int, "1.0"), (int, "01"), (int, "-0"), (int, "1 "), (float, "1e5"), (float, "-0.0"),
        (float, "1" + "0" * 308), (bool, "true"), (type(None), "null"), (dt.date, "2023-02-29"),
        (dt.date, "1900-02-29"), (dt.date, "0000-01-01"), (bounded, "1999-12-29"),
        (bounded, "2024-03-01"), (dt.datetime, "2024-01-01T24:00:00"), (Color, "blue"),
        (dt.datetime, "2024-01-01T00:00:60Z"), (Literal["a"], '"a"'), (money, "10000"),
        (money, "0.001"), (money, "-1"), (set[int], "[1, 1]"), (Movie, '{"year": 1}'),
        (Movie, '{"title": "a", "x": 1}'), (tuple[int, str], "[1]"), (Cat, '{"lives": 10}'),
        (Fork, "{}"), (dict[int, int], '{"01": 1}'), (trimmed, '" a"'), (list[float], "[1e400]"),
        (Annotated[Cat | Dog, Field(discriminator="kind")], '{"lives": 3}'),
        (Open, '{"X": 1, "x": 2}'), (Person, '{"name": "a", "age": 1, "born": null, "number": 1}'),
        (Annotated[float, Field(lt=1)], "0.99999999999999999999"),
        (Annotated[dt.timedelta, Ge(dt.timedelta(0))], "-P1D"), (set[int], "[1, 2, 1]"),
        (Annotated[dt.timedelta, pydantic.Field(gt=dt.timedelta(0))], "P0D"),
        (Annotated[Decimal, Field(max_digits=2, decimal_places=2)], "0"),
        (Annotated[int | float, Field(gt=1, le=3)], "1.00000000000000000001"),
        (int | float, "1e5"), (Annotated[int | str, Ge(0)], '"a"'), (set[Any], "[[]]"),
    ],
)  # fmt: skip
def test_what_is_no_value_is_not_allowed(tp: Any, text: str) -> None:
    assert not allows(spec_of(tp), text)


class Anything:
    pass


@dataclass
class Job:
    run: Callable[[], int]


@dataclass
class Holder:
    things: list[Anything]


class Blob(BaseModel):
    name: str
    inner: dict[str, list[bytes]]


@pytest.mark.parametrize(
    ("tp", "message"),
    [
        (Callable[[], int], "what is asked for is of the type Callable, and no text"),
        (Job, "field `run` of `Job` is of the type Callable, and no text of it can be generated"),
        (Holder, "field `things` of `Holder` is of the type Anything, of which no text"),
        (Anything, "what is asked for is of the type Anything, of which no text"),
        (Blob, "field `inner` of `Blob` is of the type bytes, and no text"),
        (bytes, "of the type bytes"),
        (complex, "of the type complex"),
        (list[Access], "of the type Access, and members of a Flag can be added up"),
        (Access, "members of a Flag can be added up"),
        (Iterator[int], "is of the type"),
        (set[list[int]], "set of list, and those cannot be hashed"),
        (set[int | list[int]], "those cannot be hashed"),
        (pydantic.ByteSize, "of the type ByteSize"),
        (pydantic.Base64Str, "of the type EncodedStr"),
        (Annotated[int, pydantic.PlainValidator(int)], "a function of the program's own reads it"),
        (IPv4Network, "of the type IPv4Network"),
        (Annotated[dt.date | dt.datetime, Ge(dt.date(2020, 1, 1))], "bounds of it cannot be kept"),
        (set[Node], "those cannot be hashed"),
        (set[Listed], "field `items` of `Listed` is of the type set of list, and those cannot be"),
        (set[tuple[dict[str, int], int]], "set of dict, and those cannot be hashed"),
        (Annotated[set[int | bool], several], "True is 1"),
        (Annotated[set[Literal[1, "a", True]], several], "True is 1"),
        (Annotated[set[frozenset[int]], several], "it may be written in any order"),
        (Annotated[Literal["a"], pydantic.Strict()], "Unable to apply constraint 'strict'"),
        (pydantic.IPvAnyAddress, "of the type IPvAnyAddress"),
        (re.Pattern, "of the type re.Pattern"),
        (type[int], r"of the type type\[int\]"),
        (dict[Annotated[int, Ge(0)], int], "bounds of them cannot be kept"),
        (dict[pydantic.RootModel[int], int], "those cannot be hashed"),
        (Annotated[dt.timedelta, Ge(dt.timedelta(1))], "bounds of it cannot be kept"),
        (Annotated[int, Field(lt=5.5)], r"of the type Annotated\[int, "),
        (dict[float, int], "dict with keys of float, and keys of JSON are strings"),
        (Annotated[str, Field(pattern=r"^\D+$")], "means other texts in JSON Schema"),
        (Annotated[str, Field(pattern=r"[^\d]")], "means other texts in JSON Schema"),
        (Annotated[str, Field(pattern=r"(?i)a")], "means other texts in JSON Schema"),
        (pydantic.PastDate, "depends on when that is asked"),
        (Annotated[dt.time, Ge(dt.time(1))], "bounds of it cannot be kept"),
        (pydantic.PostgresDsn, "of the type URL, and no text"),
        (Annotated[set[pydantic.AnyUrl], several], "may be written in several ways"),
        (Annotated[Decimal, Field(ge=10**20)], "has more digits than"),
        (Literal[Color.RED, "x"], "take all of the Enum, or one of str or int"),
    ],
)
def test_what_cannot_be_generated_is_refused_by_name(tp: Any, message: str) -> None:
    with pytest.raises(SchemaUnsupported, match=message):
        spec_of(tp)


def test_addresses_are_those_that_pydantic_takes() -> None:
    allowed = spec_of(Annotated[str, Field(pattern=f"^(?:{literals.EMAIL})$")])
    for text in ("joe.bloggs@example.com", "a+b_c@x-1.y.org"):
        assert allows(allowed, json.dumps(text))
    for text in (
        "a@b",
        "a..b@c.de",
        ".a@c.de",
        "a@-b.de",
        "a@b.c",
        "a@b.1",
        "a@xn--b.de",
        "é@b.de",
    ):
        assert not allows(allowed, json.dumps(text))
    assert re.fullmatch(literals.SPECIAL, "a@b.test")
    pytest.importorskip("email_validator")
    spec, read = spec_of(pydantic.EmailStr), reader_of(pydantic.EmailStr)
    assert not allows(spec, '"a@b.test"')
    for seed in range(40):
        drawn = random.Random(seed)
        assert "@" in read(sample(spec, (drawn.randrange(256) for _ in itertools.count())))


@pytest.mark.parametrize("tp", [pydantic.FileUrl, pydantic.AnyWebsocketUrl, pydantic.RedisDsn])
def test_urls_of_other_schemes_are_read(tp: Any) -> None:
    spec, read = spec_of(tp), reader_of(tp)
    for seed in range(40):
        drawn = random.Random(seed)
        assert read(sample(spec, (drawn.randrange(256) for _ in itertools.count()))).host


def test_a_type_that_needs_a_missing_package_is_refused_by_name() -> None:
    class Parsed:
        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            raise ImportError("parser is not installed")

    @dataclass
    class Message:
        sender: Parsed

    with pytest.raises(SchemaUnsupported, match=r"`sender` .* type Parsed, .* not installed"):
        spec_of(Message)


def test_undefined_names_and_deep_types_are_refused() -> None:
    class Later(typing_extensions.TypedDict):
        x: "Undefined"  # noqa: F821

    with pytest.raises(ConstraintError, match="'Undefined', which is not defined"):
        spec_of(Later)
    tp: Any = int
    for _ in range(3_000):
        tp = list[tp]
    with pytest.raises(ConstraintError, match="nested too deep"):
        spec_of(tp)


@pytest.mark.parametrize(
    ("value", "mend"),
    [
        (Ranged(start=1, end=2), "give its class, Ranged"),
        (list[Ranged(start=1, end=2)], "give its class, Ranged"),  # type: ignore[misc]
        (re.compile("a"), "write regex="),
        ([int], "write list"),
        ((int, str), "A | B for one of several"),
    ],
    ids=repr,
)
def test_a_value_in_the_place_of_a_type_is_told_as_such(value: Any, mend: str) -> None:
    with pytest.raises(ConstraintError, match=f"which is no type but a value: .*{mend}"):
        spec_of(value)


def test_a_pattern_in_the_place_of_a_type_is_told_as_such() -> None:
    with pytest.raises(ConstraintError, match=r"'yep', which is not defined .*, or write regex="):
        spec_of("yep|no")


def test_names_of_the_function_that_asks_are_known() -> None:
    @dataclass
    class Inner:
        x: int

    @dataclass
    class Outer:
        inner: "Inner"

    assert reader_of(Outer)('{"inner": {"x": 1}}') == Outer(Inner(1))


def test_a_name_is_what_it_is_where_it_stands() -> None:
    def here() -> Any:
        Item = Literal["one"]  # noqa: N806
        return spec_of(list["Item"])

    def there() -> Any:
        Item = bool  # noqa: N806
        return spec_of(list["Item"])

    assert here() != there()


def test_a_tuple_of_no_items_has_none() -> None:
    none = spec_of(Annotated[tuple[int, ...], Len(0, 0)])
    assert sample(none, itertools.count()) == "[]"


def test_validators_of_the_program_say_their_message() -> None:
    read = reader_of(Ranged)
    assert read('{"start": 1, "end": 2}') == Ranged(start=1, end=2)
    with pytest.raises(ConstraintError, match=r"is no Ranged \(.*it ends before .* on a fork"):
        read('{"start": 3, "end": 2}')
    with pytest.raises(ConstraintError, match="the output 'x' is no int"):
        reader_of(int)("x")
    with pytest.raises(ConstraintError, match="cannot be read as JSON"):
        reader_of({"type": "integer"})("x")


def test_a_required_argument_of_a_dataclass_is_written() -> None:
    @dataclass
    class Scaled:
        x: int
        by: InitVar[int]

        def __post_init__(self, by: int) -> None:
            self.x *= by

    assert allows(spec_of(Scaled), '{"x": 2, "by": 3}')
    assert reader_of(Scaled)('{"x": 2, "by": 3}').x == 6


@pytest.mark.skipif(sys.version_info < (3, 11), reason="NotRequired came with Python 3.11")
def test_a_typed_dict_of_the_standard_library_keeps_what_is_not_required() -> None:
    class Book(typing.TypedDict):
        title: str
        pages: typing.NotRequired[int]

    assert json.loads(spec_of(Book).text)["required"] == ["title"]


class Named(NamedTuple):
    text: str


class Plain(BaseModel):
    text: str


class Strict(BaseModel):
    model_config = ConfigDict(str_max_length=3, str_strip_whitespace=True)

    text: str
    longer: Annotated[str, Field(max_length=9)]
    keys: dict[str, int]
    named: tuple[Named, Named]
    plain: Plain


def test_settings_of_a_class_hold_for_its_strings_and_not_for_those_of_other_classes() -> None:
    spec, read = spec_of(Strict), reader_of(Strict)

    def text(**changes: Any) -> str:
        given = {"text": "abc", "longer": "abcdefghi", "keys": {"abc": 1}}
        given |= {"named": [["abc"], ["a"]], "plain": {"text": " abcd "}}
        return json.dumps(given | changes)

    assert read(text()).plain.text == " abcd "
    assert allows(spec, text())
    for changes in (
        {"text": "abcd"}, {"text": "ab "}, {"longer": "0123456789"}, {"keys": {"abcd": 1}},
        {"named": [["abc"], ["abcd"]]},
    ):  # fmt: skip
        assert not allows(spec, text(**changes)), changes
