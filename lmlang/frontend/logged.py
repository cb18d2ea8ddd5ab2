"""What a run log tells of one operation: its outputs, its tokens, its times, its error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lmlang.protocol import FinishReason, Provenance, TopLogprobs, TopProbs, Usage

Kind = Literal["gen", "select", "fork", "join", "set", "image", "scope", "call"]
Status = Literal["queued", "running", "done", "failed", "cancelled", "skipped"]


@dataclass(frozen=True, slots=True)
class Failure:
    """An error by its type's name and its message."""

    type: str
    message: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One output of a generation.

    Args:
        text: Its text.
        tokens: All sampled token ids, those that a stop dropped included.
        logprobs: The model's log-probability of each.
        finish: "stop", "eos", "length", "complete" or "forced_close".
        stop: The stop string or token id that ended it.
        probs: The probability of each token among those that could be drawn, where
            ``return_logprob`` asked for it; else empty, as the rest.
        top_logprobs: The model's likeliest tokens at each place, where asked for.
        top_probs: The likeliest of those that could be drawn, where asked for.
        provenance: How each token came about, where asked for.
        thought: What the model wrote before it, hidden.
        tries: How many values validators were offered; 1 where there are none.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason | None
    stop: str | int | None
    probs: tuple[float, ...] = ()
    top_logprobs: tuple[TopLogprobs, ...] = ()
    top_probs: tuple[TopProbs, ...] = ()
    provenance: tuple[Provenance, ...] = ()
    thought: str = ""
    tries: int = 1


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of a select: its text and its joint log-probability."""

    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class LoggedOperation:
    """One operation of a run. Times are seconds since the run began, None: it has not come so far.

    Args:
        kind: What was done; a scope stands where it closes.
        status: "failed" is a failure of its own; "cancelled" and "skipped" come from that of
            another one, or from the end of the run, after or before the backend was asked.
        path: Its place in the run, as in "3/fork1.2/0"; empty for what makes no draws.
        state: The path of its state: "" is the program's own, "3/fork1.2" a child.
        branch: The state's index in its fork; None for the program's own.
        source: The user's line, as ``path/file.py:12``.
        name: The variable; of a call the program that is called; of an image where it came from.
        children: How many states a fork made or a join took.
        usage: Tokens that the run was charged with for it.
        samples: A generation's outputs, the first being the one that the state goes on with.
        choices: What a select scored; empty where a single choice needed no scoring.
        draw_keys: The keys of the noise that was drawn, one for each sample; empty: no draws.
        first_draw: The index of its first draw; the token's index is added to it.
        text: What it wrote (so far, while it is running), or the value that was set, as text.
        error: Of a failed operation.
        queued: When it was appended.
        submitted: When the backend was asked.
        first_token: When the backend told of the first token (by the end of a generation).
        finished: When it was done or had failed.
        made: The state that its node makes in the run's recording, of a fork the first one.
    """

    kind: Kind
    status: Status
    path: str
    state: str
    branch: int | None
    source: str
    name: str | None
    children: int
    usage: Usage
    samples: tuple[Sample, ...]
    choices: tuple[Choice, ...]
    draw_keys: tuple[int, ...]
    first_draw: int
    text: str | None
    error: Failure | None
    queued: float
    submitted: float | None
    first_token: float | None
    finished: float | None
    made: int = 0

    @property
    def seconds(self) -> float | None:
        """How long the backend took to answer; None where it was not asked or did not."""
        if self.submitted is None or self.finished is None:
            return None
        return self.finished - self.submitted
