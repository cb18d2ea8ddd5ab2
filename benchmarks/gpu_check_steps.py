"""Part of the GPU check: whole decode steps of random Llamas beside the least that they can take.

floor     the bytes of all weights that a step reads and of the keys and values of its rows, at
          the bandwidth of a copy
step      from one token of a row to its next, with everything that the engine does between
Python    the same of a model so small that the device has next to nothing to do
"""

from __future__ import annotations

import statistics
from itertools import pairwise

import torch
from gpu_check_rows import Row, Rows, at_most, failed
from gpu_check_setting import (
    EIGHT_BILLION,
    ONE_BILLION,
    TINY,
    Setting,
    byte_tokenizer,
    bytes_read,
    plain_template,
    random_llama,
    random_prompts,
)
from rows import Clock

from lmlang.protocol import Prompt, Request, SamplingParams, Tokens
from lmlang.runtime.cache.pool import bytes_per_slot
from lmlang.runtime.local import Runtime
from lmlang.runtime.shape import ModelShape

STEPS = 32
"""Decode steps that are measured."""
TARGETS = {("8B", 64): 1.35}
"""Steps that are to take at most so many times their floor."""


def started(runtime: Runtime, prompts: list[list[int]], count: int) -> list[Clock]:
    """Run all rows at once to so many tokens; when each had which."""
    params = SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)
    requests = [Request(Prompt.of(Tokens(tuple(prompt), "")), params) for prompt in prompts]
    generations = [runtime.generate(request) for request in requests]
    clocks = [Clock(generation) for generation in generations]
    for generation in generations:
        generation.result()
    return clocks


def step_milliseconds(runtime: Runtime, prompts: list[list[int]], steps: int) -> float:
    """The median step while all rows are under way; prompts are computed before, graphs too."""
    started(runtime, prompts, 3)
    clock = started(runtime, prompts, steps)[-1]
    ends = clock.stamps[1:]
    return statistics.median(b - a for a, b in pairwise(ends)) * 1e3


def measured(setting: Setting, name: str, shape: ModelShape, bandwidth: float) -> Rows:
    """Steps of one model at several batch sizes."""
    context, steps = (40, 4) if setting.dry else (1_024, STEPS)
    batches = (1, 4) if setting.dry else (1, 8, 64, 256)
    model = random_llama(shape, setting.half, setting.device)
    slot = bytes_per_slot(model.kv_layers, model.dtype)
    room = max(batches) * (context + 3 * steps) * 5 // 4
    parameters = {"kv_tokens": room, "max_running": max(batches), "max_batch_tokens": 4_096}
    tokenizer, template = byte_tokenizer(shape.vocab), plain_template()
    with Runtime.over(model, tokenizer, template, **parameters) as runtime:
        for batch in batches:
            taken = step_milliseconds(runtime, random_prompts(batch, context, batch), steps)
            least = bytes_read(shape, model.dtype) + batch * context * slot
            floor = least / bandwidth * 1e3
            title = f"{name} decode step, {batch} rows of {context:,}"
            note = f"{taken / floor:.2f} x the floor of {floor:.2f} ms"
            most = TARGETS.get((name, batch))
            if most is None:
                yield Row(title, taken, "ms", note=note)
            else:
                yield at_most(title, taken / floor, "x floor", most, f"{taken:.2f} ms")
            runtime.flush_cache()


def python(setting: Setting) -> Rows:
    """What a step takes besides the device's work."""
    batches = (4,) if setting.dry else (1, 64, 256)
    context, steps = (40, 4) if setting.dry else (256, 2 * STEPS)
    model = random_llama(TINY, setting.half, setting.device)
    tokenizer, template = byte_tokenizer(TINY.vocab), plain_template()
    room = max(batches) * (context + 3 * steps) * 5 // 4
    parameters = {"kv_tokens": room, "max_running": max(batches)}
    with Runtime.over(model, tokenizer, template, **parameters) as runtime:
        for batch in batches:
            taken = step_milliseconds(runtime, random_prompts(batch, context, batch), steps)
            title = f"Python a step, {batch} rows"
            note = "a model of 2 layers and 128 numbers: launches and the wait for tokens included"
            yield at_most(title, taken, "ms", 1.0, note) if batch == 64 else Row(title, taken, "ms")


def run(setting: Setting) -> Rows:
    """Python first, as it is quick."""
    try:
        yield from python(setting)
    except Exception as error:
        yield failed("Python a step", error)
    bandwidth = setting.bandwidth()
    shapes = {"tiny": TINY} if setting.dry else {"1B": ONE_BILLION, "8B": EIGHT_BILLION}
    for name, shape in shapes.items():
        try:
            yield from measured(setting, name, shape, bandwidth)
        except Exception as error:
            yield failed(f"{name} decode step", error)
        if setting.device.type == "cuda":
            torch.cuda.empty_cache()
