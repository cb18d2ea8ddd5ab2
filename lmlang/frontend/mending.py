r"""Typed outputs that a validator of the program's own refuses: the refused part is written anew.

    prompt {"start": 2021, "end": 2019, "at": "X"}                  end is before start
    prompt {"start": 2021, "end": /* 2019 was refused: … */ 2022, "at": "X"}
           └── tokens kept ──┘        └── hidden ─────┘ └new┘└ kept ┘

What stands before the part is in the cache; what stands behind it stays, where it may. The hint is
hidden as reasoning is: the model reads it, the text and the value have none of it. What has been
refused there is not written again, however likely the model holds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lmlang.errors import ConstraintError, quote
from lmlang.frontend.following import Following
from lmlang.frontend.json_text import name_of, parsed, place_of
from lmlang.frontend.refused import Refused
from lmlang.frontend.thinking import Thinking, as_tokens
from lmlang.frontend.units import (
    Unit,
    hidden_units,
    joined,
    kept_before,
    segments_of,
    text_of,
    units_of,
)
from lmlang.grammar.spec import Hole, JsonSchema, Spec
from lmlang.protocol import Backend, Event, Finish, Generation, Output, Request, Text, Usage

MAX_VALUE, MAX_MESSAGE = 80, 160
"""Characters of a refused value, and of what a validator said, that a hint tells."""
HINT = 4 * (MAX_VALUE + MAX_MESSAGE + 40)
"""Tokens of a hint at most: a character has four bytes, and each is a token at the worst."""
NO_OTHER = "its type allows no other"
"""Why nothing is written anew."""
LIVELY = 0.7
"""The temperature, at least, of what is written anew and might be the same again."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of an output that was refused.

    Args:
        name: Where it stands, as people write it.
        value: What was refused, as it was written.
        kept: Pieces before it that stay.
        rest: Pieces behind it that stay.
        constraint: What may be written instead; None: nothing.
        drawn: Whether it must be drawn, or it might be the same again.
    """

    name: str
    value: str
    kept: list[Unit]
    rest: list[Unit]
    constraint: Spec | None
    drawn: bool


class Mending(Following):
    """A generation that offers its value to validators before anyone sees it. Thread-safe.

    Args:
        backend: Whose tokens hints are.
        ask: Begins a generation.
        first: The generation as it is asked for at first.
        request: What it is of.
        read: The value of a text; a `ConstraintError` where validators refuse it.
        most: How many values may be offered.
        draw_key: Of the draws of a try, by its number from 1 on.
        left: How many tokens the run may still generate; None: any number.

    Attributes:
        value: The value, once there is one.
        refused: Why there is none.
        thought: What the model wrote before the output, hidden.
        tries: How many values have been offered, the one under way included.
    """

    def __init__(
        self,
        backend: Backend,
        ask: Callable[[Request], Generation],
        first: Generation,
        request: Request,
        read: Callable[[str], Any],
        most: int,
        draw_key: Callable[[int], int],
        left: int | None,
    ) -> None:
        super().__init__(request)
        self.value: Any = None
        self.refused: BaseException | None = None
        self._backend = backend
        self._ask = ask
        self._read = read
        self._most = most
        self._draw_key = draw_key
        self._left = left
        self._first = first
        self._refused = Refused()
        self.tries = 1
        self._usage = Usage()
        self.follow(first, lambda output: self._offer(self._begun(output), output), may_wait=True)

    @property
    def thought(self) -> str:
        """The reasoning, once it is there."""
        return self._first.thought if isinstance(self._first, Thinking) else ""

    def _begun(self, output: Output) -> list[Unit]:
        self.first_at, self.admitted_at = self._first.first_at, self._first.admitted_at
        return [
            *hidden_units(output.history),
            *units_of(self._backend, self._first.events_from(0), output, True),
        ]

    def _offer(self, units: list[Unit], output: Output) -> None:
        """Let validators see a value; ``output.usage`` is what the last part of it took."""
        from lmlang.grammar.refusals import refusal_of

        self._usage += output.usage
        output = replace(output, usage=self._usage)
        if output.finish.reason == "length":  # it is no value, of which whoever asked tells
            self._show(units, output)
            return
        try:
            self.value = self._read(output.text)
        except BaseException as error:
            refusal = refusal_of(error)
            if refusal is None:
                self.refused = error
            else:
                part = self._part(units, output.text, refusal.steps)
                most = self._room(part)
                limit = self._limit(part, most)
                if not limit:
                    if not self.ended_by_cancelling():
                        self._again(part, refusal.message, most, output)
                    return
                self.refused = _told(part, refusal.message, self.tries, limit)
                self.refused.__cause__ = error.__cause__
        self._show(units, output)

    def _part(self, units: list[Unit], text: str, steps: tuple[str | int, ...]) -> _Part:
        spec = self.request.constraint
        assert spec is not None  # that of a type
        root = parsed(text) if isinstance(spec, JsonSchema) else None
        path, node = ((), root) if root is None else place_of(root, steps)
        if not path or node is None or node.end is None:
            other, drawn = self._refused.instead(spec, text, "", (), root)
            return _Part("", text, units[: kept_before(units, 0)], [], other, drawn)
        from lmlang.grammar.hole import stands_apart

        assert isinstance(spec, JsonSchema)
        # Texts that end an output are held back, so that pieces then are not at tokens' borders.
        place = 0 if self.request.params.stop else node.start
        kept = units[: kept_before(units, place)]
        before, after = text_of(kept), text[node.end :]
        rest: list[Unit] = []
        alone = stands_apart(spec, path)
        if alone:
            rest = _behind(units, len(text) - len(after))
            between = after.removesuffix(text_of(rest))
            rest = [Unit(between), *rest] if between else rest
        lead, value = text[len(before) : node.start], text[node.start : node.end]
        hole = Hole(spec, before, lead, after if alone else None)
        other, drawn = self._refused.instead(hole, value, text[: node.start], path, root)
        return _Part(name_of(path), value, kept, rest, other, drawn)

    def _room(self, part: _Part) -> int:
        """Tokens that may be written instead of a part."""
        used = len(joined(part.kept, "ids")) + len(joined(part.rest, "ids"))
        most = self.request.params.max_tokens - used
        return most if self._left is None else min(most, self._left - self._usage.generated_tokens)

    def _limit(self, part: _Part, most: int) -> str:
        """What forbids another try; nothing, where it may be made."""
        if not self._backend.info().has_tokens:
            return "its backend has no tokens to go on from"
        if part.constraint is None:
            return NO_OTHER
        return "" if self.tries < self._most and most > 0 else f"tries={self._most:,}"

    def _again(self, part: _Part, message: str, most: int, last: Output) -> None:
        """Write a part anew."""
        # Of a value that may come again, only what was said: models write what they read.
        what = "what stood here" if part.drawn else _plain(part.value, MAX_VALUE)
        said = f"/* {what} was refused: {_plain(message, MAX_MESSAGE)} */ "
        hint = replace(as_tokens(self._backend, Text(said)), text="")
        kept = [*part.kept, Unit("", hidden=hint)]
        prompt = self.request.prompt
        for segment in segments_of(kept):
            prompt = prompt.append(segment)
        tag = replace(self.request.tag, op_path=f"{self.request.tag.op_path}/try{self.tries}")
        params = self.request.params
        if part.drawn:
            params = replace(params, temperature=max(params.temperature, LIVELY))
        asked = self._ask(
            replace(
                self.request,
                prompt=prompt,
                params=replace(params, max_tokens=most),
                draw_key=self._draw_key(self.tries),
                constraint=part.constraint,
                input_logprobs_from=None,
                tag=tag,
            )
        )
        self.tries += 1

        def written(output: Output) -> None:
            fresh = units_of(self._backend, asked.events_from(0), output, True)
            if part.rest:  # the token that ended the part, and was dropped, is in none of it
                fresh = [unit for unit in fresh if unit.text]
            units = [*kept, *fresh, *part.rest]
            self._offer(units, _whole(units, output, last, bool(part.rest)))

        self.follow(asked, written, may_wait=True)

    def _show(self, units: list[Unit], output: Output) -> None:
        """Say all of it at once: what had been said before might have been taken back."""
        index = 0
        shown = [unit for unit in units if unit.hidden is None]
        for number, unit in enumerate(shown, 1):
            finish = output.finish if number == len(shown) else None
            event = Event(index, unit.ids, unit.text, unit.logprobs, finish, unit.top_logprobs)
            self.push(event)
            index += len(unit.ids)
        self.complete(output)


def _behind(units: list[Unit], place: int) -> list[Unit]:
    """The pieces that begin at a character or behind it."""
    at = 0
    for number, unit in enumerate(units):
        if at >= place and unit.text:
            return units[number:]
        at += len(unit.text)
    return []


def _whole(units: list[Unit], part: Output, last: Output, stays: bool) -> Output:
    """An output of which a part is new; the usage is that of the part."""
    finish = last.finish if stays and part.finish.reason == "complete" else part.finish
    if "forced_close" in (last.finish.reason, part.finish.reason):
        finish = Finish("forced_close")
    return Output(
        text_of(units),
        joined(units, "ids"),
        joined(units, "logprobs"),
        finish,
        part.usage,
        tuple(segments_of(units)),
        joined(units, "top_logprobs"),
        last.input_logprobs,
        joined(units, "probs"),
        joined(units, "top_probs"),
        joined(units, "provenance"),
    )


def _told(part: _Part, message: str, number: int, limit: str) -> ConstraintError:
    where = f"the field {part.name}" if part.name else "the value"
    times = "once" if number == 1 else f"{number} times"
    more = "raise tries, " if limit.startswith("tries") else ""
    return ConstraintError(
        f"{where} = {quote(part.value)[1:-1]} was refused by a validator: {quote(message)[1:-1]}. "
        f"It was written {times} ({limit}): {more}say in the prompt what is valid, or say it by a "
        "type, which a constraint keeps."
    )


def _plain(text: str, most: int) -> str:
    """Text as it may stand in a comment of one line."""
    shown = "".join([c if c.isprintable() else " " for c in text[: most + 1]])
    shown = shown.replace("*/", "* /")
    return shown if len(shown) <= most else shown[: most - 1] + "…"
