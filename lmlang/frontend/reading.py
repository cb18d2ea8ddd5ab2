"""What readers of a state get: variables and prompts once they are there, or the error instead.

A reader inside the program sees what has been appended; one outside, of a run that goes on
elsewhere, waits until the program has appended it or has ended.
"""

from __future__ import annotations

import difflib

from lmlang.errors import CaptureError, fresh, quote
from lmlang.frontend.cursor import Cursor, check_name
from lmlang.frontend.run import Variable
from lmlang.protocol import EndTurn, Prompt, Text, Tokens, Turn
from lmlang.protocol.tools import TOOLS


class Reader:
    """Reads one state. Thread-safe.

    Args:
        cursor: Where the state's recording stands.
        outside: Whether the program runs elsewhere, so that more may be appended at any time.
    """

    def __init__(self, cursor: Cursor, outside: bool) -> None:
        self.cursor = cursor
        self.run = cursor.run
        self.outside = outside

    def variable(self, name: str) -> Variable:
        """A variable that is settled with a value; waits for it."""
        with self.cursor.here:
            check_name(name)
        if self.outside:
            self.run.wait(lambda: self.known(name), outside=True)
        found = self.defined(name)
        if not found.settled:
            self.run.wait(lambda: found.settled, self.outside)
        return self._result(found)

    async def variable_async(self, name: str) -> Variable:
        """As `variable`, on the running event loop."""
        with self.cursor.here:
            check_name(name)
        if self.outside:
            await self.run.wait_async(lambda: self.known(name), outside=True)
        found = self.defined(name)
        if not found.settled:
            await self.run.wait_async(lambda: found.settled, self.outside)
        return self._result(found)

    def prompt(self) -> Prompt:
        """The whole prompt once everything has run."""
        if self.outside:
            self.run.wait(lambda: self.run.over, outside=True)
        self.cursor.state.wait()
        return self._prompt()

    async def prompt_async(self) -> Prompt:
        """As `prompt`, on the running event loop."""
        if self.outside:
            await self.run.wait_async(lambda: self.run.over, outside=True)
        await self.run.wait_async(self.cursor.state.settled)
        return self._prompt()

    def failure(self) -> BaseException | None:
        """What the state failed with, once everything has run."""
        if self.outside:
            self.run.wait(lambda: self.run.over, outside=True)
        self.cursor.state.wait()
        return self.cursor.state.failure()

    def known(self, name: str) -> bool:
        """Whether it is clear what a name means: it is defined, or never will be."""
        return name in self.cursor.variables or self.run.over

    def defined(self, name: str) -> Variable:
        """What a name means.

        Raises:
            CaptureError: Nothing.
            LMLangError: What has ended the run, before the program could define it.
        """
        found = self.cursor.variables.get(name)
        if found is not None:
            return found
        if self.run.ended is not None:
            raise fresh(self.run.ended)
        if any(scope.name == name for scope in self.cursor.scopes):
            raise self.cursor.here.tell(
                CaptureError(
                    f"the scope {quote(name)} is still open: its text is there after its with "
                    "block."
                )
            )
        there = list(self.cursor.variables)
        near = difflib.get_close_matches(name, there, n=3, cutoff=0.5)
        if near:
            hint = f"did you mean {' or '.join(map(quote, near))}?"
        elif there:
            hint = f"defined are {', '.join(map(quote, there[:8]))}."
        else:
            hint = 'nothing is defined yet: append lm.gen(name) or set s["name"] first.'
        raise self.cursor.here.tell(
            CaptureError(f"no variable {quote(name)} has been appended here; {hint}")
        )

    def _result(self, found: Variable) -> Variable:
        error = found.error if found.settled else self.run.ended
        if error is not None:
            raise fresh(error)
        return found

    def _prompt(self) -> Prompt:
        failure = self.cursor.state.failure()
        if failure is not None:
            raise fresh(failure)
        return self.cursor.state.prompt


def messages_of(prompt: Prompt) -> list[dict[str, str]]:
    """The turns of a prompt, the open one included; text in no turn and offers are left out."""
    found: list[dict[str, str]] = []
    parts: list[str] | None = None
    for segment in [*prompt.segments(), EndTurn()]:
        if isinstance(segment, Turn):
            parts = None if segment.role == TOOLS else []
            if parts is not None:
                found.append({"role": segment.role, "content": ""})
        elif isinstance(segment, EndTurn):
            if parts is not None:
                found[-1]["content"] = "".join(parts)
            parts = None
        elif parts is not None and isinstance(segment, (Text, Tokens)):
            parts.append(segment.text)
    return found
