"""How sure a model was of each part of a typed output, by the tokens that the part is made of.

    {"vendor": "ACME", "total": 12.5}      vendor  0.91     total  0.34     ""  0.28 (all of it)

The number is the product of the probabilities with which the part's tokens were drawn: each among
those that the constraint, the temperature (1 where it is 0) and truncation left. So it is the
probability of this spelling of the part, given what stands before it; a token that was forced has
a probability of 1 and changes nothing. To a number belongs the token that ends it, which might
have been one more digit. Long texts are seldom likely: compare parts of one kind.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lmlang.errors import CaptureError, quote
from lmlang.frontend.captures import captures
from lmlang.frontend.json_text import name_of, parsed, walk
from lmlang.frontend.units import Unit
from lmlang.grammar.spec import Either, JsonSchema, Spec
from lmlang.protocol import TopProbs

_JSON = tuple('{["tfn-0123456789')
"""What JSON text begins with."""


@dataclass(frozen=True, slots=True)
class Place:
    """One piece of a text with the tokens that were drawn for it.

    Args:
        start: Its first character.
        end: The one behind its last.
        ids: Its tokens.
        probs: The probability with which each was drawn; empty where that was not asked for.
        top_probs: The likeliest tokens at the place of each, where asked for.
    """

    start: int
    end: int
    ids: tuple[int, ...]
    probs: tuple[float, ...]
    top_probs: tuple[TopProbs, ...] = ()


class Parts(dict[str, float]):
    """Numbers by the names of parts; a name that is none raises `CaptureError` with the mend."""

    def __missing__(self, name: object) -> float:
        if not self:
            raise CaptureError(
                "nothing is known of the probabilities of this output's tokens: ask for them by "
                "gen(…, return_logprob=True), on a backend that tells them."
            )
        near = difflib.get_close_matches(str(name), list(self), n=3, cutoff=0.5)
        known = near or list(self)[:8]
        raise CaptureError(
            f"the output has no part {quote(str(name))}; it has {', '.join(map(quote, known))}."
        )


def places_of(units: Iterable[Unit]) -> tuple[Place, ...]:
    """Where the pieces of an output stand in its text."""
    found, at = list[Place](), 0
    for unit in units:
        end = at + len(unit.text)
        if unit.ids:
            found.append(Place(at, end, unit.ids, unit.probs, unit.top_probs))
        at = end
    return tuple(found)


def parts_of(constraint: Spec | None, text: str) -> dict[str, tuple[int, int]]:
    """The parts of an output by their names: first and last character, that behind included.

    "" is all of it; values of JSON are named as in ``lines[0].amount``, groups of a pattern by
    their names.
    """
    found = {"": (0, len(text))}
    specs = constraint.specs if isinstance(constraint, Either) else (constraint,)
    root = None
    if any(isinstance(spec, JsonSchema) for spec in specs) and text[:1] in _JSON:
        root = parsed(text)
    if root is None:
        found |= {name: (part.start, part.end) for name, part in captures(constraint, text).items()}
        return found
    for path, node in walk(root):
        if node.end is not None:
            number = node.kind == "other" and text[node.start] in "-0123456789"
            found[name_of(path)] = (node.start, node.end + number)
    return found


def confidence(constraint: Spec | None, text: str, places: Sequence[Place]) -> Parts:
    """The probability of each part, by its name; empty where nothing is known of tokens."""
    if not places or any(len(place.probs) != len(place.ids) for place in places):
        return Parts()
    found = Parts()
    for name, part in parts_of(constraint, text).items():
        within = _within(places, *_ends(part, text))
        found[name] = math.prod([prob for place in within for prob in place.probs])
    return found


def _within(places: Sequence[Place], start: int, end: int) -> list[Place]:
    """The pieces that have characters from one to before another, and what ends the output."""
    return [
        place
        for place in places
        if place.start < end and (place.end > start or place.start >= start)
    ]


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token of an output where others were possible.

    Args:
        start: The character of the output at which it begins.
        text: What it reads as.
        prob: The probability with which it was drawn.
        others: The likeliest ones there, each with what it reads as and its probability.
    """

    start: int
    text: str
    prob: float
    others: tuple[tuple[str, float], ...]


def alternatives(
    constraint: Spec | None,
    text: str,
    places: Sequence[Place],
    decode: Callable[[Sequence[int]], str],
) -> dict[str, tuple[Alternative, ...]]:
    """The tokens of each part where others were possible, by the part's name.

    Args:
        constraint: What the output had to be.
        text: The output.
        places: Its tokens.
        decode: What tokens read as.
    """
    known: dict[Place, list[Alternative]] = {}
    for place in places:
        tops = place.top_probs or ((),) * len(place.ids)
        known[place] = [
            Alternative(
                place.start,
                decode([token]),
                prob,
                tuple([(decode([other]), p) for other, p in top if other != token]),
            )
            for token, prob, top in zip(place.ids, place.probs, tops, strict=False)
            if prob < 1.0
        ]
    return {
        name: tuple(
            [spot for place in _within(places, *_ends(part, text)) for spot in known[place]]
        )
        for name, part in parts_of(constraint, text).items()
    }


def _ends(part: tuple[int, int], text: str) -> tuple[int, int]:
    """From which character to before which tokens belong to a part; to the end what ends it."""
    start, end = part
    return start, len(text) + 1 if end >= len(text) else end
