"""What one rendering of a chat template may use: work, time, and the weight of what it makes.

Values are weighed before they are made, so a template that wants too much never gets it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from contextvars import ContextVar
from itertools import islice
from types import GeneratorType
from typing import Any

import jinja2

from lmlang.runtime.chat_trace import Trace

MAX_WORK = 1_000_000
"""Loop passes, calls and operators of one rendering, and 10,000 more a turn."""
MAX_SECONDS = 10.0
"""Time of one rendering, whatever it counts."""
MAX_VALUE = 2_000_000
"""Weight of one value, and four times the contents' more: characters, 8 for each item."""
MAX_MADE = 16_000_000
"""Characters and list items of one rendering in all; long conversations may make more."""
MAX_DEPTH = 100
"""Lists within lists."""
MAX_NUMBER = 10_000
"""Widths, precisions and the like; bits of whole numbers."""

PADDING = frozenset({"batch", "center", "indent", "ljust", "rjust", "round", "slice", "zfill"})
"""What takes widths or counts."""


class Budget:
    """What one rendering may still use, and what it has learned of contents."""

    def __init__(self, trace: Trace) -> None:
        size = sum(map(len, trace.contents))
        turns = len(trace.contents)
        self.trace = trace
        self.work = MAX_WORK + 10_000 * turns
        self.value = MAX_VALUE + 4 * size
        self.made = MAX_MADE + (2 * size + 64 * turns) * turns
        self._deadline = time.monotonic() + MAX_SECONDS
        self._known: dict[int, tuple[Any, int, int]] = {}

    def spend(self, work: int) -> None:
        """Count loop passes, calls or items."""
        self.work -= work
        if self.work < 0 or time.monotonic() > self._deadline:
            raise jinja2.TemplateRuntimeError("more loop passes, calls or time than is allowed")

    def allow(self, weight: int) -> None:
        """Refuse a value before it is made."""
        if weight > self.value:
            raise jinja2.TemplateRuntimeError(
                f"a too large value: more than {self.value:,} characters"
            )

    def admit(self, value: Any) -> Any:
        """Count a new value; a generator becomes a list."""
        if isinstance(value, str):
            size = 1 + str.__len__(value)
            self.work -= 1 + size // 4_096
            self.made -= size
            if size > self.value or self.made < 0 or self.work < 0:
                self.allow(size)
                self.spend(0)
                raise jinja2.TemplateRuntimeError("too large values in all")
            return value
        value = self.settled(value)
        if id(value) in self._known:
            return value
        weight = self.weight(value)
        self.spend(1 + weight // 4_096)
        self.allow(weight)
        if isinstance(value, (list, tuple, dict)):
            self.made -= 16 + 32 * len(value)
        if self.made < 0:
            raise jinja2.TemplateRuntimeError("too large values in all")
        return value

    def settled(self, value: Any) -> Any:
        """A generator as a list; anything else as it is."""
        if isinstance(value, (GeneratorType, map, filter, zip, reversed)):
            return self.listed(value)
        return value

    def listed(self, values: Iterable[Any]) -> list[Any]:
        """The items of something, as far as there is work left."""
        items = list(islice(values, max(self.work, 0) + 1))
        self.spend(1 + len(items) // 8)
        return items

    def weight(self, value: Any) -> int:
        """Characters of a value and of all that it holds, each as often as it is held."""
        return self._weighed(value, 0)[0]

    def _weighed(self, value: Any, above: int) -> tuple[int, int]:
        """Weight and depth of a value; ``above``: how deep it lies itself."""
        if isinstance(value, str):
            return 1 + str.__len__(value), 0
        if isinstance(value, int):
            return 1 + value.bit_length() // 8, 0
        if isinstance(value, range):
            return 8 + 16 * len(value), 1
        if not isinstance(value, (list, tuple, dict)):
            return 8, 0
        known = self._known.get(id(value))
        if known is not None:
            return known[1], known[2]
        items = [*value, *value.values()] if isinstance(value, dict) else value
        weight, depth = 8, 0
        for item in items:
            inner, below = self._weighed(item, above + 1)
            weight, depth = weight + 8 + inner, max(depth, 1 + below)
            if above + depth > MAX_DEPTH:
                raise jinja2.TemplateRuntimeError(f"lists more than {MAX_DEPTH} deep")
        self._known[id(value)] = (value, weight, depth)
        return weight, depth


current: ContextVar[Budget] = ContextVar("budget of the rendering")


def foresee(budget: Budget, name: str, value: Any, args: tuple[Any, ...]) -> None:
    """Refuse a filter or method of texts that would give much more than it takes."""
    if name in PADDING:
        for argument in args:
            if isinstance(argument, int) and abs(argument) > MAX_NUMBER:
                raise jinja2.TemplateRuntimeError(f"{name} with a too large value, {argument:,}")
    size = budget.weight(value)
    others = max([budget.weight(argument) for argument in args], default=0)
    if name == "replace" and isinstance(value, str) and args:
        old = "".join(args[0]) if isinstance(args[0], str) else str(args[0])
        size += ("".join(value).count(old) if old else size) * others
    elif name == "join" and args:
        size = size * len(list(args[0])) + others
    elif name == "indent" and isinstance(value, str):
        width = max([a if isinstance(a, int) else budget.weight(a) for a in (4, *args)])
        size += (1 + "".join(value).count("\n")) * width
    elif name == "string" and not isinstance(value, str):
        size *= 4
    elif name == "sum" and not all(isinstance(a, (int, float, str)) for a in args):
        raise jinja2.TemplateRuntimeError("sum of other things than numbers")
    budget.allow(size)


def foresee_format(budget: Budget, form: str, sign: str, values: Any) -> None:
    """Refuse a format that pads to great widths, or repeats what it is given too often."""
    text = "".join(form)
    nested = "*" in text if sign == "%" else re.search(r"\{[^{}]*\{", text)
    if nested or re.search(r"[:%.][^a-zA-Z%{}]*\d{5}", text):
        raise jinja2.TemplateRuntimeError("a format with a too large value as its width")
    once = sign == "%" and not isinstance(values, dict)
    widths = sum(map(int, re.findall(r"\d{1,4}", text)))
    times = 1 if once else text.count(sign)
    budget.allow(len(text) + widths + times * budget.weight(values))
