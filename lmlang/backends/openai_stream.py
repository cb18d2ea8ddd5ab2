"""One generation on a server of OpenAI's interface: events as parts come, then the output."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from lmlang.backends.openai_ahead import Ahead, Aheads, can_run_ahead, cut
from lmlang.backends.openai_answer import Answer, Token, TokenTexts, checked, grammar_of
from lmlang.backends.openai_client import OpenAIClient
from lmlang.backends.openai_fields import Service, fields_of, plain_text, stops_here
from lmlang.backends.retries import Again, Retries
from lmlang.errors import BackendError
from lmlang.grammar.grammar import Grammar
from lmlang.grammar.stops import StopMatcher
from lmlang.protocol import Event, Finish, Generation, Output, Text, Usage


class OpenAIStream:
    """A generation, and what its answer is told by.

    Args:
        generation: What everything is told to.
        service: What is asked.
        texts: Gives tokens their ids.
        aheads: What is known beyond the ends of earlier outputs.
        ahead_tokens: Tokens that are asked for at least, for outputs to come; None: none are.

    Raises:
        ProgramError: The server cannot do what is asked.
    """

    def __init__(
        self,
        generation: Generation,
        service: Service,
        texts: TokenTexts,
        aheads: Aheads,
        ahead_tokens: int | None,
    ) -> None:
        self._generation = generation
        self._request = generation.request
        self._service = service
        self._texts = texts
        self._aheads = aheads
        self._ahead_tokens = ahead_tokens if can_run_ahead(self._request) else None
        self._fields = fields_of(self._request, service)
        if self._ahead_tokens is not None:  # so that it is known where its tokens end
            self._fields["logprobs"] = self._request.top_logprobs
        self._grammar: Grammar | None = None
        self._told = 0
        """Tokens that events have told."""
        self._begun = False

    async def read(self, client: OpenAIClient) -> None:
        """Tell the generation everything, to its end."""
        if self._request.constraint is not None:
            self._grammar = await asyncio.to_thread(grammar_of, self._request.constraint)
        async with client.pace.place:
            if self._ahead_tokens is not None and await self._ahead(client, self._ahead_tokens):
                return
            await client.pace.retrying(partial(self._attempt, client))

    # ------------------------------------------------------------------ one answer, as it comes

    async def _attempt(self, client: OpenAIClient, retries: Retries) -> None:
        params = self._request.params
        here = stops_here(params)
        matcher = StopMatcher(params.stop, params.stop_regex) if here else StopMatcher(())
        answer, kept, stop = Answer(self._service.chat, self._texts), "", None
        try:
            async with aclosing(client.chunks(self._service.chat, self._fields)) as chunks:
                async for chunk in chunks:
                    shown, stop = matcher.push(answer.take(chunk))
                    kept += shown
                    if stop is not None:
                        break
                    if self._grammar is None:
                        self._tell(answer.tokens, shown)
        except Again as again:
            if answer.reason is None:
                raise again.error if self._begun else again from None
        if stop is not None:
            finish, last = Finish("stop", stop), shown + stop * params.include_stop
            kept += stop * params.include_stop
        elif answer.reason is None:
            lost = Again(client.lost("the answer has no end"))
            raise lost.error if self._begun else lost
        else:
            finish, last = answer.finish(self._request), matcher.finish()
            kept += last
        if self._grammar is not None:
            kept = last = await asyncio.to_thread(
                checked, kept, finish, self._request, self._grammar
            )
            finish = Finish("complete")
        self._check_told(answer)
        self._end(answer.tokens, last, kept, finish, answer.usage())

    def _tell(self, tokens: Sequence[Token], text: str, finish: Finish | None = None) -> None:
        """Tell the tokens that have not been told yet, and some text."""
        new = tokens[self._told :]
        if not (new or text or finish):
            return
        self._begun = True
        event = Event(
            self._told,
            tuple([token.id for token in new]),
            text,
            tuple([token.logprob for token in new]),
            finish,
            self._tops(new),
        )
        self._told = len(tokens)
        self._generation.push(event)

    def _end(
        self, tokens: Sequence[Token], last: str, text: str, finish: Finish, usage: Usage
    ) -> None:
        self._tell(tokens, last, finish)
        self._generation.complete(
            Output(
                text=text,
                ids=tuple([token.id for token in tokens]),
                logprobs=tuple([token.logprob for token in tokens]),
                finish=finish,
                usage=usage,
                history=(Text(text),) if text else (),
                top_logprobs=self._tops(tokens),
            )
        )

    def _tops(self, tokens: Sequence[Token]) -> tuple[Any, ...]:
        most = self._request.top_logprobs
        return tuple([token.top[:most] for token in tokens]) if most else ()

    def _check_told(self, answer: Answer) -> None:
        """Refuse an answer without the log-probabilities that were asked for."""
        if "logprobs" in self._fields and answer.text and not answer.tokens:
            raise BackendError(
                "the server told no log-probabilities, which were asked for: leave out "
                "return_logprob, top_logprobs_num and logprobs, or use a server that has them."
            )

    # ------------------------------------------------------------------ running ahead

    async def _ahead(self, client: OpenAIClient, most: int) -> bool:
        """End the generation by what is known, or by a long answer; False where neither can."""
        request, prompt = self._request, plain_text(self._request.prompt)
        known = self._aheads.known(request, prompt)
        made = None if known is None else cut(*known, request.params)
        if known is not None and made is not None:
            count, text, finish = made
            self._end(known[0][:count], text, text, finish, Usage())
            return True
        answer = await client.pace.retrying(partial(self._long_answer, client, most))
        self._check_told(answer)
        tokens = tuple(answer.tokens)
        if "".join([token.text for token in tokens]) != answer.text:
            return False  # tokens that are parts of characters: nobody can say where they end
        ended = answer.finish(request).reason != "length"
        made = cut(tokens, ended, request.params)
        if made is None:
            return False
        self._aheads.keep(request, Ahead(prompt, tokens, ended))
        count, text, finish = made
        self._end(tokens[:count], text, text, finish, answer.usage())
        return True

    async def _long_answer(self, client: OpenAIClient, most: int, _: Retries) -> Answer:
        fields = {name: value for name, value in self._fields.items() if name != "stop"}
        limit = self._service.limit
        fields[limit] = max(most, fields[limit])
        answer = Answer(False, self._texts)
        async with aclosing(client.chunks(False, fields)) as chunks:
            async for chunk in chunks:
                answer.take(chunk)
        if answer.reason is None:
            raise Again(client.lost("the answer has no end"))
        return answer
