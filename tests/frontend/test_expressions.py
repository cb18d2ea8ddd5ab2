import pytest

import lmlang as lm


def test_gen_with_choices_is_select():
    assert lm.gen("x", choices=["a", "b"]) == lm.select("x", ["a", "b"])


@pytest.mark.parametrize("show", [str, lambda e: f"{e}", lambda e: f"{e:>10}", "%s".__mod__, print])
def test_a_gen_has_no_text_before_it_has_run(show):
    with pytest.raises(lm.ProgramError, match=r'write s \+= "text " \+ lm\.gen\("x"\)'):
        show(lm.gen("x"))


def test_expressions_add_from_both_sides_and_only_to_text():
    assert ("a" + lm.gen("x")) + "b" == "a" + (lm.gen("x") + "b")
    for wrong in (3, None, ["a"], b"a"):
        with pytest.raises(TypeError, match="only strings and expressions can"):
            lm.gen("x") + wrong
        with pytest.raises(TypeError, match=r"s\.text_of\(name\)"):
            wrong + lm.gen("x")
