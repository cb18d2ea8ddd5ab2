"""POST /lm/programs: a whole program of IR -> a stream of what is told of its operations.

asked, told and end are those of `lmlang.wire.programs`
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from lmlang import wire
from lmlang.frontend import ir
from lmlang.protocol import Event
from lmlang.server.context import Server
from lmlang.server.programs import checked_program
from lmlang.server.programs_work import ProgramWork
from lmlang.wire.programs import (
    AskedProgram,
    Told,
    end_to_wire,
    program_from_wire,
    told_to_wire,
)

_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "description": "A program of the wire: program (IR as text), run, known.",
                }
            }
        },
    }
}


def router(server: Server) -> APIRouter:
    """The route of a server."""
    routes = APIRouter(prefix="/lm", tags=["lmlang"])

    @routes.post("/programs", openapi_extra=_BODY)
    async def programs(http: HTTPRequest) -> Response:
        """One program, as a stream of its operations' events, outputs, scores and errors."""
        body = await server.body(http)
        asked, program, at_once = await server.pooled(_read, server, body)

        async def values() -> AsyncGenerator[Any, None]:
            caller = server.caller(http)
            async with ProgramWork(server, caller, asked, program, at_once) as work:
                async for told in work.told():
                    if isinstance(told.item, Event):
                        yield told_to_wire(told)
                    else:  # an output may be large
                        yield await server.pooled(_written, told)
                yield end_to_wire()

        return await server.stream(http, values())

    return routes


def _read(server: Server, body: object) -> tuple[AskedProgram, ir.Program, int]:
    asked = program_from_wire(body)
    return asked, *checked_program(asked, server.config)


def _written(told: Told) -> str:
    return wire.dumps(told_to_wire(told))
