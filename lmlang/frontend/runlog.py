"""The run log: the record of one run as a value, which reads as a table and travels as JSON.

    RunLog ── operations in program order ── samples (generations), choices (selects)

Text and turns are no operations of it: `ProgramState.program` has them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from lmlang.errors import ProgramTypeError, WireError
from lmlang.frontend.literals import quoted
from lmlang.protocol import FinishReason, SamplingParams, Usage
from lmlang.wire import forms
from lmlang.wire.forms import COUNT, FLAG, FLOAT, INTEGER, TEXT

VERSION = 1
"""Of the run log and its JSON; a reader refuses what it does not know."""

Kind = Literal["gen", "select", "fork", "join", "set", "image", "scope", "call"]
Status = Literal["queued", "running", "done", "failed", "cancelled", "skipped"]

# ------------------------------------------------------------------------------ values


@dataclass(frozen=True, slots=True)
class Failure:
    """An error by its type's name and its message."""

    type: str
    message: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One output of a generation.

    Args:
        text: Its text.
        tokens: All sampled token ids, those that a stop dropped included.
        logprobs: The model's log-probability of each.
        finish: "stop", "eos", "length", "complete" or "forced_close".
        stop: The stop string or token id that ended it.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason | None
    stop: str | int | None


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of a select: its text and its joint log-probability."""

    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class LoggedOperation:
    """One operation of a run. Times are seconds since the run began, None: it has not come so far.

    Args:
        kind: What was done; a scope stands where it closes.
        status: "failed" is a failure of its own; "cancelled" and "skipped" come from that of
            another one, or from the end of the run, after or before the backend was asked.
        path: Its place in the run, as in "3/fork1.2/0"; empty for what makes no draws.
        state: The path of its state: "" is the program's own, "3/fork1.2" a child.
        branch: The state's index in its fork; None for the program's own.
        source: The user's line, as ``path/file.py:12``.
        name: The variable; of a call the program that is called; of an image where it came from.
        children: How many states a fork made or a join took.
        usage: Tokens that the run was charged with for it.
        samples: A generation's outputs, the first being the one that the state goes on with.
        choices: What a select scored; empty where a single choice needed no scoring.
        draw_keys: The keys of the noise that was drawn, one for each sample; empty: no draws.
        first_draw: The index of its first draw; the token's index is added to it.
        text: What it wrote, or the value that was set, as text.
        error: Of a failed operation.
        queued: When it was appended.
        submitted: When the backend was asked.
        first_token: When the backend told of the first token (by the end of a generation).
        finished: When it was done or had failed.
    """

    kind: Kind
    status: Status
    path: str
    state: str
    branch: int | None
    source: str
    name: str | None
    children: int
    usage: Usage
    samples: tuple[Sample, ...]
    choices: tuple[Choice, ...]
    draw_keys: tuple[int, ...]
    first_draw: int
    text: str | None
    error: Failure | None
    queued: float
    submitted: float | None
    first_token: float | None
    finished: float | None

    @property
    def seconds(self) -> float | None:
        """How long the backend took to answer; None where it was not asked or did not."""
        if self.submitted is None or self.finished is None:
            return None
        return self.finished - self.submitted


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
        max_program_tokens: Generated tokens of all of them at most.
        began: When the run began, in seconds since 1970.
        seconds: How long it took; None: it has not ended.
        error: What ended it before its end.
        operations: In program order.
        version: Of the run log.
    """

    program: str
    run_id: str
    model: str
    seed: int
    row_key: str
    params: SamplingParams
    n: int
    max_program_tokens: int | None
    began: float
    seconds: float | None
    error: Failure | None
    operations: tuple[LoggedOperation, ...]
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

    def __str__(self) -> str:
        return "\n".join([*_head(self), *_table(map(_row, self.operations))])

    def __repr__(self) -> str:
        return f"<RunLog of {self.program}: {len(self.operations):,} operations>"


# ------------------------------------------------------------------------------ as JSON

_STOP = forms.optional(forms.either(TEXT, INTEGER))
_TIME = forms.optional(FLOAT)
_MAYBE_COUNT = forms.optional(COUNT)
_HEX = re.compile(r"(?:[0-9a-f]{2})*")
_PARAMS = forms.record(
    SamplingParams,
    {
        "max_tokens": COUNT,
        "temperature": FLOAT,
        "top_p": FLOAT,
        "top_k": INTEGER,
        "min_p": FLOAT,
        "stop": forms.sequence(TEXT),
        "ignore_eos": FLAG,
        "min_tokens": COUNT,
        "stop_token_ids": forms.sequence(COUNT),
        "include_stop": FLAG,
        "frequency_penalty": FLOAT,
        "presence_penalty": FLOAT,
        "repetition_penalty": FLOAT,
        "logit_bias": forms.sequence(forms.pair(COUNT, FLOAT)),
        "stop_regex": forms.sequence(TEXT),
        "heal": FLAG,
    },
)
_USAGE = forms.record(
    Usage,
    {
        "prompt_tokens": COUNT,
        "cached_tokens": COUNT,
        "generated_tokens": COUNT,
        "scored_tokens": COUNT,
        "forced_tokens": COUNT,
        "forced_closes": COUNT,
    },
)
_FAILURE = forms.optional(forms.record(Failure, {"type": TEXT, "message": TEXT}))
_SAMPLE = forms.record(
    Sample,
    {
        "text": TEXT,
        "tokens": forms.sequence(COUNT),
        "logprobs": forms.sequence(FLOAT),
        "finish": forms.optional(forms.word("stop", "eos", "length", "complete", "forced_close")),
        "stop": _STOP,
    },
)
_OPERATION = forms.record(
    LoggedOperation,
    {
        "kind": forms.word("gen", "select", "fork", "join", "set", "image", "scope", "call"),
        "status": forms.word("queued", "running", "done", "failed", "cancelled", "skipped"),
        "path": TEXT,
        "state": TEXT,
        "branch": _MAYBE_COUNT,
        "source": TEXT,
        "name": forms.optional(TEXT),
        "children": COUNT,
        "usage": _USAGE,
        "samples": forms.sequence(_SAMPLE),
        "choices": forms.sequence(forms.record(Choice, {"text": TEXT, "logprob": FLOAT})),
        "draw_keys": forms.sequence(forms.hexadecimal(16)),
        "first_draw": COUNT,
        "text": forms.optional(TEXT),
        "error": _FAILURE,
        "queued": FLOAT,
        "submitted": _TIME,
        "first_token": _TIME,
        "finished": _TIME,
    },
)
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
        "params": _PARAMS,
        "n": COUNT,
        "max_program_tokens": _MAYBE_COUNT,
        "began": FLOAT,
        "seconds": _TIME,
        "error": _FAILURE,
        "operations": forms.sequence(_OPERATION),
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
