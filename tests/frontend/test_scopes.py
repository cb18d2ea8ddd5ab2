import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmlang as lm
from lmlang.testing import ScriptedBackend
from tests.frontend.by_hand import ByHand, bounded


def run(body, backend=None, **kwargs):
    return lm.function(body).run(backend=backend or ScriptedBackend(), **kwargs)


# -------------------------------------------------------------------------------- scopes


def test_a_scope_is_the_text_appended_inside():
    def body(s):
        s += "before "
        with s.var_scope("v") as inner:
            assert inner is s
            s += "a" + lm.gen("x")
            s["y"] = 1
        s += " after"
        return s["v"], s.text_of("v"), "v" in s

    state = run(body, ScriptedBackend(["!"]))
    assert state.ret_value == ("a!", "a!", True)
    assert state.text() == "before a! after"
    kinds = " ".join(type(node).__name__ for node in state.program().nodes)
    assert kinds == "Start Text Scope Text Gen SetVar EndScope Text Return"


def test_scopes_hold_turns_scopes_and_nothing():
    def body(s):
        with s.var_scope("outer"):
            with s.user():
                s += "hi"
                with s.var_scope("inner"):
                    s += "there"
            with s.var_scope("empty"):
                pass
        return s["outer"], s["inner"], s["empty"]

    assert run(body).ret_value == ("<user>hithere</user>", "there", "")


def test_a_scope_waits_like_everything_else():
    with ByHand() as backend:

        def body(s):
            with s.var_scope("v"):
                s += "a" + lm.gen("x")
            assert "v" in s
            backend.end("!")
            return s["v"]

        assert bounded(lambda: run(body, backend)).ret_value == "a!"


def test_inside_the_name_means_what_it_meant_before():
    def body(s):
        s["v"] = "old"
        with s.var_scope("v"):
            s += "new"
            inside = s["v"]
        return inside, s["v"]

    assert run(body).ret_value == ("old", "new")


def test_an_open_scope_has_no_value_yet_and_says_so():
    def body(s):
        with s.var_scope("v"):
            fork = s.fork(1)[0]
            for state in (s, fork):
                with pytest.raises(lm.CaptureError):
                    state["v"]
            with pytest.raises(lm.CaptureError, match=r"the scope 'v' is still open.*with block"):
                s["v"]

    run(body)


def test_the_error_of_a_block_is_its_own_and_the_scope_is_closed():
    def body(s):
        def block():
            with s.var_scope("v"):
                s.__iadd__("a")
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            block()
        s += "b"
        return s["v"]

    assert run(body).ret_value == "a"


def test_a_scope_with_a_failure_inside_raises_it_and_one_before_it_stays():
    def body(s):
        with s.var_scope("good"):
            s += "a"
        with s.var_scope("bad"):
            s += lm.gen("x")
        with s.var_scope("late"):
            s += "b"
        assert s["good"] == "a"
        for name in ("x", "bad", "late"):
            with pytest.raises(lm.BackendError, match="scripted to fail"):
                s[name]

    with pytest.raises(lm.BackendError):
        run(body, ScriptedBackend(fail_at=0))


def test_a_template_that_rewrites_a_scopes_beginning_poisons_it():
    class Forgetful(ScriptedBackend):
        def render(self, prompt):
            text = super().render(prompt)
            return text.replace("first", "…") if "</user>" in text else text

    def body(s):
        s += lm.user_begin() + "first"
        with s.var_scope("v"):
            s += lm.user_end()
        return s["v"]

    with pytest.raises(lm.ProgramError, match="writes earlier text anew") as caught:
        run(body, Forgetful())
    assert caught.value.context.source.startswith(__file__)


@pytest.mark.parametrize(("name", "message"), [(3, "a string, and this is int"), ("", "be empty")])
def test_a_scope_needs_a_name(name, message):
    def body(s):
        with s.var_scope(name):
            raise AssertionError("it ran")

    with pytest.raises(lm.ProgramError, match=message):
        run(body)


# -------------------------------------------------------------------------------- copies


def test_a_copy_begins_as_the_state_is_and_its_text_is_dropped():
    def body(s):
        s += "P" + lm.gen("x")
        with s.copy() as c:
            c += "Q" + lm.gen("y")
            inside = c.text(), c["x"], c["y"]
        s += "R"
        return inside, "y" in s

    state = run(body, ScriptedBackend(["1", "2"]))
    assert state.ret_value == (("P1Q2", "1", "2"), False)
    assert state.text() == "P1R"


def test_what_fails_in_a_copy_is_raised_by_the_program():
    def body(s):
        with s.copy() as c:
            c += lm.gen("x")

    with pytest.raises(lm.BackendError, match="scripted to fail"):
        run(body, ScriptedBackend(fail_at=0))


# -------------------------------------------------------------------------------- forks +=


def test_forks_are_appended_to_together_one_by_one_or_by_their_number():
    def body(s):
        forks = s.fork(3)
        forks += "all "
        forks += ["a", "b" + lm.gen("x"), lm.user("c")]
        forks += lambda i: f" {i}"
        forks[0] += "!"
        forks[1]["y"] = 5
        return [fork.text() for fork in forks], forks[1]["y"]

    texts, y = run(body, ScriptedBackend(["-"])).ret_value
    assert texts == ["all a 0!", "all b- 1", "all <user>c</user> 2"]
    assert y == 5


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (["a"], r"forks \+= a list of 1 for 2 forks: give one for each"),
        (["a", 3], "3 of type int cannot be appended"),
        (lambda i: None if i else "a", "None of type NoneType cannot be appended"),
        (3, r"forks \+= 3 of type int: append a string or an expression, a list"),
    ],
)
def test_what_cannot_be_appended_to_forks_leaves_nothing_behind(other, message):
    def body(s):
        forks = s.fork(2)
        with pytest.raises(lm.ProgramError, match=message):
            forks.__iadd__(other)
        return [fork.text() for fork in forks]

    assert run(body).ret_value == ["", ""]


def test_a_fork_cannot_be_replaced():
    def body(s):
        forks = s.fork(2)
        forks[0] = s

    with pytest.raises(lm.ProgramError, match=r"append with forks\[0\] \+= …, or set a variable"):
        run(body)


def test_position_ids_offset_is_refused():
    with pytest.raises(lm.ProgramError, match="position_ids_offset would move tokens"):
        run(lambda s: s.fork(2, [0, 1]))


def test_nested_forks_join_into_lists_of_lists():
    def body(s):
        outer = s.fork(2)
        for i, fork in enumerate(outer):
            inner = fork.fork(2)
            inner += lambda j, i=i: f"{i}{j}" + lm.gen("x")
            inner.join()
        outer.join()
        return s["x"]

    state = run(body, ScriptedBackend(lambda prompt: prompt))
    assert state.ret_value == [["00", "01"], ["10", "11"]]


# ------------------------------------------------------------------------------ properties

lines = st.lists(st.one_of(st.text("ab ", max_size=3), st.none()), max_size=4)


def append_all(s, line, names):
    for piece in line:
        s += lm.gen(next(names), max_tokens=3) if piece is None else piece


@given(lines, lines, lines)
def test_text_inside_scopes_copies_calls_and_inline_programs_is_the_plain_text(a, b, c):
    def names():
        return iter([f"g{i}" for i in range(20)])

    def plain(s):
        every = names()
        for line in (a, b, c):
            append_all(s, line, every)

    def scoped(s):
        every = names()
        append_all(s, a, every)
        with s.var_scope("v"):
            append_all(s, b, every)
        append_all(s, c, every)

    def inline(s):
        every = names()
        lm.function(append_all)(s, a, every)
        append_all(s, b, every)
        lm.function(append_all)(s, c, every)

    def copied(s):
        with s.copy() as child:
            plain(child)
        return child.text()

    texts = [run(body, seed=1, temperature=0).text() for body in (plain, scoped, inline)]
    assert len(set(texts)) == 1
    assert run(copied, temperature=0).ret_value == texts[0]
    assert (
        run(lambda s: s.call(lambda c: (plain(c), c.text())[1]), temperature=0).ret_value
        == (texts[0])
    )
    state = run(scoped, seed=1, temperature=0)
    assert state["v"] in state.text()
