r"""A prompt's turns, the texts around them, and what the template makes of both, item by item.

outer 0 | turn 0 | outer 1 | turn 1 | outer 2           a script, from the prompt's segments
Literal("<|user|>\n") Plain("Hi") Literal("<|end|>") …  its items, from the template
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

from lmlang.errors import ProgramError, quote
from lmlang.protocol import EndTurn, Prompt, Segment, Text, Tokens, Turn
from lmlang.runtime.chat import ChatTemplate
from lmlang.runtime.chat_trace import Part, Piece, Rewritten
from lmlang.runtime.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Literal:
    """Text of the template: what spells a control token is one."""

    text: str


@dataclass(frozen=True, slots=True)
class Plain:
    """Text of a program: ordinary characters, whatever they spell."""

    text: str


@dataclass(frozen=True, slots=True)
class Ids:
    """Tokens that a model produced, and what they read as (see `Tokens`)."""

    ids: tuple[int, ...]
    text: str
    heals: bool = False


Item: TypeAlias = Literal | Plain | Ids
Stretch: TypeAlias = tuple[tuple[Plain | Ids, ...], bool]
"""Items of a stretch of a turn, and whether all of its ids were kept."""


@dataclass(frozen=True, slots=True, eq=False)
class ScriptTurn:
    """One turn: its role, its segments, and its text."""

    role: str
    segments: tuple[Text | Tokens, ...]
    text: str
    stretches: dict[tuple[int, int], Stretch] = field(default_factory=dict)

    @classmethod
    def of(cls, role: str, segments: Iterable[Text | Tokens]) -> ScriptTurn:
        """A turn of these segments."""
        kept = tuple(segments)
        return cls(role, kept, "".join([segment.text for segment in kept]))


@dataclass(frozen=True, slots=True)
class Script:
    """All turns of a prompt, and the segments outside of them.

    Args:
        turns: The first one first.
        outers: What stands before each turn, and last what stands behind all.
        is_open: Whether the last turn is open; then nothing stands behind it.
    """

    turns: tuple[ScriptTurn, ...] = ()
    outers: tuple[tuple[Text | Tokens, ...], ...] = ((),)
    is_open: bool = False

    @property
    def roles(self) -> tuple[str, ...]:
        """Of all turns."""
        return tuple([turn.role for turn in self.turns])

    @property
    def contents(self) -> tuple[str, ...]:
        """Texts of all turns."""
        return tuple([turn.text for turn in self.turns])

    def then(self, nodes: Iterable[Prompt]) -> Script:
        """This script and what more nodes of a prompt bring.

        Raises:
            ProgramError: A turn begins inside of another, or ends where none is open.
        """
        turns, outers, is_open = list(self.turns), list(self.outers), self.is_open
        last: list[Text | Tokens] = list(turns[-1].segments if is_open else outers[-1])
        role = turns[-1].role if is_open else ""
        if is_open:
            turns.pop()
        else:
            outers.pop()
        for node in nodes:
            segment = node.segment
            if isinstance(segment, Turn):
                if is_open:
                    raise ProgramError(
                        f"a turn of the role {quote(segment.role)} begins inside the open turn of "
                        f"the role {quote(role)}: end that turn first."
                    )
                outers.append(tuple(last))
                last, role, is_open = [], segment.role, True
            elif isinstance(segment, EndTurn):
                if not is_open:
                    raise ProgramError(
                        "a turn is ended and none is open: begin one with a role, and end it once."
                    )
                turns.append(ScriptTurn.of(role, last))
                last, is_open = [], False
            else:
                last.append(content_of(segment))
        if is_open:
            turns.append(ScriptTurn.of(role, last))
        else:
            outers.append(tuple(last))
        return Script(tuple(turns), tuple(outers), is_open)


def content_of(segment: Segment | None) -> Text | Tokens:
    """A segment that is content.

    Raises:
        ProgramError: It is a picture.
    """
    if isinstance(segment, (Text, Tokens)):
        return segment
    name = getattr(segment, "name", type(segment).__name__)
    raise ProgramError(
        f"the prompt holds the picture {quote(str(name))}, and this model has no vision: leave it "
        "out, or use a backend that has."
    )


def segment_item(segment: Text | Tokens) -> Plain | Ids:
    """The item of a segment that stands as it is."""
    if isinstance(segment, Text):
        return Plain(segment.text)
    return Ids(segment.ids, segment.text, segment.heals)


class ScriptWriter:
    """Lays out scripts with one template. Thread-safe.

    Args:
        tokenizer: The model's tokenizer.
        template: Its chat template.
        say: Is told what a user should know of what the template changes: a short name of the
            matter, and a sentence.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, say: Callable[[str, str], None]
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._say = say

    def items(self, script: Script) -> list[Item]:
        """Everything that the model reads, in order.

        Raises:
            ProgramError: The template refuses the turns.
            ModelError: The template fails.
        """
        roles, contents = script.roles, script.contents
        parts = self._template.turns(roles, contents, script.is_open)
        items: list[Item] = []
        raw = any(segment.text for segment in script.outers[0])
        if raw and self._template.begins_with_bos(parts):  # it begins the whole, raw text too
            bos = self._template.bos_token
            items.append(Literal(bos))
            parts = (str(parts[0])[len(bos) :], *parts[1:])
        items += map(segment_item, script.outers[0])
        borders = self._borders(script, parts, roles, contents)
        closed = len(script.turns) - script.is_open
        placed = _absorbed(parts, script.turns, borders)
        for index, part in enumerate(placed):
            cuts = borders.get(index, [])
            if isinstance(part, Piece):
                for _, outer in cuts:
                    items += map(segment_item, outer)
                turn = script.turns[part.turn]
                if part.turn >= closed:
                    items += map(segment_item, turn.segments)
                else:
                    items += self._stretch(turn, part.start, part.end)[0]
                continue
            at = 0
            text = part.text if isinstance(part, Rewritten) else part
            kind = Plain if isinstance(part, Rewritten) else Literal
            for offset, outer in cuts:
                if offset > at:
                    items.append(kind(text[at:offset]))
                items += map(segment_item, outer)
                at = max(at, offset)
            if at < len(text):
                items.append(kind(text[at:]))
        for _, outer in borders.get(len(parts), []):
            items += map(segment_item, outer)
        if not script.is_open and script.turns:
            items += map(segment_item, script.outers[-1])
        self._say_what_changed(script.turns[:closed], placed)
        return items

    def closing(self, script: Script) -> list[str | int]:
        """What closing the open turn writes: plain stretches and control ids.

        Raises:
            ProgramError: The template refuses the turns.
            ModelError: The template fails.
        """
        return self._tokenizer.split_control(self._template.closing(script.roles, script.contents))

    def _borders(
        self,
        script: Script,
        parts: tuple[Part, ...],
        roles: tuple[str, ...],
        contents: tuple[str, ...],
    ) -> dict[int, list[tuple[int, tuple[Text | Tokens, ...]]]]:
        """For each part the texts that stand in it between turns, and where."""
        found: dict[int, list[tuple[int, tuple[Text | Tokens, ...]]]] = {}
        for turn in range(1, len(script.turns)):
            outer = script.outers[turn]
            if outer:
                index, offset = self._template.border(parts, roles, contents, turn)
                if offset:
                    offset = self._whole_control(str(parts[index]), offset)
                found.setdefault(index, []).append((offset, outer))
        return found

    def _whole_control(self, text: str, offset: int) -> int:
        """``offset``, or the beginning of the control token that it would cut."""
        at = 0
        for part in self._tokenizer.split_control(text):
            spelling = part if isinstance(part, str) else self._tokenizer.spelling(part)
            end = at + len(spelling)
            if offset < end:
                return offset if isinstance(part, str) else at
            at = end
        return offset

    def _stretch(self, turn: ScriptTurn, start: int, end: int) -> Stretch:
        known = turn.stretches.get((start, end))
        if known is None:
            known = turn.stretches[start, end] = self._cut(turn, start, end)
        return known

    def _cut(self, turn: ScriptTurn, start: int, end: int) -> Stretch:
        items: list[Plain | Ids] = []
        whole = True
        at = 0
        for segment in turn.segments:
            low, high = start - at, end - at
            size = len(segment.text)
            at += size
            if isinstance(segment, Text):
                text = segment.text[max(low, 0) : max(high, 0)]
                if text:
                    items.append(Plain(text))
            elif low <= 0 and high >= size:
                items.append(segment_item(segment))
            else:
                whole = whole and not segment.ids
                items += self._cut_tokens(segment, max(low, 0), min(high, size))
        return tuple(items), whole

    def _cut_tokens(self, tokens: Tokens, low: int, high: int) -> list[Plain | Ids]:
        """Characters ``low`` to ``high``; tokens that lie within keep their ids."""
        if low >= high:
            return []
        spelled = [self._tokenizer.token_bytes[index] for index in tokens.ids]
        data = b"".join(spelled)
        skip = len(data) - len(tokens.text.encode()) if tokens.heals and not low else 0
        if data[max(skip, 0) :] != tokens.text.encode():
            return [Plain(tokens.text[low:high])]
        begun = accumulate([(byte & 0xC0) != 0x80 for byte in data[skip:]])
        started = [*(0 for _ in range(skip + 1)), *begun]
        kept: list[tuple[int, int, int]] = []
        at = 0
        for index, text in zip(tokens.ids, spelled, strict=True):
            first = max(started[at + 1] - 1, 0) if text else started[at]
            at += len(text)
            if first >= low and started[at] <= high:
                kept.append((index, first, started[at]))
        if not kept or sum(len(self._tokenizer.token_bytes[index]) for index, _, _ in kept) < skip:
            return [Plain(tokens.text[low:high])]
        begin, end = kept[0][1], kept[-1][2]
        found: list[Plain | Ids] = [
            Plain(tokens.text[low:begin]),
            Ids(tuple([index for index, _, _ in kept]), tokens.text[begin:end], skip > 0),
            Plain(tokens.text[end:high]),
        ]
        return [item for item in found if item.text or isinstance(item, Ids)]

    def _say_what_changed(self, turns: tuple[ScriptTurn, ...], parts: list[Part]) -> None:
        kept = [0] * len(turns)
        lost = False
        changed = False
        for part in parts:
            changed = changed or isinstance(part, Rewritten)
            if isinstance(part, Piece) and part.turn < len(turns):
                kept[part.turn] += part.end - part.start
                turn = turns[part.turn]
                lost = lost or not self._stretch(turn, part.start, part.end)[1]
        for turn, size in zip(turns, kept, strict=True):
            changed = changed or (size < len(turn.text) and size < len(turn.text.strip()))
        if changed:
            self._say(
                "rewrites",
                "the model's chat template drops or rewrites contents of old turns; prompts are "
                "rendered anew as it says, so less of them is found in the cache.",
            )
        elif lost:
            self._say(
                "trims",
                "the model's chat template trims white space that the model generated at the edge "
                "of a turn; the tokens there are made anew from the text that is left.",
            )


def _absorbed(
    parts: tuple[Part, ...],
    turns: tuple[ScriptTurn, ...],
    borders: dict[int, list[tuple[int, tuple[Text | Tokens, ...]]]],
) -> list[Part]:
    """Parts where white space that the template trims and writes itself is the content's own.

    The text is the same, and a generated token that holds the white space can stay.
    """
    found = list(parts)
    for index, part in enumerate(parts):
        if not isinstance(part, Piece):
            continue
        turn = turns[part.turn]
        start, end = part.start, part.end
        before = found[index - 1] if index and not borders.get(index) else None
        if isinstance(before, str) and not borders.get(index - 1):
            while start and before and turn.text[start - 1] == before[-1] and before[-1].isspace():
                start, before = start - 1, before[:-1]
            found[index - 1] = before
        after = found[index + 1] if index + 1 < len(found) else None
        if isinstance(after, str) and not borders.get(index + 1):
            rest = turn.text
            while end < len(rest) and after and rest[end] == after[0] and after[0].isspace():
                end, after = end + 1, after[1:]
            found[index + 1] = after
        found[index] = Piece(part.turn, start, end, None)
    return found
