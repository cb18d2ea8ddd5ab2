"""Five programs and raw rows by lmlang and whoever else runs the same model, each in its process.

    choose   questions behind one long prefix          fork   one text, several ways
    json     records behind one instruction            chat   conversations, turn by turn
    tree     nodes that extend their parents           prefill, decode   rows that share nothing

All subjects are there at once, and stand still (SIGSTOP) while another one is measured; they take
turns. Each starts a program with nothing cached, and keeps what it can within it. Peers that are
installed (`make peers`) run; the others are named. Answers are compared with ours in float32.
What takes longer than --limit seconds is measured once. --page writes the table into the docs.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import report

# isort: split
import argparse
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from choices import Choices
from rows import prompts_of
from subjects import FOLDER, SUBJECTS, Late, Subject
from tables import print_json, print_table
from writings import Chats, Extractions, Forks, Tree

import lmlang as lm
from lmlang.runtime.models.fetch import find_embedded_model

OURS, FLOAT32 = report.OURS, report.OURS_FLOAT32
SIZES = ("small", "half", "full")
PARTS: Mapping[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "choose": (Choices.of, ((150, 2), (1_000, 20), (2_000, 40))),
    "fork": (Forks.of, ((100, 2, 3), (600, 8, 32), (600, 8, 64))),
    "json": (Extractions.of, ((250, 2, 4), (300, 10, 48), (300, 20, 48))),
    "chat": (Chats.of, ((2, 2, 3), (4, 2, 48), (4, 4, 48))),
    "tree": (Tree.of, ((80, 2, 2), (200, 3, 16), (200, 3, 32))),
}
"""Each program: what makes it, and its sizes."""
RAW = {
    "prefill 1": (1, 512, 1),
    "prefill 8": (8, 512, 1),
    "decode 1": (1, 32, 65),
    "decode 8": (8, 32, 65),
}
RAW_SMALL = {
    "prefill 1": (1, 24, 1),
    "prefill 2": (2, 24, 1),
    "decode 1": (1, 16, 5),
    "decode 2": (2, 16, 5),
}
"""Rows, tokens of their prompts, tokens to make."""


def works_of(model: Path, size: str) -> dict[str, tuple[str, Any]]:
    """Of every part the program's name and its input, as JSON has it."""
    made: dict[str, tuple[str, Any]] = {}
    with lm.Runtime(model, kv_tokens=64) as runtime:
        for name, (make, sizes) in PARTS.items():
            made[name] = name, dataclasses.asdict(make(runtime, *sizes[SIZES.index(size)]))
        for name, (rows, length, tokens) in (RAW_SMALL if size == "small" else RAW).items():
            ids = prompts_of(runtime, rows, length)
            made[name] = "raw", {"ids": ids, "tokens": tokens}
    return json.loads(json.dumps(made))  # type: ignore[no-any-return]


def begun(
    wanted: Sequence[str], model: Path, threads: int
) -> tuple[dict[str, Subject], dict[str, str]]:
    """The subjects that are there, and why others are not."""
    found: dict[str, Subject] = {}
    missing: dict[str, str] = {}
    for name in wanted:
        kind = SUBJECTS[name]
        if not kind.python.exists():
            missing[name] = f"not installed: make {kind.venv}"
            continue
        began = time.monotonic()
        try:
            found[name] = Subject(kind, model, threads)
        except (Late, RuntimeError) as error:
            missing[name] = f"did not begin: {str(error).strip().splitlines()[-1][:160]}"
        else:
            print(f"{name}: there after {time.monotonic() - began:.1f} s", flush=True)
    return found, missing


def measured(
    name: str, work: Any, subjects: dict[str, Subject], repeat: int, limit: float
) -> dict[str, dict[str, Any]]:
    """Seconds and answers of all subjects, in turns; who is late begins anew with the next part."""
    results: dict[str, dict[str, Any]] = {}
    for number in range(repeat):
        for subject in list(subjects):
            known = results.setdefault(subject, {"seconds": []})
            slow = any(each > limit for each in known["seconds"])
            if "error" in known or (number and (slow or subject.startswith(ONCE))):
                continue
            try:
                found = subjects[subject].ask(name, work, 4 * limit)
                if name == "raw" and work["tokens"] > 1:  # what came before the first token
                    less = subjects[subject].ask(name, work | {"tokens": 1}, 4 * limit)
                    found["seconds"] -= less["seconds"]
            except Late as error:
                known["error"] = str(error)
                subjects[subject].end()
            except RuntimeError as error:
                known["error"] = str(error)[-200:]
            else:
                known["seconds"].append(round(found["seconds"], 4))
                known.setdefault("answer", found["answer"])
                known.setdefault("counters", found["counters"])
    return {
        subject: found for subject, found in results.items() if found["seconds"] or "error" in found
    }


ONCE = ("guidance", "outlines", "lmlang, reference")
"""Measured once, as they are many times slower."""


def judged(name: str, work: Any, results: dict[str, dict[str, Any]]) -> None:
    """Count what is as in ours in float32, and tokens that were made; drops the answers."""
    reference = results.get(FLOAT32, results.get(OURS, {})).get("answer")
    for found in results.values():
        answer = found.pop("answer", None)
        if answer is None or reference is None:
            continue
        if name == "choose":
            found |= _choices(work, answer, reference)
            continue
        pairs = [(_plain(a, work), _plain(b, work)) for a, b in zip(answer, reference, strict=True)]
        found["same"] = sum(a == b for a, b in pairs)
        found["of"] = len(pairs)
        found["tokens"] = sum(map(len, answer))
        if name == "json":
            found["right"] = sum(
                _plain(row, work) == wanted
                for row, wanted in zip(answer, work["right"], strict=True)
            )


def _plain(row: list[int], work: Any) -> list[int]:
    """A row without the end of its line."""
    return row[:-1] if row and row[-1] in work.get("ends", ()) else row


def _choices(work: Any, answer: Any, reference: Any) -> dict[str, Any]:
    chosen = answer["chosen"] if isinstance(answer, dict) else answer
    wanted = reference["chosen"]
    close = [sorted(row)[-1] - sorted(row)[-2] < CLOSE for row in reference["logprobs"]]
    same = sum(a == b or near for a, b, near in zip(chosen, wanted, close, strict=True))
    right = sum(
        0 <= c < len(q["choices"]) and q["choices"][c] == q["answer"]
        for q, c in zip(work["questions"], chosen, strict=True)
    )
    return {"same": same, "of": len(chosen), "right": right}


CLOSE = 0.05
"""Nats between the two likeliest choices below which either is as ours."""


def shown(part: str, results: Mapping[str, dict[str, Any]]) -> None:
    """The table of one part."""
    ours = statistics.median(results[OURS]["seconds"]) if OURS in results else None
    rows = []
    for name, found in results.items():
        if "error" in found and not found["seconds"]:
            rows.append((name, "failed", "", "", "", found["error"][:60]))
            continue
        seconds = found["seconds"]
        middle = statistics.median(seconds)
        rows.append(
            (
                name,
                f"{middle:.3f}",
                f"{min(seconds):.3f}–{max(seconds):.3f}",
                str(len(seconds)),
                f"{middle / ours:.2f}" if ours else "",
                f"{found.get('same', '')} of {found.get('of', '')}"
                + (f", {found['right']} right" if "right" in found else ""),
            )
        )
    print_table(part, ("", "seconds", "spread", "runs", "ratio", "as lmlang float32"), rows)


def main() -> None:
    """Start all, measure all, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="rounds (default: 3)")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--small", action="store_true", help="tiny sizes; times mean nothing")
    sizes.add_argument("--half", action="store_true", help="half of the work, or less")
    parser.add_argument("--model", type=Path, help="a .gguf file (default: the embedded model)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of every subject")
    parser.add_argument("--only", nargs="*", metavar="PART", help="parts (default: all)")
    parser.add_argument("--subjects", nargs="*", metavar="NAME", help="subjects (default: all)")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds; see above")
    parser.add_argument("--out", type=Path, help="a file for the JSON too")
    parser.add_argument("--page", type=Path, help="write the table of this JSON into the docs")
    given = parser.parse_args()
    if given.page is not None:
        from page import write

        write(json.loads(given.page.read_text()))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no subject is left
    model = given.model or find_embedded_model()
    size = "small" if given.small else "half" if given.half else "full"
    works = works_of(model, size)
    wanted = given.subjects or list(SUBJECTS)
    if not FOLDER.exists() and any(SUBJECTS[name].is_there for name in wanted):
        command = [sys.executable, Path(__file__).with_name("folder.py"), model, FOLDER]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    facts = report.setup(str(model)) | {"threads": given.threads}
    print(", ".join(f"{name} {value}" for name, value in facts.items()), flush=True)
    subjects, missing = begun(wanted, model, given.threads)
    parts: dict[str, Any] = {}
    try:
        for part, (name, work) in works.items():
            if given.only and part not in given.only:
                continue
            if not given.small:
                measured(name, less(name, work), subjects, 1, given.limit)
            results = measured(name, work, subjects, given.repeat, given.limit)
            judged(name, work, results)
            shown(part, results)
            parts[part] = results
    finally:
        for subject in subjects.values():
            subject.end()
    for name, why in missing.items():
        print(f"{name}: {why}")
    line = {
        "benchmark": "peers",
        "small": given.small,
        "size": size,
        **facts,
        "repeat": given.repeat,
    }
    told = line | {"missing": missing, "results": parts}
    if given.out is not None:
        given.out.write_text(json.dumps(told))
    print_json(told)


def less(name: str, work: Any) -> Any:
    """Less of a program, to warm up."""
    if name == "choose":
        return work | {"questions": work["questions"][:2], "ids": work["ids"][:2]}
    return work | {"tokens": 2} | ({"depth": 1} if name == "tree" else {})


if __name__ == "__main__":
    main()
