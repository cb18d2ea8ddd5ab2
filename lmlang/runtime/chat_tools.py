"""Prompts whose chat template is told of tools, and text that a client wrote as templates do."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cached_property

from lmlang.protocol import Prompt, Tokens, ToolForm
from lmlang.runtime.chat import ChatTemplate
from lmlang.runtime.chat_offers import form_of
from lmlang.runtime.chat_script import Ids, Item, Literal, Script, ScriptWriter
from lmlang.runtime.tokenizer import Tokenizer


class ToolPrompts:
    """Writes prompts with a template that knows of tools. Thread-safe.

    Args:
        tokenizer: The model's tokenizer.
        template: Its chat template.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = template

    @cached_property
    def form(self) -> ToolForm | None:
        """How the template teaches a model to write calls; None: not at all."""
        return form_of(self._template)

    def prompt(self, prompt: Prompt, tools: str) -> Prompt:
        """A prompt as the ids that the template gives when it is told of tools.

        Args:
            prompt: Its turns.
            tools: A list as JSON, each tool as OpenAI's clients send it. What texts in it spell
                is plain text, as contents of turns are.

        Raises:
            ProgramError: The template refuses the turns.
            ModelError: The template fails.
        """
        template = self._template.with_tools(json.loads(tools))
        writer = ScriptWriter(self._tokenizer, template, lambda matter, sentence: None)
        items = writer.items(Script().then(prompt.nodes()))
        parts = [part for item in items for part in self._parts(item)]
        ids = joined_ids(self._tokenizer, parts)
        return Prompt.of(Tokens(tuple(ids), "".join([item.text for item in items])))

    def _parts(self, item: Item) -> list[str | int]:
        if isinstance(item, Literal):
            return self._tokenizer.split_control(item.text)
        return list(item.ids) if isinstance(item, Ids) else [item.text]


def joined_ids(tokenizer: Tokenizer, parts: Iterable[str | int]) -> list[int]:
    """Ids of a prompt's stretches of plain text, neighbours as one, and ids between them."""
    ids: list[int] = []
    texts: list[str] = []
    for part in (*parts, None):
        if isinstance(part, str):
            texts.append(part)
            continue
        if texts:
            ids += tokenizer.encode("".join(texts), at_start=tokenizer.may_start_behind(ids))
            texts.clear()
        if part is not None:
            ids.append(part)
    return ids
