r"""Offers of tools in a prompt's turns: written by the template that knows of them, else as text.

Turn(tools) "[…]" | Turn(system) "Be kind." | …     a script
Turn(system) "Be kind." | …  + tools for the template          where it knows of tools
Turn(system) "Be kind.\n\nYou can call …" | …                  where it does not
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from lmlang.errors import ModelError, ProgramError
from lmlang.protocol import Text, Tokens, ToolForm
from lmlang.protocol.tools import TOOLS, offered, read_offer
from lmlang.runtime.chat import ChatTemplate
from lmlang.runtime.chat_script import Item, Script, ScriptTurn, ScriptWriter
from lmlang.runtime.tokenizer import Tokenizer

KEPT = 16
"""Lists of tools whose renderings are remembered."""
_PROBE = "lmlang_probe"


def form_of(template: ChatTemplate) -> ToolForm | None:
    """How a template teaches a model to write calls; None: not at all, or in no known form.

    It is asked by a tool without parameters: what the text then says of them is teaching.
    """
    probe = [{"type": "function", "function": {"name": _PROBE, "description": ""}}]
    try:
        told = template.with_tools(probe)
        text = told.text(("user",), ("x",), generation_prompt=True)
    except (ProgramError, ModelError):
        return None
    if _PROBE not in text:
        return None
    if "<tool_call>" in text and '"arguments"' in text:
        return "tagged"
    return "bare" if '"parameters"' in text and "<tool_call>" not in text else None


class OfferingWriter:
    """Lays out scripts with one template, offers of tools in them included. Thread-safe.

    Args:
        tokenizer: The model's tokenizer.
        template: Its chat template.
        say: As of a `ScriptWriter`.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, say: Callable[[str, str], None]
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._say = say
        self._plain = ScriptWriter(tokenizer, template, say)
        self._lock = threading.Lock()
        self._told: OrderedDict[tuple[str, ...], ScriptWriter] = OrderedDict()
        self._form: tuple[ToolForm | None] | None = None

    def items(self, script: Script) -> list[Item]:
        """Everything that the model reads, in order (see `ScriptWriter.items`)."""
        writer, script = self._for(script)
        return writer.items(script)

    def closing(self, script: Script) -> list[str | int]:
        """What closing the open turn writes (see `ScriptWriter.closing`)."""
        writer, script = self._for(script)
        return writer.closing(script)

    def _for(self, script: Script) -> tuple[ScriptWriter, Script]:
        """Who lays out a script, and the script without its offers."""
        if all(turn.role != TOOLS for turn in script.turns):
            return self._plain, script
        offers, script = _without_offers(script)
        if not offers:
            return self._plain, script
        tools = [tool for offer in offers for tool in read_offer(offer)]
        if self._form is None:
            self._form = (form_of(self._template),)
        if self._form[0] is None:
            return self._plain, _with_text(script, offered(tools))
        return self._telling(offers, tools), script

    def _telling(self, offers: tuple[str, ...], tools: Sequence[Any]) -> ScriptWriter:
        with self._lock:
            if offers not in self._told:
                template = self._template.with_tools(list(tools))
                self._told[offers] = ScriptWriter(self._tokenizer, template, self._say)
            self._told.move_to_end(offers)
            while len(self._told) > KEPT:
                self._told.popitem(last=False)
            return self._told[offers]


def _without_offers(script: Script) -> tuple[tuple[str, ...], Script]:
    """The texts of the offers that are whole, and the rest of a script."""
    turns: list[ScriptTurn] = []
    outers: list[tuple[Text | Tokens, ...]] = [script.outers[0]]
    offers = []
    is_open = script.is_open
    for number, turn in enumerate(script.turns):
        behind = script.outers[number + 1] if number + 1 < len(script.outers) else ()
        last = number + 1 == len(script.turns)
        if turn.role != TOOLS:
            turns.append(turn)
            outers.append(behind)
            continue
        if last and script.is_open:
            is_open = False
        else:
            offers.append(turn.text)
        outers[-1] = (*outers[-1], *behind)
    if is_open:
        outers.pop()
    return tuple(offers), Script(tuple(turns), tuple(outers), is_open)


def _with_text(script: Script, text: str) -> Script:
    """A script whose system turn says this too."""
    first = script.turns[0] if script.turns else None
    if first is not None and first.role == "system":
        told = ScriptTurn.of("system", (*first.segments, Text(f"\n\n{text}")))
        return Script((told, *script.turns[1:]), script.outers, script.is_open)
    told = ScriptTurn.of("system", (Text(text),))
    outers = (script.outers[0], (), *script.outers[1:])
    return Script((told, *script.turns), outers, script.is_open)
