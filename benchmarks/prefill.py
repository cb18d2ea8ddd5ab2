"""Prefill of whole prompts, beside transformers on the same weights and the bare matrix products.

    prefill    seconds until every prompt has its first token, from nothing cached
    floor      the time of the products alone: our packed weights, the same shapes and chunks

A ratio above 1 says how many times as fast ours was, as it comes and in bfloat16; the floor's is
below 1, and says how near we come to it. Run nothing else meanwhile.
"""

from __future__ import annotations

import report

# isort: split
import time
from functools import partial

import torch
from by_hand import Peer
from rows import Ids, Subject, compare, our_prefill, prompts_of, their_prefill
from torch import Tensor

import lmlang as lm
from lmlang.kernels.linear import linear, pack_weight
from lmlang.runtime.models.loader import LoadedModel, load_gguf

CHUNK = 512
"""Tokens of one step."""
PRODUCTS = ("qkv", "out", "gate_up", "down")


class Floor:
    """A model's matrix products and nothing else: no norm, no attention, no activation.

    Args:
        loaded: The weights.
        dtype: What they are multiplied in.
    """

    def __init__(self, loaded: LoadedModel, dtype: torch.dtype) -> None:
        weights, shape = loaded.weights, loaded.shape
        self.name = f"floor {str(dtype).removeprefix('torch.')}"
        self._inputs = {
            width: torch.randn(CHUNK, width).to(dtype)
            for width in (shape.hidden, shape.query_width, shape.intermediate)
        }
        self._products = [
            self._with_input(weights[f"layers.{layer}.{name}"].to(dtype))
            for layer in range(shape.layers)
            for name in PRODUCTS
        ]
        self._head = self._with_input(weights["embed" if shape.tied_head else "head"].to(dtype))

    @torch.inference_mode()
    def __call__(self, prompts: Ids, count: int) -> tuple[float, Ids]:
        """Seconds of the products for all prompts, in chunks that span prompts."""
        total = sum(map(len, prompts))
        started = time.perf_counter()
        for begin in range(0, total, CHUNK):
            rows = min(CHUNK, total - begin)
            for x, weight in self._products:
                linear(x[:rows], weight)
        for _ in prompts:
            x, weight = self._head
            linear(x[:1], weight)
        return time.perf_counter() - started, []

    def _with_input(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return self._inputs[weight.shape[1]], pack_weight(weight)


def main() -> None:
    """Run, compare, print."""
    options = report.options(__doc__)
    runtimes = {
        report.OURS: lm.Runtime(options.model, max_batch_tokens=CHUNK),
        report.OURS_FLOAT32: lm.Runtime(options.model, max_batch_tokens=CHUNK, quantize=None),
        report.OURS_BFLOAT16: lm.Runtime(options.model, max_batch_tokens=CHUNK, dtype="bfloat16"),
    }
    runtime = runtimes[report.OURS]
    loaded = load_gguf(options.model)
    peers = [Peer(loaded, torch.float32), Peer(loaded, torch.bfloat16)]
    floors = [Floor(loaded, torch.float32), Floor(loaded, torch.bfloat16)]
    sizes = [(1, 24), (2, 24), (1, 48)] if options.small else [(1, 512), (8, 512), (1, 4_000)]
    facts = report.setup(runtime.info().model)
    report.print_setup(facts, options.repeat)

    results = []
    for rows, length in sizes:
        subjects: dict[str, Subject] = {
            name: partial(our_prefill, each) for name, each in runtimes.items()
        }
        subjects |= {peer.name: partial(their_prefill, peer) for peer in peers}
        subjects |= {floor.name: floor for floor in floors}
        prompts = prompts_of(runtime, rows, length)
        results.append(compare("prefill", subjects, prompts, 1, peers[0], options.repeat))
    report.print_json({"benchmark": "prefill", "small": options.small, **facts, "results": results})
    for each in runtimes.values():
        each.close()


if __name__ == "__main__":
    main()
