"""Errors that a program has handled at a join, and errors of a program's own kind."""

import pytest

import lmlang as lm
from lmlang.testing import ScriptedBackend


def handled(forks):
    with pytest.raises(lm.BackendError):
        forks.join()


def test_an_error_handled_at_a_join_is_handled_in_the_forks_that_inherited_it():
    @lm.function
    def program(s):
        forks = s.fork(2)
        forks[0] += lm.gen("x")
        for grandchild in forks[0].fork(2):
            grandchild += lm.gen("y")
            grandchild.fork(1)[0]["z"] = 1
        handled(forks)
        s += lm.gen("after")

    assert program(backend=ScriptedBackend(fail_at=0))["after"]


def test_appending_to_a_fork_whose_error_was_handled_brings_no_error_back():
    @lm.function
    def program(s):
        forks = s.fork(2)
        forks[0] += lm.gen("x")
        handled(forks)
        forks[0] += "late" + lm.gen("y")
        forks[0].fork(2)[1]["z"] = 1
        forks[1] += lm.gen("fine")

    program(backend=ScriptedBackend(fail_at=0))


def test_an_error_of_a_joined_fork_s_own_forks_still_fails_the_run():
    @lm.function
    def program(s):
        forks = s.fork(2)
        grandchild = forks[0].fork(1)[0]
        grandchild += lm.gen("x")
        forks.join()

    with pytest.raises(lm.BackendError, match="call 0"):
        program(backend=ScriptedBackend(fail_at=0))


def test_an_error_seen_only_by_the_forks_that_inherited_it_still_fails_the_run():
    @lm.function
    def program(s):
        child = s.fork(1)[0]
        child += lm.gen("x")
        handled(child.fork(2))

    with pytest.raises(lm.BackendError, match="call 0"):
        program(backend=ScriptedBackend(fail_at=0))


class Refused(lm.LMLangError):
    def __init__(self, rule, *, severity):
        super().__init__(f"rule {rule} was broken")
        self.rule = rule
        self.severity = severity


class Chosen(lm.LMLangError):
    def __new__(cls, rule, severity):
        return super().__new__(cls, rule)

    def __init__(self, rule, severity):
        super().__init__(rule)
        self.rule, self.severity = rule, severity


class OnDisk(lm.LMLangError, OSError):
    rule, severity = 7, "high"


def refused():
    return Refused(7, severity="high")


@pytest.mark.parametrize("make", [refused, lambda: Chosen(7, "high"), lambda: OnDisk(2, "gone")])
def test_an_error_of_the_user_s_own_kind_stays_what_it_is_and_cancels_forks(make):
    with ScriptedBackend(completes="when released") as backend:
        states = []

        @lm.function
        def program(s):
            forks = s.fork(3)
            states.extend(forks)
            forks += lm.gen("x")
            raise make()

        with pytest.raises(type(make())) as caught:
            program(backend=backend)
        assert (caught.value.rule, caught.value.severity) == (7, "high")
        assert backend.pending() == []
        for state in states:
            with pytest.raises(type(make())):
                state["x"]


@pytest.mark.parametrize("make", [refused, lambda: Chosen(7, "high"), lambda: OnDisk(2, "gone")])
def test_an_error_of_the_user_s_own_kind_is_in_its_row(make):
    @lm.function
    def program(s, bad):
        s += lm.gen("x")
        if bad:
            raise make()

    rows = [(False,), (True,)]
    good, bad = program.run_batch(rows, on_error="return", backend=ScriptedBackend())
    assert good.error() is None
    assert type(bad.error()) is type(make())
    assert (bad.error().rule, bad.error().severity) == (7, "high")
    assert bad.error().context.program == "program"
