"""One run of a program's body, from bound arguments to a finished state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lmlang.errors import Cancelled, fresh, with_context
from lmlang.frontend.recorder import ProgramState
from lmlang.frontend.run import Run


class Call:
    """A body with its arguments and the run that it will make; executed once.

    Args:
        run: The run, with nothing recorded yet.
        body: Takes the state, then the arguments.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
    """

    def __init__(
        self, run: Run, body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.run = run
        self.state = ProgramState(run.root)
        self._body = body
        self._args = args
        self._kwargs = kwargs

    def execute(self) -> ProgramState:
        """Run the body on this thread, wait for all it has begun; raises what failed."""
        if self.run.ended is not None:
            raise fresh(self.run.ended)
        try:
            self.state.ret_value = self._body(self.state, *self._args, **self._kwargs)
            self.run.finish()
        except Exception as error:
            self.run.abort(with_context(error, program=self.run.name))
            raise
        except BaseException:
            self.cancel()
            raise
        return self.state

    def cancel(self) -> None:
        """End the run; whoever waits for it gets `Cancelled`. From any thread."""
        self.run.abort(Cancelled("the run was cancelled."))
