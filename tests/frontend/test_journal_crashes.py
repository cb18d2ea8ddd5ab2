"""Batches that SIGKILL ends at any instant, and that go on: nothing ended is lost or run twice.

A child process runs the batch and writes down, in a file that outlives it, every generation that
its backend has computed ("ran") and every one whose text its program has seen ("seen").
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

import lmlang as lm
from lmlang.testing import RandomBackend

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")

ROWS = 40
KILLS = 3
PER_ROW = 5
SEED = 11
NOTES = {"fd": -1, "kill_at": 0, "lives": 0}


def note(kind, key):
    """One line, written at once: what stands there has happened, whatever happens next."""
    if NOTES["fd"] >= 0:
        os.write(NOTES["fd"], f"{kind} {key}\n".encode())


def kill():
    time.sleep(random.Random(NOTES["kill_at"]).uniform(0, 0.004))  # wherever the others then are
    os.kill(os.getpid(), signal.SIGKILL)


class Noting(RandomBackend):
    """Writes down what it has computed, and has its process killed after so much of that."""

    def generate(self, request):
        generation = super().generate(request)
        note("ran", f"{request.draw_key:016x}")
        NOTES["lives"] += 1
        if NOTES["lives"] == NOTES["kill_at"]:
            threading.Thread(target=kill).start()
        return generation


@lm.function
def record(s, i):
    s += f"Record {i}. Name: " + lm.gen("name", max_tokens=6, stop="e")
    s.sync()
    (key,) = s.run_log().operations[0].draw_keys
    note("seen", f"{key:016x} {s['name']!r}")
    s += " Age: " + lm.gen("age", type=int, max_tokens=8)
    forks = s.fork(2)
    forks += lm.gen("detail", max_tokens=5)
    forks.join()
    s += lm.select("kind", ["person", "thing"]) + lm.gen("end", max_tokens=4)
    note("row", i)
    return s["age"]


def run(journal, **keywords):
    rows = [{"i": i} for i in range(ROWS)]
    return record.run_batch(
        rows, backend=Noting(1), journal=journal, seed=SEED, num_threads=8, **keywords
    )


def told(states):
    return [
        [s.text(), s["name"], s["age"], s["detail"], s["kind"], s["end"], s.ret_value]
        for s in states
    ]


def live(journal, notes, kill_at, version):
    """One life of a child; what it printed if it came to its end."""
    child = subprocess.run(
        [sys.executable, __file__, str(journal), str(notes), str(kill_at), version],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=os.getcwd(),
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    if child.returncode == -signal.SIGKILL:
        return None
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


def lines(notes):
    """Lines of the notes, by their kinds."""
    found = {"ran": [], "seen": [], "row": []}
    for line in notes.read_text().splitlines():
        kind, _, key = line.partition(" ")
        found[kind].append(key)
    return found


@pytest.mark.parametrize("version", ["", "1"])
def test_killed_at_any_instant_and_resumed_it_is_the_uninterrupted_run(tmp_path, version):
    expected = told(run(None))
    journal, notes = tmp_path / "run.sqlite", tmp_path / "notes"
    notes.touch()
    chance = random.Random(version)
    lives, ends = [], []
    for kill_at in (*(chance.randint(1, 60) for _ in range(KILLS)), 0):
        ends.append(live(journal, notes, kill_at, version))
        lives.append(lines(notes))
        notes.write_text("")
    result = ends.pop()
    assert None in ends
    assert {each.name for each in tmp_path.iterdir()} == {"run.sqlite", "notes"}
    assert json.dumps(result) == json.dumps(expected)
    # What a program has seen in one life is what it sees in all that follow, and runs in none.
    texts = {}
    for each in lives:
        assert not texts.keys() & set(each["ran"])
        for line in each["seen"]:
            key, _, text = line.partition(" ")
            assert texts.setdefault(key, text) == text
    assert len(texts) == ROWS
    # Whatever ran twice was under way when a life ended: of 8 rows, with two forks each.
    ran = Counter(key for each in lives for key in each["ran"])
    assert len(ran) == ROWS * PER_ROW
    assert sum(ran.values()) - len(ran) <= KILLS * 16
    if version:  # a row that has been kept is never begun again
        assert sum(len(each["row"]) for each in lives) <= ROWS + KILLS * 8


def main(journal, notes, kill_at, version):
    NOTES["fd"] = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    NOTES["kill_at"] = int(kill_at)
    print(json.dumps(told(run(journal, version=version or None))))


if __name__ == "__main__":
    main(*sys.argv[1:])
