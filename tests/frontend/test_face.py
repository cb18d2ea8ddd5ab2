"""The names of the package itself."""

import pytest

import lmlang as lm


@pytest.mark.parametrize("name", ["classify", "extract", "generate"])
def test_words_of_later_versions_say_so(name):
    with pytest.raises(AttributeError, match=rf"^lmlang\.{name} is not available in this version"):
        getattr(lm, name)
    assert not hasattr(lm, name)


def test_other_names_are_unknown():
    with pytest.raises(AttributeError, match="module 'lmlang' has no attribute 'genn'"):
        lm.genn  # noqa: B018


def test_ir_is_printed_and_read_by_names_of_the_face():
    @lm.function
    def program(s, topic):
        s += "On " + topic + lm.gen("x")

    traced = program.trace()
    assert lm.parse_program(lm.print_program(traced)) == traced
