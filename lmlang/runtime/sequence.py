"""A sequence: the living state of one request in the engine loop, as counters. No torch here.

    tokens   [ prompt ............ | generated ...... ]      length = len(tokens)
              <--- computed ---->                            K and V exist for these positions
                                 <-- pending -->             still to be computed

There is no phase: a step computes the next n pending tokens, be they prompt or the one token that
was sampled last. Where the last token is computed, its logits give the next one. A sequence that
was retracted has no slots and keeps its tokens; it computes them again, as far as the tree no
longer has them.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from lmlang.protocol import Generation, Request, Scores, Tag, TopLogprobs
from lmlang.runtime.cache.manager import Lease
from lmlang.runtime.cache.radix import IntArray
from lmlang.runtime.output import OutputStream, Prediction
from lmlang.runtime.scoring import Piece, ScoreJob

NO_TAG = Tag()


class Sequence:
    """Tokens and how far they have been computed; changed by the engine thread only.

    Args:
        prompt: int64 [n], n > 0; of a choice piece the stem and then the piece's nodes.
        first_logit: First position whose logits are needed: the cache is used up to there at most,
            so that this position is computed here.
        growth: Tokens that may follow the prompt, one more where the last may not be sampled.
        task: What to do with the logits.
        tag: Where the request comes from.
        namespace: Whose cache it may use; of an adapter one of its own.
        lora: The adapter that acts on the model; None: none does.
    """

    def __init__(
        self,
        prompt: IntArray,
        first_logit: int,
        growth: int,
        task: Task,
        *,
        tag: Tag = NO_TAG,
        namespace: str = "",
        lora: str | None = None,
    ) -> None:
        self.prompt = prompt
        self.first_logit = first_logit
        self.growth = growth
        self.task = task
        self.tag = tag
        self.namespace = namespace
        self.lora = lora
        self.generated: list[int] = []
        self.computed = 0
        self.reached = 0
        """Positions that have been computed or found at least once."""
        self.cached_tokens = 0
        """Positions that were found before they were ever computed here."""
        self.found = 0
        """Those of them that the last admission found."""
        self.lease: Lease | None = None
        self.arrival = 0
        """Its number among all that came, by the scheduler."""
        self.due = False
        """Whether it waits to come back, and is served before all others."""
        self.aged = False
        """Whether it was served because it was due, and not by the policy."""
        self.retractions = 0

    @property
    def stem(self) -> int:
        """Tokens at the beginning that form one text: what the tree may keep."""
        own = self.task.piece if isinstance(self.task, PieceTask) else None
        return self.length if own is None else len(self.prompt) - len(own.tokens)

    @property
    def length(self) -> int:
        """Tokens of prompt and output so far."""
        return len(self.prompt) + len(self.generated)

    @property
    def pending(self) -> int:
        """Tokens that have yet to be computed."""
        return len(self.prompt) + len(self.generated) - self.computed

    @property
    def decoding(self) -> bool:
        """Whether the one token that was sampled last is all that is to be computed."""
        prompt = len(self.prompt)
        return self.computed >= prompt and prompt + len(self.generated) - self.computed == 1

    @property
    def capacity(self) -> int:
        """Slots needed to the end: the last token that was sampled is never computed."""
        return len(self.prompt) + max(0, self.growth - 1)

    @property
    def cacheable(self) -> int:
        """Tokens that a match may cover at most."""
        return min(self.first_logit, self.stem)

    def tokens(self, start: int, end: int) -> IntArray:
        """Tokens [start, end), int64."""
        prompt = len(self.prompt)
        if end <= prompt:
            return self.prompt[start:end]
        tail = np.array(self.generated[max(0, start - prompt) : end - prompt], dtype=np.int64)
        return np.concatenate([self.prompt[start:prompt], tail]) if start < prompt else tail

    def find(self, length: int) -> None:
        """Note that the cache has the first ``length`` positions, at an admission."""
        self.computed = length
        self.found = max(0, length - self.reached)
        self.cached_tokens += self.found
        self.reached += self.found

    def advance(self, count: int) -> int:
        """Note ``count`` tokens as computed; returns how many of them had been before."""
        again = min(count, max(0, self.reached - self.computed))
        self.computed += count
        self.reached = max(self.reached, self.computed)
        return again

    def retract(self) -> None:
        """Forget the slots: everything is pending again, but no logits are needed twice."""
        self.first_logit = max(self.first_logit, min(self.computed, self.length - 1))
        self.computed = 0
        self.lease = None
        self.retractions += 1


Answer = Generation | Future[Scores]


@dataclass(slots=True)
class GenerateTask:
    """Sample from the logits until the output ends."""

    generation: Generation
    output: OutputStream
    request: Request = field(init=False)
    """What was asked for."""
    input_logprobs: list[float | None] = field(default_factory=list)
    input_top: list[TopLogprobs] = field(default_factory=list)
    foreseen: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """What followed this prompt when the tree last saw it go on: a source of drafts."""
    predicted: deque[Prediction] = field(default_factory=deque)
    """Of known tokens that are not yet told, as far as the model has predicted them."""

    def __post_init__(self) -> None:
        self.request = self.generation.request

    @property
    def answer(self) -> Answer:
        """What whoever asked waits for."""
        return self.generation


@dataclass(slots=True)
class PieceTask:
    """Score a piece of the choices' trie, behind the stem or ``alone``.

    The ``first`` piece of a job also scores each choice's first token, from the stem's last logits.
    """

    job: ScoreJob
    piece: Piece
    first: bool = False
    alone: bool = False
    others: tuple[Sequence, ...] = ()
    """The other sequences of the job; the first one's only."""

    @property
    def answer(self) -> Answer:
        """What whoever asked waits for."""
        return self.job.future


Task = GenerateTask | PieceTask


def score_sequence(
    job: ScoreJob, size: int, tag: Tag, namespace: str, lora: str | None = None
) -> Sequence:
    """The first sequence of a job, with the others in its task; each has ``size`` nodes at most."""
    made: list[Sequence] = []
    stem, nothing = job.stem, job.stem[:0]
    for number, piece in enumerate(job.trie.pieces(size)):
        first = number == 0
        behind = PieceTask(job, piece, first)
        first_logit = len(stem) - 1 if first else len(stem) + piece.copied
        made.append(_piece(stem, first_logit, behind, tag, namespace, lora))
        if job.alone and len(piece.tokens):
            apart = PieceTask(job, piece, alone=True)
            made.append(_piece(nothing, piece.copied, apart, tag, namespace, lora))
    job.pieces_left = len(made)
    task = made[0].task
    assert isinstance(task, PieceTask)
    task.others = tuple(made[1:])
    return made[0]


def _piece(
    stem: IntArray,
    first_logit: int,
    task: PieceTask,
    tag: Tag,
    namespace: str,
    lora: str | None,
) -> Sequence:
    tokens = np.concatenate([stem, task.piece.tokens])
    return Sequence(tokens, first_logit, 0, task, tag=tag, namespace=namespace, lora=lora)
