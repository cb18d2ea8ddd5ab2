"""What is known of a finished generation or select besides its value."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from lmlang import markup
from lmlang.frontend.captures import Capture, captures
from lmlang.frontend.choices import entropy, joint_logprobs, margin, softmax
from lmlang.frontend.confidence import Alternative, Parts, Place, alternatives, confidence
from lmlang.frontend.options import SILENT, Report
from lmlang.grammar.spec import Spec
from lmlang.protocol import (
    ChoiceScore,
    FinishReason,
    InputLogprobs,
    Output,
    Provenance,
    TopLogprobs,
    TopProbs,
    Usage,
)

_FRACTION = re.compile(r"-?\d+\.\d{4,}(?:e-?\d+)?")


@dataclass(frozen=True, slots=True)
class Meta:
    """What ``s.meta("x")`` returns; thread-safe, a value.

    Args:
        id: Of the request: the run's, and the operation's place in it.
        prompt_tokens: Tokens of the prompt.
        cached_tokens: Those of them that were not computed anew.
        generated_tokens: Tokens of the output, dropped ones at the end included.
        forced_tokens: Those of them that a constraint left no choice about; none without one.
        scored_tokens: Tokens of choices that were scored.
        seed: The seed of its draws.
        finish: "stop", "eos", "length", "complete" or "forced_close"; None for a select.
        stop: The stop text, what matched a stop pattern, or the token id that ended it.
        logprob: Sum of ``logprobs``; for a select the joint log-probability of what was chosen.
        tokens: All sampled token ids.
        logprobs: The model's log-probability of each token; for a select the joint one of each
            choice by its member (empty where a single choice needed no scoring).
        top_logprobs: The likeliest tokens at the place of each, where asked for.
        input_logprobs: Log-probabilities of the prompt's tokens, where asked for.
        samples: For n above 1 the metadata of each sample; the rest is then the first one's, with
            which the state goes on.
        probs: The probability of each token among those that could be drawn, where
            ``return_logprob`` asked for it; for a select those of the choices by their members,
            which sum to 1.
        top_probs: The likeliest of those at the place of each token, as many as
            ``top_logprobs``.
        margin: Select: how much likelier the likeliest one is than the next.
        entropy: Select: of ``probs``, in nats.
        scores: Select: what the choices method gave each member; empty where it gives none.
        choices: Select: tokens and their log-probabilities of each member.
        method: Select: the name of the choices method.
        method_info: Select: what a choices method of the program's own said of its decision.
        report: What `get_meta_info` was asked to tell.
        text: The raw text of a generation.
        constraint: What it had to be; None: anything.
        provenance: How each token came about, where asked for.
        thought: What the model wrote before it, hidden, where ``think`` asked for that.
        tries: How many values validators of the program's own were offered; 1 where there are
            none.
        places: Where the tokens of a constrained output stand in its text, where
            ``return_logprob`` asked for their probabilities.
    """

    id: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    scored_tokens: int = 0
    seed: int | None = None
    finish: FinishReason | None = None
    stop: str | int | None = None
    logprob: float = 0.0
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] | Mapping[Any, float] = ()
    top_logprobs: tuple[TopLogprobs, ...] = ()
    input_logprobs: InputLogprobs | None = None
    samples: tuple[Meta, ...] = ()
    probs: Any = ()
    top_probs: tuple[TopProbs, ...] = ()
    margin: float | None = None
    entropy: float | None = None
    scores: Mapping[Any, float] = field(default_factory=dict)
    choices: Mapping[Any, ChoiceScore] = field(default_factory=dict, repr=False)
    method: str | None = None
    method_info: Mapping[str, Any] | None = field(default=None, repr=False)
    report: Report = field(default=SILENT, repr=False)
    text: str = field(default="", repr=False)
    constraint: Spec | None = field(default=None, repr=False)
    provenance: tuple[Provenance, ...] = field(default=(), repr=False)
    thought: str = field(default="", repr=False)
    tries: int = field(default=1, repr=False)
    places: tuple[Place, ...] = field(default=(), repr=False)

    def __repr__(self) -> str:
        """What there is to say; the tokens of each choice are left to ``choices``."""
        shown = [(f.name, getattr(self, f.name)) for f in fields(self) if f.repr]
        said = [f"{name}={value!r}" for name, value in shown if value not in (None, (), {})]
        return f"Meta({', '.join(said)})"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        told = {f.name: getattr(self, f.name) for f in fields(self) if f.repr}
        told = {name: value for name, value in told.items() if value not in (None, (), {})}
        shown = [(name, markup.line(markup.middle(_brief(x), 600))) for name, x in told.items()]
        return {"text/plain": repr(self), "text/html": str(markup.facts("metadata", shown))}

    @property
    def sampled_tokens(self) -> int:
        """Tokens of the output that were drawn: generated less forced ones."""
        return self.generated_tokens - self.forced_tokens

    @property
    def captures(self) -> dict[str, Capture]:
        """Parts of a constrained text: named groups of a pattern, values of JSON by pointers."""
        return captures(self.constraint, self.text)

    @property
    def confidence(self) -> Parts:
        """The probability of each part of a constrained output, by names as ``lines[0].amount``.

        It is the product of the probabilities with which the part's tokens were drawn, each among
        those that were possible there; "" is all of it. Empty, and every name an error, where
        ``return_logprob=True`` did not ask for them.
        """
        return confidence(self.constraint, self.text, self.places)

    def alternatives(
        self, decode: Callable[[Sequence[int]], str]
    ) -> dict[str, tuple[Alternative, ...]]:
        """As `ProgramState.alternatives`, with what tells how tokens read."""
        return alternatives(self.constraint, self.text, self.places, decode)


def _brief(value: object) -> str:
    """A value as it is written, its fractions in four digits."""
    return _FRACTION.sub(lambda found: f"{float(found[0]):.4g}", repr(value))


def of_output(
    output: Output,
    seed: int,
    request_id: str,
    report: Report,
    constraint: Spec | None,
    thought: str,
    places: tuple[Place, ...] = (),
    tries: int = 1,
) -> Meta:
    """The metadata of a generation."""
    return Meta(
        id=request_id,
        prompt_tokens=output.usage.prompt_tokens,
        cached_tokens=output.usage.cached_tokens,
        generated_tokens=output.usage.generated_tokens,
        forced_tokens=output.usage.forced_tokens,
        seed=seed,
        finish=output.finish.reason,
        stop=output.finish.stop,
        logprob=math.fsum(output.logprobs),
        tokens=output.ids,
        logprobs=output.logprobs,
        top_logprobs=output.top_logprobs,
        input_logprobs=output.input_logprobs,
        probs=output.probs,
        top_probs=output.top_probs,
        report=report,
        text=output.text,
        constraint=constraint,
        provenance=output.provenance,
        thought=thought,
        places=places,
        tries=tries,
    )


def of_samples(samples: tuple[Meta, ...]) -> Meta:
    """The metadata of several samples of one generation."""
    return replace(samples[0], samples=samples)


def of_only_choice(member: object, method: str, seed: int, request_id: str) -> Meta:
    """The metadata of a select among one choice, which nobody needed to score."""
    return Meta(
        id=request_id, seed=seed, probs={member: 1.0}, margin=1.0, entropy=0.0, method=method
    )


def of_choices(
    members: tuple[object, ...],
    choices: tuple[ChoiceScore, ...],
    chosen: int,
    scores: tuple[float, ...] | None,
    usage: Usage,
) -> Meta:
    """The metadata of a select by what its choices scored."""
    sums = joint_logprobs([choice.logprobs for choice in choices])
    probs = softmax(sums)
    return Meta(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        generated_tokens=usage.generated_tokens,
        scored_tokens=usage.scored_tokens,
        logprob=sums[chosen],
        logprobs=dict(zip(members, sums, strict=True)),
        probs=dict(zip(members, probs, strict=True)),
        margin=margin(probs),
        entropy=entropy(probs),
        scores={} if scores is None else dict(zip(members, scores, strict=True)),
        choices=dict(zip(members, choices, strict=True)),
    )
