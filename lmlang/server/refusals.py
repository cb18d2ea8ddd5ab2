"""Errors as answers of HTTP: one table of statuses, and bodies in the words of each interface."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse, Response

from lmlang.errors import (
    BackendError,
    Cancelled,
    CaptureError,
    ConstraintError,
    DeadlineExceeded,
    LimitExceeded,
    LMLangError,
    ModelError,
    ProgramError,
    QueueFull,
    WireError,
)
from lmlang.wire.messages import to_wire

CLIENT_CLOSED = 499
"""Whoever asked is gone, or somebody has aborted it for them."""
RETRY_SECONDS = 1
"""What Retry-After says where nothing better is known."""

STATUSES: Mapping[type[LMLangError], int] = {
    QueueFull: HTTPStatus.SERVICE_UNAVAILABLE,
    DeadlineExceeded: HTTPStatus.GATEWAY_TIMEOUT,
    LimitExceeded: HTTPStatus.BAD_REQUEST,
    ProgramError: HTTPStatus.BAD_REQUEST,
    ConstraintError: HTTPStatus.BAD_REQUEST,
    CaptureError: HTTPStatus.BAD_REQUEST,
    WireError: HTTPStatus.BAD_REQUEST,
    Cancelled: CLIENT_CLOSED,
    ModelError: HTTPStatus.INTERNAL_SERVER_ERROR,
}
"""The first class of an error's own line of classes that stands here says its status."""

TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
"""OpenAI's words for kinds of errors; the others are "invalid_request_error", "server_error"."""


class Refusal(BackendError):
    """A request that HTTP itself has a status for.

    Args:
        status: The status.
        message: Cause, value and mend.
        param: The field of the request that it is about.
        code: A word for programs.
        headers: Headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        retryable = status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
        super().__init__(message, retryable=retryable, status=status)
        self.param = param
        self.code = code
        self.headers = dict(headers or {})


def status_of(error: BaseException) -> int:
    """The status of an error; 500 for one that is not of this library."""
    if isinstance(error, BackendError):
        fallback = HTTPStatus.SERVICE_UNAVAILABLE if error.retryable else 500
        known = error.status is not None and 400 <= error.status < 600
        return error.status if known and error.status is not None else int(fallback)
    for kind in type(error).__mro__:
        if kind in STATUSES:
            return int(STATUSES[kind])
    return int(HTTPStatus.INTERNAL_SERVER_ERROR)


def error_body(path: str, error: BaseException) -> dict[str, Any]:
    """The JSON of an error: under /lm our own wire's, elsewhere as OpenAI's clients read it."""
    if path == "/lm" or path.startswith("/lm/"):
        return to_wire(error)
    told = to_wire(error)["error"]
    status = status_of(error)
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    param, code = (error.param, error.code) if isinstance(error, Refusal) else (None, told["type"])
    return {"error": {"message": told["message"], "type": kind, "param": param, "code": code}}


def answer_to(path: str, error: BaseException) -> Response:
    """The whole answer."""
    status = status_of(error)
    headers = dict(getattr(error, "headers", {}))
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.setdefault("Retry-After", str(RETRY_SECONDS))
    if status == HTTPStatus.UNAUTHORIZED:
        headers.setdefault("WWW-Authenticate", "Bearer")
    return JSONResponse(error_body(path, error), status, headers)
