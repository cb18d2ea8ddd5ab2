"""Outputs as SGLang's clients read them: cumulative text, ``meta_info``, its words for an end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from lmlang.errors import LMLangError
from lmlang.protocol import (
    Backend,
    Event,
    Finish,
    InputLogprobs,
    Output,
    TokenAware,
    TopLogprobs,
)
from lmlang.server.sglang_request import Report
from lmlang.wire import dumps

FINISHES = {
    "stop": "stop",
    "eos": "stop",
    "complete": "stop",
    "length": "length",
    "forced_close": "length",
}
"""Why an output ended: ours, and SGLang's word for it (and "abort" for what was ended)."""


class Answer:
    """One request's answer as it grows. Not thread-safe.

    Args:
        backend: What its tokens are of.
        report: What is told.
        name: The answer's id.
        index: Its number among the answers of a stream of several; None where it is the only one.
        whole: Whether `body` tells all log-probabilities, not those alone that are new.
    """

    def __init__(
        self, backend: Backend, report: Report, name: str, index: int | None, *, whole: bool
    ) -> None:
        self.ended = False
        self._backend = backend
        self._report = report
        self._name = name
        self._index = index
        self._whole = whole
        self._began = perf_counter()
        self._text: list[str] = []
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._top: list[TopLogprobs] = []
        self._told = 0
        self._output: Output | None = None
        self._finish: dict[str, Any] | None = None

    def take(self, item: Event | Output) -> bool:
        """Take what comes next; whether there is something to tell then.

        The last event tells nothing: its output, which follows at once, knows more.
        """
        if isinstance(item, Output):
            self._output = item
            self.ended = True
            self._finish = self._finished(item.finish)
            return True
        self._text.append(item.text)
        self._ids += item.ids
        self._logprobs += item.logprobs
        self._top += item.top_logprobs
        return item.finish is None and not self._report.silent

    def abort(self, reason: LMLangError) -> None:
        """It was ended from outside."""
        self.ended = True
        self._finish = {"type": "abort", "message": str(reason)}

    def body(self) -> dict[str, Any]:
        """All that is to be told now, as JSON."""
        silent = self._report.silent
        meta: dict[str, Any] = {
            "id": self._name,
            "finish_reason": self._finish,
            "prompt_tokens": self._report.prompt_tokens,
            "completion_tokens": 0 if silent else len(self._ids),
        }
        if self._output is not None:
            meta["cached_tokens"] = self._output.usage.cached_tokens
        if self._report.logprobs:
            meta |= self._logprob_lists()
        if self.ended:
            meta["e2e_latency"] = perf_counter() - self._began
        body: dict[str, Any] = {
            "text": "" if silent else "".join(self._text),
            "output_ids": [] if silent else list(self._ids),
            "meta_info": meta,
        }
        return body if self._index is None else body | {"index": self._index}

    def text(self) -> str:
        """The same as text."""
        return dumps(self.body())

    def _finished(self, finish: Finish) -> dict[str, Any]:
        kind = FINISHES[finish.reason]
        if kind == "length" or self._report.silent:
            return {"type": "length", "length": 0 if self._report.silent else len(self._ids)}
        matched: str | int | None = finish.stop
        if finish.reason == "eos":
            matched = self._ids[-1]
        return {"type": kind, "matched": matched}

    def _logprob_lists(self) -> dict[str, Any]:
        """Log-probabilities of the prompt, once they are known, and of the output."""
        first = 0 if self._whole else self._told
        self._told = len(self._ids)
        inputs = self._output.input_logprobs if self._output is not None else None
        inputs = inputs or InputLogprobs(0, (), ())
        lists: dict[str, Any] = {
            "input_token_logprobs": self._triples(inputs.logprobs, inputs.ids),
            "output_token_logprobs": self._triples(self._logprobs[first:], self._ids[first:]),
            "output_token_logprobs_length": len(self._ids),
        }
        known = [logprob for logprob in inputs.logprobs if logprob is not None]
        if known:
            lists["normalized_prompt_logprob"] = sum(known) / len(known)
        if self._report.top:
            lists["input_top_logprobs"] = [self._ranked(top) for top in inputs.top]
            lists["output_top_logprobs"] = [self._ranked(top) for top in self._top[first:]]
        return lists

    def _triples(
        self, logprobs: Sequence[float | None], ids: Sequence[int]
    ) -> list[list[float | int | str | None]]:
        return [
            [logprob, token, self._name_of(token)]
            for logprob, token in zip(logprobs, ids, strict=True)
        ]

    def _ranked(self, top: TopLogprobs) -> list[list[float | int | str | None]] | None:
        """The likeliest tokens at a place; None where nothing precedes it."""
        return self._triples([p for _, p in top], [token for token, _ in top]) or None

    def _name_of(self, token: int) -> str | None:
        return token_name(self._backend)(token) if self._report.texts else None


def token_name(backend: Backend) -> Callable[[int], str]:
    """How a backend's tokens read, those of control too where it has some."""
    if isinstance(backend, TokenAware):
        return backend.token_name
    return lambda token: backend.decode([token])
