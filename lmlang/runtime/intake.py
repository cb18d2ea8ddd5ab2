"""From requests to sequences: prompts encoded, and what could never run refused at the door."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future

import numpy as np

from lmlang import limits
from lmlang.errors import ContextOverflow, ProgramError, quote
from lmlang.protocol import Generation, Prompt, Request, ScoreRequest, Scores, Text
from lmlang.runtime.cache.radix import IntArray, common_prefix
from lmlang.runtime.chat import ChatTemplate
from lmlang.runtime.constraints import Constrained
from lmlang.runtime.encoder import PromptEncoder
from lmlang.runtime.healing import Healer
from lmlang.runtime.output import OutputStream
from lmlang.runtime.scoring import ScoreJob
from lmlang.runtime.sequence import GenerateTask, Sequence, score_sequence
from lmlang.runtime.tokenizer import Tokenizer


class Intake:
    """Makes sequences for one engine. Thread-safe.

    Args:
        tokenizer: The model's.
        template: How turns are written.
        vocab: Ids that the model has.
        context: Positions that it has.
        kv_tokens: Slots of the KV pool.
        piece: Tokens that one step computes at most.
        loras: Names of the adapters that requests may ask for.

    Attributes:
        encoder: Prompts to token ids.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        vocab: int,
        context: int,
        kv_tokens: int,
        piece: int,
        loras: Collection[str] = (),
    ) -> None:
        self.encoder = PromptEncoder(tokenizer, template)
        self._tokenizer = tokenizer
        self._healer = Healer(tokenizer)
        self._vocab = vocab
        self._context = context
        self._kv_tokens = kv_tokens
        self._piece = piece
        self.loras = tuple(sorted(loras))

    def prompt(self, request: Request) -> list[int]:
        """The ids of a request's prompt.

        Raises:
            LMLangError: The request could never run.
        """
        self._check_lora(request.lora)
        ids = self._encode(request.prompt)
        self._check_room(len(ids), request.params.max_tokens)
        self._check_ids(request)
        return ids

    def sequence(
        self, generation: Generation, prompt: list[int], constraint: Constrained | None
    ) -> Sequence | None:
        """The sequence of a generation, with the tokens that are known already.

        Args:
            generation: Its answer.
            prompt: Its ids; not to be used any more.
            constraint: What it must be, at its beginning.

        Returns:
            None where nothing is to be computed: the generation has ended.
        """
        request = generation.request
        known = [] if constraint is None else constraint.run()
        healing = self._healer.healing(request.prompt, prompt, request.params)
        if healing is not None:
            prompt.pop()
        output = OutputStream(self._tokenizer, request.params, healing, constraint)
        if constraint is not None and constraint.finish is not None and not known:
            if request.resumed:
                raise ProgramError("resumed has tokens, and this request's output is empty.")
            generation.push(output.end_here())
            generation.complete(output.output(len(prompt), 0, None))
            return None
        first_logit = len(prompt) - 1
        if request.input_logprobs_from is not None:
            first_logit = min(first_logit, max(0, request.input_logprobs_from - 1))
        sequence = Sequence(
            np.array(prompt, dtype=np.int64),
            first_logit,
            request.params.max_tokens + (constraint is not None),
            GenerateTask(generation, output),
            tag=request.tag,
            namespace=cache_namespace(request.namespace, request.lora),
            lora=request.lora,
        )
        sequence.generated += known
        return sequence

    def scoring(self, request: ScoreRequest, future: Future[Scores]) -> Sequence:
        """The first sequence of some scores, which knows the others.

        Raises:
            LMLangError: The request could never run.
        """
        self._check_lora(request.lora)
        stem, tails = self._stem_and_tails(request)
        longest = len(stem) + max(map(len, tails))
        self._check_room(longest, 0)
        job = ScoreJob(future, stem, tails, request.unconditional)
        # A piece takes slots for the stem, its nodes and those above them.
        size = max(1, min(self._piece, self._kv_tokens - longest))
        namespace = cache_namespace(request.namespace, request.lora)
        return score_sequence(job, size, request.tag, namespace, request.lora)

    def _stem_and_tails(self, request: ScoreRequest) -> tuple[IntArray, list[list[int]]]:
        """The tokens common to all choices, and what each choice has behind them."""
        encoded = [self._encode(request.prompt.append(Text(choice))) for choice in request.choices]
        # What the first and the last in order have in common, all between them have.
        first, last = (np.array(ids, np.int64) for ids in (min(encoded), max(encoded)))
        common = common_prefix(first, last)
        if common == 0:
            text = self.encoder.render(request.prompt)
            joined = f"the prompt {quote(text)} is one token with the choices"
            raise ProgramError(
                f"{joined if text else 'the prompt is empty'}, so nothing stands before the "
                "choices that could tell them apart: append some more text first."
            )
        end = self.encoder.end_of_turn(request.prompt) if request.end_turn else None
        closing = [] if end is None else [end]
        return np.array(encoded[0][:common], np.int64), [ids[common:] + closing for ids in encoded]

    def _encode(self, prompt: Prompt) -> list[int]:
        """A prompt's ids, all of them the model's own."""
        ids = self.encoder.encode(prompt)
        if ids and not 0 <= min(ids) <= max(ids) < self._vocab:
            raise ProgramError(
                f"the prompt holds token ids from {min(ids):,} to {max(ids):,}, and this model "
                f"has {self._vocab:,}: tokens of one model mean nothing to "
                "another."
            )
        return ids

    def _check_lora(self, name: str | None) -> None:
        """Refuse an adapter that there is none of."""
        if name is None or name in self.loras:
            return
        if not self.loras:
            raise ProgramError(
                f"lora={quote(name)}: this runtime has no adapters: leave it out, or make the "
                "Runtime with lora={name: folder}."
            )
        known = ", ".join(map(quote, self.loras[:16]))
        more = f" and {len(self.loras) - 16:,} more" if len(self.loras) > 16 else ""
        raise ProgramError(
            f"lora={quote(name)} is no adapter of this runtime: give one of {known}{more}."
        )

    def _check_ids(self, request: Request) -> None:
        """Refuse token ids that the model does not have."""
        params = request.params
        highest = self._tokenizer.vocab_size - 1
        for token in params.stop_token_ids:
            limits.integer("stop_token_ids: token id", token, 0, highest)
        for token in request.resumed:
            limits.integer("resumed: token id", token, 0, highest)
        for token, _ in params.logit_bias:
            limits.integer("logit_bias: token id", token, 0, highest)

    def _check_room(self, prompt: int, max_tokens: int) -> None:
        """Refuse at the door what could never run."""
        if prompt == 0:
            raise ProgramError("the prompt is empty: append some text or a turn before generating.")
        if prompt + max_tokens > self._context:
            raise ContextOverflow(
                f"{_wanted(prompt, max_tokens)}, and the model's context holds {self._context:,}: "
                f"shorten the prompt{' or lower max_tokens' if max_tokens else ''}."
            )
        if prompt + max_tokens > self._kv_tokens:
            raise ContextOverflow(
                f"{_wanted(prompt, max_tokens)}, and the KV pool holds {self._kv_tokens:,}: "
                "lower max_tokens, or make the Runtime with a larger kv_tokens."
            )


def cache_namespace(namespace: str, lora: str | None) -> str:
    """Whose part of the cache it is: no two pairs of namespace and adapter have the same."""
    if lora is None and not namespace.startswith("lora "):
        return namespace
    return f"lora {lora!r} {namespace}"


def _wanted(prompt: int, max_tokens: int) -> str:
    """How many tokens a request wants, in words; without max_tokens it scores or prefills."""
    tokens = "1 token" if prompt == 1 else f"{prompt:,} tokens"
    if not max_tokens:
        return f"the prompt (with its longest choice, if it has any) has {tokens}"
    return (
        f"the prompt has {tokens} and max_tokens is {max_tokens:,}, together "
        f"{prompt + max_tokens:,}"
    )
