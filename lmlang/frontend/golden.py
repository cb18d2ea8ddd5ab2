"""What came of a program as text that is kept beside its test: its recording, and each outcome.

      %4 = gen %3 -> city [max_tokens=8]
           -> "Paris"

Nothing in it is of one run alone: no times, no ids, no counts of what was cached.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from lmlang.errors import ProgramTypeError, quote
from lmlang.frontend.batch_result import BatchResult
from lmlang.frontend.literals import quoted
from lmlang.frontend.logged import LoggedOperation
from lmlang.frontend.printer import print_program
from lmlang.frontend.recorder import ProgramState
from lmlang.frontend.runlog import RunLog

UPDATE = "LMLANG_UPDATE_GOLDEN"
"""The variable of the environment that has golden files written."""
LONGEST_DIFF = 120
"""Lines of a difference that are shown."""
_MADE = re.compile(r"  %(\d+)(?:, %\d+)* = ")


def golden_text(result: object) -> str:
    """A result as the text of a golden file.

    Args:
        result: A state, a run log, a batch, a text, or a value that JSON can say.
    """
    if isinstance(result, BatchResult):
        parts = [f"# row {number}\n{golden_text(state)}" for number, state in enumerate(result)]
        return "\n".join(parts)
    if isinstance(result, ProgramState):
        result = result.run_log()
    if isinstance(result, RunLog):
        return "\n".join(_lines(result)) + "\n"
    if isinstance(result, str):
        return result if result.endswith("\n") else result + "\n"
    from lmlang.grammar.signatures import plain  # which loads pydantic

    try:
        return json.dumps(plain(result, whole=True), ensure_ascii=False, indent=2) + "\n"
    except ValueError as error:
        raise ProgramTypeError(
            f"a golden file can hold no {type(result).__name__} ({quote(str(error))[1:-1]}): give "
            "a state, a run log, a batch, a text, or a value that JSON can say."
        ) from None


def compare(result: object, path: str | os.PathLike[str]) -> None:
    """Raise AssertionError unless a golden file has this result; write it where that is asked."""
    file, found = Path(path), golden_text(result).encode("utf-8", "backslashreplace").decode()
    # A file of another kind is none that is the same, and can be written over.
    expected = file.read_bytes().decode("utf-8", "backslashreplace") if file.is_file() else None
    if expected == found:
        return
    asked = os.environ.get(UPDATE, "0").lower() not in ("", "0", "false", "no")
    name = quote(str(file))
    if file.is_dir():
        raise AssertionError(f"the golden file {name} is a folder: give the path of a file.")
    if asked and os.environ.get("CI"):
        raise AssertionError(
            f"{name} is not what came of it, and {UPDATE} is set where CI is: golden files are "
            "written and looked at by people; run the test at home."
        )
    if asked:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(found.encode())
        return
    if expected is None:
        raise AssertionError(
            f"there is no golden file {name}: run the test with {UPDATE}=1, look at what it has "
            "written, and keep it beside the test."
        )
    raise AssertionError(
        "\n".join(
            [
                f"{name} is not what came of it (run the test with {UPDATE}=1 if it is right now):",
                *_difference(expected, found),
            ]
        )
    )


def _difference(expected: str, found: str) -> list[str]:
    lines = list(
        difflib.unified_diff(
            expected.splitlines(), found.splitlines(), "golden", "now", lineterm="", n=2
        )
    )
    more = len(lines) - LONGEST_DIFF
    return lines[:LONGEST_DIFF] + ([f"… and {more:,} more lines"] if more > 0 else [])


def _lines(log: RunLog) -> Iterator[str]:
    """The recording, below each node what came of it."""
    by_made = {operation.made: operation for operation in log.operations}
    for line in print_program(log.recording).splitlines():
        yield line
        made = _MADE.match(line)
        operation = by_made.get(int(made[1])) if made else None
        if made and operation is not None:
            indent = " " * made.end()
            yield from (f"{indent}{told}" for told in _outcome(operation))
    if log.error is not None:
        yield f"ended by {log.error.type}: {quoted(log.error.message)}"


def _outcome(operation: LoggedOperation) -> Iterable[str]:
    if operation.error is not None:
        yield f"!! {operation.error.type}: {quoted(operation.error.message)}"
    elif operation.status != "done":
        yield f"!! {operation.status}"
    elif operation.kind in ("gen", "select"):
        texts = [sample.text for sample in operation.samples] or [operation.text or ""]
        yield from (f"-> {quoted(text)}" for text in texts)
