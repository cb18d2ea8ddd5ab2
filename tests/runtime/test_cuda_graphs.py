"""The device's step on a CPU: paged attention, padded batches, passes that are run again.

Instead of a recorded graph the pass itself is run again, over the numbers in the same buffer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.kernels.forms import row_invariant
from lmlang.protocol import Request
from lmlang.runtime import paged_plan
from lmlang.runtime.batch import Batch
from lmlang.runtime.cache.pool import KVPool
from lmlang.runtime.cuda_graphs import DecodeGraphs, Work, graph_sizes
from lmlang.runtime.model_runner import ModelRunner
from lmlang.runtime.paged_plan import paged_words, plan_paged
from lmlang.runtime.shape import LayerKind
from lmlang.runtime.sharing import RowSlots
from lmlang.runtime.transfer import Transfer
from tests.runtime import oracle
from tests.runtime.test_engine import MODEL, REQUESTS, TOKENIZER, request
from tests.runtime.test_pressure import Stepped, answered
from tests.tiny import tiny_model

CPU = torch.device("cpu")
SLOTS = 600


def again(work: Work) -> Work:
    """A record that is no record: the work itself."""
    return work


def graphs_of(
    largest: int = 8, record: Callable[[Work], Work] = again, table_words: int = 4_096
) -> DecodeGraphs:
    return DecodeGraphs(largest, SLOTS, MODEL.vocab, CPU, record, table_words)


def stepped(graphs: DecodeGraphs | None, **options: int) -> Stepped:
    pool = KVPool(MODEL.kv_layers, SLOTS + 1, torch.float32, CPU)
    return Stepped(SLOTS, runner=ModelRunner(MODEL, pool, paged=True, graphs=graphs), **options)


@settings(max_examples=10)
@given(
    st.lists(st.lists(REQUESTS, min_size=1, max_size=12), min_size=1, max_size=3),
    st.sampled_from([3, 12, 512]), st.booleans(), st.sampled_from([8, 8_192]),
)  # fmt: skip
def test_answers_are_those_of_the_model_alone(
    waves: list[list[Request]], budget: int, recorded: bool, least: int
) -> None:
    graphs = graphs_of() if recorded else None
    engine = stepped(graphs, budget=budget, drafts=budget == 12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paged_plan, "MIN_SAVED", least)
        for wave in waves:
            generations = [engine.generate(one) for one in wave]
            engine.run()
            for one, generation in zip(wave, generations, strict=True):
                answered(one, generation)


@pytest.mark.parametrize("least", [8, 8_192])
def test_scores_are_those_of_the_model_alone(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_plan, "MIN_SAVED", least)
    stem = TOKENIZER.encode("the user and the world ")
    tails = [TOKENIZER.encode(text) for text in ("hello world", "hello", "12 3", "the", "the user")]
    engine = stepped(graphs_of(), budget=9)
    scores = engine.score(stem, tails)
    beside = request("hello and ", max_tokens=12)
    generation = engine.generate(beside)
    engine.run()
    answered(beside, generation)
    for choice, tail in zip(scores.result(timeout=0).choices, tails, strict=True):
        wanted = oracle.choice_logprobs(MODEL, stem, tail)
        assert choice.logprobs == pytest.approx(wanted, abs=1e-4)


def test_decode_steps_run_graphs_by_size_and_by_what_is_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paged_plan, "MIN_SAVED", 20)
    runs: list[int] = []

    def record(work: Work) -> Work:
        number = len(runs)
        runs.append(0)

        def counted() -> None:
            runs[number] += 1
            work()

        return counted

    graphs = graphs_of(record=record)
    engine = stepped(graphs)
    prefix = "the user and the world " * 4
    asked = [
        request(text, 5, max_tokens=9 + 4 * n, ignore_eos=True)
        for n, text in enumerate((f"{prefix}12", f"{prefix}3", "hello"))
    ]
    generations = [engine.generate(one) for one in asked]
    engine.run()
    for one, generation in zip(asked, generations, strict=True):
        answered(one, generation)
    assert set(graphs.recorded) == {(4, ((2,),)), (2, ((),)), (1, ((),))}
    assert min(runs) >= 2


def test_layers_of_two_windows_share_as_long_as_each_sees_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paged_plan, "MIN_SAVED", 20)
    kinds = (LayerKind(window=60), LayerKind(), LayerKind(window=60))
    model, _, _ = tiny_model(layers=3, kinds=kinds)
    texts = [f"{'the user and the world ' * 5}{'hello ' * n}" for n in range(4)]
    asked = [request(text, n, max_tokens=30, ignore_eos=True) for n, text in enumerate(texts)]
    outputs, graphs = [], DecodeGraphs(8, SLOTS, model.vocab, CPU, again, 4_096)
    for options in ({}, {"paged": True, "graphs": graphs}):
        pool = KVPool(model.kv_layers, SLOTS + 1, torch.float32, CPU)
        engine = Stepped(SLOTS, runner=ModelRunner(model, pool, **options))
        generations = [engine.generate(one) for one in asked]
        engine.run()
        outputs.append([generation.result(timeout=0).ids for generation in generations])
    assert outputs[0] == outputs[1]
    forms = [form for _, form in graphs.recorded]
    assert any(all(form) for form in forms), forms
    assert any(form[0] and not form[1] for form in forms), forms


def padded_batch(
    tables: list[np.ndarray], size: int, slot: int = SLOTS, filling: tuple[int, int] = (0, 0)
) -> Batch:
    """Decode rows with random tokens, filled up with rows of some token at some position."""
    ids = np.array([7 + 3 * i for i in range(len(tables))], dtype=np.int64)
    positions = np.array([len(table) - 1 for table in tables], dtype=np.int64)
    more = size - len(tables)
    rows = [RowSlots(i, 1, table) for i, table in enumerate(tables)]
    rows += [RowSlots(i, 1, np.array([slot])) for i in range(len(tables), size)]
    transfer = Transfer(8 * size + 8 + paged_words(rows, (0,)), CPU)
    inputs = [
        transfer.put_wide(ids, np.full(more, filling[0])),
        transfer.put_wide(positions, np.full(more, filling[1])),
    ]
    plan = plan_paged(rows, transfer, even=True)
    at = transfer.put_wide(np.arange(size))
    transfer.send()
    return Batch(*inputs, plan, at, ())


@pytest.mark.parametrize("least", [10, 8_192])
def test_padding_changes_no_bit_of_the_other_rows(
    least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_plan, "MIN_SAVED", least)
    tables = [np.r_[0:40, 50], np.r_[0:40, 60:63], np.r_[100:109]]
    generator = torch.Generator().manual_seed(0)
    before = [torch.randn(x.shape, generator=generator) for x in _pool().layers[0].tensors()]

    def run(batch: Batch, dirt: float) -> tuple[torch.Tensor, list[torch.Tensor]]:
        pool = _pool()
        for layer in pool.layers:
            for mine, was in zip(layer.tensors(), before, strict=True):
                mine.copy_(was)
                mine[SLOTS] = dirt
        with row_invariant():
            logits = ModelRunner(MODEL, pool, paged=True).run(batch)
        return logits[:3], [x[:SLOTS] for layer in pool.layers for x in layer.tensors()]

    alone, its_pool = run(padded_batch(tables, 3), 0.0)
    for size, filling, dirt in ((4, (0, 0), 0.0), (4, (9, 77), 1e9), (8, (5, 300), torch.nan)):
        logits, pool = run(padded_batch(tables, size, filling=filling), dirt)
        assert torch.equal(logits, alone)
        assert all(map(torch.equal, pool, its_pool))


def _pool() -> KVPool:
    return KVPool(MODEL.kv_layers, SLOTS + 1, torch.float32, CPU)


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [(1, (1,)), (3, (1, 2, 4)), (8, (1, 2, 4, 8)), (17, (1, 2, 4, 8, 16, 24)), (9_999, None)],
)
def test_sizes_reach_the_largest_batch(largest: int, sizes: tuple[int, ...] | None) -> None:
    found = graph_sizes(largest)
    assert found == sizes or (sizes is None and found[-1] == 256 and len(found) == 35)


def test_what_cannot_be_recorded_runs_all_the_same_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(work: Work) -> Work:
        raise torch.OutOfMemoryError("tried to allocate 2.00 GiB")

    engine = stepped(graphs_of(record=fails))
    asked = [request(text, max_tokens=6) for text in ("hello ", "the ")]
    with caplog.at_level(logging.WARNING, "lmlang"):
        generations = list(map(engine.generate, asked))
        engine.run()
    for one, generation in zip(asked, generations, strict=True):
        answered(one, generation)
    (record,) = caplog.records
    assert "CUDA graphs are off from here on" in record.getMessage()
    assert "of 2 rows could not be recorded (OutOfMemoryError" in record.getMessage()


@pytest.mark.parametrize(("largest", "table_words", "words"), [(4, 4_096, 1), (8, 0, 40)])
def test_batches_that_no_graph_takes_run_without(
    largest: int, table_words: int, words: int
) -> None:
    graphs = graphs_of(largest, table_words=table_words)
    engine = stepped(graphs)
    texts = [f"{n} hello world " + "the user and " * words for n in range(5)]
    asked = [request(text, max_tokens=5, ignore_eos=True) for text in texts]
    generations = list(map(engine.generate, asked))
    engine.run()
    for one, generation in zip(asked, generations, strict=True):
        answered(one, generation)
    assert graphs.recorded == ()
