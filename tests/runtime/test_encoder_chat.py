"""Chats to ids: as their templates render them, trimmed and dropped where they do, told once."""

from __future__ import annotations

import logging

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmlang.errors import ModelError, ProgramError
from lmlang.protocol import EndTurn, Prompt, Text, Tokens, Turn
from lmlang.runtime.chat import ChatTemplate
from lmlang.runtime.encoder import PromptEncoder
from tests.runtime.chats import CONTENT as TURN_TEXT
from tests.runtime.chats import ORDERS, TRAITS, by_transformers
from tests.runtime.test_encoder import PROPERTY, CountingTemplate, conversation, counting, whole
from tests.tiny import tiny_template, tiny_tokenizer


def trait(name: str, **more: bool) -> PromptEncoder:
    template = ChatTemplate(TRAITS[name], "<|im_start|>", "<|im_end|>")
    return PromptEncoder(tiny_tokenizer(**more), template)


@PROPERTY
@given(data=st.data(), name=st.sampled_from(sorted(TRAITS)))
def test_rendered_chats_are_the_templates_own_rendering_of_their_messages(data, name):
    roles = data.draw(ORDERS)
    texts = data.draw(st.lists(TURN_TEXT, min_size=len(roles), max_size=len(roles)))
    turns = list(zip(roles, texts, strict=True))
    encoder = trait(name)
    tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    source = TRAITS[name]
    prompt = conversation(turns)
    for prompted in (False, True):
        try:
            expected = by_transformers(source, turns, prompted, **tokens)
        except jinja2.TemplateError:
            with pytest.raises((ProgramError, ModelError)):
                encoder.render(prompt.append(Turn("assistant")) if prompted else prompt)
        else:
            end = [Turn("assistant"), Text(" Sure, ")] if prompted else []
            added = Prompt.of(*prompt.segments(), *end)
            assert encoder.render(added) == expected + " Sure, " * prompted
            assert encoder.encode(added) == whole(encoder, added)


@pytest.mark.parametrize("name", ["trims", "trims what it joins", "default system"])
def test_texts_around_turns_are_plain_text_where_they_stand(name):
    encoder = trait(name)
    turns = [(Turn("user"), Text("a"), EndTurn()), (Turn("assistant"), Text("b"), EndTurn())]
    inner = encoder.render(Prompt.of(*turns[0], *turns[1]))
    marks = [Text("(1<|im_end|>)"), Text("(2)"), Text("(3)")]
    prompt = Prompt.of(marks[0], *turns[0], marks[1], *turns[1], marks[2])
    text = encoder.render(prompt)
    begins = "<|im_start|>" if "bos_token" in TRAITS[name] else ""
    assert text.startswith(begins + "(1<|im_end|>)")
    assert text.endswith("(3)")
    assert text.replace("(1<|im_end|>)", "").replace("(2)", "").replace("(3)", "") == inner
    assert text.index("a") < text.index("(2)") < text.index("b")
    assert encoder.encode(prompt) == whole(encoder, prompt)


@pytest.mark.parametrize("add_bos", [False, True])
@pytest.mark.parametrize("raw", [(), (Text("hello"),), (Tokens((5, 6), "ab"),)])
def test_the_beginning_comes_once_and_first_whoever_writes_it(add_bos, raw):
    encoder = trait("trims", add_bos=add_bos)
    ids = encoder.encode(Prompt.of(*raw, Turn("user"), Text("x"), EndTurn(), Turn("assistant")))
    assert ids[0] == 1
    assert ids.count(1) == 1


def test_a_role_marker_that_is_also_the_beginning_stays_in_its_turn():
    prompt = Prompt.of(Text("hello"), Turn("user"), Text("x"), EndTurn())
    encoder = PromptEncoder(tiny_tokenizer(), tiny_template())
    assert encoder.render(prompt) == "hello<|im_start|>user\nx<|im_end|>\n"


def test_generated_tokens_stay_where_the_template_trims_nothing_of_them(caplog):
    tokenizer = tiny_tokenizer()
    odd = (*tokenizer.encode("h"), *tokenizer.encode("e"))
    encoder = trait("trims")
    turn = (Turn("assistant"), Text(" \n"), Tokens(odd, "he"), Text("y \n"), EndTurn())
    ids = encoder.encode(Prompt.of(*turn))
    assert encoder.render(Prompt.of(*turn)) == "<|im_start|>[assistant]\nhey<|im_end|>"
    at = ids.index(odd[0])
    assert tuple(ids[at : at + 2]) == odd
    assert not caplog.records


def test_generated_white_space_at_an_edge_is_trimmed_and_that_is_said_once(caplog):
    tokenizer = tiny_tokenizer()
    space = tuple(tokenizer.encode(" world the"))
    encoder = trait("trims")
    with caplog.at_level(logging.WARNING, "lmlang"):
        for role in ("user", "assistant"):
            prompt = Prompt.of(Turn(role), Tokens(space, " world the"), EndTurn())
            ids = encoder.encode(prompt)
    assert ids[-1 - len(space[1:]) : -1] == list(space[1:])
    assert encoder.render(prompt).endswith("\nworld the<|im_end|>")
    assert [record.name for record in caplog.records] == ["lmlang"]
    assert "trims white space" in caplog.text


def test_white_space_that_the_template_writes_itself_keeps_the_token_that_holds_it(caplog):
    tokenizer = tiny_tokenizer()
    answer = tuple(tokenizer.encode(" world"))
    encoder = trait("trims what it joins")
    opened = Prompt.of(Turn("user"), Text("a"), EndTurn(), Turn("assistant"))
    answered = opened.append(Tokens(answer, " world"))
    before = encoder.encode(answered)
    closed = answered.append(EndTurn())
    assert encoder.render(closed) == "<|im_start|>(a) world <|im_end|>"
    assert encoder.encode(closed)[: len(before)] == before
    assert not caplog.records


def test_thinking_that_the_template_drops_is_dropped_and_that_is_said_once(caplog):
    tokenizer = tiny_tokenizer()
    encoder = trait("drops thinking")
    answer = "<think>hello</think>\nthe world"
    first = conversation([("user", "a")]).append(Turn("assistant"))
    first = first.append(Tokens(tuple(tokenizer.encode(answer)), answer))
    encoder.encode(first)
    for number in range(3):
        first = first.append(EndTurn()).append(Turn("user")).append(Text(f"and {number}"))
        encoder.encode(first)
        first = first.append(EndTurn()).append(Turn("assistant"))
        assert encoder.encode(first) == whole(encoder, first)
        assert "hello" not in encoder.render(first)
    assert encoder.render(first).count("assistant\nthe world<|im_end|>") == 1
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len(set(said)) == 2
    assert "drops or rewrites" in said[0] + said[1]


def test_a_long_chat_costs_each_time_what_is_new():
    tokenizer = counting()
    template = CountingTemplate(TRAITS["trims"], "<|im_start|>", "<|im_end|>")
    encoder = PromptEncoder(tokenizer, template)
    prompt = Prompt()
    for number in range(200):
        for segment in (Turn("user"), Text(f"hello {number} " * 5), EndTurn(), Turn("assistant")):
            prompt = prompt.append(segment)
        tokenizer.characters = 0
        encoder.encode(prompt)
        assert tokenizer.characters < 300
        prompt = prompt.append(Tokens((5, 6), "ab"))
        encoder.encode(prompt)
        prompt = prompt.append(EndTurn())
    assert template.runs == 200


def test_forks_that_end_the_turn_they_share_cost_their_own_part_each():
    tokenizer = counting()
    encoder = PromptEncoder(tokenizer, ChatTemplate(TRAITS["trims"], "<|im_start|>"))
    shared = Prompt.of(Turn("system"), Text("hello the world " * 500), EndTurn(), Turn("user"))
    for number in range(64):
        child = shared.append(Text(f"question {number}")).append(EndTurn())
        encoder.encode(child.append(Turn("assistant")))
    assert tokenizer.characters < 64 * 150 + 2 * 16 * 500


def test_a_long_chat_of_many_texts_between_turns_asks_the_template_once_for_each():
    template = CountingTemplate(TRAITS["trims"], "<|im_start|>", "<|im_end|>")
    encoder = PromptEncoder(tiny_tokenizer(), template)
    prompt = Prompt()
    for _ in range(100):
        for segment in (Turn("user"), Text("x"), EndTurn(), Text("\n")):
            prompt = prompt.append(segment)
        encoder.encode(prompt)
    assert template.runs == 100


def test_a_picture_is_refused_by_its_name():
    class Picture:
        name = "cat.png"

    encoder = PromptEncoder(tiny_tokenizer(), tiny_template())
    prompt = Prompt.of(Turn("user"), Picture())  # type: ignore[arg-type]
    for use in (encoder.encode, encoder.render):
        with pytest.raises(ProgramError, match=r"'cat\.png'.*no vision"):
            use(prompt)
