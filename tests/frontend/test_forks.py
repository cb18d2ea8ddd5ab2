import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmlang as lm
from lmlang.protocol import Tokens
from lmlang.testing import ScriptedBackend


def run(body, backend=None, **kwargs):
    return lm.function(body).run(backend=backend or ScriptedBackend(), **kwargs)


def test_children_begin_with_what_the_parent_is_there():
    def body(s):
        s["a"] = 1
        s += lm.user_begin() + "Hi"
        forks = s.fork(2)
        s += " parent" + lm.user_end()
        s["a"] = 2
        for i, fork in enumerate(forks):
            fork += f" {i}" + lm.user_end()
        return [fork.text() for fork in forks], [fork["a"] for fork in forks], s.text()

    texts, values, own = run(body).ret_value
    assert texts == ["<user>Hi 0</user>", "<user>Hi 1</user>"]
    assert values == [1, 1]
    assert own == "<user>Hi parent</user>"


def test_forks_are_a_sequence():
    def body(s):
        forks = s.fork(5)
        assert len(forks) == len(list(forks)) == 5
        assert repr(forks) == "<Forks of 5 states>"
        assert forks[-1] is list(forks)[4]
        assert forks[1:3] == list(forks)[1:3]
        for index in (5, -6):
            with pytest.raises(IndexError, match=f"fork {index} of 5, counted from 0"):
                forks[index]

    run(body)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (0, "size=0 is out of range: it must be from 1"),
        (-1, "size=-1 is out of range"),
        (100_001, "size=100001 is out of range: it must be from 1 to 100,000"),
        ("2", "size='2' must be an integer"),
    ],
)
def test_absurd_sizes_raise(size, message):
    with pytest.raises(lm.ProgramError, match=message):
        run(lambda s: s.fork(size))


def test_join_gathers_what_was_set_since_the_fork_in_fork_order():
    def body(s):
        s["old"], s["again"] = 1, 2
        forks = s.fork(3)
        for i, fork in enumerate(forks):
            fork["n"] = i
            if i == 1:
                fork["again"] = "new"
                fork["odd"] = True
        forks.join()
        return s["old"], s["again"], s["n"], s["odd"]

    assert run(body).ret_value == (1, [None, "new", None], [0, 1, 2], [None, True, None])


def test_join_waits_for_children_but_not_for_the_parent():
    with ScriptedBackend(completes="when released") as backend:

        def body(s):
            forks = s.fork(2)
            for fork in forks:
                fork += lm.gen("x")
            s += lm.gen("own")
            for index in (0, 0):
                backend.release(index)
            forks.join()
            s += lm.gen("next")
            assert len(backend.pending()) == 1
            backend.release()
            backend.wait_for(1)
            backend.release()
            return s["x"], s["own"]

        gathered, own = run(body, backend).ret_value
    assert len(gathered) == 2
    assert isinstance(own, str)


def test_concatenating_join_appends_each_childs_own_tokens():
    def body(s):
        s += "P:"
        forks = s.fork(2)
        for i, fork in enumerate(forks):
            fork += f" {i}=" + lm.gen("x")
        forks.join("concate_and_append")
        assert "x" not in s
        s += "."

    backend = ScriptedBackend(["aa", "bb"])
    state = run(body, backend)
    assert state.text() == "P: 0=aa 1=bb."
    tokens = [x for x in state._state.prompt.segments() if isinstance(x, Tokens)]
    assert [t.text for t in tokens] == ["aa", "bb"]


def test_concatenating_whole_turns_works_and_half_turns_raise():
    def whole(s):
        forks = s.fork(2)
        for fork in forks:
            fork.user("a")
        forks.join("concate_and_append")
        s.user("b")

    def half(s):
        forks = s.fork(2)
        forks[1].__iadd__(lm.user_begin())
        forks.join("concate_and_append")

    assert run(whole).text() == "<user>a</user><user>a</user><user>b</user>"
    with pytest.raises(lm.ProgramError, match="text of fork 1 cannot be appended"):
        run(half)


def test_wrong_joins_raise():
    def twice(s):
        forks = s.fork(1)
        forks.join()
        forks.join()

    with pytest.raises(lm.ProgramError, match="joined already: join once"):
        run(twice)
    with pytest.raises(lm.ProgramError, match="mode='gather' is unknown"):
        run(lambda s: s.fork(1).join("gather"))


def test_unnamed_generations_after_a_join_do_not_hide_the_gathered_ones():
    def body(s):
        forks = s.fork(2)
        for fork in forks:
            fork += lm.gen()
        forks.join()
        s += lm.gen()
        return s["_0"], s["_1"]

    assert run(body, ScriptedBackend(["a", "b", "c"])).ret_value == (["a", "b"], "c")


def failing_fork(join):
    def body(s):
        s["before"] = 1
        forks = s.fork(3)
        for i, fork in enumerate(forks):
            fork += f"{i}" + lm.gen("x")
        return join(s, forks)

    def answer(prompt):
        if prompt == "1":
            raise lm.BackendError("broken")
        return "ok"

    return body, ScriptedBackend(answer)


def test_join_raises_a_childs_error_with_its_index_and_the_parent_goes_on():
    def join(s, forks):
        with pytest.raises(lm.BackendError, match="broken") as caught:
            forks.join()
        s += "more" + lm.gen("y")
        return caught.value.context, s["before"], s["y"], forks[0]["x"], s.error(), "x" in s

    body, backend = failing_fork(join)
    context, before, after, sibling, error, gathered = run(body, backend).ret_value
    assert (context.branch, context.op_path, context.prompt_tail) == (1, "0/fork0.1/0", "1")
    assert context.program == "body"
    assert context.source.startswith(__file__)
    assert (before, after, sibling, error, gathered) == (1, "ok", "ok", None, False)


def test_an_error_in_an_unjoined_fork_is_raised_by_run():
    body, backend = failing_fork(lambda s, forks: None)
    with pytest.raises(lm.BackendError, match="broken") as caught:
        run(body, backend)
    assert caught.value.context.branch == 1
    assert "branch: 1" in str(caught.value)


def test_run_waits_for_unjoined_forks():
    with ScriptedBackend(completes="on a thread") as backend:

        def body(s):
            for fork in s.fork(5):
                fork += lm.gen("x")
                for inner in fork.fork(2):
                    inner += lm.gen("y")

        state = run(body, backend)
        assert len(backend.requests) == 15
        assert state.usage().generated_tokens == 15 * 9


def test_children_of_a_failed_state_fail_with_its_error():
    def body(s):
        s += lm.gen("x")
        fork = s.fork(2)[1].fork(1)[0]
        fork["y"] = 1
        for read in (lambda: fork["y"], fork.text, fork.sync):
            with pytest.raises(lm.BackendError, match="call 0 was scripted to fail"):
                read()
        raise fork.error()

    with pytest.raises(lm.BackendError) as caught:
        run(body, ScriptedBackend(fail_at=0))
    assert caught.value.context.branch is None
    assert caught.value.context.op_path == "0"


@pytest.mark.parametrize("completes", ["at once", "on a thread"])
def test_ten_thousand_forks_need_no_threads_of_their_own(completes):
    before = set(threading.enumerate())
    there = set()

    with ScriptedBackend(completes=completes) as backend:

        def body(s):
            nonlocal there
            s += "x" + lm.gen("p", max_tokens=1)
            forks = s.fork(10_000)
            for fork in forks:
                fork += lm.gen("y", max_tokens=1)
            there = set(threading.enumerate())
            forks.join()
            return s["y"]

        assert len(run(body, backend).ret_value) == 10_000
    assert {thread.name for thread in there - before} <= {"lmlang-dispatcher", "lmlang-scripted"}
    assert len(there - before) <= 2
    assert {thread.name for thread in set(threading.enumerate()) - before} <= {"lmlang-dispatcher"}


@pytest.mark.parametrize("completes", ["at once", "on a thread", "when released"])
def test_a_hundred_nested_forks_behind_a_pending_parent(completes):
    with ScriptedBackend(completes=completes) as backend:

        def body(s):
            s += lm.gen("x")
            states = [s]
            for depth in range(100):
                child = states[-1].fork(2)[depth % 2]
                child += f"{depth} "
                states.append(child)
            states[-1] += lm.gen("y")
            if completes == "when released":
                assert len(backend.pending()) == 1
                backend.release()
                backend.wait_for(1)
                backend.release()
            return states[-1].text(), states[-1]["y"]

        text, last = run(body, backend).ret_value
    assert text.endswith("".join(f"{depth} " for depth in range(100)) + last)


# ------------------------------------------------------------------------ properties

pieces = st.lists(st.one_of(st.text("ab \n", max_size=3), st.just(None)), max_size=5)
trees = st.recursive(
    st.tuples(pieces, st.just(())),
    lambda inner: st.tuples(pieces, st.lists(inner, min_size=1, max_size=3).map(tuple)),
    max_leaves=6,
)


def grow(state, tree, leaves):
    own, children = tree
    for piece in own:
        state += lm.gen(max_tokens=3) if piece is None else piece
    if not children:
        leaves.append(state)
        return
    for fork, child in zip(state.fork(len(children)), children, strict=True):
        grow(fork, child, leaves)


def straight_lines(tree, before=()):
    own, children = tree
    line = (*before, *own)
    return [line] if not children else [x for c in children for x in straight_lines(c, line)]


@settings(max_examples=60, deadline=None)
@given(trees)
def test_a_forked_program_makes_the_prompts_of_the_unforked_ones(tree):
    def forked(s):
        leaves = []
        grow(s, tree, leaves)
        return [leaf._reader.prompt().segments() for leaf in leaves]

    def unforked(s, line):
        grow(s, (line, ()), [])
        return s._reader.prompt().segments()

    alone = [
        lm.function(unforked).run(line, backend=ScriptedBackend(), temperature=0).ret_value
        for line in straight_lines(tree)
    ]
    assert run(forked, temperature=0).ret_value == alone


@settings(max_examples=60, deadline=None)
@given(trees, st.data())
def test_the_order_of_completions_does_not_matter(tree, data):
    def body(s, backend):
        leaves = []
        grow(s, tree, leaves)
        if backend is not None:
            while not all(leaf._state.phase.name == "IDLE" for leaf in leaves):
                release_any(backend, leaves, data)
        return [leaf.text() for leaf in leaves]

    with ScriptedBackend(completes="when released") as manual:
        mixed = run(lambda s: body(s, manual), manual, seed=1)
    ordered = run(lambda s: body(s, None), seed=1)
    assert mixed.ret_value == ordered.ret_value
    assert mixed.usage() == ordered.usage()


def release_any(backend, leaves, data):
    pending = len(backend.pending())
    if pending:
        # Of a fixed range: how many are pending hangs on the dispatcher, the draws must not.
        backend.release(data.draw(st.integers(0, 255)) % pending)
    else:  # the dispatcher is between an answer and the next request: let it get there
        state = leaves[0]._state.run
        with state.changed:
            state.changed.wait(0.001)
