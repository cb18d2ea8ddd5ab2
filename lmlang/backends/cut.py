"""How an answer of characters comes out: all of its tokens, its text, and why it ended."""

from __future__ import annotations

from dataclasses import dataclass

from lmlang.grammar.stops import StopMatcher
from lmlang.protocol import Finish, Provenance, SamplingParams

END = 0x110000
"""The token that ends an output: the first number that is no code point."""


@dataclass(frozen=True, slots=True)
class Cut:
    """An answer as it comes out.

    Args:
        ids: All tokens, the dropped one at the end included.
        text: Its text.
        finish: Why it ended.
        forced: Tokens that a constraint left no choice about.
        provenance: How each token came about, where asked for.
    """

    ids: tuple[int, ...]
    text: str
    finish: Finish
    forced: int = 0
    provenance: tuple[Provenance, ...] = ()


def cut(answer: str, params: SamplingParams) -> Cut:
    """What of an answer comes out under these parameters.

    An end that is ignored, or comes before ``min_tokens``, is no end: the answer goes on from its
    beginning. Penalties and biases change nothing of an answer that stands already.
    """
    least = params.max_tokens if params.ignore_eos else params.min_tokens
    if len(answer) < least:
        unit = answer or " "
        answer = (unit * (least // len(unit) + 1))[:least]
    text = answer[: params.max_tokens]
    ids = tuple(map(ord, text))
    ends: list[tuple[int, int, str | int]] = []
    matcher = StopMatcher(params.stop, params.stop_regex)
    matcher.skip(text[: params.min_tokens])
    before, stop = matcher.push(text[params.min_tokens :])
    if stop is not None:
        start = params.min_tokens + len(before)
        end = start + len(stop)
        ends.append((end, end if params.include_stop else start, stop))
    ends += [
        (at + 1, at, token)
        for token in params.stop_token_ids
        if token != END and (at := text.find(chr(token), params.min_tokens)) >= 0
    ]
    if ends:
        end, kept, stop_at = min(ends, key=lambda found: found[0])
        return Cut(ids[:end], text[:kept], Finish("stop", stop_at))
    if len(ids) < params.max_tokens:
        told = Finish("stop", END) if END in params.stop_token_ids else Finish("eos")
        return Cut((*ids, END), text, told)
    return Cut(ids, text, Finish("length"))
