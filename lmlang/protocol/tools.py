r"""Tools in a prompt: who offers them, how a call of one is written, and how its result is told.

    Turn(tools) Text('[{"type": "function", …}]') EndTurn     the offer: shown as templates show it
    Turn(assistant) Text('<tool_call>\n') …                   a call, in the form of the template
    Turn(tool) Text("21 °C") EndTurn                          its result, or of the user in tags

The turn of the role `TOOLS` is none that a model reads: a backend has its template write the tools,
or, where that knows of none, says them in the system's turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmlang.errors import ProgramError, quote
from lmlang.protocol.backend import ToolForm

TOOLS = "tools"
"""The role of the turn that offers tools: a list as JSON, as OpenAI's clients send it."""

TEXT = """You can call these functions:
{tools}
To call one, write nothing but
<tool_call>
{{"name": "its name", "arguments": {{values by its parameters}}}}
</tool_call>"""
"""What a system turn says of tools where the model's chat template cannot."""
SEVERAL = "\nTo call several, write one such block behind the other."
"""What it says besides where several may be called."""
RESULT = "<tool_response>\n{result}\n</tool_response>"
"""A tool's result in a turn of the user, where the template cannot say it."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a call is written.

    Args:
        trigger: What begins a call in free text.
        opening: What stands before its JSON.
        closing: What stands behind it.
        key: The field of the arguments, behind that of the name.
    """

    trigger: str
    opening: str
    closing: str
    key: str

    def written(self, name: str, arguments: str) -> str:
        """A call as the model wrote it."""
        return f"{self.opening}{self.head(name)}{arguments}}}{self.closing}"

    def head(self, name: str) -> str:
        """The JSON of a call up to its arguments."""
        return f'{{"name": "{name}", "{self.key}": '


FORMS: Mapping[ToolForm, CallForm] = {
    "tagged": CallForm("<tool_call>", "<tool_call>\n", "\n</tool_call>", "arguments"),
    "bare": CallForm('{"name":', "", "", "parameters"),
}


def offered(tools: Sequence[Mapping[str, Any]], several: bool = False) -> str:
    """What a system turn says of tools, each given as OpenAI's clients send it."""
    lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
    return TEXT.format(tools="\n".join(lines)) + (SEVERAL if several else "")


def read_offer(text: str) -> list[Any]:
    """The tools of a turn of the role `TOOLS`.

    Raises:
        ProgramError: It holds something else.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(
        isinstance(tool, dict) and isinstance(tool.get("function"), dict) for tool in found
    ):
        raise ProgramError(
            f"a turn of the role {TOOLS!r} offers tools, as a list of JSON, and holds "
            f"{quote(text[:80])}: write s.tools([…]), or take another role."
        )
    return found
