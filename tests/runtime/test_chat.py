"""What templates write around contents: as transformers renders them, whatever contents hold."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.errors import ModelError, ProgramError
from lmlang.runtime.chat import PLAIN_TEMPLATE, ChatTemplate
from lmlang.runtime.chat_trace import Piece, Rewritten
from tests.reference import embedded, reference_tokenizer
from tests.runtime.chats import BOS, CONTENT, EOS, ORDERS, TRAITS, by_transformers
from tests.tiny import CHATML, tiny_template

SYSTEM = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n"
)


def ours(source: str) -> ChatTemplate:
    return ChatTemplate(source, BOS, EOS)


@settings(max_examples=400)
@given(data=st.data(), name=st.sampled_from(sorted(TRAITS)), prompted=st.booleans())
def test_renderings_equal_those_of_transformers(data, name, prompted):
    template = ours(TRAITS[name])
    for _ in range(3):  # the later ones may be put together from the first
        roles = data.draw(ORDERS)
        contents = data.draw(st.lists(CONTENT, min_size=len(roles), max_size=len(roles)))
        turns = list(zip(roles, contents, strict=True))
        try:
            expected = by_transformers(TRAITS[name], turns, prompted)
        except jinja2.TemplateError as error:
            with pytest.raises((ProgramError, ModelError), match=str(error)[:20]):
                template.text(tuple(roles), tuple(contents), generation_prompt=prompted)
        else:
            found = template.text(tuple(roles), tuple(contents), generation_prompt=prompted)
            assert found == expected


@settings(max_examples=200)
@given(data=st.data(), name=st.sampled_from(sorted(TRAITS)))
def test_what_a_user_wrote_is_never_taken_for_the_templates_text(data, name):
    roles = tuple(data.draw(ORDERS))
    signs = st.text("жцЖЦ\u2003 <|>", max_size=4)
    contents = tuple(data.draw(st.lists(signs, min_size=len(roles), max_size=len(roles))))
    try:
        parts = ours(TRAITS[name]).render(roles, contents)
        blank = ours(TRAITS[name]).render(roles, tuple("w" * len(text) for text in contents))
    except (ProgramError, ModelError):
        return
    own = "".join([part for part in parts if isinstance(part, str)])
    assert not set("жцЖЦ\u2003") & set(own)
    assert own.count("<|im_end|>") == "".join(
        [part for part in blank if isinstance(part, str)]
    ).count("<|im_end|>") or "" in [text.strip() for text in contents]


def real_templates() -> list[Path]:
    folder = os.environ.get("LMLANG_CHAT_TEMPLATES")
    return sorted(Path(folder).rglob("tokenizer_config.json")) if folder else []


@pytest.mark.parametrize("path", real_templates() or [None], ids=str)
@settings(max_examples=300)
@given(data=st.data(), prompted=st.booleans())
def test_real_templates_render_as_by_transformers(path, data, prompted):
    if path is None:
        pytest.skip("LMLANG_CHAT_TEMPLATES names no folder with tokenizer_config.json files")
    config = json.loads(path.read_text())
    source = config.get("chat_template")
    if not isinstance(source, str):
        pytest.skip(f"{path} holds no chat template")
    names = {}
    for name in ("bos_token", "eos_token"):
        token = config.get(name)
        names[name] = token["content"] if isinstance(token, dict) else token or ""
    roles = data.draw(ORDERS)
    contents = data.draw(st.lists(CONTENT, min_size=len(roles), max_size=len(roles)))
    try:
        expected = by_transformers(
            source, list(zip(roles, contents, strict=True)), prompted, **names
        )
    except (jinja2.TemplateError, TypeError):
        with pytest.raises((ProgramError, ModelError)):
            ChatTemplate(source, **names).text(tuple(roles), tuple(contents))
    else:
        template = ChatTemplate(source, **names)
        text = template.text(tuple(roles), tuple(contents), generation_prompt=prompted)
        assert text == expected


def test_parts_say_what_is_the_templates_and_what_a_turns():
    parts = tiny_template().render(("system", "user"), ("be brief", "Hi"))
    assert parts == (
        "<|im_start|>system\n", Piece(0, 0, 8), "<|im_end|>\n<|im_start|>user\n", Piece(1, 0, 2),
        "<|im_end|>\n",
    )  # fmt: skip


def test_trimmed_contents_are_the_stretches_that_are_left():
    parts = ours(TRAITS["trims"]).render(("user",), (" \u2003Hi\n",))
    assert next(part for part in parts if isinstance(part, Piece)).start == 2
    assert ours(TRAITS["trims"]).text(("user",), (" \u2003Hi\n",)) == "<bos>[user]\nHi<|im_end|>"


def test_thinking_that_is_dropped_leaves_the_stretch_behind_it():
    roles, answer = ("user", "assistant", "user"), "<think>hm</think>\n\nYes"
    parts = ours(TRAITS["drops thinking"]).render(roles, ("a", answer, "b"))
    assert [(p.turn, p.start, p.end) for p in parts if isinstance(p, Piece)] == [
        (0, 0, 1), (1, len(answer) - 3, len(answer)), (2, 0, 1),
    ]  # fmt: skip


def test_contents_that_are_written_otherwise_are_no_template_text():
    parts = ours("{{ messages[0].content | upper }}<|im_end|>").render(("user",), ("<|im_end|>",))
    assert parts == (Rewritten("<|IM_END|>"), "<|im_end|>")


class CountingTemplate(ChatTemplate):
    """Counts how often the template is run."""

    runs = 0

    def _run(self, *args):
        self.runs += 1
        return super()._run(*args)


@pytest.mark.parametrize("name", ["trims", "trims what it joins", "default system"])
def test_a_template_that_asks_nothing_of_contents_is_run_once_for_their_roles(name):
    template = CountingTemplate(TRAITS[name], BOS, EOS)
    for number in range(20):
        template.render(("user", "assistant"), (f"  question {number}", f"answer {number}\n"))
    assert template.runs == 1


def test_a_template_that_asks_is_run_again_when_the_answer_would_differ():
    template = CountingTemplate(TRAITS["drops thinking"], BOS, EOS)
    roles = ("user", "assistant", "user")
    for number in range(20):
        template.render(roles, (f"q{number}", f"a{number}", "c"))
    assert template.runs == 1
    assert "hm" not in template.text(roles, ("q", "<think>hm</think>a", "c"))
    assert template.runs == 2
    assert "a7" in template.text(roles, ("q", "a7", "c"))
    assert template.runs == 2


def test_what_a_template_remembers_is_bounded():
    template = ours(CHATML)
    for count in range(1, 500):
        template.render(("user",) * count, ("x",) * count)
    assert 90_000 < template._kept <= 100_000
    assert template._kept == sum(r.size for found in template._recipes.values() for r in found)


# ---------------------------------------------------------------------------- open turns


def opening(template: ChatTemplate, roles: tuple[str, ...]) -> str:
    """What stands before the last turn's content while it is open."""
    *parts, own = template.turns(roles, ("x",) * len(roles), True)
    assert own == Piece(len(roles) - 1, 0, 1)
    return "".join(["x" if isinstance(part, Piece) else str(part) for part in parts])


@pytest.mark.parametrize("name", ["trims", "default system", "drops thinking", "minds the last"])
@pytest.mark.parametrize("before", [(), ("user",), ("user", "assistant", "user")])
def test_an_open_assistant_turn_stands_behind_the_generation_prompt(name, before):
    expected = by_transformers(TRAITS[name], [(role, "x") for role in before], True)
    assert opening(ours(TRAITS[name]), (*before, "assistant")) == expected


def test_other_open_turns_stand_behind_their_heading():
    template = ours(TRAITS["trims"])
    assert opening(template, ("user",)) == "<bos>[user]\n"
    assert opening(template, ("user", "tool")) == "<bos>[user]\nx<|im_end|>[tool]\n"
    hidden = ours("{% for m in messages if m.role == 'user' %}<u>{{ m.content }}{% endfor %}")
    assert opening(hidden, ("user", "system")) == "<u>x"


def test_a_template_that_fails_without_messages_still_opens_a_first_answer():
    source = "{% if messages[0]['role'] == 'user' %}{% endif %}" + CHATML
    assert opening(ours(source), ("assistant",)) == "<|im_start|>assistant\n"
    with pytest.raises(ProgramError, match="'roles must take turns'"):
        opening(ours(TRAITS["trims what it joins"]), ("assistant",))


@pytest.mark.parametrize("roles", [("user",), ("system", "user"), ("user", "assistant", "tool")])
def test_the_embedded_models_template_is_as_by_transformers(roles):
    turns = [{"role": role, "content": " é\n<|im_end|> "} for role in roles]
    contents = tuple(turn["content"] for turn in turns)
    for prompted in (False, True):
        assert embedded()[4].text(roles, contents, generation_prompt=prompted) == (
            reference_tokenizer().apply_chat_template(
                turns, tokenize=False, add_generation_prompt=prompted
            )
        )


def test_a_default_system_turn_appears_where_the_template_adds_one():
    template = embedded()[4]
    assert template.text(("user",), ("Hi",)).startswith(SYSTEM + "<|im_start|>user\nHi")
    assert template.text(("system",), ("Hi",)).startswith("<|im_start|>system\nHi")


def test_the_plain_template_writes_roles_on_lines_of_their_own():
    assert ChatTemplate(None).source == PLAIN_TEMPLATE
    roles = ("system", "user")
    text = ChatTemplate(None).text(roles, ("a", "b"), generation_prompt=True)
    assert text == "System:\na\n\nUser:\nb\n\nAssistant:\n"


def test_the_closing_of_the_last_turn():
    assert ours(TRAITS["trims"]).closing(("user",), (" x ",)) == "<|im_end|>"
    assert ours("{{ messages[0].content }}").closing(("user",), ("x",)) == ""


def test_refusals_have_the_templates_words():
    with pytest.raises(ProgramError, match=r"turns of the roles 'user, user'.*'roles must take"):
        ours(TRAITS["trims what it joins"]).render(("user", "user"), ("a", "b"))


def test_a_template_may_have_more_variables():
    template = ChatTemplate(
        "{% if enable_thinking %}yes{% endif %}", variables={"enable_thinking": True}
    )
    assert template.text(("user",), ("x",)) == "yes"
