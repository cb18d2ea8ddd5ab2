"""One call for one job: values in order, the prompts that are asked, and what is refused."""

from __future__ import annotations

import datetime as dt
import enum
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Literal, NamedTuple, TypedDict
from uuid import UUID

import pydantic
import pytest

import lmlang as lm
from lmlang.errors import ConstraintError, ProgramError, ProgramTypeError
from lmlang.frontend import defaults
from lmlang.grammar.type_text import outline, written
from lmlang.grammar.types import reader_of
from lmlang.testing import RandomBackend, ScriptedBackend


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class Line(pydantic.BaseModel):
    item: str = pydantic.Field(description="what was\nbought")
    amount: float = 1.0


@dataclass
class Bill:
    vendor: str
    on: dt.date
    lines: list[Line]
    mood: Mood | None = None


class Pair(NamedTuple):
    x: int
    y: int


class Keyed(TypedDict):
    a: int


@dataclass(frozen=True)
class Still:
    x: int
    more: tuple[int, ...] = ()


class Called(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str = pydantic.Field(validation_alias=pydantic.AliasChoices("Name", "nom"))
    kept: int = pydantic.Field(default=1, exclude=True)


class ByName(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(validate_by_alias=False, validate_by_name=True)
    name: str = pydantic.Field(alias="Name")


BILL = Bill("ACME", dt.date(2024, 2, 29), [Line(item="pens", amount=2.5)], Mood.GOOD)
ANSWER = '{"vendor": "B", "on": "2020-01-02", "lines": [], "mood": null}'


# ------------------------------------------------------------------------------- values


def test_a_text_gives_a_value_and_a_list_of_texts_their_values_in_order():
    def answer(prompt):
        return {"one": "1", "two": "2", "three": "3"}[prompt.split("<user>")[-1].split("<")[0]]

    backend = ScriptedBackend(answer)
    assert lm.extract("two", int, backend=backend) == 2
    assert lm.extract(["one", "two", "three"], int, backend=backend) == [1, 2, 3]
    assert lm.extract(("three", "one"), int, backend=backend, num_threads=1) == [3, 1]
    assert lm.generate(["two", "two"], int, backend=backend) == [2, 2]
    assert lm.generate("one", backend=backend) == "1"


def test_a_batch_equals_its_single_calls_under_one_seed():
    texts = ["a", "b", "c"]
    backend = RandomBackend(7)
    many = lm.extract(texts, list[int], backend=backend, seed=3, temperature=1.0)
    alone = [
        lm.extract(text, list[int], backend=backend, seed=3, temperature=1.0) for text in texts
    ]
    assert many == alone
    assert len({str(each) for each in many}) > 1


def test_what_is_asked_is_the_program_that_the_description_shows():
    backend = ScriptedBackend([ANSWER])
    lm.extract(
        "B sold nothing.",
        Bill,
        backend=backend,
        instructions="Dates are of 2020.",
        examples=[
            ("ACME sold pens.", BILL),
            ("C", {"vendor": "C", "on": "2021-01-01", "lines": []}),
        ],
    )
    (request,) = backend.requests
    assert backend.render(request.prompt) == (
        "<system>Extract what is asked for from the text of the user. Take only what the text says."
        ' Answer in this form: {"vendor": text, "on": date, "lines": [{"item": text (what was '
        'bought), "amount": number}, …], "mood": "good" or "bad" or null}\n\nDates are of 2020.'
        "</system><user>ACME sold pens.</user><assistant>"
        '{"vendor": "ACME", "on": "2024-02-29", "lines": [{"item": "pens", "amount": 2.5}], '
        '"mood": "good"}</assistant><user>C</user><assistant>'
        '{"vendor": "C", "on": "2021-01-01", "lines": [], "mood": null}</assistant>'
        "<user>B sold nothing.</user><assistant>"
    )
    assert (request.params.temperature, request.params.max_tokens) == (0.0, 512)


def test_labels_have_probabilities_and_a_margin():
    backend = ScriptedBackend(scores=lambda prompt, choice: {"good": -1.0, "bad": -2.0}[choice])
    found = lm.classify("Nice.", Mood, backend=backend, examples=[("Awful.", Mood.BAD)])
    assert found.label is Mood.GOOD
    assert sum(found.probs.values()) == pytest.approx(1.0)
    assert found.margin == pytest.approx(found.probs[Mood.GOOD] - found.probs[Mood.BAD])
    prompt = backend.render(backend.requests[0].prompt)
    assert "alone: good, bad</system><user>Awful.</user><assistant>bad</assistant>" in prompt
    once = (label for label in ("good", "bad"))
    assert lm.classify("Nice.", once, backend=backend).label in ("good", "bad")
    many = lm.classify(["a", "b"], {"G": "good", "B": "bad"}, backend=backend)
    assert [(each.label, str(each)) for each in many] == [("G", "G")] * 2


def test_labels_of_rows_that_a_journal_has_whole_keep_their_probabilities(tmp_path):
    texts, keywords = ["Nice.", "Awful."], {"journal": tmp_path / "run.sqlite", "version": "1"}
    asked = []

    def score(prompt, choice):
        asked.append(choice)
        return {"good": -1.0, "bad": -2.0}[choice]

    found, again = [
        lm.classify(texts, Mood, backend=ScriptedBackend(scores=score), **keywords)
        for _ in range(2)
    ]
    assert found == again
    assert found[0].margin == pytest.approx(found[0].probs[Mood.GOOD] - found[0].probs[Mood.BAD])
    assert len(asked) == 4


def test_a_stream_gives_values_that_grow_to_the_value():
    backend = ScriptedBackend([ANSWER, "Hi you"], completes="on a thread", chunk=1)
    *growing, last = lm.generate("A bill.", Bill, stream=True, backend=backend)
    assert last.done
    assert last.value == Bill("B", dt.date(2020, 1, 2), [])
    assert all(not each.done and each.complete <= last.complete for each in growing)
    *_, text = lm.generate("Hi", stream=True, backend=backend)
    assert text.value == "Hi you"
    backend.close()


def test_errors_are_raised_or_stand_in_the_place_of_their_values():
    backend = ScriptedBackend(["1", "x"])
    with pytest.raises(lm.GrammarDeadEnd, match=r"at: .*test_oneshot\.py:"):
        lm.extract("a", int, backend=ScriptedBackend(["x"]))
    with pytest.raises(lm.GrammarDeadEnd, match=r"operation: 0\n  prompt ends with"):
        lm.extract(["a", "b"], int, backend=backend, num_threads=1)
    backend = ScriptedBackend(["1", "x", "3"])
    first, error, third = lm.extract(
        ["a", "b", "c"], int, backend=backend, num_threads=1, on_error="return"
    )
    assert (first, third) == (1, 3)
    assert isinstance(error, lm.GrammarDeadEnd)
    assert isinstance(
        lm.extract("a", int, backend=ScriptedBackend(["x"]), on_error="return"), lm.GrammarDeadEnd
    )


def test_a_journal_keeps_what_has_been_generated(tmp_path):
    journal, answers = tmp_path / "run.sqlite", ["1", "2"]
    keywords = {"seed": 1, "journal": journal, "num_threads": 1}
    first = lm.extract(["a", "b"], int, backend=ScriptedBackend(answers), **keywords)
    idle = ScriptedBackend([])
    assert lm.extract(["a", "b"], int, backend=idle, **keywords) == first == [1, 2]
    assert idle.requests == []


def test_under_one_version_another_type_or_other_examples_are_another_program(tmp_path):
    keywords = {"seed": 1, "journal": tmp_path / "run.sqlite", "version": "1"}

    def asked(call):
        backend = ScriptedBackend(lambda prompt: "5", scores={"5": -1.0, "6": -2.0})
        return call(backend), len(backend.requests)

    calls = [
        lambda b: lm.extract("a", int, backend=b, **keywords),
        lambda b: lm.extract("a", float, backend=b, **keywords),
        lambda b: lm.extract("a", int, backend=b, examples=[("b", 1)], **keywords),
        lambda b: lm.extract("a", int, backend=b, instructions="Now.", **keywords),
        lambda b: lm.extract("a", int, backend=b, max_tokens=9, **keywords),
        lambda b: lm.classify("a", ["5", "6"], backend=b, **keywords).label,
        lambda b: lm.classify("a", {5: "5", 6: "6"}, backend=b, **keywords).label,
    ]
    first = [asked(call) for call in calls]
    assert [repr(value) for value, _ in first] == ["5", "5.0", "5", "5", "5", "'5'", "5"]
    # The last one asks for the same as the one before it, of which it has other values.
    assert [count for _, count in first] == [1, 1, 1, 1, 1, 1, 0]
    assert [asked(call) for call in calls] == [(value, 0) for value, _ in first]
    with pytest.raises(ProgramError, match="version has 257 characters"):
        lm.extract("a", int, **{**keywords, "version": "x" * 257}, backend=ScriptedBackend())


# ---------------------------------------------------------------------- types and their text


@pytest.mark.parametrize(
    ("value", "tp"),
    [
        (7, int), (2.5, float), (True, bool), (Decimal("1.5"), Decimal),
        (Mood.BAD, Mood), ("b", Literal["a", "b"]), (dt.date(2024, 2, 29), dt.date),
        (dt.datetime(2024, 2, 29, 12, tzinfo=dt.timezone.utc), dt.datetime),
        (dt.time(12, 30), dt.time), (UUID(int=5), UUID), ("a \"b\" é", str), (None, int | None),
        (BILL, Bill), (Line(item="x"), Line), ([1, 2], list[int]), ((1, "a"), tuple[int, str]),
        ({"k": [1]}, dict[str, list[int]]), ({3}, set[int]), (Pair(1, 2), Pair), ({"a": 1}, Keyed),
        ({"d": [Decimal("0.5"), Decimal(2)]}, dict[str, list[Decimal]]),
        (5, Annotated[int, pydantic.Field(ge=5)]), ([BILL, None], list[Bill | None]),
        ("1", int | str), ("x", dt.date | str), ({dt.date(2024, 2, 29): 1}, dict[dt.date, int]),
        ({True: 1}, dict[bool, int]), ({Still(1, (2,)), Still(2)}, set[Still]),
        (dt.timedelta(400, 5, 7), dt.timedelta), ([dt.timedelta(-1, 3)], list[dt.timedelta]),
        (Called(Name="a", other=3), Called), (ByName(name="a"), ByName), (Still(1), Still | None),
    ],
)  # fmt: skip
def test_values_of_every_type_are_written_so_that_they_are_read_back(value, tp):
    text = written(value, tp)
    assert reader_of(tp)(text) == value
    backend = ScriptedBackend([text])
    found = lm.extract("x", tp, backend=backend, examples=[("y", value)])
    assert found == value
    assert f"<user>y</user><assistant>{text}</assistant>" in backend.render(
        backend.requests[0].prompt
    )


def test_outlines_are_short_or_none():
    assert outline(int) == "integer"
    assert outline(Mood) == '"good" or "bad"'
    assert outline({"type": "object", "properties": {"a": {"const": 1}}}) == '{"a": 1}'
    assert outline(dict[str, int]) == "{text: integer, …}"
    assert outline(tuple[int, str]) == "[integer, text]"
    assert outline(lm.grammar.Regex("a+")) == ""
    wide = pydantic.create_model("Wide", **{f"field_{i}" * 9: (int, ...) for i in range(60)})
    assert outline(wide) == ""

    class Tree(pydantic.BaseModel):
        children: list[Tree] = []

    assert outline(Tree).startswith('{"children": [')


# ----------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: lm.extract(b"x", int), ProgramTypeError, "decode it"),
        (lambda: lm.extract((t for t in "ab"), int), ProgramTypeError, "a generator is no text"),
        (lambda: lm.extract({"a": 1}, int), ProgramTypeError, "a dict is no text"),
        (lambda: lm.extract(None, int), ProgramTypeError, "a NoneType is no text"),
        (lambda: lm.extract(["a", 1], int), ProgramTypeError, "text 1 of the list is an int"),
        (lambda: lm.extract("a", int, sed=1), ProgramTypeError, "did you mean seed"),
        (lambda: lm.extract("a", int, n=2), ProgramTypeError, "n cannot act"),
        (lambda: lm.extract("a", None), ProgramTypeError, "type is None"),
        (lambda: lm.extract("a", int, tries=0), ProgramError, "tries=0"),
        (lambda: lm.extract("a", int, instructions=3), ProgramTypeError, "instructions is an int"),
        (lambda: lm.extract("a", int, examples="ab"), ProgramTypeError, "examples are a str"),
        (lambda: lm.extract("a", int, examples=["ab"]), ProgramTypeError, "example 0 is"),
        (lambda: lm.extract("a", int, examples=[("t", "x")]), ConstraintError, "none of the type"),
        (lambda: lm.extract("a", type(lambda: 0)), ConstraintError, "no text"),
        (lambda: lm.classify("a", []), ProgramError, "nothing to choose from"),
        (lambda: lm.classify("a", ["x", "x"]), ProgramError, "stands twice"),
        (lambda: lm.classify("a", ["x", ""]), ProgramError, "empty"),
        (lambda: lm.classify("a", "xy"), ProgramError, "."),
        (lambda: lm.classify("a", ["x", "y"], examples=[("t", "z")]), ProgramError, "none of the"),
        (lambda: lm.classify("a", ["x", "y"], tries=2), ProgramTypeError, "unknown keyword"),
        (lambda: lm.extract("a", int, stream=True), ProgramError, "stream cannot act"),
        (lambda: lm.generate(["a"], stream=True), ProgramError, "stream=True is for one prompt"),
        (lambda: lm.generate("a", stream=True, on_error="raise"), ProgramError, "of batches"),
        (lambda: lm.generate("a", examples=[("t", 3)]), ProgramTypeError, "the answer of an ex"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(call, error, said):
    backend = ScriptedBackend([])
    with lm.use(backend), pytest.raises(error, match=said):
        call()
    assert backend.requests == []


def test_of_no_texts_there_are_no_values(monkeypatch):
    monkeypatch.setattr(defaults, "resolve", lambda _: pytest.fail("a backend was loaded"))
    for found in (lm.extract([], int), lm.classify([], ["a", "b"]), lm.generate([], stop="x")):
        assert found == []
