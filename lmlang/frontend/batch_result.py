"""What a batch returns: the states of its rows, what failed, what it took, and all of it as tables.

result[3]["city"]   result.errors   result.usage   result.to_pandas()   print(result)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from lmlang.frontend.recorder import ProgramState
from lmlang.frontend.reuse import BatchUsage, Reused
from lmlang.protocol import Usage

if TYPE_CHECKING:
    import pandas
    import pyarrow


class BatchResult(Sequence[ProgramState]):
    """The states of a batch in the order of its rows. A value; thread-safe.

    Attributes:
        indices: The row number of each state: all rows, or the finished ones in ``.partial``.
        arguments: Of the program in each row, by their names; none for a row with wrong ones.
    """

    def __init__(
        self,
        states: Sequence[ProgramState],
        indices: Sequence[int],
        arguments: Sequence[Mapping[str, object]],
    ) -> None:
        self._states = tuple(states)
        self.indices = tuple(indices)
        self.arguments = tuple(arguments)

    def __len__(self) -> int:
        return len(self._states)

    @overload
    def __getitem__(self, index: int) -> ProgramState: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ProgramState]: ...
    def __getitem__(self, index: int | slice) -> ProgramState | Sequence[ProgramState]:
        try:
            return self._states[index]
        except IndexError:
            raise IndexError(f"row {index} of a batch of {len(self):,}, counted from 0") from None

    @property
    def errors(self) -> dict[int, BaseException]:
        """What rows have failed with, by their numbers."""
        found = ((i, s.error()) for i, s in zip(self.indices, self._states, strict=True))
        return {index: error for index, error in found if error is not None}

    @property
    def usage(self) -> BatchUsage:
        """Tokens of all rows together."""
        total, reused = Usage(), Reused()
        for state in self._states:
            total += state.usage()
            reused += state._cursor.run.reused
        return BatchUsage.of(total, reused)

    def to_dicts(self) -> list[dict[str, Any]]:
        """A dict for each row: its arguments, its variables, and "error", None where it has none.

        Values are of their own types. A variable takes the place of an argument of its name, and
        the error is "row_error" where the program has an "error" of its own. Variables without a
        name of the program's own are left out.
        """
        from lmlang.frontend.batch_table import dicts

        return dicts(self)

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame of the columns of `to_dicts`, its index the rows' numbers. Needs pandas.

        Numbers, strings and bools without gaps have columns of their type, all else is objects.

        Raises:
            ProgramError: pandas is not installed.
        """
        from lmlang.frontend.batch_table import to_pandas

        return to_pandas(self)

    def to_arrow(self) -> pyarrow.Table:
        """An Arrow table of the columns of `to_dicts`. Needs pyarrow.

        Objects (dataclasses, pydantic models, dicts) are structs, sequences lists, Enum members
        their values, and UUIDs strings.

        Raises:
            ProgramError: pyarrow is not installed.
            ProgramTypeError: A column has values of types that Arrow has in no one column.
        """
        from lmlang.frontend.batch_table import to_arrow

        return to_arrow(self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        from lmlang.frontend.batch_table import columns, head
        from lmlang.frontend.view_batch import page

        return {
            "text/plain": str(self),
            "text/html": str(page(head(self), self.indices, columns(self))),
        }

    def __str__(self) -> str:
        from lmlang.frontend.batch_table import text

        return text(self)

    def __repr__(self) -> str:
        from lmlang.frontend.batch_table import reuse

        had = reuse(self.usage)
        return f"<BatchResult of {len(self)} rows{f', {had}' if had else ''}>"
