"""Errors as JSON: their class, their message and what they say besides; and back as themselves."""

from __future__ import annotations

from typing import Any

from lmlang import errors
from lmlang.errors import BackendError, ErrorContext, LMLangError, SchemaUnsupported
from lmlang.wire.forms import FLAG, INTEGER, TEXT, Form, optional, read_fields, short_record

_MAYBE_TEXT = optional(TEXT)
_CONTEXT = short_record(
    ErrorContext,
    {
        "program": _MAYBE_TEXT,
        "op_path": _MAYBE_TEXT,
        "source": _MAYBE_TEXT,
        "branch": optional(INTEGER),
        "prompt_tail": _MAYBE_TEXT,
    },
)
_FIELDS = {
    "type": TEXT,
    "message": TEXT,
    "context": _CONTEXT,
    "retryable": FLAG,
    "status": INTEGER,
    "keyword": TEXT,
    "pointer": TEXT,
}
_KINDS: dict[str, type[LMLangError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, LMLangError)
}
"""The classes that have names on the wire."""


def _write(error: BaseException) -> dict[str, Any]:
    """An error; of one that is not ours the class alone, for its message may say anything."""
    if not isinstance(error, LMLangError):
        return {
            "type": "BackendError",
            "message": f"the backend failed ({type(error).__name__}): its log says more.",
        }
    kind = next(kind for kind in type(error).__mro__ if _KINDS.get(kind.__name__) is kind)
    found: dict[str, Any] = {"type": kind.__name__, "message": Exception.__str__(error)}
    if error.context is not None:
        found["context"] = _CONTEXT.write(error.context)
    if isinstance(error, BackendError):
        found |= {"retryable": True} if error.retryable else {}
        found |= {} if error.status is None else {"status": error.status}
    if isinstance(error, SchemaUnsupported):
        found |= {"keyword": error.keyword, "pointer": error.pointer}
    return found


def _read(value: Any, place: str) -> LMLangError:
    """The error; one of a class that this version does not have is a BackendError of that name."""
    found = read_fields(value, place, _FIELDS, _FIELDS.keys() - {"type", "message"})
    name, message = found["type"], found["message"]
    kind = _KINDS.get(name)
    error: LMLangError
    if kind is None:
        error = BackendError(f"{errors.quote(name)[1:-1]}: {message}")
    elif issubclass(kind, BackendError):
        retryable = found.get("retryable", False)
        error = kind(message, retryable=retryable, status=found.get("status"))
    elif issubclass(kind, SchemaUnsupported):
        pointer = found.get("pointer", "")
        error = kind(message, keyword=found.get("keyword", ""), pointer=pointer)
    else:
        error = kind(message)
    error.context = found.get("context")
    return error


ERROR = Form(_write, _read)
