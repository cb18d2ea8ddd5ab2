"""Expressions: what can be appended to a state, as unplaced nodes in a row.

lm.user("Hi " + lm.gen("x"))   ->   Role(user) | Text("Hi ") | Gen(x) | EndRole(user)
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import NoReturn, TypeAlias

from lmlang.errors import ProgramError, ProgramTypeError, an, note, quote
from lmlang.frontend.ir import UNPLACED, Arg, EndRole, Gen, Image, Ref, Role, Select, Text

Appendable: TypeAlias = Text | Arg | Ref | Role | EndRole | Gen | Select | Image


@dataclass(frozen=True, slots=True)
class Leaf:
    """One unplaced node and what lies beside it.

    Args:
        node: The node.
        members: Of a select: the Python values of its choices.
        beside: Of a select: a choices method of the program's own; of an image: its segment.
    """

    node: Appendable
    members: tuple[object, ...] = ()
    beside: object = None


@dataclass(frozen=True, slots=True)
class Expression:
    """Texts, roles and generations to be appended with ``s += …``. Immutable, thread-safe."""

    leaves: tuple[Leaf, ...]

    def __add__(self, other: object) -> Expression:
        return Expression(self.leaves + as_expression(other).leaves)

    def __radd__(self, other: object) -> Expression:
        return Expression(as_expression(other).leaves + self.leaves)

    def __str__(self) -> NoReturn:
        raise ProgramError(
            "an expression has no text before it has run, so it cannot stand in an f-string, "
            'str() or print(): write s += "text " + lm.gen("x") + " more", '
            'then use s["x"] where its value is wanted.'
        )

    def __format__(self, spec: str) -> NoReturn:
        self.__str__()

    def __repr__(self) -> str:
        return f"{_MARK}{' + '.join(map(_shown, self.leaves))}>"


_MARK = f"<expression {secrets.token_hex(4)}: "
"""How the repr of an expression begins, in this process alone: no text has it by chance."""


def _shown(leaf: Leaf) -> str:
    node = leaf.node
    if isinstance(node, Text):
        return repr(node.text if len(node.text) <= 40 else node.text[:39] + "…")
    name = node.role if isinstance(node, (Role, EndRole)) else getattr(node, "name", "")
    return f"{type(node).__name__.lower()} {name}".rstrip()


def as_expression(value: object) -> Expression:
    """A string or expression as an expression.

    Raises:
        ProgramTypeError: It is neither.
        ProgramError: It is a string that UTF-8 cannot hold, or holds the repr of an expression.
    """
    if isinstance(value, Expression):
        return value
    if isinstance(value, str):
        text = checked_text(value)
        return Expression((Leaf(Text(UNPLACED, UNPLACED, text)),) if text else ())
    raise ProgramTypeError(
        f"{quote(repr(value))[1:-1]} of type {type(value).__name__} cannot be appended: "
        "only strings and expressions can. Write str(…) yourself, or s.text_of(name) for the "
        "text of a variable."
    )


def hint_at_join(error: TypeError) -> None:
    """Add a note to Python's refusal to join expressions as if they were strings."""
    if f"{Expression.__name__} found" in str(error):
        note(
            error,
            "an expression has no text before it has run, so str.join cannot take it: append the "
            "parts one by one with s += part, or add them with +.",
        )


def checked_text(value: str) -> str:
    """The plain ``str`` of a string, if UTF-8 can hold it and it is not the repr of a gen."""
    text = str.__str__(value)
    if _MARK in text:
        raise ProgramError(
            "the text holds the repr of an expression, as of a list in an f-string or of !r, and "
            'not what it will generate: append it, as in s += "text " + lm.gen("x").'
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ProgramError(
            f"the text has a lone surrogate (U+{ord(text[error.start]):04X}) at character "
            f"{error.start:,}, which no tokenizer can read: decode the source properly, or use "
            'text.encode("utf-8", "replace").decode().'
        ) from None
    return text


_REST_OF_GEN = attrgetter(*[f.name for f in fields(Gen)[3:]])


def place(node: Appendable, state: int, made: int, name: str, ends_turn: bool) -> Appendable:
    """A node in its place: between two states, under its name if it makes a variable.

    ``ends_turn`` is for a select that was not told. Texts and generations are made by hand: this
    is run for each of them, and `dataclasses.replace` takes several times as long.
    """
    if isinstance(node, Text):
        return Text(state, made, node.text)
    if isinstance(node, Gen):
        return Gen(state, made, name, *_REST_OF_GEN(node))
    if isinstance(node, Select):
        ends = ends_turn if node.ends_turn is None else node.ends_turn
        # Not to end the turn is what a node without it says, so that is not printed.
        return replace(node, state=state, made=made, name=name, ends_turn=ends or None)
    return replace(node, state=state, made=made)


def turn(role: str, body: object) -> Expression:
    """A whole chat turn around an expression; without text it is an empty one."""
    inside = () if type(body) is str and not body else as_expression(body).leaves
    return Expression((*begin(role).leaves, *inside, *end(role).leaves))


def begin(role: str) -> Expression:
    """The opening of a chat turn."""
    return Expression((Leaf(Role(UNPLACED, UNPLACED, role)),))


def end(role: str) -> Expression:
    """The end of a chat turn."""
    return Expression((Leaf(EndRole(UNPLACED, UNPLACED, role)),))


def role_after(role: str | None, node: Appendable) -> str | None:
    """The open turn after a node; raises where turns would nest or not match."""
    if isinstance(node, Role):
        if role is not None:
            raise ProgramError(
                f"{an(node.role)} turn cannot begin inside the open {role} turn: end that one "
                f"first, with lm.{role}_end() or by leaving its with block."
            )
        return node.role
    if isinstance(node, EndRole):
        if role != node.role:
            state = "no turn is open" if role is None else f"the open turn is the {role}'s"
            raise ProgramError(f"the end of {an(node.role)} turn, but {state}.")
        return None
    return role
