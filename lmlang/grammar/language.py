"""Sets of texts: what patterns match, lists of texts, lengths, and their boolean algebra.

    matching("[a-z]+") & of_length(1, 9) & ~of_texts(["id"])

A language is a small immutable tree; equal trees are one object. The automaton behind it is made
when it is first asked something, and then as far as the answer needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from heapq import heappop, heappush
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

from lmlang.errors import ConstraintError, GrammarTooLarge, quote
from lmlang.grammar.machine import GONE, MAX_EXPLORED, NEVER, Machine, too_large
from lmlang.grammar.machines import Lengths, Others, Product, Texts
from lmlang.grammar.regex import compile_regex, compile_search
from lmlang.grammar.substrings import Substrings
from lmlang.grammar.threads import Pattern

MAX_DEPTH = 100
"""Languages made of languages, one inside of the other."""


_END, _COME, _GO_ON = range(3)


class Language:
    """Texts; immutable. Equal only to itself, and what is made in the same way is the same object.

    Use the functions of this module to make one.
    """

    __slots__ = ("__weakref__", "_depth", "_kind", "_machine", "_make", "_of", "tables")

    def __init__(self, kind: str, of: Any, make: Callable[[Language], Machine]) -> None:
        self._kind = kind
        parts = of if kind in ("all", "any") else (of,) if kind == "not" else ()
        self._depth: int = 1 + max((part._depth for part in parts), default=0)
        self._of = of
        self._make = make
        self._machine: Machine | None = None
        self.tables: dict[Any, Any] = {}
        """What has been made of it for bytes; owned by `tables.py`."""

    def __and__(self, other: Language) -> Language:
        return _all((self, other))

    def __or__(self, other: Language) -> Language:
        return ~_all((~self, ~other)) if self._kind == other._kind == "not" else _any((self, other))

    def __invert__(self) -> Language:
        if self._kind == "not":
            inside: Language = self._of
            return inside
        if self is ANY or self is NOTHING:
            return NOTHING if self is ANY else ANY
        return _language("not", self, lambda new: Machine(Others(self.machine), new.name))

    def __repr__(self) -> str:
        return f"<Language: {self.name}>"

    @property
    def name(self) -> str:
        """What it is, for messages."""
        if self._kind in ("matching", "searching"):
            return f"the pattern {quote(self._of)}"
        if self._kind == "texts":
            return f"{len(self._of):,} text{'' if len(self._of) == 1 else 's'}"
        if self._kind == "lengths":
            least, most = self._of
            upper = "" if most is None else f" and at most {most:,}"
            return f"texts of at least {least:,}{upper} characters"
        if self._kind == "substrings":
            return f"what stands in a text of {len(self._of[0]):,} characters"
        parts = _leaves(self)
        more = f" and {len(parts) - 3:,} more" if len(parts) > 3 else ""
        return f"what is made of {', '.join(parts[:3])}{more}"

    @property
    def machine(self) -> Machine:
        """Its automaton over characters."""
        found = self._machine
        if found is None or found.full:
            found = self._machine = self._make(self)
        return found

    def contains(self, text: str) -> bool:
        """Whether a text belongs to it."""
        return (text.isascii() or not _has_surrogate(text)) and self._holds(text)

    def _holds(self, text: str) -> bool:
        if self._kind == "texts":
            return text in self._of
        if self._kind == "lengths":
            least, most = self._of
            return bool(least <= len(text) and (most is None or len(text) <= most))
        if self._kind == "substrings":
            source, least, most = self._of
            fits = least <= len(text) and (most is None or len(text) <= most)
            return bool(fits and text in source)
        if self._kind == "not":
            return not self._of._holds(text)
        if self._kind in ("all", "any"):
            verdicts = (part._holds(text) for part in self._of)
            return all(verdicts) if self._kind == "all" else any(verdicts)
        machine = self.machine
        state = machine.start
        for character in text:
            if state == GONE:
                return False
            state = machine.step(state, machine.alphabet.letter(ord(character)))
        return machine.accepting(state)

    def is_empty(self) -> bool:
        """Whether no text belongs to it.

        Raises:
            GrammarTooLarge: It cannot be told within the limits; so do all questions below.
        """
        return self.machine.distance(self.machine.start) >= NEVER

    def shortest(self) -> str | None:
        """A text of the fewest characters; None if there is none."""
        return None if self.is_empty() else self.machine.completion(self.machine.start)

    def first(self, limit: int) -> list[str]:
        """The shortest texts, as many as there are up to a limit."""
        if self._kind == "texts":
            return sorted(self._of, key=lambda text: (len(text), text))[:limit]
        machine, found = self.machine, list[str]()
        distance = machine.distance(machine.start)
        # Length of the shortest text that is to be found there, place, what is to be done.
        heap = [] if distance >= NEVER else [(distance, "", _COME, machine.start)]
        looked = 0
        while heap and len(found) < limit:
            _, text, todo, state = heappop(heap)
            looked += 1
            if looked > MAX_EXPLORED + 4 * limit:
                raise too_large(self.name, MAX_EXPLORED)
            if todo == _END:
                found.append(text)
            elif todo == _COME:
                if machine.accepting(state):
                    heappush(heap, (len(text), text, _END, state))
                nearest = min(
                    (machine.distance(to) for _, to in machine.edges(state)), default=NEVER
                )
                if nearest < NEVER:
                    heappush(heap, (len(text) + 1 + nearest, text, _GO_ON, state))
            else:
                for some, target in machine.alive(state):
                    total = len(text) + 1 + machine.distance(target)
                    for character in machine.alphabet.characters(some, limit - len(found)):
                        heappush(heap, (total, text + character, _COME, target))
        return found

    def size(self, limit: int) -> int:
        """How many texts belong to it, counted up to a limit."""
        if self._kind == "texts":
            return min(len(self._of), limit)
        if self._kind == "substrings":
            source, least, most = self._of
            lengths = min(len(source), len(source) if most is None else most) - least + 1
            if lengths >= limit:  # there is one of each length
                return limit
        machine = self.machine
        known = set[int]()
        level = {machine.start: 1} if not self.is_empty() else {}
        found, length = 0, 0
        while level:
            known.update(level)
            found += sum(count for state, count in level.items() if machine.accepting(state))
            further: dict[int, int] = {}
            for state, count in level.items():
                for some, target in machine.alive(state):
                    more = count * machine.alphabet.size(some)
                    further[target] = further.get(target, 0) + more
            length += 1
            # Texts of one length that can go on lead to different ones; and a text that is longer
            # than there are states has come to one of them twice.
            if found + sum(further.values()) >= limit:
                return limit
            if further and length > len(known.union(further)):
                return limit
            if len(known) > MAX_EXPLORED:
                raise too_large(self.name, MAX_EXPLORED)
            level = further
        return min(found, limit)


def _leaves(language: Language) -> list[str]:
    """The languages that one is made of, without nesting, in few words each."""
    found, todo = set[str](), [language]
    while todo and len(found) < 100:
        here = todo.pop()
        if here._kind == "not":
            todo.append(here._of)
        elif here._kind in ("all", "any"):
            todo.extend(here._of)
        elif here._kind in ("matching", "searching") and len(here._of) > 80:
            found.add(f"the pattern {quote(here._of[:79] + '…')}")
        else:
            found.add(here.name)
    return sorted(found)


_known: WeakValueDictionary[Any, Language] = WeakValueDictionary()
_lock = Lock()


def _language(kind: str, of: Any, make: Callable[[Language], Machine]) -> Language:
    """The one language of a kind that is made of this."""
    with _lock:
        found = _known.get((kind, of))
        if found is None:
            found = Language(kind, of, make)
            if found._depth > MAX_DEPTH:
                raise GrammarTooLarge(
                    f"{found.name}: it nests more than {MAX_DEPTH} times what is allowed and what "
                    "is not; flatten it."
                )
            _known[kind, of] = found
        return found


def _joined(languages: Iterable[Language], kind: str) -> list[Language]:
    """The parts, without those that are joined in the same way themselves; each once."""
    found: dict[Language, None] = {}
    for language in languages:
        found.update(dict.fromkeys(language._of if language._kind == kind else (language,)))
    return list(found)


def _all(languages: Iterable[Language]) -> Language:
    """What belongs to all of some languages."""
    parts = _joined(languages, "all")
    known = set(parts)
    kept = []
    least, most = 0, list[int]()
    texts: frozenset[str] | None = None
    others: frozenset[str] = frozenset()
    for part in parts:
        if part is NOTHING or ~part in known:
            return NOTHING
        if part._kind == "lengths":
            least = max(least, part._of[0])
            most += [] if part._of[1] is None else [part._of[1]]
        elif part._kind == "texts":
            texts = part._of if texts is None else texts & part._of
        elif part._kind == "not" and part._of._kind == "texts":
            others |= part._of._of
        else:
            kept.append(part)
    lengths = of_length(least, min(most, default=None))
    if texts is not None:
        rest = [*kept, lengths]
        return of_texts(t for t in texts - others if all(part.contains(t) for part in rest))
    if others:
        kept.append(~of_texts(others))
    if lengths is not ANY:
        kept.append(lengths)
    return _combined(kept, "all", ANY)


def _any(languages: Iterable[Language]) -> Language:
    """What belongs to any of some languages."""
    parts = [part for part in _joined(languages, "any") if part is not NOTHING]
    known = set(parts)
    if any(part is ANY or ~part in known for part in parts):
        return ANY
    texts = [part for part in parts if part._kind == "texts"]
    if len(texts) > 1:
        parts = [part for part in parts if part._kind != "texts"]
        parts.append(of_texts(frozenset().union(*(part._of for part in texts))))
    return _combined(parts, "any", NOTHING)


def _combined(parts: list[Language], kind: str, none: Language) -> Language:
    if len(parts) < 2:
        return parts[0] if parts else none
    if NOTHING in parts:
        return NOTHING
    return _language(
        kind,
        frozenset(parts),
        lambda new: Machine(Product([part.machine for part in parts], kind == "all"), new.name),
    )


@lru_cache(maxsize=256)
def matching(pattern: str) -> Language:
    """What a regular expression in Python's syntax matches in full.

    Raises:
        GrammarSyntaxError: It is none, or is not regular; with the position.
        GrammarTooLarge: Its automaton would be too large.
    """
    automaton = compile_regex(pattern)
    return _language(
        "matching", pattern, lambda new: Machine(Pattern(automaton, new.name), new.name)
    )


@lru_cache(maxsize=256)
def searching(pattern: str) -> Language:
    """All texts in which a regular expression of ECMA-262 is found, as JSON Schema has it.

    Raises:
        GrammarSyntaxError: It is none, or is not regular; with the position.
        GrammarTooLarge: Its automaton would be too large.
    """
    automaton = compile_search(pattern)
    return _language(
        "searching", pattern, lambda new: Machine(Pattern(automaton, new.name), new.name)
    )


@lru_cache(maxsize=256)
def searching_in_any_dialect(language: Language) -> Language:
    r"""What ECMA-262 or Python's ``re`` finds, of a language that `searching` has made.

    Validators in Python read patterns their own way: ``.`` finds a carriage return there, ``\w``
    an é, and ``$`` stands before a last line break too. Other languages are as they are.
    """
    if language._kind != "searching":
        return language
    try:
        return language | matching(rf"(?s:.*)(?:{language._of})(?s:.*)")
    except ConstraintError:  # it is no pattern of Python's
        return language


def of_texts(texts: Iterable[str]) -> Language:
    """Some texts; those that hold a surrogate are left out."""
    some = frozenset(text for text in texts if text.isascii() or not _has_surrogate(text))
    return _language("texts", some, lambda new: Machine(Texts(some), new.name)) if some else NOTHING


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def of_length(least: int, most: int | None) -> Language:
    """All texts of so many characters; no upper bound for None."""
    if most is not None and least > most:
        return NOTHING
    return _language("lengths", (least, most), lambda new: Machine(Lengths(least, most), new.name))


def standing_in(text: str, least: int, most: int | None) -> Language:
    """What stands in a text as it is, of so many characters; no upper bound for None."""
    if most is not None and least > most:
        return NOTHING
    return _language(
        "substrings",
        (text, least, most),
        lambda new: Machine(Substrings(text, least, most), new.name),
    )


ANY: Language = of_length(0, None)
"""All texts."""
NOTHING: Language = _language("texts", frozenset(), lambda new: Machine(Texts(()), new.name))
"""No text."""
