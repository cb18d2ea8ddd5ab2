"""The messages of the wire: a value of the protocol and the version in one JSON object.

requests and answers   {"v": 1, <the fields of the value>}
items of a stream      {"v": 1, "event": {…}} …, {"v": 1, "output": {…}} or {"v": 1, "error": {…}}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmlang.errors import LMLangError, WireError
from lmlang.grammar.spec import Hole, Spec, is_spec
from lmlang.protocol import (
    BackendInfo,
    Event,
    Output,
    Prompt,
    Request,
    ScoreRequest,
    Scores,
)
from lmlang.wire.errors import ERROR
from lmlang.wire.forms import COUNT, TEXT, Form, read_fields, refuse
from lmlang.wire.values import (
    EVENT,
    IDS,
    INFO,
    OUTPUT,
    PROMPT,
    REQUEST,
    SCORE_REQUEST,
    SCORES,
    SPEC,
)

VERSION = 1
"""Of all messages; a reader refuses what it does not know."""

Item = Event | Output | LMLangError
"""What comes in a stream: events, and one output or error as the last."""

_OPEN: dict[type, Form] = {
    Request: REQUEST,
    ScoreRequest: SCORE_REQUEST,
    Scores: SCORES,
    BackendInfo: INFO,
}
"""Values whose fields are those of their message."""
_ITEMS = {"event": EVENT, "output": OUTPUT, "error": ERROR}


def to_wire(value: object) -> dict[str, Any]:
    """The message of a Request, ScoreRequest, Scores, BackendInfo, Prompt, spec, or stream's item.

    Raises:
        ProgramError: It holds what cannot be sent: a picture, a function.
    """
    form = _OPEN.get(type(value))
    if form is not None:
        return {"v": VERSION, **form.write(value)}
    if isinstance(value, Prompt):
        return {"v": VERSION, "prompt": PROMPT.write(value)}
    if is_spec(value) or isinstance(value, Hole):
        return {"v": VERSION, "constraint": SPEC.write(value)}
    if isinstance(value, Event):
        return {"v": VERSION, "event": EVENT.write(value)}
    if isinstance(value, Output):
        return {"v": VERSION, "output": OUTPUT.write(value)}
    if isinstance(value, BaseException):
        return {"v": VERSION, "error": ERROR.write(value)}
    raise TypeError(f"{type(value).__name__} is no value that has a message")


def ids_to_wire(ids: Sequence[int]) -> dict[str, Any]:
    """The message of token ids."""
    return {"v": VERSION, "ids": list(ids)}


def text_to_wire(text: str) -> dict[str, Any]:
    """The message of a text."""
    return {"v": VERSION, "text": text}


def count_to_wire(count: int) -> dict[str, Any]:
    """The message of a number of tokens."""
    return {"v": VERSION, "tokens": count}


def run_to_wire(run_id: str) -> dict[str, Any]:
    """The message that names a run."""
    return {"v": VERSION, "run_id": run_id}


def request_from_wire(message: object) -> Request:
    """The request of a message; WireError, with the place, where it is none."""
    request: Request = _read(REQUEST, message)
    return request


def score_request_from_wire(message: object) -> ScoreRequest:
    """The request of a message; WireError, with the place, where it is none."""
    request: ScoreRequest = _read(SCORE_REQUEST, message)
    return request


def scores_from_wire(message: object) -> Scores:
    """The scores of a message; WireError, with the place, where it has none."""
    scores: Scores = _read(SCORES, message)
    return scores


def info_from_wire(message: object) -> BackendInfo:
    """What a backend says of itself; WireError, with the place, where it says something else."""
    info: BackendInfo = _read(INFO, message)
    return info


def prompt_from_wire(message: object) -> Prompt:
    """The prompt of a message; WireError, with the place, where it has none."""
    prompt: Prompt = _only("prompt", PROMPT, message)
    return prompt


def spec_from_wire(message: object) -> Spec:
    """The constraint of a message; WireError, with the place, where it has none."""
    spec: Spec = _only("constraint", SPEC, message)
    return spec


def ids_from_wire(message: object) -> list[int]:
    """The token ids of a message; WireError, with the place, where it has none."""
    return list(_only("ids", IDS, message))


def text_from_wire(message: object) -> str:
    """The text of a message; WireError, with the place, where it has none."""
    text: str = _only("text", TEXT, message)
    return text


def count_from_wire(message: object) -> int:
    """The number of tokens of a message; WireError, with the place, where it has none."""
    count: int = _only("tokens", COUNT, message)
    return count


def run_from_wire(message: object) -> str:
    """The id of the run that a message names; WireError, with the place, where it has none."""
    run_id: str = _only("run_id", TEXT, message)
    return run_id


def item_from_wire(message: object) -> Item:
    """One item of a stream; WireError, with the place, where it is none."""
    rest = versioned(message)
    kind = next((kind for kind in _ITEMS if kind in rest), None)
    if kind is None:
        refuse("$", "one of the fields event, output, error", message)
    item: Item = read_fields(rest, "$", {kind: _ITEMS[kind]})[kind]
    return item


def error_from_wire(message: object) -> LMLangError:
    """The error of a message; WireError, with the place, where it has none."""
    error: LMLangError = _only("error", ERROR, message)
    return error


def _only(name: str, form: Form, message: object) -> Any:
    """The one field that a message has beside its version."""
    return read_fields(versioned(message), "$", {name: form})[name]


def _read(form: Form, message: object) -> Any:
    return form.read(versioned(message), "$")


def versioned(message: object) -> dict[str, Any]:
    """A message without its version, which is looked at first."""
    if not isinstance(message, dict):
        refuse("$", "an object", message)
    version = message.get("v")
    if type(version) is not int:
        refuse("$", f'the field v, as in "v": {VERSION}', message)
    if version != VERSION:
        raise WireError(
            f"$.v: the message has version {version}, and this lmlang reads version {VERSION}: "
            "install the same version of lmlang on both sides."
        )
    return {name: held for name, held in message.items() if name != "v"}
