"""What may follow a state, asked step by step, and what was found out of the answers.

    "na  behind it   free text          the same in hundreds of grammars: one table
         its quote   `: ` or `, "`      asked only where something depends on it
                                        found: the tokens of `"na` that nothing of this changes

Whatever is worked out of the answers alone is the same wherever the answers are. So it is kept for
all grammars of a vocabulary, and found again by asking the same questions.
"""

from __future__ import annotations

from collections.abc import Hashable
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

from lmlang.grammar.automaton import LEAVE, Automaton, Leaving, State

MAX_QUESTIONS = 96
"""What depends on more answers is not kept for other grammars."""
WORD = len(b"false")
"""Longer runs are names and values of one grammar, which are nothing to others."""
MAX_KEPT = 8_192
"""Answers of all questions that are kept."""

Kind: TypeAlias = tuple[bool, Any]
"""Whether the output may end, and what comes next, which is one of these:

    bytes                   any of these
    (bytes, bytes, …)       all runs, one of which comes to its end
    (table, state, bool)    content of a table; whether it does not matter where it is left
"""
Question: TypeAlias = tuple[int, bytes]
"""The number of a state that was asked for, 0 for the first one, and bytes behind it."""
Place: TypeAlias = tuple[int, bytes, int]
"""The number of a state that was asked for, bytes behind it, the state of its table there or -1."""

_NOWHERE: Kind = (False, b"")


class Follow:
    """What may follow a state of one automaton, as far as somebody asks. Of one thread.

    Args:
        automaton: The automaton.
        behind: The state.

    Attributes:
        asked: The questions so far.
        kinds: The answers, before them that of the first state.
        start: The place where everything begins.
    """

    def __init__(self, automaton: Automaton, behind: State) -> None:
        self._automaton = automaton
        self._states: list[State | None] = [behind]
        self.asked: list[Question] = []
        self.kinds = [self._kind(behind)]
        self.start: Place = self._place(0)
        self._numbers: dict[tuple[int, bytes | int], int] = {}
        self._following: dict[Place, bytes] = {}

    @property
    def accepting(self) -> bool:
        """Whether the output may end at once."""
        return self.kinds[0][0]

    def ask(self, question: Question) -> Kind:
        """What may follow behind some bytes more."""
        number, data = question
        state = self._states[number]
        assert state is not None, "nobody asks what follows where nothing does"
        push = len(data) == 1
        onward = self._automaton.push(state, data[0]) if push else self._automaton.run(state, data)
        kind = _NOWHERE if onward is None else self._kind(onward)
        self._numbers[question] = len(self._states)
        self._states.append(onward)
        self.asked.append(question)
        self.kinds.append(kind)
        return kind

    def following(self, place: Place) -> bytes:
        """The bytes that may come next, in ascending order."""
        number, path, state = place
        what = self.kinds[number][1]
        if isinstance(what, bytes):
            return what
        if state >= 0:
            inside: bytes = what[0].following(state)
            return inside
        found = self._following.get(place)
        if found is None:
            found = bytes(sorted({run[len(path)] for run in what if run.startswith(path)}))
            self._following[place] = found
        return found

    def push(self, place: Place, byte: int) -> Place:
        """The place behind one more byte, which is one of the following."""
        found = self.step(place, byte)
        if found is not None:
            return found
        number, path, state = place
        longer = path + bytes((byte,))
        return self._behind(
            number, longer, byte if state >= 0 and self.kinds[number][1][2] else longer
        )

    def step(self, place: Place, byte: int) -> Place | None:
        """The same as far as it is known without asking; None: it is not."""
        number, path, state = place
        what = self.kinds[number][1]
        if state >= 0:
            onward = what[0].push(state, byte)
            return None if onward == LEAVE else (number, path + bytes((byte,)), onward)
        longer = path + bytes((byte,))
        return None if isinstance(what, bytes) or longer in what else (number, longer, -1)

    def begun(self, most: int, length: int) -> list[tuple[bytes, Place]]:
        """What is known to come first, in ASCII, and the places behind it; at least b"" and these.

        Args:
            most: Of more runs nothing is told.
            length: Bytes at most.
        """
        what = self.kinds[0][1]
        if isinstance(what, tuple) and isinstance(what[0], bytes) and len(what) <= most:
            length = min(length, max(1, min(map(len, what))) - 1)
            begun = sorted({run[:length] for run in what})
            if all(map(bytes.isascii, begun)):
                return [(data, (0, data, -1)) for data in begun]
        return [(b"", self.start)]

    def _behind(self, number: int, path: bytes, name: bytes | int) -> Place:
        """The place behind bytes that lead to another state.

        Args:
            number: Of the state before them.
            path: The bytes.
            name: What all have in common that lead to the same state.
        """
        found = self._numbers.get((number, name))
        if found is None:
            if (number, path) not in self._numbers:
                self.ask((number, path))
            found = self._numbers[number, name] = self._numbers[number, path]
        return self._place(found)

    def _place(self, number: int) -> Place:
        what = self.kinds[number][1]
        inside = not isinstance(what, bytes) and not isinstance(what[0], bytes)
        return number, b"", what[1] if inside else -1

    def _kind(self, state: State) -> Kind:
        automaton = self._automaton
        what: Any = automaton.runs(state)
        if not what and automaton.is_swift:
            contents = automaton.rules.contents(state.key)
            leaving = automaton.rules.leaving(state.key) if len(contents) == 1 else None
            if leaving:
                what = (*contents[0], leaving is Leaving.SAME)
        return state.accepting, what or automaton.following(state)


class Answers:
    """What was found out of what may follow, for all grammars of a vocabulary. Thread-safe."""

    def __init__(self) -> None:
        self._tree = _Tree({}, [], [])
        self._lock = Lock()

    def find(self, about: Hashable, follow: Follow) -> Any:
        """What was found about something where the same followed; None: nothing.

        Args:
            about: What it was found about.
            follow: Of which nothing has been asked; it is asked what the answer depends on.
        """
        ways, questions, found = self._tree
        at = ways.get((about, follow.kinds[0]))
        while at is not None:
            question = questions[at]
            if question is None:
                return found[at]
            at = ways.get((at, follow.ask(question)))
        return None

    def keep(self, about: Hashable, follow: Follow, what: Any) -> None:
        """Remember what was found, out of nothing but the answers that were asked for.

        What is asked must depend on nothing but the answers before.
        """
        if len(follow.asked) > MAX_QUESTIONS or any(map(_tells_names, follow.kinds)):
            return
        with self._lock:
            if len(self._tree.found) + len(follow.asked) >= MAX_KEPT:
                self._tree = _Tree({}, [], [])
            ways, questions, found = self._tree
            key: tuple[Hashable, Kind | None] = about, follow.kinds[0]
            last = len(follow.asked)
            for number, kind in enumerate([*follow.kinds[1:], None]):
                at = ways.get(key)
                if at is None:
                    at = len(found)
                    questions.append(follow.asked[number] if number < last else None)
                    found.append(what if number == last else None)
                    ways[key] = at
                key = at, kind


def _tells_names(kind: Kind) -> bool:
    what = kind[1]
    return isinstance(what, tuple) and any(
        len(run) > WORD for run in what if isinstance(run, bytes)
    )


class _Tree(NamedTuple):
    """Questions one after the other.

    Args:
        ways: What something is about and the first answer, or the number of a question and its
            answer: the number of the next question.
        questions: By their numbers; None where nothing more is asked.
        found: What was found there.
    """

    ways: dict[tuple[Hashable, Kind | None], int]
    questions: list[Question | None]
    found: list[Any]
