"""Golden files of what programs come to: readable, stable, and never written by themselves."""

import enum
from dataclasses import dataclass

import pytest

import lmlang as lm
from lmlang.testing import RandomBackend, ScriptedBackend, assert_matches_golden


class Color(enum.Enum):
    RED = "red"


@dataclass
class Row:
    name: str
    color: Color


@lm.function
def capital(s: lm.ProgramState, country: str) -> str:
    s += lm.user("The capital of " + country + "?")
    s += lm.assistant(lm.gen("city", max_tokens=8, stop="."))
    forks = s.fork(2)
    forks += lm.gen("n", n=2, max_tokens=2)
    forks.join()
    s += " Sure? " + lm.select("sure", ["yes", "no"])
    return str(s["city"])


def test_a_golden_file_has_the_recording_and_what_came_of_it(tmp_path, monkeypatch):
    path = tmp_path / "new" / "capital.golden"
    backend = ScriptedBackend(["Paris.", "a", "b", "c", "\x1b[1md"], scores={"yes": -1, "no": -2})
    state = capital("France", backend=backend, seed=1)
    with pytest.raises(AssertionError, match=r"there is no golden file .*LMLANG_UPDATE_GOLDEN=1"):
        assert_matches_golden(state, path)
    assert not path.exists()
    monkeypatch.setenv("LMLANG_UPDATE_GOLDEN", "1")
    monkeypatch.delenv("CI", raising=False)
    assert_matches_golden(state, path)
    monkeypatch.delenv("LMLANG_UPDATE_GOLDEN")
    text = path.read_text()
    assert '  %5 = gen %4 -> city [max_tokens=8, stop="."]\n       -> "Paris"\n' in text
    assert '-> "a"\n' in text
    assert r'-> "\x1b["' in text
    assert '-> "yes"\n' in text
    assert_matches_golden(state.run_log(), path)
    assert_matches_golden(lm.RunLog.from_json(state.run_log().to_json()), path)


def test_what_differs_is_shown_line_by_line(tmp_path, monkeypatch):
    path = tmp_path / "capital.golden"
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("LMLANG_UPDATE_GOLDEN", "yes")
    rome = ["Rome.", "a", "b", "c", "d"]
    assert_matches_golden(capital("Italy", backend=ScriptedBackend(rome), seed=1), path)
    monkeypatch.setenv("LMLANG_UPDATE_GOLDEN", "0")
    rome[0] = "Roma."
    other = capital("Italy", backend=ScriptedBackend(rome), seed=2)
    before = path.read_bytes()
    with pytest.raises(AssertionError) as e:
        assert_matches_golden(other, path)
    lines = str(e.value).splitlines()
    assert '-       -> "Rome"' in lines
    assert '+       -> "Roma"' in lines
    assert path.read_bytes() == before
    monkeypatch.setenv("LMLANG_UPDATE_GOLDEN", "1")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(AssertionError, match="is set where CI is"):
        assert_matches_golden(other, path)
    assert path.read_bytes() == before


def test_runs_batches_texts_and_values_have_golden_files(tmp_path, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with RandomBackend() as backend:
        rows = [("France",), ("Peru",)]
        batch = capital.run_batch(rows, backend=backend, seed=1)
        again = capital.run_batch(rows, backend=backend, seed=1)
    kinds = {
        "batch": (batch, again, capital.run_batch(rows, backend=RandomBackend(), seed=2)),
        "text": ("one\ntwo", "one\ntwo", "one\n2"),
        "value": (Row("a", Color.RED), {"name": "a", "color": "red"}, Row("b", Color.RED)),
    }
    for name, (first, same, other) in kinds.items():
        path = tmp_path / name
        monkeypatch.setenv("LMLANG_UPDATE_GOLDEN", "1")
        assert_matches_golden(first, path)
        monkeypatch.delenv("LMLANG_UPDATE_GOLDEN")
        assert_matches_golden(same, path)
        with pytest.raises(AssertionError, match="is not what came of it"):
            assert_matches_golden(other, path)


def test_failures_are_part_of_what_came_of_it(tmp_path, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("LMLANG_UPDATE_GOLDEN", "1")
    backend = ScriptedBackend(fail_at=0)
    (state,) = capital.run_batch([("France",)], on_error="return", backend=backend, seed=1)
    assert_matches_golden(state, tmp_path / "failed")
    text = (tmp_path / "failed").read_text()
    assert '!! BackendError: "call 0 was scripted to fail."' in text


def test_what_no_golden_file_can_hold_or_be_is_told(tmp_path, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(AssertionError, match="is a folder"):
        assert_matches_golden("text", tmp_path)
    with pytest.raises(lm.ProgramError, match="can hold no object"):
        assert_matches_golden(object(), tmp_path / "object")
    other = tmp_path / "other"
    other.write_bytes(b"\xff\xfe")
    with pytest.raises(AssertionError, match="is not what came of it"):
        assert_matches_golden("a\udcff", other)
    monkeypatch.setenv("LMLANG_UPDATE_GOLDEN", "1")
    assert_matches_golden("a\udcff", other)
    monkeypatch.delenv("LMLANG_UPDATE_GOLDEN")
    assert_matches_golden("a\udcff", other)
