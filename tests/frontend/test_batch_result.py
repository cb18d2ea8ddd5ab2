import dataclasses
import datetime
import enum
import sys
from decimal import Decimal
from uuid import UUID

import pydantic
import pytest

import lmlang as lm
from lmlang.testing import ScriptedBackend


class Mood(enum.Enum):
    SAD = "sad"
    GLAD = "glad"


@dataclasses.dataclass
class Point:
    x: int
    tags: list[str]


class Person(pydantic.BaseModel):
    name: str
    home: Point | None = None


ID = UUID(int=5)
VALUES = {
    "whole": [1, 2],
    "half": [0.5, 1.5],
    "word": ["a", "b\n\x1b[31mred"],
    "yes": [True, False],
    "gap": [1, None],
    "large": [2**70, 1],
    "mood": [Mood.SAD, Mood.GLAD],
    "point": [Point(1, ["a"]), Point(2, [])],
    "person": [Person(name="Ann"), Person(name="Bob", home=Point(3, ["b"]))],
    "many": [[Person(name="Cy")], []],
    "day": [datetime.date(2024, 2, 29), datetime.date(2025, 1, 1)],
    "price": [Decimal("1.50"), Decimal("2.25")],
    "id": [ID, ID],
}


@lm.function
def fill(s, i):
    s += f"{i}" + lm.gen("text", max_tokens=3) + lm.gen(max_tokens=2)
    for name, values in VALUES.items():
        s[name] = values[i]


@pytest.fixture
def filled():
    return fill.run_batch([(0,), (1,)], backend=ScriptedBackend(), seed=1)


@lm.function
def ask(s, question, word="x"):
    s["word"] = word.upper()
    s += question + lm.gen("answer", max_tokens=4)
    if question == "bad":
        raise ValueError("no\nsuch thing")


def rows(*questions):
    return [{"question": question} for question in questions]


def test_dicts_have_arguments_variables_of_their_own_types_and_errors():
    found = ask.run_batch(
        [*rows("a", "bad"), {"word": "w"}], backend=ScriptedBackend(["A"] * 2), on_error="return"
    )
    first, second, third = found.to_dicts()
    assert first == {"question": "a", "word": "X", "answer": "A", "error": None}
    assert second["error"] == "ValueError: no\nsuch thing"
    assert second["question"] == "bad"
    assert third["question"] is None
    assert third["error"].startswith("ProgramTypeError: row 2: ask")
    assert [type(error) for error in found.errors.values()] == [ValueError, lm.ProgramTypeError]
    assert list(found.errors) == [1, 2]
    assert found.arguments[0] == {"question": "a", "word": "x"}


def test_an_error_of_the_programs_own_keeps_its_name():
    @lm.function
    def program(s, error):
        s["error"] = error

    (row,) = program.run_batch([("mine",)], backend=ScriptedBackend()).to_dicts()
    assert row == {"error": "mine", "row_error": None}


def test_numbers_of_a_partial_result_are_those_of_the_rows():
    with pytest.raises(ValueError, match="no") as caught:
        ask.run_batch(rows("a", "b", "bad"), backend=ScriptedBackend(), num_threads=1)
    partial = caught.value.partial
    assert partial.indices == (0, 1)
    assert partial.errors == {}
    assert [row["question"] for row in partial.to_dicts()] == ["a", "b"]


def test_usage_is_that_of_all_rows():
    found = ask.run_batch(
        rows("a", "bb", "bad"), backend=ScriptedBackend(["xy", "z", "w"]), on_error="return",
        num_threads=1,
    )  # fmt: skip
    usage = found.usage
    assert (
        usage.prompt_tokens == usage.prefill_tokens == sum(s.usage().prompt_tokens for s in found)
    )
    assert usage.generated_tokens == sum(state.usage().generated_tokens for state in found) > 0
    assert (usage.reused_rows, usage.reused_generations, usage.reused_tokens) == (0, 0, 0)


def test_pandas_has_columns_of_plain_types_and_objects_as_they_are(filled):
    pandas = pytest.importorskip("pandas")
    frame = filled.to_pandas()
    assert list(frame.columns) == ["i", "text", *VALUES, "error"]
    assert list(frame.index) == [0, 1]
    for name, values in VALUES.items():
        assert frame[name].tolist() == values
        assert [type(v) for v in frame[name].tolist()] == [type(v) for v in values]
    kinds = {name: pandas.api.types.infer_dtype(frame[name]) for name in ("whole", "half", "yes")}
    assert kinds == {"whole": "integer", "half": "floating", "yes": "boolean"}
    assert frame.dtypes["whole"].kind == "i"
    assert frame.dtypes["gap"].kind == "O"
    assert frame.whole.sum() == 3


def test_arrow_has_structs_and_lists(filled):
    pytest.importorskip("pyarrow")
    with pytest.raises(TypeError, match=r"the column 'large' has values of int, which Arrow has"):
        filled.to_arrow()
    for state, value in zip(filled, (5, 6), strict=True):
        state["large"] = value
    table = filled.to_arrow()
    assert table.column_names == ["i", "text", *VALUES, "error"]
    assert table.column("point").to_pylist() == [{"x": 1, "tags": ["a"]}, {"x": 2, "tags": []}]
    assert table.column("person").to_pylist() == [
        {"name": "Ann", "home": None},
        {"name": "Bob", "home": {"x": 3, "tags": ["b"]}},
    ]
    assert table.column("mood").to_pylist() == ["sad", "glad"]
    assert table.column("day").to_pylist() == VALUES["day"]
    assert table.column("price").to_pylist() == VALUES["price"]
    assert table.column("id").to_pylist() == [str(ID)] * 2
    assert str(table.schema.field("whole").type) == "int64"


def test_a_column_of_types_that_do_not_go_together_is_named():
    pytest.importorskip("pyarrow")

    @lm.function
    def program(s, i):
        s["mixed"] = i if i else "zero"

    found = program.run_batch([(0,), (1,)], backend=ScriptedBackend())
    with pytest.raises(TypeError, match="the column 'mixed' has values of int, str, which Arrow"):
        found.to_arrow()
    assert [row["mixed"] for row in found.to_dicts()] == ["zero", 1]


def test_a_table_is_no_rows_and_says_what_gives_them():
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    found = ask.run_batch(rows("a"), backend=ScriptedBackend())
    for table, said in (
        (found.to_pandas(), r"pandas's DataFrame .* rows\.to_dict\(\"records\"\)"),
        (found.to_arrow(), r"pyarrow's Table .* rows\.to_pylist\(\)"),
    ):
        with pytest.raises(TypeError, match=said):
            ask.run_batch(table, backend=ScriptedBackend())


def test_a_missing_package_is_named(filled, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for call, package in ((filled.to_pandas, "pandas"), (filled.to_arrow, "pyarrow")):
        with pytest.raises(lm.ProgramError, match=rf"needs {package}.*pip install 'lmlang\[tables"):
            call()


def test_the_text_is_a_table_of_80_columns_without_control_characters(filled):
    lines = str(filled).splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in str(filled)
    assert lines[0].startswith("2 rows, ")
    found = ask.run_batch(
        rows(*["a long question " * 9, "bad"], *map(str, range(60))),
        backend=ScriptedBackend(lambda prompt: "an answer"),
        on_error="return",
    )
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("62 rows, 1 failed, ")
    assert lines[1].split() == ["row", "question", "word", "answer", "error"]
    assert lines[3].endswith(r"ValueError: no\nsuch thing")
    assert "… 42 more rows" in lines
    assert len(lines) == 2 + 20 + 1
    assert "error" not in str(ask.run_batch(rows("a"), backend=ScriptedBackend()))
    assert str(ask.run_batch([], backend=ScriptedBackend())).startswith("0 rows, ")


def test_cells_read_as_people_write_and_wide_characters_keep_columns_aligned():
    @lm.function
    def program(s, text):
        s["made"] = {"day": datetime.date(2025, 3, 1), "of": [text]}
        s["end"] = "|"

    found = program.run_batch([('so "called"',), ("日本",)], backend=ScriptedBackend())
    _, head, first, second = str(found).splitlines()
    assert first.split("  ")[2] == 'so "called"'
    assert '{"day": "2025-03-01", "of": ["so \\"called\\""]}' in first
    at = head.index("end")
    assert first[at] == "|" == second[at - 4]  # behind four characters of two columns each
    assert "2025-03-01&quot;, &quot;of" in found._repr_mimebundle_()["text/html"]


def test_values_that_were_shortened_are_counted_in_the_table():
    @lm.function
    def program(s):
        s += lm.gen("digits", regex=r"\d+;", max_tokens=4)

    found = program.run_batch([()], backend=ScriptedBackend(["1234567;"]))
    assert found.to_dicts() == [{"digits": "123;", "error": None}]
    assert "1 output closed to fit max_tokens" in " ".join(str(found).split())


def test_many_columns_fit_the_line_too():
    @lm.function
    def wide(s):
        for i in range(40):
            s[f"column_{i}"] = "a long value"

    lines = str(wide.run_batch([()], backend=ScriptedBackend())).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "… 31 more columns"


def test_texts_that_are_no_unicode_are_objects_or_told():
    @lm.function
    def odd(s, text):
        s["text\x1b[31m\n"] = text

    found = odd.run_batch([("a\udcff",), ("b",)], backend=ScriptedBackend())
    assert repr(found[0]) == r"<ProgramState of odd: text\x1b[31m\n>"
    pytest.importorskip("pandas")
    assert list(found.to_pandas()["text"]) == ["a\udcff", "b"]
    pytest.importorskip("pyarrow")
    with pytest.raises(lm.ProgramError, match="the column 'text' has values of str"):
        found.to_arrow()
