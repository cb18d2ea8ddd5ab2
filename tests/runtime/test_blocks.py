"""Models in blocks: as good as the file's own weights, chosen where they serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType

from lmlang.errors import ModelError, ProgramError
from lmlang.kernels import forms, native
from lmlang.kernels.packed import PackedWeight
from lmlang.kernels.quant import Weight
from lmlang.protocol import Generation, Prompt, Request, SamplingParams, Text
from lmlang.runtime.local import Runtime
from lmlang.runtime.models.digits import SHARE, with_chosen_digits
from lmlang.runtime.models.fetch import find_embedded_model
from lmlang.runtime.models.llama import LlamaModel
from lmlang.runtime.models.loader import load_gguf
from lmlang.runtime.models.opened import OpenedModel, open_model
from tests.runtime import oracle
from tests.runtime.adapters import write_lora
from tests.tiny import tiny_shape, write_tiny_gguf

needs_library = pytest.mark.skipif(not native.available(), reason=native.description())
TEXT = """Photosynthesis is how plants make sugar from light. It happens in the leaves, where a
green pigment takes in the light of the sun. def area(w: float, h: float) -> float: return w * h
{"name": "Ada", "born": 1815, "died": 1852, "known": ["notes", "engine"]} Die Sonne geht im Osten
auf und im Westen unter, sagt man, doch dreht sich in Wahrheit die Erde unter ihr hinweg."""


@cache
def opened(quantize: str) -> OpenedModel:
    return open_model(None, dtype="auto", quantize=quantize)


@needs_library
def test_blocks_compute_what_the_numbers_of_the_file_give() -> None:
    ids = opened("blocks").tokenizer.encode(TEXT)
    exact, found = (oracle.logits(opened(how).model, ids) for how in ("none", "blocks"))
    far = (exact.log_softmax(-1) - found.log_softmax(-1)).abs()
    divergence = (exact.softmax(-1) * (exact.log_softmax(-1) - found.log_softmax(-1))).sum(-1)
    assert (exact.argmax(-1) == found.argmax(-1)).float().mean() >= 0.99
    assert divergence.mean() < 1e-5
    assert 1e-5 < far.max() < 0.02  # it is not the same computation


@needs_library
def test_with_a_second_digit_where_it_counts_blocks_are_as_near_to_float32_as_bfloat16() -> None:
    ids = opened("blocks8").tokenizer.encode(TEXT)
    exact = oracle.logits(opened("none").model, ids).log_softmax(-1)

    def divergence(model: OpenedModel) -> float:
        found = oracle.logits(model.model, ids).float().log_softmax(-1)
        return (exact.exp() * (exact - found)).sum(-1).mean().item()

    others = with_digits(opened("blocks8"), lambda digits: 3 - digits)
    found = divergence(opened("blocks8"))
    assert found < 1.25 * divergence(open_model(None, dtype="bfloat16"))
    assert divergence(others) > 1.5 * found


def with_digits(model: OpenedModel, change: Callable[[torch.Tensor], torch.Tensor]) -> OpenedModel:
    assert isinstance(model.model, LlamaModel)
    other = copy(model.model)
    other.head = changed(other.head, change)
    other.products = [
        {name: changed(weight, change) for name, weight in layer.items()}
        for layer in other.products
    ]
    return replace(model, model=other)


def changed(weight: Weight, change: Callable[[torch.Tensor], torch.Tensor]) -> PackedWeight:
    assert isinstance(weight, PackedWeight)
    return replace(weight, digits=change(weight.digits))


@needs_library
def test_the_digits_are_those_of_the_largest_columns(tmp_path: Path) -> None:
    shape = tiny_shape()
    loaded = load_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", shape), quantize="blocks")
    found = with_chosen_digits(loaded, range(shape.vocab + 5))
    for name, weight in found.weights.items():
        if isinstance(weight, PackedWeight):
            wanted = max(1, round(len(weight.digits) * SHARE))
            assert set(weight.digits.tolist()) <= {1, 2}
            assert int((weight.digits == 2).sum()) == wanted, name


@needs_library
def test_digits_that_would_lead_too_far_are_not_left_out(tmp_path: Path) -> None:
    loaded = load_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", tiny_shape()), quantize="blocks")
    assert with_chosen_digits(loaded, range(200), 0.0) is loaded
    assert with_chosen_digits(loaded, range(200), 1.0) is not loaded


@needs_library
def test_the_embedded_model_has_chosen_digits_by_itself() -> None:
    def digits(model: OpenedModel) -> list[int]:
        assert isinstance(model.model, LlamaModel)
        weight = model.model.products[7]["down"]
        assert isinstance(weight, PackedWeight)
        return weight.digits.tolist()

    kept = [opened(name).weights for name in ("none", "blocks", "blocks8")]
    assert kept == ["float32", "blocks", "blocks8"]
    assert open_model(None, dtype="auto").weights == "blocks8"
    chosen = digits(open_model(None, dtype="auto"))
    assert chosen == digits(opened("blocks8"))
    assert set(chosen) == {1, 2}
    assert set(digits(opened("blocks"))) == {2}


@needs_library
def test_the_numbers_are_those_of_the_file() -> None:
    path = find_embedded_model()
    plain, packed = load_gguf(path).weights, load_gguf(path, quantize="blocks").weights
    matrices = [name for name, weight in plain.items() if len(weight.shape) == 2]
    for name in ("embed", "layers.7.qkv", "layers.29.down"):
        weight = packed[name]
        assert isinstance(weight, PackedWeight)
        assert weight.bits == (8 if name == "embed" else 4)
        assert torch.equal(weight.unpacked(), plain[name])  # type: ignore[arg-type]
    assert sum(packed[name].nbytes for name in matrices) < 0.2 * sum(
        plain[name].nbytes for name in matrices
    )


@pytest.fixture
def fresh_choice() -> Iterator[None]:
    forms._chosen.cache_clear()
    yield
    forms._chosen.cache_clear()


@pytest.mark.usefixtures("fresh_choice")
def test_auto_is_blocks_where_they_serve_and_exact_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_in_blocks(**how: str) -> bool:
        model = open_model(None, **how).model
        assert isinstance(model, LlamaModel)
        return isinstance(model.head, PackedWeight)

    assert is_in_blocks(dtype="auto") == native.available()
    assert not is_in_blocks(dtype="auto", quantize="none")
    assert not is_in_blocks(dtype="float32")
    assert not is_in_blocks(dtype="bfloat16")
    plain = open_model(write_tiny_gguf(tmp_path / "plain.gguf", tiny_shape()), dtype="auto").model
    assert isinstance(plain, LlamaModel)
    assert not isinstance(plain.head, PackedWeight)
    forms._chosen.cache_clear()
    monkeypatch.setenv("LMLANG_KERNELS", "reference")
    assert not is_in_blocks(dtype="auto")


def outputs(runtime: Runtime, prompts: list[str]) -> list[Generation]:
    params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    return [runtime.generate(Request(Prompt.of(Text(prompt)), params)) for prompt in prompts]


@needs_library
def test_a_deterministic_runtime_has_the_same_bits_alone_and_in_a_batch() -> None:
    prompts = ["The sea is", "The sea is wide and", "Once there was a king", "1 + 1 ="]
    with Runtime(kv_tokens=2_000, deterministic=True) as runtime:
        together = [g.result() for g in outputs(runtime, prompts)]
        runtime.flush_cache()
        alone = [outputs(runtime, [prompt])[0].result() for prompt in prompts]
    assert [(g.ids, g.logprobs) for g in together] == [(g.ids, g.logprobs) for g in alone]


@needs_library
def test_none_is_the_exact_path() -> None:
    prompts = ["The capital of France is"]
    with (
        Runtime(kv_tokens=500, quantize=None) as exact,
        Runtime(kv_tokens=500, quantize="blocks") as quick,
    ):
        one, other = (outputs(rt, prompts)[0].result() for rt in (exact, quick))
    assert one.ids == other.ids
    assert one.logprobs == pytest.approx(other.logprobs, abs=0.01)
    assert one.logprobs != other.logprobs


def test_what_cannot_be_in_blocks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProgramError, match="for a CPU and dtype='float32', and this is cpu and bf"):
        open_model(None, dtype="bfloat16", quantize="blocks")
    monkeypatch.setattr(native, "_loaded", lambda: (None, "it was left out"))
    with pytest.raises(ModelError, match="the C kernels cannot be used: it was left out"):
        open_model(None, quantize="blocks")


def test_the_default_dtype_of_the_process_changes_nothing(tmp_path: Path) -> None:
    """Whoever loads a model with transformers sets it for all threads meanwhile."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf", kind=GGMLQuantizationType.Q8_0)
    adapter = write_lora(tmp_path / "one", {"model.layers.0.self_attn.q_proj": (32, 32)}).path

    def answers() -> list[tuple[tuple[int, ...], tuple[float, ...] | None]]:
        found = []
        hows = [{"quantize": "none"}, {"quantize": "int8"}, {"dtype": "bfloat16"}]
        for how in hows + [{"quantize": "blocks"}] * native.available():
            with Runtime(path, **how, kv_tokens=256, lora={"one": adapter}) as runtime:
                for params in ({"temperature": 0.0}, {"temperature": 1.0, "top_p": 0.9}):
                    for lora in (None, "one"):
                        sampling = SamplingParams(max_tokens=8, ignore_eos=True, **params)
                        asked = Request(Prompt.of(Text("hello")), sampling, lora=lora)
                        output = runtime.generate(asked).result(timeout=60)
                        found.append((output.ids, output.logprobs))
        return found

    wanted = answers()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert answers() == wanted
    finally:
        torch.set_default_dtype(torch.float32)
