"""Part of the GPU check: the five programs of programs.py beside transformers on the same device.

The embedded model in bfloat16. transformers runs each as one would write it with generate(), the
rows of a call in one batch, and with its continuous batching in place of generate().
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any

import programs
import torch
import transformers
from gpu_check_setting import Row, Rows, Setting, failed
from peers import Generated, Peer
from transformers import GenerationConfig

from lmlang.runtime.local import Runtime
from lmlang.runtime.models.loader import load_gguf


class Continuous(Peer):
    """The same model behind transformers' continuous batching, where nothing is cached by hand."""

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        count: int,
        cache: Any = None,
        held: int = 0,
        ends: Sequence[int] = (),
    ) -> Generated:
        """Greedy tokens by `generate_batch`; arguments as of `Peer`."""
        chosen = GenerationConfig(
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=list(ends) or [-1],
            pad_token_id=0,
        )
        run = self.model.generate_batch
        known = inspect.signature(run).parameters
        options = {"progress_bar": False} if "progress_bar" in known else {}
        done = run(inputs=[list(p) for p in prompts], generation_config=chosen, **options)
        if len(done) != len(prompts):
            raise RuntimeError(f"{len(done)} of {len(prompts)} requests came to an end")
        return Generated([list(output.generated_tokens) for output in done.values()], [])


def seconds(run: Any, work: Any) -> float:
    """Of the second run: the first one compiles and records."""
    run(work)
    return float(run(work)[0])


def measured(setting: Setting, name: str, runtime: Runtime, peers: dict[str, Peer]) -> Rows:
    """One workload."""
    make, small, full = programs.PARTS[name]
    work = make(runtime, *(small if setting.dry else full))
    taken = seconds(lambda work: programs.run_ours(runtime, work), work)
    counted = dataclasses.asdict(runtime.stats())
    tokens = counted["generated_tokens"] + counted["scored_tokens"]
    yield Row(f"{name}: lmlang", tokens / taken, "tokens/s", note=f"{taken:.2f} s")
    for title, peer in peers.items():
        if name == "choices" and isinstance(peer, Continuous):
            continue  # it scores nothing
        try:
            theirs = seconds(lambda work, peer=peer: work.plain(peer), work)
        except Exception as error:
            said = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
            yield Row(f"{name}: {title}", note=f"not measured: {said[:150]}")
            continue
        note = f"{theirs:.2f} s: lmlang is {theirs / taken:.2f} times as fast"
        yield Row(f"{name}: {title}", tokens / theirs, "tokens/s", note=note)


def run(setting: Setting) -> Rows:
    """All five."""
    if setting.model is None:
        yield Row("programs", ok=False, note="the embedded model's file is not here: give --model")
        return
    transformers.logging.set_verbosity_error()
    loaded = load_gguf(setting.model)
    weights = {name: weight.to(setting.device) for name, weight in loaded.weights.items()}
    loaded = dataclasses.replace(loaded, weights=weights)
    peers: dict[str, Peer] = {
        "transformers generate": Peer(loaded, setting.half, setting.device),
        "transformers continuous batching": Continuous(loaded, setting.half, setting.device),
    }
    if setting.dry:
        del peers["transformers continuous batching"]  # it needs a GPU
    dtype = str(setting.half).removeprefix("torch.")
    parameters = {"kv_tokens": programs.KV_TOKENS, "dtype": dtype, "device": str(setting.device)}
    with Runtime(setting.model, **parameters) as runtime:
        for name in programs.PARTS:
            try:
                yield from measured(setting, name, runtime, peers)
            except Exception as error:
                yield failed(f"programs: {name}", error)
