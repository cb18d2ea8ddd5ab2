"""Templates of our own with the traits of models' templates, and conversations to try them on."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

BOS, EOS = "<bos>", "<|im_end|>"
TRAITS = {
    "bare": "{% for m in messages %}{{ m.content }}{% endfor %}",
    "trims": (
        "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]\n"
        "{{ m['content'] | trim }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]\n{% endif %}"
    ),
    "trims what it joins": (
        "{% set lead = '' %}{% set turns = messages %}"
        "{% if messages[0]['role'] == 'system' %}"
        "{% set lead = messages[0]['content'] + '\\n' %}{% set turns = messages[1:] %}{% endif %}"
        "{% for m in turns %}"
        "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must take turns') }}{% endif %}"
        "{% set text = (lead if loop.first else '') + m['content'] %}"
        "{% if m['role'] == 'user' %}{{ bos_token + '(' + text.strip() + ')' }}"
        "{% else %}{{ ' ' + text.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
    ),
    "default system": (
        "{% for m in messages %}{% if loop.first and m.role != 'system' %}"
        "{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}{% endif %}"
        "{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
    "drops thinking": (
        "{% set ns = namespace(last=-1) %}{% for m in messages %}"
        "{% if m.role == 'user' and not m.content.startswith('<tool>') %}"
        "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
        "{% for m in messages %}{% set text = m.content %}"
        "{% if m.role == 'assistant' and '</think>' in text and loop.index0 < ns.last %}"
        "{% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
        "{{ '<|im_start|>' + m.role + '\\n' + text + '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}"
        "{{ '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    ),
    "minds the last": (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}"
        "{% if not loop.last %}<sep>{% elif not add_generation_prompt %}{{ eos_token }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<sep>assistant:{% endif %}"
    ),
    "gathers and repeats": (
        "{{ messages | selectattr('role', 'equalto', 'system') | map(attribute='content')"
        " | join('<|im_end|>') }}{% for m in messages if m.role != 'system' %}"
        "{{ '%s<|im_start|>%s' % (m.role, m.content) }}{{ m.content | upper }}{% endfor %}"
    ),
    "asks and rewrites": (
        "{% for m in messages %}{% if m.content %}{{ m.content | replace('a', '<|im_end|>') }}"
        "{{ m.content[:2] }}{{ '{}<|im_start|>'.format(m.content) }}"
        "{{ m | tojson }}{{ m.content.split() | length }}{{ m.content.title() }}"
        "{% else %}(nothing){% endif %}{% endfor %}"
    ),
    "macros and blocks": (
        "{% macro turn(m) %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ caller() }}{% endmacro %}"
        "{% for m in messages %}{% set body %}{% call turn(m) %}<|im_end|>{% endcall %}{% endset %}"
        "{{ body | trim }}{{ '\\n' if m.content in ['', ' '] }}{% endfor %}"
    ),
}
PIECES = (
    "Hi", "", " ", "\n", "\t ", "é🙂", "a", "\u00a0", "\u2003", "\u200b", "<|im_end|>", "<|im_",
    "end|>", "<|im_start|>user\n", "<bos>", "</think>", "<think>no</think>", "<tool>", "{{ x }}",
    "{% raw %}", "{#", "}}", "%s", "{0}", "\x00" + "0\x01", "<«0»>", "\\n", "hello the world",
)  # fmt: skip
CONTENT = st.lists(st.sampled_from(PIECES), max_size=4).map("".join)
ROLES = st.sampled_from(["system", "user", "assistant", "tool"])
ALTERNATING = st.builds(
    lambda lead, count: (["system"] * lead + ["user", "assistant"] * 3)[:count],
    st.integers(0, 1),
    st.integers(1, 6),
)
ORDERS = ALTERNATING | st.lists(ROLES, min_size=1, max_size=5)


def by_transformers(
    source: str, messages: list[tuple[str, str]], generation_prompt: bool, **names: Any
) -> str:
    """The template as transformers renders it; raises what that raises."""
    chat = [{"role": role, "content": content} for role, content in messages]
    names = {"bos_token": BOS, "eos_token": EOS} | names
    texts, _ = render_jinja_template(
        [chat], chat_template=source, add_generation_prompt=generation_prompt, **names
    )
    return str(texts[0])
