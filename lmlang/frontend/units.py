r"""Pieces of an output: tokens with the text that they came with.

    ids   5012  88  91  17      text   {"a"    "é"     :
          {"a"  \_ é _/  :             5012    88 91   17

A token that ends within a character is in one piece with those that complete it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

from lmlang.protocol import (
    Backend,
    Event,
    Output,
    Provenance,
    Segment,
    Text,
    TokenAware,
    Tokens,
    TopLogprobs,
    TopProbs,
)


@dataclass(frozen=True, slots=True)
class Unit:
    """Some tokens of an output, or what is said between them.

    Args:
        text: What they read as; of the last ones perhaps "".
        ids: The tokens; none where the text is no token's.
        logprobs: As `Output` has them, for these tokens; so is the rest.
        hidden: Tokens that the model reads here, and nobody else.
    """

    text: str
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[TopLogprobs, ...] = ()
    probs: tuple[float, ...] = ()
    top_probs: tuple[TopProbs, ...] = ()
    provenance: tuple[Provenance, ...] = ()
    hidden: Tokens | None = None


def units_of(
    backend: Backend, events: Iterable[Event], output: Output, asking: bool = False
) -> list[Unit]:
    """The pieces of an output; one piece where nothing tells its tokens apart.

    Args:
        backend: Whose tokens they are; it may know how each is spelled.
        events: What told of the output.
        output: It.
        asking: Whether the backend may be asked what each token reads as, where it has to be: an
            output that a journal has kept is told of by one event.
    """
    spoken = _spoken(output)
    cuts = None
    if isinstance(backend, TokenAware):
        cuts = _by_spelling(backend, spoken, output)
    cuts = cuts or _by_events(events, len(spoken), output)
    if asking and (cuts is None or not all(map(_is_short, cuts, [("", 0), *cuts]))):
        texts = [backend.decode([token]) for token in spoken]
        read = [(text, number) for number, text in enumerate(texts, 1) if text]
        cuts = _checked(read, output) or cuts
    cuts = cuts or _checked([(output.text, len(spoken))], output) or []
    found, low = list[Unit](), 0
    for text, high in cuts:
        found.append(
            Unit(
                text,
                output.ids[low:high],
                output.logprobs[low:high],
                output.top_logprobs[low:high],
                output.probs[low:high],
                output.top_probs[low:high],
                output.provenance[low:high],
            )
        )
        low = high
    return found


def are_told_apart(units: Iterable[Unit]) -> bool:
    """Whether pieces are single tokens, or those of one character."""
    return all(_is_apart(unit.text, len(unit.ids)) for unit in units)


def _is_apart(text: str, tokens: int) -> bool:
    return not text or tokens <= 1 or (tokens <= MAX_BYTES and not text.isascii())


MAX_BYTES = 4
"""Of one character in UTF-8."""
_Cuts: TypeAlias = list[tuple[str, int]]
"""The text of each piece, and how many of the tokens have come by its end."""


def _is_short(cut: tuple[str, int], before: tuple[str, int]) -> bool:
    return _is_apart(cut[0], cut[1] - before[1])


def _spoken(output: Output) -> tuple[int, ...]:
    """The tokens of an output without those at its end that were dropped, whatever they spell."""
    ids = tuple([i for s in output.history if isinstance(s, Tokens) and s.text for i in s.ids])
    return ids if ids and output.ids[: len(ids)] == ids else output.ids


def _by_spelling(backend: TokenAware, ids: Sequence[int], output: Output) -> _Cuts | None:
    """Pieces by what each token is spelled as; None where that is not the output."""
    found: _Cuts = []
    pending = b""
    for number, token in enumerate(ids, 1):
        pending += backend.token_bytes(token)
        try:
            text = pending.decode()
        except UnicodeDecodeError:
            continue
        if text:
            found.append((text, number))
            pending = b""
    return _checked(found, output)


def _by_events(events: Iterable[Event], spoken: int, output: Output) -> _Cuts | None:
    """Pieces by the texts that tokens came with; None where these are not the output."""
    found: _Cuts = []
    end = 0
    for event in events:
        if event.ids[: len(event.text)] == tuple(map(ord, event.text)):  # tokens are characters
            found += [(char, end + at) for at, char in enumerate(event.text, 1)]
        elif event.text:
            found.append((event.text, min(end + len(event.ids), spoken)))
        end += len(event.ids)
    return _checked(found, output)


def _checked(found: _Cuts, output: Output) -> _Cuts | None:
    """The pieces with the tokens at the end that read as nothing, if they are the output."""
    count = len(output.ids)
    if "".join([text for text, _ in found]) != output.text or (found and found[-1][1] > count):
        return None
    return found if found and found[-1][1] == count else [*found, ("", count)]


def hidden_units(history: Iterable[Segment]) -> list[Unit]:
    """What the model read, unseen, before an output began."""
    return [Unit("", hidden=s) for s in history if isinstance(s, Tokens) and not s.text]


def text_of(units: Iterable[Unit]) -> str:
    """What pieces read as."""
    return "".join([unit.text for unit in units])


def kept_before(units: Sequence[Unit], place: int) -> int:
    """How many of the first pieces end at a character or before it, at the border of a token.

    A piece may hold the beginning of a character that the next one completes; that is none of
    ASCII.
    """
    best, at = 0, 0
    for number, unit in enumerate(units, 1):
        at += len(unit.text)
        if at > place:
            break
        behind = next((after.text for after in units[number:] if after.text), "")
        if unit.hidden is not None or behind[:1].isascii():
            best = number
    return best


def segments_of(units: Iterable[Unit]) -> list[Segment]:
    """What pieces are in a prompt; tokens at the end that read as nothing are left out."""
    found: list[Segment] = []
    ids: list[int] = []
    text = ""
    for unit in chain(units, [Unit("", hidden=Tokens((), ""))]):
        if unit.ids and unit.text:
            ids += unit.ids
            text += unit.text
            continue
        if unit.hidden is None and not unit.text:
            continue
        if ids:
            found.append(Tokens(tuple(ids), text))
            ids, text = [], ""
        if unit.text:
            found.append(Text(unit.text))
        elif unit.hidden is not None and unit.hidden.ids:
            found.append(unit.hidden)
    return found


def joined(units: Sequence[Unit], name: str) -> tuple[Any, ...]:
    """One field of all pieces together."""
    return tuple(chain.from_iterable([getattr(unit, name) for unit in units]))
