"""The names of the package itself."""

import pytest

import lmlang as lm


def test_other_names_are_unknown():
    with pytest.raises(AttributeError, match="module 'lmlang' has no attribute 'genn'"):
        lm.genn  # noqa: B018


def test_ir_is_printed_and_read_by_names_of_the_face():
    @lm.function
    def program(s, topic):
        s += "On " + topic + lm.gen("x")

    traced = program.trace()
    assert lm.parse_program(lm.print_program(traced)) == traced
