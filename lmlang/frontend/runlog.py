"""The run log: the record of one run as a value, which reads as a table and travels as JSON.

    RunLog ── operations in program order ── samples (generations), choices (selects)

Text and turns are no operations of it; they stand in its recording, with all that was asked for.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from lmlang.errors import ProgramError, ProgramTypeError, WireError, quote
from lmlang.frontend import ir
from lmlang.frontend.injected import rerunning
from lmlang.frontend.literals import quoted
from lmlang.frontend.logged import Choice, Failure, Kind, LoggedOperation, Sample, Status
from lmlang.frontend.runlog_json import (
    FAILURE,
    MAYBE_COUNT,
    OPERATION,
    PARAMS,
    RECORDING,
    SPELLING,
    TIME,
)
from lmlang.frontend.story import Story, steps
from lmlang.markup import Html, View
from lmlang.protocol import Backend, SamplingParams, Usage
from lmlang.wire import forms
from lmlang.wire.forms import COUNT, FLOAT, INTEGER, TEXT

__all__ = ["Choice", "Failure", "Kind", "LoggedOperation", "RunLog", "Sample", "Status"]

VERSION = 2
"""Of the run log and its JSON; a reader refuses what it does not know."""


@dataclass(frozen=True, slots=True, repr=False)
class RunLog:
    """What ``s.run_log()`` returns: the record of a run so far, complete after its end. A value.

    Args:
        program: The program's name.
        run_id: Unique to the run.
        model: The backend's name of its model; empty where it would not say.
        seed: Of the run's draws.
        row_key: What they depend on besides, in hexadecimal digits.
        params: What generations start with that say nothing else.
        n: How many samples they have then.
        lora: The adapter that acts on the model, in its selects too.
        max_program_tokens: Generated tokens of all of them at most.
        began: When the run began, in seconds since 1970.
        seconds: How long it took; None: it has not ended.
        error: What ended it before its end.
        operations: In program order.
        recording: What the run has recorded: the text and the turns too, and what was asked for;
            `LoggedOperation.made` leads from an operation to its node.
        spelling: What tokens read like, by their ids: those of outputs and, where asked for, their
            alternatives; none where the backend would have to be asked for each.
        version: Of the run log.
    """

    program: str
    run_id: str
    model: str
    seed: int
    row_key: str
    params: SamplingParams
    n: int
    lora: str | None
    max_program_tokens: int | None
    began: float
    seconds: float | None
    error: Failure | None
    operations: tuple[LoggedOperation, ...]
    recording: ir.Program
    spelling: tuple[tuple[int, str], ...] = ()
    version: int = VERSION

    @property
    def usage(self) -> Usage:
        """Tokens of all operations."""
        total = Usage()
        for operation in self.operations:
            total += operation.usage
        return total

    def failed(self) -> tuple[LoggedOperation, ...]:
        """The operations that failed by themselves."""
        return tuple([each for each in self.operations if each.status == "failed"])

    def to_json(self) -> str:
        """The log as JSON; `from_json` makes an equal one of it."""
        return forms.dumps(_RUN_LOG.write(self))

    @staticmethod
    def from_json(text: str) -> RunLog:
        """The log that `to_json` wrote.

        Raises:
            WireError: It is something else, or of another version.
        """
        if not isinstance(text, str):
            raise ProgramTypeError(f"a run log is read from a string, not {type(text).__name__}.")
        value = forms.loads(text)
        version = value.get("version") if isinstance(value, dict) else None
        if type(version) is int and version != VERSION:
            raise WireError(
                f"the run log has version {version}, and this lmlang reads version {VERSION}: "
                "read it with the lmlang that wrote it, or a newer one."
            )
        log = _RUN_LOG.read(value, "$")
        assert isinstance(log, RunLog)
        return log

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the log to a file that only its owner may read; whole, or not at all.

        A link stays one, and what it leads to is written.

        Raises:
            ProgramError: The path is no file but a folder, a device or a pipe.
            OSError: It cannot be written.
        """
        target = os.path.realpath(path)
        if os.path.exists(target) and not os.path.isfile(target):
            raise ProgramError(
                f"the run log cannot be written to {quote(os.fspath(path))}, which is no file: "
                "give the path of one."
            )
        made = f"{target}.{secrets.token_hex(4)}.part"
        try:
            descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            error.filename = os.fspath(path)
            raise
        try:
            with open(descriptor, "w", encoding="utf-8", newline="\n") as file:
                file.write(self.to_json() + "\n")
            os.replace(made, target)
        except BaseException:
            os.unlink(made)
            raise

    @staticmethod
    def load(path: str | os.PathLike[str]) -> RunLog:
        """The log that `save` wrote.

        Raises:
            OSError: There is no such file, or it cannot be read.
            WireError: It is something else, or of another version.
        """
        try:
            with open(os.fspath(path), encoding="utf-8") as file:
                return RunLog.from_json(file.read())
        except (WireError, UnicodeDecodeError) as error:
            said = error if isinstance(error, WireError) else f"not JSON: {error}"
            raise WireError(f"{quote(str(os.fspath(path)))}: {said}") from None

    def replay(self, backend: Backend | None = None, *, tolerance: float = 0.02) -> Any:
        """Run it again without sampling, and compare what comes of it with what is recorded.

        The backend is given the recorded tokens and computes what they come to: texts, ends,
        log-probabilities, scores of choices. Hidden reasoning, of which a log has no tokens, is
        drawn again.

        Args:
            backend: None: the one in use.
            tolerance: How far log-probabilities may be from the recorded ones.

        Returns:
            The final `ProgramState`, its typed values as texts.

        Raises:
            ReplayError: An operation differs; ``.path`` and ``.token`` say where first.
            ProgramError: Something in it, as a picture, is in no log.
        """
        return rerunning().rerun(self, backend, tolerance)

    def fork_at(self, at: str, backend: Backend | None = None, *, tolerance: float = 0.02) -> Any:
        """A `ProgramState` as it was just before an operation, to go on from there otherwise.

        What came before it is run again as `replay` does, from the cache where that still has
        it; what is then appended as it was draws what it drew.

        Args:
            at: The variable of an operation, or its path.
            backend: None: the one in use.
            tolerance: How far log-probabilities may be from the recorded ones.

        Raises:
            CaptureError: Nothing of the run is called so.
            ProgramError: Several operations are, or something before it is in no log.
            ReplayError: What came before it differs.
        """
        return rerunning().fork_at(self, at, backend, tolerance)

    def transcript(self, within: str = "") -> View:
        """What was written, turn by turn, with what was generated in it marked.

        Args:
            within: The path of a state, as in "3/fork1.2": only its own part; "": everything.

        Raises:
            CaptureError: No state has this path.
        """
        from lmlang.frontend import view_transcript as view

        return self._view(view.lines, view.page, within)

    def tokens(self) -> View:
        """How likely each token was, what else could have come, what a constraint took away."""
        from lmlang.frontend import view_tokens as view

        return self._view(view.lines, view.page)

    def tree(self) -> View:
        """The operations, forks side by side, with their tokens, times and source lines."""
        from lmlang.frontend import view_tree as view

        return self._view(view.lines, view.page)

    def _view(
        self,
        lines: Callable[[Story, int], list[str]],
        page: Callable[[Story], Html],
        within: str = "",
    ) -> View:
        story = self.story(within)
        return View(lambda width: lines(story, width), lambda: page(story))

    def story(self, within: str = "") -> Story:
        """The log in the order in which a reader follows it, for what shows it."""
        ended = [each.finished for each in self.operations if each.finished is not None]
        return Story(
            tuple(_head(self)),
            steps(self.recording, self.operations, within),
            dict(self.spelling),
            self.seconds if self.seconds is not None else max(ended, default=0.0),
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self.tree().html()}

    def __str__(self) -> str:
        return "\n".join([*_head(self), *_table(map(_row, self.operations))])

    def __repr__(self) -> str:
        return f"<RunLog of {self.program}: {len(self.operations):,} operations>"


_HEX = re.compile(r"(?:[0-9a-f]{2})*")
_RUN_LOG = forms.record(
    RunLog,
    {
        "version": COUNT,
        "program": TEXT,
        "run_id": TEXT,
        "model": TEXT,
        "seed": INTEGER,
        "row_key": forms.scalar(
            str,
            "hexadecimal digits, two for each byte",
            lambda text: _HEX.fullmatch(text) is not None,
        ),
        "params": PARAMS,
        "n": COUNT,
        "lora": forms.optional(TEXT),
        "max_program_tokens": MAYBE_COUNT,
        "began": FLOAT,
        "seconds": TIME,
        "error": FAILURE,
        "operations": forms.sequence(OPERATION),
        "recording": RECORDING,
        "spelling": SPELLING,
    },
)

# ------------------------------------------------------------------------------ as a table

_COLUMNS = ("path", "source", "kind", "name", "prompt", "cached", "new", "ms", "text")
_NUMBERS = range(4, 8)
"""Columns that are aligned to the right."""
_WIDEST = 24
"""Characters of a path, a source or a name."""
_TEXT = 48
"""Characters of a text's start."""


def _head(log: RunLog) -> Iterator[str]:
    usage = log.usage
    took = "not ended" if log.seconds is None else f"{log.seconds * 1e3:,.1f} ms"
    where = f"{_shown(log.program)} on {_shown(log.model) or 'an unknown model'}"
    where += "" if log.lora is None else f" + adapter {_shown(log.lora)}"
    count = _counted(len(log.operations), "operation")
    yield f"{where}: {count}, {took}; run {_shown(log.run_id)}, seed {log.seed}"
    forced = f" ({usage.forced_tokens:,} forced)" if usage.forced_tokens else ""
    yield (
        f"tokens: {usage.prompt_tokens:,} prompt ({usage.cached_tokens:,} cached), "
        f"{usage.generated_tokens:,} generated{forced}, {usage.scored_tokens:,} scored"
    )
    if usage.forced_closes:
        yield f"closed to fit max_tokens: {_counted(usage.forced_closes, 'output')}"
    if log.error is not None:
        yield f"ended by {_failure(log.error, 2 * _TEXT)}"


def _row(operation: LoggedOperation) -> tuple[str, ...]:
    usage, seconds = operation.usage, operation.seconds
    asked = usage != Usage()
    return (
        _tail(_shown(operation.path or operation.state)),
        _tail(_shown(os.path.basename(operation.source))),
        operation.kind,
        _start(_shown(operation.name or ""), _WIDEST),
        f"{usage.prompt_tokens:,}" if asked else "",
        f"{usage.cached_tokens:,}" if asked else "",
        f"{usage.generated_tokens + usage.scored_tokens:,}" if asked else "",
        "" if seconds is None else f"{seconds * 1e3:,.1f}",
        _told(operation),
    )


def _told(operation: LoggedOperation) -> str:
    if operation.error is not None:
        return f"failed: {_failure(operation.error, _TEXT)}"
    if operation.status != "done":
        return operation.status
    if operation.text is not None:
        more = len(operation.samples) - 1
        text = f'"{_start(_shown(operation.text[: _TEXT + 1]), _TEXT)}"'
        text += f" and {more} more" if more > 0 else ""
        return f"{text} (closed)" if operation.usage.forced_closes else text
    return _counted(operation.children, "state") if operation.children else ""


def _table(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    lines = [_COLUMNS, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    for line in lines:
        cells = [
            cell.rjust(width) if i in _NUMBERS else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _failure(failure: Failure, most: int) -> str:
    return f"{_shown(failure.type)}: {_start(_shown(failure.message[: most + 1]), most)}"


def _shown(text: str) -> str:
    """A text with everything escaped that a line cannot show."""
    return quoted(text)[1:-1]


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _start(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _tail(text: str) -> str:
    return text if len(text) <= _WIDEST else "…" + text[1 - _WIDEST :]
