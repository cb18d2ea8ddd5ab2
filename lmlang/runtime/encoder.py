r"""A prompt's segments to token ids, each stretch of text tokenised as one.

    Turn(user) Text("Hi") | Text(" you") EndTurn      segments; | is where a fork began
    [im_start] "user\nHi you" [im_end] "\n" ...     control ids between stretches of plain text
                      ^ stable: no later text changes the tokens to the left of this mark

What is known after a segment is kept on the prompt's node, so that encoding a prompt whose
beginning was encoded costs only its tail. Nothing is kept that later segments could change: where
a turn begins or ends the template is asked anew, and ids are kept as far as its text is the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from lmlang.protocol import EndTurn, Prompt, Turn
from lmlang.runtime.chat import ChatTemplate
from lmlang.runtime.chat_offers import OfferingWriter
from lmlang.runtime.chat_script import (
    Ids,
    Item,
    Literal,
    Plain,
    Script,
    content_of,
    segment_item,
)
from lmlang.runtime.tokenizer import Tokenizer

RETRY_CHARACTERS = 64
"""Open text is searched for a stable beginning when it has grown by this much and doubled."""

log = logging.getLogger("lmlang")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Chunk:
    """Final ids, as a list that shares its beginning with others."""

    before: _Chunk | None
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Open:
    """Text that is not yet tokenised, in pieces: a list that shares its beginning with others.

    A word may come in any number of pieces; so each is kept once, and not with all before it.
    """

    before: _Open | None
    piece: str


def _joined(last: _Open | None) -> str:
    pieces = []
    while last is not None:
        pieces.append(last.piece)
        last = last.before
    pieces.reverse()
    return "".join(pieces)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Step:
    """What is known behind one item; a list that shares its beginning with others.

    Args:
        before: The step behind the item before.
        item: The item.
        chunk: The ids that nothing can change any more.
        open: The text behind them, None for none.
        length: Its characters.
        search_at: ``length`` from which on a stable beginning is looked for again.
    """

    before: _Step | None
    item: Item | None
    chunk: _Chunk | None
    open: _Open | None
    length: int
    search_at: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Mark:
    """What is known behind one segment.

    Args:
        script: Everything up to the last segment that begins or ends a turn.
        behind: Number of segments behind that one.
        step: The last item's.
    """

    script: Script
    behind: int
    step: _Step


def _steps(last: _Step) -> list[_Step]:
    """The step before all items, and all up to this one."""
    found: list[_Step] = []
    step: _Step | None = last
    while step is not None:
        found.append(step)
        step = step.before
    found.reverse()
    return found


class PromptEncoder:
    """Encodes and renders prompts for one model. Thread-safe.

    What the template changes of old turns is said on the logger ``lmlang``, each thing once.

    Args:
        tokenizer: The model's tokenizer.
        template: Its chat template.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._writer = OfferingWriter(tokenizer, template, self._say_once)
        self._root = _Mark(Script(), 0, _Step(None, None, None, None, 0, RETRY_CHARACTERS))
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def encode(self, prompt: Prompt) -> list[int]:
        """The prompt's token ids.

        Raises:
            ProgramError: Turns are not balanced, the template refuses their roles, a text is no
                Unicode, or there is a picture.
            ModelError: The template fails.
        """
        step = self._mark(prompt).step
        parts = [self._tail(step.open, step.chunk, ())]
        chunk = step.chunk
        while chunk is not None:
            parts.append(chunk.ids)
            chunk = chunk.before
        ids = list(chain.from_iterable(reversed(parts)))
        bos = self._tokenizer.bos_id
        if bos is not None and self._tokenizer.add_bos and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def render(self, prompt: Prompt) -> str:
        """The prompt as text, template text included.

        Raises:
            ProgramError: Turns are not balanced, the template refuses their roles, or there is a
                picture.
            ModelError: The template fails.
        """
        script = Script().then(prompt.nodes())
        return "".join([item.text for item in self._writer.items(script)])

    def end_of_turn(self, prompt: Prompt) -> int | None:
        """The control token that closes the open turn; None without one, or where text does.

        Raises:
            ProgramError: Turns are not balanced, or the template refuses their roles.
            ModelError: The template fails.
        """
        script = Script().then(prompt.nodes())
        if not script.is_open:
            return None
        first = self._writer.closing(script)[:1]
        return first[0] if first and isinstance(first[0], int) else None

    def _mark(self, prompt: Prompt) -> _Mark:
        """The prompt's mark, from the nearest node that has one."""
        new: list[Prompt] = []
        node = prompt
        relative: _Step | None = None
        while not isinstance(known := self._known(node), _Mark):
            relative = relative or known
            new.append(node)
            assert node.parent is not None
            node = node.parent
        mark = known
        new.reverse()
        border = 0  # behind the last segment that begins or ends a turn
        for index, fresh in enumerate(new):
            if isinstance(fresh.segment, (Turn, EndTurn)):
                border = index + 1
        if border:
            old: list[Prompt] = []
            for _ in range(mark.behind):
                old.append(node)
                assert node.parent is not None
                node = node.parent
            script = mark.script.then([*reversed(old), *new[:border]])
            mark = _Mark(script, 0, self._laid_out(script, mark.step, relative))
            for passed in new[: border - 1]:
                passed.memo = (self, mark.step)
            new[border - 1].memo = (self, mark)
        for fresh in new[border:]:
            item = segment_item(content_of(fresh.segment))
            mark = _Mark(mark.script, mark.behind + 1, self._after(mark.step, item))
            fresh.memo = (self, mark)
        return mark

    def _known(self, node: Prompt) -> _Mark | _Step | None:
        """The node's own mark, if this encoder made one; else what a child of it led to."""
        if node.parent is None:
            return self._root
        memo = node.memo
        if isinstance(memo, tuple) and memo[0] is self:
            known: _Mark | _Step = memo[1]
            return known
        return None

    def _laid_out(self, script: Script, before: _Step, relative: _Step | None) -> _Step:
        """The last step of a script's items, from what is the same in those known before.

        Args:
            script: What is to be laid out.
            before: The last step of an earlier part of the same prompt.
            relative: Of another prompt that begins like this one, if there is one.
        """
        items = self._writer.items(script)
        steps = _steps(relative or before)
        same = 0
        while same < len(items) and same + 1 < len(steps) and items[same] == steps[same + 1].item:
            same += 1
        if relative is None:
            self._say_what_is_anew(steps[1:], items, same)
        last = steps[same]
        for item in items[same:]:
            last = self._after(last, item)
        return last

    def _say_what_is_anew(self, steps: list[_Step], items: list[Item], same: int) -> None:
        """Say it when text that was encoded before is written differently now."""
        if same + 1 >= len(steps) or "anew" in self._said:  # all but a closing is as it was
            return
        old = "".join([step.item.text for step in steps[same:-1] if step.item is not None])
        new = "".join([item.text for item in items[same:]])
        if not new.startswith(old.rstrip()):
            self._say_once(
                "anew",
                "the model's chat template writes old turns differently once others follow or the "
                "turn is closed; such prompts are rendered anew as it says, so less of them is "
                "found in the cache.",
            )

    def _say_once(self, matter: str, sentence: str) -> None:
        with self._lock:
            if matter in self._said:
                return
            self._said.add(matter)
        log.warning(sentence)

    def _after(self, step: _Step, item: Item) -> _Step:
        if isinstance(item, Ids) and item.heals:
            return self._healed(step, item)
        if isinstance(item, Literal):
            parts = self._tokenizer.split_control(item.text)
        elif isinstance(item, Ids):
            parts = list(item.ids)
        else:
            parts = [item.text]
        chunk, last, length, search_at = step.chunk, step.open, step.length, step.search_at
        final: list[int] = []
        for part in parts:
            if not isinstance(part, str):
                final += self._tail(last, chunk, final)
                final.append(part)
                last, length, search_at = None, 0, RETRY_CHARACTERS
            elif part:
                last, length = _Open(last, part), length + len(part)
        if length >= search_at:
            text = _joined(last)
            at_start = self._begins(chunk, final)
            stable, characters = self._tokenizer.encode_stable(text, at_start=at_start)
            final += stable
            text = text[characters:]
            last, length = _Open(None, text) if text else None, len(text)
            search_at = 2 * length + RETRY_CHARACTERS
        if final:
            chunk = _Chunk(chunk, tuple(final))
        return _Step(step, item, chunk, last, length, search_at)

    def _healed(self, step: _Step, item: Ids) -> _Step:
        """Behind ids that take the place of the last token of the text before them."""
        tail = self._tail(step.open, step.chunk, ())
        spelled = [self._tokenizer.token_bytes[index] for index in (*tail[-1:], *item.ids)]
        replaced = spelled[0] if tail else b""
        data = b"".join(spelled[1:])
        rest = data[len(replaced) :].decode("utf-8", "replace")
        if not replaced or not data.startswith(replaced) or rest != item.text:
            # the template has cut or changed that text: what follows is text like any other
            return replace(self._after(step, Plain(item.text)), item=item)
        chunk = _Chunk(step.chunk, (*tail[:-1], *item.ids))
        return _Step(step, item, chunk, None, 0, RETRY_CHARACTERS)

    def _tail(
        self, last: _Open | None, chunk: _Chunk | None, final: Sequence[int]
    ) -> tuple[int, ...]:
        """The ids of open text behind those that are final."""
        if last is None:
            return ()
        at_start = self._begins(chunk, final)
        return tuple(self._tokenizer.encode(_joined(last), at_start=at_start))

    def _begins(self, chunk: _Chunk | None, final: Sequence[int]) -> bool:
        """Whether text behind these ids begins the prompt."""
        if chunk is None:
            return self._tokenizer.may_start_behind(final)
        return not final and chunk.before is None and self._tokenizer.may_start_behind(chunk.ids)
