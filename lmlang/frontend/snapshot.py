"""A run's records as the run log that a reader gets: all that costs is done here, when asked."""

from __future__ import annotations

from lmlang.errors import LMLangError
from lmlang.frontend import draws, ir
from lmlang.frontend.meta import Meta
from lmlang.frontend.record import Record
from lmlang.frontend.run import Run
from lmlang.frontend.runlog import (
    Choice,
    Failure,
    Kind,
    LoggedOperation,
    RunLog,
    Sample,
    Status,
)
from lmlang.frontend.samples import Samples
from lmlang.protocol import Generation, TokenAware, Usage

LONGEST_MESSAGE = 2_048
"""Characters of an error's message: those of other libraries have no limit of their own."""

_KINDS: dict[type[ir.Node], Kind] = {
    ir.Gen: "gen",
    ir.Select: "select",
    ir.Fork: "fork",
    ir.Join: "join",
    ir.SetVar: "set",
    ir.Image: "image",
    ir.EndScope: "scope",
    ir.Call: "call",
}


def run_log(run: Run) -> RunLog:
    """The log of a run as it stands now."""
    if run.kept_log is not None:
        return run.kept_log
    with run.lock:
        ended, stopped, records = run.ended, run.stopped, list(run.records)
    recording = run.recording.program()  # last: it has the nodes of all records
    operations = tuple([_operation(run, record) for record in records])
    return RunLog(
        program=_text(run.name),
        run_id=run.id,
        model=_model(run),
        seed=run.seed,
        row_key=run.row_key.hex(),
        params=run.gen.params,
        n=run.gen.n,
        lora=run.gen.lora,
        max_program_tokens=run.budget.most,
        began=run.began,
        seconds=_since(run, stopped),
        error=None if ended is None else _failure(ended),
        operations=operations,
        recording=recording,
        spelling=_spelling(run, operations, records),
    )


def _model(run: Run) -> str:
    # The log of a run that failed is wanted most where the backend is what failed.
    try:
        return _text(str(run.backend.info().model))
    except Exception:
        return ""


def _operation(run: Run, record: Record) -> LoggedOperation:
    node, finished = record.node, record.finished  # what it holds besides is now final, or unused
    meta, text, usage = record.meta, record.text, record.usage
    if finished is None:
        meta, text, usage = None, _so_far(record), None
    if isinstance(node, ir.SetVar):
        text = _datum(node.value)
    return LoggedOperation(
        kind=_KINDS[type(node)],
        status=_status(run, record, finished),
        path=record.path,
        state=record.prefix[:-1],
        branch=record.branch,
        source=_text(record.source),
        name=_name(node),
        children=_children(node),
        usage=usage or Usage(),
        samples=_samples(node, meta, record),
        choices=_choices(node, meta),
        draw_keys=_draw_keys(run, record),
        first_draw=0,
        text=None if text is None else _text(text),
        error=None if record.error is None else _failure(record.error),
        queued=record.queued - run.started,
        submitted=_since(run, record.submitted),
        first_token=_since(run, record.first),
        finished=_since(run, finished),
        made=ir.made_by(node)[0],
    )


def _status(run: Run, record: Record, finished: float | None) -> Status:
    if finished is not None:
        return "done" if record.error is None else "failed"
    if record.abandoned or run.ended is not None:
        return "skipped" if record.submitted is None else "cancelled"
    return "queued" if record.submitted is None else "running"


def _since(run: Run, clock: float | None) -> float | None:
    return None if clock is None else clock - run.started


def _name(node: ir.Node) -> str | None:
    match node:
        case ir.Gen() | ir.Select() | ir.SetVar() | ir.EndScope():
            return _text(node.name)
        case ir.Call():
            return _text(node.callee)
        case ir.Image():
            return _text(node.image)
    return None


def _children(node: ir.Node) -> int:
    match node:
        case ir.Fork():
            return len(node.made)
        case ir.Join():
            return len(node.children)
    return 0


def _samples(node: ir.Node, meta: Meta | None, record: Record) -> tuple[Sample, ...]:
    if meta is None or not isinstance(node, ir.Gen):
        return ()
    samples = meta.samples or (meta,)
    texts = [record.text] if not meta.samples else [each.text for each in samples]
    if isinstance(node.reasoning, str) and isinstance(record.value, list):
        texts = record.value
    return tuple(
        [
            Sample(
                text=_text(str(text)),
                tokens=tuple(map(int, each.tokens)),
                logprobs=tuple(map(float, each.logprobs)),
                finish=each.finish,
                stop=_text(each.stop) if isinstance(each.stop, str) else each.stop,
                probs=tuple(map(float, each.probs)),
                top_logprobs=each.top_logprobs,
                top_probs=each.top_probs,
                provenance=each.provenance,
                thought=_text(each.thought),
                tries=each.tries,
            )
            for each, text in zip(samples, texts, strict=True)
        ]
    )


def _so_far(record: Record) -> str | None:
    """What a generation that is under way has said."""
    handle = record.handle
    if isinstance(handle, Samples):
        handle = handle.generations[0]
    if not isinstance(handle, Generation):
        return None
    return "".join([event.text for event in handle.events_from(0)])


def _spelling(
    run: Run, operations: tuple[LoggedOperation, ...], records: list[Record]
) -> tuple[tuple[int, str], ...]:
    """What the tokens of a log read like, where that costs little or was asked for."""
    known, backend = isinstance(run.backend, TokenAware), run.backend
    ids: set[int] = set()
    for each, record in zip(operations, records, strict=True):
        meta = record.meta
        if known or (meta is not None and meta.report.return_text_in_logprobs):
            ids.update(*[_ids(sample) for sample in each.samples])

    def spelled(token: int) -> str:
        if not isinstance(backend, TokenAware):
            return backend.decode([token])
        data = backend.token_bytes(token)
        try:
            return data.decode() or backend.token_name(token)
        except UnicodeDecodeError:  # a part of a character
            return "".join([f"\\x{byte:02x}" for byte in data])

    try:
        return tuple([(token, _text(spelled(token))) for token in sorted(ids)])
    except Exception:  # a log is wanted most where the backend is what failed
        return ()


def _ids(sample: Sample) -> set[int]:
    """All tokens that a sample tells of."""
    tops = [token for top in (*sample.top_logprobs, *sample.top_probs) for token, _ in top]
    return {*sample.tokens, *tops, *(each.best for each in sample.provenance)}


def _choices(node: ir.Node, meta: Meta | None) -> tuple[Choice, ...]:
    if meta is None or not isinstance(node, ir.Select) or not isinstance(meta.logprobs, dict):
        return ()
    found = zip(node.choices, meta.logprobs.values(), strict=True)
    return tuple([Choice(_text(text), float(logprob)) for text, logprob in found])


def _draw_keys(run: Run, record: Record) -> tuple[int, ...]:
    """The keys of the noise of an operation's draws; at temperature 0 it draws nothing."""
    node, seed = record.node, run.seed
    if record.submitted is None:
        return ()
    if isinstance(node, ir.Select):
        drawn = int(bool(node.temperature) and len(node.choices) > 1)
    elif isinstance(node, ir.Gen):
        own = node.temperature
        temperature = run.gen.params.temperature if own is None else own
        drawn = (node.n or run.gen.n) if temperature > 0 else 0
        seed = seed if node.seed is None else node.seed
    else:
        drawn = 0
    return tuple([draws.draw_key(seed, run.row_key, record.path, i) for i in range(drawn)])


def _datum(value: ir.Datum) -> str:
    if isinstance(value, ir.Opaque):
        return f"<{value.kind}>"
    return f"{value:#x}" if _is_huge(value) else str(value)


def _is_huge(value: ir.Datum) -> bool:
    """Whether it is an integer of which decimal digits would cost too much, or are refused."""
    return isinstance(value, int) and value.bit_length() > 63


def _failure(error: BaseException) -> Failure:
    # Without the context of our own errors, whose parts the log has in places of their own.
    try:
        message = Exception.__str__(error) if isinstance(error, LMLangError) else str(error)
    except Exception:
        message = "(its message cannot be read)"
    return Failure(_text(type(error).__name__), _text(message[:LONGEST_MESSAGE]))


def _text(text: str) -> str:
    """A text of which JSON can hold every character: two that are one surrogate pair become one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return text
