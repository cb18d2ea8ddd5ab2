"""What the parts of the GPU check have in common: where they run, timing, a random Llama."""

from __future__ import annotations

from lmlang.runtime import openmp  # noqa: F401 - before anything that loads torch

# isort: split
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lmlang.runtime.chat import ChatTemplate
from lmlang.runtime.models.llama import LlamaModel, weight_shapes
from lmlang.runtime.shape import LayerKind, ModelShape, Rope
from lmlang.runtime.tokenizer import CONTROL, NORMAL, Tokenizer

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
TINY = ModelShape(
    layers=2, heads=4, kv_heads=2, head_dim=32, hidden=128, intermediate=256, vocab=512,
    max_positions=4_096, tied_head=False,
)  # fmt: skip
ONE_BILLION = ModelShape(
    layers=16, heads=32, kv_heads=8, head_dim=64, hidden=2_048, intermediate=8_192, vocab=128_256,
    max_positions=131_072, kinds=(LayerKind(rope=Rope(500_000.0)),), tied_head=True,
)  # fmt: skip
EIGHT_BILLION = ModelShape(
    layers=32, heads=32, kv_heads=8, head_dim=128, hidden=4_096, intermediate=14_336,
    vocab=128_256, max_positions=131_072, kinds=(LayerKind(rope=Rope(500_000.0)),), tied_head=False,
)  # fmt: skip
"""Sizes of Llama 3.2 1B and Llama 3.1 8B, by their published configs."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where the check runs, and how much of it.

    Args:
        device: The GPU; the CPU in a dry run.
        dry: Tiny sizes that only show that everything works: no number means anything.
        model: The embedded model's file, or another GGUF of a plain Llama; None where none is.
    """

    device: torch.device
    dry: bool
    model: Path | None

    @property
    def half(self) -> torch.dtype:
        """The dtype that is measured."""
        return torch.float32 if self.dry else torch.bfloat16

    def sync(self) -> None:
        """Wait until the device has done all it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def milliseconds(self, work: Callable[[], object], repeat: int = 15) -> float:
        """The median time of a piece of work on the device, after a warm-up."""
        repeat = 2 if self.dry else repeat
        for _ in range(3):
            work()
        self.sync()
        if self.device.type != "cuda":
            taken = []
            for _ in range(repeat):
                started = time.perf_counter()
                work()
                taken.append((time.perf_counter() - started) * 1e3)
            return statistics.median(taken)
        events = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in range(repeat)
        ]
        for begin, end in events:
            begin.record()
            work()
            end.record()
        self.sync()
        return statistics.median(begin.elapsed_time(end) for begin, end in events)

    def bandwidth(self) -> float:
        """Bytes a second of a large copy on the device, those read and those written."""
        size = (1 << 16) if self.dry else (1 << 30)
        source = torch.zeros(size, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * size / (self.milliseconds(lambda: target.copy_(source)) * 1e-3)


def random_llama(
    shape: ModelShape, dtype: torch.dtype, device: torch.device, seed: int = 0
) -> LlamaModel:
    """A Llama of random weights; its outputs differ from token to token."""
    return LlamaModel(shape, random_weights(shape, dtype, device, seed))


def random_weights(
    shape: ModelShape, dtype: torch.dtype, device: torch.device, seed: int = 0
) -> dict[str, Tensor]:
    """Weights by name, made where they are to lie."""
    generator = torch.Generator(device).manual_seed(seed)
    weights: dict[str, Tensor] = {}
    for name, size in weight_shapes(shape).items():
        if len(size) == 1:
            weights[name] = torch.ones(size, dtype=torch.float32, device=device)
            continue
        weight = torch.empty(size, dtype=dtype, device=device).normal_(generator=generator)
        weights[name] = weight.mul_(size[1] ** -0.5)
    return weights


def bytes_read(shape: ModelShape, dtype: torch.dtype) -> int:
    """Bytes of the weights that one decode step reads: all but the embedding's other rows."""
    numbers = 0
    for name, size in weight_shapes(shape).items():
        if name != "embed" or shape.tied_head:
            numbers += torch.Size(size).numel()
    return numbers * dtype.itemsize


def byte_tokenizer(vocab: int) -> Tokenizer:
    """A tokenizer that knows bytes alone, for a model of ``vocab`` ids."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    letters = [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
    tokens = ["<|begin|>", "<|end|>", *letters]
    kinds = [CONTROL, CONTROL, *[NORMAL] * 256]
    return Tokenizer(tokens, [], kinds=kinds, bos_id=0, eos_id=1).fitted(vocab)


def plain_template() -> ChatTemplate:
    """No template: prompts are ids here."""
    return ChatTemplate(None, "<|begin|>", "<|end|>")


def random_prompts(count: int, length: int, seed: int = 0) -> list[list[int]]:
    """Prompts of byte tokens that share nothing."""
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(2, 258, (count, length), generator=generator)
    return [list(map(int, prompt)) for prompt in prompts.tolist()]
