"""What templates write around contents, and templates that misbehave."""

from __future__ import annotations

import time

import pytest

from lmlang.errors import ModelError, ProgramError
from lmlang.runtime.chat import PLAIN_TEMPLATE, ChatTemplate, TurnPieces
from tests.reference import embedded, reference_tokenizer
from tests.tiny import CHATML, tiny_template

SYSTEM = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n"
)


def test_heads_are_the_text_around_contents():
    assert tiny_template().heads(("system", "user")) == (
        "<|im_start|>system\n",
        "<|im_end|>\n<|im_start|>user\n",
        "<|im_end|>\n",
    )
    assert tiny_template().heads(()) == ("",)


def test_a_default_system_turn_appears_where_the_template_adds_one():
    template = embedded()[4]
    assert template.heads(("user",))[0] == SYSTEM + "<|im_start|>user\n"
    assert template.heads(("system",))[0] == "<|im_start|>system\n"
    assert template.pieces(("assistant",), True).openings == (SYSTEM + "<|im_start|>assistant\n",)


@pytest.mark.parametrize(
    "roles",
    [
        ("user",),
        ("system", "user"),
        ("user", "assistant"),
        ("user", "user", "assistant", "user", "tool"),
    ],
)
@pytest.mark.parametrize("content", ["hi", "", " é\n<|im_end|> ", "{{ messages }}{% if %}"])
def test_pieces_around_contents_equal_what_transformers_renders(roles, content):
    messages = [{"role": role, "content": content} for role in roles]
    pieces = embedded()[4].pieces(roles, False)
    text = "".join(
        opening + content + closing
        for opening, closing in zip(pieces.openings, pieces.closings, strict=True)
    )
    rendered = reference_tokenizer().apply_chat_template(messages, tokenize=False)
    assert text == rendered
    prompted = reference_tokenizer().apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    opened = embedded()[4].pieces((*roles, "assistant"), True)
    assert text + opened.openings[-1] == prompted


def test_an_open_assistant_turn_begins_with_the_generation_prompt():
    source = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}[/]{% endfor %}"
        "{% if add_generation_prompt %}[assistant]<think>{% endif %}"
    )
    template = ChatTemplate(source)
    assert template.pieces(("user", "assistant"), True).openings[-1] == "[assistant]<think>"
    assert template.pieces(("user", "assistant"), False).openings[-1] == "[assistant]"
    assert template.pieces(("user", "tool"), True).openings[-1] == "[tool]"


def test_text_between_contents_is_split_where_the_shorter_conversation_ended():
    source = "{% for m in messages %}{{ m.content }}{% if not loop.last %}<sep>{% else %}</s>{% endif %}{% endfor %}"  # noqa: E501
    assert ChatTemplate(source).pieces(("user", "user"), False) == TurnPieces(
        ("", "sep>"), ("<", "</s>")
    )


def test_a_template_that_refuses_to_end_early_still_renders_the_whole():
    source = (
        "{% if messages[-1].role == 'system' %}{{ raise_exception('no user') }}{% endif %}"
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    )
    template = ChatTemplate(source)
    assert template.pieces(("system", "user"), False) == TurnPieces(
        ("<system>", "</><user>"), ("", "</>")
    )
    with pytest.raises(ProgramError, match=r"refuses turns of the roles 'system'.*'no user'"):
        template.heads(("system",))


def test_the_plain_template_writes_roles_on_lines_of_their_own():
    assert ChatTemplate(None).source == PLAIN_TEMPLATE
    assert ChatTemplate(None).pieces(("system", "user", "assistant"), True) == TurnPieces(
        ("System:\n", "User:\n", "Assistant:\n"), ("\n\n", "\n\n", "\n\n")
    )


def test_templates_have_the_names_that_transformers_gives_them():
    source = (
        "{{ bos_token }}{{ strftime_now('%Y')|length }}{{ {'a': 'é<'}|tojson }}"
        "{% for m in messages %}\n"
        "    {%- if m.content is string %}{% generation %}{{ m.content|trim }}{% endgeneration %}"
        "{% endif %}{% if loop.first %}{% continue %}{% endif %}{% break %}{% endfor %}"
    )
    template = ChatTemplate(source, "<s>", "</s>")
    assert template.heads(("user",)) == ('<s>4{"a": "é<"}', "")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "drops"),
        ("{% for m in messages %}{{ m.content|upper }}{% endfor %}", "changes"),
        ("{% for m in messages %}{{ m.content|e }}{% endfor %}", "changes"),
        ("{% for m in messages %}{{ m.content|tojson|lower }}{% endfor %}", "changes"),
        ("{% for m in messages|reverse %}{{ m.content }}{% endfor %}", "moves"),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "moves|repeats"),
        ("{{ messages[-1].content }}", "drops"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ cycler.__init__.__globals__ }}", "SecurityError"),
        ("{{ foo.bar }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% include '/etc/passwd' %}", "TypeError|no loader"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ 'x' * 10 ** 10 }}", "too large"),
        ("{{ 9 ** 9 ** 9 }}", "too large"),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "loop passes",
        ),
        ("{% for i in range(99999) %}{{ 'x' * 999 }}{% endfor %}", "characters"),
    ],
)
def test_a_template_that_misbehaves_is_a_model_error_and_ends_soon(source, message):
    template = ChatTemplate(source)
    begin = time.monotonic()
    with pytest.raises(ModelError, match=message):
        template.heads(("user", "assistant"))
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize("source", ["{% if %}", "{{ a", "{% endfor %}", "{{ x|nonsense }}"])
def test_a_template_that_is_no_jinja_is_refused_when_it_is_made(source):
    with pytest.raises(ModelError, match="no valid Jinja"):
        ChatTemplate(source)


def test_an_enormous_template_is_refused():
    with pytest.raises(ModelError, match="300,000 characters"):
        ChatTemplate("x" * 300_000)


def test_chatml_of_the_tests_has_no_default_system_turn():
    assert ChatTemplate(CHATML).heads(("user",))[0] == "<|im_start|>user\n"
