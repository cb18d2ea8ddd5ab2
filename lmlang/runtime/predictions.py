"""What the model said in one step: its logits, and log-probabilities read from them."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from lmlang.kernels.bitmask import allowed
from lmlang.kernels.sampling import log_normalisers
from lmlang.protocol import TopLogprobs
from lmlang.runtime.batch import LogitRows
from lmlang.runtime.output import Drawn, Prediction
from lmlang.runtime.sequence import GenerateTask, PieceTask

MaskArray: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int32]]"


class Predictions:
    """Rows of logits with what makes probabilities of them.

    Args:
        logits: float32 [K, V], the model's own.
    """

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        self._normalisers: Tensor | None = None

    @property
    def normalisers(self) -> Tensor:
        """float32 [K], the logarithm of the sum of their exponentials."""
        if self._normalisers is None:
            self._normalisers = log_normalisers(self.logits)
        return self._normalisers

    def logprob(self, row: int, token: int) -> float:
        """The log-probability of one token."""
        return float(self.logits[row, token] - self.normalisers[row])

    def top(self, row: int, count: int) -> TopLogprobs | None:
        """The likeliest ``count`` tokens of one row; None where none are asked for."""
        if not count:
            return None
        logits = self.logits[row]
        values, ids = torch.topk(logits, min(count, len(logits)))
        values = values - self.normalisers[row]
        return tuple(zip(ids.tolist(), values.tolist(), strict=True))

    def score(self, rows: LogitRows, task: PieceTask) -> None:
        """Tell a job what some rows predict of its choices' tokens."""
        job, piece, stem = task.job, task.piece, rows.sequence.stem
        logits, normalisers = self.logits, self.normalisers
        start, position = rows.start, rows.position
        if position < stem:
            first_tokens = torch.tensor([tail[0] if tail else 0 for tail in job.tails])
            job.firsts = (logits[start, first_tokens] - normalisers[start]).tolist()
            start, position = start + 1, position + 1
        edges = piece.edges(position - stem, position - stem + rows.end - start)
        if edges.start == edges.stop:
            return
        nodes = torch.from_numpy(piece.edge_nodes[edges] - (position - stem) + start)
        found = logits[nodes, torch.from_numpy(piece.edge_tokens[edges])] - normalisers[nodes]
        into = job.apart if task.alone else job.behind
        at = piece.first_edge
        into[at + edges.start : at + edges.stop] = found.numpy(force=True)

    def about_drawn(
        self, row: int, drawn: Drawn, task: GenerateTask, mask: MaskArray | None = None
    ) -> Prediction:
        """As `about`, of a token that was drawn."""
        return self.about(row, drawn.token, task, mask, drawn.logprob)

    def about(
        self,
        row: int,
        token: int,
        task: GenerateTask,
        mask: MaskArray | None = None,
        logprob: float | None = None,
    ) -> Prediction:
        """What a row says of the token that came in its place, as far as its task asks for it.

        Args:
            row: Of the logits.
            token: The token.
            task: Whose output it is part of.
            mask: What could have been drawn, where it was drawn under a mask.
            logprob: Of the token, where it has been read already.
        """
        request = task.request
        logprob = self.logprob(row, token) if logprob is None else logprob
        top = self.top(row, request.top_logprobs)
        if not request.provenance:
            return Prediction(logprob, top)
        logits = self.logits[row]
        masked = 0.0
        if mask is not None:
            out = ~allowed(torch.from_numpy(np.stack([mask])), logits.shape[-1])[0].to(
                logits.device
            )
            masked = float((logits - self.normalisers[row])[out].exp().sum())
        return Prediction(logprob, top, masked, int(torch.argmax(logits)))
