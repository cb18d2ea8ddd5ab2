"""One generation's output as it grows: tokens to text, stops, the end, events."""

from __future__ import annotations

from lmlang.grammar.stops import StopMatcher
from lmlang.protocol import (
    Event,
    Finish,
    InputLogprobs,
    Output,
    SamplingParams,
    Segment,
    Text,
    Tokens,
    TopLogprobs,
    TopProbs,
    Usage,
)
from lmlang.runtime.cache.radix import IntArray
from lmlang.runtime.detokenizer import Detokenizer, history
from lmlang.runtime.healing import Healing
from lmlang.runtime.tokenizer import Tokenizer


class OutputStream:
    """Takes sampled tokens one by one and says what may be shown and when it is over.

    Args:
        tokenizer: The model's tokenizer.
        params: How the tokens are drawn, and what ends them.
        healing: What the tokens begin with that is no part of the text; None: nothing.
    """

    def __init__(
        self, tokenizer: Tokenizer, params: SamplingParams, healing: Healing | None = None
    ) -> None:
        self.ids: list[int] = []
        self.finish: Finish | None = None
        self._tokenizer = tokenizer
        self._params = params
        self._healing = healing
        self._skip = 0 if healing is None else len(healing.data)
        self._detokenizer = Detokenizer(tokenizer, self._skip)
        self._stops = StopMatcher(params.stop, params.stop_regex)
        self._logprobs: list[float] = []
        self._shown: list[str] = []
        self._top: list[TopLogprobs] = []
        self._probs: list[float] = []
        self._top_probs: list[TopProbs] = []

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

    def accept(
        self,
        token: int,
        logprob: float,
        top: TopLogprobs | None = None,
        prob: float | None = None,
        top_probs: TopProbs = (),
    ) -> Event:
        """Take the next sampled token; the event's ``finish`` is set where it was the last.

        Args:
            token: Its id.
            logprob: The model's log-probability of it.
            top: The likeliest tokens in its place, where asked for.
            prob: Its probability among those that could be drawn, where asked for.
            top_probs: The likeliest of those.
        """
        params = self._params
        self.ids.append(token)
        self._logprobs.append(logprob)
        if top is not None:
            self._top.append(top)
        if prob is not None:
            self._probs.append(prob)
        if top_probs:
            self._top_probs.append(top_probs)
        if token in params.stop_token_ids:
            ended: Finish | None = Finish("stop", token)
        elif token in self._tokenizer.stop_ids and not params.ignore_eos:
            ended = Finish("eos")
        else:
            ended = None
        text, stop = ("", None) if ended else self._read(self._detokenizer.push(token))
        if stop is not None:
            self.finish = Finish("stop", stop)
        elif ended is not None or len(self.ids) >= params.max_tokens:
            more, self.finish = self._flush(ended or Finish("length"))
            text += more
        self._shown.append(text)
        tops = () if top is None else (top,)
        return Event(len(self.ids) - 1, (token,), text, (logprob,), self.finish, tops)

    def end_empty(self) -> Event:
        """End an output that may have no token at all."""
        self.finish = Finish("length")
        return Event(0, (), "", (), self.finish)

    def output(
        self, prompt_tokens: int, cached_tokens: int, inputs: InputLogprobs | None
    ) -> Output:
        """The finished output."""
        assert self.finish is not None
        usage = Usage(prompt_tokens, cached_tokens, len(self.ids))
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
        )

    def _read(self, text: str) -> tuple[str, str | None]:
        """What of new text may be shown, and the stop that it completes."""
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
        elif self.finish.reason != "length":
            ids = ids[:-1]
        if self._detokenizer.skips:  # what was taken back was not spelled out: it stays
            return ()
        segments: list[Segment] = [Tokens(ids, text, bool(self._skip))] if ids else []
        return (*segments, Text(rest)) if rest else tuple(segments)
