"""Part of the GPU check: the five programs of programs.py beside transformers on the same device.

The embedded model in bfloat16. transformers runs each as one would write it with generate(), the
rows of a call in one batch, and with its continuous batching in place of generate().
"""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Sequence
from typing import Any

import programs
import torch
import transformers
from by_hand import Generated, Peer
from gpu_check_rows import Row, Rows, failed
from gpu_check_setting import Setting
from transformers import GenerationConfig

from lmlang.runtime.local import Runtime
from lmlang.runtime.models.loader import load_gguf

SECONDS = 75
"""After so many, continuous batching is not begun any more: each of its calls starts anew."""


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


def ours(name: str, runtime: Runtime, work: Any) -> tuple[Row, float, int]:
    """The row of our second run, its seconds, and the tokens that it made or scored."""
    programs.run_ours(runtime, work)
    taken, outcome = programs.run_ours(runtime, work)
    tokens = outcome.counters["generated_tokens"] + outcome.counters["scored_tokens"]
    return Row(f"{name}: lmlang", tokens / taken, "tokens/s", note=f"{taken:.2f} s"), taken, tokens


def theirs(title: str, peer: Peer, work: Any, taken: float, tokens: int) -> Row:
    """The row of transformers' run behind a smaller one; of what it cannot, why."""
    try:
        work.less().plain(peer)
        seconds = float(work.plain(peer)[0])
    except Exception as error:
        return Row(title, note=f"not measured: {type(error).__name__}: {str(error)[:150]}")
    note = f"{seconds:.2f} s: lmlang is {seconds / taken:.2f} times as fast"
    return Row(title, tokens / seconds, "tokens/s", note=note)


def run(setting: Setting) -> Rows:
    """All five."""
    if setting.model is None:
        yield Row("programs", ok=False, note="the embedded model's file is not here: give --model")
        return
    transformers.logging.set_verbosity_error()
    loaded = load_gguf(setting.model)
    weights = {name: weight.to(setting.device) for name, weight in loaded.weights.items()}
    loaded = dataclasses.replace(loaded, weights=weights)
    plain = Peer(loaded, setting.half, setting.device)
    dtype = str(setting.half).removeprefix("torch.")
    parameters = {"kv_tokens": programs.KV_TOKENS, "dtype": dtype, "device": str(setting.device)}
    begun, later = time.monotonic(), []
    with Runtime(setting.model, **parameters) as runtime:
        for name, (make, small, full) in programs.PARTS.items():
            try:
                work = make(runtime, *(small if setting.dry else full))
                row, taken, tokens = ours(name, runtime, work)
            except Exception as error:
                yield failed(f"programs: {name}", error)
                continue
            yield row
            yield theirs(f"{name}: transformers generate", plain, work, taken, tokens)
            if name != "choices":  # which it cannot score
                later.append((name, work, taken, tokens))
    if setting.dry:
        return  # continuous batching needs a GPU
    batching = Continuous(loaded, setting.half, setting.device)
    for name, *measured in later:
        title = f"{name}: transformers continuous batching"
        if time.monotonic() - begun < SECONDS:
            yield theirs(title, batching, *measured)
        else:
            yield Row(title, note="not measured: it would take too long")
