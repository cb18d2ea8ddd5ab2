"""Executes nodes on a backend as they are appended: the only place that knows what a node does.

    append ──> queue ──drain (caller's thread)──> prompt ──gen──> backend ─┐
                 ^                                                         │ callback: put only
                 └────────drain (dispatcher thread) <── completion ────────┘

Whoever finds a state idle owns it and drains it up to the next generation; while it waits, others
only queue. Draining is a loop over ready states, so forks of forks need no recursion.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from time import perf_counter

from lmlang.errors import Cancelled, ProgramError, with_context
from lmlang.frontend import ir, requests, waiting
from lmlang.frontend.dispatcher import dispatcher
from lmlang.frontend.meta import Meta
from lmlang.frontend.rendering import text_since
from lmlang.frontend.requests import Answer
from lmlang.frontend.run import Entry, Handle, Operation, Phase, Run, Span, State, Variable
from lmlang.frontend.source import stored
from lmlang.protocol import EndTurn, Image, Prompt, Text, Tokens, Turn

PROMPT_TAIL = 80
"""Characters of the prompt that an error shows."""


def append(state: State, operations: list[Operation]) -> None:
    """Queue operations and run what can run on this thread; never waits for the backend."""
    if state.push(operations):
        _drain(state)


# ------------------------------------------------------------------ draining: who owns a state


def _drain(first: State) -> None:
    """Bring an owned state on, and every state that becomes ready on the way."""
    waiting.begin_draining(first.run)
    try:
        _bring_on(deque([first]))
    except BaseException as error:
        first.run.abort(_interruption(error))
        raise
    finally:
        waiting.end_draining()


def _bring_on(ready: deque[State]) -> None:
    """Bring owned states on until none is left; an interrupt too leaves none behind.

    Their run may be over by then, so that to abort it would wake nobody who waits for them.
    """
    try:
        while ready:
            _advance(ready.popleft(), ready)
    except BaseException as error:
        for state in ready:
            state.error = state.error or _interruption(error)
        while ready:
            _advance(ready.popleft(), ready)
        raise


def _interruption(error: BaseException) -> BaseException:
    """What readers hear of an interrupt: where nobody called, they alone can hear of it itself."""
    if dispatcher().is_current():
        return error
    told = Cancelled(f"the run was interrupted by {type(error).__name__}.")
    told.__cause__ = error
    return told


def _advance(state: State, ready: deque[State]) -> None:
    run = state.run
    while True:
        with run.lock:
            if not state.queue:
                state.phase = Phase.IDLE  # given up: the next to append owns it
                run.notify()
                return
            operation = state.queue.popleft()
        error = state.failure()
        if error is not None:
            _abandon(state, operation, error, ready)
            continue
        try:
            if not _perform(state, operation, ready):
                return
            if operation.record is not None:
                operation.record.finish()
        except Exception as raised:
            _fail(state, operation, raised, ready)
        except BaseException as raised:
            _fail(state, operation, _interruption(raised), ready)
            ready.appendleft(state)
            raise


def _await(state: State, operation: Operation, handle: Handle) -> bool:
    """Apply an answer that is there; else give the state up until the answer comes."""
    if handle.done():
        _apply(state, operation, handle)
        return True
    run = state.run
    with run.lock:
        state.pending, state.phase = handle, Phase.WAITING
        stopped = state.failure() is not None
        if not stopped and not (isinstance(operation.node, ir.Gen) and operation.node.reasoning):
            assert operation.variable is not None
            operation.variable.handle = handle  # streams follow it from here on
            if operation.record is not None:
                operation.record.handle = handle
            run.notify()
    resume = partial(_resume, state, operation, handle)
    handle.add_done_callback(lambda _: dispatcher().put(resume))
    if stopped:
        handle.cancel()
    return False


def _resume(state: State, operation: Operation, handle: Handle) -> None:
    """On the dispatcher thread: the answer is there, so the state is ours again."""
    try:
        with state.run.lock:
            state.pending, state.phase = None, Phase.RUNNING
            stopped = state.failure()
        ready: deque[State] = deque()
        try:
            if stopped is not None:  # what comes now is our own cancelling, not the cause of it
                _abandon(state, operation, stopped, ready)
            else:
                _apply(state, operation, handle)
        except BaseException as error:
            _fail(state, operation, error, ready)
        ready.appendleft(state)
        _bring_on(ready)
    except BaseException as error:  # whatever it is, readers must hear of it, not hang
        state.run.abort(error)


# ---------------------------------------------------------------- performing: what a node does


def _perform(state: State, operation: Operation, ready: deque[State]) -> bool:
    """Do one operation; False: the state now waits for the backend."""
    node = operation.node
    match node:
        case ir.Text():
            state.prompt = state.prompt.append(Text(node.text))
        case ir.Role():
            state.prompt = state.prompt.append(Turn(node.role))
        case ir.EndRole():
            state.prompt = state.prompt.append(EndTurn())
        case ir.Gen() | ir.Select():
            assert operation.variable is not None
            assert operation.record is not None
            state.log.append(Entry(operation.variable, state.prompt))
            operation.record.submitted = perf_counter()
            begun = requests.start(state.run, state.prompt, operation)
            if not isinstance(begun, Answer):
                return _await(state, operation, begun)
            operation.record.submitted = None  # nothing had to be asked
            _take(state, operation, begun)
        case ir.Image():
            requests.check_vision(state.run.backend)
            assert isinstance(operation.value, Image)
            state.prompt = state.prompt.append(operation.value)
        case ir.SetVar():
            _settle(state.run, operation, operation.variable, operation.value)
        case ir.Fork():
            _begin_children(state, operation, None, ready)
        case ir.Join():
            for segment in operation.segments:
                state.prompt = state.prompt.append(segment)
            for variable, value in operation.gathered:
                _settle(state.run, operation, variable, value)
        case ir.Scope():
            assert operation.variable is not None
            with state.run.lock:
                operation.variable.span = Span(state, state.prompt, len(state.log))
                state.run.notify()
        case ir.EndScope():
            assert operation.variable is not None
            assert operation.variable.span is not None
            span = operation.variable.span
            inside = text_since(state.run.backend, span.prompt, state.prompt)
            span.end = len(state.log)
            assert operation.record is not None
            operation.record.text = inside
            _settle(state.run, operation, operation.variable, inside, inside)
        case ir.Call():
            pass  # what the other program does follows
        case _:
            raise ProgramError(f"{type(node).__name__.lower()} cannot be executed here.")
    return True


def _apply(state: State, operation: Operation, handle: Handle) -> None:
    """Take a backend's answer into the state; raises the error that it is."""
    assert operation.record is not None
    operation.record.first = requests.first_at(handle)
    _take(state, operation, requests.answer(state.run, operation, handle))


def _take(state: State, operation: Operation, answer: Answer) -> None:
    assert operation.record is not None
    operation.record.answer(answer.text, answer.value, answer.meta)
    state.run.charge(operation, answer.usage, answer.meta.finish)
    if answer.error is not None:
        raise answer.error
    prompt = state.prompt
    for segment in answer.segments:
        prompt = prompt.append(segment)
    state.prompt = state.log[-1].after = prompt
    for (variable, _), value in zip(operation.gathered, answer.beside, strict=True):
        _settle(state.run, operation, variable, value)
    _settle(state.run, operation, operation.variable, answer.value, answer.text, answer.meta)


def _settle(
    run: Run,
    operation: Operation,
    variable: Variable | None,
    value: object,
    text: str | None = None,
    found: Meta | None = None,
) -> None:
    assert variable is not None
    with run.lock:
        variable.value, variable.text, variable.meta = value, text, found
        variable.settled, variable.handle = True, None
        if operation.record is not None:  # before anyone hears of the value
            operation.record.finish()
        run.notify()


def _begin_children(
    state: State, operation: Operation, error: BaseException | None, ready: deque[State]
) -> None:
    with state.run.lock:
        for child in operation.children:
            child.origin = child.prompt = state.prompt
            if child.error is None and error is not None:
                child.error, child.inherited = error, True
            child.phase = Phase.RUNNING  # owned by this thread, through `ready`
    ready.extend(operation.children)


# -------------------------------------------------------------------------------- failing


def _fail(state: State, operation: Operation, error: BaseException, ready: deque[State]) -> None:
    """Poison a state with an error of its own."""
    error = with_context(
        stored(error),
        program=state.run.name,
        op_path=operation.path or None,
        source=operation.source or None,
        branch=state.branch,
        prompt_tail=_tail(state.prompt),
    )
    state.error = error
    if operation.record is not None:
        operation.record.fail(error)
    _abandon(state, operation, error, ready)
    if state.run.budget.over:
        state.run.abort(error)


def _abandon(state: State, operation: Operation, error: BaseException, ready: deque[State]) -> None:
    """Fail what an operation would have made: it will not run."""
    variables = [variable for variable, _ in operation.gathered]
    if operation.variable is not None:
        variables.append(operation.variable)
    with state.run.lock:
        for variable in variables:
            if not variable.settled:
                variable.error, variable.settled = error, True
        if operation.record is not None:
            operation.record.abandoned = True
        state.run.notify()
    if operation.children:
        _begin_children(state, operation, error, ready)


def _tail(prompt: Prompt) -> str:
    parts: list[str] = []
    missing = PROMPT_TAIL
    node: Prompt | None = prompt
    while node is not None and missing > 0:
        if isinstance(node.segment, (Text, Tokens)):
            parts.append(node.segment.text[-missing:])
            missing -= len(parts[-1])
        node = node.parent
    return "".join(reversed(parts))
