"""The check for GPUs runs on a CPU at tiny sizes: every part, and what it makes of faults."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny import tiny_shape, write_tiny_gguf

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPT = BENCHMARKS / "gpu_check.py"


def check(folder: Path, *given: str) -> tuple[int, str, dict[str, Any]]:
    """Exit status, output and JSON of a dry run."""
    file = folder / "found.json"
    command = [sys.executable, str(SCRIPT), "--dry-run", "--json", str(file), *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert file.exists(), done.stderr
    value: dict[str, Any] = json.loads(file.read_text())
    return done.returncode, done.stdout, value


@pytest.mark.parametrize(
    ("part", "wanted"),
    [
        (
            "kernels",
            {"decode, float32, worst", "planned, float32, worst", "draws unlike the reference's"},
        ),
        (
            "parity",
            {
                "embedded, float32, graphs: programs",
                "1B, bfloat16: graphs beside none",
                "1B, float32: beside transformers",
            },
        ),
        ("speed", {"copy bandwidth", "decode attention, 4 x 64, slots in runs"}),
        ("steps", {"Python a step, 4 rows", "tiny decode step, 4 rows of 40"}),
        ("programs", {"tree: lmlang", "choices: transformers generate"}),
    ],
)
def test_every_part_runs_and_nothing_fails(
    part: str, wanted: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    model = write_tiny_gguf(tmp_path / "tiny.gguf", tiny_shape(max_positions=4_096))
    setting = importlib.import_module("gpu_check_setting").Setting
    rows = list(
        importlib.import_module(f"gpu_check_{part}").run(setting(torch.device("cpu"), True, model))
    )
    assert [row for row in rows if row.ok is False and not row.speed] == []
    assert {row.name for row in rows} >= wanted
    assert all(row.value is None or row.value >= 0 for row in rows)


def test_a_part_is_a_process_whose_rows_become_a_table_and_json(tmp_path: Path) -> None:
    status, output, value = check(tmp_path, "--only", "speed")
    assert (status, value["failed"], value["missed"]) == (0, 0, 0)
    assert value["dry_run"] is True
    names = [row["name"] for row in value["parts"]["speed"]]
    assert names[:2] == ["copy bandwidth", "GEMM rate"]
    assert all(f"speed: {name}" in output for name in names)


def test_a_part_that_takes_too_long_is_ended_and_failed(tmp_path: Path) -> None:
    status, output, value = check(tmp_path, "--only", "speed", "--seconds", "0.2")
    (row,) = value["parts"]["speed"]
    assert (status, row["ok"], value["failed"]) == (1, False, 1)
    assert row["note"].startswith("killed: it took too long")
    assert "FAILED" in output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_said_at_once() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "no GPU that torch can use" in done.stderr
