"""Log lines of a server: JSON, one line each, without prompts, keys or messages of errors."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from types import TracebackType
from typing import TextIO

access = logging.getLogger("lmlang.server")

_FRAMES = 12
"""Innermost calls of an exception that are told."""
_OWN = frozenset({"lmlang", "lmlang.server"})
"""Loggers whose messages are ours, and hold nothing of a user's."""


class JsonLines(logging.Formatter):
    """Records as lines of JSON.

    Of an exception its class and where it arose are told, never its message, which may quote a
    prompt; messages of other packages are told by their template alone.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            line["event"] = record.msg
            line |= fields
        else:
            ours = record.name in _OWN
            line["message"] = (record.getMessage() if ours else str(record.msg))[:500]
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            line["at"] = places(record.exc_info[2])
        return json.dumps(line, ensure_ascii=True)


def places(trace: TracebackType | None) -> list[str]:
    """Where a traceback leads, innermost last, without a line of source."""
    frames = traceback.extract_tb(trace)[-_FRAMES:] if trace is not None else []
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]


def set_up(stream: TextIO = sys.stderr, level: int = logging.INFO) -> None:
    """Let this process log JSON lines, those of the HTTP server too."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    for name in ("lmlang", "uvicorn.error", "asyncio", "py.warnings"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level if name == "lmlang" else logging.WARNING)
    logging.captureWarnings(True)


def told(event: str, **fields: object) -> None:
    """Log an event with its fields."""
    access.info(event, extra={"fields": fields})


def failed(event: str, error: BaseException, **fields: object) -> None:
    """Log a fault of ours, with where it arose."""
    info = (type(error), error, error.__traceback__)
    access.error(event, extra={"fields": fields}, exc_info=info)
