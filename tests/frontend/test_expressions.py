import sys

import pytest

import lmlang as lm
from lmlang.testing import ScriptedBackend


def test_gen_with_choices_is_select():
    assert lm.gen("x", choices=["a", "b"]) == lm.select("x", ["a", "b"])


@pytest.mark.parametrize("show", [str, lambda e: f"{e}", lambda e: f"{e:>10}", "%s".__mod__, print])
def test_a_gen_has_no_text_before_it_has_run(show):
    with pytest.raises(lm.ProgramError, match=r'write s \+= "text " \+ lm\.gen\("x"\)'):
        show(lm.gen("x"))


def test_the_repr_of_an_expression_is_short_and_shows_what_it_appends():
    expression = lm.user("Hi " + lm.gen("x") + "y" * 100) + lm.select("z", ["a", "b"])
    shown = repr(expression).partition(": ")[2]
    assert shown == "role user + 'Hi ' + gen x + '" + "y" * 39 + "…' + endrole user + select z>"
    assert repr(expression).startswith("<expression ")


@pytest.mark.parametrize("insert", ["{!r}".format, lambda e: f"{[e]}", repr])
def test_a_repr_of_an_expression_is_noticed_where_it_would_be_prompt_text(insert):
    text = "Say " + insert(lm.gen("x"))
    for use in (lambda: lm.user(text), lambda: lm.gen("y") + text, lambda: lm.select("z", [text])):
        with pytest.raises(lm.ProgramError, match=r'holds the repr.*s \+= "text " \+ lm\.gen'):
            use()
    assert lm.user("<expression 01234567: gen x>")  # of another process: text like any other


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors take notes from Python 3.11 on")
def test_expressions_in_a_str_join_bring_a_hint():
    @lm.function
    def program(s):
        s += "".join(["a", lm.gen("x")])

    with pytest.raises(TypeError, match="Expression found") as caught:
        program(backend=ScriptedBackend())
    (note,) = caught.value.__notes__
    assert "append the parts one by one" in note


def test_expressions_add_from_both_sides_and_only_to_text():
    assert ("a" + lm.gen("x")) + "b" == "a" + (lm.gen("x") + "b")
    for wrong in (3, None, ["a"], b"a"):
        with pytest.raises(TypeError, match="only strings and expressions can"):
            lm.gen("x") + wrong
        with pytest.raises(TypeError, match=r"s\.text_of\(name\)"):
            wrong + lm.gen("x")
