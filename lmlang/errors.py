"""Every exception of lmlang, in one small tree.

    LMLangError
    ├── ProgramError            the language or a parameter is misused
    │   └── ProgramTypeError    ... by a value of the wrong type (also a TypeError)
    ├── CaptureError            a variable that does not exist, or never will
    ├── ConstraintError         a constraint on an output cannot be used
    │   ├── GrammarSyntaxError  a pattern is none, or is not regular
    │   └── GrammarTooLarge     ... or would need too large an automaton
    ├── LimitExceeded           a finite limit is in the way
    │   ├── ContextOverflow     prompt + max_tokens do not fit the context or the KV pool
    │   ├── BudgetExceeded      a program needs more tokens than it was given
    │   ├── QueueFull           as many requests wait to run as may wait
    │   └── DeadlineExceeded    a program did not end in its time
    ├── Cancelled               somebody cancelled the work that was waited for
    ├── ModelError              a model cannot be found, read or run
    ├── BackendError            a backend failed to do what was asked (.retryable, .status)
    ├── JournalError            a journal cannot be read, written or had for oneself
    ├── ReplayError             a recorded run is not what comes of it now (.path, .token)
    └── WireError               what was read is not what lmlang writes, or a newer version of it

    BatchInterrupted            Ctrl-C in a batch; a KeyboardInterrupt with the finished rows

A message names the cause, the value and the mend, in that order.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any, TypeVar

E = TypeVar("E", bound=BaseException)

MAX_USER_TEXT = 256
"""Characters of a user's own text that a message may quote."""


@dataclass(frozen=True, slots=True)
class ErrorContext:
    """Where in a program an error arose; every field may be unknown (None)."""

    program: str | None = None
    op_path: str | None = None
    source: str | None = None
    """The user's line as ``file.py:12``."""
    branch: int | None = None
    """Index of the fork branch that failed, outermost last joined."""
    prompt_tail: str | None = None

    def lines(self) -> list[str]:
        """The known fields as indented lines, for ``str(error)``."""
        known = [
            ("program", self.program),
            ("operation", self.op_path),
            ("at", self.source),
            ("branch", None if self.branch is None else str(self.branch)),
            ("prompt ends with", None if self.prompt_tail is None else repr(self.prompt_tail)),
        ]
        return [f"  {name}: {value}" for name, value in known if value is not None]


class LMLangError(Exception):
    """Base of all errors of this library.

    ``context`` says where in the user's program it arose; ``str()`` shows it below the message.
    ``partial`` is what had been done of what it has ended: of a run its state, whose finished
    variables can be read, of a batch its finished rows; None elsewhere, and in a copy that is
    pickled.
    """

    context: ErrorContext | None = None
    partial: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        kept = {name: value for name, value in self.__dict__.items() if name != "partial"}
        return type(self), self.args, kept

    def __str__(self) -> str:
        message = super().__str__()
        return message if self.context is None else "\n".join([message, *self.context.lines()])


class ProgramError(LMLangError):
    """The language or a parameter is misused; the message says how to write it instead."""


class ProgramTypeError(ProgramError, TypeError):
    """A value of the wrong type, as in ``s += 3``."""


class CaptureError(LMLangError):
    """A variable that does not exist, or that a failure has kept from ever existing."""


class ConstraintError(LMLangError):
    """A constraint on an output cannot be used as it is written."""


class GrammarSyntaxError(ConstraintError):
    """A pattern that is none, or that no finite automaton can match; the message has its place."""


class GrammarTooLarge(ConstraintError):
    """A constraint whose automaton would be larger, or take longer to make, than is allowed."""


class SchemaUnsupported(ConstraintError):
    """A JSON schema, or a type, with a part that cannot be honoured exactly.

    Args:
        message: Cause and mend.
        keyword: The keyword; "" where it is the schema as a whole.
        pointer: JSON pointer to the schema that holds it.
    """

    def __init__(self, message: str, *, keyword: str = "", pointer: str = ""):
        super().__init__(message)
        self.keyword = keyword
        self.pointer = pointer


class Unsatisfiable(ConstraintError):
    """A constraint that no output at all can meet."""


class GrammarDeadEnd(ConstraintError):
    """The vocabulary cannot spell what a constraint needs next, or a token broke it."""


class LimitExceeded(LMLangError):
    """A finite limit is in the way; the message holds both numbers."""


class ContextOverflow(LimitExceeded):
    """A prompt with its max_tokens fits neither the model's context nor the KV pool."""


class BudgetExceeded(LimitExceeded):
    """A program or an output needs more tokens than it was given."""


class QueueFull(LimitExceeded):
    """As many requests wait to run as may wait; the same one may be taken later."""


class DeadlineExceeded(LimitExceeded):
    """A program did not end within its ``deadline``, so what was under way has been cancelled."""


class Cancelled(LMLangError):
    """The work that was waited for was cancelled."""


class ModelError(LMLangError):
    """A model cannot be found, read or run."""


class BackendError(LMLangError):
    """A backend failed to do what was asked of it.

    Args:
        message: Cause, value and mend.
        retryable: Whether the same request may succeed later.
        status: The HTTP status, where there was one.
    """

    def __init__(self, message: str, *, retryable: bool = False, status: int | None = None):
        super().__init__(message)
        self.retryable = retryable
        self.status = status


class JournalError(LMLangError):
    """A batch's journal is none, is in use, of another version, or cannot be read or written."""


class WireError(LMLangError):
    """What was read is not what lmlang writes, or of a version that this one does not know."""


class ReplayError(LMLangError):
    """A recorded run is not what comes of it now.

    Args:
        message: Cause, values and mend.
        path: The first operation that differs, as in "3/fork1.2/0"; "" for one without draws.
        token: Number of its first token that differs; None: it is not a matter of one token.
    """

    def __init__(self, message: str, *, path: str = "", token: int | None = None):
        super().__init__(message)
        self.path = path
        self.token = token


class BatchInterrupted(KeyboardInterrupt):
    """Ctrl-C while a batch was running; its other rows have been cancelled.

    Attributes:
        partial: The rows that had finished, as a `BatchResult` whose ``.indices`` number them.
    """

    partial: Any


def with_context(error: E, **fields: object) -> E:
    """Attach context fields to a library error, keeping those it already has; returns it."""
    if isinstance(error, LMLangError):
        known = error.context or ErrorContext()
        missing = {k: v for k, v in fields.items() if v is not None and getattr(known, k) is None}
        _set(error, context=replace(known, **missing))  # type: ignore[arg-type]
    return error


def fresh(error: E) -> E:
    """A copy of a library error to raise at one reader, so that tracebacks do not pile up.

    It begins with the traceback of the original, which stays as it is when the copy is raised.
    An exception that is not ours is returned as it is: it may not be copyable.
    """
    if not isinstance(error, LMLangError):
        return error
    try:  # without the constructors, which in a user's own subclass may want other arguments
        twin = Exception.__new__(type(error))
    except TypeError:  # it is also an OSError or the like, which is made otherwise
        return error
    twin.__dict__.update(error.__dict__)
    _set(twin, args=error.args, __cause__=error.__cause__)
    _set(twin, __suppress_context__=error.__suppress_context__)  # which a cause sets
    return twin.with_traceback(error.__traceback__)


def raisable(error: BaseException) -> BaseException:
    """The error, or what a generator or a coroutine can raise in its place."""
    if not isinstance(error, (StopIteration, StopAsyncIteration)):
        return error
    name = type(error).__name__
    told = ProgramError(
        f"the program raised {name}, which in Python ends whatever iterates over it and cannot "
        f"pass on as an error: give next(…) a default, or catch {name} where it arises."
    )
    told.__cause__ = error
    return told


def with_partial(error: E, partial: object) -> E:
    """Attach what had been done to a library error; returns it."""
    if isinstance(error, LMLangError):
        _set(error, partial=partial)
    return error


def note(error: BaseException, text: str) -> None:
    """Add a note to any exception, where Python has notes (3.11) and the exception takes one."""
    if hasattr(error, "add_note"):
        with contextlib.suppress(Exception):  # a frozen one
            error.add_note(text)


def _set(error: BaseException, **attributes: object) -> None:
    """Set attributes, of an exception that does not let itself be changed too."""
    for name, value in attributes.items():
        BaseException.__setattr__(error, name, value)


def an(word: str) -> str:
    """A word behind its article: "a str", "an int"."""
    return f"{'an' if word[:1] in tuple('aeioAEIO') else 'a'} {word}"


def quote(text: str) -> str:
    """A user's text as a short literal for a message: at most 256 characters of it."""
    return repr(text) if len(text) <= MAX_USER_TEXT else repr(text[: MAX_USER_TEXT - 1] + "…")
