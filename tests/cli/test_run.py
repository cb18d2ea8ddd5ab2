"""``lmlang run``: options from the signature, results on stdout alone, exit codes."""

import json
import os
import shlex
import stat
import subprocess
import sys

import pytest

import lmlang as lm
from lmlang.cli import target
from lmlang.testing import RandomBackend


def test_the_help_shows_the_parameters_with_types_and_defaults(lmlang, program):
    ran = lmlang("run", f"{program()}:capital", "--help")
    assert ran.code == 0
    for line in (
        "parameters of capital:",
        "The capital of a country.",
        "--country COUNTRY",
        "str (required)",
        "int; 2000 without it",
        "one of dry, warm; dry without it",
        "--loud, --no-loud",
    ):
        assert line in ran.out, line
    assert "More about it" not in ran.out
    ran = lmlang("run", f"{program()}:typed", "--help")
    assert "--arg seed=…: int; 0 without it" in ran.out  # --seed is the run's
    assert "one of a, 1 (required)" in ran.out


def test_a_run_prints_variables_and_is_the_run_of_the_same_seed(lmlang, program):
    path = program()
    ran = lmlang(
        "run", f"{path}:capital", "--country", "Peru", "--tone", "warm", "--loud", "--seed", 7
    )

    @lm.function(backend=RandomBackend())
    def capital(s, country, year, tone, loud):
        s += "In 2000 (warm, True) the capital of Peru is " + lm.gen("city", max_tokens=6)

    assert ran.code == 0
    city, country = ran.out.splitlines()
    assert country == "country: Peru"
    assert city.startswith("city: ")
    again = lmlang(
        "run", f"{path}:capital", "--country", "Peru", "--tone", "warm", "--loud", "--seed", 7
    )
    assert again.out == ran.out
    assert "from the body" in ran.err
    assert "from the body" not in ran.out


def test_texts_become_values_of_their_types(lmlang, program):
    ran = lmlang(
        *("run", f"{program()}:typed", "--days", "2024-02-29", "--arg", "days=2024-03-01"),
        *("--pair", "[1, 2.5]", "--kind", "1", "--arg", "seed=5"),
    )
    assert json.loads(ran.out) == {
        "days": ["2024-02-29", "2024-03-01"],
        "pair": [1, 2.5],
        "kind": 1,
        "name": None,
        "seed": 5,
    }
    ran = lmlang(
        "run",
        f"{program()}:typed",
        "--days",
        "[]",
        "--pair",
        "[1, 2]",
        "--kind",
        "a",
        "--name",
        "5",
    )
    assert json.loads(ran.out)["name"] == "5"  # a text where one is taken


def test_a_parameter_without_a_type_has_that_of_its_default(lmlang, tmp_path):
    path = tmp_path / "untyped.py"
    path.write_text(
        "import lmlang as lm\n"
        "from lmlang.testing import ScriptedBackend\n"
        "@lm.function(backend=ScriptedBackend())\n"
        "def f(s, q, turns=2, flag=False, ratio=0.5, name='x', none=None):\n"
        "    s += 'a'\n"
        "    return [q, turns, flag, ratio, name, none]\n"
    )
    asked = ("run", f"{path}:f", "--q", "5")
    ran = lmlang(*asked, "--turns", "3", "--flag", "--ratio", "2", "--none", "1")
    assert json.loads(ran.out) == ["5", 3, True, 2.0, "x", "1"]
    wrong = lmlang(*asked, "--turns", "1.5")
    assert wrong.code == 2
    assert "turns=1.5 is no int: " in wrong.err
    assert "int; 2 without it" in lmlang("run", f"{path}:f", "--help").out


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("capitals.py:capital",), 2, "capital(country: str, year: int = 2000, tone"),
        (("capitals.py:capital",), 2, "needs 'country': give --country"),
        (("capitals.py:capital", "--country", "a", "--year", "x"), 2, "year='x' is no int"),
        (("capitals.py:capital", "--country", "a", "--tone", "red"), 2, "tone='red' is no"),
        (
            ("capitals.py:capital", "--country", "a", "--yaer", "1"),
            2,
            "unrecognized arguments: --yaer",
        ),
        (("capitals.py:capital", "--arg", "yaer=1"), 2, "its parameters are country, year, tone"),
        (("capitals.py:capital", "--arg", "year"), 2, "write --arg NAME=VALUE"),
        (("capitals.py:capital", "--arg", "year=1", "--arg", "year=2"), 2, "'year' is given twice"),
        (("capitals.py:capital", "--year", "1", "--arg", "year=2"), 2, "'year' is given twice"),
        (("capitals.py:captial",), 1, "did you mean capital?"),
        (("capitals.py",), 1, "the programs capital, typed: name one"),
        (("capitals.py:plain",), 1, "put @lm.function above its def"),
        (("none.py:f",), 1, "there is no file 'none.py'"),
        (("no_such_module_here:f",), 1, "no file and no module 'no_such_module_here'"),
        (("capitals.py:capital", "--country", "a", "--out", "x.csv"), 1, "--out is for rows"),
        (("capitals.py:capital", "--country", "a", "--num-threads", "0"), 1, "is for rows: give"),
        (("capitals.py:capital", "--country", "a", "--temperature", "-1"), 1, "temperature=-1.0"),
        (("capitals.py:capital", "--country", "a", "--url", "u", "--model", "m"), 1, "--url names"),
    ],
)
def test_what_is_wrong_is_told_with_its_mend(
    lmlang, program, monkeypatch, tmp_path, arguments, code, told
):
    program()
    monkeypatch.chdir(tmp_path)
    ran = lmlang("run", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert told in ran.err


def test_an_error_of_the_program_is_shown_from_its_own_lines_on(lmlang, program):
    ran = lmlang("run", f"{program()}:capital", "--country", "Nowhere")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.rstrip().endswith("ValueError: there is no such place")
    first = next(line for line in ran.err.splitlines() if line.startswith("  File"))
    assert "capitals.py" in first
    ran = lmlang("run", program("def (\n", "misspelt.py"))
    assert (ran.code, ran.out) == (1, "")
    assert 'misspelt.py", line 1' in ran.err
    assert ran.err.splitlines()[-1].startswith("SyntaxError:")
    assert "target.py" not in ran.err
    ran = lmlang("run", program("import lmlang\n1 / 0\n", "broken.py"))
    assert ran.code == 1
    assert "ZeroDivisionError" in ran.err


def test_control_characters_of_a_model_reach_no_terminal(lmlang, program):
    path = program(
        r"""
        import lmlang as lm
        from lmlang.testing import ScriptedBackend

        @lm.function(backend=ScriptedBackend(["a\x1b[31mred\x9b0m\u202eb\u2066\r\x07"] * 2))
        def f(s):
            s += lm.gen("x")
        """
    )
    assert lmlang("run", path).out == "x: a[31mred0mb\n"
    told = lmlang("run", path, "--json").out
    assert not set(told) & set("\x1b\x9b\u202e\u2066\r\x07")
    assert json.loads(told)["variables"] == {"x": "a\x1b[31mred\x9b0m\u202eb\u2066\r\x07"}


def test_a_run_can_be_looked_at_and_its_log_kept(lmlang, program, tmp_path):
    path, kept = program(), tmp_path / "log.json"
    arguments = ("run", f"{path}:capital", "--country", "Peru", "--seed", 7)
    for show, told in (
        ("transcript", "the capital of Peru is"),
        ("tokens", "city"),
        ("tree", "gen"),
        ("log", "capital on random: "),
    ):
        ran = lmlang(*arguments, "--show", show, "--log", kept)
        assert ran.code == 0
        assert told in ran.out
        assert "\x1b" not in ran.out
    log = lm.RunLog.from_json(kept.read_text())
    assert (log.program, log.seed) == ("capital", 7)
    if sys.platform != "win32":
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_the_same_from_a_module_on_the_path(lmlang, program, monkeypatch, tmp_path):
    program(name="some_capitals.py")
    monkeypatch.chdir(tmp_path)
    ran = lmlang("run", "some_capitals:capital", "--country", "Peru", "--json")
    assert json.loads(ran.out)["variables"]["country"] == "Peru"


def test_a_file_named_as_a_module_of_python_does_not_stand_for_it(lmlang, program):
    before = {name: sys.modules[name] for name in ("json", "random")}
    for name in before:
        ran = lmlang("run", f"{program(name=f'{name}.py')}:capital", "--country", "Peru")
        assert ran.code == 0
    assert before == {name: sys.modules[name] for name in before}


@pytest.mark.parametrize(
    ("named", "place", "name"),
    [
        ("a/b.py:f", "a/b.py", "f"),
        ("a.b:f", "a.b", "f"),
        (r"C:\x\b.py:f", r"C:\x\b.py", "f"),
        (r"C:\x\b.py", r"C:\x\b.py", None),
        ("b.py", "b.py", None),
    ],
)
def test_files_and_drives(named, place, name):
    assert target.split(named) == (place, name)


def test_a_terminal_without_its_letters_gets_them_escaped(program):
    path = program(
        """
        import lmlang as lm
        from lmlang.testing import ScriptedBackend

        @lm.function(backend=ScriptedBackend(["Brasília"]))
        def f(s):
            s += lm.gen("x")
        """
    )
    ran = subprocess.run(
        [sys.executable, "-m", "lmlang", "run", str(path)],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "TERM": "dumb", "COLUMNS": "0"},
        capture_output=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (
        0,
        b"x: Bras\\xedlia" + os.linesep.encode(),
        b"",
    )


def test_a_reader_that_goes_ends_it_quietly(program):
    path = program(
        """
        import lmlang as lm
        from lmlang.testing import RandomBackend

        @lm.function(backend=RandomBackend())
        def f(s, n: int):
            s += lm.gen("x", max_tokens=4)
        """
    )
    rows = path.parent / "rows.jsonl"
    rows.write_text("".join(f'{{"n": {n}}}\n' for n in range(3000)))
    with subprocess.Popen(
        [sys.executable, "-m", "lmlang", "run", str(path), "--rows", str(rows)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        told = process.stderr.read().decode()
    assert process.returncode == 141
    assert "Traceback" not in told
    assert "BrokenPipe" not in told


@pytest.mark.skipif(sys.platform == "win32", reason="of shells and devices of POSIX")
def test_streams_that_are_closed_and_logs_that_are_no_files(lmlang, program, tmp_path):
    path, pipe, link = program(), tmp_path / "pipe", tmp_path / "link.json"
    run = f"{shlex.quote(sys.executable)} -m lmlang run {path}:capital --country Peru"
    for closed, code in ((">&-", 1), ("2>&-", 0), ("<&-", 0), ("<&- >&- 2>&-", 1)):
        ran = subprocess.run(f"{run} {closed}", shell=True, capture_output=True, text=True)
        assert ran.returncode == code, (closed, ran.stderr)
        assert "Traceback" not in ran.stderr
    os.mkfifo(pipe)
    link.symlink_to("log.json")
    refused = lmlang("run", f"{path}:capital", "--country", "Peru", "--log", pipe)
    assert refused.code == 1
    assert refused.out.startswith("city: ")  # the result is not lost
    assert f"cannot be written to '{pipe}', which is no file" in refused.err
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert lmlang("run", f"{path}:capital", "--country", "Peru", "--log", link).code == 0
    assert link.is_symlink()
    assert lm.RunLog.load(tmp_path / "log.json").program == "capital"
