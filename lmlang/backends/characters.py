"""Backends whose tokens are characters: how they read a prompt and cut an answer as a model would.

render   Turn(user) Text("Hi") EndTurn   ->   "<user>Hi</user>"
encode   one token for each character of that, its code point; END is 0x110000
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from lmlang.backends.constrained import constrained_cut, refuse_processor
from lmlang.backends.cut import END, cut
from lmlang.errors import ProgramError, quote
from lmlang.protocol import (
    EndTurn,
    Event,
    Generation,
    Image,
    InputLogprobs,
    Output,
    Prompt,
    Request,
    Segment,
    Tokens,
    TopLogprobs,
    Turn,
    Usage,
)


def shown(segment: Segment, role: str) -> str:
    """A segment as it is read; ``role`` is the open turn's."""
    if isinstance(segment, Turn):
        return f"<{segment.role}>"
    if isinstance(segment, EndTurn):
        return f"</{role}>"
    if isinstance(segment, Image):
        return f"<image {segment.digest[:8]}>"
    return segment.text


def rendered(prompt: Prompt, vision: bool) -> str:
    """The prompt as text, turns as ``<role>…</role>``.

    Raises:
        ProgramError: It holds a picture, and the backend has no vision.
    """
    parts: list[str] = []
    role = ""
    for segment in prompt.segments():
        if isinstance(segment, Turn):
            role = segment.role
        elif isinstance(segment, Image) and not vision:
            raise ProgramError(
                f"the prompt holds the picture {quote(segment.name)}, and this backend has no "
                "vision: make it with vision=True."
            )
        parts.append(shown(segment, role))
    return "".join(parts)


def decoded(ids: Iterable[int]) -> str:
    """The characters of these tokens; END gives nothing."""
    return "".join(chr(token) for token in ids if token != END)


def output_of(
    request: Request,
    prompt: Callable[[], str],
    prompt_tokens: int,
    answer: str,
    logprobs: Callable[[int], tuple[float, ...]],
) -> Output:
    """The output that an answer comes to.

    Args:
        request: What was asked.
        prompt: The rendered prompt; called only where its log-probabilities were asked for.
        prompt_tokens: Its tokens.
        answer: What would come without any limit.
        logprobs: So many log-probabilities, for the tokens that come out.
    """
    refuse_processor(request)
    if request.constraint is None:
        made = cut(answer, request.params)
    else:
        made = constrained_cut(answer, request)
    told = logprobs(len(made.ids))
    inputs = None
    if request.input_logprobs_from is not None:
        inputs = _inputs(tuple(map(ord, prompt())), request.input_logprobs_from, request)
    return Output(
        text=made.text,
        ids=made.ids,
        logprobs=told,
        finish=made.finish,
        usage=Usage(
            prompt_tokens=prompt_tokens,
            generated_tokens=len(made.ids),
            forced_tokens=made.forced,
            forced_closes=int(made.finish.reason == "forced_close"),
        ),
        history=(Tokens(made.ids[: len(made.text)], made.text),) if made.text else (),
        top_logprobs=_tops(made.ids, told, request),
        input_logprobs=inputs,
        probs=tuple(map(math.exp, told)) if request.probs else (),
        provenance=made.provenance,
    )


def tell(generation: Generation, output: Output, every: int) -> None:
    """Push an output as events of so many tokens, and end the generation with it.

    Tokens that whoever asked has received before are not told again.
    """
    if generation.done():  # cancelled meanwhile
        return
    ids, text, resumed = output.ids, output.text, generation.request.resumed
    if ids[: len(resumed)] != resumed:
        generation.fail(ProgramError("resumed does not begin as this request's output does."))
        return
    for start in range(len(resumed), max(len(ids), len(resumed) + 1), every):
        end = start + every
        final = end >= len(ids)
        generation.push(
            Event(
                start,
                ids[start:end],
                text[start:] if final else text[start:end],
                output.logprobs[start:end],
                output.finish if final else None,
                output.top_logprobs[start:end],
            )
        )
    generation.complete(output)


def _tops(
    ids: tuple[int, ...], logprobs: tuple[float, ...], request: Request
) -> tuple[TopLogprobs, ...]:
    if not request.top_logprobs:
        return ()
    return tuple(
        _top(token, logprob, request.top_logprobs)
        for token, logprob in zip(ids, logprobs, strict=True)
    )


def _top(token: int, logprob: float, count: int) -> TopLogprobs:
    """The token itself, then those that follow it, each less likely by one."""
    return tuple(((token + i) % (END + 1), logprob - i) for i in range(count))


def _inputs(ids: tuple[int, ...], start: int, request: Request) -> InputLogprobs:
    """Prompt tokens from an index on; each but the first has -1."""
    told = tuple(None if index == 0 else -1.0 for index in range(start, len(ids)))
    top: tuple[TopLogprobs, ...] = ()
    if request.top_logprobs:
        top = tuple(
            () if logprob is None else _top(token, logprob, request.top_logprobs)
            for token, logprob in zip(ids[start:], told, strict=True)
        )
    return InputLogprobs(min(start, len(ids)), ids[start:], told, top)
