"""Batches with a journal: each row runs against it, and under a version is taken from it whole.

row ─ version ─ in the journal ─> its variables, text and value, put back; the body does not run
└─ else ───────────────────> the body runs; JournalBackend answers from the journal what it can
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any

from lmlang.errors import JournalError, ProgramError, ProgramTypeError, WireError, quote
from lmlang.frontend import batch, journal_keys, journal_values
from lmlang.frontend.batch_result import BatchResult
from lmlang.frontend.call import Call
from lmlang.frontend.ending import Ending
from lmlang.frontend.journal import Journal, checked_path, damaged, opened
from lmlang.frontend.journal_backend import JournalBackend
from lmlang.frontend.journal_values import NotKept
from lmlang.frontend.options import RunOptions
from lmlang.frontend.progress import Progress
from lmlang.frontend.recorder import ProgramState
from lmlang.frontend.reuse import Reused
from lmlang.frontend.rows import MAX_VERSION, OnError, Row
from lmlang.frontend.runlog import RunLog
from lmlang.frontend.snapshot import run_log
from lmlang.frontend.variables import variables_of
from lmlang.protocol import Backend, BackendInfo, MayChange, Prompt, Usage
from lmlang.wire.values import PROMPT, USAGE

Make = Callable[[Row, int], Call]
"""The call of a row under a seed."""

_log = logging.getLogger("lmlang")


class Journaled:
    """Executes the rows of one batch against a journal.

    Args:
        journal: The path of its file.
        version: Of the program; None: no row is taken whole.
        options: Of the runs.

    Raises:
        ProgramError: An argument is wrong.
    """

    def __init__(self, journal: object, version: object, options: RunOptions) -> None:
        self._path = checked_path(journal)
        self._version = _checked_version(version)
        self._options = options
        if options.ship:
            raise ProgramError(
                "ship=True has a server run whole programs, of which a journal would see no "
                "generation: leave one of them out."
            )

    def execute(
        self,
        rows: Iterable[Row],
        make: Make,
        backend: Backend,
        workers: int,
        on_error: OnError,
        progress: Progress,
    ) -> BatchResult:
        """As `batch.execute`, of the calls of these rows.

        Raises:
            JournalError: It cannot be had, read or written; the finished rows are ``.partial``.
        """
        result: BatchResult | None = None
        try:
            with opened(self._path) as journal:
                calls = list(self._calls(rows, make, backend, journal))
                try:
                    result = batch.execute(calls, workers, on_error, progress)
                finally:
                    _tell(self._path, sum((call.call.run.reused for call in calls), Reused()))
                try:
                    journal.check()
                except JournalError as error:  # which a body has kept to itself
                    error.partial = result
                    raise
                return result
        except KeyboardInterrupt:
            if result is None:
                raise
            raise batch.interrupted(result, len(result)) from None

    def lazily(
        self,
        rows: Iterable[Row],
        make: Make,
        backend: Backend,
        workers: int,
        on_error: OnError,
        progress: Progress,
    ) -> Generator[ProgramState]:
        """As `batch.lazily`, of the calls of these rows; the journal is open while it runs.

        Raises:
            JournalError: It cannot be had, read or written.
        """
        with opened(self._path):
            pass  # what is wrong with it is said now, and not when the first row is taken

        def states() -> Generator[ProgramState]:
            reused = Reused()
            with opened(self._path) as journal:
                calls = self._calls(rows, make, backend, journal)
                try:
                    for state in batch.lazily(calls, workers, on_error, progress):
                        reused += state._cursor.run.reused
                        yield state
                finally:
                    _tell(self._path, reused)
                journal.check()

        return states()

    def _calls(
        self, rows: Iterable[Row], make: Make, backend: Backend, journal: Journal
    ) -> Iterator[KeptCall]:
        info = backend.info_now() if isinstance(backend, MayChange) else backend.info()
        fingerprint = journal_keys.fingerprint_of(info, self._options.gen.lora)
        seed = journal.seed(self._options.seed)
        for row in rows:
            call, key = make(row, seed), None
            if self._version is not None and row.error is None:
                key = journal_keys.of_row(
                    self._version,
                    call.run.name,
                    row.key,
                    call.arguments,
                    seed,
                    self._options.gen,
                    self._options.max_program_tokens,
                    fingerprint,
                )
            yield KeptCall(call, backend, info, journal, key)


class KeptCall:
    """The call of one row, against a journal.

    Args:
        call: Not begun yet.
        backend: Its run's own.
        info: What that says of itself.
        journal: An open one.
        key: Under which the row is kept whole; None: it is not.
    """

    def __init__(
        self, call: Call, backend: Backend, info: BackendInfo, journal: Journal, key: bytes | None
    ) -> None:
        self.call = call
        self._backend = backend
        self._journal = journal
        self._key = key
        self._kept: dict[str, Any] = {}
        call.run.backend = JournalBackend(backend, info, journal, call.run)
        if key is not None:
            call.before_end = self._take_down

    @property
    def state(self) -> ProgramState:
        """The row's."""
        return self.call.state

    @property
    def arguments(self) -> Mapping[str, object]:
        """The program's, by their names."""
        return self.call.arguments

    def execute(self) -> ProgramState:
        """Run it to its end on this thread, or take it from the journal; raises what failed."""
        try:
            if self._key is None:
                return self.call.execute()
            stored = self._journal.get("rows", self._key)
            if stored is not None:
                return self._put_back(stored)
            state = self.call.execute()
            run = self.call.run
            kept = self._kept | {"usage": USAGE.write(run.usage), "log": run_log(run).to_json()}
            self._journal.put_now("rows", self._key, json.dumps(kept))
            return state
        finally:
            self.call.run.backend = self._backend  # what is appended later is none of the batch

    def cancel(self) -> None:
        """End it; from any thread."""
        self.call.cancel()

    def _take_down(self) -> None:
        """What the state has come to, as JSON, before its run ends; raises what cannot be kept."""
        run, state = self.call.run, self.call.state
        run.root.wait()
        if run.root.failure() is not None:
            return
        variables = []
        for name, value in variables_of(state).items():
            text = state._cursor.variables[name].text
            variables.append([name, _kept(f"the variable {quote(name)}", value), text])
        self._kept = {
            "variables": variables,
            "value": _kept("what the program returns", run.value),
            "prompt": _kept_prompt(run.root.prompt),
        }

    def _put_back(self, stored: str) -> ProgramState:
        run, cursor = self.call.run, self.call.state._cursor
        with Ending(run, None):
            try:
                kept = json.loads(stored)
                prompt: Prompt = PROMPT.read(kept["prompt"], "$")
                usage: Usage = USAGE.read(kept["usage"], "$")
                run.kept_log = RunLog.from_json(kept["log"])
                value = journal_values.from_json(kept["value"])
                found = [
                    (name, journal_values.from_json(held), text)
                    for name, held, text in kept["variables"]
                ]
            except (WireError, ValueError, KeyError, TypeError, RecursionError) as error:
                raise damaged(self._journal.path, f"a row is none: {error}") from error
            for name, held, text in found:
                variable = cursor.bind(name)
                variable.value, variable.text, variable.settled = held, text, True
            run.root.prompt, run.value, run.usage = prompt, value, usage
            tokens = usage.generated_tokens + usage.scored_tokens
            run.reused = Reused(rows=1, tokens=tokens)
            run.finish()
        return self.call.state


def _kept(what: str, value: object) -> Any:
    try:
        return journal_values.to_json(value)
    except NotKept as error:
        raise ProgramTypeError(
            f"version: {what} {error}, which a journal cannot keep: make it a plain value, a "
            "dataclass or a pydantic model of a module, or leave version out: the body then runs "
            "against the generations that the journal has."
        ) from None


def _kept_prompt(prompt: Prompt) -> Any:
    try:
        return PROMPT.write(prompt)
    except ProgramError:
        raise ProgramTypeError(
            "version: the text of the program holds a picture, which a journal cannot keep: leave "
            "version out: the body then runs against the generations that the journal has."
        ) from None


def _checked_version(version: object) -> str | None:
    if version is None:
        return None
    if not isinstance(version, str):
        raise ProgramTypeError(
            f'version={quote(repr(version))[1:-1]} must be a text, as in version="2": another '
            "one whenever the program has changed."
        )
    if not 0 < len(version) <= MAX_VERSION:
        raise ProgramError(f"version has {len(version):,} characters: give 1 to {MAX_VERSION}.")
    return version


def _tell(path: str, reused: Reused) -> None:
    """Say what was not computed again."""
    if reused.rows or reused.generations:
        _log.info(
            "run_batch: %d tokens were not computed again: the journal %s had %d generations, and "
            "%d whole rows",
            *(reused.tokens, path, reused.generations, reused.rows),
        )
