"""Judges schemas by the instances that they are published with, and by random outputs.

    group     a schema with instances that are valid or not
    spelled   an instance is walked through the automaton in every order of keys and in every
              spelling of its texts and numbers at once; what is left are states
    right     every valid instance is accepted in some spelling, and no other one in any

Data: the folder ``shared/data`` beside the repository; whoever loads it skips where it is absent.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lmlang.errors import ConstraintError, SchemaUnsupported, Unsatisfiable
from lmlang.grammar.automaton import Automaton, State
from lmlang.grammar.budget import Budget, within
from lmlang.grammar.compiler import compile_spec, rules_of
from lmlang.grammar.spec import JsonSchema
from lmlang.grammar.vocabulary import Vocabulary

DATA = Path(__file__).parents[3] / "shared" / "data"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
WIDTH, NARROW = 32, 4
"""Sets of keys of one object that are followed side by side: all there are of five keys, or the
first few of more, those in the order of the schema before others."""


@dataclass(frozen=True, slots=True)
class Group:
    """A schema with its instances.

    Args:
        name: Where it comes from.
        keyword: What it is about.
        schema: As JSON text, the order of its keys kept.
        tests: Instances, numbers as `Decimal` or int, and whether they are valid.
    """

    name: str
    keyword: str
    schema: str
    tests: tuple[tuple[Any, bool], ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a group was judged.

    Args:
        kind: "right", "refused", "valid rejected" or "invalid accepted".
        why: The error, or the instance.
        error: What was raised, if anything.
    """

    kind: str
    why: str = ""
    error: ConstraintError | None = None


def number(text: str) -> int | Decimal:
    """A number of JSON as its exact value."""
    value = Decimal(text)
    return int(value) if value == value.to_integral_value() else value


def exactly(text: str) -> Any:
    """JSON with exact numbers."""
    return json.loads(text, parse_float=number)


@cache
def _loaded(name: str) -> list[dict[str, Any]]:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is not here: the data of this test are no part of the repository")
    return exactly(path.read_text())  # type: ignore[no-any-return]


def dumped(value: Any) -> str:
    """JSON text of a value with exact numbers."""
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {dumped(item)}" for key, item in value.items()]
        return f"{{{', '.join(parts)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(dumped, value))}]"
    return format(value, "f") if isinstance(value, Decimal) else json.dumps(value)


@cache
def suite(kind: str) -> tuple[Group, ...]:
    """Groups of the JSON Schema Test Suite: "required", "optional-format" or "typed".

    The groups that say of ``format`` that it is no assertion are left out.
    """
    typed = "_typed" if kind == "typed" else ""
    found = []
    for index, group in enumerate(_loaded(f"json_schema_test_suite{typed}.json")):
        if not typed and group["set"] != kind:
            continue
        if kind != "optional-format" and group["set"] != "format-typed" and group["kw"] == "format":
            continue
        schema = group["schema"]
        if group["draft"] == "draft7" and isinstance(schema, dict):
            schema = {"$schema": DRAFT_7, **schema}
        name = f"{index} {group['draft']} {group['kw']}: {group['desc']}"
        tests = tuple((test["data"], test["valid"]) for test in group["tests"])
        found.append(Group(name, group["kw"], dumped(schema), tests))
    return tuple(found)


@cache
def bench() -> tuple[Group, ...]:
    """The sample of JSONSchemaBench."""
    return tuple(
        Group(
            group["id"],
            group["set"],
            dumped(group["schema"]),
            tuple((test["data"], test["valid"]) for test in group["tests"]),
        )
        for group in _loaded("jsonschemabench_sample.json")
    )


def compiled(schema: str, style: str | int = "line", seconds: float = 20.0) -> Automaton:
    """The automaton of a schema, made within a time."""
    with within(Budget(seconds)):
        return Automaton(rules_of(JsonSchema(schema, style))[0])


def judge(group: Group) -> Verdict:
    """Compile a schema and walk its instances."""
    try:
        automaton = compiled(group.schema)
    except Unsatisfiable as error:
        if not any(valid for _, valid in group.tests):
            return Verdict("right")
        return Verdict("valid rejected", f"{type(error).__name__}: {error}", error)
    except ConstraintError as error:
        place = (
            f"{error.keyword} at {error.pointer}: " if isinstance(error, SchemaUnsupported) else ""
        )
        return Verdict("refused", f"{type(error).__name__}: {place}{error}", error)
    rejected = None
    for instance, valid in group.tests:
        accepted = accepts(automaton, instance, group.schema)
        if accepted and not valid:
            return Verdict("invalid accepted", dumped(instance))
        if valid and not accepted and rejected is None:
            rejected = dumped(instance)
    return Verdict("right") if rejected is None else Verdict("valid rejected", rejected)


def accepts(automaton: Automaton, instance: Any, schema: str = "{}") -> bool:
    """Whether an instance is an output in some order of keys and some spelling.

    Args:
        automaton: Of the schema.
        instance: JSON.
        schema: Its text, which says which orders of keys to try first where they are many.
    """
    walk = _Walk(automaton, tuple(_orders(exactly(schema))))
    return any(state.accepting for state in walk.behind({automaton.start}, instance))


class _Walk:
    """One instance on its way through an automaton."""

    def __init__(self, automaton: Automaton, orders: tuple[tuple[str, ...], ...]) -> None:
        self._automaton = automaton
        self._orders = orders
        self._known: dict[tuple[State, int], set[State]] = {}

    def behind(self, states: set[State], value: Any) -> set[State]:
        """The states behind a value, in any spelling, from any of some states."""
        found: set[State] = set()
        for state in states:
            known = self._known.get((state, id(value)))
            if known is None:
                known = self._known[state, id(value)] = self._behind(state, value)
            found |= known
        return found

    def _behind(self, state: State, value: Any) -> set[State]:
        if isinstance(value, dict):
            return self._object(state, value)
        if isinstance(value, list):
            states = self._run({state}, "[")
            for index, item in enumerate(value):
                states = self.behind(self._run(states, ", " if index else ""), item)
            return self._run(states, "]")
        return self._any({state}, spellings(value))

    def _object(self, state: State, value: dict[str, Any]) -> set[State]:
        """Every order of keys, one set of written keys at a time."""
        order = max(self._orders, key=lambda keys: len(value.keys() & keys), default=())
        keys = [key for key in order if key in value]
        keys += [key for key in value if key not in order]
        width = WIDTH if len(keys) <= 5 else NARROW
        written = {frozenset[str](): self._run({state}, "{")}
        for count in range(len(keys)):
            new: dict[frozenset[str], set[State]] = {}
            for before, states in written.items():
                here = self._run(states, ", " if count else "")
                for key in keys:
                    behind = before | {key}
                    if key not in before and (behind in new or len(new) < width):
                        at = self._any(here, (f"{text}: " for text in spellings(key)))
                        if after := self.behind(at, value[key]):
                            new.setdefault(behind, set()).update(after)
            written = new
        return self._run(set().union(*written.values()), "}")

    def _any(self, states: set[State], texts: Iterable[str]) -> set[State]:
        return set().union(*(self._run(states, text) for text in texts))

    def _run(self, states: set[State], text: str) -> set[State]:
        data = text.encode()
        found = (self._automaton.run(state, data) for state in states)
        return {state for state in found if state is not None}


def _orders(schema: Any) -> Iterator[tuple[str, ...]]:
    """The keys of every object inside of a schema: that of `properties` will be among them."""
    todo = [schema]
    while todo:
        here = todo.pop(0)
        if isinstance(here, dict):
            yield tuple(here)
        if isinstance(here, (dict, list)):
            todo += here.values() if isinstance(here, dict) else here


def spellings(value: Any) -> Iterator[str]:
    """Texts of a scalar: our own first, then others that JSON has for it."""
    if isinstance(value, str):
        plain = json.dumps(value, ensure_ascii=False)
        if not re.search("[\ud800-\udfff]", value):
            yield plain
        escaped = json.dumps(value)
        if escaped != plain:
            yield escaped
        if "/" in value:
            yield plain.replace("/", "\\/")
        if value[:1].isascii() and value[:1].isalnum():
            yield f'"\\u{ord(value[0]):04x}{plain[2:]}'
    elif isinstance(value, Decimal):
        yield format(value, "f")
    elif isinstance(value, int) and not isinstance(value, bool):
        yield str(value)
        yield f"{value}.0"
    else:
        yield json.dumps(value)


KINDS = ("required", "optional-format", "typed", "bench")


def groups(kind: str) -> tuple[Group, ...]:
    """All groups of one kind."""
    return bench() if kind == "bench" else suite(kind)


@cache
def judged(kind: str) -> tuple[Counter[str], list[tuple[Group, Verdict]]]:
    """How many groups were judged how, and those that are not right."""
    verdicts = [(group, judge(group)) for group in groups(kind)]
    wrong = [each for each in verdicts if each[1].kind != "right"]
    return Counter(verdict.kind for _, verdict in verdicts), wrong


def oracle(schema: str) -> Any:
    """The validator of the `jsonschema` package, with exact numbers and patterns as in ECMA-262."""
    jsonschema = pytest.importorskip("jsonschema")
    parsed = exactly(schema)
    base = jsonschema.validators.validator_for(parsed, default=jsonschema.Draft202012Validator)
    made = jsonschema.validators.extend(base, {"pattern": _pattern, "multipleOf": _multiple_of})
    return made(parsed, format_checker=base.FORMAT_CHECKER)


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(instance, str):
        ends_there = re.sub(r"(?<!\\)((?:\\\\)*)\$(?=$|[|)])", r"\1\\Z", pattern)
        if not re.search(ends_there, instance, re.ASCII):
            yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _multiple_of(validator: Any, step: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if validator.is_type(instance, "number") and (Fraction(instance) / Fraction(step)) % 1:
        yield ValidationError(f"{instance!r} is no multiple of {step!r}")


def walks(schema: str, vocabulary: Vocabulary, count: int) -> list[str]:
    """What is wrong with random outputs of a schema that must all end, be JSON and be valid.

    Raises:
        ConstraintError: The schema is refused.
    """
    with within(Budget(20.0)):
        grammar = compile_spec(JsonSchema(schema), vocabulary)
    validator = oracle(schema)
    least = grammar.min_tokens()
    wrong = []
    for seed in range(count):
        text = grammar.sample(seed, budget=least + (0, 3, 20, 80)[seed % 4])
        try:
            value = json.loads(text, parse_float=number, object_pairs_hook=_distinct)
            if error := next(validator.iter_errors(value), None):
                wrong.append(f"{text[:200]!r}: {error.message[:200]}")
        except (ValueError, TypeError, re.error) as error:
            wrong.append(f"{text[:200]!r}: {type(error).__name__}: {error}")
    return wrong


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def main() -> None:
    """Judge everything, and walk every schema so often as is said."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("kinds", nargs="*", default=KINDS, help=f"of {', '.join(KINDS)}")
    parser.add_argument("--walks", type=int, default=0, help="random outputs of each schema")
    given = parser.parse_args()
    for kind in given.kinds:
        counts, wrong = judged(kind)
        print(f"{kind}: {dict(counts)}", flush=True)
        for group, verdict in wrong:
            print(f"  {verdict.kind}: {group.name}: {verdict.why[:300]}", flush=True)
        refused = {group.name for group, verdict in wrong if verdict.kind == "refused"}
        for group in groups(kind) if given.walks else ():
            try:
                told = [] if group.name in refused else _walks(group, given.walks)
            except Unsatisfiable:
                told = []
            for line in told:
                print(f"  walk: {group.name}: {line}", flush=True)


def _walks(group: Group, count: int) -> list[str]:
    from tests.grammar.real import real_vocabulary

    return walks(group.schema, real_vocabulary(), count)


if __name__ == "__main__":
    main()
