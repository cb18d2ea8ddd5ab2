"""A recorded run on a backend again: its outputs are given and not sampled, and then compared.

    recording ── replay ──> interpreter ── generate ──> Recorded ── resumed=tokens ──> backend
    new log, operation by operation ══ the old one, else ReplayError with the first token

A backend computes what it is given, so texts, ends and log-probabilities are its own again.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from lmlang import errors, limits
from lmlang.errors import (
    BackendError,
    Cancelled,
    CaptureError,
    LMLangError,
    ProgramError,
    ReplayError,
    quote,
)
from lmlang.frontend import draws, ir
from lmlang.frontend.cursor import Cursor
from lmlang.frontend.defaults import resolve
from lmlang.frontend.ending import Ending
from lmlang.frontend.logged import Failure, LoggedOperation, Sample
from lmlang.frontend.options import GenDefaults
from lmlang.frontend.recorder import ProgramState
from lmlang.frontend.recording import Recording
from lmlang.frontend.replay import replay, why_not
from lmlang.frontend.run import Run
from lmlang.frontend.runlog import RunLog
from lmlang.frontend.snapshot import run_log
from lmlang.frontend.through import Through
from lmlang.protocol import Backend, Generation, Request, ScoreRequest, Scores

TOLERANCE = 0.02
"""Log-probabilities that differ by more were not computed by the same model from the same text."""
_UNNAMED = re.compile(r"_(\d+)")


def rerun(log: RunLog, backend: Backend | None, tolerance: float) -> ProgramState:
    """The final state of a run that is run again without sampling.

    Raises:
        ReplayError: What the backend makes of it is not what is recorded.
    """
    return _run_again(log, log.recording.nodes, None, resolve(backend), tolerance)


def fork_at(log: RunLog, at: str, backend: Backend | None, tolerance: float) -> ProgramState:
    """A state as it was before an operation, for the program to go on from there otherwise.

    Raises:
        CaptureError: There is no such operation.
        ProgramError: There are several.
        ReplayError: What the backend makes of what came before it is not what is recorded.
    """
    target = _found(log, at)
    index, node = next(
        (index, node)
        for index, node in enumerate(log.recording.nodes)
        if not isinstance(node, ir.Start) and target.made in ir.made_by(node)
    )
    assert not isinstance(node, ir.Start)
    nodes = _before(log.recording.nodes[:index], node.state)
    return _run_again(log, nodes, node.state, resolve(backend), tolerance)


# ------------------------------------------------------------------------ running it again


def _run_again(
    log: RunLog, nodes: Sequence[ir.Node], at: int | None, backend: Backend, tolerance: float
) -> ProgramState:
    tolerance = limits.number("tolerance", tolerance, 0.0, 1e3)
    _refuse_what_no_log_has(log, nodes)
    recorded = _Recorded(log, backend)
    defaults, key = GenDefaults(log.params, log.n, lora=log.lora), bytes.fromhex(log.row_key)
    run = Run(log.recording.name, recorded, defaults, log.seed, key, log.max_program_tokens)
    run.recording = Recording(log.recording.name, log.recording.parameters)
    cursors: dict[int, Cursor] = {}
    program = replace(log.recording, nodes=tuple(nodes))
    with Ending(run, None):
        for waited in replay(run, program, cursors):
            for each in waited:
                each.wait()
        for each in list(run.states):
            each.wait()
            if any(value.status != "done" for value in recorded.of(each.prefix[:-1])):
                each.joined = True  # it had failed, or was cancelled, when it was recorded
        _refuse_differences(log, run_log(run).operations, run, tolerance)
        run.finish()
    run.backend = backend  # which alone answers what may follow
    ends = (each for each in cursors.values() if each.state is run.root)
    cursor = next(ends) if at is None else cursors[at]
    run.value = next((n.value for n in nodes if isinstance(n, ir.Return)), None)
    taken = [_UNNAMED.fullmatch(name) for name in cursor.variables]
    cursor.unnamed = max([int(match[1]) + 1 for match in taken if match], default=0)
    return ProgramState(cursor)


def _refuse_what_no_log_has(log: RunLog, nodes: Sequence[ir.Node]) -> None:
    made_anew = {
        each.made for each in log.operations if any(sample.tries > 1 for sample in each.samples)
    }
    for node in nodes:
        why = why_not(node)
        if why is None and made_anew.intersection(ir.made_by(node)):
            why = "values that validators refused"
        if why is not None:
            (made,) = ir.made_by(node)
            where = log.recording.sources.get(made, "one line")
            raise ProgramError(
                f"the run log cannot be run again: at {where} "
                f"the program has {why}, which no log holds: run the program itself, with seed="
                f"{log.seed}."
            )


class _Recorded(Through):
    """A backend that is given the outputs of a log, and asked for no others. Thread-safe."""

    def __init__(self, log: RunLog, backend: Backend) -> None:
        super().__init__(backend)
        self._operations = {each.path: each for each in log.operations if each.path}
        self._samples: dict[tuple[str, int], Sample] = {}
        self._of: dict[str, list[LoggedOperation]] = defaultdict(list)
        seeds = {
            ir.made_by(node)[0]: node.seed
            for node in log.recording.nodes
            if isinstance(node, ir.Gen) and node.seed is not None
        }
        row_key = bytes.fromhex(log.row_key)
        for each in log.operations:
            self._of[each.state].append(each)
            for number, sample in enumerate(each.samples):
                seed = seeds.get(each.made, log.seed)
                key = draws.draw_key(seed, row_key, each.path, number)
                self._samples[each.path, key] = sample

    def of(self, state: str) -> list[LoggedOperation]:
        """The operations of a state."""
        return self._of[state]

    def generate(self, request: Request) -> Generation:
        """Have the backend compute what is recorded; hidden reasoning is drawn again."""
        path = request.tag.op_path
        error = self._error(path.removesuffix("/think"))
        if error is not None:
            generation = Generation(request)
            generation.fail(error)
            return generation
        sample = self._samples.get((path, request.draw_key))
        if sample is not None:
            request = replace(request, resumed=sample.tokens, probs=False)
        return self._backend.generate(request)

    def score(self, request: ScoreRequest) -> Future[Scores]:
        """Have the backend score choices again."""
        error = self._error(request.tag.op_path)
        if error is None:
            return self._backend.score(request)
        future: Future[Scores] = Future()
        future.set_exception(error)
        return future

    def _error(self, path: str) -> BaseException | None:
        operation = self._operations.get(path)
        if operation is None or operation.status == "done":
            return None
        if operation.error is None:
            return Cancelled(f"the operation was {operation.status} in the run that is recorded.")
        return _as_error(operation.error)


def _as_error(failure: Failure) -> BaseException:
    """A recorded error as one of its kind, where it is one of ours."""
    kind = getattr(errors, failure.type, None)
    if isinstance(kind, type) and issubclass(kind, LMLangError):
        return kind(failure.message)
    return BackendError(f"{failure.type}: {failure.message}")


# ------------------------------------------------------------------------- comparing it


def _refuse_differences(
    log: RunLog, now: Iterable[LoggedOperation], run: Run, tolerance: float
) -> None:
    """Raise ReplayError for the first operation that is not as it was recorded."""
    before: dict[str, list[LoggedOperation]] = defaultdict(list)
    for each in log.operations:
        before[each.state].append(each)
    for new in now:
        if not before[new.state]:
            raise _parted(log, new, run, "the log does not have it, as if it had been cut", None)
        old = before[new.state].pop(0)
        if old.status == "done":
            found = _difference(old, new, run, tolerance)
            if found is not None:
                raise _parted(log, old, run, *found)


def _difference(
    old: LoggedOperation, new: LoggedOperation, run: Run, tolerance: float
) -> tuple[str, int | None] | None:
    """What is not as it was, and from which token on; None: nothing."""
    if new.status != "done":
        said = new.status if new.error is None else f"{new.error.type}: {new.error.message}"
        return f"it does not come about again ({said})", None
    if len(old.samples) != len(new.samples) or len(old.choices) != len(new.choices):
        return "the log does not have all of it, as if it had been cut", None
    for number, (was, now) in enumerate(zip(old.samples, new.samples, strict=True)):
        sample = f"sample {number}: " if len(old.samples) > 1 else ""
        if was.tokens != now.tokens:
            at = _first_difference(was.tokens, now.tokens)
            shown = [_token(run, each.tokens[at : at + 1]) for each in (was, now)]
            return f"{sample}token {at:,} was {shown[0]} and is {shown[1]}", at
        if len(was.logprobs) != len(now.logprobs):
            return f"{sample}it has {len(now.logprobs)} log-probabilities, not all recorded", None
        for at, (logprob, again) in enumerate(zip(was.logprobs, now.logprobs, strict=True)):
            if not abs(logprob - again) <= tolerance:
                return (
                    f"{sample}token {at:,}, {_token(run, was.tokens[at : at + 1])}, had the "
                    f"log-probability {logprob:.4f} and has {again:.4f}, further away than "
                    f"tolerance={tolerance:g}",
                    at,
                )
        if (was.finish, was.stop) != (now.finish, now.stop):
            return f"{sample}it ended by {was.finish} and ends by {now.finish}", len(was.tokens)
        if was.thought != now.thought:
            at = _first_difference(was.thought, now.thought)
            return f"{sample}its hidden reasoning reads otherwise from character {at:,} on", None
        if was.text != now.text:
            at = _first_difference(was.text, now.text)
            return f"{sample}its text reads otherwise from character {at:,} on", None
    for one, other in zip(old.choices, new.choices, strict=True):
        if not abs(one.logprob - other.logprob) <= tolerance:
            return (
                f"the choice {quote(one.text)} had the log-probability {one.logprob:.4f} and has "
                f"{other.logprob:.4f}, further away than tolerance={tolerance:g}",
                None,
            )
    if old.text != new.text:
        return f"it was {quote(old.text or '')} and is {quote(new.text or '')}", None
    return None


def _parted(
    log: RunLog, old: LoggedOperation, run: Run, what: str, token: int | None
) -> ReplayError:
    model = str(run.backend.info().model)
    on = "" if model == log.model else f" The log is of {quote(log.model)}, this {quote(model)}."
    name = f" {quote(old.name)}" if old.name else ""
    where = f" at {old.path}" if old.path else ""
    return ReplayError(
        f"the {old.kind}{name}{where} is not as it was recorded: {what}.{on} Replay it on the "
        "model and with the settings that it ran on, or record it anew.",
        path=old.path,
        token=token,
    )


def _token(run: Run, ids: Sequence[int]) -> str:
    return f"{quote(run.backend.decode(ids))} ({ids[0]})" if ids else "none"


def _first_difference(one: Sequence[object], other: Sequence[object]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


# ------------------------------------------------------------------- what came before what


def _found(log: RunLog, at: str) -> LoggedOperation:
    """The operation of a name or a path."""
    if not isinstance(at, str):
        raise errors.ProgramTypeError(
            f"fork_at: {at!r:.80} is {errors.an(type(at).__name__)}: give the name of a variable, "
            "or the path of an operation."
        )
    by_path = [each for each in log.operations if each.path and each.path == at]
    named = [each for each in log.operations if each.name == at and each.kind != "call"]
    found = by_path or named
    if len(found) == 1:
        return found[0]
    if found:
        paths = ", ".join([each.path or "no path" for each in found[:8]])
        raise ProgramError(
            f"fork_at: {len(found):,} operations are called {quote(at)}: give the path of one of "
            f"them ({paths})."
        )
    names = list(dict.fromkeys([each.name for each in log.operations if each.name]))
    near = difflib.get_close_matches(at, names, n=3, cutoff=0.5) or names[:8]
    hint = f"did you mean {' or '.join(map(quote, near))}?" if near else "it has none with a name."
    raise CaptureError(f"fork_at: no operation of the run is called {quote(at)}; {hint}")


def _before(nodes: Sequence[ir.Node], state: int) -> list[ir.Node]:
    """The nodes that a state was made by, and the forks that were counted on their way."""
    made_at = {made: index for index, node in enumerate(nodes) for made in ir.made_by(node)}
    kept: set[int] = set()
    states: set[int] = set()
    left = [state]
    while left:
        wanted = left.pop()
        states.add(wanted)
        index = made_at[wanted]
        if index in kept:
            continue
        kept.add(index)
        node = nodes[index]
        if isinstance(node, ir.Join):
            left += node.children
        if not isinstance(node, (ir.Start, ir.Return)):
            left.append(node.state)
    for index, node in enumerate(nodes):
        if isinstance(node, ir.Fork) and node.state in states:
            kept.add(index)
    return [nodes[index] for index in sorted(kept)]
