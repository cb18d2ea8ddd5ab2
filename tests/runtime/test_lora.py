"""LoRA adapters on native models: the same as weights they are merged into, side by side."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lmlang as lm
from lmlang.errors import LMLangError, ModelError, ProgramError, ProgramTypeError
from lmlang.kernels.quant import quantise_weight
from lmlang.protocol import Generation, Prompt, Request, SamplingParams, ScoreRequest, Text
from lmlang.runtime.attention import plan_attention
from lmlang.runtime.batch import Batch
from lmlang.runtime.cache.pool import KVPool
from lmlang.runtime.exact_attention import plan_exact
from lmlang.runtime.intake import cache_namespace
from lmlang.runtime.local import Runtime
from lmlang.runtime.model_runner import ModelRunner
from lmlang.runtime.models import lora as reading
from lmlang.runtime.models.adapters import AdapterRows
from lmlang.runtime.models.causal import Inputs
from lmlang.runtime.models.llama import LlamaModel
from lmlang.runtime.models.lora import read_lora
from lmlang.runtime.shape import LayerKind, ModelShape, Rope
from lmlang.runtime.sharing import RowSlots
from lmlang.testing import ScriptedBackend
from tests.reference import causal_attention
from tests.runtime import oracle
from tests.runtime.adapters import Made, write_lora
from tests.runtime.test_cuda_graphs import SLOTS, graphs_of
from tests.runtime.test_pressure import Stepped
from tests.tiny import tiny_shape, tiny_template, tiny_tokenizer, tiny_weights, write_tiny_gguf

SHAPE = tiny_shape()
TOKENIZER, TEMPLATE = tiny_tokenizer(), tiny_template()
MODEL = LlamaModel(SHAPE, tiny_weights(SHAPE))
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "biases": {"qkv_bias": True, "out_bias": True, "kv_heads": 4},
    "gemma": {
        "kinds": (LayerKind(40), LayerKind(0, Rope(500.0))), "activation": "gelu_tanh",
        "qk_norm": True, "post_norms": True, "embed_scale": 3.0, "head_dim": 16,
    },
}  # fmt: skip


def modules_of(shape: ModelShape) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of every linear layer, by the names that transformers has."""
    hidden, q, kv = shape.hidden, shape.query_width, shape.kv_width
    sizes = {
        "self_attn.q_proj": (hidden, q), "self_attn.k_proj": (hidden, kv),
        "self_attn.v_proj": (hidden, kv), "self_attn.o_proj": (q, hidden),
        "mlp.gate_proj": (hidden, shape.intermediate), "mlp.up_proj": (hidden, shape.intermediate),
        "mlp.down_proj": (shape.intermediate, hidden),
    }  # fmt: skip
    return {
        f"model.layers.{layer}.{name}": size
        for layer in range(shape.layers)
        for name, size in sizes.items()
    }


def merged(shape: ModelShape, weights: dict[str, torch.Tensor], made: Made) -> LlamaModel:
    """The model with an adapter added to its weights."""
    weights = {name: weight.clone() for name, weight in weights.items()}
    for name, delta in made.added.items():
        _, _, layer, _, module = name.split(".")
        q, kv, gate = shape.query_width, shape.kv_width, shape.intermediate
        product, row = {
            "q_proj": ("qkv", 0), "k_proj": ("qkv", q), "v_proj": ("qkv", q + kv),
            "o_proj": ("out", 0), "gate_proj": ("gate_up", 0), "up_proj": ("gate_up", gate),
            "down_proj": ("down", 0),
        }[module]  # fmt: skip
        weights[f"layers.{layer}.{product}"][row : row + len(delta)] += delta
    return LlamaModel(shape, weights)


@torch.inference_mode()
def logits(model: LlamaModel, ids: list[int], folder: Path | None = None) -> torch.Tensor:
    every = torch.arange(len(ids))
    adapters = ()
    if folder is not None:
        adapter = model.adapter(read_lora("one", folder), "tiny")
        adapters = (AdapterRows(adapter, slice(0, len(ids))),)
    inputs = Inputs(torch.tensor(ids), every, every, adapters)
    return model.forward(inputs, causal_attention())


def near(ours: torch.Tensor, wanted: torch.Tensor, limit: float = 1e-4) -> None:
    assert (ours - wanted).abs().max() <= limit * wanted.abs().max()


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 99), st.sampled_from(list(SHAPES)), st.sampled_from([1, 3, 16]),
    st.sampled_from([1.0, 16.0]), st.booleans(), st.integers(1, 14),
)  # fmt: skip
def test_an_adapter_is_what_its_product_adds_to_the_weights(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    family: str,
    rank: int,
    alpha: float,
    rslora: bool,
    many: int,
) -> None:
    shape = tiny_shape(**SHAPES[family])
    weights = tiny_weights(shape, seed)
    draw = np.random.default_rng(seed)
    modules = modules_of(shape)
    chosen = {name: modules[name] for name in draw.permutation(list(modules))[:many]}
    folder = tmp_path_factory.mktemp("lora")
    made = write_lora(folder, chosen, seed=seed, rank=rank, alpha=alpha, use_rslora=rslora)
    model, ids = LlamaModel(shape, weights), draw.integers(3, 280, 40).tolist()
    wanted = logits(merged(shape, weights, made), ids)
    near(logits(model, ids, folder), wanted)
    assert (logits(model, ids) - wanted).abs().max() > 1e-3 * wanted.abs().max()


def test_an_adapter_takes_the_dtype_of_its_model(tmp_path: Path) -> None:
    made = write_lora(tmp_path, modules_of(SHAPE))
    half = {name: weight.bfloat16() for name, weight in tiny_weights(SHAPE).items()}
    ids = list(range(40, 70))
    exact = logits(merged(SHAPE, tiny_weights(SHAPE), made), ids)
    near(logits(LlamaModel(SHAPE, half), ids, tmp_path), exact, 0.1)


def test_an_adapter_acts_beside_quantised_weights(tmp_path: Path) -> None:
    made = write_lora(tmp_path, modules_of(SHAPE))
    products = {name for name in tiny_weights(SHAPE) if name.endswith(("qkv", "out", "up", "down"))}
    exact = tiny_weights(SHAPE)
    whole = {n: quantise_weight(w) if n in products else w for n, w in exact.items()}
    rounded = {n: w if isinstance(w, torch.Tensor) else w.widened() for n, w in whole.items()}
    ids = list(range(40, 80))  # so many rows that the weights are widened, and nothing is rounded
    near(logits(LlamaModel(SHAPE, whole), ids, tmp_path), logits(merged(SHAPE, rounded, made), ids))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    root = tmp_path_factory.mktemp("adapters")
    some = {name: size for name, size in modules_of(SHAPE).items() if "q_proj" in name}
    return {
        "all": write_lora(root / "all", modules_of(SHAPE), seed=1),
        "queries": write_lora(root / "queries", some, seed=2, rank=2, strength=3),
    }


@pytest.fixture(scope="module")
def models(folders: dict[str, Made]) -> dict[str | None, LlamaModel]:
    weights = tiny_weights(SHAPE)
    return {None: MODEL} | {n: merged(SHAPE, weights, made) for n, made in folders.items()}


def runtime(folders: dict[str, Made], **options: Any) -> Runtime:
    lora = {name: made.path for name, made in folders.items()}
    return Runtime.over(MODEL, TOKENIZER, TEMPLATE, lora=lora, **({"kv_tokens": 4_000} | options))


@pytest.fixture(params=[{}, {"max_batch_tokens": 7}, {"speculative": "ngram"}], ids=str)
def rt(request: pytest.FixtureRequest, folders: dict[str, Made]) -> Iterator[Runtime]:
    with runtime(folders, **request.param) as rt:
        yield rt
        rt.check()


def asked(text: str, lora: str | None, **params: Any) -> Request:
    return Request(Prompt.of(Text(text)), SamplingParams(**params), 7, lora=lora)


def test_rows_of_one_batch_have_different_adapters_or_none(
    rt: Runtime, models: dict[str | None, LlamaModel]
) -> None:
    prefix = "hello world and the user " * 3
    requests = [
        asked(prefix + str(n) * (n % 3), lora, max_tokens=8, temperature=0, ignore_eos=True)
        for n in range(3)
        for lora in ("all", None, "queries", "all")
    ]
    running: list[Generation] = [rt.generate(one) for one in requests]
    for one, generation in zip(requests, running, strict=True):
        prompt = TOKENIZER.encode("".join(s.text for s in one.prompt.segments()))  # type: ignore[union-attr]
        output = generation.result(timeout=60)
        model = models[one.lora]
        wanted = oracle.generated(model, prompt, one.params, 7, TOKENIZER.stop_ids)
        assert list(output.ids) == wanted
        scores = oracle.logits(model, [*prompt, *wanted])[len(prompt) - 1 : -1].log_softmax(-1)
        told = scores.gather(-1, torch.tensor(wanted)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(output.logprobs), told, rtol=1e-4, atol=1e-4)


def test_choices_are_scored_with_the_adapter(
    rt: Runtime, models: dict[str | None, LlamaModel]
) -> None:
    prompt, choices = "the user and the ", ("world", "hello", "worlds")
    asking = [ScoreRequest(Prompt.of(Text(prompt)), choices, lora=lora) for lora in models]
    for one, future in [(one, rt.score(one)) for one in asking]:
        for choice, score in zip(choices, future.result(timeout=60).choices, strict=True):
            ids = TOKENIZER.encode(prompt + choice)
            start = len(ids) - len(score.ids)
            assert tuple(ids[start:]) == score.ids
            wanted = oracle.choice_logprobs(models[one.lora], ids[:start], ids[start:])
            np.testing.assert_allclose(score.logprobs, wanted, rtol=1e-4, atol=1e-4)


def test_the_tree_never_shares_across_adapters(folders: dict[str, Made]) -> None:
    with runtime(folders) as rt:

        def cached(lora: str | None, namespace: str = "") -> int:
            one = dataclasses.replace(asked("hello world and the user", lora, max_tokens=2))
            one = dataclasses.replace(one, namespace=namespace)
            return rt.generate(one).result(timeout=60).usage.cached_tokens

        assert [cached(lora) for lora in (None, "all", "queries")] == [0, 0, 0]
        assert cached(None, cache_namespace("", "all")) == 0  # which is a tenant's name like any
        assert cached("all", "tenant") == 0
        length = len(TOKENIZER.encode("hello world and the user")) - 1
        assert [cached(lora) for lora in (None, "all", "queries")] == [length] * 3
        assert cached("all", "tenant") == length
        scoring = ScoreRequest(Prompt.of(Text("hello world and the user")), ("a", "b"), lora="all")
        assert rt.score(scoring).result(timeout=60).usage.cached_tokens > 0
        assert "namespace \"lora 'all' \"" in str(rt.tree())
        rt.check()


names = st.none() | st.sampled_from(["all", "a b", "lora", "'", "lora 'all'", "None"])
spaces = st.sampled_from(["", "x", "lora ", "lora 'all' ", "lora None lora 'all' ", "' ", "None"])


@given(names, spaces, names, spaces)
def test_no_two_pairs_have_the_same_part_of_the_cache(
    lora: str | None, space: str, other: str | None, other_space: str
) -> None:
    same = cache_namespace(space, lora) == cache_namespace(other_space, other)
    assert same == ((space, lora) == (other_space, other))


def test_a_rows_bits_do_not_depend_on_the_adapters_beside_it(folders: dict[str, Made]) -> None:
    adapters = {n: MODEL.adapter(read_lora(n, made.path), "tiny") for n, made in folders.items()}
    ids = np.random.default_rng(0).integers(3, 280, 24)

    def run(lora: str | None, beside: list[tuple[str | None, int]]) -> torch.Tensor:
        """The last logits of the text, with others of these lengths before it."""
        pool = KVPool(MODEL.kv_layers, 600, MODEL.dtype, MODEL.device)
        runner = ModelRunner(MODEL, pool, adapters=adapters, deterministic=True)
        rows, texts, at, of = [], [], 0, []
        for name, count in [*beside, (lora, len(ids))]:
            rows.append(RowSlots(at, count, np.arange(at, at + count)))
            texts.append(ids[:count])
            if name is not None:
                of.append((name, torch.arange(at, at + count)))
            at += count
        grouped = tuple(
            (name, torch.cat([places for n, places in of if n == name])) for name in dict(of)
        )
        positions = torch.cat([torch.arange(row.count) for row in rows])
        plan = plan_exact(rows, MODEL.device, runner.windows)
        last = torch.tensor([at - 1])
        tokens = torch.from_numpy(np.concatenate(texts))
        return runner.run(Batch(tokens, positions, plan, last, (), adapters=grouped))[0]

    for lora in (None, "all", "queries"):
        alone = run(lora, [])
        for beside in ([("all", 5)], [(None, 13), ("queries", 9), ("all", 3), ("queries", 2)]):
            assert torch.equal(run(lora, beside), alone), (lora, beside)


def test_rows_of_an_adapter_that_is_not_in_the_batch_cost_nothing(folders: dict[str, Made]) -> None:
    """And those of none are computed as by a runner that has none, to the bit."""
    adapters = {n: MODEL.adapter(read_lora(n, made.path), "tiny") for n, made in folders.items()}
    ids = torch.arange(40, 60)
    rows = [RowSlots(0, 20, np.arange(20))]
    found = []
    for known in ({}, adapters):
        runner = ModelRunner(
            MODEL, KVPool(MODEL.kv_layers, 20, MODEL.dtype, MODEL.device), adapters=known
        )
        plan = plan_attention(rows, MODEL.device, runner.windows)
        found.append(runner.run(Batch(ids, torch.arange(20), plan, torch.arange(20), ())))
    assert torch.equal(*found)


@pytest.mark.parametrize("budget", [7, 512])
def test_a_devices_step_with_adapters_runs_in_no_graph(
    budget: int, folders: dict[str, Made], models: dict[str | None, LlamaModel]
) -> None:
    adapters = {n: MODEL.adapter(read_lora(n, made.path), "tiny") for n, made in folders.items()}
    graphs = graphs_of()
    pool = KVPool(MODEL.kv_layers, SLOTS + 1, MODEL.dtype, MODEL.device)
    runner = ModelRunner(MODEL, pool, adapters=adapters, paged=True, graphs=graphs)
    engine = Stepped(SLOTS, budget, runner=runner)
    for loras in (["all", None, "queries", "all"], [None, None]):
        requests = [
            asked("the user and the world " * 2 + str(n), lora, max_tokens=6, temperature=0)
            for n, lora in enumerate(loras)
        ]
        running = [engine.generate(one) for one in requests]
        engine.run()
        for one, generation in zip(requests, running, strict=True):
            prompt = TOKENIZER.encode("".join(s.text for s in one.prompt.segments()))  # type: ignore[union-attr]
            wanted = oracle.generated(models[one.lora], prompt, one.params, 7, TOKENIZER.stop_ids)
            assert list(generation.result(timeout=0).ids) == wanted
        assert bool(graphs.recorded) == (loras == [None, None])


def test_programs_choose_their_adapter(
    folders: dict[str, Made], models: dict[str | None, LlamaModel]
) -> None:
    @lm.function
    def tale(s: lm.ProgramState) -> None:
        s += "the user " + lm.gen("more", max_tokens=5, temperature=0, ignore_eos=True)
        s += " and " + lm.select("pick", ["world", "hello"])

    prompt = TOKENIZER.encode("the user ")
    params = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)
    with runtime(folders) as rt:
        for lora, model in models.items():
            ids = oracle.generated(model, prompt, params, 0, TOKENIZER.stop_ids)
            for state in (tale(backend=rt, lora=lora), tale.options(lora=lora)(backend=rt)):
                assert state["more"] == TOKENIZER.decode(ids)
                assert state["pick"] in ("world", "hello")
        spaces = {node.namespace for node in rt.tree().nodes}
        assert spaces == {cache_namespace("", lora) for lora in models}
        rt.flush_cache()
        warmed = tale.options(lora="all").cache(rt)
        assert {node.namespace for node in rt.tree().nodes} == {cache_namespace("", "all")}
        assert warmed == len(prompt)


def test_all_that_a_program_asks_for_names_its_adapter() -> None:
    backend = ScriptedBackend(["so", "a thought", "three", "b"])

    @lm.function
    def tale(s: lm.ProgramState) -> None:
        s += lm.gen("one") + lm.gen("two", regex="[a-z]+", think=8) + lm.select("pick", ["a", "b"])

    tale(backend=backend, lora="mine")
    assert [request.lora for request in backend.requests] == ["mine"] * 4
    for wrong, message in (("", "has 0 characters"), (3, "must be the name of an adapter")):
        with pytest.raises(ProgramError, match=message):
            tale(backend=backend, lora=wrong)


def test_a_gguf_file_takes_adapters_too(
    tmp_path: Path, folders: dict[str, Made], models: dict[str | None, LlamaModel]
) -> None:
    params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
    path = write_tiny_gguf(tmp_path / "m.gguf")
    with Runtime(path, lora_paths=[f"all={folders['all'].path}"], kv_tokens=500) as rt:
        one = Request(Prompt.of(Text("hello world")), params, lora="all")
        wanted = oracle.generated(
            models["all"], TOKENIZER.encode("hello world"), params, 0, TOKENIZER.stop_ids
        )
        assert list(rt.generate(one).result(timeout=60).ids) == wanted


# ---------------------------------------------------------------- what is refused


def test_unknown_names_are_refused_with_those_that_there_are(folders: dict[str, Made]) -> None:
    with runtime(folders) as rt:
        for outcome in (
            rt.generate(asked("a", "french", max_tokens=1)).outcome(),
            rt.score(ScoreRequest(Prompt.of(Text("a")), ("b",), lora="french")).exception(),
        ):
            assert isinstance(outcome, ProgramError)
            assert "lora='french' is no adapter of this runtime" in str(outcome)
            assert "'all', 'queries'" in str(outcome)
    with Runtime.over(MODEL, TOKENIZER, TEMPLATE, kv_tokens=100) as rt:
        outcome = rt.generate(asked("a", "all", max_tokens=1)).outcome()
        assert isinstance(outcome, ProgramError)
        assert "no adapters" in str(outcome)


@pytest.mark.parametrize(
    ("lora", "kind", "message"),
    [
        ({"a": 3}, ProgramTypeError, "must map names to folders"),
        (["a=x", "a=y"], ProgramError, "twice"),
        ({"": "x"}, ProgramError, "has 0 characters"),
        ([{"lora_name": "a"}], ProgramTypeError, "must map names to folders"),
        (3, ProgramTypeError, "must map names to folders"),
        ({"a": "no/such/folder"}, ModelError, r"no/such/folder, .* 'a', has no adapter_config"),
    ],
)  # fmt: skip
def test_what_names_no_adapters_is_refused(
    lora: Any, kind: type[LMLangError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        Runtime.over(MODEL, TOKENIZER, TEMPLATE, lora=lora, kv_tokens=100)


MODULE = "model.layers.0.self_attn.q_proj"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another method": ({"peft_type": "IA3"}, "'peft_type' 'IA3', and only LORA"),
    "DoRA": ({"use_dora": True}, "DoRA's magnitudes"),
    "biases": ({"bias": "lora_only"}, "'bias' 'lora_only'"),
    "whole modules": ({"modules_to_save": ["lm_head"]}, "saved whole"),
    "own ranks": ({"rank_pattern": {"q_proj": 8}}, "ranks of their own"),
    "own alphas": ({"alpha_pattern": {"q_proj": 8}}, "alpha of its own"),
    "changed base": ({"init_lora_weights": "pissa"}, "'init_lora_weights' 'pissa'"),
    "no rank": ({"r": 0}, "'r' is 0"),
    "another rank": ({"r": 8}, r"has the shape \(4, 32\), and the rank is 8"),
    "no number": ({"lora_alpha": "much"}, "'lora_alpha' is of the type str"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_variants_that_cannot_be_run_are_refused_by_name(name: str, tmp_path: Path) -> None:
    config, message = REFUSED[name]
    write_lora(tmp_path, {MODULE: (32, 32)}, **config)
    with pytest.raises(ModelError, match=message):
        read_lora("one", tmp_path)


@pytest.mark.parametrize("key", reading.REFUSED)
def test_every_key_that_changes_the_computation_is_refused_by_its_name(
    key: str, tmp_path: Path
) -> None:
    for nothing in (None, False, {}, []):
        write_lora(tmp_path, {MODULE: (32, 32)}, **{key: nothing})
        assert list(read_lora("one", tmp_path).deltas) == [MODULE]
    write_lora(tmp_path, {MODULE: (32, 32)}, **{key: ["something"]})
    with pytest.raises(ModelError, match=f"{re.escape(reading.REFUSED[key])} ..{key}"):
        read_lora("one", tmp_path)


TENSORS: dict[str, tuple[dict[str, torch.Tensor | None], str]] = {
    "a half": (
        {f"base_model.model.{MODULE}.lora_B.weight": None}, "q_proj.lora_B.weight' is missing"
    ),
    "magnitudes": (
        {f"base_model.model.{MODULE}.lora_magnitude_vector": torch.ones(32)}, "no lora_A or lora_B"
    ),
    "another axis": (
        {f"base_model.model.{MODULE}.lora_A.weight": torch.ones(4)}, r"has the shape \(4,\)"
    ),
    "no numbers": (
        {f"base_model.model.{MODULE}.lora_A.weight": torch.full((4, 32), torch.nan)}, "not finite"
    ),
    "integers": (
        {f"base_model.model.{MODULE}.lora_A.weight": torch.ones(4, 32, dtype=torch.int8)}, "I8"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_make_no_adapter_are_refused(name: str, tmp_path: Path) -> None:
    tensors, message = TENSORS[name]
    write_lora(tmp_path, {MODULE: (32, 32)}, tensors=tensors)
    with pytest.raises(ModelError, match=message):
        read_lora("one", tmp_path)


def test_broken_files_are_refused(tmp_path: Path) -> None:
    write_lora(tmp_path, {MODULE: (32, 32)})
    file, config = tmp_path / "adapter_model.safetensors", tmp_path / "adapter_config.json"
    whole = file.read_bytes()
    for content in (whole[:-5], b"", b"\xff" * 100):
        file.write_bytes(content)
        with pytest.raises(ModelError, match=r"adapter_model\.safetensors is not a usable"):
            read_lora("one", tmp_path)
    file.unlink()
    with pytest.raises(ModelError, match="has no adapter_model"):
        read_lora("one", tmp_path)
    (tmp_path / "adapter_model.bin").write_bytes(b"pickle")
    with pytest.raises(ModelError, match="as a pickle"):
        read_lora("one", tmp_path)
    config.write_text("{")
    with pytest.raises(ModelError, match="no JSON"):
        read_lora("one", tmp_path)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({MODULE: (64, 32)}, "from 64 numbers to 32, and that of the model from 32 to 32"),
        ({"model.layers.2.mlp.up_proj": (32, 64)}, r"changes 'model\.layers\.2\.mlp\.up_proj'"),
        ({"lm_head": (32, 286)}, "changes 'lm_head'"),
        ({"transformer.h.0.attn.c_attn": (32, 96)}, "changes 'transformer"),
    ],
)
def test_an_adapter_of_another_base_is_refused_with_both_names(
    modules: dict[str, tuple[int, int]], message: str, tmp_path: Path
) -> None:
    write_lora(tmp_path, modules)
    with pytest.raises(ModelError, match=message) as found:
        Runtime.over(MODEL, TOKENIZER, TEMPLATE, lora={"mine": tmp_path}, kv_tokens=100)
    for name in ("'mine'", str(tmp_path), "'in memory'", "'tiny/base'"):
        assert name in str(found.value)
