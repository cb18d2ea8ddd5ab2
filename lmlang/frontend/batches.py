"""run_batch: rows to calls, and calls executed all at once or as they are taken, journal or not."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sized
from functools import partial
from typing import TYPE_CHECKING, Any

from lmlang import limits
from lmlang.errors import ProgramError, ProgramTypeError
from lmlang.frontend import batch, defaults, draws
from lmlang.frontend.arguments import meant, of_a_run
from lmlang.frontend.batch_result import BatchResult
from lmlang.frontend.call import Call
from lmlang.frontend.options import RunOptions
from lmlang.frontend.progress import Progress
from lmlang.frontend.recorder import ProgramState
from lmlang.frontend.rows import Bind, OnError, Row, checked_key, checked_rows, rows_of, threads
from lmlang.protocol import Backend

if TYPE_CHECKING:
    from lmlang.frontend.journaled import Journaled


def run_batch(
    rows: object,
    bind: Bind,
    make: Callable[[Backend, Row, int], Call],
    options: RunOptions,
    *,
    num_threads: object,
    progress_bar: bool,
    generator_style: bool,
    on_error: OnError,
    key: Callable[[Any], object] | None,
    journal: object,
    version: object,
) -> BatchResult | Generator[ProgramState]:
    """As `Function.run_batch`, whose arguments these are.

    Args:
        rows: As the user gave them.
        bind: Binds a row's arguments.
        make: The call of a row on a backend, under a seed.
        options: Of the runs.
        num_threads: As the user gave it, and so are those that follow.
        progress_bar: Whether to show one.
        generator_style: Whether to return an iterator.
        on_error: What an error of a row ends.
        key: The key of a row.
        journal: The path of a journal.
        version: Of the program, for the journal.
    """
    if on_error not in ("raise", "return"):
        raise ProgramError(f'run_batch: on_error={on_error!r} must be "raise" or "return".')
    if options.stream:
        raise ProgramError(
            "run_batch: stream=True: a batch returns finished states; with "
            "generator_style=True each as soon as its turn is."
        )
    if options.show is not None:
        raise ProgramError(
            'run_batch: show="live" shows one run: for a batch give progress_bar=True.'
        )
    kept = _journaled(journal, version, options)
    lasting = kept is not None
    found = rows_of(checked_rows(rows), bind, on_error, checked_key(key), lasting=lasting)
    lazy = limits.boolean("generator_style", generator_style)
    listed = None if lazy else list(found)  # all are looked at before a backend is loaded for them
    count = None if listed is None else len(listed)
    total = len(rows) if isinstance(rows, Sized) else count
    workers, progress = threads(num_threads, count), Progress(progress_bar, total)
    if count == 0:
        return BatchResult((), (), ())
    backend = defaults.resolve(options.backend)  # here, where `use` holds
    of_backend = partial(make, backend)
    if kept is not None:
        begin = kept.lazily if listed is None else kept.execute
        return begin(listed or found, of_backend, backend, workers, on_error, progress)
    seed = draws.fresh_seed() if options.seed is None else options.seed
    if listed is None:
        return batch.lazily((of_backend(row, seed) for row in found), workers, on_error, progress)
    return batch.execute([of_backend(row, seed) for row in listed], workers, on_error, progress)


def check_keywords(given: dict[str, Any]) -> None:
    """Raise ProgramTypeError for keywords that are none of a run."""
    unknown = next((name for name in given if not of_a_run(name)), None)
    if unknown is not None:
        raise ProgramTypeError(
            f"run_batch: unknown keyword {unknown!r}{meant(unknown)}: arguments of the "
            "program stand in the rows."
        )


def _journaled(journal: object, version: object, options: RunOptions) -> Journaled | None:
    if journal is None:
        if version is not None:
            raise ProgramError(
                "run_batch: version=… says which rows of a journal hold: give journal=… too, or "
                "leave it out."
            )
        return None
    try:
        from lmlang.frontend.journaled import Journaled
    except ModuleNotFoundError as error:
        if error.name not in ("sqlite3", "_sqlite3"):
            raise
        raise ProgramError(
            "run_batch: a journal is an SQLite file, and this Python was built without sqlite3: "
            "use one that has it, or leave journal out."
        ) from None
    return Journaled(journal, version, options)
