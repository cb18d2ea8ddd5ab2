"""What the benchmark of constraints compiles: patterns, and schemas with their documents."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLE = Path(__file__).parents[2] / "shared" / "data" / "jsonschemabench_sample.json"
WORDS = "|".join(
    f"{a}{b}{c}" for a in "acegi" for b in ("or", "un", "ip") for c in ("a", "e", "ing", "s")
)
PATTERNS = {
    "date": r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])",
    "time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)",
    "mail": r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,24}",
    "URL": r"https?://[a-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~%/-]*)?(\?[^# ]*)?",
    "IP": r"((25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(25[0-5]|2[0-4]\d|1?\d?\d)",
    "UUID": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "version": r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?",
    "number": r"-?(0|[1-9][0-9]*)(\.[0-9]+)?",
    "quoted": r'[^"]{1,200}',
    "line": r".{1,1000}",
    "words": r"\w+( \w+){0,30}[.!?]",
    "60 words": "|".join(WORDS),
    "template": r"Name: [A-Z][a-z]+\nAge: \d{1,3}\nCity: [A-Za-z ]{1,40}\nVerdict: (good|bad)\n",
}
OWN = [
    (
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 40},
                "age": {"type": "integer", "minimum": 0, "maximum": 150},
                "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
                "born": {"type": "string", "format": "date"},
            },
            "required": ["name", "age"],
            "additionalProperties": False,
        },
        {"name": "Ada Lovelace", "age": 36, "tags": ["red", "blue"], "born": "1815-12-10"},
    ),
    (
        {
            "$defs": {
                "tree": {
                    "type": "object",
                    "properties": {
                        "label": {"type": "string"},
                        "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
                    },
                    "required": ["label", "children"],
                    "additionalProperties": False,
                }
            },
            "$ref": "#/$defs/tree",
        },
        {"label": "a", "children": [{"label": "b", "children": []}]},
    ),
]
"""Schemas with a document each: all there are where the sample is not."""


@dataclass(frozen=True, slots=True)
class Case:
    """A schema and its valid documents.

    Args:
        name: Of the schema.
        schema: Its text.
        documents: Values.
    """

    name: str
    schema: str
    documents: tuple[Any, ...]


def cases(small: bool) -> list[Case]:
    """The sample beside the repository, or our own few."""
    own = [Case(f"own {n}", json.dumps(s), (d,)) for n, (s, d) in enumerate(OWN)]
    if small or not SAMPLE.exists():
        return own
    return own + [
        Case(
            group["id"],
            json.dumps(group["schema"]),
            tuple(test["data"] for test in group["tests"] if test["valid"]),
        )
        for group in json.loads(SAMPLE.read_text())
    ]


class Writer:
    """Writes an instance as compact JSON, keys in an order that the schema has."""

    def __init__(self, automaton: Any, schema: str) -> None:
        self._automaton = automaton
        self._orders = _orders(json.loads(schema))

    def written(self, value: Any) -> str | None:
        """The text; None where the first order that offers itself is none."""
        parts: list[str] = []
        state = self._write(self._automaton.start, value, parts)
        return "".join(parts) if state is not None and state.accepting else None

    def _write(self, state: Any, value: Any, parts: list[str]) -> Any:
        if isinstance(value, dict):
            return self._object(state, value, parts)
        if isinstance(value, list):
            state = self._text(state, "[", parts)
            for number, item in enumerate(value):
                state = self._text(state, "," if number else "", parts)
                state = self._write(state, item, parts)
            return self._text(state, "]", parts)
        return self._text(state, json.dumps(value, ensure_ascii=False), parts)

    def _object(self, state: Any, value: dict[str, Any], parts: list[str]) -> Any:
        order = max(self._orders, key=lambda keys: len(value.keys() & keys), default=())
        left = [key for key in order if key in value]
        left += [key for key in value if key not in left]
        state = self._text(state, "{", parts)
        for number in range(len(value)):
            for key in left:
                more: list[str] = []
                text = f"{',' if number else ''}{json.dumps(key, ensure_ascii=False)}:"
                onward = self._text(state, text, more)
                onward = self._write(onward, value[key], more)
                if onward is not None:
                    break
            else:
                return None
            left.remove(key)
            parts += more
            state = onward
        return self._text(state, "}", parts)

    def _text(self, state: Any, text: str, parts: list[str]) -> Any:
        parts.append(text)
        return None if state is None else self._automaton.run(state, text.encode())


def _orders(schema: Any) -> list[dict[str, None]]:
    """The keys of every object inside of a schema."""
    found, todo = [], [schema]
    while todo:
        here = todo.pop(0)
        if isinstance(here, dict):
            found.append(dict.fromkeys(here))
        if isinstance(here, (dict, list)):
            todo += here.values() if isinstance(here, dict) else here
    return found
