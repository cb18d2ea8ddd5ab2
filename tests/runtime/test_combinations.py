"""Whatever parameters of a Runtime are given together: refused by name, or the plain answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmlang.errors import ModelError, ProgramError
from lmlang.kernels import native
from lmlang.protocol import Generation, Prompt, Request, SamplingParams, Text
from lmlang.runtime.local import Runtime
from tests.models.folders import save
from tests.runtime.adapters import write_lora
from tests.tiny import tiny_shape, write_tiny_gguf

CONTEXT, NEW = 64, 9
TEXTS = (
    *("hello world and the user", "hello world and the other", "in the ", "hello world"),
    "ab" * ((CONTEXT - NEW) // 2),  # the last token is the last that fits, whatever is drafted
)
BOUNDS = {None: 0.02, "bfloat16": 0.25, "float16": 0.03}
"""Of log-probabilities, by the dtype of the weights; a last bit may move a number to int8."""
INT8_BOUND = 0.25
"""Few rows of int8 weights are rounded to bfloat16, in chunks that differ; see `kernels.linear`."""


@dataclass(frozen=True)
class Model:
    path: Path
    adapter: Path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Model]]:
    root = tmp_path_factory.mktemp("models")
    q_proj = {"model.layers.0.self_attn.q_proj": (32, 32)}
    shape = tiny_shape(max_positions=CONTEXT)
    write_tiny_gguf(root / "tiny.gguf", shape, kind=GGMLQuantizationType.Q8_0)
    write_lora(root / "lora" / "tiny.gguf", q_proj)
    for kind, sizes in (("gpt2", {"n_positions": CONTEXT}), ("qwen3", {})):
        model = save(root / kind, kind, **(sizes or {"max_position_embeddings": CONTEXT}))
        name = "transformer.h.0.attn.c_attn" if kind == "gpt2" else next(iter(q_proj))
        layer = model.get_submodule(name)
        turned = layer.weight.T if kind == "gpt2" else layer.weight
        write_lora(root / "lora" / kind, {name: tuple(reversed(turned.shape))})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMLANG_CACHE", str(root / "cache"))
        names = ("tiny.gguf", "gpt2", "qwen3")
        yield {name: Model(root / name, root / "lora" / name) for name in names}


def asked(runtime: Runtime, lora: str | None) -> list[Generation]:
    """One of each text, every other one with the adapter."""
    params = SamplingParams(max_tokens=NEW, temperature=0.0, ignore_eos=True)
    return [
        runtime.generate(Request(Prompt.of(Text(text)), params, lora=None if i % 2 else lora))
        for i, text in enumerate(TEXTS)
    ]


def answers(runtime: Runtime, lora: str | None) -> list[tuple[Any, Any]]:
    outputs = [generation.result(timeout=60) for generation in asked(runtime, lora)]
    runtime.check()
    return [(output.ids, output.logprobs) for output in outputs]


@cache
def plain(path: Path, adapter: Path, lora: str | None, items: Any) -> list[tuple[Any, Any]]:
    """The same numbers without all that should change nothing."""
    loras = {} if lora is None else {"lora": {lora: adapter}}
    with Runtime(path, kv_tokens=600, radix_cache=False, **dict(items), **loras) as runtime:
        return answers(runtime, lora)


BLOCKS = ("blocks", "blocks8")


def refusal(model: str, given: Mapping[str, Any], deterministic: bool) -> str | None:
    """What the message of a refusal says, for those that there must be."""
    quantize, dtype, how = (given[name] for name in ("quantize", "dtype", "implementation"))
    computed = "transformers" if model == "gpt2" or how == "transformers" else "native"
    if quantize in BLOCKS and dtype is not None:
        return f"quantize='{quantize}' is for a CPU and dtype='float32'"
    if quantize in BLOCKS and not native.available():
        return "the C kernels cannot be used"
    if model == "tiny.gguf" and how == "transformers":
        return "which runs natively"
    if model == "gpt2" and how == "native":
        return "of the type 'gpt2', and natively only"
    if quantize in BLOCKS and computed == "transformers":
        return f"quantize='{quantize}' is for models that run natively"
    if deterministic and computed == "transformers":
        return "is computed by transformers"
    return None


@settings(max_examples=30, deadline=None, derandomize=True)
@example("tiny.gguf", "blocks", "int8", None, None, "one", True, "ngram", 1e-4)
@example("gpt2", "int8", "int8", None, None, "one", False, "ngram", 1e-4)
@given(
    st.sampled_from(["tiny.gguf", "gpt2", "qwen3"]),
    st.sampled_from(["auto", None, "int8", *BLOCKS]),
    st.sampled_from([None, "int8"]),
    st.sampled_from([None, None, "bfloat16", "float16"]),
    st.sampled_from([None, None, "native", "transformers"]),
    st.sampled_from([None, "one"]),
    st.booleans(),
    st.sampled_from([None, "ngram"]),
    st.sampled_from([None, 1e-4]),
)
def test_parameters_that_go_together_give_the_plain_answers(
    models, model, quantize, kv_dtype, dtype, implementation, lora, exact, speculative, host
):
    numbers = {
        "quantize": quantize, "kv_dtype": kv_dtype, "dtype": dtype,
        "implementation": implementation,
    }  # fmt: skip
    path, adapter = models[model].path, models[model].adapter
    others = {"deterministic": exact, "speculative": speculative, "host_kv_gb": host}
    others |= {} if lora is None else {"lora": {lora: adapter}}
    why = refusal(model, numbers, exact)
    if why is not None:
        with pytest.raises((ModelError, ProgramError), match=why):
            Runtime(path, kv_tokens=80, **numbers, **others)
        return
    bound = max(BOUNDS[dtype], INT8_BOUND if quantize == "int8" else 0)
    wanted = plain(path, adapter, lora, tuple(numbers.items()))
    with Runtime(path, kv_tokens=80, max_batch_tokens=7, **numbers, **others) as runtime:
        for _ in range(2):
            for (ids, logprobs), (alike, exactly) in zip(
                answers(runtime, lora), wanted, strict=True
            ):
                same = next((i for i in range(NEW) if ids[i] != alike[i]), NEW)
                if (quantize, kv_dtype, dtype) == (None, None, None):
                    assert same == NEW
                upto = min(same + 1, NEW)  # of two that are as likely, either may be taken
                assert logprobs[:upto] == pytest.approx(exactly[:upto], abs=bound)
            for i, generation in enumerate(asked(runtime, lora)):
                if i % 2:
                    generation.cancel()
            runtime.flush_cache()
        runtime.check()
