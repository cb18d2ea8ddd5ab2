r"""The calls of one choice: the first behind its text or at its beginning, others behind it.

text … <tool_call>\n {"name": …}            a generation under the grammar of calls
       \n</tool_call> ── "\n"? ── END       one token: whether the model goes on or would end
                           ╰─ <tool_call>\n {"name": …}   the next one; the same again ends
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from lmlang.errors import BudgetExceeded
from lmlang.frontend.draws import draw_key
from lmlang.grammar.spec import Regex, Spec
from lmlang.protocol import Backend, Finish, Output, Prompt, Request
from lmlang.server.openai_answers import CALLED, FINISHES, Counted, Token
from lmlang.server.openai_chat import Chat
from lmlang.server.openai_messages import opened, template_text
from lmlang.server.openai_tools import Call, CallReader
from lmlang.server.stream import Work

Works = Callable[[Sequence[Request]], Work]
"""Begins generations; see `Server.work`."""

MAX_CALLS = 32
"""Of one choice."""
_GOES_ON = Regex("\n?")
"""Behind a call: its line's end where another one follows, nothing where the model would end."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What comes next in one choice.

    Args:
        text: More of its content.
        tokens: Tokens of the content, where they are reported.
        call: More of a call.
        call_id: The name of that call.
        number: Which of the choice's calls it is.
        finish: Why it ended, in OpenAI's words.
    """

    text: str = ""
    tokens: tuple[Token, ...] = ()
    call: Call | None = None
    call_id: str = ""
    number: int = 0
    finish: str | None = None


class Calls:
    """Has the model make the calls of one choice that are still to come.

    Args:
        chat: What is asked for.
        asked: The choice's own request.
        work: The choice's generation; further ones take its place.
        backend: What runs them.
        counted: What is counted of the answer.
    """

    def __init__(
        self, chat: Chat, asked: Request, work: Work, backend: Backend, counted: Counted
    ) -> None:
        self._chat = chat
        self._asked = asked
        self._work = work
        self._backend = backend
        self._counted = counted
        self._left = asked.params.max_tokens
        self._prompt = asked.prompt
        self._texts: set[str] = set()  # of the calls that were made
        self._finish = FINISHES["length"]
        self._over = False

    async def behind(self, output: Output, made: int) -> AsyncGenerator[Delta, None]:
        """What comes behind an output; the last has a finish.

        Args:
            output: Text that ended where a call begins, or a call.
            made: How many calls it has: 0 or 1.
        """
        self._took(output)
        if made:
            self._texts.add(output.text)
            self._finish = CALLED
        while made < MAX_CALLS and (not made or await self._goes_on(made)) and self._left > 0:
            async with aclosing(self._call(made)) as call:
                async for delta in call:
                    yield delta
            if self._over:
                break
            made += 1
        yield Delta(finish=self._finish)

    async def _call(self, made: int) -> AsyncGenerator[Delta, None]:
        """One more call; told from where it differs from every call that was made."""
        reader = CallReader(self._chat.form, self._chat.use.callable)
        prompt = opened(self._prompt, self._chat.form, self._backend)
        request = self._request(prompt, "call", made, constraint=self._chat.call)
        held, differs = "", False
        try:
            async with aclosing(self._work.more(request)) as items:
                async for item in items:
                    if not isinstance(item, Output):
                        held += item.text
                        differs = differs or not any(text.startswith(held) for text in self._texts)
                        if not differs:
                            continue
                    elif self._ended(prompt, item):
                        return
                    call, held = reader.add(held), ""
                    if call is not None:
                        yield Delta(call=call, call_id=reader.id, number=made)
        except BudgetExceeded:  # not even the shortest fits: no part of it has been told
            self._over = True

    def _ended(self, prompt: Prompt, output: Output) -> bool:
        """Take a call in; True: it has been made before, and is not told."""
        self._counted.go_on(output.usage)
        self._prompt = prompt
        self._took(output)
        finish = finish_of(output.finish, called=True)
        again = finish == CALLED and output.text in self._texts
        self._finish, self._over = finish, again or finish != CALLED or not self._chat.use.several
        self._texts.add(output.text)
        return again

    async def _goes_on(self, made: int) -> bool:
        """Whether the model would write one more call behind the last."""
        closing = template_text(self._chat.form.closing, self._backend)
        self._prompt = self._prompt.append(closing)
        if self._left < 1:
            return False
        request = self._request(self._prompt, "more", made, constraint=_GOES_ON)
        async with aclosing(self._work.more(request)) as items:
            (output,) = [item async for item in items if isinstance(item, Output)]
        self._counted.go_on(output.usage)
        self._took(output)
        return bool(output.text)

    def _took(self, output: Output) -> None:
        for segment in output.history:
            self._prompt = self._prompt.append(segment)
        self._left -= len(output.ids)

    def _request(self, prompt: Prompt, what: str, made: int, *, constraint: Spec | None) -> Request:
        asked = self._asked
        # Of the first call the key is that of calls alone.
        key = draw_key(asked.draw_key >> 1, what.encode(), str(made) if made else "")
        params = replace(
            asked.params, max_tokens=self._left, stop=(), stop_token_ids=(), min_tokens=0,
            ignore_eos=False,
        )  # fmt: skip
        return replace(
            asked, prompt=prompt, params=params, constraint=constraint, draw_key=key, top_logprobs=0
        )


def finish_of(finish: Finish, *, called: bool) -> str:
    """Why an output has ended, in OpenAI's words."""
    told = FINISHES[finish.reason]
    return CALLED if called and told == "stop" else told
