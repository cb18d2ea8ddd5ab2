import asyncio
import gc
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmlang as lm
from lmlang.frontend.feed import StreamEvent
from lmlang.testing import ScriptedBackend
from tests.frontend.by_hand import ByHand, bounded


@lm.function
def chat(s, question="Hi"):
    s += lm.system("Be brief.")
    s += lm.user(question)
    s += lm.assistant(lm.gen("answer"))
    s += lm.user("Sure?") + lm.assistant(lm.select("sure", ["yes", "no"]) + lm.gen("why"))
    return s["answer"]


def test_a_streaming_run_returns_at_once_and_its_state_waits():
    with ByHand() as backend:
        state = chat.run(stream=True, backend=backend)
        assert isinstance(state, lm.ProgramState)
        backend.end("one")
        assert bounded(lambda: state["answer"]) == "one"
        backend.end("two", index=1)
        assert bounded(lambda: state["why"]) == "two"
        assert bounded(lambda: state.ret_value) == "one"
        assert state.text().endswith("two</assistant>")
        assert state.error() is None
        state.sync()
        assert [m["role"] for m in state.messages()][-1] == "assistant"


def test_text_comes_as_the_backend_says_it():
    with ByHand() as backend:
        state = chat.run(stream=True, backend=backend)
        chunks = state.text_iter()
        backend.asked()  # all text before it is there, and comes at once
        assert next(chunks) == "<system>Be brief.</system><user>Hi</user><assistant>"
        backend.say("a")
        assert next(chunks) == "a"
        backend.say("bc")
        assert next(chunks) == "bc"
        backend.end()
        backend.asked(1)
        assert next(chunks) == "</assistant><user>Sure?</user><assistant>"
        sure = next(chunks)
        assert sure in ("yes", "no")
        backend.end("x", index=1)
        assert list(chunks) == ["x", "</assistant>"]


def test_one_variable_comes_as_the_backend_says_it():
    with ByHand() as backend:
        state = chat.run(stream=True, backend=backend)
        chunks = state.text_iter("answer")
        backend.say("a")
        assert next(chunks) == "a"
        backend.end("b")
        assert list(chunks) == ["b"]
        backend.end("x", index=1)
        assert list(state.text_iter("why")) == ["x"]
        assert list(state.text_iter("sure")) == [state["sure"]]


def test_events_are_one_record_of_text_and_what_is_known_of_it():
    with ByHand() as backend, chat.stream(backend=backend) as stream:
        backend.asked()
        assert next(stream) == StreamEvent(
            None, "<system>Be brief.</system><user>Hi</user><assistant>"
        )
        backend.say("ab")
        assert next(stream) == StreamEvent("answer", "ab", (97, 98), (-1.0, -1.0))
        backend.end()
        backend.end("x", index=1)
        rest = list(stream)
        assert stream.state["answer"] == "ab"
    last = [event for event in rest if event.finish]
    assert [(event.variable, event.text, event.finish) for event in last] == [
        ("answer", "", "eos"),
        ("why", "", "eos"),
    ]
    assert last[0].meta == stream.state.meta("answer")
    chosen = [event for event in rest if event.variable == "sure"]
    assert [(event.text, event.finish) for event in chosen] == [(stream.state["sure"], None)]
    assert chosen[0].meta.probs


def test_a_variable_that_was_there_before_the_reader_comes_whole():
    state = chat(backend=ScriptedBackend(["one", "two"]))
    assert list(state.text_iter("answer")) == ["one"]
    assert "".join(state.text_iter()) == state.text()
    assert "".join(state.text_iter()) == state.text()


def test_the_program_itself_may_read_its_streams():
    with ScriptedBackend(["one", "two"], completes="on a thread", chunk=1) as backend:

        @lm.function
        def program(s):
            s += "P" + lm.gen("x")
            first = list(s.text_iter("x"))
            fork = s.fork(1)[0]
            fork += "F" + lm.gen("y")
            return first, "".join(fork.text_iter()), "".join(s.text_iter())

        first, fork, own = program(backend=backend).ret_value
    assert "".join(first) == "one"
    assert (fork, own) == ("PoneFtwo", "Pone")


def test_undefined_names_raise_at_once_inside_and_at_the_end_outside():
    @lm.function
    def program(s):
        s += lm.gen("answer")
        with pytest.raises(lm.CaptureError, match="did you mean 'answer'"):
            s.text_iter("answr")
        with pytest.raises(lm.CaptureError, match="did you mean 'answer'"):
            s.text_async_iter("answr")

    program(backend=ScriptedBackend())
    with ByHand() as backend:
        state = chat.run(stream=True, backend=backend)
        chunks = state.text_iter("answr")
        backend.end()
        backend.end(index=1)
        with pytest.raises(lm.CaptureError, match="did you mean 'answer'"):
            bounded(lambda: next(chunks))
        with pytest.raises(lm.CaptureError, match="did you mean 'answer'"):
            bounded(lambda: state["answr"])
        with pytest.raises(TypeError, match="a variable's name is a string"):
            state.text_iter(3)


def test_values_that_were_set_come_as_their_text():
    @lm.function
    def program(s):
        s["n"] = 5

    assert list(program(backend=ScriptedBackend()).text_iter("n")) == ["5"]


def test_of_several_samples_the_first_is_streamed():
    with ScriptedBackend(["ab", "cd"], completes="on a thread", chunk=1) as backend:

        @lm.function
        def program(s):
            s += "P" + lm.gen("x", n=2)
            return "".join(s.text_iter()), "".join(s.text_iter("x")), s["x"]

        assert program(backend=backend).ret_value == ("Pab", "ab", ["ab", "cd"])


def test_reasoning_that_is_set_apart_is_streamed_when_it_is_known():
    answer = "<think>hm</think>yes"
    with ScriptedBackend([answer], completes="on a thread", chunk=1) as backend:

        @lm.function
        def program(s):
            s += "P" + lm.separate_reasoning(lm.gen("x"), model_type="qwen3")

        with program.stream(backend=backend) as stream:
            text = "".join(event.text for event in stream)
        assert text == stream.state.text()
        assert list(stream.state.text_iter("x")) == [stream.state["x"]] == ["yes"]


# --------------------------------------------------------------------------------- scopes


def test_a_scope_streams_the_text_that_is_appended_inside():
    with ByHand() as backend:

        @lm.function
        def program(s):
            s += "before "
            with s.var_scope("v"):
                s += "a" + lm.gen("x") + "b" + lm.user(lm.gen("y"))
            s += "after"
            return s["v"]

        state = program.run(stream=True, backend=backend)
        backend.asked()
        chunks = state.text_iter("v")
        assert next(chunks) == "a"
        backend.say("1")
        assert next(chunks) == "1"
        backend.end("2")
        assert next(chunks) == "2"
        backend.asked(1)
        assert next(chunks) == "b<user>"
        backend.end("3", index=1)
        assert list(chunks) == ["3", "</user>"]
        assert bounded(lambda: state["v"]) == "a12b<user>3</user>" == state.ret_value
        assert "".join(state.text_iter()) == "before a12b<user>3</user>after"


# --------------------------------------------------------------------------------- errors


def test_what_failed_is_raised_in_the_iterator_behind_what_came():
    with ByHand() as backend:
        state = chat.run(stream=True, backend=backend)
        whole, one, late = state.text_iter(), state.text_iter("answer"), state.text_iter("why")
        backend.say("ab")
        backend.asked().fail(lm.BackendError("broken"))
        assert list(_until_error(whole)) == [
            "<system>Be brief.</system><user>Hi</user><assistant>",
            "ab",
            "BackendError",
        ]
        assert list(_until_error(one)) == ["ab", "BackendError"]
        assert list(_until_error(late)) == ["BackendError"]
        for read in (state.sync, state.text, lambda: state["why"], lambda: state.ret_value):
            with pytest.raises(lm.BackendError, match="broken") as caught:
                bounded(read)
            assert caught.value.context.program == "chat"
        assert isinstance(state.error(), lm.BackendError)


def _until_error(chunks):
    try:
        yield from chunks
    except lm.LMLangError as error:
        yield type(error).__name__


def test_an_error_of_the_body_reaches_all_readers():
    started = threading.Event()

    @lm.function
    def program(s):
        s += "a"
        started.wait(60)
        raise ValueError("mine")

    state = program.run(stream=True, backend=ScriptedBackend())
    chunks = state.text_iter()
    assert next(chunks) == "a"
    started.set()
    for read in (lambda: next(chunks), lambda: state["x"], state.text, state.sync):
        with pytest.raises(ValueError, match="mine"):
            bounded(read)


def test_leaving_early_cancels_what_is_under_way():
    with ByHand() as backend:
        state = chat.run(stream=True, backend=backend)
        for chunk in state.text_iter():
            assert chunk
            backend.asked()
            break
        assert backend.cancels()
        with pytest.raises(lm.Cancelled, match="reader of its stream left before the end"):
            bounded(state.text)


def test_leaving_a_stream_or_dropping_it_cancels_the_run():
    with ByHand() as backend:
        for leave in (lambda s: s.close(), lambda s: s.__exit__(None, None, None), lambda s: None):
            stream = chat.stream(backend=backend)
            state = stream.state
            leave(stream)
            del stream
            gc.collect()
            with pytest.raises(lm.Cancelled):
                bounded(state.sync)


def test_another_reader_keeps_what_one_has_left():
    with ByHand() as backend:
        state = chat.run(stream=True, backend=backend)
        one, other = state.text_iter("answer"), state.text_iter("answer")
        backend.say("a")
        assert (next(one), next(other)) == ("a", "a")
        one.close()
        backend.end("b")
        backend.end(index=1)
        assert list(other) == ["b"]
        assert state["answer"] == "ab"


def test_many_readers_read_the_same():
    seen = []
    with ScriptedBackend(completes="when released", chunk=1) as backend:
        state = chat.run(stream=True, backend=backend)
        names = [None, "answer", "why", None]
        readers = [
            threading.Thread(target=lambda n=n: seen.append((n, "".join(state.text_iter(n)))))
            for n in names
        ]
        for reader in readers:
            reader.start()
        for _ in range(3):
            backend.wait_for(1)
            backend.release()
        for reader in readers:
            reader.join(60)
    expected = [(n, state.text() if n is None else state.text_of(n)) for n in names]
    assert sorted(seen, key=repr) == sorted(expected, key=repr)


def test_a_reader_waits_for_no_backend_that_does_not_end_what_was_cancelled():
    backend = ByHand(stubborn=True)
    state = chat.run(stream=True, backend=backend)
    chunks = state.text_iter("answer")
    backend.say("a")
    assert next(chunks) == "a"
    state.cancel()
    with pytest.raises(lm.Cancelled, match="the program was cancelled"):
        bounded(lambda: next(chunks))
    with pytest.raises(lm.Cancelled):
        bounded(state.sync)


def test_no_thread_is_left_by_streams():
    before = set(threading.enumerate())
    with ScriptedBackend(completes="on a thread", chunk=1) as backend:
        for _ in range(5):
            assert list(chat.stream(backend=backend))
        states = [chat.run(stream=True, backend=backend) for _ in range(5)]
        for state in states:
            state.sync()
    for thread in threading.enumerate():
        if thread.name == "lmlang-run":
            thread.join(60)
    assert {thread.name for thread in set(threading.enumerate()) - before} <= {"lmlang-dispatcher"}


def test_a_template_that_writes_old_text_anew_cannot_be_streamed_and_says_so():
    class Forgetful(ScriptedBackend):
        def render(self, prompt):
            text = super().render(prompt)
            return text if text.count("<assistant>") < 2 else text.replace("Hi", "…")

    with pytest.raises(lm.ProgramError, match="template writes earlier text anew"):
        list(chat.stream(backend=Forgetful()))


def test_white_space_that_a_template_trims_is_not_said_too_early():
    class Trimming(ByHand):
        def render(self, prompt):
            return super().render(prompt).replace(" </user>", "</user>")

    said, go = threading.Event(), threading.Event()

    @lm.function
    def program(s):
        with s.user():
            s += "Hi "
            said.set()
            go.wait(60)
        s += lm.assistant("x")

    with Trimming() as backend:
        state = program.run(stream=True, backend=backend)
        chunks = state.text_iter()
        assert said.wait(60)
        assert next(chunks) == "<user>Hi"
        go.set()
        assert (
            "<user>Hi" + "".join(chunks)
            == state.text()
            == "<user>Hi</user><assistant>x</assistant>"
        )


# --------------------------------------------------------------------------------- async


def collect(chunks):
    async def work():
        return [chunk async for chunk in chunks]

    return work()


def test_async_readers_take_no_threads():
    async def main(backend):
        before = set(threading.enumerate())
        state = chat.run(stream=True, backend=backend)
        tasks = [
            asyncio.ensure_future(collect(state.text_async_iter(name)))
            for name in [None, "answer", "why", "sure"] * 5
        ]
        while not backend.pending():
            await asyncio.sleep(0)
        for _ in range(100):  # all of them have come to wait
            await asyncio.sleep(0)
        came = sorted(thread.name for thread in set(threading.enumerate()) - before)
        assert len(came) == len(set(came))
        assert set(came) <= {"lmlang-run", "lmlang-dispatcher"}
        state.cancel()
        await asyncio.wait(tasks)
        assert all(isinstance(task.exception(), lm.Cancelled) for task in tasks)

    with ScriptedBackend(completes="when released") as backend:
        asyncio.run(main(backend))


def test_async_readers_of_texts_and_events():
    async def main(backend):
        state = chat.run(stream=True, backend=backend)
        tasks = [
            asyncio.ensure_future(collect(state.text_async_iter(name)))
            for name in [None, "answer", "why", "sure"] * 5
        ]
        texts = ["".join(chunks) for chunks in await asyncio.gather(*tasks)]
        assert texts[:4] * 5 == texts
        assert texts[:4] == [
            state.text(),
            state["answer"],
            state["why"],
            state["sure"],
        ]
        async with chat.astream(backend=backend) as stream:
            events = [event async for event in stream]
        assert "".join(event.text for event in events) == stream.state.text()

    with ScriptedBackend(completes="on a thread", chunk=1) as backend:
        asyncio.run(main(backend))


def test_metadata_comes_with_the_text_it_belongs_to():
    async def main(backend):
        state = chat.run(stream=True, backend=backend)
        backend.say("ab")
        backend.end("c")
        backend.end("x", index=1)
        found = await collect(state.text_async_iter("answer", return_meta_data=True))
        assert "".join(text for text, _ in found) == "abc"
        assert [info["completion_tokens"] for _, info in found][-1] == 3
        assert found[-1][1] == state.get_meta_info("answer")
        whole = await collect(state.text_async_iter(return_meta_data=True))
        assert "".join(text for text, _ in whole) == state.text()

    with ByHand() as backend:
        asyncio.run(main(backend))


def test_leaving_an_async_stream_cancels_the_run():
    async def leave_by_break(state):
        async for _ in state.text_async_iter():
            break

    async def leave_by_cancel(state):
        reading = asyncio.ensure_future(collect(state.text_async_iter("answer")))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    async def main(leave):
        with ByHand() as backend:
            state = chat.run(stream=True, backend=backend)
            await leave(state)
            with pytest.raises(lm.Cancelled, match="reader of its stream left"):
                await state.adone()

    for leave in (leave_by_break, leave_by_cancel):
        asyncio.run(main(leave))


def test_errors_are_raised_in_async_iterators():
    async def main():
        state = chat.run(stream=True, backend=ScriptedBackend(fail_at=0))
        with pytest.raises(lm.BackendError, match="scripted to fail"):
            await collect(state.text_async_iter())
        with pytest.raises(lm.BackendError, match="scripted to fail"):
            await collect(chat.astream(backend=ScriptedBackend(fail_at=2)))

    asyncio.run(main())


# ------------------------------------------------------------------------- properties

step = st.one_of(
    st.text("ab \n", max_size=3),
    st.just(None),
    st.sampled_from(["user", "assistant", "scope", "select", "fork"]),
)
programs = st.lists(step, max_size=8)


def perform(s, steps):
    for number, each in enumerate(steps):
        if each is None:
            s += lm.gen(f"g{number}", max_tokens=5)
        elif each == "select":
            s += lm.select(f"c{number}", ["x", "yy"])
        elif each in ("user", "assistant"):
            s += lm.user("u " + lm.gen(f"t{number}", max_tokens=3))
        elif each == "scope":
            with s.var_scope(f"v{number}"):
                s += "in" + lm.gen(f"i{number}", max_tokens=3)
        elif each == "fork":
            forks = s.fork(2)
            forks += lm.gen("f", max_tokens=2)
            forks.join("concate_and_append" if number % 2 else "gather_variable")
        else:
            s += each


@settings(max_examples=60, deadline=None)
@given(programs, st.integers(1, 4), st.sampled_from(["at once", "on a thread"]))
def test_what_is_streamed_is_what_there_is_in_the_end(steps, chunk, completes):
    with ScriptedBackend(completes=completes, chunk=chunk) as backend:
        program = lm.function(perform)
        with program.stream(steps, seed=1, backend=backend) as stream:
            events = list(stream)
        state = stream.state
        assert "".join(event.text for event in events) == state.text()
        for name in list(state._cursor.variables):
            assert "".join(state.text_iter(name)) == state.text_of(name)
            own = [event for event in events if event.variable == name]
            if own:
                assert "".join(event.text for event in own) == state.text_of(name)
                assert own[-1].meta == state.meta(name)
        unstreamed = program.run(steps, seed=1, backend=ScriptedBackend())
        assert unstreamed.text() == state.text()
