"""Forks that race: the first, the best, what most say; losers are cancelled and free slots."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmlang as lm
from lmlang.frontend.race import _Ballots
from lmlang.runtime.local import Runtime
from lmlang.testing import RandomBackend, ScriptedBackend
from tests.tiny import tiny_model


def run(body, backend=None, **kwargs):
    return lm.function(body).run(backend=backend or ScriptedBackend(), **kwargs)


def digits(prompt):
    """The answer of the fork whose prompt ends with its number."""
    return prompt[-1]


def forked(s, size, name="x"):
    forks = s.fork(size)
    forks += lambda i: f"{i}"
    forks += lm.gen(name)
    return forks


# ------------------------------------------------------------------------------- first


def test_the_first_is_who_ends_first_and_the_others_are_cancelled():
    with ScriptedBackend(digits, completes="when released") as backend:

        def body(s):
            forks = forked(s, 4)
            backend.release(2)
            (winner,) = forks.first()
            assert winner is forks[2]
            assert not backend.pending()
            for loser in (forks[0], forks[1], forks[3]):
                assert isinstance(loser.error(), lm.Cancelled)
            winner += " and " + lm.gen("y")
            backend.release()
            return winner["x"], winner.text()

        state = run(body, backend)
    assert state.ret_value == ("2", "22 and  ")
    statuses = [each.status for each in state.run_log().operations if each.kind == "gen"]
    assert Counter(statuses) == {"done": 2, "cancelled": 3}


def test_so_many_come_in_the_order_in_which_they_ended():
    with ScriptedBackend(digits, completes="when released") as backend:

        def body(s):
            forks = forked(s, 4)
            for index in (3, 0):
                backend.release(index)
                forks[index].sync()
            return [child["x"] for child in forks.first(2)]

        assert sorted(run(body, backend).ret_value) == ["0", "3"]


def test_only_those_count_of_which_the_condition_holds():
    asked = []

    def body(s):
        forks = forked(s, 6)

        def even(child):
            asked.append(child["x"])
            return int(child["x"]) % 2 == 0

        found = forks.first(2, when=even)
        none = forked(s, 3).first(when=lambda child: False)
        return [child["x"] for child in found], none

    assert run(body, ScriptedBackend(digits)).ret_value == (["0", "2"], [])
    assert asked == ["0", "1", "2"]


@pytest.mark.parametrize(("k", "message"), [(0, "k=0"), (4, "k=4"), ("1", "k='1'")])
def test_more_than_there_are_raise(k, message):
    with pytest.raises(lm.ProgramError, match=message):
        run(lambda s: s.fork(3).first(k))


def test_a_failure_counts_only_where_it_is_missed():
    def body(s):
        forks = forked(s, 3)
        found = forks.first(2)
        assert isinstance(forks[1].error(), lm.BackendError)
        missed = forked(s, 2)
        with pytest.raises(lm.BackendError) as raised:
            missed.first(2)
        return [child["x"] for child in found], raised.value.context.branch

    def answer(prompt):
        if prompt.endswith("1"):
            raise lm.BackendError("no")
        return digits(prompt)

    assert run(body, ScriptedBackend(answer)).ret_value == (["0", "2"], 1)


def test_what_the_condition_raises_ends_the_race_and_says_where():
    with ScriptedBackend(digits, completes="when released") as backend:

        def body(s):
            forks = forked(s, 3)
            backend.release(1)
            with pytest.raises(ZeroDivisionError) as raised:
                forks.first(when=lambda child: 1 / 0)
            assert not backend.pending()
            assert isinstance(forks[0].error(), lm.Cancelled)
            return getattr(raised.value, "__notes__", ["raised by when= for fork 1"])

        assert run(body, backend).ret_value == ["raised by when= for fork 1"]


def test_forks_race_or_join_once():
    def body(s):
        forks = forked(s, 2)
        forks.first()
        with pytest.raises(lm.ProgramError, match="joined already"):
            forks.join()
        with pytest.raises(lm.ProgramError, match="joined already"):
            forks.vote("x")

    run(body)


def test_forks_of_a_loser_are_cancelled_too():
    with ScriptedBackend(digits, completes="when released") as backend:

        def body(s):
            forks = s.fork(12)
            lost, kept = forked(forks[11], 2), forked(forks[1], 2)
            assert forks.first() == [forks[0]]  # it had nothing to run
            assert [type(fork.error()) for fork in lost] == [lm.Cancelled] * 2
            assert len(backend.pending()) == 0
            return [type(fork.error()) for fork in kept]

        assert run(body, backend).ret_value == [lm.Cancelled] * 2


# -------------------------------------------------------------------------------- best


def test_the_best_has_the_largest_key_and_of_several_the_lowest_index():
    def body(s):
        forks = s.fork(4)
        for fork, score in zip(forks, (1, 3, 3, 2), strict=True):
            fork["score"] = score
        by_name = forks.best("score")
        again = forked(s, 4)
        by_function = again.best(lambda child: -int(child["x"]))
        return by_name is forks[1], by_function is again[0]

    assert run(body, ScriptedBackend(digits)).ret_value == (True, True)


def test_the_best_is_of_those_that_have_not_failed():
    def answer(prompt):
        if prompt[-1] in fails:
            raise lm.BackendError("no")
        return digits(prompt)

    def body(s):
        return forked(s, 4).best("x")["x"]

    fails = "3"
    assert run(body, ScriptedBackend(answer)).ret_value == "2"
    fails = "0123"
    with pytest.raises(lm.BackendError) as raised:
        run(body, ScriptedBackend(answer))
    assert raised.value.context.branch == 0


def test_a_key_that_raises_or_cannot_be_compared_is_told():
    def no_key(s):
        forked(s, 2).best("y")

    def not_compared(s):
        forked(s, 2).best(lambda child: object())

    with pytest.raises(lm.CaptureError, match="no variable 'y'") as raised:
        run(no_key)
    assert raised.value.context.branch == 0
    with pytest.raises(TypeError, match="not supported between"):
        run(not_compared)


# -------------------------------------------------------------------------------- vote


def told(values, order, early):
    """A vote of forks that say these values and come in this order; None fails."""
    ballots, failed, left = _Ballots(len(values)), set(), sorted(order)
    for index in order:
        if early and ballots.decided(left):
            break
        left.remove(index)
        if values[index] is None:
            failed.add(index)
        else:
            ballots.cast(index, values[index])
    return ballots, left


@settings(max_examples=60)
@given(st.data())
def test_a_vote_that_stops_early_has_the_winner_of_the_full_one_and_stops_no_later(data):
    values = data.draw(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=7))
    order = data.draw(st.permutations(range(len(values))))
    if not any(values):
        return
    whole, _ = told(values, sorted(order), early=False)
    early, left = told(values, order, early=True)
    assert early._leader()[0] == whole._leader()[0]
    counts = Counter(value for value in values if value is not None)
    most = max(counts.values())
    assert whole._leader()[0] == next(v for v in values if v is not None and counts[v] == most)
    # brute force: it is decided exactly where every way to go on has one winner
    seen = len(order) - len(left)
    for stop in range(max(0, len(order) - 3), seen + 1):
        came = order[:stop]
        rest = sorted(order[stop:])
        part = _Ballots(len(values))
        for index in came:
            if values[index] is not None:
                part.cast(index, values[index])
        winners = set()
        for others in itertools.product(["a", "b", "c", "d", None], repeat=len(rest)):
            full = _Ballots(len(values))
            for index in came:
                if values[index] is not None:
                    full.cast(index, values[index])
            for index, value in zip(rest, others, strict=True):
                if value is not None:
                    full.cast(index, value)
            winners.add(full._leader()[0] if full.said else None)
        assert part.decided(rest) == (len(winners) == 1 and None not in winners)


def test_a_vote_ends_when_it_is_decided_and_cancels_who_has_not_spoken():
    with ScriptedBackend(lambda prompt: "yes", completes="when released") as backend:

        def body(s):
            forks = forked(s, 5)
            for _ in range(3):
                backend.release()
            vote = forks.vote("x")
            assert not backend.pending()
            assert isinstance(forks[4].error(), lm.Cancelled)
            return vote

        vote = run(body, backend).ret_value
    assert (vote.value, vote.count, vote.voted, vote.failed) == ("yes", 3, (0, 1, 2), ())
    assert vote.values == ("yes", "yes", "yes", None, None)


def test_a_full_vote_waits_for_all_and_failures_have_none():
    def answer(prompt):
        if prompt[-1] == "0":
            raise lm.BackendError("no")
        return {"1": "b", "2": "a", "3": "a", "4": "b"}[prompt[-1]]

    def body(s, early):
        vote = forked(s, 5).vote("x", stop_when_decided=early)
        assert (vote.value, vote.count) == ("b", 2)  # a tie, and the lowest fork said b
        return vote

    full = run(lambda s: body(s, False), ScriptedBackend(answer)).ret_value
    assert full.counts == (("b", 2), ("a", 2))
    assert full.failed == (0,)
    assert run(lambda s: body(s, True), ScriptedBackend(answer)).ret_value.value == "b"


def test_votes_are_of_values_with_their_types_also_such_as_have_no_hash():
    def body(s):
        forks = s.fork(5)
        for fork, value in zip(forks, (1, True, [2], [2], 1.0), strict=True):
            fork["x"] = value
        return forks.vote("x").value

    assert run(body).ret_value == [2]


def test_a_vote_of_which_all_fail_or_that_nobody_knows_raises():
    def answer(prompt):
        raise lm.BackendError("no")

    with pytest.raises(lm.BackendError) as raised:
        run(lambda s: forked(s, 3).vote("x"), ScriptedBackend(answer))
    assert raised.value.context.branch == 0
    with pytest.raises(lm.CaptureError, match="did you mean 'answer'"):
        run(lambda s: forked(s, 3, "answer").vote("answr"))


def test_races_in_async_programs():
    async def body(s):
        (first,) = await forked(s, 3).afirst(when=lambda child: child.text()[-1] == "1")
        best = await forked(s, 3).abest("x")
        vote = await forked(s, 3).avote("x")
        return first["x"], best["x"], vote.value

    backend = ScriptedBackend(digits, completes="on a thread")
    with backend:
        assert run(body, backend).ret_value == ("1", "2", "0")


def test_a_trace_ends_at_a_race():
    @lm.function
    def program(s):
        forks = forked(s, 3)
        forks.first()
        s += "more"

    traced = program.trace()
    assert traced.stopped is not None
    assert "which fork is first is known only in a run" in traced.stopped.reason


def test_an_early_vote_gives_what_the_full_one_gives_on_any_model():
    def solve(s):
        forks = s.fork(16)
        forks += "Think: " + lm.gen("thought", max_tokens=6) + "\nAnswer: "
        forks += lm.gen("answer", regex="[0-3]")
        return forks.vote("answer", stop_when_decided=early)

    early = True  # and no argument of it, which its draws would depend on
    for seed in range(6):
        options = {"seed": seed, "temperature": 0.8}
        with RandomBackend(completes="on a thread") as backend:
            early = True
            soon = run(solve, backend, **options).ret_value
            early = False
            full = run(solve, backend, **options).ret_value
        assert soon.value == full.value
        assert len(full.voted) == 16
        assert all(e == f for e, f in zip(soon.values, full.values, strict=True) if e is not None)


# ---------------------------------------------------------------------------- the runtime


def test_losers_free_their_slots_at_the_runtime_within_a_step():
    model, tokenizer, template = tiny_model()
    with Runtime.over(model, tokenizer, template, kv_tokens=4_000, max_running=8) as rt:

        @lm.function
        def program(s, how):
            s += "the user and the "
            forks = s.fork(4)
            forks += lambda i: "hello"[:i]
            forks[2] += lm.gen("x", max_tokens=2, ignore_eos=True)
            for i in (0, 1, 3):
                forks[i] += lm.gen("x", max_tokens=400, ignore_eos=True)
            before = rt.stats()
            if how == "first":
                assert forks.first() == [forks[2]]
            else:
                with pytest.raises(ZeroDivisionError):
                    forks.first(when=lambda child: 1 / 0)
            stats = rt.stats()  # is asked between two steps, behind the cancelling
            assert before.running + before.waiting > 0
            assert (stats.running, stats.waiting) == (0, 0)
            assert stats.kv_tokens_used == stats.kv_tokens_tree
            s += lm.gen("y", max_tokens=2)

        for how in ("first", "raises"):
            program.run(how, backend=rt)
        rt.check()


RACES = {
    "first": lambda forks: forks.first(),
    "best": lambda forks: forks.best("x"),
    "vote": lambda forks: forks.vote("x"),
}


@pytest.mark.parametrize("race", RACES)
def test_a_deadline_ends_a_race(race):
    with ScriptedBackend(completes="when released") as backend:
        with pytest.raises(lm.DeadlineExceeded):
            run(lambda s: RACES[race](forked(s, 3)), backend, deadline=0.2)
        assert not backend.pending()


def test_a_blocking_race_in_an_async_program_says_how_to_write_it():
    async def body(s):
        forked(s, 2).first()

    with (
        ScriptedBackend(completes="when released") as backend,
        pytest.raises(lm.ProgramError, match="afirst, abest and avote"),
    ):
        run(body, backend)


def test_names_and_conditions_that_are_none_are_told():
    async def holds(state):
        return False

    with pytest.raises(lm.ProgramError, match="a variable's name is a string, and this is int"):
        run(lambda s: forked(s, 2).vote(5))
    with pytest.raises(lm.ProgramError, match="when is an async function"):
        run(lambda s: forked(s, 2).first(when=holds))
