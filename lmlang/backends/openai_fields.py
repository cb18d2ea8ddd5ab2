"""A request as the fields that a server of OpenAI's interface takes, or its refusal by name.

Turn(user) Text("Hi") EndTurn Turn(assistant)   chat         messages: [{"role": "user", …}]
Text("1, 2, ")                                  completions  prompt: "1, 2, "
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lmlang.backends.constrained import refuse_processor
from lmlang.errors import ProgramError, quote
from lmlang.grammar.spec import Ebnf, JsonSchema, Regex, Spec
from lmlang.protocol import EndTurn, Image, Prompt, Request, SamplingParams, Turn
from lmlang.protocol.tools import FORMS, TOOLS, offered, read_offer

MOST_STOPS = 4
"""Stop texts that OpenAI takes; more are looked for here."""
SEED_MASK = 2**31 - 1
"""Seeds that every server can read."""
EXTENSIONS = (
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "regex",
    "ebnf",
)
"""Fields that are not OpenAI's, and that some servers take."""
_PLAIN = SamplingParams()
_CALL = FORMS["tagged"].opening
"""What a message begins with that calls a tool."""


@dataclass(frozen=True, slots=True)
class Service:
    """What a server is, and what it can do.

    Args:
        model: The name it knows the model by.
        chat: Whether it is asked for messages; else for completions of text.
        extensions: Which of `EXTENSIONS` it takes.
        prefill: Fields that have it go on with an assistant's message that ends the list; None:
            it begins a message of its own.
        logprobs: Whether log-probabilities are asked for always.
        limit: The field of the most tokens.
    """

    model: str
    chat: bool
    extensions: frozenset[str]
    prefill: Mapping[str, Any] | None
    logprobs: bool
    limit: str


def fields_of(request: Request, service: Service) -> dict[str, Any]:
    """The fields of a generation.

    Raises:
        ProgramError: It asks for what the server has not.
    """
    _refuse(request, service)
    params, extra = request.params, _extra(request, service)
    fields: dict[str, Any] = {
        "model": service.model,
        service.limit: params.max_tokens,
        "temperature": params.temperature,
    }
    if params.temperature > 0:
        fields["seed"] = request.draw_key & SEED_MASK
    for name in ("top_p", "frequency_penalty", "presence_penalty"):
        if getattr(params, name) != getattr(_PLAIN, name):
            fields[name] = getattr(params, name)
    if params.logit_bias:
        fields["logit_bias"] = {str(token): bias for token, bias in params.logit_bias}
    if params.stop and not stops_here(params):
        fields["stop"] = list(params.stop)
    if service.logprobs or request.top_logprobs or request.probs:  # the last: return_logprob
        top = request.top_logprobs
        fields |= {"logprobs": True, "top_logprobs": top} if service.chat else {"logprobs": top}
    typed = isinstance(request.constraint, JsonSchema)
    if isinstance(request.constraint, JsonSchema):
        fields["response_format"] = schema_format(json.loads(request.constraint.text))
    fields |= prompt_fields(request.prompt, service, extra, typed)
    if extra:
        fields["extra_body"] = extra
    return fields


def prompt_fields(
    prompt: Prompt, service: Service, extra: dict[str, Any], typed: bool = False
) -> dict[str, Any]:
    """The field of the prompt; ``extra`` gains what a prefilled message needs.

    Args:
        prompt: It.
        service: Who is asked.
        extra: Fields of no client.
        typed: Whether the answer is JSON of a schema, which a call of a tool may then be.
    """
    if not service.chat:
        return {"prompt": plain_text(prompt)}
    messages, is_open = messages_of(prompt)
    if is_open and typed and service.prefill is None and messages[-1]["content"] == _CALL:
        messages.pop()  # the JSON that follows is all of the message, and no tag can be in it
    elif is_open:
        if service.prefill is None:
            raise ProgramError(
                f"the assistant's turn has begun with {quote(messages[-1]['content'])}, and a chat "
                "endpoint answers with whole messages: generate at the turn's beginning, use a "
                "completion endpoint (is_chat_model=False), or give prefill=… where the server "
                "can go on in a message."
            )
        extra |= service.prefill
    return {"messages": messages}


def stops_here(params: SamplingParams) -> bool:
    """Whether stops are looked for in what comes, as the server cannot."""
    return params.include_stop or bool(params.stop_regex) or len(params.stop) > MOST_STOPS


def schema_format(schema: object) -> dict[str, Any]:
    """The ``response_format`` of a JSON schema."""
    told = {"name": "output", "schema": schema, "strict": True}
    return {"type": "json_schema", "json_schema": told}


def plain_text(prompt: Prompt) -> str:
    """The text of a prompt for completions.

    Raises:
        ProgramError: It has turns, or a picture.
    """
    parts = []
    for segment in prompt.segments():
        if isinstance(segment, (Turn, EndTurn)):
            raise ProgramError(
                "a completion endpoint has no chat template, so that turns cannot be written: "
                "use is_chat_model=True, or write the prompt as plain text."
            )
        if isinstance(segment, Image):
            raise _no_pictures(segment)
        parts.append(segment.text)
    return "".join(parts)


def messages_of(prompt: Prompt) -> tuple[list[dict[str, str]], bool]:
    """The messages of a chat, and whether the last is an assistant's that has begun.

    Raises:
        ProgramError: Text stands outside of turns, it is not the assistant's turn, or there is a
            picture.
    """
    messages: list[dict[str, str]] = []
    role, parts = "", list[str]()
    for segment in prompt.segments():
        if isinstance(segment, Turn):
            role, parts = segment.role, []
        elif isinstance(segment, EndTurn):
            if role == TOOLS:
                _offer("".join(parts), messages)
            else:
                messages.append({"role": role, "content": "".join(parts)})
            role = ""
        elif isinstance(segment, Image):
            raise _no_pictures(segment)
        elif role:
            parts.append(segment.text)
        elif segment.text.strip():
            raise ProgramError(
                f"the text {quote(segment.text)} stands outside of all turns, and a chat endpoint "
                "takes messages only: put it in s.user(…), or give is_chat_model=False for a "
                "completion endpoint."
            )
    if role != "assistant":
        raise ProgramError(
            f"a chat endpoint answers as the assistant, and {quote(role) if role else 'no'} turn "
            "is open: generate in s.assistant(…)."
        )
    text = "".join(parts)
    if text:
        messages.append({"role": role, "content": text})
    return messages, bool(text)


def _offer(tools: str, messages: list[dict[str, str]]) -> None:
    """Say in the system's message which tools there are: their calls are read here."""
    said = offered(read_offer(tools))
    if messages and messages[0]["role"] == "system":
        messages[0]["content"] += f"\n\n{said}"
    else:
        messages.insert(0, {"role": "system", "content": said})


def _refuse(request: Request, service: Service) -> None:
    refuse_processor(request)
    params = request.params
    asked = {
        "logprob_start_len": request.input_logprobs_from is not None,
        "provenance": request.provenance,
        "resumed": bool(request.resumed),
        "heal": params.heal,
        "lora": request.lora is not None,
    }
    for name, value in asked.items():
        if value:
            raise ProgramError(
                f"{name}: OpenAI's interface has nothing of the kind: leave it out, or use a "
                "Runtime or an lmlang server (lm.connect)."
            )
    if request.constraint is not None:
        _refuse_constraint(request.constraint, service)
        if params.stop or params.stop_token_ids:
            raise ProgramError(
                "stop beside a constraint: the server would cut what is not complete; leave one of "
                "them out."
            )


def _refuse_constraint(spec: Spec, service: Service) -> None:
    name = _name(spec)
    if service.chat if name == "json_schema" else name in service.extensions:
        return
    if name == "json_schema":
        raise ProgramError(
            "json_schema: a completion endpoint has no response_format: use a chat endpoint "
            "(is_chat_model=True)."
        )
    mend = f'name it in extensions=("{name}",) where the server takes it, ' * (name in EXTENSIONS)
    raise ProgramError(
        f"{name}: OpenAI's interface has JSON schemas only: {mend}ask for a structured type, or "
        "use a Runtime or an lmlang server (lm.connect)."
    )


def _name(spec: Spec) -> str:
    """A constraint by the keyword that asks for it."""
    if isinstance(spec, JsonSchema):
        return "json_schema"
    if isinstance(spec, Regex):
        return "regex"
    if isinstance(spec, Ebnf) and spec.root == "root":
        return "ebnf"
    return "choices" if type(spec).__name__ == "Choice" else "this constraint"


def _extra(request: Request, service: Service) -> dict[str, Any]:
    """The fields that are not OpenAI's; ProgramError where the server takes none of them."""
    found: dict[str, Any] = {}
    for name in EXTENSIONS[:6]:
        value = getattr(request.params, name)
        if value == getattr(_PLAIN, name) or (name == "top_k" and value <= 0):
            continue
        if name not in service.extensions:
            raise ProgramError(
                f"{name}: OpenAI's interface has no such field: leave it out, or name it in "
                f'extensions=("{name}",) where the server takes it.'
            )
        found[name] = list(value) if isinstance(value, tuple) else value
    if isinstance(request.constraint, Regex):
        found["regex"] = request.constraint.pattern
    elif isinstance(request.constraint, Ebnf):
        found["ebnf"] = request.constraint.text
    return found


def _no_pictures(image: Image) -> ProgramError:
    return ProgramError(
        f"the prompt holds the picture {quote(image.name)}, and lm.OpenAI sends text only: leave "
        "it out."
    )
