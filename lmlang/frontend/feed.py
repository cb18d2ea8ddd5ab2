"""What a state says while it says it, as events that a reader takes when a bell rings.

    Generation.events ─┐
    State.log, prompt ─┴─> Feed.take() ──> StreamEvent, …      never waits
                               ^
        Bell (a thread) or LoopBell (a task) is rung at every change

A feed belongs to one reader; any number of readers may read one state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from lmlang.errors import BackendError, fresh
from lmlang.frontend.meta import Meta
from lmlang.frontend.partial import Growing, Partial
from lmlang.frontend.reading import Reader
from lmlang.frontend.rendering import remainder
from lmlang.frontend.run import Entry, Run, State, Variable
from lmlang.frontend.samples import Samples
from lmlang.protocol import FinishReason, Generation, Prompt


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """Some text of a program as it comes, and what is known of it: one record.

    Args:
        variable: The generation or select that wrote it; None: the program or the template did.
        text: New text; joined it is the whole.
        tokens: Its tokens as far as they have come; the text of the last may follow.
        logprobs: The model's log-probability of each token.
        meta: In the last event of a variable: what `ProgramState.meta` returns.
        finish: In the last event of a generation: why it ended.
        partial: Of a generation or select what there is of its value by then; None where nothing
            of it is sure.
    """

    variable: str | None
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    meta: Meta | None = None
    finish: FinishReason | None = None
    partial: Partial | None = field(default=None, repr=False, compare=False)


class Feed(Protocol):
    """What one reader has not taken yet; ``ended`` says that nothing is left."""

    ended: bool

    def take(self) -> list[StreamEvent]:
        """What is there; raises what failed, once all before it has been taken."""
        ...

    def settled(self) -> bool:
        """Whether nothing of it is under way, taken or not; the caller holds ``lock``."""
        ...

    def close(self) -> None:
        """Ring no more."""
        ...


class Tail:
    """What is still to come of one generation or select.

    Attributes:
        sent: Its text so far.
        settled: Whether all of its events have been taken.
    """

    def __init__(self, run: Run, variable: Variable, ring: Callable[[], None]) -> None:
        self._run = run
        self.variable = variable
        self._ring = ring
        self._generation: Generation | None = None
        self._unwatch: Callable[[], None] | None = None
        self._position = 0
        self.sent = ""
        self.settled = False
        self._growing = Growing(variable.asked)

    def take(self) -> list[StreamEvent]:
        """The events that are there; raises what ended it."""
        with self._run.lock:
            settled, handle, ended = self.variable.settled, self.variable.handle, self._run.ended
        if self._generation is None and isinstance(handle, (Generation, Samples)):
            first = handle.generations[0] if isinstance(handle, Samples) else handle
            self._generation, self._unwatch = first, first.watch(self._ring)
        found = []
        if self._generation is not None:
            for event in self._generation.events_from(self._position):
                self._position += 1
                self.sent += event.text
                name = self.variable.name
                partial = self._growing.push(event.text) if event.text else None
                found.append(
                    StreamEvent(name, event.text, event.ids, event.logprobs, partial=partial)
                )
        if found:
            return found
        if settled:
            self.settled = True
            self.close()
        error = self.variable.error if settled else ended
        if error is not None:
            raise fresh(error)
        return []

    def last(self, text: str) -> StreamEvent:
        """The last event: text that no event has brought, and the metadata."""
        variable, meta = self.variable, self.variable.meta
        finish = None if meta is None else meta.finish
        whole = meta is not None and finish is not None and self._generation is None
        many = meta is not None and meta.samples  # of which the first is streamed
        value = variable.value[0] if many and isinstance(variable.value, list) else variable.value
        self._growing.push(text)
        return StreamEvent(
            variable.name,
            text,
            meta.tokens if whole and meta is not None else (),
            tuple(meta.logprobs) if whole and meta is not None else (),
            meta,
            finish,
            self._growing.end(value),
        )

    def close(self) -> None:
        """Ring no more."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None


class TextFeed:
    """The text of a state, or of a scope in it."""

    def __init__(self, state: State, outside: bool, ring: Callable[[], None]) -> None:
        self._state = state
        self._run = state.run
        self._outside = outside
        self._ring = ring
        self._scope: Variable | None = None
        self._at = 0
        self._sent = ""
        self._seen: Prompt | None = None
        self._tail: Tail | None = None
        self.ended = False

    @classmethod
    def of_scope(cls, run: Run, scope: Variable, ring: Callable[[], None]) -> TextFeed:
        """The text of a scope that has begun."""
        span = scope.span
        assert span is not None
        feed = cls(span.state, True, ring)
        feed._scope, feed._at, feed._seen = scope, span.entry, span.prompt
        feed._sent = run.backend.render(span.prompt)
        return feed

    def take(self) -> list[StreamEvent]:
        """What is there; raises what failed."""
        found: list[StreamEvent] = []
        while not self.ended:
            entry = self._entry()
            if entry is None:
                found += self._plain(raises=not found)
                break
            if self._tail is None:
                found += self._up_to(entry.before)
                self._tail = Tail(self._run, entry.variable, self._ring)
            if found:
                break  # an error of the generation belongs behind what came before it
            found = self._tail.take()
            self._sent += "".join(event.text for event in found)
            if found or not self._tail.settled:
                break
            found = [self._tail.last(self._rest(entry))]
            self._tail = None
            self._at += 1
        return found

    def _entry(self) -> Entry | None:
        """The next generation or select, if it has begun and belongs to what is read."""
        log = self._state.log
        scope = self._scope
        if scope is not None and scope.settled:
            span = scope.span
            if span is None or (span.end is not None and self._at >= span.end):
                return None
        return log[self._at] if self._at < len(log) else None

    def _plain(self, raises: bool) -> list[StreamEvent]:
        """Text that no generation wrote, as far as it is certain; the end, where this is it."""
        prompt = self._state.prompt  # before the log: what it then lacks is not in the prompt
        with self._run.lock:
            if self._entry() is not None:
                return []
            failure = self._state.failure()
            if self._scope is not None and self._scope.settled:
                done, failure = True, self._scope.error
            else:
                done = self._scope is None and self._state.settled()
                done = done and (self._run.over or not self._outside)
        if failure is not None:
            if raises:
                raise fresh(failure)
            return []
        if done:
            found = self._ending(prompt)
            self.ended = True
            return found
        return self._up_to(prompt, certain=False)

    def _ending(self, prompt: Prompt) -> list[StreamEvent]:
        if self._scope is None:
            return self._up_to(self._state.prompt)
        assert self._scope.span is not None
        begun = self._run.backend.render(self._scope.span.prompt)
        return self._say(begun + (self._scope.text or ""))

    def _up_to(self, prompt: Prompt, certain: bool = True) -> list[StreamEvent]:
        """What is new in a prompt; white space at its end may yet be trimmed by a template."""
        if prompt is self._seen and not certain:
            return []
        self._seen = prompt
        text = self._run.backend.render(prompt)
        if not certain:
            text = text[: max(len(text.rstrip()), min(len(self._sent), len(text)))]
        return self._say(text)

    def _say(self, text: str) -> list[StreamEvent]:
        new = remainder(self._sent, text)
        self._sent = text
        return [StreamEvent(None, new)] if new else []

    def _rest(self, entry: Entry) -> str:
        assert entry.after is not None
        text = self._run.backend.render(entry.after)
        rest = remainder(self._sent, text)
        self._sent = text
        return rest

    def settled(self) -> bool:
        """Whether nothing of it is under way, taken or not; the caller holds ``lock``."""
        if self._scope is not None:
            return self._scope.settled
        return self._state.settled() and (self._run.over or not self._outside)

    def close(self) -> None:
        """Ring no more."""
        if self._tail is not None:
            self._tail.close()


class VariableFeed:
    """The text of a variable: of a generation or a scope as it comes, of others at once.

    What is partial in its events is the variable's, also where a generation inside of a scope
    wrote the text.
    """

    def __init__(self, reader: Reader, name: str, ring: Callable[[], None]) -> None:
        self._reader = reader
        self._run = reader.run
        self._name = name
        self._ring = ring
        self._inner: Tail | TextFeed | None = None
        self._scope: Variable | None = None
        self._growing = Growing(None)
        self.ended = False

    def take(self) -> list[StreamEvent]:
        """What is there; raises what failed."""
        if self._inner is None:
            variable = self._found()
            if variable is None:
                return []
            if not variable.scope:
                self._inner = Tail(self._run, variable, self._ring)
            elif variable.span is not None:
                self._scope = variable
                self._inner = TextFeed.of_scope(self._run, variable, self._ring)
            else:
                return self._not_begun(variable)
        found = self._inner.take()
        if isinstance(self._inner, TextFeed):
            self.ended = self._inner.ended
            found = [replace(each, partial=self._growing.push(each.text)) for each in found]
            if self.ended and self._scope is not None:
                found.append(StreamEvent(None, "", partial=self._growing.end(self._scope.value)))
        elif self._inner.settled and not found:
            self.ended = True
            found = [self._inner.last(_rest(self._inner))]
        return found

    def _found(self) -> Variable | None:
        """The variable, once it is clear which."""
        reader, name = self._reader, self._name
        if reader.outside:
            for scope in reversed(list(reader.cursor.scopes)):
                if scope.name == name:
                    return scope
            if not reader.known(name):
                return None
        return reader.defined(name)

    def _not_begun(self, scope: Variable) -> list[StreamEvent]:
        error = scope.error if scope.settled else self._run.ended
        if error is not None:
            raise fresh(error)
        return []

    def settled(self) -> bool:
        """Whether nothing of it is under way, taken or not; the caller holds ``lock``."""
        if isinstance(self._inner, Tail):
            return self._inner.variable.settled
        return self._inner is not None and self._inner.settled()

    def close(self) -> None:
        """Ring no more."""
        if self._inner is not None:
            self._inner.close()


def _rest(tail: Tail) -> str:
    """What the events have not brought of a variable's text."""
    variable = tail.variable
    text = str(variable.value) if variable.text is None else variable.text
    if not text.startswith(tail.sent):
        raise BackendError(
            f"the backend streamed text of {variable.name!r} that is not in its output: this is "
            "an error of the backend."
        )
    return text[len(tail.sent) :]


def feed_of(reader: Reader, name: str | None, ring: Callable[[], None]) -> Feed:
    """The feed of a state's text, or of one variable; ``ring()`` is called when more is there."""
    if name is None:
        return TextFeed(reader.cursor.state, reader.outside, ring)
    return VariableFeed(reader, name, ring)
