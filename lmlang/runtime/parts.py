"""What a Runtime is made of, from a model and its parameters: intake, compiler, engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch

from lmlang.errors import ProgramError, quote
from lmlang.grammar.compiler import Compiler
from lmlang.kernels.forms import form_of, use_reference
from lmlang.runtime.cache.manager import CacheManager
from lmlang.runtime.cache.pool import bytes_per_slot
from lmlang.runtime.cache.room import made_pool, pool_tokens
from lmlang.runtime.chat_tools import ToolPrompts
from lmlang.runtime.config import RuntimeConfig
from lmlang.runtime.cuda_graphs import DecodeGraphs, cuda_recorder
from lmlang.runtime.device import CPU, device_of, launching_on
from lmlang.runtime.drafting import Drafter
from lmlang.runtime.engine import Engine
from lmlang.runtime.intake import Intake
from lmlang.runtime.loop import EngineLoop
from lmlang.runtime.metrics import GrammarCounts
from lmlang.runtime.model_runner import ModelRunner
from lmlang.runtime.models.adapters import Adapter
from lmlang.runtime.models.lora import read_lora
from lmlang.runtime.models.opened import OpenedModel, open_model
from lmlang.runtime.scheduler import Scheduler

BATCH_TOKENS = {"cpu": 512, "cuda": 2_048}
"""Tokens of one step at most, by kind of device, unless max_batch_tokens says otherwise."""

OF_LOADING = ("model", "dtype", "quantize", "implementation", "revision", "chat_template")
"""Parameters that say which model is loaded, and how."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The parts of one Runtime, which owns them.

    Args:
        opened: The model, which others may share.
        kv_tokens: Slots of the KV pool.
        intake: Makes sequences of requests.
        tools: How the model's template has tools and calls written.
        compiler: Of constraints.
        grammars: What was counted of them.
        engine: It runs.
    """

    opened: OpenedModel
    kv_tokens: int
    intake: Intake
    tools: ToolPrompts
    compiler: Compiler
    grammars: GrammarCounts
    engine: Engine


def model_of(config: RuntimeConfig) -> OpenedModel:
    """The model that a config names, under the template that it names."""
    opened = open_model(
        config.model,
        dtype=config.dtype,
        quantize=config.quantize,
        revision=config.revision,
        offline=config.offline,
        implementation=config.implementation,
        device=device_of(config.device),
    )
    return opened if config.chat_template is None else opened.with_template(config.chat_template)


def check_in_memory(config: RuntimeConfig, device: torch.device) -> None:
    """Refuse parameters that would load a model otherwise than it lies in memory, on ``device``."""
    usual = RuntimeConfig()
    for name in OF_LOADING:
        value = getattr(config, name)
        if value != getattr(usual, name):
            raise ProgramError(
                f"{name}={quote(str(value))} is for models that are loaded, and this one is in "
                "memory already: leave it out, or load the model so."
            )
    if config.device != "auto" and device_of(config.device) != device:
        raise ProgramError(
            f"device={config.device!r} is not where the model lies, {device}: leave it out, or "
            "move the model first."
        )


def parts_of(opened: OpenedModel, config: RuntimeConfig) -> Parts:
    """Make the parts; the last of them is the engine, which begins to run.

    Raises:
        ModelError: An adapter is not this model's, or memory is too small.
        ProgramError: A parameter does not go with this model.
    """
    model = opened.model
    if config.deterministic:
        _check_deterministic(opened)
    with launching_on(model.device):  # as an adapter that is tried does
        adapters = {
            name: model.adapter(read_lora(name, folder), opened.name)
            for name, folder in (config.lora or {}).items()
        }
    kv_dtype = torch.int8 if config.kv_dtype == "int8" else model.dtype
    slots = config.kv_tokens or pool_tokens(
        model.kv_layers,
        kv_dtype,
        model.device,
        config.memory_fraction,
        model.max_positions,
    )
    piece = config.max_batch_tokens or BATCH_TOKENS[model.device.type]
    intake = Intake(
        opened.tokenizer,
        opened.template,
        vocab=model.vocab,
        context=model.max_positions,
        kv_tokens=slots,
        piece=piece,
        loras=adapters.keys(),
    )
    return Parts(
        opened,
        slots,
        intake,
        ToolPrompts(opened.tokenizer, opened.template),
        Compiler(),
        GrammarCounts(),
        _engine(opened, config, adapters, kv_dtype, slots, piece),
    )


def _check_deterministic(opened: OpenedModel) -> None:
    if opened.implementation != "native":
        raise ProgramError(
            "deterministic=True fixes the order of our own sums, and "
            f"{quote(opened.name)} is computed by {opened.implementation}: leave it out, or "
            "give a model that runs natively."
        )
    if opened.model.device.type != "cpu":
        raise ProgramError(
            "deterministic=True holds on a CPU, and this model is on "
            f"{opened.model.device}: give device='cpu', or leave deterministic out."
        )


def _engine(
    opened: OpenedModel,
    config: RuntimeConfig,
    adapters: Mapping[str, Adapter],
    kv_dtype: torch.dtype,
    slots: int,
    piece: int,
) -> Engine:
    """Pools of so many slots, who says what is in them, who plans steps and who runs them."""
    model = opened.model
    cuda = model.device.type == "cuda"
    host_slots = _host_slots(config, bytes_per_slot(model.kv_layers, kv_dtype))
    graphs = _graphs(opened, config, slots)
    make = partial(made_pool, kv_layers=model.kv_layers, dtype=kv_dtype)
    pool = make("kv_tokens", tokens=slots + (graphs is not None), device=model.device)
    host = None
    if host_slots:
        host = make("host_kv_gb", tokens=host_slots, device=CPU, pinned=cuda)
    cache = CacheManager(
        slots,
        keep=config.radix_cache,
        informed=config.eviction == "program",
        host_slots=host_slots,
    )
    scheduler = Scheduler(
        cache,
        piece,
        config.max_running,
        policy=config.policy,
        share=config.radix_cache and config.in_batch_sharing,
        drafter=Drafter(cache.tree) if config.speculative else None,
        even=graphs is not None,
    )
    has_c = form_of(torch.empty(0, device=model.device)) == "c"
    runner = ModelRunner(
        model,
        pool,
        adapters=adapters,
        deterministic=config.deterministic,
        paged=cuda or has_c,
        graphs=graphs,
    )
    return Engine(
        EngineLoop(runner, cache, scheduler, host),
        heartbeat=config.heartbeat,
        max_queued=config.max_queued,
    )


def _host_slots(config: RuntimeConfig, slot_bytes: int) -> int:
    """Slots of main memory for prefixes that the pool has evicted."""
    slots = int(config.host_kv_gb * 2**30) // slot_bytes
    if config.host_kv_gb and not slots:
        raise ProgramError(
            f"host_kv_gb={config.host_kv_gb:g} holds no token, whose keys and values take "
            f"{slot_bytes:,} bytes: give more, or leave it out."
        )
    return slots


def _graphs(opened: OpenedModel, config: RuntimeConfig, slots: int) -> DecodeGraphs | None:
    """Graphs of decode steps, where there can be any; their padding has the slot behind ``slots``.

    Reference kernels look at numbers on the way, and what transformers computes may.
    """
    model, native = opened.model, opened.implementation == "native"
    if model.device.type != "cuda" or not config.cuda_graphs or not native or use_reference():
        return None
    recorder = cuda_recorder(model.device)
    return DecodeGraphs(config.max_running, slots, model.vocab, model.device, recorder)
