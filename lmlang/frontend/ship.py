"""Runs whose program is sent to a server: one round trip for each stretch that needs no value.

    body ── appends ──> interpreter ── generate, score ──> slots: handles without an answer
    body ── needs a value ──> Shipping.send ── the program so far, what is known ──> server
    slots <── events, outputs, scores by op path and draw key ── server runs it to its end

The body runs as always; only where the answers come from is another. The server computes nothing
again that was told before, and what it tells ahead of the asking waits in its slot.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from time import perf_counter
from typing import Protocol, TypeAlias, cast, runtime_checkable

from lmlang.errors import BackendError, Cancelled, LimitExceeded, LMLangError, ProgramError, fresh
from lmlang.frontend import ir
from lmlang.frontend.printer import print_program
from lmlang.frontend.replay import why_not
from lmlang.frontend.run import Run
from lmlang.frontend.ship_slots import Slot
from lmlang.frontend.source import users_line
from lmlang.frontend.through import Through
from lmlang.protocol import Backend, Generation, Request, RunAware, ScoreRequest, Scores
from lmlang.wire.programs import AskedProgram, AskedRun, RoundTrip, Told

Key: TypeAlias = tuple[str, int]
"""An op path and a draw key, 0 for a select."""
THOUGHT = "/think"
"""What follows the path of a generation in that of the reasoning before it."""
TOO_LARGE = 413
"""The status of a body that a server does not take."""
SHORTEST = 1e-3
"""Seconds of a deadline that is asked for when less is left; the run's own then ends it."""

_log = logging.getLogger("lmlang")


@runtime_checkable
class RunsPrograms(Protocol):
    """A backend whose server runs whole programs."""

    def run_program(self, trip: RoundTrip) -> Callable[[], None]:
        """Have a program run; returns at once, with what cancels it."""
        ...


def ship(run: Run, deadline: float | None) -> None:
    """Have the server of a run's backend run the program, from the first node on.

    Args:
        run: Nothing has been recorded yet.
        deadline: Seconds after its start at which it is ended.

    Raises:
        ProgramError: The backend has no such server.
    """
    backend = run.backend
    if not isinstance(backend, RunsPrograms):
        raise ProgramError(
            f"ship=True: {type(backend).__name__} runs each generation by itself, in this process "
            "or elsewhere, so there is nowhere to send the program: leave ship out, or give "
            "backend=lm.connect(…) with the address of an lmlang server."
        )
    shipping = Shipping(run, cast("Backend", backend), deadline)
    run.backend = shipping
    run.send = shipping.send


class Shipping(Through):
    """The backend of one run; its handles are filled from what a server tells. Thread-safe.

    Round trips follow one another. Where the server cannot run the program, all that is asked for
    goes to the backend by itself, from then on.
    """

    def __init__(self, run: Run, backend: Backend, deadline: float | None) -> None:
        super().__init__(backend)
        self.run = run
        self._deadline = deadline
        self._lock = threading.RLock()
        self._slots: dict[Key, Slot] = {}
        self._carried: set[str] = set()
        """Paths that round trips have carried."""
        self._records = 0
        """Records of the run that round trips have carried."""
        self._trip: Trip | None = None
        self._again: str | None = None
        """Where a value is needed that the trip under way does not bring."""
        self._stepping = False
        self._lost: BaseException | None = None
        self._count = 0

    # ------------------------------------------------------------------ Backend

    def generate(self, request: Request) -> Generation:
        """The handle of a generation, which a round trip answers, or has answered."""
        generation = Generation(request, lambda _: self._cancelled(slot))
        slot, direct = self._asked((request.tag.op_path, request.draw_key))
        if direct:
            return self._backend.generate(request)
        slot.ask(generation, lambda: self._backend.generate(request))
        self._check(request.tag.op_path, slot)
        return generation

    def score(self, request: ScoreRequest) -> Future[Scores]:
        """The handle of a select, as `generate`."""
        slot, direct = self._asked((request.tag.op_path, 0))
        if direct:
            return self._backend.score(request)
        future: Future[Scores] = Future()
        future.add_done_callback(lambda f: self._cancelled(slot) if f.cancelled() else None)
        slot.ask(future, lambda: self._backend.score(request))
        self._check(request.tag.op_path, slot)
        return future

    def end_run(self, run_id: str) -> None:
        """The run is over: what is under way for it ends, unless it has come to its own end."""
        self._drop()
        if isinstance(self._backend, RunAware):
            self._backend.end_run(run_id)

    # ------------------------------------------------------------------ round trips

    def send(self) -> None:
        """Somebody needs a value: send what has been recorded, unless a round trip has it."""
        self._send(None)

    def _send(self, where: str | None) -> None:
        with self._lock:
            if self._stepping or not self._unsent():
                return
            where = users_line() if where is None else where
            if self._trip is not None:
                self._again = where  # when its answers are there, which the next begins with
                return
            self._count += 1
            trip = Trip(self, *self._snapshot())
            reason = trip.reason
            if reason is None:
                self._trip = trip
        if reason is not None:
            self._step(reason)
            return
        _log.info(
            "program %s: round trip %d, since a value is needed at %s",
            *(self.run.name, self._count, where),
        )
        trip.begin(cast("RunsPrograms", self._backend))

    def _unsent(self) -> bool:
        """Whether generations or selects have been recorded that no round trip has carried."""
        records = self.run.records
        return any(
            isinstance(records[at].node, (ir.Gen, ir.Select)) and not records[at].abandoned
            for at in range(self._records, len(records))
        )

    def _snapshot(self) -> tuple[ir.Program, AskedRun]:
        """The program so far, and how it is run."""
        records = list(self.run.records)  # first: of what they tell of, the recording has the nodes
        self._records = len(records)
        self._carried |= {record.path for record in records if record.path}
        run, gen = self.run, self.run.gen
        left = None
        if self._deadline is not None:
            left = max(SHORTEST, self._deadline - (perf_counter() - run.started))
        return run.recording.program(), AskedRun(
            run.id,
            run.seed,
            run.row_key,
            gen.params,
            gen.n,
            gen.report.return_logprob,
            gen.report.logprob_start_len,
            gen.report.top_logprobs_num,
            run.budget.most,
            left,
            run.priority,
            gen.lora,
            goes_on=True,  # it is told by `end_run` when it does not
        )

    def known(self) -> tuple[Told, ...]:
        """What the server need not compute: what it has told, and what has failed or will not be.

        An operation that has failed here fails there, so that nothing is made that follows it.
        """
        failed: dict[str, LMLangError] = {}
        for record in list(self.run.records):
            if isinstance(record.node, (ir.Gen, ir.Select)):
                if record.error is not None:
                    failed[record.path] = _plain(record.error)
                elif record.abandoned:
                    failed[record.path] = Cancelled("the program has ended before this.")
        with self._lock:
            slots = list(self._slots.items())
        told = [Told(path, error) for path, error in failed.items()]
        for (path, key), slot in slots:
            outcome = slot.outcome
            if outcome is not None and path not in failed:
                plain = _plain(outcome) if isinstance(outcome, BaseException) else outcome
                told.append(Told(path, plain, key))
        return tuple(told)

    def take(self, told: Told) -> bool:
        """The server has told something; whether it was new."""
        with self._lock:
            slot = self._slots.setdefault((told.op, told.draw_key), Slot())
        return slot.take(told.item)

    def came_back(self, trip: Trip, error: BaseException | None) -> None:
        """A round trip has ended: what it should have answered, and did not, has failed."""
        with self._lock:
            if self._trip is not trip:
                return
            self._trip, again, self._again = None, self._again, None
        if error is not None and not trip.progressed and _is_too_much(error):
            self._step(f"the server does not take it: {error}")
            return
        with self._lock:
            self._lost = error
            left = [
                (slot, self._loss(path))
                for (path, _), slot in self._slots.items()
                if slot.waits and path.removesuffix(THOUGHT) in self._carried
            ]
        for slot, loss in left:
            slot.take(fresh(loss))
        if again is not None:
            try:
                self._send(again)
            except Exception as failure:  # nobody is here to hear of it but those who wait
                self.run.abort(failure)

    def _step(self, reason: str) -> None:
        """Ask for each by itself from here on."""
        with self._lock:
            self._stepping = True
            waiting = [slot for slot in self._slots.values() if slot.waits]
        _log.info(
            "program %s: each generation is asked for by itself from here on, since %s",
            *(self.run.name, reason),
        )
        for slot in waiting:
            slot.step()

    # ------------------------------------------------------------------ handles

    def _asked(self, key: Key) -> tuple[Slot, bool]:
        """The slot of an operation, and whether the backend is to be asked for it by itself."""
        with self._lock:
            slot = self._slots.setdefault(key, Slot())
            return slot, self._stepping and slot.outcome is None

    def _check(self, path: str, slot: Slot) -> None:
        """Fail what no round trip will answer, or has the backend asked that began meanwhile."""
        with self._lock:
            carried = path.removesuffix(THOUGHT) in self._carried
            lost = carried and self._trip is None and not self._stepping
            loss = self._loss(path) if lost else None
            step = self._stepping and slot.waits
        if loss is not None:
            slot.take(fresh(loss))
        elif step:
            slot.step()

    def _loss(self, path: str) -> BaseException:
        """Why an operation that a round trip carried has no answer."""
        whole = self._slots.get((path, 0))  # an error of all samples
        if whole is not None and isinstance(whole.outcome, BaseException):
            return whole.outcome
        return self._lost or BackendError(
            "the server ended the program without an answer to this operation: this is an error "
            "of the server."
        )

    def _cancelled(self, slot: Slot) -> None:
        slot.take(Cancelled("the generation was cancelled."))
        self._drop()

    def _drop(self) -> None:
        """End the round trip of a run that was ended."""
        with self._lock:
            trip = self._trip
        if trip is not None and self.run.ended is not None:
            trip.cancel()


class Trip:
    """One program on its way to the server, and its answers on their way back.

    Attributes:
        reason: Why it cannot be sent; None: it can.
        progressed: Whether anything has been told.
    """

    def __init__(self, shipping: Shipping, program: ir.Program, run: AskedRun) -> None:
        self.progressed = False
        self._shipping = shipping
        self._run = run
        self._cancel: Callable[[], None] | None = None
        self._dropped = False
        self.reason = _reason(program)
        self._text = "" if self.reason else print_program(_bare(program))

    def begin(self, backend: RunsPrograms) -> None:
        """Send it."""
        self._cancel = backend.run_program(self)
        if self._dropped:
            self._cancel()

    def cancel(self) -> None:
        """Have the server end it."""
        self._dropped = True
        if self._cancel is not None:
            self._cancel()

    def asked(self) -> AskedProgram:
        """What to ask; of what is known by now."""
        return AskedProgram(self._text, self._run, self._shipping.known())

    def told(self, told: Told) -> bool:
        """The server has told something; whether it was new."""
        self.progressed = True
        return self._shipping.take(told)

    def ended(self, error: BaseException | None) -> None:
        """It has ended, or never will."""
        self._shipping.came_back(self, error)


def _reason(program: ir.Program) -> str | None:
    """Why a program cannot be sent, with the user's line; None where it can."""
    for node in program.nodes:
        why = why_not(node)
        if why is not None:
            (made,) = ir.made_by(node)
            return f"the program has {why}, at {program.sources.get(made, 'an unknown line')}"
    return None


def _bare(program: ir.Program) -> ir.Program:
    """The program without the values that it computes with, which are nobody else's business."""
    nodes: list[ir.Node] = []
    for node in program.nodes:
        if isinstance(node, ir.SetVar):
            nodes.append(replace(node, value=ir.Opaque()))
        elif isinstance(node, ir.Call):
            nodes.append(replace(node, arguments=()))
        elif not isinstance(node, ir.Return):
            nodes.append(node)
    return ir.Program(program.name, tuple(nodes))


def _is_too_much(error: BaseException) -> bool:
    """Whether a server refuses a program for its size alone."""
    too_large = isinstance(error, BackendError) and error.status == TOO_LARGE
    return too_large or type(error) is LimitExceeded


def _plain(error: BaseException) -> LMLangError:
    """An error as it is sent: without its place in the program, which is on this side."""
    if not isinstance(error, LMLangError):  # whose message may say anything
        return Cancelled(f"the program has failed with {type(error).__name__}.")
    copied = fresh(error)
    copied.context = None
    return copied
