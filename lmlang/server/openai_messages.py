"""OpenAI's messages as a prompt: turns, with tools, calls and results written as the model knows.

{"role": "developer", "content": "Be kind."}            Turn(system) Text("Be kind.") EndTurn
{"role": "user", "content": [{"type": "text", …}]}      Turn(user) Text(…) EndTurn
{"role": "assistant", "tool_calls": […]}                Turn(assistant) Text("<tool_call>…") …
{"role": "tool", "content": "21 °C"}                    Turn(tool), or of the user in tags
                                                        Turn(assistant), which stays open
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from lmlang.errors import quote
from lmlang.protocol import Backend, EndTurn, Prompt, Segment, Text, TokenAware, Tokens, ToolAware
from lmlang.protocol import Turn as TurnBegins
from lmlang.protocol.tools import FORMS, RESULT, CallForm
from lmlang.server.openai_fields import Fields, kind, wrong
from lmlang.server.openai_tools import NAME, ToolUse

MAX_MESSAGES = 4_096
"""Of one conversation."""

_COMMON = frozenset({"role", "content"})
_KNOWN = {
    "system": _COMMON,
    "developer": _COMMON,
    "user": _COMMON,
    "assistant": _COMMON | {"tool_calls", "refusal", "annotations"},
    "tool": _COMMON | {"tool_call_id"},
}
"""Fields of a message by its role. Null counts as none, as in a message that is sent back."""

UNAVAILABLE = frozenset({"audio", "function_call", "name"})
"""Fields of messages that chat templates have no place for; a tool's result may have a name."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What the model reads, and how it writes calls.

    Args:
        prompt: All turns, the answer's open.
        form: How calls are written.
    """

    prompt: Prompt
    form: CallForm


def conversation(messages: list[Any], use: ToolUse, backend: Backend) -> Conversation:
    """The prompt of a chat.

    Raises:
        Refusal: A message is none, or holds what the model cannot read.
        ProgramError: The chat template refuses the turns.
    """
    if not messages:
        raise wrong("messages", "messages is empty: give at least one.")
    if len(messages) > MAX_MESSAGES:
        raise wrong(
            "messages", f"there are {len(messages):,} messages: at most {MAX_MESSAGES:,} are taken."
        )
    native = backend.tool_form() if isinstance(backend, ToolAware) else None
    form = FORMS[native or "tagged"]
    turns = [
        _turn(item, f"messages[{number}]", form, native is not None)
        for number, item in enumerate(messages)
    ]
    if use.tools and native is None:
        turns = _offering(turns, use.text())
    segments: list[Segment] = []
    for role, text in turns:
        segments += [TurnBegins(role), Text(text), EndTurn()]
    prompt = Prompt.of(*segments, TurnBegins("assistant"))
    if use.tools and native is not None:
        assert isinstance(backend, ToolAware)
        prompt = backend.with_tools(prompt, use.listed())
    if use.mode == "required":
        prompt = opened(prompt, form, backend)
    return Conversation(prompt, form)


def opened(prompt: Prompt, form: CallForm, backend: Backend) -> Prompt:
    """A prompt behind which only the JSON of a call comes."""
    return prompt.append(template_text(form.opening, backend)) if form.opening else prompt


def template_text(text: str, backend: Backend) -> Segment:
    """Text in which the spelling of a control token is one, where the backend has such tokens."""
    if isinstance(backend, TokenAware):
        return Tokens(tuple(backend.template_ids(text)), text)
    return Text(text)


def _offering(turns: list[tuple[str, str]], offer: str) -> list[tuple[str, str]]:
    """The turns with an offer of tools in the first turn, which is the system's."""
    if turns[0][0] == "system":
        return [("system", f"{turns[0][1]}\n\n{offer}"), *turns[1:]]
    return [("system", offer), *turns]


def _turn(item: Any, place: str, form: CallForm, native: bool) -> tuple[str, str]:
    """The role and the text of a message."""
    if not isinstance(item, dict):
        raise wrong(place, f"{place} must be an object, not {kind(item)}.", "invalid_type")
    role = item.get("role")
    if role is None:
        raise wrong(
            f"{place}.role", f"{place} has no role: give one.", "missing_required_parameter"
        )
    if not isinstance(role, str) or role not in _KNOWN:
        known = ", ".join(_KNOWN)
        raise wrong(f"{place}.role", f"{place}.role is {_shown(role)}: give one of {known}.")
    for name in sorted(UNAVAILABLE):
        if item.get(name) is not None and role != "tool":
            raise wrong(
                f"{place}.{name}",
                f"{place}.{name} is not available here: leave it out.",
                "unsupported_parameter",
            )
    held = Fields(item, _KNOWN[role] | UNAVAILABLE, place)
    if role == "assistant":
        return role, _answer(held, form)
    text = _content(held, held.need("content"))
    if role == "tool":
        held.text("tool_call_id")
        return ("tool", text) if native else ("user", RESULT.format(result=text))
    return ("system" if role == "developer" else role), text


def _answer(held: Fields, form: CallForm) -> str:
    """The text of an assistant's message, its calls written as the model wrote them."""
    content = held.get("content") if "content" in held else held.text("refusal", "")
    text = _content(held, content)
    if "content" not in held and "refusal" not in held and "tool_calls" not in held:
        held.need("content")
    calls = [
        _call(item, f"{held.path('tool_calls')}[{number}]", form)
        for number, item in enumerate(held.listed("tool_calls"))
    ]
    return "\n".join([text, *calls] if text else calls)


def _call(item: Any, place: str, form: CallForm) -> str:
    held = Fields(item, frozenset({"id", "type", "function", "index"}), place)
    if held.text("type", "function") != "function":
        raise wrong(f"{place}.type", f"{place}.type is {_shown(held.get('type'))}: give function.")
    function = Fields(
        held.need("function"), frozenset({"name", "arguments"}), held.path("function")
    )
    name, arguments = function.text("name"), function.text("arguments")
    if not NAME.fullmatch(name):
        raise wrong(function.path("name"), f"{function.path('name')} is no name of a function.")
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        path = function.path("arguments")
        raise wrong(path, f"{path} is no JSON object: send what the model wrote.")
    return form.written(name, arguments)


def _content(held: Fields, content: Any) -> str:
    """A content as text; parts stand on lines of their own."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise held.mistyped("content", "a string or a list of parts", content)
    texts = []
    for number, part in enumerate(content):
        place = f"{held.path('content')}[{number}]"
        if not isinstance(part, dict):
            raise wrong(place, f"{place} must be an object, not {kind(part)}.", "invalid_type")
        name = part.get("type")
        if name not in ("text", "refusal"):
            raise wrong(
                f"{place}.type",
                f"{place} is of the type {_shown(name)}: this model reads text alone.",
                "unsupported_content",
            )
        texts.append(Fields(part, frozenset({"type", str(name)}), place).text(str(name)))
    return "\n".join(texts)


def _shown(value: object) -> str:
    return quote(value[:40]) if isinstance(value, str) else kind(value)
