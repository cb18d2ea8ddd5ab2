import dataclasses
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from pathlib import PurePosixPath
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmlang as lm
from lmlang.frontend.draws import NoCanonicalForm, canonical, digest, draw_key
from lmlang.frontend.rows import RowKeys
from lmlang.testing import ScriptedBackend


class Color(Enum):
    RED = 1
    BLUE = 2


class Level(int, Enum):
    LOW = 1


class Rights(Flag):
    READ = 1
    WRITE = 2


class Person(pydantic.BaseModel, extra="allow"):
    name: str


@dataclasses.dataclass
class Point:
    x: int
    y: int


@dataclasses.dataclass
class Size:
    x: int
    y: int


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=4),
    ),
    max_leaves=12,
)


def exactly(value):
    """A value with the types of everything in it, for comparison; the order of a dict is none."""
    if isinstance(value, (list, tuple)):
        return (type(value), [exactly(item) for item in value])
    if isinstance(value, dict):
        return (dict, sorted((repr(k), repr(exactly(v))) for k, v in value.items()))
    return (type(value), repr(value))


@given(values, values)
def test_two_values_have_one_form_exactly_when_they_are_the_same(a, b):
    assert (canonical(a) == canonical(b)) == (exactly(a) == exactly(b))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, True),
        (1, 1.0),
        (1, "1"),
        ("a", b"a"),
        ([1], (1,)),
        (None, "None"),
        (["ab", "c"], ["a", "bc"]),
        ([[1], 2], [[1, 2]]),
        ({1}, frozenset({1})),
        (Level.LOW, 1),
        (Color.RED, Color.BLUE),
        (Point(1, 2), Size(1, 2)),
        (Point(1, 2), Point(2, 1)),
        (0.0, -0.0),
        ({}, []),
        (2**64, 2**64 + 1),
        ("", None),
        (Rights(0), Rights(3)),
        (Rights(3), Rights.READ),
        (date(2024, 1, 2), datetime(2024, 1, 2)),
        (datetime(2024, 1, 2), datetime(2024, 1, 2, tzinfo=timezone.utc)),
        (time(1), time(1, fold=1)),
        (timedelta(1), timedelta(1, 1)),
        (Decimal("1"), Decimal("1.0")),
        (UUID(int=1), str(UUID(int=1))),
        (PurePosixPath("a"), "a"),
        (Person(name="a"), Person(name="b")),
        (Person(name="a"), Person(name="a", more=1)),
        (Person(name="a"), {"name": "a"}),
    ],
)
def test_what_differs_has_different_forms(a, b):
    assert canonical(a) != canonical(b)


def test_order_of_dicts_and_sets_does_not_matter():
    assert canonical({"a": 1, "b": 2}) == canonical({"b": 2, "a": 1})
    assert canonical(set("abcdefgh")) == canonical(set("hgfedcba"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rights(0),
        lambda: datetime(2024, 1, 2, tzinfo=timezone(timedelta(hours=1))),
        lambda: Person(name="a", more=[Decimal("1.0")]),
        lambda: PurePosixPath("a") / "b",
    ],
)
def test_what_is_equal_has_one_form(make):
    assert canonical(make()) == canonical(make())


def test_values_in_themselves_and_foreign_objects_have_no_form():
    ring = []
    ring.append(ring)
    for value in (ring, object(), [lambda: 0], {"f": open}):
        with pytest.raises(NoCanonicalForm):
            canonical(value)


def test_a_lone_surrogate_and_a_huge_number_have_a_form():
    assert canonical("\ud800") != canonical("\ud801")
    assert canonical(10**6000) != canonical(10**6000 + 1)


parts = st.tuples(st.integers(0, 2**63 - 1), st.binary(), st.text(max_size=8), st.integers(0, 9))


@given(parts, parts)
def test_draw_keys_are_64_bits_and_differ_with_every_part(a, b):
    assert 0 <= draw_key(*a) < 2**64
    assert (draw_key(*a) == draw_key(*b)) == (a == b)


def test_draw_keys_are_the_same_on_every_machine():
    assert draw_key(7, b"row", "3/fork1.2/0") == draw_key(7, b"row", "3/fork1.2/0", 0)
    assert draw_key(7, b"row", "0") == 16261450354525450959


def test_equal_rows_are_numbered_and_rows_without_form_go_by_index():
    same, other, odd = digest("a"), digest("b"), object()
    numbering, reversed_numbering = RowKeys(), RowKeys()
    keys = [numbering.next(i, 0, given) for i, given in enumerate(["a", "b", "a", odd, odd])]
    assert same != other
    assert len(set(keys)) == 5
    assert [reversed_numbering.next(0, 0, each) for each in ["b", "a"]] == [keys[1], keys[0]]


def test_a_given_key_must_have_a_canonical_form():
    keys = RowKeys(lambda row: 1 if row == "a" else object())
    keys.next(0, "a", None)
    with pytest.raises(lm.ProgramTypeError, match=r"key\(row\) of row 1 cannot be a key: object"):
        keys.next(1, "b", None)


@lm.function
def tree(s, more):
    """Some generations on several levels; `more` adds text, which no draw depends on."""
    s += more + lm.gen("a")
    forks = s.fork(3)
    for fork in forks:
        fork += more + lm.gen("b")
        for inner in fork.fork(2):
            inner += lm.gen("c") + more + lm.gen("d")
    forks.join()
    s += lm.gen("e")
    for fork in s.fork(2):
        fork += lm.gen("f")


def keys_of(backend, **kwargs):
    tree(backend=backend, **kwargs)
    return {request.tag.op_path: request.draw_key for request in backend.requests}


def test_every_operation_of_a_run_has_a_draw_key_of_its_own():
    keys = keys_of(ScriptedBackend(), more="", seed=1)
    assert len(keys) == len(set(keys.values())) == 1 + 3 + 12 + 1 + 2
    assert "1/fork0.2/1/fork0.1/1" in keys
    assert "3/fork1.1/0" in keys


def test_draw_keys_do_not_depend_on_timing():
    with ScriptedBackend(completes="on a thread") as threaded:
        assert keys_of(threaded, more="", seed=1) == keys_of(ScriptedBackend(), more="", seed=1)


def test_draw_keys_depend_on_the_seed_and_the_arguments():
    base = keys_of(ScriptedBackend(), more="", seed=1)
    assert set(base.values()).isdisjoint(keys_of(ScriptedBackend(), more="", seed=2).values())
    assert set(base.values()).isdisjoint(keys_of(ScriptedBackend(), more="x", seed=1).values())


def test_without_a_seed_every_run_draws_anew_and_says_with_what():
    @lm.function
    def one(s):
        s += lm.gen("x")

    first, second = one(backend=ScriptedBackend()), one(backend=ScriptedBackend())
    assert first.meta("x").seed != second.meta("x").seed
    again = one(backend=ScriptedBackend(), seed=first.meta("x").seed)
    assert again["x"] == first["x"]


def test_a_generations_own_seed_overrides_the_runs():
    @lm.function
    def two(s):
        s += lm.gen("x", seed=5) + lm.gen("y")

    runs = [two(backend=ScriptedBackend(), seed=seed) for seed in (1, 2)]
    assert runs[0]["x"] == runs[1]["x"]
    assert runs[0]["y"] != runs[1]["y"]
    assert [runs[0].meta(n).seed for n in "xy"] == [5, 1]
