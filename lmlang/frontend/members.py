"""The members of a select: from what a program gives as choices to values and their texts."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Iterable, Mapping, Sized
from enum import Enum

from lmlang import limits
from lmlang.errors import ProgramError, ProgramTypeError, an, quote
from lmlang.frontend.expression import checked_text

_NO_LIST = (str, bytes, bytearray, set, frozenset)
"""Iterable, but not choices in an order: that of a set is another in each process."""


def members_of(choices: object) -> tuple[tuple[object, ...], tuple[str, ...]]:
    """The values of choices and their texts.

    Raises:
        ProgramError: No choices or too many, an empty text, or two that are equal.
    """
    if typing.get_origin(choices) is typing.Literal:
        choices = typing.get_args(choices)
    members: tuple[object, ...]
    if isinstance(choices, Mapping):
        members = tuple(choices)
        texts = tuple(_label_text(label, text) for label, text in choices.items())
    elif isinstance(choices, Iterable) and not isinstance(choices, _NO_LIST):
        members = tuple(itertools.islice(choices, limits.MAX_CHOICES + 1))
        texts = tuple(_choice_text(member) for member in members)
    else:
        unordered = isinstance(choices, (set, frozenset))
        hint = "write sorted(choices)" if unordered else 'write ["yes", "no"]'
        raise ProgramTypeError(
            f"choices={quote(repr(choices))[1:-1]} must be a list or the like, an Enum, a Literal "
            f"or a dict of label to text, not {type(choices).__name__}: {hint}."
        )
    if not texts:
        raise ProgramError("choices=[]: there is nothing to choose from; give at least one.")
    if len(texts) > limits.MAX_CHOICES:
        count = f"{len(choices):,}" if isinstance(choices, Sized) else "more"
        raise ProgramError(f"{count} choices: at most {limits.MAX_CHOICES:,} are allowed.")
    _check_different(members, texts)
    return members, texts


def _check_different(members: tuple[object, ...], texts: tuple[str, ...]) -> None:
    texts_seen: set[str] = set()
    seen: dict[object, object] = {}
    for member, text in zip(members, texts, strict=True):
        if not text:
            raise ProgramError("a choice is the empty text '': every choice needs some text.")
        if text in texts_seen:
            raise ProgramError(f"the choice {quote(text)} stands twice: choices must differ.")
        texts_seen.add(text)
        if member in seen:
            raise ProgramError(
                f"the choices {quote(repr(seen[member]))[1:-1]} and {quote(repr(member))[1:-1]} "
                "are equal in Python, so nothing could be looked up by them: give their texts, or "
                "a dict of label to text."
            )
        seen[member] = member


def _label_text(label: object, text: object) -> str:
    if not isinstance(text, str):
        raise ProgramTypeError(
            f"the choice {quote(repr(label))[1:-1]} has {an(type(text).__name__)} as its text: "
            "a dict of choices maps each label to a string."
        )
    return checked_text(text)


def _choice_text(member: object) -> str:
    value = member.value if isinstance(member, Enum) else member
    if value is None or isinstance(value, (str, bool, int)):
        return checked_text(value if isinstance(value, str) else str(value))
    raise ProgramTypeError(
        f"the choice {quote(repr(member))[1:-1]} of type {type(member).__name__} has no text of "
        "its own: give strings, Enum members, ints, bools, or a dict of label to text."
    )
