"""Texts of a table that must differ from some that have been written."""

from __future__ import annotations

from heapq import heappop, heappush

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
        return b"" if table.accepting(state) else table.completion(state)
    best: bytes | None = None
    tries = [(len(table.completion(state)), b"", state, rivals)]
    while tries:
        bound, begun, here, left = heappop(tries)
        if best is not None and len(best) <= bound:
            break
        rest = table.completion(here)
        if rest not in left:
            return begun + rest
        paths = {rival[0] for rival in left if rival}
        found = None if b"" in left or not table.accepting(here) else begun
        following = table.following(here)
        for byte in following.translate(None, following.translate(None, bytes(paths))):
            last, onward = bytes((byte,)), table.push(here, byte)
            rests = tuple(rival[1:] for rival in left if rival.startswith(last))
            size = len(begun) + 1 + len(table.completion(onward))
            heappush(tries, (size, begun + last, onward, rests))
        for byte in following.translate(None, bytes(paths)):
            if found is not None and len(found) <= bound + 1:
                break
            onward = table.push(here, byte)
            if onward != LEAVE:
                other = begun + bytes((byte,)) + table.completion(onward)
                found = other if found is None or len(other) < len(found) else found
        if found is not None and (best is None or len(found) < len(best)):
            best = found
    return best


def can_leave(table: Table, state: int, rivals: tuple[bytes, ...]) -> bool:
    """Whether some rest of a text is none of the rivals."""
    ways = [(state, rivals)]
    while ways:
        here, left = ways.pop()
        paths, is_rival = bytes({rival[0] for rival in left if rival}), b"" in left
        if not paths and not is_rival:
            return True
        following = table.following(here)
        others = following.translate(None, paths)
        if any(not is_rival or table.push(here, byte) != LEAVE for byte in others):
            return True
        for byte in following.translate(None, others):
            rest = tuple(rival[1:] for rival in left if rival[:1] == bytes((byte,)))
            ways.append((table.push(here, byte), rest))
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
