"""Texts of a table that must differ from some that have been written."""

from __future__ import annotations

from lmlang.grammar.automaton import LEAVE, Table

QUOTE = ord('"')


def leaves_all(table: Table, state: int, rivals: tuple[bytes, ...]) -> bytes | None:
    """A short rest of a text that is none of some; None where all rests are among them.

    A text that is none of them parts from all of them somewhere, so only their own ways are
    looked at.

    Args:
        table: The texts, as the content of a JSON string.
        state: Where in it.
        rivals: The rests that it must not be.
    """
    if not rivals:
        return table.completion(state)
    best: bytes | None = None
    ways = [(b"", state, rivals)]
    while ways:
        begun, here, left = ways.pop()
        if best is not None and len(begun) >= len(best):
            continue
        paths = {rival[0] for rival in left if rival}
        for byte in table.following(here):
            onward = table.push(here, byte)
            if onward == LEAVE:
                found = begun if b"" not in left else None
            elif best is not None and len(begun) + 1 >= len(best):
                continue
            elif byte in paths:
                found = None
                rest = tuple(rival[1:] for rival in left if rival[:1] == bytes((byte,)))
                ways.append((begun + bytes((byte,)), onward, rest))
            else:
                found = begun + bytes((byte,)) + table.completion(onward)
            if found is not None and (best is None or len(found) < len(best)):
                best = found
    return best


def can_leave(table: Table, state: int, rivals: tuple[bytes, ...]) -> bool:
    """Whether some rest of a text is none of the rivals."""
    ways = [(state, rivals)]
    while ways:
        here, left = ways.pop()
        paths = {rival[0] for rival in left if rival}
        if not paths and b"" not in left:
            return True
        for byte in table.following(here):
            if byte in paths:
                rest = tuple(rival[1:] for rival in left if rival[:1] == bytes((byte,)))
                ways.append((table.push(here, byte), rest))
            elif b"" not in left or table.push(here, byte) != LEAVE:
                return True
    return False


def stays_open(table: Table, state: int, rival: bytes) -> bool:
    """Whether a text could go on behind a rival, so that no beginning of it is forbidden."""
    for byte in rival:
        onward = table.push(state, byte)
        if onward == LEAVE:
            break
        if onward < 0:
            return True
        state = onward
    return table.following(state) != bytes((QUOTE,))
