"""From a generation or select to what a backend is asked, and from its answer to what it means.

Gen, Select + run + prompt ──start──> Request(s), ScoreRequest ──> handle
handle, when done          ──answer─> value, text, Meta, what the prompt gains, usage
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lmlang.errors import Cancelled, fresh
from lmlang.frontend import draws, ir
from lmlang.frontend import meta as metadata
from lmlang.frontend.meta import Meta
from lmlang.frontend.run import Handle, Operation, Run
from lmlang.frontend.samples import Samples
from lmlang.protocol import (
    Generation,
    Output,
    Prompt,
    Request,
    ScoreRequest,
    Scores,
    Segment,
    Tag,
    Text,
    Usage,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a generation or select came to.

    Args:
        value: The variable's value.
        text: Its raw text.
        meta: What is known of it.
        segments: What the prompt gains.
        usage: What it took.
    """

    value: object
    text: str
    meta: Meta
    segments: tuple[Segment, ...]
    usage: Usage


def start(run: Run, prompt: Prompt, operation: Operation) -> Handle | Answer:
    """Ask the run's backend; an `Answer` where nothing had to be asked."""
    node = operation.node
    if isinstance(node, ir.Gen):
        return run.backend.generate(_request(run, prompt, operation, node))
    assert isinstance(node, ir.Select)
    if len(node.choices) == 1:
        found = replace(metadata.ONLY_CHOICE, seed=run.seed)
        return _chosen(operation, node, 0, found, Usage())
    return run.backend.score(
        ScoreRequest(prompt, node.choices, bool(node.ends_turn), Tag(run.id, operation.path))
    )


def answer(run: Run, operation: Operation, handle: Handle) -> Answer:
    """What a handle that is done came to; raises the error that it ended with."""
    node, outcome = operation.node, _outcome(handle)
    if isinstance(outcome, BaseException):
        raise fresh(outcome)
    if isinstance(outcome, Scores):
        assert isinstance(node, ir.Select)
        index, found = metadata.of_scores(outcome, len(node.choices))
        return _chosen(operation, node, index, replace(found, seed=run.seed), outcome.usage)
    assert isinstance(node, ir.Gen)
    assert isinstance(outcome, Output)
    seed = run.seed if node.seed is None else node.seed
    found = metadata.of_output(outcome, seed)
    return Answer(outcome.text, outcome.text, found, outcome.history, outcome.usage)


def _request(run: Run, prompt: Prompt, operation: Operation, node: ir.Gen) -> Request:
    given = {
        "max_tokens": node.max_tokens,
        "temperature": node.temperature,
        "top_p": node.top_p,
        "top_k": node.top_k,
        "min_p": node.min_p,
        "stop": node.stop,
        "ignore_eos": node.ignore_eos,
    }
    given = {name: value for name, value in given.items() if value is not None}
    seed = run.seed if node.seed is None else node.seed
    return Request(
        prompt=prompt,
        params=replace(run.params, **given) if given else run.params,  # type: ignore[arg-type]
        draw_key=draws.draw_key(seed, run.row_key, operation.path),
        tag=Tag(run.id, operation.path),
    )


def _outcome(handle: Handle) -> Output | tuple[Output, ...] | Scores | BaseException:
    if isinstance(handle, (Generation, Samples)):
        return handle.outcome()
    if handle.cancelled():
        return Cancelled("the scoring of choices was cancelled.")
    return handle.exception() or handle.result()


def _chosen(operation: Operation, node: ir.Select, index: int, found: Meta, usage: Usage) -> Answer:
    text = node.choices[index]
    return Answer(operation.members[index], text, found, (Text(text),), usage)
