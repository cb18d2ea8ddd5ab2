"""One generation's output as it grows: tokens to text, stop strings, the end, events."""

from __future__ import annotations

from lmlang.protocol import Event, Finish, Output, SamplingParams, Segment, Text, Tokens, Usage
from lmlang.runtime.detokenizer import Detokenizer, StopMatcher, history
from lmlang.runtime.tokenizer import Tokenizer


class OutputStream:
    """Takes sampled tokens one by one and says what may be shown and when it is over."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self.ids: list[int] = []
        self.finish: Finish | None = None
        self._tokenizer = tokenizer
        self._params = params
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopMatcher(params.stop)
        self._logprobs: list[float] = []
        self._shown: list[str] = []

    def accept(self, token: int, logprob: float) -> Event:
        """Take the next sampled token; the event's ``finish`` is set where it was the last."""
        self.ids.append(token)
        self._logprobs.append(logprob)
        ended = token in self._tokenizer.stop_ids and not self._params.ignore_eos
        text, stop = ("", None) if ended else self._stops.push(self._detokenizer.push(token))
        if stop is not None:
            self.finish = Finish("stop", stop)
        elif ended or len(self.ids) >= self._params.max_tokens:
            text, self.finish = self._flush(text, Finish("eos" if ended else "length"))
        self._shown.append(text)
        return Event(len(self.ids) - 1, (token,), text, (logprob,), self.finish)

    def end_empty(self) -> Event:
        """End an output that may have no token at all."""
        self.finish = Finish("length")
        return Event(0, (), "", (), self.finish)

    def output(self, prompt_tokens: int, cached_tokens: int) -> Output:
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
        )

    def _flush(self, text: str, finish: Finish) -> tuple[str, Finish]:
        """What was held back is shown at the end, unless that completes a stop string."""
        more, stop = self._stops.push(self._detokenizer.finish())
        if stop is not None:
            return text + more, Finish("stop", stop)
        return text + more + self._stops.finish(), finish

    def _history(self) -> tuple[Segment, ...]:
        assert self.finish is not None
        ids, text = tuple(self.ids), "".join(self._shown)
        rest = ""
        if self.finish.reason == "stop":
            ids, rest = history(self.ids, text, self._tokenizer)
            text = text.removesuffix(rest)
        elif self.finish.reason == "eos":
            ids = ids[:-1]
        segments: list[Segment] = [Tokens(ids, text)] if ids else []
        return (*segments, Text(rest)) if rest else tuple(segments)
