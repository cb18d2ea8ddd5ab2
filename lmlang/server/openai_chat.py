"""The requests of /v1/chat/completions: a body becomes one generation for each choice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lmlang import limits
from lmlang.errors import LMLangError
from lmlang.frontend.draws import draw_key, fresh_seed
from lmlang.grammar.spec import Ebnf, JsonSchema, Regex, Spec
from lmlang.protocol import Backend, Prompt, Request, SamplingParams, TokenAware
from lmlang.protocol.tools import CallForm
from lmlang.server.config import ServerConfig
from lmlang.server.openai_fields import (
    SAMPLING,
    Fields,
    checked,
    refused,
    sampling,
    seed_of,
    wants_usage,
    wrong,
)
from lmlang.server.openai_messages import conversation
from lmlang.server.openai_tools import NAME, ToolUse, about_tools, tool_use

FIELDS = SAMPLING | {
    *("model", "messages", "logprobs", "top_logprobs", "max_completion_tokens"),
    *("response_format", "tools", "tool_choice", "parallel_tool_calls"),
}


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat that is to be answered.

    Args:
        requests: One for each choice.
        use: Its tools.
        form: How calls are written.
        triggers: What an output in free text stops with where a call begins.
        call: What a call must be; None where none may be made.
        params: The fields that errors are about.
        logprobs: Whether tokens are reported.
        stream: Whether the answer is streamed.
        usage: Whether a stream ends with its usage.
    """

    requests: tuple[Request, ...]
    use: ToolUse
    form: CallForm
    triggers: frozenset[str | int]
    call: JsonSchema | None
    params: dict[str, str]
    logprobs: bool
    stream: bool
    usage: bool

    @property
    def own_stops(self) -> int:
        """How many of the triggers are stop strings, which the client did not ask for."""
        return sum(isinstance(trigger, str) for trigger in self.triggers)

    def refused(self, error: LMLangError) -> LMLangError:
        """An error in the words of this request."""
        told = refused(error, self.params)
        return about_tools(told, self.use) if self.use.callable else told


def chat_of(body: dict[str, Any], backend: Backend, config: ServerConfig) -> Chat:
    """The chat that a body asks for. It encodes the prompt: not for the event loop.

    Raises:
        Refusal: A field is not what it must be, or asks for what there is not.
        LMLangError: The prompt cannot be rendered, or fits no context.
    """
    fields = Fields(body, FIELDS)
    stream, usage = fields.flag("stream"), wants_usage(fields)
    n = fields.integer("n", 1, 1, config.max_samples)
    seed = seed_of(fields)
    logprobs = fields.flag("logprobs")
    top = fields.integer("top_logprobs", 0, 0, config.max_top_logprobs)
    if top and not logprobs:
        raise wrong("top_logprobs", "top_logprobs is for requests with logprobs set to true.")
    use = tool_use(fields)
    constraint, named = constraint_of(fields)
    if constraint is not None and use.callable:
        raise wrong(named, f"{named} and tools contradict each other: leave one of them out.")
    if not isinstance(fields.need("messages"), list):
        raise fields.mistyped("messages", "a list", fields.get("messages"))
    talk = conversation(fields.get("messages"), use, backend)
    if not talk.form.closing:  # nothing tells where one ends and the next one begins
        use = replace(use, several=False)
    params, budget = _params(fields, talk.prompt, backend)
    triggers: frozenset[str | int] = frozenset()
    call = checked("tools", use.constraint, talk.form) if use.callable else None
    if use.mode == "required":
        constraint, named = call, "tools"
        params = replace(params, stop=(), stop_token_ids=())  # which would cut a call
    elif use.mode == "auto":
        triggers = _triggers(talk.form, backend)
        params = _stopped_by(params, triggers)
    base = Request(talk.prompt, params, top_logprobs=top, constraint=constraint)
    seed = fresh_seed() if seed is None else seed
    return Chat(
        tuple([replace(base, draw_key=draw_key(seed, b"", "", i)) for i in range(n)]),
        use,
        talk.form,
        triggers,
        call,
        {"prompt": "messages", "budget": budget, "constraint": named or "tools"},
        logprobs,
        stream,
        usage,
    )


def constraint_of(fields: Fields) -> tuple[Spec | None, str]:
    """What the output must be, and the field that says so; None and "" for anything."""
    given = [name for name in ("response_format", "regex", "ebnf") if name in fields]
    if len(given) > 1:
        raise wrong(given[1], f"{given[0]} and {given[1]} contradict each other: give one.")
    if not given:
        return None, ""
    name = given[0]
    if name == "regex":
        return checked(name, Regex, fields.text(name)), name
    if name == "ebnf":
        return checked(name, Ebnf, fields.text(name)), name
    known = frozenset({"type", "json_schema"})
    held = Fields(fields.get(name), known, name)
    style = held.text("type")
    if style not in ("text", "json_object", "json_schema"):
        raise wrong(
            "response_format.type",
            "response_format.type must be text, json_object or json_schema.",
        )
    if style != "json_schema":
        if "json_schema" in held:
            raise wrong(name, "response_format.json_schema is for the type json_schema.")
        return (None, "") if style == "text" else (JsonSchema.of({"type": "object"}), name)
    known = frozenset({"name", "description", "schema", "strict"})
    inner = Fields(held.need("json_schema"), known, "response_format.json_schema")
    if not NAME.fullmatch(inner.text("name")):
        raise wrong(
            inner.path("name"),
            f"{inner.path('name')} must have at most 64 letters, digits, '_', '-'.",
        )
    inner.text("description", "")
    inner.flag("strict")  # the schema always holds
    schema = inner.need("schema")
    if not isinstance(schema, dict):
        raise inner.mistyped("schema", "a JSON schema", schema)
    return checked(inner.path("schema"), JsonSchema.of, schema), name


def _params(fields: Fields, prompt: Prompt, backend: Backend) -> tuple[SamplingParams, str]:
    """How tokens are drawn, and the field that bounds their number."""
    names = [name for name in ("max_completion_tokens", "max_tokens") if name in fields]
    if len(names) > 1:
        raise wrong("max_tokens", "max_tokens is the old name of max_completion_tokens: give one.")
    if names:
        most = fields.integer(names[0], 0, 1, limits.MAX_TOKENS)
        return sampling(fields, most), names[0]
    room = backend.info().context_length
    used = len(backend.encode(prompt)) if room is not None else 0
    most = max(1, min(limits.MAX_TOKENS, room - used)) if room is not None else limits.MAX_TOKENS
    return sampling(fields, most), "max_completion_tokens"


def _triggers(form: CallForm, backend: Backend) -> frozenset[str | int]:
    """What begins a call: its text, and the control token that reads so, if there is one."""
    if isinstance(backend, TokenAware):
        ids = backend.template_ids(form.trigger)
        if len(ids) == 1 and not backend.token_bytes(ids[0]):
            return frozenset({form.trigger, ids[0]})
    return frozenset({form.trigger})


def _stopped_by(params: SamplingParams, triggers: frozenset[str | int]) -> SamplingParams:
    """Sampling that ends where a call begins."""
    texts = tuple([trigger for trigger in triggers if isinstance(trigger, str)])
    ids = tuple([trigger for trigger in triggers if isinstance(trigger, int)])
    stop_ids = (*params.stop_token_ids, *ids)
    return replace(params, stop=(*params.stop, *texts), stop_token_ids=stop_ids)
