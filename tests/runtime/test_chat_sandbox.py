"""Hostile templates end soon, in little memory, with typed errors; honest ones find their names."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from lmlang.errors import ModelError
from lmlang.runtime.chat import ChatTemplate


def doubled(step: str, begin: str = "'xx'") -> str:
    return (
        f"{{% set ns = namespace(s={begin}) %}}{{% for i in range(60) %}}"
        f"{{% set ns.s = {step} %}}{{% endfor %}}{{{{ ns.s }}}}"
    )


LARGE = "{%% set a = 'a' * 900000 %%}{%% for i in range(99999) %%}%s{%% endfor %%}"
GROWING = [
    doubled("ns.s + ns.s"), doubled("ns.s ~ ns.s"), doubled("ns.s * 2"), doubled("2 * ns.s"),
    doubled("'%s%s' % (ns.s, ns.s)"), doubled("'%(a)s%(a)s' % {'a': ns.s}"),
    doubled("'%s%s' | format(ns.s, ns.s)"), doubled("'{0}{0}'.format(ns.s)"),
    doubled("'{a}{a}'.format(a=ns.s)"), doubled("[ns.s, ns.s] | join"),
    doubled("ns.s.join([ns.s, ns.s])"), doubled("ns.s.replace('x', ns.s)"),
    doubled("ns.s | replace('x', ns.s)"), doubled("ns.s | replace('', 'yyy')"),
    doubled("ns.s | indent(ns.s, first=true)"), doubled("[ns.s, ns.s]", "[1]"),
    doubled("ns.s + ns.s", "[1]"), doubled("(ns.s, ns.s)"), doubled("{'a': ns.s, 'b': ns.s}"),
    doubled("dict(a=ns.s, b=ns.s)"), doubled("ns.s * ns.s", "3"), doubled("ns.s ** 9", "3"),
    doubled("messages[0].content * 1000000"), doubled("(ns.s ~ messages[0].content) * 2"),
    "{% macro d(s) %}{{ s }}{{ s }}{% endmacro %}" + doubled("d(ns.s)"),
    "{% set b %}{% for i in range(99999) %}" + "y" * 500 + "{% endfor %}{% endset %}",
    "{{ 'x' * 10 ** 10 }}", "{{ 9 ** 99999 }}", "{{ 'x' | center(999999999) }}",
    "{{ 'x'.ljust(999999999) }}", "{{ 'x'.zfill(999999999) }}", "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}", "{{ '{:999999999}'.format(1) }}", "{{ '%.999999999f' % 1.5 }}",
    "{{ '{:{w}}'.format('x', w=999999999) }}", "{{ messages | tojson(indent=999999) }}",
    "{{ range(99999) | map('center', 9999) | join }}",
    "{% for i in range(99999) %}{{ 'x' * 999 }}{% endfor %}",
    "{{ range(9) | batch(999999999, 'x') | list }}",
]  # fmt: skip
LONG = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for i in range(99999) %}{% set x = range(99999) | sum %}{% endfor %}",
    "{% for i in range(99999) %}{% set x = range(99999) | list %}{% endfor %}",
    "{% for i in range(99999) %}{% set x = range(99999) | map('string') | sort %}{% endfor %}",
    LARGE % "{% if a[1:] in a %}{% endif %}",
    LARGE % "{% set b = a | upper %}",
    LARGE % "{% set b = a.replace('b', 'c') %}",
]
FORBIDDEN = [
    "{{ ''.__class__ }}", "{{ ''.__class__.__mro__ }}", "{{ ''['__class__'] }}",
    "{{ messages[0].content.__class__ }}", "{{ messages[0].content._parts }}",
    "{{ '{0.__class__}'.format('') }}", "{{ messages.append(1) }}", "{{ messages[0].update(a=1) }}",
    "{{ cycler.__init__.__globals__ }}", "{{ namespace.__init__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ self.__init__ }}", "{{ namespace(_x=1) }}", "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "{{ (5).to_bytes(9, 'big') }}", "{{ 'a'.encode() }}", "{{ {}.fromkeys([1]) }}",
]  # fmt: skip


def fails(source: str, match: str) -> None:
    begin = time.thread_time()
    with pytest.raises(ModelError, match=match):
        ChatTemplate(source).render(("user",), ("hi",))
    assert time.thread_time() - begin < 11


@pytest.mark.parametrize("source", GROWING)
def test_growing_values_end_before_they_are_made(source):
    tracemalloc.start()
    try:
        fails(source, "too large|deep|more than")
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("source", LONG)
def test_long_loops_end(source):
    fails(source, "passes|too large")


@pytest.mark.parametrize("source", FORBIDDEN)
def test_what_leads_out_of_the_sandbox_is_refused(source):
    fails(source, "SecurityError|UndefinedError")


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ("{{ foo.bar }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% include '/etc/passwd' %}", "TypeError|no loader"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ lipsum() }}", "UndefinedError"),
        ("{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}", "RecursionError"),
        (doubled("(ns.s, i)").replace("60", "99999"), "100 deep"),
    ],
)
def test_a_template_that_fails_is_a_model_error(source, match):
    fails(source, match)


@pytest.mark.parametrize(
    "source",
    [
        *("{% if %}", "{{ a", "{% endfor %}", "{{ x|nonsense }}", "{{ x|attr('y') }}"),
        *(
            "{% autoescape true %}{% endautoescape %}",
            "{{ " + "(" * 9_999 + "1" + ")" * 9_999 + "}}",
        ),
        *("{{ " + "a+" * 20_000 + "a }}", "{{ " + "[" * 5_000 + "]" * 5_000 + " }}"),
    ],
    ids=range(9),
)
def test_a_template_that_is_no_jinja_is_refused_when_it_is_made(source):
    with pytest.raises(ModelError, match="no valid Jinja"):
        ChatTemplate(source)


def test_an_enormous_template_is_refused():
    with pytest.raises(ModelError, match="300,000 characters"):
        ChatTemplate("x" * 300_000)


def test_templates_have_the_names_that_transformers_gives_them():
    source = (
        "{{ bos_token }}{{ strftime_now('%Y')|length }}{{ {'a': 'é<'}|tojson }}"
        "{% for m in messages %}\n"
        "    {%- if m.content is string %}{% generation %}{{ m.content|trim }}{% endgeneration %}"
        "{% endif %}{% if loop.first %}{% continue %}{% endif %}{% break %}{% endfor %}"
        "{{ dict(a=1).items()|list }}{{ [1, 2]|tojson(indent=1) }}{{ eos_token is defined }}"
    )
    template = ChatTemplate(source, "<s>")
    assert template.text(("user",), (" x ",)) == '<s>4{"a": "é<"}x[(\'a\', 1)][\n 1,\n 2\n]False'


def test_large_contents_are_no_fault_of_the_template():
    template = ChatTemplate("{% for m in messages %}{{ '<%s>' % (m.content|trim) }}{% endfor %}")
    text = "word " * 1_000_000
    assert template.text(("user", "user"), (text, text)) == f"<{text.strip()}>" * 2


def test_the_time_of_day_is_not_remembered(monkeypatch):
    class Clock:
        now_is = "Monday"

        @classmethod
        def now(cls):
            return cls

        @classmethod
        def strftime(cls, form):
            return cls.now_is

    monkeypatch.setattr("lmlang.runtime.chat_trace.datetime", Clock)
    monkeypatch.setattr("lmlang.runtime.chat.datetime", Clock)
    template = ChatTemplate("{{ strftime_now('%A') }}")
    assert template.text(("user",), ("x",)) == "Monday"
    Clock.now_is = "Tuesday"
    assert template.text(("user",), ("x",)) == "Tuesday"
