"""The page of the wire: its messages are read, and written as they stand; its table has all."""

import json
import re
from dataclasses import MISSING, fields

import pytest

from lmlang import wire
from lmlang.protocol import Request, SamplingParams
from lmlang.wire import programs
from lmlang.wire.values import REQUEST
from tests import pages

PAGE = "docs/reference/wire.md"
SECTIONS = {section.title: section for section in pages.sections(PAGE)}
MESSAGES = re.findall(
    r"<!-- ([a-z ]+) -->\n```json\n(.*?)```\n",
    "".join(section.text for section in SECTIONS.values()),
    re.DOTALL,
)
READERS = {
    "request": wire.request_from_wire,
    "score request": wire.score_request_from_wire,
    "prompt": wire.prompt_from_wire,
    "constraint": wire.spec_from_wire,
    "item": wire.item_from_wire,
    "error": wire.error_from_wire,
    "scores": wire.scores_from_wire,
    "info": wire.info_from_wire,
    "ids": lambda message: wire.ids_to_wire(wire.ids_from_wire(message)),
    "text": lambda message: wire.text_to_wire(wire.text_from_wire(message)),
    "count": lambda message: wire.count_to_wire(wire.count_from_wire(message)),
    "program": lambda message: programs.program_to_wire(programs.program_from_wire(message)),
    "told": lambda message: programs.told_to_wire(programs.answer_from_wire(message)),
    "end": lambda message: programs.answer_from_wire(message) or programs.end_to_wire(),
    "run": lambda message: wire.run_to_wire(wire.run_from_wire(message)),
}


@pytest.mark.parametrize(("kind", "text"), MESSAGES)
def test_a_message_is_read_and_written_as_it_stands(kind, text):
    message = wire.loads(text)
    found = READERS[kind](message)
    assert (found if isinstance(found, dict) else wire.to_wire(found)) == message


def test_there_is_a_message_of_every_kind():
    assert {kind for kind, _ in MESSAGES} == READERS.keys()


def test_the_table_has_all_fields_of_a_request_and_their_defaults():
    rows = {row[0].strip("`"): row for row in pages.table(SECTIONS["Requests"], "field")}
    own = {field.name: field for field in fields(Request) if field.name != "processor"}
    assert list(rows) == list(own)
    empty = Request(wire.prompt_from_wire({"v": 1, "prompt": []}))
    for name, field in own.items():
        if field.default is MISSING:
            assert rows[name][1] == ""
        else:
            said = json.loads(rows[name][1].strip("`"))
            read = wire.request_from_wire({"v": 1, "prompt": [], name: said})
            assert getattr(read, name) == getattr(empty, name)
    assert REQUEST.write(empty) == {"prompt": []}
    for parameter in fields(SamplingParams):
        assert f"`{parameter.name}`" in rows["params"][2]


def test_the_table_has_all_fields_of_how_a_program_is_run():
    rows = {row[0].strip("`"): row for row in pages.table(SECTIONS["Programs"], "field of `run`")}
    assert list(rows) == [field.name for field in fields(programs.AskedRun)]
    for name, row in rows.items():
        run = {name: json.loads(row[1].strip("`"))}
        read = programs.program_from_wire({"v": 1, "program": "", "run": run})
        assert read.run == programs.AskedRun()


def test_the_routes_are_routes_of_the_server():
    pytest.importorskip("fastapi")
    from lmlang.server.app import make_app
    from lmlang.testing import ScriptedBackend

    rows = pages.table(SECTIONS["Routes"], "route")
    told = {name for row in rows for name in pages.coded(row[0])}
    paths = make_app(ScriptedBackend()).openapi()["paths"]
    there = {
        f"{method.upper()} {path}"
        for path, methods in paths.items()
        for method in methods
        if path.startswith("/lm/")
    }
    assert told <= there
