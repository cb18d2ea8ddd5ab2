"""Five programs and raw rows by lmlang and whoever else runs the same model, each in its process.

    choose   questions behind one long prefix          fork   one text, several ways
    json     records behind one instruction            chat   conversations, turn by turn
    tree     nodes that extend their parents           typed  records by a JSON schema
    prefill, decode   rows that share nothing
    select   answers of lmlang's forms on many items   start  seconds until a Runtime is ready

All subjects are there at once, and stand still (SIGSTOP) while another one is measured; they take
turns. Each starts a program with nothing cached, and keeps what it can within it. Peers that are
installed (`make peers`) run; the others are named. Answers are compared with ours in float32.
What takes longer than --limit seconds is measured once; some are anyhow, after all others. --page
writes the tables into the docs.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import report

# isort: split
import argparse
import contextlib
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import agreement
import startup
from choices import Choices
from judging import judged
from rows import prompts_of
from subjects import BLOCKS, FLOAT32, FOLDER, OURS, SUBJECTS, Late, Subject
from tables import print_json, print_table
from typed import Typed
from writings import Chats, Extractions, Forks, Tree

import lmlang as lm
from lmlang.runtime.models.fetch import find_embedded_model

SIZES = ("small", "half", "full")
PARTS: Mapping[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "choose": (Choices.of, ((150, 2), (1_000, 20), (2_000, 40))),
    "fork": (Forks.of, ((100, 2, 3), (600, 8, 32), (600, 8, 64))),
    "json": (Extractions.of, ((250, 2, 4), (300, 10, 48), (300, 20, 48))),
    "typed": (Typed.of, ((250, 2, 160), (300, 20, 48), (300, 20, 48))),
    "chat": (Chats.of, ((2, 2, 3), (4, 2, 48), (4, 4, 48))),
    "tree": (Tree.of, ((80, 2, 2), (200, 3, 16), (200, 3, 32))),
}
"""Each program: what makes it, and its sizes."""
RAW = {
    "prefill 1": (1, 512, 1),
    "prefill 8": (8, 512, 1),
    "decode 1": (1, 32, 65),
    "decode 8": (8, 32, 65),
    "decode 32": (32, 32, 33),
}
RAW_SMALL = {
    "prefill 1": (1, 24, 1),
    "prefill 8": (8, 24, 1),
    "decode 1": (1, 16, 5),
    "decode 8": (8, 16, 5),
    "decode 32": (32, 16, 3),
}
"""Rows, tokens of their prompts, tokens to make."""


SELECT, START = "select", "start"
ITEMS = (16, 400, 400)
"""Of select, by size."""
COMPARED = (OURS, BLOCKS, FLOAT32)
"""Whose selects are compared."""


def works_of(model: Path, size: str, only: Collection[str]) -> dict[str, Any]:
    """Of these parts the program's name and its input, as JSON has it; of select all programs'."""
    made: dict[str, Any] = {}
    raw = RAW_SMALL if size == "small" else RAW
    with lm.Runtime(model, kv_tokens=64) as runtime:
        for name in only:
            if name in PARTS:
                make, sizes = PARTS[name]
                made[name] = name, dataclasses.asdict(make(runtime, *sizes[SIZES.index(size)]))
            elif name in raw:
                rows, length, tokens = raw[name]
                made[name] = "raw", {"ids": prompts_of(runtime, rows, length), "tokens": tokens}
            elif name == SELECT:
                items = agreement.items(runtime, ITEMS[SIZES.index(size)])
                made[name] = [dataclasses.asdict(each) for each in items]
    return json.loads(json.dumps(made))  # type: ignore[no-any-return]


@contextlib.contextmanager
def begun(
    wanted: Sequence[str], model: Path, threads: int, missing: dict[str, str]
) -> Iterator[dict[str, Subject]]:
    """The subjects that are there, which end afterwards; ``missing`` is told why others are not."""
    found: dict[str, Subject] = {}
    try:
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
        yield found
    finally:
        for subject in found.values():
            subject.end()


def measured(
    name: str, work: Any, subjects: dict[str, Subject], repeat: int, limit: float
) -> dict[str, dict[str, Any]]:
    """Seconds and answers of these subjects, in turns; who is late begins anew with the next part.

    Args:
        name: Of the program.
        work: Its input.
        subjects: By name.
        repeat: Rounds.
        limit: Seconds; who takes longer is measured once, four times as long is late.
    """
    results: dict[str, dict[str, Any]] = {}
    for _ in range(repeat):
        for subject in subjects:
            known = results.setdefault(subject, {"seconds": []})
            slow = any(each > limit for each in known["seconds"])
            if "error" in known or slow:
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
                known["error"] = str(error).strip()[-200:]
            else:
                known["seconds"].append(round(found["seconds"], 4))
                known.setdefault("answer", found["answer"])
                known.setdefault("counters", found["counters"])
    return results


def selected(works: list[Any], subjects: dict[str, Subject], seconds: float) -> dict[str, Any]:
    """What the forms of lmlang choose of many items, beside what float32 does."""
    found = {
        name: [subjects[name].ask("choose", work, seconds)["answer"]["logprobs"] for work in works]
        for name in COMPARED
        if name in subjects
    }
    if FLOAT32 not in found:
        return {}
    exact = found.pop(FLOAT32)
    return {name: agreement.told(mine, exact, works) for name, mine in found.items()}


def shown(
    part: str, results: Mapping[str, dict[str, Any]], whole: Mapping[str, dict[str, Any]]
) -> None:
    """The table of some subjects in one part, beside ours, which may be elsewhere in the whole."""
    known = whole.get(OURS, {}).get("seconds")
    ours = statistics.median(known) if known else None
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
                ", ".join(
                    f"{found[kind]} of {found['of']}" + {"same": ""}.get(kind, f" {kind}")
                    for kind in ("same", "valid", "right")
                    if kind in found
                ),
            )
        )
    print_table(part, ("", "seconds", "spread", "runs", "ratio", "as lmlang float32"), rows)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="rounds (default: 3)")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--small", action="store_true", help="tiny sizes; times mean nothing")
    sizes.add_argument("--half", action="store_true", help="half of the work, or less")
    parser.add_argument("--model", type=Path, help="a .gguf file (default: the embedded model)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of every subject")
    parts, names = (*PARTS, *RAW, SELECT, START), list(SUBJECTS)
    parser.add_argument("--only", nargs="*", choices=parts, default=parts, help="these parts")
    parser.add_argument("--subjects", nargs="*", choices=names, default=names, help="only these")
    parser.add_argument("--without", nargs="*", choices=names, default=(), help="all but these")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds; see above")
    parser.add_argument("--out", type=Path, help="a file for the JSON too")
    parser.add_argument("--page", type=Path, help="write the tables of this JSON into the docs")
    return parser.parse_args()


def main() -> None:
    """Start all, measure all, print."""
    given = options()
    if given.page is not None:
        from page import write

        write(json.loads(given.page.read_text()))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no subject is left
    model = given.model or find_embedded_model()
    size = "small" if given.small else "half" if given.half else "full"
    works = works_of(model, size, given.only)
    wanted = [name for name in given.subjects if name not in given.without]
    if not FOLDER.exists() and any(SUBJECTS[name].is_there for name in wanted):
        command = [sys.executable, Path(__file__).with_name("folder.py"), model, FOLDER]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    facts = report.setup(str(model)) | {"threads": given.threads}
    print(", ".join(f"{name} {value}" for name, value in facts.items()), flush=True)
    told: dict[str, Any] = {"benchmark": "peers", "small": given.small, "size": size, **facts}
    told |= {"repeat": given.repeat, "groups": {name: SUBJECTS[name].group for name in wanted}}
    told |= {"missing": {}, "steps": {}, "results": {}}
    if START in given.only:  # while no subject holds the files in memory
        told[START] = startup.measured(model, given.threads, given.repeat)
        print(f"{START}: {json.dumps(told[START])}", flush=True)
    exact: dict[str, Any] = {}
    for once in (False, True):
        names = [name for name in wanted if SUBJECTS[name].once == once]
        rounds = 1 if once else given.repeat
        with begun(names, model, given.threads, told["missing"]) as subjects:
            for _ in run(works, subjects, rounds, given.limit, told, exact):
                if given.out is not None:
                    given.out.write_text(json.dumps(told))
    for name, why in told["missing"].items():
        print(f"{name}: {why}")
    print_json(told)


def run(
    works: Mapping[str, Any],
    subjects: dict[str, Subject],
    rounds: int,
    limit: float,
    told: dict[str, Any],
    exact: dict[str, Any],
) -> Iterator[str]:
    """Measure part by part; yields the part that is done.

    Args:
        works: By part, of `works_of`.
        subjects: By name.
        rounds: How often each is measured.
        limit: Of `measured`.
        told: What was found is added to it.
        exact: Answers by part that others are compared with: they are added, or were there.
    """
    for part, work in works.items():
        if part == SELECT:
            if any(name in COMPARED for name in subjects):
                told[SELECT] = selected(work, subjects, 4 * limit)
                print(f"\n{SELECT}: {json.dumps(told[SELECT])}", flush=True)
                yield part
            continue
        name, given = work
        kinds = {subject: SUBJECTS[subject].parts for subject in subjects}
        some = {n: subject for n, subject in subjects.items() if not kinds[n] or part in kinds[n]}
        if not some:
            continue
        if told["size"] != "small":
            measured(name, less(name, given), some, 1, limit)
        results = measured(name, given, some, rounds, limit)
        reference = results.get(FLOAT32, results.get(OURS, {})).get("answer")
        exact.setdefault(part, reference)
        judged(name, given, results, exact[part])
        told["results"].setdefault(part, {}).update(results)
        shown(part, results, told["results"][part])
        told["steps"][part] = given["tokens"] - 1 if name == "raw" else 0
        yield part


def less(name: str, work: Any) -> Any:
    """Less of a program, to warm up."""
    if name == "choose":
        return work | {"questions": work["questions"][:2], "ids": work["ids"][:2]}
    if name == "typed":  # whole ones, as a cut record is none
        return work | {key: work[key][:2] for key in ("reviews", "ids", "right")}
    return work | {"tokens": 2} | ({"depth": 1} if name == "tree" else {})


if __name__ == "__main__":
    main()
