"""From a generation or select to what a backend is asked, and from its answer to what it means.

Gen, Select + run + prompt ──start──> Request(s), ScoreRequest ──> handle
handle, when done          ──answer─> value, text, Meta, what the prompt gains, usage
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from operator import attrgetter

from lmlang.errors import (
    BackendError,
    BudgetExceeded,
    Cancelled,
    ProgramError,
    ProgramTypeError,
    an,
    fresh,
    quote,
)
from lmlang.frontend import draws, ir, reasoning, selection
from lmlang.frontend import meta as metadata
from lmlang.frontend.confidence import Place, places_of
from lmlang.frontend.constraints import Living
from lmlang.frontend.mending import Mending
from lmlang.frontend.meta import Meta
from lmlang.frontend.options import REPORTING, SAMPLING, Report, report_of
from lmlang.frontend.run import Handle, Operation, Run
from lmlang.frontend.samples import Samples
from lmlang.frontend.thinking import Thinking
from lmlang.frontend.units import are_told_apart, units_of
from lmlang.protocol import (
    Backend,
    Generation,
    Output,
    Prompt,
    Request,
    SamplingParams,
    ScoreRequest,
    Scores,
    Segment,
    Tag,
    Text,
    Usage,
)

_OWN_SAMPLING = attrgetter(*SAMPLING)
_OWN_REPORTING = attrgetter(*REPORTING)
_NOTHING = (None,) * len(REPORTING)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a generation or select came to.

    Args:
        value: The variable's value.
        text: Its raw text; of several samples the first one's.
        meta: What is known of it.
        segments: What the prompt gains.
        usage: What it took, all samples together.
        beside: The value of its second variable: the reasoning that was cut out.
        error: Why there is no value: what was generated does not count as one.
    """

    value: object
    text: str
    meta: Meta
    segments: tuple[Segment, ...]
    usage: Usage
    beside: tuple[object, ...] = ()
    error: BaseException | None = None


def start(run: Run, prompt: Prompt, operation: Operation) -> Handle | Answer:
    """Ask the run's backend; an `Answer` where nothing had to be asked."""
    node = operation.node
    if isinstance(node, ir.Gen):
        asked = _generations(run, prompt, operation, node)
        if len(asked) == 1:
            return asked[0]
        return Samples(asked)
    assert isinstance(node, ir.Select)
    if len(node.choices) == 1:
        found = metadata.of_only_choice(
            operation.members[0], node.method or "joint", run.seed, _id(run, operation)
        )
        return _chosen(operation, node, 0, found, Usage())
    method = selection.method_of(node.method, operation.value)
    asking = ScoreRequest(
        prompt,
        node.choices,
        bool(node.ends_turn),
        Tag(run.id, operation.path, run.priority),
        unconditional=selection.needs_unconditional(method),
        lora=run.gen.lora,
    )
    scoring: object = run.backend.score(asking)
    if not isinstance(scoring, Future):
        raise _no_handle(run.backend, "score", "a concurrent.futures.Future", scoring)
    return scoring


def _generation(backend: Backend, request: Request) -> Generation:
    begun: object = backend.generate(request)
    if not isinstance(begun, Generation):
        raise _no_handle(backend, "generate", "an lmlang.protocol.Generation", begun)
    return begun


def _no_handle(backend: Backend, method: str, due: str, found: object) -> ProgramTypeError:
    """What to raise where a backend begins something and does not say what."""
    shown = "None" if found is None else an(type(found).__name__)
    return ProgramTypeError(
        f"{type(backend).__name__}.{method}() returned {shown}: a backend returns {due}, at once, "
        "and ends it when the answer is there."
    )


def answer(run: Run, operation: Operation, handle: Handle) -> Answer:
    """What a handle that is done came to; raises the error that it ended with."""
    node, outcome = operation.node, _outcome(handle)
    if isinstance(outcome, BudgetExceeded) and (ours := run.beyond_budget(operation.path)):
        raise ours from outcome
    if isinstance(outcome, BaseException):
        raise fresh(outcome)
    if isinstance(outcome, Scores):
        assert isinstance(node, ir.Select)
        index, found = selection.choose(
            outcome,
            node.choices,
            operation.members,
            selection.method_of(node.method, operation.value),
            node.temperature or 0.0,
            draws.draw_key(run.seed, run.row_key, operation.path),
        )
        found = replace(found, id=_id(run, operation), seed=run.seed, method=node.method or "joint")
        return _chosen(operation, node, index, found, outcome.usage)
    assert isinstance(node, ir.Gen)
    seed = run.seed if node.seed is None else node.seed
    report, name = _report(run, node), _id(run, operation)
    assert isinstance(handle, (Generation, Samples))
    generations = handle.generations if isinstance(handle, Samples) else (handle,)
    outputs = outcome if isinstance(outcome, tuple) else (outcome,)
    metas = tuple(
        [
            metadata.of_output(
                output,
                seed,
                f"{name}#{sample}" if len(outputs) > 1 else name,
                report,
                node.constraint,
                each.thought if isinstance(each, (Thinking, Mending)) else "",
                _places(run.backend, each, output),
                each.tries if isinstance(each, Mending) else 1,
            )
            for sample, (each, output) in enumerate(zip(generations, outputs, strict=True))
        ]
    )
    first = outputs[0]
    values, error = _values(generations, outputs, node, operation.value)
    told = Answer(
        values[0] if len(outputs) == 1 else values,
        first.text,
        metas[0] if len(outputs) == 1 else metadata.of_samples(metas),
        first.history,
        sum((output.usage for output in outputs[1:]), first.usage),
        error=error,
    )
    return told if node.reasoning is None else _without_reasoning(told, node.reasoning)


def _places(backend: Backend, generation: Generation, output: Output) -> tuple[Place, ...]:
    """Where the tokens stand in a constrained output of which probabilities were asked for."""
    if generation.request.constraint is None or not output.probs:
        return ()
    units = units_of(backend, generation.events_from(0), output)
    return places_of(units) if are_told_apart(units) else ()


def _values(
    generations: tuple[Generation, ...], outputs: tuple[Output, ...], node: ir.Gen, living: object
) -> tuple[list[object], BaseException | None]:
    """The values of outputs, or their texts and why one of them has none."""
    texts: list[object] = [output.text for output in outputs]
    if node.constraint is None:
        return texts, None
    for output in outputs:
        if output.finish.reason == "length":
            return texts, BudgetExceeded(
                f"{quote(node.name)} was cut at {len(output.ids):,} tokens, before it was "
                "complete: raise max_tokens."
            )
    if not isinstance(living, Living) or living.read is None:
        return texts, None
    values: list[object] = []
    for generation, output in zip(generations, outputs, strict=True):
        if isinstance(generation, Mending):
            if generation.refused is not None:
                return texts, generation.refused
            values.append(generation.value)
            continue
        try:
            values.append(living.read(output.text))
        except Exception as error:
            return texts, error
    return values, None


def first_at(handle: Handle) -> float | None:
    """When a handle told of its first token, by `time.perf_counter`; None where it did not."""
    if isinstance(handle, Samples):
        return handle.generations[0].first_at
    return handle.first_at if isinstance(handle, Generation) else None


def check_vision(backend: Backend) -> None:
    """Raise BackendError if a backend cannot read pictures."""
    info = backend.info()
    if not info.has_vision:
        raise BackendError(
            f"the backend {quote(info.model)} has no vision, so it cannot read lm.image(…): use "
            "one whose model has."
        )


def _without_reasoning(told: Answer, model_type: str) -> Answer:
    """An answer with the reasoning apart; where there is none its tokens stay as they are."""
    thought, text = reasoning.split(told.text, model_type)
    segments = told.segments if text == told.text else (Text(text),) if text else ()
    if isinstance(told.value, str):
        return replace(told, value=text, text=text, segments=segments, beside=(thought,))
    assert isinstance(told.value, list)
    pairs = [reasoning.split(sample, model_type) for sample in told.value]
    return replace(
        told,
        value=[answer for _, answer in pairs],
        text=text,
        segments=segments,
        beside=([thought for thought, _ in pairs],),
    )


def _generations(run: Run, prompt: Prompt, operation: Operation, node: ir.Gen) -> list[Generation]:
    """One generation for each sample; their requests differ in their draw keys alone."""
    seed = run.seed if node.seed is None else node.seed
    report = _report(run, node)
    params = _merged(run.gen.params, _OWN_SAMPLING(node))
    if node.constraint is not None and params.include_stop:
        raise ProgramError(
            "include_stop cannot act beside a constraint, which the stop text is no part of: "
            "leave one of them out."
        )
    first = None
    if not node.think:
        params = run.within_budget(operation.path, params)
    else:
        both = replace(params, max_tokens=params.max_tokens + node.think)
        both = run.within_budget(operation.path, both)
        params = replace(both, max_tokens=min(params.max_tokens, both.max_tokens))
        hidden = _thinking(params, both.max_tokens - params.max_tokens)
        first = Request(prompt, hidden, lora=run.gen.lora)
    tag = Tag(run.id, operation.path, run.priority, run.gen.ahead)
    living = operation.value
    begun = []
    for sample in range(node.n or run.gen.n):
        request = Request(
            prompt,
            params,
            draws.draw_key(seed, run.row_key, operation.path, sample),
            report.top_logprobs_num,
            None if report.logprob_start_len < 0 else report.logprob_start_len,
            tag,
            probs=report.return_logprob,
            constraint=node.constraint,
            on_budget="close" if node.on_budget is None else node.on_budget,  # type: ignore[arg-type]
            provenance=bool(node.provenance),
            processor=living.processor if isinstance(living, Living) else None,
            lora=run.gen.lora,
        )
        begin = partial(_generation, run.backend)
        if first is None:
            generation = begin(request)
        else:
            path = f"{operation.path}/think"
            key = draws.draw_key(seed, run.row_key, path, sample)
            thought = replace(first, draw_key=key, tag=replace(tag, op_path=path))
            generation = Thinking(run.backend, begin, thought, request)
        begun.append(_mending(run, operation, generation, request, seed, sample))
    return begun


def _mending(
    run: Run, operation: Operation, first: Generation, request: Request, seed: int, sample: int
) -> Generation:
    """A generation whose value validators see first, where they may refuse it.

    A server that runs the program has no validators: what they refuse is then an error at once.
    """
    living = operation.value
    if not isinstance(living, Living) or living.read is None or not living.tries:
        return first
    if run.send is not None:
        return first

    def draw_key(number: int) -> int:
        return draws.draw_key(seed, run.row_key, f"{operation.path}/try{number}", sample)

    most = run.budget.most
    left = None if most is None else most - run.usage.generated_tokens
    begin = partial(_generation, run.backend)
    return Mending(run.backend, begin, first, request, living.read, living.tries, draw_key, left)


def _thinking(params: SamplingParams, most: int) -> SamplingParams:
    """How the hidden text before an output is drawn: as that is, without what ends that."""
    return replace(
        params,
        max_tokens=most,
        min_tokens=0,
        ignore_eos=False,
        stop=(),
        stop_regex=(),
        stop_token_ids=(),
        include_stop=False,
        heal=False,
    )


@lru_cache(maxsize=1024)
def _merged(base: SamplingParams, own: tuple[object, ...]) -> SamplingParams:
    """The run's parameters with what a generation has of its own (None: nothing)."""
    given = {name: value for name, value in zip(SAMPLING, own, strict=True) if value is not None}
    return replace(base, **given) if given else base  # type: ignore[arg-type]


def _report(run: Run, node: ir.Gen) -> Report:
    own = _OWN_REPORTING(node)
    if own == _NOTHING:
        return run.gen.report
    asked = {name: value for name, value in zip(REPORTING, own, strict=True) if value is not None}
    return report_of(asked, run.gen.report)


def _id(run: Run, operation: Operation) -> str:
    return f"{run.id}/{operation.path}"


def _outcome(handle: Handle) -> Output | tuple[Output, ...] | Scores | BaseException:
    if isinstance(handle, (Generation, Samples)):
        return handle.outcome()
    if handle.cancelled():
        return Cancelled("the scoring of choices was cancelled.")
    return handle.exception() or handle.result()


def _chosen(operation: Operation, node: ir.Select, index: int, found: Meta, usage: Usage) -> Answer:
    text = node.choices[index]
    return Answer(operation.members[index], text, found, (Text(text),), usage)
