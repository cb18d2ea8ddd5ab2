"""Every error says where in the program it arose, and leads to the user's line."""

import traceback

import pytest

import lmlang as lm
from lmlang.testing import ScriptedBackend


def nested_turns(s):
    with s.user():
        s += lm.user("x")


def second_join(s):
    forks = s.fork(2)
    forks.join()
    forks.join()


def second_join_in_a_helper(s):
    second_join(s)


def metadata_of_a_set_variable(s):
    s["x"] = 1
    s.meta("x")


def appended_to_a_fork(s):
    s.fork(3)[2].__iadd__(4)


def read_of_a_fork(s):
    s.fork(3)[1]["nothing"]


def an_open_scope(s):
    with s.var_scope("x"):
        s["x"]


BODIES = {
    nested_turns: ("user turn cannot begin inside", 2, None),
    second_join: ("joined already", 3, None),
    metadata_of_a_set_variable: ("no metadata", 2, None),
    appended_to_a_fork: ("cannot be appended", 1, 2),
    read_of_a_fork: ("no variable 'nothing'", 1, 1),
    an_open_scope: ("still open", 2, None),
}
ONE_LINERS = {
    "cannot be appended": lambda s: s.__iadd__(3),
    "mode='x'": lambda s: s.fork(2).join("x"),
    "size=0": lambda s: s.fork(0),
    "position_ids_offset": lambda s: s.fork(1, 3),
    "no variable": lambda s: s["x"],
    "a variable's name": lambda s: s[3],
    "a variable's name is": lambda s: s.__setitem__(3, 1),
    "max_tokens=-3": lambda s: s.__iadd__(lm.gen("x", max_tokens=-3)),
    "is no regular expression": lambda s: s.__iadd__(lm.gen("x", stop_regex="(")),
    "may match no character": lambda s: s.__iadd__(lm.gen("x", stop_regex="a*")),
    "has no text": lambda s: s.__iadd__(f"{lm.gen('x')}"),
    "nothing to choose": lambda s: s.user(lm.select("x", [])),
    "3 of type int": lambda s: s.user(3),
    "of type set": lambda s: s.fork(2).__iadd__({1}),
    "would replace": lambda s: s.fork(2).__setitem__(0, s),
    "cannot be empty": lambda s: s.var_scope("").__enter__(),
    "no variable 'y'": lambda s: next(s.text_iter("y")),
    "missing a required": lambda s: inner(s),
    "on a state the run's": lambda s: inner(s, "a", temperature=0),
}


@lm.function
def inner(s, text):
    s += text


def failure_of(body):
    with pytest.raises(lm.LMLangError) as caught, lm.use(ScriptedBackend()):
        lm.function(body)()
    return caught.value


@pytest.mark.parametrize("body", BODIES)
def test_a_misuse_says_program_line_and_branch(body):
    message, line, branch = BODIES[body]
    error = failure_of(body)
    assert message in str(error)
    place = (body.__name__, f"{__file__}:{body.__code__.co_firstlineno + line}", branch)
    assert (error.context.program, error.context.source, error.context.branch) == place


def test_a_misuse_in_a_helper_says_the_helpers_line():
    error = failure_of(second_join_in_a_helper)
    assert error.context.program == "second_join_in_a_helper"
    assert error.context.source == f"{__file__}:{second_join.__code__.co_firstlineno + 3}"


@pytest.mark.parametrize("message", ONE_LINERS)
def test_every_kind_of_misuse_says_its_line(message):
    body = ONE_LINERS[message]
    error = failure_of(body)
    assert message in str(error)
    assert error.context.source == f"{__file__}:{body.__code__.co_firstlineno}"


def test_a_misuse_that_the_program_handles_knows_its_place_too():
    seen = []

    @lm.function
    def program(s):
        for attempt in (lambda: s["x"], lambda: s.__iadd__(3), lambda: s.fork(0)):
            with pytest.raises(lm.LMLangError) as caught:
                attempt()
            seen.append(caught.value.context)

    program(backend=ScriptedBackend())
    assert [(c.program, c.source.rpartition(":")[0]) for c in seen] == [("program", __file__)] * 3


def test_a_misuse_in_an_async_program_says_its_line():
    async def program(s):
        s += lm.gen("x")
        await s.aget("y")

    error = failure_of(program)
    assert error.context.source == f"{__file__}:{program.__code__.co_firstlineno + 2}"


def test_a_misuse_of_a_state_whose_run_is_over_says_the_line_of_the_reader():
    state = inner("a", backend=ScriptedBackend())
    with pytest.raises(lm.CaptureError) as caught:
        state["x"]
    assert caught.value.context.program == "inner"
    assert caught.value.context.source.startswith(__file__)


def stops(s, text):
    s += text
    if text == "bad":
        s["undefined"]


def lines_of(error):
    return [(entry.name, entry.lineno) for entry in traceback.extract_tb(error.__traceback__)]


def test_the_error_of_a_row_leads_to_the_users_line_for_every_reader():
    rows = [("good",), ("bad",)]
    backend = ScriptedBackend()
    _, state = lm.function(stops).run_batch(rows, on_error="return", backend=backend)
    users = ("stops", stops.__code__.co_firstlineno + 3)
    assert lines_of(state.error())[0] == users
    lengths = []
    for _ in range(3):
        with pytest.raises(lm.CaptureError) as caught:
            state.text()
        assert users in lines_of(caught.value)
        lengths.append(len(lines_of(caught.value)))
    assert len(set(lengths)) == 1
    assert lines_of(state.error())[0] == users


def test_the_error_of_a_batch_leads_to_the_users_line():
    with pytest.raises(lm.CaptureError) as caught:
        lm.function(stops).run_batch([("bad",)], backend=ScriptedBackend())
    assert ("stops", stops.__code__.co_firstlineno + 3) in lines_of(caught.value)


def test_the_error_of_a_users_choices_method_leads_to_its_line():
    def refuses(**_):
        raise lm.ModelError("none of these")

    @lm.function
    def program(s):
        s += lm.select("x", ["a", "b"], choices_method=refuses)

    (state,) = program.run_batch([()], on_error="return", backend=ScriptedBackend())
    assert lines_of(state.error())[0] == ("refuses", refuses.__code__.co_firstlineno + 1)
