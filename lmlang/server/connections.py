"""A connection: how long its two ends may take, and what is told where there is no request.

connection ── headers complete ── body, answer ── idle ── first byte ── headers complete …
    ╰── header_timeout ──╯   (body_timeout: bodies)   (uvicorn)    ╰── header_timeout ──╯
"""

from __future__ import annotations

import asyncio
import sys
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_ANSWER = (
    b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%s"
)
_BODY = (
    b'{"error": {"message": "%s", "type": "invalid_request_error", "param": null, "code": null}}'
)


def _refusal(error: BaseException | None) -> tuple[bytes, bytes]:
    """Status and message for what h11 could not read."""
    if getattr(error, "error_status_hint", 400) == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
        return b"431 Request Header Fields Too Large", b"the headers are too long: send fewer."
    return b"400 Bad Request", b"this is no HTTP request."


def patient(header_timeout: float, send_timeout: float) -> type[asyncio.Protocol]:
    """The protocol of connections whose clients send, and read, within so many seconds."""

    class Patient(H11Protocol):
        _waiting: asyncio.TimerHandle | None = None
        _unread: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._stop()
            elif self._waiting is None and self.conn.trailing_data[0]:
                self._wait()

        def on_response_complete(self) -> None:
            super().on_response_complete()  # which reads on in what came too early
            if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
                self._unset_keepalive_if_required()
                self._wait()

        def send_400_response(self, msg: str) -> None:
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                self._tell(*_refusal(sys.exc_info()[1]))
            self.transport.close()  # in the middle of an answer, or behind it, there is no other

        def _should_upgrade(self) -> bool:
            return False  # what a server cannot speak it passes over

        def pause_writing(self) -> None:
            super().pause_writing()
            # Also behind the end of an answer, which would wait for its reader for ever.
            self._unread = self.loop.call_later(send_timeout, self.transport.abort)

        def resume_writing(self) -> None:
            self._read()
            super().resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            self._read()
            super().connection_lost(exc)

        def _wait(self) -> None:
            self._stop()
            self._waiting = self.loop.call_later(header_timeout, self._give_up)

        def _stop(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

        def _read(self) -> None:
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None

        def _give_up(self) -> None:
            if not self.transport.is_closing():
                if self.conn.trailing_data[0]:  # who has said nothing is told nothing
                    self._tell(b"408 Request Timeout", b"the headers did not arrive in time.")
                self.transport.close()

        def _tell(self, status: bytes, message: bytes) -> None:
            body = _BODY % message
            self.transport.write(_ANSWER % (status, len(body), body))

    return Patient
