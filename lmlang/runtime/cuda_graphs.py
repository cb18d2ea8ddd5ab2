"""Decode steps as CUDA graphs: recorded once for each size of batch, run again with new numbers.

    sizes    1, 2, 4, 8, 16, 24, 32, ...    13 rows run as 16: three rows of padding, which read
                                            and write one slot of the pool that is nobody's
    numbers  [ ids | positions | slots | starts | table ........ ]    one buffer for all graphs,
    logits   [ largest size, vocab ]                                  and so is this

A graph launches the kernels of a whole pass at once, with the addresses that they were recorded
with. So every size keeps its numbers in the same places of the buffer (`plan_paged`, even), and
graphs differ by what else decides which kernels run: the groups of rows that share a stretch.

Source: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-graphs
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

log = logging.getLogger("lmlang")

LARGEST = 256
"""Rows of the largest graph; larger batches keep a device busy without."""
STEP = 8
"""Sizes from this on are its multiples: at most so many rows less one are padding."""
TABLE_WORDS = 1 << 22
"""Of the buffer, for tables: contexts of 256 rows of 16,384 tokens. Longer ones run without."""

Work = Callable[[], None]
Key = tuple[int, tuple[tuple[int, ...], ...]]
"""Which graph: its size, and the form of its plan (`PagedPlan.form`)."""


@dataclass(frozen=True, slots=True)
class Padding:
    """How a batch of decode rows is made for a graph.

    Args:
        size: Rows with those that are filled up.
        slot: Of the pool, that these read and write.
        into: int32, where the batch's numbers go.
    """

    size: int
    slot: int
    into: Tensor


def graph_sizes(largest: int) -> tuple[int, ...]:
    """Batch sizes that get a graph, so that all from 1 to ``largest`` fit into one."""
    largest = min(largest, LARGEST)
    sizes = (1, 2, 4, *range(STEP, LARGEST + 1, STEP))
    return sizes[: next(i for i, size in enumerate(sizes) if size >= largest) + 1]


class DecodeGraphs:
    """The graphs of one model and pool; the engine thread's own.

    Args:
        largest: Rows of a batch at most.
        slot: Of the pool, that belongs to nobody.
        vocab: Logits of a row.
        device: Of the model.
        record: Records work that has been done once, and returns what does it again.
        table_words: Of the buffer, for tables.
    """

    def __init__(
        self,
        largest: int,
        slot: int,
        vocab: int,
        device: torch.device,
        record: Callable[[Work], Work],
        table_words: int = TABLE_WORDS,
    ) -> None:
        self.sizes = graph_sizes(largest)
        self._slot = slot
        # What stands beside the tables takes a few dozen words a row.
        words = table_words + 64 * self.sizes[-1]
        self._numbers = torch.zeros(words, dtype=torch.int32, device=device)
        self._logits = torch.zeros((self.sizes[-1], vocab), dtype=torch.float32, device=device)
        self._record = record
        self._graphs: dict[Key, Work] = {}
        self._off = False

    @property
    def recorded(self) -> tuple[Key, ...]:
        """Which graphs there are."""
        return tuple(self._graphs)

    def padding(self, rows: int) -> Padding | None:
        """How to make a batch of so many decode rows; None where no graph is large enough."""
        size = next((size for size in self.sizes if size >= rows), None)
        if self._off or size is None:
            return None
        return Padding(size, self._slot, self._numbers)

    def run(self, key: Key, forward: Callable[[], Tensor]) -> Tensor:
        """Logits float32 [size, vocab] of a batch made for a graph; the next run overwrites them.

        The first time it runs as it is, so that all kernels are there, and is then recorded.

        Args:
            key: Which graph.
            forward: The pass over the numbers in the buffer; it reads nothing else that changes.
        """
        graph = self._graphs.get(key)
        if graph is not None:
            graph()
            return self._logits[: key[0]]
        logits = forward()

        def again() -> None:
            self._logits[: key[0]].copy_(forward())

        try:
            self._graphs[key] = self._record(again)
        except RuntimeError as error:  # no memory for it, or a kernel that cannot be recorded
            self._off = True
            log.warning(
                "CUDA graphs are off from here on, and decoding is slower: the one of %d rows "
                "could not be recorded (%s: %s)",
                *(key[0], type(error).__name__, str(error)[:300]),
            )
        return logits


def cuda_recorder(device: torch.device) -> Callable[[Work], Work]:
    """What records on a GPU; all graphs have their memory in common."""
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(work: Work) -> Work:
        graph, usual = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
        # Other threads of the process may use the GPU meanwhile: they are none of its business.
        capture = torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local")
        try:
            with capture:
                work()
        finally:  # where recording fails, torch would stay on the stream that it recorded
            torch.cuda.set_stream(usual)
        return graph.replay

    return record
