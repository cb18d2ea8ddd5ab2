"""``lmlang run --rows``: what files may hold, what is wrong with them, and what is written."""

import codecs
import csv
import json
import os
import stat
import sys

import pytest

CSV = 'country,year,id\nFrance,1990,=1+1\n"Pe""ru\nLima",x,7\nItaly\n,,\nNowhere,3,-9\n'


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_bad_rows_are_told_and_the_others_go_on(lmlang, program, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_bytes(codecs.BOM_UTF8 + CSV.replace("\n", "\r\n").encode())
    ran = lmlang("run", f"{program()}:capital", "--rows", rows, "--seed", 1)
    assert ran.code == 3
    found = lines(ran.out)
    assert [line["row"] for line in found] == [1, 2, 3, 4, 5]
    assert found[0]["input"] == {"country": "France", "year": 1990, "id": "=1+1"}
    assert found[0]["error"] is None
    assert found[0]["variables"]["country"] == "France"
    assert found[1]["input"]["country"] == 'Pe"ru\r\nLima'
    assert found[1]["error"].startswith("year='x' is no int")
    assert found[2]["error"] == "it has 1 field, and the header has 3"
    assert found[3]["error"] is None  # an empty year is the default, an empty country a text
    assert found[4]["error"] == "ValueError: there is no such place"
    assert "row 2 (line 3): year='x' is no int" in ran.err
    assert "row 5 (line 7): ValueError" in ran.err
    assert "columns that are no parameters of capital, kept: 'id'" in ran.err
    assert "5 rows: 2 done, 3 failed" in ran.err
    with_bar = lmlang("run", f"{program()}:capital", "--rows", rows, "--seed", 1, "--progress")
    assert with_bar.out == ran.out
    assert -1 < with_bar.err.rindex("3/3 rows") < with_bar.err.index("row 2 (line 3): year='x'")


def test_a_batch_of_a_file_is_that_of_its_rows(lmlang, program, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"country": "Peru"}\n\n{"country": "Chad", "year": 1}\n')
    path = program()
    ran = lmlang("run", f"{path}:capital", "--rows", rows, "--seed", 3)
    assert ran.code == 0
    sys.path.insert(0, str(tmp_path))
    import capitals

    states = capitals.capital.run_batch([("Peru",), ("Chad", 1)], seed=3)
    assert [line["variables"]["city"] for line in lines(ran.out)] == [s["city"] for s in states]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("rows.csv", "", "is empty: its first line names the columns"),
        ("rows.csv", "country,year\n", "has no rows"),
        (
            "rows.csv",
            "land,year\na,1\n",
            "has no column 'country' (it has 'land', 'year'), which capital(",
        ),
        ("rows.csv", "land,year\na,1\n", "give --country for all rows"),
        ("rows.csv", "country,country\na,b\n", "the column 'country' twice"),
        ("rows.csv", 'country\na\n"b\n', "cannot be read as CSV from line 3 on"),
        ("rows.csv", b"country\n\xff\n", "is not UTF-8: line 2 holds the byte 0xff"),
        ("rows.jsonl", "", "is empty"),
        ("rows.txt", "", "their format is not clear from '.txt'"),
    ],
)
def test_a_file_that_is_no_rows_is_refused(lmlang, program, tmp_path, name, text, told):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    ran = lmlang("run", f"{program()}:capital", "--rows", path)
    assert (ran.code, ran.out) == (1, "")
    assert told in ran.err
    ran = lmlang("run", f"{program()}:capital", "--rows", tmp_path / "none.csv")
    assert ran.code == 1
    assert "cannot be read (No such file or directory)" in ran.err


def test_bad_lines_of_json(lmlang, program, tmp_path):
    rows = tmp_path / "rows.jsonl"
    deep = "[" * 100_000
    rows.write_text(
        f'{{"country": "a"}}\nnonsense\n[1]\n{{"year": 1}}\n{{"country": 1, "year": NaN}}\n{deep}\n'
        '{"country": 5}\n'
    )
    ran = lmlang("run", f"{program()}:capital", "--rows", rows)
    errors = [line["error"] for line in lines(ran.out)]
    assert ran.code == 3
    assert errors[0] is None
    assert errors[1].startswith("it is no JSON (Expecting value")
    assert errors[2] == "it is no JSON object but of type list"
    assert errors[3].startswith("it has no 'country', which capital(country: str")
    assert errors[4] == "it is no JSON (NaN is no number of JSON)"
    assert errors[5].startswith("it is no JSON (")
    assert errors[6].startswith("country=5 is no str")


def test_arguments_beside_rows_hold_for_all_and_semicolons_and_tabs_separate(
    lmlang, program, tmp_path
):
    path = program()
    for name, text in (("a.csv", "year;id\n1;2,5\n"), ("b.tsv", "year\tid\n1\t2,5\n")):
        (tmp_path / name).write_text(text)
        ran = lmlang("run", f"{path}:capital", "--rows", tmp_path / name, "--country", "Peru")
        (line,) = lines(ran.out)
        assert line["input"] == {"year": 1, "id": "2,5"}
        assert line["variables"]["country"] == "Peru"
        assert "goes before" not in ran.err
    ran = lmlang("run", f"{path}:capital", "--rows", tmp_path / "a.csv", "--year", 3, *COUNTRY)
    assert "the column 'year' goes before the argument of that name" in ran.err
    assert lines(ran.out)[0]["input"]["year"] == 1
    assert "1 row: 1 done, 0 failed" in ran.err


COUNTRY = ("--country", "Peru")
FORMULAS = [
    "=1+1",
    "\uff1d1+1",
    "+1",
    "-2+3",
    "@sum",
    "\t=1",
    "\r=1",
    "\n=1",
    "plain",
    "'quoted",
    '"',
    "a,b\nc",
]


def test_a_table_opens_safely_in_a_spreadsheet(lmlang, program, tmp_path):
    path = program(
        """
        import lmlang as lm
        from lmlang.testing import RandomBackend

        @lm.function(backend=RandomBackend())
        def echo(s, text: str, number: int):
            s["said"] = text
            s["number"] = number
            s["list"] = [text]
        """
    )
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": text, "number": -3}) + "\n" for text in FORMULAS))
    out = tmp_path / "out.csv"
    ran = lmlang("run", path, "--rows", rows, "--out", out)
    assert (ran.code, ran.out) == (0, "")
    with out.open(newline="", encoding="utf-8") as file:
        header, *cells = csv.reader(file)
    assert header == ["row", "text", "number", "said", "variables.number", "list", "error"]
    for text, row in zip(FORMULAS, cells, strict=True):
        safe = f"'{text}" if text[0] in "=\uff1d+-@\t\r\n" else text
        assert row[1:5] == [safe, "-3", safe, "-3"]
        assert json.loads(row[5]) == [text]
    for row in cells:
        for cell in row:
            number = cell.lstrip("-").isdigit()
            assert number or not cell.startswith(tuple("=+-@\t\r\n"))


def test_fields_of_records_are_columns_and_a_value_stands_once(lmlang, program, tmp_path):
    path = program(
        """
        from dataclasses import dataclass
        import lmlang as lm
        from lmlang.testing import RandomBackend

        @dataclass
        class Place:
            city: str
            tags: list[str]

        @lm.function(backend=RandomBackend())
        def place(s, city: str, other: int = 0):
            s["place"] = Place(city, ["=a"])
            return other or s["place"]
        """
    )
    rows, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    for text, header, row in (
        (
            "city\n=Oslo\n",
            "city,place.city,place.tags,error",
            ["1", "'=Oslo", "'=Oslo", '["=a"]', ""],
        ),
        ("city,other\nLima,3\n", "city,other,place.city,place.tags,value,error", None),
    ):
        rows.write_text(text)
        assert lmlang("run", path, "--rows", rows, "--out", out).code == 0
        with out.open(newline="", encoding="utf-8") as file:
            names, cells = csv.reader(file)
        assert names == ["row", *header.split(",")]
        assert cells == (row or ["1", "Lima", "3", "Lima", '["=a"]', "3", ""])


def test_columns_of_a_file_keep_their_names_beside_those_of_results(lmlang, program, tmp_path):
    path = program(
        """
        import lmlang as lm
        from lmlang.testing import RandomBackend

        @lm.function(backend=RandomBackend())
        def f(s, text: str = "without", number: int = 7):
            s["said"] = [text, number]
        """
    )
    rows, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    rows.write_text("row,text,number,error\n9,,,none\n")
    assert lmlang("run", path, "--rows", rows, "--out", out).code == 0
    with out.open(newline="", encoding="utf-8") as file:
        (found,) = csv.DictReader(file)
    assert (found["row"], found["error"]) == ("1", "")
    assert (found["input.row"], found["input.error"]) == ("9", "none")
    assert found["said"] == '["", 7]'  # an empty cell is a text, and no number


def test_results_go_to_a_file_line_by_line_and_bad_places_are_refused_before_a_run(
    lmlang, program, tmp_path
):
    rows = tmp_path / "rows.csv"
    rows.write_text("country\nPeru\nNowhere\n")
    path, out = program(), tmp_path / "out.jsonl"
    ran = lmlang("run", f"{path}:capital", "--rows", rows, "--out", out)
    assert ran.code == 3
    assert ran.out == ""
    assert [line["error"] for line in lines(out.read_text())] == [
        None,
        "ValueError: there is no such place",
    ]
    for name, told in (("out.txt", "must end with .jsonl or .csv"), ("no/out.csv", "No such file")):
        ran = lmlang("run", f"{path}:capital", "--rows", rows, "--out", tmp_path / name)
        assert ran.code == 1
        assert told in ran.err
        assert "from the body" not in ran.err


def test_values_that_were_shortened_are_told(lmlang, program, tmp_path):
    path = program(
        """
        import lmlang as lm
        from lmlang.testing import ScriptedBackend

        @lm.function(backend=ScriptedBackend(["1234567;"]))
        def f(s, n: int):
            s += lm.gen("digits", regex=r"\\d+;", max_tokens=4)
        """
    )
    (tmp_path / "rows.csv").write_text("n\n1\n")
    ran = lmlang("run", path, "--rows", tmp_path / "rows.csv")
    assert ran.err.splitlines()[-1].endswith("; 1 output closed to fit max_tokens")


def test_an_estimate_runs_nothing(lmlang, program, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("country\nPeru\nChad\n")
    ran = lmlang("run", f"{program()}:capital", "--rows", rows, "--estimate")
    assert ran.code == 0
    assert ran.out.startswith("2 rows, 2 requests\n  prompt tokens     88\n")
    assert "generated tokens  2 to 12" in ran.out
    rows.write_text("country,year\nPeru,1\nNowhere,1\nChad,x\n")
    ran = lmlang("run", f"{program()}:capital", "--rows", rows, "--estimate")
    assert ran.code == 3
    assert ran.out.startswith("2 rows, 1 request\n  prompt tokens     at least 41\n")
    assert "in 1 row: it raises ValueError: there is no such place" in ran.out
    assert "row 3 (line 4): year='x' is no int" in ran.err


def test_what_it_took_stands_beside_what_was_forecast(lmlang, program, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("country\nPeru\nChad\n")
    ran = lmlang("run", f"{program()}:capital", "--rows", rows, "--usage")
    assert ran.code == 0
    (line,) = [line for line in ran.err.splitlines() if line.startswith("prompt_tokens")]
    assert line.split() == ["prompt_tokens", "88", "88"]
    assert lmlang("run", f"{program()}:capital", "--country", "a", "--usage").code == 1


def test_a_journal_is_gone_on_from(lmlang, program, tmp_path):
    rows, journal = tmp_path / "rows.csv", tmp_path / "run.sqlite"
    rows.write_text("country\nPeru\nChad\n")
    first = lmlang("run", f"{program()}:capital", "--rows", rows, "--journal", journal)
    again = lmlang("run", f"{program()}:capital", "--rows", rows, "--journal", journal)
    assert first.code == again.code == 0
    assert first.out == again.out  # the seed is the journal's
    assert "2 of the outputs were in the journal" in again.err
    assert "journal" not in first.err
    if sys.platform != "win32":
        assert stat.S_IMODE(journal.stat().st_mode) == 0o600


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("end", ["jsonl", "csv"])
def test_a_full_disk_is_told_in_a_line(lmlang, program, tmp_path, end):
    rows, out = tmp_path / "rows.csv", tmp_path / f"out.{end}"
    rows.write_text("country\nPeru\n")
    out.symlink_to("/dev/full")
    ran = lmlang("run", f"{program()}:capital", "--rows", rows, "--out", out)
    assert (ran.code, ran.out) == (1, "")
    said = f"lmlang run: --out '{out}' cannot be written (No space left on device)."
    assert ran.err.splitlines()[-1] == said
    assert "1 done" not in ran.err


@pytest.mark.parametrize("end", ["jsonl", "csv"])
def test_what_a_file_holds_goes_only_as_there_are_results(lmlang, program, tmp_path, end):
    rows, out = tmp_path / "rows.csv", tmp_path / f"out.{end}"
    rows.write_text("country\nPeru\n")
    out.write_text("of an earlier run\n" * 99)
    arguments = ["run", f"{program()}:capital", "--rows", rows, "--out", out]
    ran = lmlang(*arguments, "--journal", tmp_path / "no folder" / "run.sqlite")
    assert (ran.code, out.read_text()) == (1, "of an earlier run\n" * 99)
    assert lmlang(*arguments).code == 0
    assert "earlier" not in out.read_text()
    assert "Peru" in out.read_text()


def test_rows_are_not_written_over(lmlang, program, tmp_path):
    rows, link = tmp_path / "rows.csv", tmp_path / "link.csv"
    rows.write_text("country\nPeru\n")
    link.symlink_to(rows)
    for out in (rows, link):
        ran = lmlang("run", f"{program()}:capital", "--rows", rows, "--out", out)
        assert (ran.code, ran.out) == (1, "")
        assert f"--out '{out}' is '{rows}', which is read: give another file." in ran.err
    assert rows.read_text() == "country\nPeru\n"


def test_lines_are_json_whatever_the_numbers_are(lmlang, program, tmp_path):
    path = program(
        """
        import lmlang as lm
        from lmlang.testing import RandomBackend

        @lm.function(backend=RandomBackend())
        def f(s, n: float):
            return [n, {"n": n}]
        """
    )
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"n": 1e400}\n{"n": "nan"}\n{"n": 0.5}\n{"n": 1, "n": 2}\n')
    ran = lmlang("run", path, "--rows", rows)

    def refused(name):
        raise AssertionError(name)

    first, second, third, last = (
        json.loads(line, parse_constant=refused) for line in ran.out.splitlines()
    )
    assert (first["value"], first["input"]) == (["inf", {"n": "inf"}], {"n": "inf"})
    assert second["value"] == ["nan", {"n": "nan"}]
    assert third["value"] == [0.5, {"n": 0.5}]
    assert last["error"] == "it is no JSON (it names 'n' twice)"


@pytest.mark.parametrize("end", ["jsonl", "csv"])
def test_an_interrupt_keeps_the_rows_that_had_ended(lmlang, program, tmp_path, end):
    path = program(
        """
        import lmlang as lm
        from lmlang.testing import RandomBackend

        @lm.function(backend=RandomBackend())
        def f(s, n: int):
            if n == 3:
                raise KeyboardInterrupt
            s["n"] = n
        """
    )
    rows, out = tmp_path / "rows.csv", tmp_path / f"out.{end}"
    rows.write_text("n\n1\n2\n3\n4\n")
    ran = lmlang("run", path, "--rows", rows, "--out", out, "--num-threads", 1)
    assert ran.code == 130
    assert "Traceback" not in ran.err
    said = "interrupted after 2 of 4 rows; with --journal FILE a run could go on"
    assert ran.err.splitlines()[-1] == said
    ran = lmlang("run", path, "--rows", rows, "--out", out, "--journal", tmp_path / "j")
    assert ran.err.splitlines()[-1].endswith(f"rows; run it again: it goes on from {tmp_path}/j")
    ran = lmlang("run", path, "--rows", rows, "--out", out, "--num-threads", 1)
    written = out.read_text().splitlines()[end == "csv" :]
    assert len(written) == 2


@pytest.mark.parametrize("more", [(), ("--estimate",)])
def test_no_number_of_threads_is_taken_for_none_given(lmlang, program, tmp_path, more):
    path = program("import lmlang as lm\n\n@lm.function\ndef f(s, n: int):\n    s['n'] = n\n")
    rows = tmp_path / "rows.csv"
    rows.write_text("n\n1\n")
    ran = lmlang("run", path, "--rows", rows, "--num-threads", 0, *more)
    assert (ran.code, ran.out) == (1, "")
    assert "num_threads=0 is out of range: it must be from 1 to 1,024." in ran.err


def test_rows_run_on_a_server(lmlang, program, tmp_path):
    pytest.importorskip("fastapi")
    from lmlang.server.app import make_app
    from lmlang.testing import RandomBackend
    from tests.backends.served import served

    rows = tmp_path / "rows.csv"
    rows.write_text("country\nPeru\nChad\n")
    path = program()
    here = lmlang("run", f"{path}:capital", "--rows", rows, "--seed", 4)
    with RandomBackend() as backend, served(make_app(backend)) as url:
        there = lmlang("run", f"{path}:capital", "--rows", rows, "--seed", 4, "--url", url)
    assert (there.code, there.out) == (0, here.out)
    nobody = lmlang("run", f"{path}:capital", "--country", "Peru", "--url", "http://127.0.0.1:1")
    assert nobody.code == 1
    assert "lmlang run:" in nobody.err
