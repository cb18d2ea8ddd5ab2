"""One generation's output as it grows: tokens to text, stops, the end, events."""

from __future__ import annotations

import math
from typing import NamedTuple

from lmlang.grammar.stops import StopMatcher
from lmlang.protocol import (
    Event,
    Finish,
    InputLogprobs,
    Output,
    Provenance,
    SamplingParams,
    Segment,
    Text,
    Tokens,
    TopLogprobs,
    TopProbs,
    Usage,
)
from lmlang.runtime.cache.radix import IntArray
from lmlang.runtime.constraints import Constrained
from lmlang.runtime.detokenizer import Detokenizer, history
from lmlang.runtime.healing import Healing
from lmlang.runtime.tokenizer import Tokenizer


class Drawn(NamedTuple):
    """A token that was drawn, with which probability, and the likeliest of those it was among.

    None and empty where they were not asked for; so is its log-probability by the model alone,
    which is NaN where the model's logits are not finite.
    """

    token: int
    prob: float | None = None
    top: TopProbs = ()
    logprob: float | None = None


class Prediction(NamedTuple):
    """What the model said of a token in its place.

    Args:
        logprob: Its log-probability.
        top: The likeliest tokens, where asked for.
        masked: The probability of all that a constraint forbids, where its provenance is asked for.
        best: The likeliest token, where that is; else None.
    """

    logprob: float
    top: TopLogprobs | None = None
    masked: float = 0.0
    best: int | None = None


class OutputStream:
    """Takes sampled tokens one by one and says what may be shown and when it is over.

    Args:
        tokenizer: The model's tokenizer.
        params: How the tokens are drawn, and what ends them.
        healing: What the tokens begin with that is no part of the text; None: nothing.
        constraint: What it must be, and where it ends; None: anything.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        healing: Healing | None = None,
        constraint: Constrained | None = None,
    ) -> None:
        self.ids: list[int] = []
        self.finish: Finish | None = None
        self._tokenizer = tokenizer
        self._params = params
        self._healing = healing
        self._dropped = False
        self._skip = 0 if healing is None else len(healing.data)
        self._detokenizer = Detokenizer(tokenizer, self._skip)
        self.constraint = constraint
        if constraint is None:
            self._stops = StopMatcher(params.stop, params.stop_regex)
        else:
            self._stops = StopMatcher(params.stop, acts=constraint.is_complete_at)
        self._searches = bool(params.stop or params.stop_regex)
        self.is_free = healing is None and not params.min_tokens
        """Whether nothing is ever `barred`, nor only some `allowed`."""
        self._logprobs: list[float] = []
        self._shown: list[str] = []
        self._top: list[TopLogprobs] = []
        self._probs: list[float] = []
        self._top_probs: list[TopProbs] = []
        self._provenance: list[Provenance] = []

    def barred(self) -> frozenset[int]:
        """Ids that must not be drawn next: what would end or garble an output too short to end."""
        if len(self.ids) >= self._params.min_tokens:
            return frozenset()
        tokenizer = self._tokenizer
        return tokenizer.control_ids | tokenizer.stop_ids | set(self._params.stop_token_ids)

    def allowed(self) -> IntArray | None:
        """The ids that alone may be drawn next; None: all."""
        left = self._detokenizer.skips
        if self._healing is None or not left:
            return None
        return self._healing.allowed[self._skip - left]

    def accept(self, drawn: Drawn, said: Prediction) -> Event:
        """Take the next token; the event's ``finish`` is set where it was the last.

        Args:
            drawn: The token, and how it was drawn.
            said: What the model says of it.
        """
        params, token = self._params, drawn.token
        self.ids.append(token)
        self._logprobs.append(said.logprob)
        if said.top is not None:
            self._top.append(said.top)
        if drawn.prob is not None:
            self._probs.append(drawn.prob)
        if drawn.top:
            self._top_probs.append(drawn.top)
        if said.best is not None:
            self._provenance.append(self._came_about(len(self.ids) - 1, said, said.best))
        ended = self._ended_with(token)
        own = self.constraint is None or self.constraint.dropped
        self._dropped = ended is not None and own
        text, stop = "" if self._dropped else self._detokenizer.push(token), None
        if self._searches and not self._dropped:
            text, stop = self._read(text)
        if stop is not None:
            self.finish = Finish("stop", stop)
        elif ended is not None or len(self.ids) >= params.max_tokens:
            more, self.finish = self._flush(ended or Finish("length"))
            text += more
        self._shown.append(text)
        tops = () if said.top is None else (said.top,)
        return Event(len(self.ids) - 1, (token,), text, (said.logprob,), self.finish, tops)

    def _came_about(self, index: int, said: Prediction, best: int) -> Provenance:
        constraint = self.constraint
        if constraint is None:
            return Provenance(False, self._tokenizer.vocab_size, 0.0, best, "")
        forced = constraint.forced[index]
        masked = -math.expm1(said.logprob) if forced else said.masked
        return Provenance(forced, constraint.legal[index], masked, best, constraint.pointers[index])

    def _ended_with(self, token: int) -> Finish | None:
        """How the output ends with its last token because of what that is; None: it does not."""
        if self.constraint is not None:
            return self.constraint.finish_at(len(self.ids))
        if token in self._params.stop_token_ids:
            return Finish("stop", token)
        if token in self._tokenizer.stop_ids and not self._params.ignore_eos:
            return Finish("eos")
        return None

    def end_here(self) -> Event:
        """End an output without another token, as it may have none or no more."""
        ended = None if self.constraint is None else self.constraint.finish
        more, self.finish = self._flush(ended or Finish("length"))
        self._shown.append(more)
        return Event(len(self.ids), (), more, (), self.finish)

    def output(
        self, prompt_tokens: int, cached_tokens: int, inputs: InputLogprobs | None
    ) -> Output:
        """The finished output."""
        assert self.finish is not None
        count, constraint = len(self.ids), self.constraint
        usage = Usage(
            prompt_tokens,
            cached_tokens,
            count,
            forced_tokens=0 if constraint is None else sum(constraint.forced[:count]),
            forced_closes=int(self.finish.reason == "forced_close"),
        )
        return Output(
            "".join(self._shown),
            tuple(self.ids),
            tuple(self._logprobs),
            self.finish,
            usage,
            self._history(),
            tuple(self._top),
            inputs,
            tuple(self._probs),
            tuple(self._top_probs),
            tuple(self._provenance),
        )

    def _read(self, text: str) -> tuple[str, str | None]:
        """What of new text may be shown, and the stop that it completes."""
        if not self._searches:
            return text, None
        if len(self.ids) <= self._params.min_tokens:
            self._stops.skip(text)
            return text, None
        shown, stop = self._stops.push(text)
        return shown + (stop if stop is not None and self._params.include_stop else ""), stop

    def _flush(self, finish: Finish) -> tuple[str, Finish]:
        """What was held back is shown at the end, unless that completes a stop."""
        more, stop = self._read(self._detokenizer.finish())
        if stop is not None:
            return more, Finish("stop", stop)
        return more + self._stops.finish(), finish

    def _history(self) -> tuple[Segment, ...]:
        assert self.finish is not None
        ids, text = tuple(self.ids), "".join(self._shown)
        rest = ""
        if isinstance(self.finish.stop, str):
            ids, rest = history(self.ids, text, self._tokenizer, self._skip)
            text = text.removesuffix(rest)
        elif self._dropped:
            ids = ids[:-1]
        if self._detokenizer.skips:  # what was taken back was not spelled out: it stays
            return ()
        segments: list[Segment] = [Tokens(ids, text, bool(self._skip))] if ids else []
        return (*segments, Text(rest)) if rest else tuple(segments)
