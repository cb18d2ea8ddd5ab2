r"""A prompt's segments to token ids, each stretch of text tokenised as one.

    Turn(user) Text("Hi") | Text(" you") EndTurn      segments; | is where a fork began
    [im_start] "user\nHi you" [im_end] "\n" ...     control ids between stretches of plain text
                      ^ stable: no later text changes the tokens to the left of this mark

What is known after a segment is kept on the prompt's node, so that encoding a prompt whose
beginning was encoded costs only its tail. Nothing is kept that later segments could change.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from lmlang.errors import ProgramError, quote
from lmlang.protocol import EndTurn, Image, Prompt, Text, Tokens, Turn
from lmlang.runtime.chat import ChatTemplate, TurnPieces
from lmlang.runtime.tokenizer import Tokenizer

RETRY_CHARACTERS = 64
"""Open text is searched for a stable beginning when it has grown by this much and doubled."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Chunk:
    """Final ids, as a list that shares its beginning with others."""

    before: _Chunk | None
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Mark:
    """What is known behind one segment.

    Args:
        chunk: The ids that nothing can change any more.
        text: The text behind them, not yet tokenised.
        search_at: Length of ``text`` from which on a stable beginning is looked for again.
        roles: Of all turns so far.
        is_open: Whether the last turn is open.
        pieces: The template text that was used up to here (and possibly further).
    """

    chunk: _Chunk | None
    text: str
    search_at: int
    roles: tuple[str, ...]
    is_open: bool
    pieces: TurnPieces

    def holds_under(self, pieces: TurnPieces) -> bool:
        """Whether a prompt that goes on from here would have used the same template text."""
        if pieces is self.pieces:
            return True
        opened = len(self.roles)
        closed = opened - self.is_open
        return (
            pieces.openings[:opened] == self.pieces.openings[:opened]
            and pieces.closings[:closed] == self.pieces.closings[:closed]
        )


class PromptEncoder:
    """Encodes and renders prompts for one model. Thread-safe.

    Args:
        tokenizer: The model's tokenizer.
        template: Its chat template.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._root = _Mark(None, "", RETRY_CHARACTERS, (), False, TurnPieces((), ()))

    def encode(self, prompt: Prompt) -> list[int]:
        """The prompt's token ids.

        Raises:
            ProgramError: Turns are not balanced, the template refuses their roles, or a text is
                no Unicode.
            ModelError: The template fails.
        """
        mark = self._mark(prompt)
        parts = [tuple(self._tokenizer.encode(mark.text)) if mark.text else ()]
        chunk = mark.chunk
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
            ProgramError: Turns are not balanced, or the template refuses their roles.
            ModelError: The template fails.
        """
        segments = prompt.segments()
        roles, is_open = _turns(self._root, prompt.nodes())
        pieces = self._template.pieces(roles, is_open)
        turn = 0
        parts: list[str] = []
        for segment in segments:
            if isinstance(segment, Turn):
                parts.append(pieces.openings[turn])
                turn += 1
            elif isinstance(segment, EndTurn):
                parts.append(pieces.closings[turn - 1])
            elif isinstance(segment, Image):
                raise ProgramError(f"this model has no vision, and {segment.name!r} is a picture.")
            else:
                parts.append(segment.text)
        return "".join(parts)

    def end_of_turn(self, prompt: Prompt) -> int | None:
        """The control token that closes the open turn; None without one, or where text does.

        Raises:
            ProgramError: Turns are not balanced, or the template refuses their roles.
            ModelError: The template fails.
        """
        roles, is_open = _turns(self._root, prompt.nodes())
        if not is_open:
            return None
        closing = self._template.pieces(roles, is_open).closings[-1]
        first = self._tokenizer.split_control(closing)[:1]
        return first[0] if first and isinstance(first[0], int) else None

    def _mark(self, prompt: Prompt) -> _Mark:
        """The prompt's mark, from the nearest node whose own still holds."""
        new, mark = self._unmarked(prompt)
        roles, is_open = _turns(mark, new)
        pieces = self._template.pieces(roles, is_open)
        if not mark.holds_under(pieces):  # this template writes old turns differently now
            new, mark = prompt.nodes(), self._root
        for node in new:
            mark = self._after(mark, node, pieces)
            node.memo = (self, mark)
        return mark

    def _unmarked(self, prompt: Prompt) -> tuple[list[Prompt], _Mark]:
        """The last nodes, first one first, that no mark is kept on, and the mark before them."""
        new: list[Prompt] = []
        node = prompt
        while node.parent is not None:
            memo = node.memo
            if isinstance(memo, tuple) and memo[0] is self:
                mark: _Mark = memo[1]
                new.reverse()
                return new, mark
            new.append(node)
            node = node.parent
        new.reverse()
        return new, self._root

    def _after(self, mark: _Mark, node: Prompt, pieces: TurnPieces) -> _Mark:
        segment = node.segment
        roles, is_open = mark.roles, mark.is_open
        chunk, text, search_at = mark.chunk, mark.text, mark.search_at
        if isinstance(segment, Text):
            parts: list[str | int] = [segment.text]
        elif isinstance(segment, Turn):
            parts = self._tokenizer.split_control(pieces.openings[len(roles)])
            roles, is_open = (*roles, segment.role), True
        elif isinstance(segment, EndTurn):
            parts = self._tokenizer.split_control(pieces.closings[len(roles) - 1])
            is_open = False
        else:
            assert isinstance(segment, Tokens)
            parts = list(segment.ids)
        final: list[int] = []
        for part in parts:
            if isinstance(part, str):
                text += part
            else:
                final += self._tokenizer.encode(text) if text else ()
                final.append(part)
                text, search_at = "", RETRY_CHARACTERS
        if len(text) >= search_at:
            stable, characters = self._tokenizer.encode_stable(text)
            final += stable
            text = text[characters:]
            search_at = 2 * len(text) + RETRY_CHARACTERS
        if final:
            chunk = _Chunk(chunk, tuple(final))
        return _Mark(chunk, text, search_at, roles, is_open, pieces)


def _turns(mark: _Mark, nodes: list[Prompt]) -> tuple[tuple[str, ...], bool]:
    """Roles of all turns at the end of ``nodes``, and whether the last one is open."""
    roles, is_open = list(mark.roles), mark.is_open
    for node in nodes:
        segment = node.segment
        if isinstance(segment, Turn):
            if is_open:
                raise ProgramError(
                    f"a turn of the role {quote(segment.role)} begins inside the open turn of "
                    f"the role {quote(roles[-1])}: end that turn first."
                )
            roles.append(segment.role)
            is_open = True
        elif isinstance(segment, EndTurn):
            if not is_open:
                raise ProgramError(
                    "a turn is ended and none is open: begin one with a role, and end it once."
                )
            is_open = False
    return tuple(roles), is_open
