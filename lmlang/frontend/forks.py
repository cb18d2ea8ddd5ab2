"""The children of one fork: appended to together, joined into their parent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

from lmlang.errors import ProgramError, ProgramTypeError, fresh, quote, with_context
from lmlang.frontend import ir
from lmlang.frontend.cursor import Cursor
from lmlang.frontend.expression import Expression, as_expression
from lmlang.frontend.race import Race, Steps, Vote
from lmlang.protocol import Segment

S = TypeVar("S")
T = TypeVar("T")


class Forks(Generic[S]):
    """The children of one fork, in order. Thread-safe but for appending and joining.

    Args:
        parent: Where the fork was made; it stands where its program has got to.
        children: The states.
        cursors: Theirs.
    """

    def __init__(self, parent: Cursor, children: Sequence[S], cursors: Sequence[Cursor]) -> None:
        self._parent = parent
        self._children = list(children)
        self._cursors = list(cursors)
        self._variables = dict(parent.variables)
        self._role = parent.role
        self._joined = False

    def __len__(self) -> int:
        return len(self._children)

    def __repr__(self) -> str:
        return f"<Forks of {len(self):,} states>"

    def __iter__(self) -> Iterator[S]:
        return iter(self._children)

    @overload
    def __getitem__(self, index: int) -> S: ...
    @overload
    def __getitem__(self, index: slice) -> list[S]: ...
    def __getitem__(self, index: int | slice) -> S | list[S]:
        try:
            return self._children[index]
        except IndexError:
            raise IndexError(f"fork {index} of {len(self):,}, counted from 0") from None

    def __setitem__(self, index: int, value: object) -> None:
        # Python ends ``forks[0] += x`` by putting the child where it was.
        if value is not self[index]:
            raise self._parent.here.tell(
                ProgramError(
                    f"forks[{index}] = … would replace a state: append with forks[{index}] += …, "
                    f'or set a variable with forks[{index}]["name"] = ….'
                )
            )

    def __iadd__(
        self, other: str | Expression | Sequence[Any] | Callable[[int], str | Expression]
    ) -> Forks[S]:
        """Append to all children: the same, or one each of a list, or ``other(i)`` to child i.

        Raises:
            ProgramError: A list of another length, or what cannot be appended; nothing is, then.
        """
        with self._parent.here:
            each = self._one_for_each(other)
        for cursor, expression in zip(self._cursors, each, strict=True):
            cursor.append(expression)
        return self

    def _one_for_each(self, other: object) -> list[Expression]:
        if isinstance(other, (str, Expression)):
            return [as_expression(other)] * len(self)
        if isinstance(other, (list, tuple)):
            if len(other) != len(self):
                raise ProgramError(
                    f"forks += a list of {len(other):,} for {len(self):,} forks: give one for "
                    "each, or a single string or expression for all."
                )
            return [as_expression(item) for item in other]
        if callable(other):
            return [as_expression(other(index)) for index in range(len(self))]
        raise ProgramTypeError(
            f"forks += {quote(repr(other))[1:-1]} of type {type(other).__name__}: append a "
            "string or an expression, a list with one for each fork, or a function of the "
            "fork's number."
        )

    def join(self, mode: ir.JoinMode = "gather_variable") -> None:
        """Wait for all children and bring what they made to the parent.

        Args:
            mode: "gather_variable": each variable set in a child since the fork becomes a list
                in fork order, None where a child lacks it. "concate_and_append": each child's
                own text is appended.

        Raises:
            ProgramError: A second join, an unknown mode, or turns that would not fit together.
            LMLangError: What a child failed with, ``.context.branch`` being its index; the
                parent goes on.
        """
        with self._parent.here:
            self._begin_join(mode)
            for cursor in self._cursors:
                cursor.state.wait()
            self._bring(mode)

    async def ajoin(self, mode: ir.JoinMode = "gather_variable") -> None:
        """As `join`, in an ``async def`` program."""
        with self._parent.here:
            self._begin_join(mode)
            for cursor in self._cursors:
                await cursor.run.wait_async(cursor.state.settled)
            self._bring(mode)

    # ---------------------------------------------------------------- races

    def first(self, k: int = 1, when: Callable[[S], object] | None = None) -> list[S]:
        """The first ``k`` children that have run to their end, in the order in which they came.

        Which ones these are depends on time. A child that failed does not count, unless fewer
        than ``k`` are left without it. All others are cancelled; they cannot be joined any more.

        Args:
            k: How many to wait for.
            when: A function of a child's state that says whether it counts; asked on this
                thread, once for each child that has ended.

        Returns:
            The children; fewer than ``k`` where ``when`` held for no more.

        Raises:
            ProgramError: They have been joined, or ``k`` is out of range.
            LMLangError: Fewer than ``k`` are found and a child has failed: the error of the
                lowest one, ``.context.branch`` being its index.
            Exception: What ``when`` raised; all that runs is cancelled.
        """
        return self._driven(self._race().first(k, when))

    async def afirst(self, k: int = 1, when: Callable[[S], object] | None = None) -> list[S]:
        """As `first`, in an ``async def`` program."""
        return await self._driven_async(self._race().first(k, when))

    def best(self, key: str | Callable[[S], Any]) -> S:
        """The child with the largest key, once all have ended; of several the lowest one.

        Children that failed are left out, unless all have.

        Args:
            key: A variable of the children, or a function of a child's state; keys are compared.

        Raises:
            ProgramError: They have been joined.
            LMLangError: All children have failed: the error of the lowest one.
            Exception: What ``key`` raised, or comparing what it gave.
        """
        return self._driven(self._race().best(key))

    async def abest(self, key: str | Callable[[S], Any]) -> S:
        """As `best`, in an ``async def`` program."""
        return await self._driven_async(self._race().best(key))

    def vote(self, name: str, stop_when_decided: bool = True) -> Vote:
        """What most children say under ``name``; of several such values that of the lowest child.

        A child that fails has no vote. Children that did not say what won are cancelled.

        Args:
            name: A variable of all children.
            stop_when_decided: Wait only until no other value can win: the winner is the same.

        Raises:
            ProgramError: They have been joined.
            CaptureError: Nothing in a child defines the variable.
            LMLangError: All children have failed: the error of the lowest one.
        """
        return self._driven(self._race().vote(name, stop_when_decided))

    async def avote(self, name: str, stop_when_decided: bool = True) -> Vote:
        """As `vote`, in an ``async def`` program."""
        return await self._driven_async(self._race().vote(name, stop_when_decided))

    def _race(self) -> Race[S]:
        with self._parent.here:
            self._join_once()
        return Race(self._parent, self._children, self._cursors)

    def _driven(self, steps: Steps[T]) -> T:
        run = self._parent.run
        with self._parent.here:
            try:
                while True:
                    run.wait(next(steps))
            except StopIteration as end:
                value: T = end.value
                return value
            finally:
                steps.close()

    async def _driven_async(self, steps: Steps[T]) -> T:
        run = self._parent.run
        with self._parent.here:
            try:
                while True:
                    await run.wait_async(next(steps))
            except StopIteration as end:
                value: T = end.value
                return value
            finally:
                steps.close()

    def _begin_join(self, mode: str) -> None:
        if mode not in ("gather_variable", "concate_and_append"):
            raise ProgramError(
                f"mode={quote(str(mode))} is unknown: use 'gather_variable' or "
                "'concate_and_append'."
            )
        self._join_once()

    def _join_once(self) -> None:
        if self._joined:
            raise ProgramError("these forks have been joined already: join once.")
        self._joined = True

    def _bring(self, mode: ir.JoinMode) -> None:
        states = [cursor.state for cursor in self._cursors]
        for state in states:
            state.joined = True
        for state in states:
            failure = state.failure()
            if failure is not None:
                own = failure is state.error
                raise with_context(fresh(failure), branch=state.branch if own else None)
        segments = self._own_segments() if mode == "concate_and_append" else ()
        gathered = self._gather() if mode == "gather_variable" else {}
        self._parent.join(self._cursors, mode, gathered, segments)

    def _gather(self) -> dict[str, list[object]]:
        gathered: dict[str, list[object]] = {}
        for index, cursor in enumerate(self._cursors):
            for name, variable in cursor.variables.items():
                if variable is not self._variables.get(name):
                    values = gathered.setdefault(name, [None] * len(self))
                    values[index] = variable.value
        return gathered

    def _own_segments(self) -> tuple[Segment, ...]:
        segments: list[Segment] = []
        for index, cursor in enumerate(self._cursors):
            if not self._parent.role == self._role == cursor.role:
                raise ProgramError(
                    f"the text of fork {index} cannot be appended: a chat turn is open at only "
                    "one end of it. Close turns in the children that opened them."
                )
            own: list[Segment] = []
            node = cursor.state.prompt
            while node is not cursor.state.origin:
                assert node.segment is not None
                assert node.parent is not None
                own.append(node.segment)
                node = node.parent
            segments += reversed(own)
        return tuple(segments)
