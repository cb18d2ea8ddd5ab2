"""Turns that offer tools: as templates write them, else in the system's turn; history stays."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from lmlang.errors import ProgramError
from lmlang.protocol import EndTurn, Prompt, Segment, Text, Tokens, Turn
from lmlang.protocol.tools import offered
from lmlang.runtime.chat import ChatTemplate
from lmlang.runtime.chat_tools import ToolPrompts
from lmlang.runtime.encoder import PromptEncoder
from tests.runtime.test_chat_tools import BARE, TAGGED, TOOLS, XML
from tests.tiny import CHATML, tiny_tokenizer

SYSTEM: list[Segment] = [Turn("system"), Text("Be kind <|im_end|>."), EndTurn()]
OFFER: list[Segment] = [Turn("tools"), Text(json.dumps(TOOLS)), EndTurn()]
ASKED: list[Segment] = [Turn("user"), Text("Hi"), EndTurn()]
CALLED: list[Segment] = [
    Turn("assistant"), Tokens((90, 91, 92), "hij"), Text(" x"), EndTurn(),
    Turn("tool"), Text("21"), EndTurn(),
]  # fmt: skip
BEGUN: list[Segment] = [Turn("assistant")]
ORDERS = {
    "behind the system": [*SYSTEM, *OFFER, *ASKED],
    "first": [*OFFER, *SYSTEM, *ASKED],
    "without a system": [*OFFER, *ASKED],
    "late": [*SYSTEM, *ASKED, *OFFER],
    "text around it": [Text("raw "), *OFFER, Text("more "), *ASKED],
}


def encoder(source: str) -> PromptEncoder:
    return PromptEncoder(tiny_tokenizer(), ChatTemplate(source, bos_token="<|im_start|>"))


def without(segments: list[Segment]) -> list[Segment]:
    at = segments.index(OFFER[0])
    return segments[:at] + segments[at + 3 :]


def messages(segments: list[Segment]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for segment in segments:
        if isinstance(segment, Turn):
            found.append({"role": segment.role, "content": ""})
        elif isinstance(segment, (Text, Tokens)):
            found[-1]["content"] += segment.text
    return found


@pytest.mark.parametrize("order", [name for name in ORDERS if name != "text around it"])
@pytest.mark.parametrize("source", [TAGGED, BARE])
def test_an_offer_is_what_transformers_renders_wherever_it_stands(source: str, order: str) -> None:
    segments = [*ORDERS[order], *CALLED]
    (expected,), _ = render_jinja_template(
        [messages(without(segments))],
        chat_template=source,
        tools=TOOLS,
        add_generation_prompt=True,
        bos_token="<|im_start|>",
    )
    made = encoder(source)
    prompt = Prompt.of(*segments, *BEGUN)
    assert made.render(prompt) == expected
    prompts = ToolPrompts(tiny_tokenizer(), ChatTemplate(source, bos_token="<|im_start|>"))
    whole = prompts.prompt(Prompt.of(*without(segments), *BEGUN), json.dumps(TOOLS))
    assert made.encode(prompt) == list(whole.segments()[0].ids)  # type: ignore[union-attr]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("source", [TAGGED, BARE, CHATML])
def test_a_growing_prompt_keeps_its_tokens_and_encodes_as_at_once(source: str, order: str) -> None:
    segments = [*ORDERS[order], *CALLED, *CALLED, *BEGUN]
    grown, step = encoder(source), Prompt()
    last: list[int] = []
    for at, segment in enumerate(segments):
        step = step.append(segment)
        assert grown.encode(step) == encoder(source).encode(Prompt.of(*segments[: at + 1]))
        if isinstance(segment, Turn) and segment.role == "assistant":
            found = grown.encode(step)
            assert found[: len(last)] == last
            last = found
    assert (90, 91, 92) in {tuple(last[i : i + 3]) for i in range(len(last))}
    assert grown.end_of_turn(step) == encoder(source).end_of_turn(Prompt.of(*BEGUN))


@pytest.mark.parametrize("source", [CHATML, XML])
def test_a_template_that_knows_of_no_tools_has_them_said_by_the_system(source: str) -> None:
    said = offered(TOOLS)
    made = encoder(source).render(Prompt.of(*SYSTEM, *OFFER, *ASKED))
    told = [{"role": "system", "content": f"Be kind <|im_end|>.\n\n{said}"}]
    (expected,), _ = render_jinja_template(
        [[*told, {"role": "user", "content": "Hi"}]], chat_template=source, tools=None
    )
    assert made == expected
    alone = encoder(source).render(Prompt.of(*OFFER, *ASKED))
    assert alone.startswith(f"<|im_start|>system\n{said}<|im_end|>\n<|im_start|>user\nHi")
    ids = encoder(source).encode(Prompt.of(*OFFER))
    controls = [index for index in ids if index in tiny_tokenizer().control_ids]
    assert len(controls) == 2  # what tools say is text


def test_several_offers_are_one() -> None:
    other: list[Any] = [{"type": "function", "function": {"name": "other", "description": "x"}}]
    segments = [*OFFER, Turn("tools"), Text(json.dumps(other)), EndTurn(), *ASKED]
    both = [Turn("tools"), Text(json.dumps([*TOOLS, *other])), EndTurn(), *ASKED]
    for source in (TAGGED, CHATML):
        made = encoder(source)
        assert made.render(Prompt.of(*segments)) == made.render(Prompt.of(*both))


@pytest.mark.parametrize("text", ["", "no JSON", "{}", "[1]", '[{"type": "function"}]', "[" * 999])
def test_an_offer_of_something_else_is_refused(text: str) -> None:
    prompt = Prompt.of(Turn("tools"), Text(text), EndTurn(), *ASKED)
    for source in (TAGGED, CHATML):
        with pytest.raises(ProgramError, match="offers tools, as a list of JSON"):
            encoder(source).encode(prompt)
