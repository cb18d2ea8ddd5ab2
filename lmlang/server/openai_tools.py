"""Tools: how a prompt offers them, what a call must look like, and a call read back.

    auto       text … <tool_call>            the model writes; the words that begin a call stop it
                                {"name": …   and from there on the grammar of calls holds
    required   {"name": …                    the grammar holds from the first token on

So an answer is text, or text and then calls, and a call's arguments always follow the schema of
their tool. Several calls are made where the form has tags around each, unless one function is named
or ``parallel_tool_calls`` is false.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from lmlang.errors import LMLangError, quote
from lmlang.grammar.spec import JsonSchema
from lmlang.protocol.tools import CallForm, offered
from lmlang.server.openai_fields import Fields, kind, wrong

MAX_TOOLS = 64
"""Of one request."""
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call.

    Args:
        number: Its place in the request.
        name: A plain word.
        given: Its definition, as it was sent.
        parameters: The schema of its arguments.
    """

    number: int
    name: str
    given: dict[str, Any]
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Which tools a request offers, and whether one must be called.

    Args:
        tools: All that the prompt offers.
        callable: Those that may be called.
        mode: "none", "auto" or "required".
        several: Whether more than one call may be made.
    """

    tools: tuple[Tool, ...] = ()
    callable: tuple[Tool, ...] = ()
    mode: Literal["none", "auto", "required"] = "none"
    several: bool = False

    def listed(self) -> str:
        """The tools as JSON, as a chat template takes them."""
        return json.dumps([tool.given for tool in self.tools], ensure_ascii=False)

    def text(self) -> str:
        """What a system turn says of them."""
        return offered([tool.given for tool in self.tools], self.several)

    def constraint(self, form: CallForm) -> JsonSchema:
        """What a call is: the name of a tool, and arguments that its schema accepts."""
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool.name},
                    # a resource of its own, so that its references mean what they meant
                    form.key: {"$id": f"lmlang:/tools/{tool.number}", **tool.parameters},
                },
                "required": ["name", form.key],
                "additionalProperties": False,
            }
            for tool in self.callable
        ]
        return JsonSchema.of({"anyOf": calls})

    def placed(self, message: str) -> str:
        """A message about the constraint with the places of the request in it."""

        def place(match: re.Match[str]) -> str:
            return f"tools[{self.callable[int(match[1])].number}].function.parameters"

        return re.sub(r"/anyOf/(\d+)/properties/(?:arguments|parameters)", place, message)


def tool_use(fields: Fields) -> ToolUse:
    """The tools of a request and the choice among them.

    Raises:
        Refusal: They are none, or ask for what there is not.
    """
    given = fields.listed("tools")
    if len(given) > MAX_TOOLS:
        raise wrong("tools", f"there are {len(given)} tools: at most {MAX_TOOLS} are allowed.")
    tools = tuple([_tool(number, item) for number, item in enumerate(given)])
    if len({tool.name for tool in tools}) < len(tools):
        raise wrong("tools", "two tools have the same name: give each one of its own.")
    several = fields.flag("parallel_tool_calls", True)
    choice = fields.get("tool_choice")
    if not tools:
        if "tools" in fields:
            raise wrong("tools", "tools is empty: leave it out, or give a tool.")
        if choice is not None and choice != "none":
            raise wrong("tool_choice", "tool_choice is for requests with tools: give some.")
        return ToolUse()
    if choice is None or choice == "auto":
        return ToolUse(tools, tools, "auto", several)
    if choice == "none":
        return ToolUse()
    if choice == "required":
        return ToolUse(tools, tools, "required", several)
    if not isinstance(choice, dict):
        raise wrong(
            "tool_choice",
            'tool_choice must be "none", "auto", "required" or one function, not '
            f"{quote(str(choice)[:40])}.",
        )
    return _chosen(choice, tools, several)


def _chosen(choice: dict[str, Any], tools: tuple[Tool, ...], several: bool) -> ToolUse:
    """The use of tools where the choice among them is an object: of one, or of some."""
    held = Fields(choice, frozenset({"type", "function", "allowed_tools"}), "tool_choice")
    if held.text("type") == "function":
        return ToolUse(tools, (_named(choice, "tool_choice", tools),), "required")
    if held.text("type") != "allowed_tools":
        raise wrong(
            "tool_choice.type",
            f"tool_choice.type is {quote(held.text('type'))}: give function or allowed_tools.",
        )
    place = "tool_choice.allowed_tools"
    some = Fields(held.need("allowed_tools"), frozenset({"mode", "tools"}), place)
    if some.text("mode") not in ("auto", "required"):
        raise wrong(f"{place}.mode", f"{place}.mode must be auto or required.")
    named = [
        _named(item, f"{place}.tools[{number}]", tools).number
        for number, item in enumerate(some.listed("tools"))
    ]
    if not named:
        raise wrong(f"{place}.tools", f"{place}.tools is empty: name a tool.")
    callable = tuple([tool for tool in tools if tool.number in named])
    mode: Literal["auto", "required"] = "required" if some.text("mode") == "required" else "auto"
    return ToolUse(tools, callable, mode, several)


def _named(item: Any, place: str, tools: tuple[Tool, ...]) -> Tool:
    """The tool that an object names."""
    held = Fields(item, frozenset({"type", "function"}), place)
    if held.text("type") != "function":
        raise wrong(f"{place}.type", f"{place}.type is {quote(held.text('type'))}: give function.")
    name = Fields(held.need("function"), frozenset({"name"}), f"{place}.function").text("name")
    found = [tool for tool in tools if tool.name == name]
    if not found:
        raise wrong(place, f"{place} names {quote(name)}, which is not in tools.")
    return found[0]


def _tool(number: int, item: Any) -> Tool:
    place = f"tools[{number}]"
    held = Fields(item, frozenset({"type", "function"}), place)
    if held.text("type") != "function":
        raise wrong(
            f"{place}.type",
            f"{place}.type is {quote(held.text('type'))}: give function.",
        )
    known = frozenset({"name", "description", "parameters", "strict"})
    function = Fields(held.need("function"), known, f"{place}.function")
    name = function.text("name")
    if not NAME.fullmatch(name):
        raise wrong(
            function.path("name"),
            f"{function.path('name')} is {quote(name)}: use at most 64 letters, digits, '_', '-'.",
        )
    function.text("description", "")
    function.flag("strict")  # arguments always follow their schema
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(parameters, dict):
        raise function.mistyped("parameters", "a JSON schema", parameters)
    if parameters.get("type", "object") != "object":
        raise wrong(
            function.path("parameters"),
            f"{function.path('parameters')} describes {kind(parameters.get('type'))}: arguments "
            'are an object; give a schema of the type "object".',
        )
    return Tool(number, name, dict(item), {"type": "object", **parameters})


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool, or a part of one.

    Args:
        name: The tool, in the first part.
        arguments: JSON, or the next piece of it.
    """

    name: str | None
    arguments: str


class CallReader:
    """Reads a call while it is written.

    Args:
        form: How it is written.
        tools: What may be called.
    """

    def __init__(self, form: CallForm, tools: Iterable[Tool]) -> None:
        self.id = f"call_{secrets.token_hex(12)}"
        self._heads = {form.head(tool.name): tool.name for tool in tools}
        self._text = ""
        self._told: int | None = None

    def add(self, text: str) -> Call | None:
        """What more text tells of the call; None: nothing yet."""
        self._text += text
        name = None
        if self._told is None:
            found = [head for head in self._heads if self._text.startswith(head)]
            if not found:
                return None
            name, self._told = self._heads[found[0]], len(found[0])
        # The last character may be the one that closes the call.
        end = max(self._told, len(self._text) - 1)
        piece, self._told = self._text[self._told : end], end
        return Call(name, piece) if piece or name is not None else None


def about_tools(error: LMLangError, use: ToolUse) -> LMLangError:
    """A refusal with the places of the request in its message."""
    message = use.placed(str(error))
    if message != str(error):
        error.args = (message, *error.args[1:])
    return error
