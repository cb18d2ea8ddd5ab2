"""Runs as OpenTelemetry's spans: nested as they ran, without texts, and only when asked for."""

import asyncio
import subprocess
import sys

import pytest

import lmlang as lm
from lmlang.testing import RandomBackend, ScriptedBackend

otel = pytest.importorskip("opentelemetry.sdk.trace", reason="opentelemetry-sdk is not installed")

from opentelemetry import trace  # noqa: E402 - behind the check that it is there
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (  # noqa: E402
    InMemorySpanExporter,
)
from opentelemetry.trace import StatusCode  # noqa: E402


class Spans:
    """Where spans go, and how they are found again."""

    def __init__(self):
        self.exporter = InMemorySpanExporter()
        self.provider = otel.TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def __iter__(self):
        return iter(self.exporter.get_finished_spans())

    def named(self, name):
        return [span for span in self if span.name == name]

    def below(self, span):
        return [
            s for s in self if s.parent is not None and s.parent.span_id == span.context.span_id
        ]


@pytest.fixture
def spans():
    return Spans()


@lm.function
def program(s: lm.ProgramState) -> None:
    """A generation in a turn, one outside, forks with forks below them, a select."""
    s += lm.user("Hi") + lm.assistant(lm.gen("answer", max_tokens=9, temperature=0.5, stop="x"))
    forks = s.fork(2)
    forks += "more" + lm.gen("n", n=2, max_tokens=3, regex="a*")
    inner = forks[1].fork(1)
    inner += lm.gen("deep", max_tokens=2)
    inner.join()
    forks.join()
    s += lm.select("pick", ["yes", "no"])


def test_spans_are_nested_as_the_run_was_and_say_what_was_asked(spans):
    with lm.instrument(spans.provider), RandomBackend() as backend:
        state = program(backend=backend, seed=3)
    (root,) = spans.named("invoke_agent program")
    assert root.parent is None
    assert root.status.status_code is StatusCode.UNSET
    usage = state.usage()
    assert root.attributes["gen_ai.usage.input_tokens"] == usage.prompt_tokens
    assert root.attributes["gen_ai.usage.output_tokens"] == usage.generated_tokens
    assert root.attributes["gen_ai.agent.name"] == "program"
    model = backend.info().model
    assert sorted(span.name for span in spans.below(root)) == sorted(
        [f"chat {model}", "fork 0 / branch 0", "fork 0 / branch 1", f"select {model}"]
    )
    (chat,) = spans.named(f"chat {model}")
    told = dict(chat.attributes)
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.provider.name"] == "lmlang"
    assert told["gen_ai.request.max_tokens"] == 9
    assert told["gen_ai.request.temperature"] == 0.5
    assert told["gen_ai.request.stop_sequences"] == ("x",)
    assert told["gen_ai.response.finish_reasons"] == (state.meta("answer").finish,)
    assert told["lmlang.variable"] == "answer"
    assert told["code.file.path"] == __file__
    (branch,) = spans.named("fork 0 / branch 1")
    names = sorted([span.name for span in spans.below(branch)])
    assert names == ["fork 0 / branch 0", f"text_completion {model}"]
    (first,) = [s for s in spans.below(branch) if s.name.startswith("text")]
    assert first.attributes["gen_ai.request.choice.count"] == 2
    for span in spans:
        assert span.start_time <= span.end_time
        for child in spans.below(span):
            assert child.start_time >= span.start_time - 1_000_000
    assert not any(
        "text" in str(v) and "Hi" in str(v) for s in spans for v in s.attributes.values()
    )
    assert len({span.context.trace_id for span in spans}) == 1


def test_what_a_body_does_itself_is_below_its_run_and_runs_below_what_is_around(spans):
    tracer = spans.provider.get_tracer("test")

    @lm.function
    def inner(s):
        s += lm.gen("x")

    @lm.function
    async def outer(s):
        with tracer.start_as_current_span("own"):
            inner(backend=backend)
        await s.adone()

    backend = ScriptedBackend(["a"])
    with lm.instrument(spans.provider), tracer.start_as_current_span("around"):
        asyncio.run(outer.arun(backend=backend))
    (around,) = spans.named("around")
    (ran,) = spans.below(around)
    (own,) = spans.below(ran)
    (called,) = spans.below(own)
    assert (ran.name, own.name, called.name) == ("invoke_agent outer", "own", "invoke_agent inner")
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_calls_of_tools_are_spans_that_what_they_do_is_below(spans):
    tracer = spans.provider.get_tracer("test")

    def divide(a: int) -> float:
        with tracer.start_as_current_span("inside"):
            return 1 / a

    async def later(a: int) -> int:
        return a

    answers = ['{"name": "divide", "arguments": {"a": 0}}', '{"name": "later", "arguments": {}}']
    answers[1] = answers[1].replace("{}", '{"a": 1}')

    @lm.function
    async def agent(s):
        s += lm.gen("one", type=lm.ToolCall[divide, later])
        s += lm.gen("two", type=lm.ToolCall[divide, later])
        return (await s.aget("one")).observe().text, await (await s.aget("two")).arun()

    with lm.instrument(spans.provider):
        told = asyncio.run(agent.arun(backend=ScriptedBackend(answers))).ret_value
    assert told == ("ZeroDivisionError: division by zero", 1)
    (root,) = spans.named("invoke_agent agent")
    (failed,), (well,) = spans.named("execute_tool divide"), spans.named("execute_tool later")
    assert {failed, well} <= set(spans.below(root))
    assert failed.attributes["error.type"] == "ZeroDivisionError"
    assert (failed.attributes["gen_ai.tool.name"], well.status.status_code) == (
        "divide",
        StatusCode.UNSET,
    )
    assert [span.name for span in spans.below(failed)] == ["inside"]


def test_batches_errors_and_texts_where_they_are_asked_for(spans):
    @lm.function
    def row(s, number):
        s += f"{number}" + lm.gen("x") + lm.gen("y")

    def answer(prompt):
        if prompt.startswith("1"):
            raise lm.BackendError("secret")
        return "said <b>"

    with lm.instrument(spans.provider, content=True), ScriptedBackend(answer) as backend:
        row.run_batch([(0,), (1,)], backend=backend, on_error="return")
    roots = spans.named("invoke_agent row")
    assert len({root.context.trace_id for root in roots}) == 2
    failed = [root for root in roots if root.status.status_code is StatusCode.ERROR]
    assert [root.attributes["error.type"] for root in failed] == ["BackendError"]
    below = spans.below(failed[0])
    assert [s.attributes["error.type"] for s in below] == ["BackendError", "skipped"]
    assert not any("secret" in str(value) for s in spans for value in s.attributes.values())
    (well,) = [root for root in roots if root not in failed]
    said = spans.below(well)[0].attributes["gen_ai.output.messages"]
    assert '"content": "said <b>"' in said


def test_what_a_journal_had_is_not_told_as_used_again(spans, tmp_path):
    def batch():
        keywords = {"backend": RandomBackend(), "seed": 1, "version": "1"}
        program.run_batch([{}], journal=tmp_path / "run.sqlite", **keywords)
        *_, root = spans.named("invoke_agent program")
        return root

    with lm.instrument(spans.provider):
        first, again = batch(), batch()
    used = "gen_ai.usage.output_tokens"
    assert first.attributes[used] > 0
    assert "lmlang.reused_tokens" not in first.attributes
    assert spans.below(first)
    assert used not in again.attributes
    assert again.attributes["lmlang.reused_tokens"] >= first.attributes[used]
    assert not spans.below(again)


def test_a_provider_that_is_none_is_refused():
    with pytest.raises(lm.ProgramError, match="tracer_provider is an int"):
        lm.instrument(5)


def test_no_run_is_told_of_behind_the_block_and_observers_cannot_harm(spans, caplog):
    from lmlang.frontend.observing import ignore, observe

    with lm.instrument(spans.provider):
        pass
    program(backend=RandomBackend(), seed=1)
    assert not list(spans)

    class Broken:
        def began(self, run):
            return None

        def ended(self, run, begun):
            raise ValueError("broken")

        called = returned = ended

    broken = Broken()
    observe(broken)
    try:
        program(backend=RandomBackend(), seed=1)
    finally:
        ignore(broken)
    assert "an observer of runs has failed" in caplog.text


def test_nothing_is_imported_until_it_is_asked_for():
    script = (
        "import sys, lmlang as lm\n"
        "from lmlang.testing import ScriptedBackend\n"
        "lm.function(lambda s: s.__iadd__(lm.gen('x'))).run(backend=ScriptedBackend())\n"
        "assert 'opentelemetry' not in sys.modules\n"
        "sys.modules['opentelemetry'] = None\n"
        "try:\n"
        "    lm.instrument()\n"
        "except lm.ProgramError as error:\n"
        "    assert \"pip install 'lmlang[telemetry]'\" in str(error)\n"
        "else:\n"
        "    raise SystemExit('it was not missed')\n"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
