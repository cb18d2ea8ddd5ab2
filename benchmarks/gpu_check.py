"""Checks everything that needs a GPU on one: kernels, whole runs, speeds. One table, one JSON file.

    kernels    every kernel in float32, float16 and bfloat16 beside the CPU
    parity     programs and greedy outputs beside the CPU's and transformers', with and without
               CUDA graphs
    speed      attention as a share of the copy bandwidth and the GEMM rate; cascade beside plain
    steps      decode steps of a random 1B and 8B Llama beside their floor; Python's part
    programs   five programs beside transformers' generate and continuous batching

Each part is a process of its own with a time limit: what crashes or hangs takes nothing else with
it, and what it had found is kept. Parts that measure run alone. All of it takes less than 8
minutes on one H200. The exit status is 1 where something failed, 2 where only targets of speed were
missed. ``--dry-run`` runs the same code on a CPU at tiny sizes, where no number means anything and
no target counts.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpu_check_rows import Row, failed
from tables import print_table

PARTS = {"kernels": 150, "parity": 150, "speed": 80, "steps": 130, "programs": 110}
"""Seconds that each part may take."""
STAGES = (("kernels", "parity"), ("speed",), ("steps",), ("programs",))
"""Parts that run side by side: those that measure nothing, most of whose time is compiling."""
SECONDS = 470
"""That all of them may take together."""
MARK = "row: "
"""Begins the lines by which a part's process tells what it has found."""


def main() -> int:
    """Run the parts, print the table, write the JSON."""
    options = arguments()
    if options.child:
        return child(options)
    if not options.dry_run and not has_gpu():
        sys.exit("there is no GPU that torch can use: see nvidia-smi, or give --dry-run")
    begun = time.monotonic()
    found: dict[str, list[Row]] = {}
    for stage in STAGES:
        left = options.seconds - (time.monotonic() - begun)
        parts = [part for part in stage if options.only in (None, part)]
        with ThreadPoolExecutor(len(stage)) as threads:
            started = [
                threads.submit(of_process, part, min(PARTS[part], left), sys.argv[1:])
                for part in parts
            ]
            found |= zip(parts, [each.result() for each in started], strict=True)
    facts = setup(options.dry_run) | {"seconds": round(time.monotonic() - begun, 1)}
    return told(found, facts, options)


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument(
        "--model", type=Path, help="the GGUF file of a plain Llama (default: the embedded model)"
    )
    parser.add_argument(
        "--json", type=Path, default=Path("gpu_check.json"), help="the file to write"
    )
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="that all may take (default: %(default)s)"
    )
    parser.add_argument("--child", choices=PARTS, help=argparse.SUPPRESS)
    return parser.parse_args()


def has_gpu() -> bool:
    """Whether torch can use one."""
    import torch

    return torch.cuda.is_available()


def child(options: argparse.Namespace) -> int:
    """One part, in this process: each row is told as soon as it is known."""
    from gpu_check_setting import CPU, GPU, Setting

    from lmlang.errors import ModelError
    from lmlang.runtime.models.fetch import find_embedded_model

    device = CPU if options.dry_run else GPU
    model = options.model
    if model is None:
        try:
            model = find_embedded_model()
        except ModelError as error:
            print(error, file=sys.stderr)
    try:
        part = importlib.import_module(f"gpu_check_{options.child}")
        for row in part.run(Setting(device, options.dry_run, model)):
            print(MARK + json.dumps(dataclasses.asdict(row)), flush=True)
    except Exception as error:
        print(MARK + json.dumps(dataclasses.asdict(failed(options.child, error))), flush=True)
        raise
    return 0


def of_process(part: str, seconds: float, given: Sequence[str]) -> list[Row]:
    """The rows of a part that runs in a process of its own, for so many seconds at most."""
    if seconds <= 0:
        return [Row(part, ok=False, note="no time was left for it")]
    command = [sys.executable, __file__, *given, "--child", part]
    begun = time.monotonic()
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    late = threading.Timer(seconds, os.killpg, (process.pid, signal.SIGKILL))  # and its own ones
    late.start()
    rows: list[Row] = []
    errors: list[str] = []
    said = threading.Thread(target=lambda: errors.append(process.stderr.read()))
    said.start()
    for line in process.stdout:
        if line.startswith(MARK):
            rows.append(Row(**json.loads(line.removeprefix(MARK))))
            print(f"  {part}: {text_of(rows[-1])}", file=sys.stderr, flush=True)
    process.wait()
    late.cancel()
    said.join()
    taken = time.monotonic() - begun
    if process.returncode and not (rows and rows[-1].name == part):
        why = "killed: it took too long" if taken >= seconds else f"status {process.returncode}"
        last = errors[0].strip().splitlines()[-1:] or [""]
        rows.append(Row(part, ok=False, note=f"{why} after {taken:.0f} s; {last[0][:160]}"))
    if process.returncode:
        print(errors[0][-4_000:], file=sys.stderr)
    return rows


def setup(dry: bool) -> dict[str, Any]:
    """What the numbers depend on."""
    facts: dict[str, Any] = {"device": "cpu, dry run", "python": platform.python_version()}
    for name in ("torch", "triton", "transformers", "numpy"):
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            facts[name] = "none"
    if not dry:
        import torch

        facts["device"], facts["cuda"] = torch.cuda.get_device_name(0), torch.version.cuda
        facts["memory"] = torch.cuda.mem_get_info(0)[1]
    return facts


def text_of(row: Row) -> str:
    """A row in one line."""
    number = "" if row.value is None else f" {row.value:.4g} {row.unit}"
    return f"{row.name}:{number} {verdict(row)} {row.note}".strip()


def verdict(row: Row) -> str:
    """What came of a row's target."""
    if row.ok is None:
        return ""
    if row.ok:
        return "ok"
    return "MISSED" if row.speed else "FAILED"


def told(found: dict[str, list[Row]], facts: dict[str, Any], options: argparse.Namespace) -> int:
    """Print and write all of it; returns the exit status."""
    if options.dry_run:  # of two cores and tiny sizes: nobody misses anything
        found = {
            part: [dataclasses.replace(row, ok=None if row.speed else row.ok) for row in rows]
            for part, rows in found.items()
        }
    lines = [
        (
            f"{part}: {row.name}",
            "" if row.value is None else f"{row.value:.4g}",
            row.unit,
            row.target,
            verdict(row),
            row.note,
        )
        for part, rows in found.items()
        for row in rows
    ]
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print_table("GPU check", ("", "value", "unit", "target", "", "note"), lines)
    verdicts = [line[4] for line in lines]
    failures, misses = verdicts.count("FAILED"), verdicts.count("MISSED")
    print(f"\n{len(lines)} rows: {failures} failed, {misses} missed their target")
    told = {
        "benchmark": "gpu_check",
        "dry_run": options.dry_run,
        **facts,
        "failed": failures,
        "missed": misses,
        "parts": {part: [dataclasses.asdict(row) for row in rows] for part, rows in found.items()},
    }
    options.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 1 if failures else 2 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
