"""What a state's variables hold, by their names: for tables, journals and the command line."""

from __future__ import annotations

from lmlang.frontend.recorder import ProgramState


def variables_of(state: ProgramState) -> dict[str, object]:
    """The values of a state's variables in order of their definition; never waits.

    Those that have failed, or are not there yet, are left out.
    """
    cursor = state._cursor
    with cursor.run.lock:
        there = list(cursor.variables.items())
        return {name: each.value for name, each in there if each.settled and each.error is None}
