"""What fewer bits cost: how well the same model foretells plain text, beside float32.

    perplexity    exp of the mean surprise at the next token
    top 1         how often the likeliest token is the one of float32
    KL            of float32's distribution to the subject's, in nats a token

The text is what every Python has: the pages of its help (prose), modules of its library (code) and
their signatures (JSON), in windows of equal length, run through the runner and the pool of a
runtime: int8 weights in steps of few tokens, as decoding multiplies them, all else at once (keys
and values are read back from the pool in any case). Nothing is random; threads and machine matter
to the last digits only.
"""

from __future__ import annotations

import report

# isort: split
import inspect
import json
import math
import pydoc_data.topics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmlang.kernels.linear import FEW_ROWS
from lmlang.kernels.packed import PackedWeight
from lmlang.kernels.quant import Weight
from lmlang.runtime.attention import plan_attention
from lmlang.runtime.batch import Batch
from lmlang.runtime.cache.pool import KVPool, bytes_per_slot
from lmlang.runtime.model_runner import ModelRunner
from lmlang.runtime.models.causal import CausalLM
from lmlang.runtime.models.digits import TEXT, with_chosen_digits
from lmlang.runtime.models.llama import LlamaModel
from lmlang.runtime.models.loader import LoadedModel, load_gguf
from lmlang.runtime.sharing import RowSlots
from lmlang.runtime.tokenizer import Tokenizer

CPU = torch.device("cpu")
HEADS = ("embed", "head")
"""Weights that are int8 or not without much difference to a large model's memory."""
ALL = 1 << 20
MODULES = ("argparse", "asyncio.base_events", "dataclasses", "fractions", "tarfile", "typing")


@dataclass(slots=True)
class Subject:
    """A model in one form, and what was counted of it.

    Args:
        name: For people.
        model: The form.
        kv_dtype: Of keys and values.
        weights: Bytes of its weights.
        step: Tokens that are run at once.
    """

    name: str
    model: CausalLM
    kv_dtype: torch.dtype
    weights: int
    step: int
    surprise: dict[str, float] = field(default_factory=dict)
    divergence: float = 0.0
    agreed: int = 0
    seconds: float = 0.0


def prose() -> str:
    """The help pages, one after the other."""
    pages = pydoc_data.topics.topics
    return "\n\n".join(pages[name] for name in sorted(pages))


def code() -> str:
    """The source of some modules."""
    return "\n".join(inspect.getsource(import_module(name)) for name in MODULES)


def documents() -> str:
    """Functions of the same modules as JSON, one a line."""
    return "\n".join(
        json.dumps({"module": name, "name": key, "parameters": parameters(value),
                    "description": inspect.getdoc(value)})
        for name in MODULES
        for key, value in sorted(vars(import_module(name)).items())
        if inspect.isfunction(value) or inspect.isclass(value)
    )  # fmt: skip


def parameters(function: Callable[..., object]) -> list[dict[str, str]]:
    """What a function takes, by the names and kinds of its signature."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [{"name": each.name, "kind": each.kind.description} for each in found]


TEXTS = {"prose": prose, "code": code, "json": documents}


def windows(tokenizer: Tokenizer, kind: str, count: int, length: int) -> Iterator[list[int]]:
    """So many stretches of a text of one kind, spread over the whole of it."""
    ids = tokenizer.encode(TEXTS[kind]())
    apart = (len(ids) - length) // count
    assert apart >= length, f"{kind} has {len(ids)} tokens"
    for start in range(0, apart * count, apart):
        yield ids[start : start + length]


def logprobs(subject: Subject, ids: Sequence[int]) -> Tensor:
    """[T, vocab] of the tokens behind each of T, run in steps."""
    pool = KVPool(subject.model.kv_layers, len(ids), subject.kv_dtype, CPU)
    runner = ModelRunner(subject.model, pool)
    parts = []
    for start in range(0, len(ids), subject.step):
        end = min(start + subject.step, len(ids))
        row = RowSlots(0, end - start, np.arange(end))
        plan = plan_attention([row], CPU, runner.windows)
        tokens, places = torch.tensor(ids[start:end]), torch.arange(start, end)
        parts.append(runner.run(Batch(tokens, places, plan, torch.arange(end - start), ())))
    return torch.cat(parts).log_softmax(-1)


def count(subject: Subject, kind: str, ids: Sequence[int], exact: Tensor | None) -> Tensor:
    """Run a subject over a window and add up what differs from the exact one."""
    started = time.perf_counter()
    found = logprobs(subject, ids)[:-1]
    subject.seconds += time.perf_counter() - started
    exact = found if exact is None else exact
    surprise = -found.gather(1, torch.tensor(ids[1:])[:, None]).double().sum().item()
    subject.surprise[kind] = subject.surprise.get(kind, 0.0) + surprise
    subject.divergence += (exact.exp() * (exact - found)).sum(-1).double().sum().item()
    subject.agreed += int((exact.argmax(-1) == found.argmax(-1)).sum())
    return exact


def subjects(options: report.Options) -> tuple[list[Subject], LoadedModel]:
    """The forms of the model; float32 first."""

    def subject(
        name: str, weights: Mapping[str, Weight], kv: torch.dtype = torch.float32, step: int = ALL
    ) -> Subject:
        size = sum(weight.nbytes for weight in weights.values())
        return Subject(name, LlamaModel(loaded.shape, weights), kv, size, step)

    loaded = load_gguf(options.model)
    exact = loaded.weights
    short = load_gguf(options.model, torch.bfloat16).weights
    small = load_gguf(options.model, quantize="int8").weights
    packed = load_gguf(options.model, quantize="blocks")
    ids = Tokenizer.from_gguf(loaded.metadata).encode(TEXT)
    eight = with_chosen_digits(packed, ids).weights
    one_digit = {
        name: replace(weight, digits=torch.ones_like(weight.digits))
        if isinstance(weight, PackedWeight)
        else weight
        for name, weight in eight.items()
    }
    layers = {**small, **{name: exact[name] for name in HEADS if name in exact}}
    return [
        subject("float32", exact),
        subject("bfloat16", short, torch.bfloat16),
        subject("blocks", packed.weights),
        subject("blocks8", eight),
        subject("blocks, rows of 8 bits", one_digit),
        subject("int8 layers, float32 heads", layers, step=FEW_ROWS),
        subject("int8 weights", small, step=FEW_ROWS),
        subject("int8 keys and values", exact, torch.int8),
        subject("int8 weights, keys and values", small, torch.int8, FEW_ROWS),
    ], loaded


def result(subject: Subject, tokens: int, kinds: int) -> dict[str, Any]:
    """What a subject comes to."""
    surprise = sum(subject.surprise.values())
    return {
        "subject": subject.name,
        "weights": subject.weights,
        "kv_bytes": bytes_per_slot(subject.model.kv_layers, subject.kv_dtype),
        "perplexity": math.exp(surprise / tokens),
        "by_kind": {k: math.exp(s / tokens * kinds) for k, s in subject.surprise.items()},
        "top1": subject.agreed / tokens,
        "kl": subject.divergence / tokens,
        "seconds": round(subject.seconds, 1),
    }


def main() -> None:
    """Run, count, print."""
    options = report.options(__doc__)
    made, loaded = subjects(options)
    tokenizer = Tokenizer.from_gguf(loaded.metadata)
    each, length = (1, 40) if options.small else (16, 448)
    facts = report.setup(str(options.model))
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    tokens = 0
    for kind in TEXTS:
        for ids in windows(tokenizer, kind, each, length):
            tokens += length - 1
            exact = None
            for subject in made:
                exact = count(subject, kind, ids, exact)
    results = [result(subject, tokens, len(TEXTS)) for subject in made]
    first = results[0]["perplexity"]
    report.print_table(
        f"{tokens:,} tokens of prose, code and JSON",
        ["", "weights MB", "bytes a token", "perplexity", "change", "top 1", "KL"],
        [
            [
                str(each["subject"]), f"{each['weights'] / 1e6:,.0f}", f"{each['kv_bytes']:,}",
                f"{each['perplexity']:.3f}", f"{each['perplexity'] / first - 1:+.2%}",
                f"{each['top1']:.2%}", f"{each['kl']:.5f}",
            ]
            for each in results
        ],
    )  # fmt: skip
    report.print_json({"benchmark": "quality", "small": options.small, **facts, "tokens": tokens,
                       "results": results})  # fmt: skip


if __name__ == "__main__":
    main()
