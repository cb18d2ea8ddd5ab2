"""A sequence: the living state of one request in the engine loop, as counters. No torch here.

    tokens   [ prompt ............ | generated ...... ]      length = len(tokens)
              <--- computed ---->                            K and V exist for these positions
                                 <-- pending -->             still to be computed

There is no phase: a step computes the next n pending tokens, be they prompt or the one token that
was sampled last. Where the last token is computed, its logits give the next one.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from lmlang.protocol import Generation, Request, Scores, TopLogprobs
from lmlang.runtime.cache.manager import Lease
from lmlang.runtime.cache.radix import IntArray
from lmlang.runtime.output import OutputStream


class Sequence:
    """Tokens and how far they have been computed; changed by the engine thread only.

    Args:
        prompt: int64 [n], n > 0.
        first_logit: First position whose logits are needed: the cache is used up to there at most,
            so that this position is computed here.
        growth: Tokens that may follow the prompt.
        task: What to do with the logits.
    """

    def __init__(self, prompt: IntArray, first_logit: int, growth: int, task: Task) -> None:
        self.prompt = prompt
        self.first_logit = first_logit
        self.growth = growth
        self.task = task
        self.generated: list[int] = []
        self.computed = 0
        self.cached_tokens = 0
        self.lease: Lease | None = None

    @property
    def length(self) -> int:
        """Tokens of prompt and output so far."""
        return len(self.prompt) + len(self.generated)

    @property
    def pending(self) -> int:
        """Tokens that have yet to be computed."""
        return self.length - self.computed

    @property
    def decoding(self) -> bool:
        """Whether the prompt is computed and only the last sampled token is pending."""
        return self.computed >= len(self.prompt)

    @property
    def capacity(self) -> int:
        """Slots needed to the end: the last token of an output is never computed."""
        return len(self.prompt) + max(0, self.growth - 1)

    def tokens(self, start: int, end: int) -> IntArray:
        """Tokens [start, end), int64."""
        prompt = len(self.prompt)
        if end <= prompt:
            return self.prompt[start:end]
        tail = np.array(self.generated[max(0, start - prompt) : end - prompt], dtype=np.int64)
        return np.concatenate([self.prompt[start:prompt], tail]) if start < prompt else tail


Answer = Generation | Future[Scores]


@dataclass(slots=True)
class GenerateTask:
    """Sample from the logits until the output ends."""

    generation: Generation
    output: OutputStream
    input_logprobs: list[float | None] = field(default_factory=list)
    input_top: list[TopLogprobs] = field(default_factory=list)

    @property
    def request(self) -> Request:
        """What was asked for."""
        return self.generation.request

    @property
    def answer(self) -> Answer:
        """What whoever asked waits for."""
        return self.generation


@dataclass(slots=True)
class ScoreJob:
    """A score request under way.

    The stem (all tokens common to the choices) is computed as one sequence, whose last logits
    score each choice's first token; every longer choice is then a branch of its own.
    """

    future: Future[Scores]
    stem: IntArray
    tails: list[list[int]]
    alone: bool = False
    """Whether each choice is scored without the stem too."""
    logprobs: list[list[float]] = field(default_factory=list)
    alone_logprobs: list[list[float]] = field(default_factory=list)
    branches_left: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    scored_tokens: int = 0


@dataclass(slots=True)
class StemTask:
    """Score the first token of every choice."""

    job: ScoreJob

    @property
    def answer(self) -> Answer:
        """What whoever asked waits for."""
        return self.job.future


@dataclass(slots=True)
class BranchTask:
    """Score the second to last token of one choice.

    The logits of position ``first_logit + i`` score ``targets[i]``; the result goes to ``into``.
    """

    job: ScoreJob
    targets: list[int]
    into: list[float]

    @property
    def answer(self) -> Answer:
        """What whoever asked waits for."""
        return self.job.future


Task = GenerateTask | StemTask | BranchTask


def branches(job: ScoreJob) -> list[Sequence]:
    """The sequences that score the second to last token of every choice."""
    made: list[Sequence] = []
    empty = job.stem[:0]
    for tail, behind, alone in zip(job.tails, job.logprobs, job.alone_logprobs, strict=True):
        read = np.array(tail[:-1], dtype=np.int64)
        places = [(job.stem, behind), (empty, alone)] if job.alone else [(job.stem, behind)]
        for stem, into in places:
            if len(read):
                task = BranchTask(job, tail[1:], into)
                made.append(Sequence(np.concatenate([stem, read]), len(stem), 0, task))
    return made
