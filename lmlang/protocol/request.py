"""What is asked of a backend: sampling parameters, generations, scores of choices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from lmlang import limits
from lmlang.errors import ProgramError, ProgramTypeError
from lmlang.grammar.search import search_for
from lmlang.grammar.spec import Spec
from lmlang.protocol.prompt import Prompt


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next tokens are drawn; checked on construction.

    Args:
        max_tokens: Tokens at most, 0 to 1,000,000; 0 gives "" with finish "length".
        temperature: 0 is greedy (lowest id on ties); logits are divided by it.
        top_p: Nucleus: the smallest set of tokens whose probability reaches it; in (0, 1].
        top_k: The k likeliest tokens only; -1 (or 0) for all.
        min_p: Only tokens at least this fraction as likely as the likeliest; 0 to 1.
        stop: Texts that end the output; found across token borders, trimmed, never streamed.
        ignore_eos: Go on past the model's own end tokens.
        min_tokens: Until so many tokens, end tokens, control tokens, ``stop_token_ids`` are not
            drawn and stop strings are content.
        stop_token_ids: Tokens that end the output and are not part of its text.
        include_stop: Keep the stop string in the text.
        frequency_penalty: Subtracted from a token's logit for each time it stands in the output;
            -2 to 2.
        presence_penalty: Subtracted once where it stands in the output; -2 to 2.
        repetition_penalty: A positive logit of a token that stands in prompt or output is divided
            by it, a negative one multiplied; above 0, at most 10; 1 is none.
        logit_bias: Pairs of token id and what is added to its logit, -100 to 100.
        stop_regex: Regular expressions whose first match ends the output as a stop text does.
        heal: Where the prompt ends with text whose last token a longer one begins with, let the
            output begin with the characters of that token, which are then no part of its text.

    Raises:
        ProgramError: A value is out of range, or contradicts another.
        GrammarSyntaxError: A pattern of ``stop_regex`` is none, or is not regular.
        GrammarTooLarge: Its automaton would be too large.
    """

    max_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop_regex: tuple[str, ...] = ()
    heal: bool = False

    def __post_init__(self) -> None:
        checked = {
            "max_tokens": limits.integer("max_tokens", self.max_tokens, 0, limits.MAX_TOKENS),
            "temperature": limits.number(
                "temperature", self.temperature, 0.0, limits.MAX_TEMPERATURE
            ),
            "top_p": limits.number("top_p", self.top_p, 0.0, 1.0, above=True),
            "top_k": limits.top_k(self.top_k),
            "min_p": limits.number("min_p", self.min_p, 0.0, 1.0),
            "stop": limits.stop_strings(self.stop),
            "ignore_eos": limits.boolean("ignore_eos", self.ignore_eos),
            "min_tokens": limits.integer("min_tokens", self.min_tokens, 0, limits.MAX_TOKENS),
            "stop_token_ids": limits.token_ids("stop_token_ids", self.stop_token_ids),
            "include_stop": limits.boolean("include_stop", self.include_stop),
            "frequency_penalty": limits.number("frequency_penalty", self.frequency_penalty, -2, 2),
            "presence_penalty": limits.number("presence_penalty", self.presence_penalty, -2, 2),
            "repetition_penalty": limits.number(
                "repetition_penalty", self.repetition_penalty, 0.0, 10.0, above=True
            ),
            "logit_bias": limits.logit_bias(self.logit_bias),
            "stop_regex": limits.stop_strings(self.stop_regex, "stop_regex"),
            "heal": limits.boolean("heal", self.heal),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.min_tokens > self.max_tokens:
            raise ProgramError(
                f"min_tokens={self.min_tokens:,} is more than max_tokens={self.max_tokens:,}: "
                "lower the one or raise the other."
            )
        if self.stop_regex:
            search_for(self.stop_regex)  # which refuses what cannot be searched for


@dataclass(frozen=True, slots=True)
class Tag:
    """Where a request comes from; a backend may schedule by it and shows it in errors.

    Args:
        run_id: Unique to one run of one program.
        op_path: The operation within the run, as in ``"3/fork1.2/0"``.
        priority: The higher, the sooner, where the backend's policy asks for it.
        ahead: How many tokens a backend that keeps what comes behind an output's end is to ask
            its endpoint for, at least; None: as the backend itself was told.
    """

    run_id: str = ""
    op_path: str = ""
    priority: int = 0
    ahead: int | None = None


OnBudget: TypeAlias = Literal["close", "raise"]
"""What happens to a constrained output that its budget would cut: it is completed by the shortest
way, or `BudgetExceeded` is raised."""

LogitsProcessor: TypeAlias = Callable[[tuple[int, ...], Any], Any]
"""A program's own function of the output's ids so far and a row of logits: float32 [V], a tensor
of the backend's, which it changes or returns another for. It runs on the backend's thread, row by
row, and makes every step wait for it."""


@dataclass(frozen=True, slots=True)
class Request:
    """One generation asked for. Its answer is a pure function of these values.

    Args:
        prompt: What the model reads.
        params: How tokens are drawn.
        draw_key: 64 bits; with a token's index and id they make its noise.
        top_logprobs: How many of the likeliest tokens are reported beside each token, 0 to 100.
        input_logprobs_from: Prompt tokens from this index on are reported with their
            log-probabilities, which are then computed and not taken from the cache; None: none.
        tag: Where it comes from; no part of the answer.
        namespace: Whose cache it may use: requests of different namespaces share nothing.
        probs: Whether each token's probability among those that could be drawn is reported.
        constraint: What the output must be; None: anything.
        on_budget: What happens where its budget would cut a constrained output.
        provenance: Whether it is reported how each token of a constrained output came about.
        processor: A function of the program's own that changes logits before they are masked;
            None: none. Only backends in the same process can have one.
        resumed: The first tokens of the output, where whoever asks has received them already:
            they stand, and are not told again. The events go on behind them; the output is the
            whole one. Not beside ``probs``.
        lora: The adapter that the backend knows by this name acts on the model; None: none does.
    """

    prompt: Prompt
    params: SamplingParams = SamplingParams()
    draw_key: int = 0
    top_logprobs: int = 0
    input_logprobs_from: int | None = None
    tag: Tag = field(default=Tag(), compare=False)
    namespace: str = ""
    probs: bool = False
    constraint: Spec | None = None
    on_budget: OnBudget = "close"
    provenance: bool = False
    processor: LogitsProcessor | None = None
    resumed: tuple[int, ...] = ()
    lora: str | None = None

    def __post_init__(self) -> None:
        limits.boolean("probs", self.probs)
        limits.adapter("lora", self.lora)
        limits.boolean("provenance", self.provenance)
        if self.on_budget not in ("close", "raise"):
            raise ProgramError(f'on_budget={self.on_budget!r}: give "close" or "raise".')
        if self.constraint is not None:
            for name in ("min_tokens", "ignore_eos", "stop_regex", "heal"):
                if getattr(self.params, name):
                    raise ProgramError(
                        f"{name} cannot act beside a constraint, which says where the output "
                        "begins and ends: leave one of them out."
                    )
        limits.integer("draw_key", self.draw_key, 0, 2**64 - 1)
        limits.integer("top_logprobs", self.top_logprobs, 0, limits.MAX_TOP_LOGPROBS)
        if self.input_logprobs_from is not None:
            limits.integer("input_logprobs_from", self.input_logprobs_from, 0, limits.MAX_TOKENS)
        if self.resumed:
            self._check_resumed()

    def _check_resumed(self) -> None:
        """Refuse what cannot be gone on with."""
        for token in self.resumed:
            limits.integer("resumed: token id", token, 0, 2**31 - 1)
        if len(self.resumed) > self.params.max_tokens:
            raise ProgramError(
                f"resumed has {len(self.resumed):,} tokens and max_tokens is "
                f"{self.params.max_tokens:,}: they are not of an output of this request."
            )
        if self.probs:
            raise ProgramError(
                "probs cannot be had of tokens that were received before: ask for the whole "
                "output again, without resumed."
            )


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Continuations of one prompt to be scored.

    Args:
        prompt: What the model reads.
        choices: Continuations, distinct and not empty. Each is tokenised with the text before it.
        end_turn: Score the end-of-turn token behind each choice too.
        tag: Where it comes from.
        unconditional: Score the tokens of each choice without the prompt too.
        namespace: Whose cache it may use.
        lora: The adapter that acts on the model, as of a `Request`.
    """

    prompt: Prompt
    choices: tuple[str, ...]
    end_turn: bool = False
    tag: Tag = field(default=Tag(), compare=False)
    unconditional: bool = False
    namespace: str = ""
    lora: str | None = None

    def __post_init__(self) -> None:
        limits.adapter("lora", self.lora)
        if not self.choices:
            raise ProgramError("choices=[]: there is nothing to choose from; give at least one.")
        if len(self.choices) > limits.MAX_CHOICES:
            raise ProgramError(
                f"{len(self.choices):,} choices: at most {limits.MAX_CHOICES:,} are allowed."
            )
        for choice in self.choices:
            if not isinstance(choice, str):
                raise ProgramTypeError(
                    f"a choice is of the type {type(choice).__name__}: choices of a request are "
                    "texts."
                )
            if not choice:
                raise ProgramError("a choice is empty: nothing can be scored; give it some text.")
        if len(set(self.choices)) != len(self.choices):
            twice = next(c for i, c in enumerate(self.choices) if c in self.choices[:i])
            raise ProgramError(f"the choice {twice!r} stands twice: choices must differ.")
