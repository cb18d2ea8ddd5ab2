"""A program's run on a server: what a client asks, and what is told of each operation.

    asked   {"v": 1, "program": "program tips() …", "run": {…}, "known": [told, …]}
    told    {"v": 1, "op": "3/fork1.2/0", "draw_key": "1704…", "event": {…}}    … of a generation,
            … "output": {…} as its last, or "error": {…};  "scores": {…} of a select
    end     {"v": 1, "end": true}, or {"v": 1, "error": {…}}

Samples of one generation differ in their draw keys; what is told of a select has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from lmlang import limits
from lmlang.errors import LMLangError, ProgramError
from lmlang.protocol import Event, Output, SamplingParams, Scores
from lmlang.wire.errors import ERROR
from lmlang.wire.forms import (
    COUNT,
    FLAG,
    INTEGER,
    NUMBER,
    TEXT,
    Form,
    optional,
    read_fields,
    refuse,
    scalar,
    sequence,
    short_record,
)
from lmlang.wire.messages import VERSION, error_from_wire, versioned
from lmlang.wire.values import DRAW_KEY, EVENT, OUTPUT, PARAMS, SCORES

LONGEST_ROW_KEY = 256
"""Bytes of a row key."""
LONGEST_RUN_ID = 128
"""Characters of the id of a run."""
_PARAMS = SamplingParams()


@dataclass(frozen=True, slots=True)
class Told:
    """Something about one generation or select of a program.

    Args:
        op: Its place in the run, as in ``"3/fork1.2/0"``.
        item: An event, or what it came to.
        draw_key: Of a generation's sample; 0: of a select, or an error of all samples.
    """

    op: str
    item: Event | Output | Scores | LMLangError
    draw_key: int = 0


@dataclass(frozen=True, slots=True)
class AskedRun:
    """How a program is run.

    Args:
        run_id: Unique to the run; "" where nobody asks for more of it.
        seed: Of its draws.
        row_key: What its draws depend on besides.
        params: What its generations inherit.
        n: Samples that they inherit.
        return_logprob: Whether probabilities of drawn tokens are told.
        logprob_start_len: Prompt tokens from this index on have log-probabilities; -1: none.
        top_logprobs_num: Likeliest tokens told beside each.
        max_program_tokens: Generated tokens of all generations together.
        deadline: Seconds until it is ended.
        priority: The higher, the sooner, where the runtime's policy asks for it.
        lora: The adapter that acts on the model; None: none does.
        goes_on: Whether more of this run will be asked for.
    """

    run_id: str = ""
    seed: int = 0
    row_key: bytes = b""
    params: SamplingParams = _PARAMS
    n: int = 1
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    max_program_tokens: int | None = None
    deadline: float | None = None
    priority: int = 0
    lora: str | None = None
    goes_on: bool = False

    def __post_init__(self) -> None:
        if len(self.run_id) > LONGEST_RUN_ID or len(self.row_key) > LONGEST_ROW_KEY:
            raise ProgramError(
                f"run_id has at most {LONGEST_RUN_ID} characters, row_key at most "
                f"{LONGEST_ROW_KEY} bytes."
            )
        limits.integer("seed", self.seed, 0, limits.MAX_SEED)
        limits.integer("n", self.n, 1, limits.MAX_SAMPLES)
        limits.integer("logprob_start_len", self.logprob_start_len, -1, limits.MAX_TOKENS)
        limits.integer("top_logprobs_num", self.top_logprobs_num, 0, limits.MAX_TOP_LOGPROBS)
        limits.integer("priority", self.priority, -(2**31), 2**31 - 1)
        limits.adapter("lora", self.lora)
        if self.max_program_tokens is not None:
            limits.integer("max_program_tokens", self.max_program_tokens, 1, 2**53)
        if self.deadline is not None:
            limits.number("deadline", self.deadline, 0.0, 1e9, above=True)


@dataclass(frozen=True, slots=True)
class AskedProgram:
    """A program that is to be run.

    Args:
        program: Its IR, as `print_program` writes it.
        run: How.
        known: What has been told of it before: it is not computed again.
    """

    program: str
    run: AskedRun = AskedRun()
    known: tuple[Told, ...] = ()


class RoundTrip(Protocol):
    """One program on its way to a server; called on a thread of whoever asks the server."""

    def asked(self) -> AskedProgram:
        """What to ask, each time that it is sent."""
        ...

    def told(self, told: Told) -> bool:
        """The server has told something; whether it was new."""
        ...

    def ended(self, error: BaseException | None) -> None:
        """The program has ended, or it never will; a second call does nothing."""
        ...


_KINDS = {"event": EVENT, "output": OUTPUT, "scores": SCORES, "error": ERROR}
_OF = {Event: "event", Output: "output", Scores: "scores"}


def _write_told(told: Told) -> dict[str, Any]:
    kind = _OF.get(type(told.item), "error")
    found: dict[str, Any] = {"op": told.op, kind: _KINDS[kind].write(told.item)}
    return found | {"draw_key": DRAW_KEY.write(told.draw_key)} if told.draw_key else found


def _read_told(value: Any, place: str) -> Told:
    kind = next((kind for kind in _KINDS if isinstance(value, dict) and kind in value), None)
    if kind is None:
        refuse(place, "one of the fields event, output, scores, error", value)
    forms = {"op": TEXT, "draw_key": DRAW_KEY, kind: _KINDS[kind]}
    found = read_fields(value, place, forms, ("draw_key",))
    return Told(found["op"], found[kind], found.get("draw_key", 0))


def _read_bytes(value: Any, place: str) -> bytes:
    digits = type(value) is str and len(value) % 2 == 0
    if not digits or not set(value) <= set("0123456789abcdef"):
        refuse(place, "bytes as pairs of hexadecimal digits", value)
    return bytes.fromhex(value)


TOLD = Form(_write_told, _read_told)
_TRUE = scalar(bool, "true", bool)
_RUN = short_record(
    AskedRun,
    {
        "run_id": TEXT,
        "seed": INTEGER,
        "row_key": Form(bytes.hex, _read_bytes),
        "params": PARAMS,
        "n": COUNT,
        "return_logprob": FLAG,
        "logprob_start_len": INTEGER,
        "top_logprobs_num": COUNT,
        "max_program_tokens": optional(COUNT),
        "deadline": optional(NUMBER),
        "priority": INTEGER,
        "lora": optional(TEXT),
        "goes_on": FLAG,
    },
)
_PROGRAM = short_record(AskedProgram, {"program": TEXT, "run": _RUN, "known": sequence(TOLD)})


def program_to_wire(asked: AskedProgram) -> dict[str, Any]:
    """The message that asks for a program."""
    return {"v": VERSION, **_PROGRAM.write(asked)}


def program_from_wire(message: object) -> AskedProgram:
    """The program of a message; WireError, with the place, where it has none."""
    asked: AskedProgram = _PROGRAM.read(versioned(message), "$")
    return asked


def told_to_wire(told: Told) -> dict[str, Any]:
    """The message of something that is told."""
    return {"v": VERSION, **_write_told(told)}


def end_to_wire() -> dict[str, Any]:
    """The last message of a program that has ended."""
    return {"v": VERSION, "end": True}


def answer_from_wire(message: object) -> Told | LMLangError | None:
    """What a message of a program tells, or the error that ended it; None: it has ended well."""
    rest = versioned(message)
    if "end" in rest:
        read_fields(rest, "$", {"end": _TRUE})
        return None
    if "op" not in rest and "error" in rest:
        return error_from_wire(message)
    return _read_told(rest, "$")
