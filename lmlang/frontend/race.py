"""Which children of a fork go on: the first to end, the best, or what most of them say.

    children ── end one by one ──> a race looks at each ──> its winners
                                        └── decided: what still runs of the others is cancelled

A race is a generator of what it waits for, so that threads and event loops drive the same one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from lmlang import limits
from lmlang.errors import Cancelled, CaptureError, ProgramTypeError, an, fresh, note, with_context
from lmlang.frontend.cursor import Cursor, check_name
from lmlang.frontend.reading import Reader
from lmlang.frontend.run import Variable

S = TypeVar("S")
T = TypeVar("T")
Steps: TypeAlias = Generator[Callable[[], bool], None, T]
"""Yields what must hold before the next item is taken; returns what it came to."""
Key: TypeAlias = "str | Callable[[S], Any]"


@dataclass(frozen=True, slots=True)
class Vote:
    """What a vote among forks came to.

    Args:
        value: What most of them said; of several the one that the lowest fork said.
        count: How many did.
        counts: Each value with how many said it, in the order of the first fork that did.
        values: What each fork said, in fork order; None where it was not waited for or failed.
        voted: The indices of the forks that said something.
        failed: The indices of those that failed.
    """

    value: Any
    count: int
    counts: tuple[tuple[Any, int], ...]
    values: tuple[Any, ...]
    voted: tuple[int, ...]
    failed: tuple[int, ...]


class Race(Generic[S]):
    """The children of one fork, seen as they end; whatever ends the race cancels who lost it.

    Args:
        parent: Where the fork was made.
        children: Its states as programs have them.
        cursors: Theirs.
    """

    def __init__(self, parent: Cursor, children: Sequence[S], cursors: Sequence[Cursor]) -> None:
        self._run = parent.run
        self._children = children
        self._cursors = cursors
        self._states = [cursor.state for cursor in cursors]
        self._failed: set[int] = set()

    # ------------------------------------------------------------------ the three races

    def first(self, k: int, when: Callable[[S], object] | None) -> Steps[list[S]]:
        """The first ``k`` children that end, well and so that ``when`` holds, as they came."""
        limits.integer("k", k, 1, len(self._states))
        if when is not None and not callable(when):
            raise ProgramTypeError(
                f"first: when is {an(type(when).__name__)}: give a function of a fork's state that "
                "says whether it counts."
            )
        self._run.depends("which fork is first")
        found: list[int] = []
        left = list(range(len(self._states)))
        try:
            while left and len(found) < k:
                yield lambda: any(self._states[index].settled() for index in left)
                for index in self._taken(left, lambda index: self._states[index].settled()):
                    if len(found) < k and self._ended_well(index) and self._holds(when, index):
                        found.append(index)
        finally:
            self._end(found)
        if len(found) < k:
            self._raise_failure()
        return [self._children[index] for index in found]

    def best(self, key: Key[S]) -> Steps[S]:
        """The child with the largest key; of several the one with the lowest index."""
        if not callable(key):
            check_name(key)
        self._run.depends("which fork is best")
        best: list[int] = []
        try:
            for state in self._states:
                yield state.settled
            well = [i for i in range(len(self._states)) if self._ended_well(i)]
            if not well:
                self._raise_failure()
            keys = [self._key(key, index) for index in well]
            best = [well[0]]
            top = keys[0]
            for index, value in zip(well[1:], keys[1:], strict=True):
                if value > top:
                    best, top = [index], value
        finally:
            self._end(best)
        return self._children[best[0]]

    def vote(self, name: str, stop_when_decided: bool) -> Steps[Vote]:
        """What most children say under a name; decided as soon as no other value can win."""
        limits.boolean("stop_when_decided", stop_when_decided)
        check_name(name)
        variables = [Reader(cursor, False).defined(name) for cursor in self._cursors]
        self._run.depends("what most forks say")
        ballots = _Ballots(len(variables))
        winners: list[int] = []
        left = list(range(len(variables)))
        try:
            while left and not (stop_when_decided and ballots.decided(left)):
                yield lambda: any(variables[index].settled for index in left)
                for index in self._taken(left, lambda index: variables[index].settled):
                    if self._said(variables[index], index):
                        ballots.cast(index, variables[index].value)
            if not ballots.said:
                self._raise_failure()
            winners = ballots.winners()
        finally:
            self._end(winners)
        return ballots.result(self._failed)

    # ------------------------------------------------------------------ how children ended

    def _taken(self, left: list[int], is_there: Callable[[int], bool]) -> list[int]:
        """Take the children out that have come so far; raises what has ended the run."""
        if self._run.ended is not None:
            raise fresh(self._run.ended)
        there = [index for index in left if is_there(index)]
        gone = set(there)
        left[:] = [index for index in left if index not in gone]
        return there

    def _ended_well(self, index: int) -> bool:
        if self._run.ended is not None:
            raise fresh(self._run.ended)
        if self._states[index].failure() is None:
            return True
        self._failed.add(index)
        return False

    def _said(self, variable: Variable, index: int) -> bool:
        if variable.error is None:
            return True
        self._failed.add(index)
        return False

    def _holds(self, when: Callable[[S], object] | None, index: int) -> bool:
        if when is None:
            return True
        try:
            said = when(self._children[index])
            if inspect.iscoroutine(said):
                said.close()
                raise ProgramTypeError(
                    "first: when is an async function, which says nothing before it is awaited: "
                    "give a function that says it at once."
                )
            return bool(said)
        except Exception as error:
            raise self._of(index, error, "when") from None

    def _key(self, key: Key[S], index: int) -> Any:
        try:
            if callable(key):
                return key(self._children[index])
            return Reader(self._cursors[index], False).variable(key).value
        except CaptureError as error:
            raise with_context(error, branch=self._states[index].branch) from None
        except Exception as error:
            raise self._of(index, error, "key") from None

    def _of(self, index: int, error: Exception, name: str) -> Exception:
        """An error of the program's own function, which says for which fork it arose."""
        with_context(error, branch=self._states[index].branch)
        note(error, f"raised by {name}= for fork {index}")
        return error

    def _raise_failure(self) -> None:
        """Raise the error of the lowest child that failed, if one did, with its index."""
        if self._failed:
            state = self._states[min(self._failed)]
            failure = state.failure()
            assert failure is not None
            own = failure is state.error
            raise with_context(fresh(failure), branch=state.branch if own else None)

    def _end(self, winners: Sequence[int]) -> None:
        """Cancel what still runs of the losers and below; errors of failed ones have been seen."""
        kept = set(winners)
        for index in self._failed:
            self._states[index].joined = True
        losers = [state for index, state in enumerate(self._states) if index not in kept]
        if losers:
            self._run.cancel(losers, Cancelled("the fork was cancelled: the others had decided."))


class _Ballots:
    """What forks have said so far. Values count as the same where type and value are."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.said: dict[int, Any] = {}
        self._groups: list[tuple[Any, list[int]]] = []
        """Each value with the indices of those that said it, sorted."""

    def cast(self, index: int, value: Any) -> None:
        """A fork has said this."""
        self.said[index] = value
        for known, voters in self._groups:
            if type(known) is type(value) and known == value:
                voters.append(index)
                voters.sort()
                return
        self._groups.append((value, [index]))

    def decided(self, left: Sequence[int]) -> bool:
        """Whether the leader wins whatever the forks that are left will say.

        Another value can reach its own votes and all that are left; on a tie it would win by its
        lowest fork, which may be one of those.
        """
        if not self._groups:
            return False
        _, leaders = self._leader()
        for _, voters in [*self._groups, (None, [])]:
            if voters is leaders:
                continue
            most = len(voters) + len(left)
            lowest = min([*voters[:1], *left], default=self._size)
            if most > len(leaders) or (most == len(leaders) and lowest < leaders[0]):
                return False
        return True

    def winners(self) -> list[int]:
        """The forks that said what won."""
        return self._leader()[1]

    def result(self, failed: set[int]) -> Vote:
        """What came of it."""
        value, voters = self._leader()
        in_order = sorted(self._groups, key=lambda group: group[1][0])
        return Vote(
            value,
            len(voters),
            tuple([(each, len(indices)) for each, indices in in_order]),
            tuple([self.said.get(index) for index in range(self._size)]),
            tuple(sorted(self.said)),
            tuple(sorted(failed)),
        )

    def _leader(self) -> tuple[Any, list[int]]:
        return min(self._groups, key=lambda group: (-len(group[1]), group[1][0]))
