"""Runs as spans of OpenTelemetry, once somebody has turned that on.

    invoke_agent capital              a run, current while its body runs
    ├── chat SmolLM2                  a generation in a chat turn, else text_completion
    ├── select SmolLM2
    ├── execute_tool add              the call of a tool, current while it runs
    └── fork 2 / branch 0             a child of a fork, with its own operations below it

Names and attributes are those of OpenTelemetry's conventions for generative AI where they have
some, else begin with "lmlang.". The spans of operations are made when the run has ended, of its run
log, with the times that are recorded there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from lmlang.errors import ProgramError, ProgramTypeError, an
from lmlang.frontend import ir
from lmlang.frontend.logged import LoggedOperation
from lmlang.frontend.observing import ignore, observe
from lmlang.frontend.run import Run
from lmlang.frontend.runlog import RunLog
from lmlang.frontend.snapshot import run_log
from lmlang.grammar.spec import JsonSchema

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

PROVIDER = "lmlang"
_SAMPLING = (
    ("temperature", "gen_ai.request.temperature"),
    ("top_p", "gen_ai.request.top_p"),
    ("top_k", "gen_ai.request.top_k"),
    ("max_tokens", "gen_ai.request.max_tokens"),
    ("frequency_penalty", "gen_ai.request.frequency_penalty"),
    ("presence_penalty", "gen_ai.request.presence_penalty"),
)


class instrument:  # noqa: N801 - a word of the language
    """Tell OpenTelemetry of all runs from now on, until `close` or the end of a ``with`` block.

    Needs ``pip install 'lmlang[telemetry]'``; without a provider that exports, nothing is kept.

    Args:
        tracer_provider: Whose spans they are; None: the process's.
        content: Whether spans have what was generated. By default no text is in them.

    Raises:
        ProgramError: The package is not installed.
    """

    def __init__(
        self, tracer_provider: TracerProvider | None = None, *, content: bool = False
    ) -> None:
        try:
            from opentelemetry import trace
        except ImportError:
            raise ProgramError(
                "spans need the package opentelemetry-api, which is not installed: "
                "pip install 'lmlang[telemetry]'."
            ) from None
        if tracer_provider is not None and not hasattr(tracer_provider, "get_tracer"):
            raise ProgramTypeError(
                f"tracer_provider is {an(type(tracer_provider).__name__)}: give a TracerProvider "
                "of OpenTelemetry, or leave it out."
            )
        self._tracer = trace.get_tracer("lmlang", tracer_provider=tracer_provider)
        self._content = content
        observe(self)

    def close(self) -> None:
        """Tell of no more runs; those that have begun are told."""
        ignore(self)

    def __enter__(self) -> instrument:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ as an observer

    def began(self, run: Run) -> tuple[Span, Any]:
        """Begin the run's span, which is current from here on."""
        from opentelemetry import context, trace

        span = self._tracer.start_span(f"invoke_agent {run.name}")
        return span, context.attach(trace.set_span_in_context(span))

    def ended(self, run: Run, begun: tuple[Span, Any]) -> None:
        """End the run's span, with those of its operations below it."""
        from opentelemetry import context

        span, token = begun
        context.detach(token)
        if not span.is_recording():
            span.end()
            return
        try:
            telling = _Telling(self._tracer, run_log(run), self._content)
            if run.reused.tokens:
                span.set_attribute("lmlang.reused_tokens", run.reused.tokens)
            if run.reused.rows:  # a journal had the row whole: nothing has run, nor been used
                telling.tell_whose(span)
            else:
                telling.tell(span)
        finally:
            span.end()

    def called(self, tool: str) -> tuple[Span, Any]:
        """Begin the span of a tool's call, which is current until it returns."""
        from opentelemetry import context, trace

        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.tool.name": tool,
            "gen_ai.tool.type": "function",
        }
        span = self._tracer.start_span(f"execute_tool {tool}", attributes=attributes)
        return span, context.attach(trace.set_span_in_context(span))

    def returned(self, begun: tuple[Span, Any], error: BaseException | None) -> None:
        """End it."""
        from opentelemetry import context

        span, token = begun
        context.detach(token)
        if error is not None:
            _failed(span, type(error).__name__)
        span.end()


class _Telling:
    """One run log on its way to spans."""

    def __init__(self, tracer: Tracer, log: RunLog, content: bool) -> None:
        self._tracer = tracer
        self._log = log
        self._content = content
        self._roles = _roles(log.recording)
        self._nodes = {made: node for node in log.recording.nodes for made in ir.made_by(node)}
        ends = [each.finished for each in log.operations if each.finished is not None]
        self._end = log.seconds if log.seconds is not None else max(ends, default=0.0)

    def tell(self, root: Span) -> None:
        """The attributes of the run's span, and the spans below it."""
        log, usage = self._log, self._log.usage
        self.tell_whose(root)
        root.set_attributes(
            {
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
                "gen_ai.usage.output_tokens": usage.generated_tokens,
            }
        )
        if log.error is not None:
            _failed(root, log.error.type)
        states: dict[str, Span] = {"": root}
        ends: dict[str, float] = {}
        for operation in log.operations:
            state = operation.state
            end = self._end if operation.finished is None else operation.finished
            while state:
                ends[state] = max(ends.get(state, 0.0), end)
                state = _parent(state)
        for operation in log.operations:
            within = self._branch(operation, operation.state, states)
            if operation.kind in ("gen", "select"):
                self._operation(operation, within)
        for state, span in reversed(states.items()):
            if state:
                span.end(self._at(ends[state]))

    def tell_whose(self, root: Span) -> None:
        """The attributes of the run's span that say what has run, and on which model."""
        root.set_attributes(
            {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.provider.name": PROVIDER,
                "gen_ai.agent.name": self._log.program,
                "gen_ai.request.model": self._log.model,
                "lmlang.run_id": self._log.run_id,
                "lmlang.seed": str(self._log.seed),
            }
        )

    def _branch(self, operation: LoggedOperation, state: str, states: dict[str, Span]) -> Span:
        """The span of a state; those of forks begin with their first operation."""
        missing = []
        while state not in states:
            missing.append(state)
            state = _parent(state)
        for each in reversed(missing):
            fork, _, branch = each.rpartition("/fork")[2].partition(".")
            name = f"fork {fork} / branch {branch}"
            states[each] = self._span(name, states[_parent(each)], operation.queued, {})
        return states[operation.state]

    def _operation(self, operation: LoggedOperation, within: Span) -> None:
        log, usage = self._log, operation.usage
        node = self._nodes[operation.made]
        kind = "select"
        if operation.kind == "gen":
            kind = "chat" if self._roles.get(operation.made) else "text_completion"
        path, _, line = operation.source.rpartition(":")
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": kind,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": log.model,
            "gen_ai.response.model": log.model,
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            "gen_ai.usage.output_tokens": usage.generated_tokens,
            "lmlang.variable": operation.name or "",
            "lmlang.op_path": operation.path,
            "lmlang.status": operation.status,
            "code.file.path": path,
        }
        if line.isdigit():
            attributes["code.line.number"] = int(line)
        if isinstance(node, ir.Gen):
            attributes |= self._asked(node, operation)
        elif isinstance(node, ir.Select):
            attributes["lmlang.choices"] = len(node.choices)
            attributes["lmlang.scored_tokens"] = usage.scored_tokens
        if self._content and operation.text is not None:
            texts = [each.text for each in operation.samples] or [operation.text]
            said = [
                {"role": "assistant", "parts": [{"type": "text", "content": text}]}
                for text in texts
            ]
            attributes["gen_ai.output.messages"] = json.dumps(said, ensure_ascii=False)
        begin = operation.queued if operation.submitted is None else operation.submitted
        span = self._span(f"{kind} {log.model}", within, begin, attributes)
        if operation.first_token is not None:
            span.add_event("lmlang.first_token", timestamp=self._at(operation.first_token))
        if operation.status != "done":
            _failed(span, operation.status if not operation.error else operation.error.type)
        span.end(self._at(self._end if operation.finished is None else operation.finished))

    def _asked(self, node: ir.Gen, operation: LoggedOperation) -> dict[str, Any]:
        """What a generation was asked for, and how it ended."""
        params = self._log.params
        found: dict[str, Any] = {}
        for name, key in _SAMPLING:
            own = getattr(node, name)
            found[key] = getattr(params, name) if own is None else own
        stop = params.stop if node.stop is None else node.stop
        if stop:
            found["gen_ai.request.stop_sequences"] = list(stop)
        count = self._log.n if node.n is None else node.n
        if count > 1:
            found["gen_ai.request.choice.count"] = count
        found["gen_ai.output.type"] = "json" if isinstance(node.constraint, JsonSchema) else "text"
        if operation.samples:
            ends = [each.finish or "" for each in operation.samples]
            found["gen_ai.response.finish_reasons"] = ends
        found["lmlang.forced_tokens"] = operation.usage.forced_tokens
        return found

    def _span(self, name: str, within: Span, begin: float, attributes: dict[str, Any]) -> Span:
        from opentelemetry import trace

        return self._tracer.start_span(
            name,
            context=trace.set_span_in_context(within),
            attributes=attributes,
            start_time=self._at(begin),
        )

    def _at(self, seconds: float) -> int:
        """Seconds since the run began as nanoseconds since 1970."""
        return int((self._log.began + seconds) * 1e9)


def _failed(span: Span, kind: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR))


def _parent(state: str) -> str:
    """The path of the state that a state was forked from: "3/fork0.1" is a child of ""."""
    return state[: state.rindex("/fork")].rpartition("/")[0]


def _roles(program: ir.Program) -> dict[int, str | None]:
    """The chat turn that is open in each state."""
    found: dict[int, str | None] = {}
    for node in program.nodes:
        before = None if isinstance(node, ir.Start) else found.get(node.state)
        if isinstance(node, ir.Role):
            before = node.role
        elif isinstance(node, ir.EndRole):
            before = None
        for made in ir.made_by(node):
            found[made] = before
    return found
