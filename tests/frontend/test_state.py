import copy
import pickle
import threading

import pytest

import lmlang as lm
from lmlang.frontend import ir
from lmlang.protocol import Usage
from lmlang.testing import ScriptedBackend


def run(body, backend=None, **kwargs):
    return lm.function(body).run(backend=backend or ScriptedBackend(), **kwargs)


# ------------------------------------------------------------------------------- appending


@pytest.mark.parametrize("wrong", [3, None, ["a"], b"a", 1.5, object()])
def test_only_text_and_expressions_can_be_appended(wrong):
    def body(s):
        s += wrong

    with pytest.raises(TypeError, match=r"cannot be appended.*s\.text_of\(name\)") as caught:
        run(body)
    assert isinstance(caught.value, lm.ProgramTypeError)
    assert any(entry.name == "body" for entry in caught.traceback)


def test_adding_to_a_state_says_how_to_append():
    def body(s):
        for add in (lambda: s + "x", lambda: "x" + s, lambda: s + lm.gen("x")):
            with pytest.raises(lm.ProgramTypeError, match=r"in place.*write s \+= …"):
                add()

    assert run(body).text() == ""


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_state_is_neither_copied_nor_pickled(copied):
    def body(s):
        copied(s)

    with pytest.raises(lm.ProgramTypeError, match=r"neither copied nor pickled.*s\.fork") as caught:
        run(body)
    assert caught.value.context.source == f"{__file__}:{body.__code__.co_firstlineno + 1}"


def test_a_lone_surrogate_is_refused_where_it_stands():
    def body(s):
        s += "ab\udcff"

    with pytest.raises(lm.ProgramError, match=r"lone surrogate \(U\+DCFF\) at character 2"):
        run(body)


def test_a_refused_expression_leaves_nothing_behind():
    def body(s):
        with pytest.raises(lm.ProgramError, match="assistant turn cannot begin inside"):
            s += "a" + lm.gen("x") + lm.user(lm.assistant("b"))
        s += "c"
        return "x" in s

    state = run(body)
    assert state.text() == "c"
    assert state.ret_value is False


def test_appending_never_waits():
    with ScriptedBackend(completes="when released") as backend:

        def body(s):
            s += "a" + lm.gen("x") + lm.gen("y")
            s["z"] = 1
            for fork in s.fork(3):
                fork += lm.gen("w")
            assert len(backend.pending()) == 1
            assert all(name in s for name in "xyz")
            raise ZeroDivisionError  # reading anything would hang here

        with pytest.raises(ZeroDivisionError):
            run(body, backend)
        assert backend.pending() == []  # cancelled


def test_control_token_spellings_are_plain_text():
    state = run(lambda s: s.user("<|im_end|>"))
    assert state.text() == "<user><|im_end|></user>"


def test_a_str_subclass_is_taken_as_its_text():
    class Loud(str):
        def __str__(self):
            return "LOUD"

    def body(s):
        s += Loud("quiet")

    assert run(body).text() == "quiet"


# ------------------------------------------------------------------------------- roles


def test_all_ways_to_write_a_turn_read_alike():
    def expression(s):
        s += lm.system("a") + lm.user("b" + lm.gen("x")) + lm.assistant()

    def blocks(s):
        with s.system():
            s += "a"
        with s.user() as inner:
            assert inner is s
            s += "b"
            s += lm.gen("x")
        with s.assistant():
            pass

    def calls(s):
        s.system("a")
        s.user("b" + lm.gen("x"))
        s += lm.assistant_begin()
        s += lm.assistant_end()

    def begins(s):
        s += lm.system_begin() + "a" + lm.system_end()
        s += lm.user_begin() + "b" + lm.gen("x") + lm.user_end()
        s += lm.assistant_begin() + lm.assistant_end()

    texts = [
        run(body, ScriptedBackend(["!"])).text() for body in (expression, blocks, calls, begins)
    ]
    assert texts == ["<system>a</system><user>b!</user><assistant></assistant>"] * 4


def test_a_block_is_closed_on_exceptions_and_the_error_is_the_bodys_own():
    def body(s):
        def turn():
            with s.user():
                s.__iadd__("a")
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            turn()
        s += "b"

    assert run(body).text() == "<user>a</user>b"


def test_the_bodys_error_passes_even_where_the_block_was_closed_by_hand():
    def body(s):
        def turn():
            with s.user():
                s.__iadd__(lm.user_end())
                raise StopIteration

        with pytest.raises(StopIteration):
            turn()

    assert run(body).text() == "<user></user>"


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (lm.user(lm.user("a")), "a user turn cannot begin inside the open user turn"),
        (lm.user_end(), "the end of a user turn, but no turn is open"),
        (lm.user_begin() + lm.system_end(), "end of a system turn, but the open turn is the user"),
        (lm.user_begin() + lm.system(), "system turn cannot begin.*lm.user_end"),
    ],
)
def test_turns_that_do_not_fit_raise(expression, message):
    def body(s):
        s += expression

    with pytest.raises(lm.ProgramError, match=message):
        run(body)


def test_a_block_closed_by_hand_raises_at_its_end():
    def body(s):
        with s.user():
            s += lm.user_end()

    with pytest.raises(lm.ProgramError, match="no turn is open"):
        run(body)


def test_messages_are_the_turns_the_open_one_included():
    def body(s):
        s += "outside" + lm.system("a") + "between" + lm.user("b" + lm.gen("x"))
        s += lm.assistant_begin() + "c"

    assert run(body, ScriptedBackend(["!"])).messages() == [
        {"role": "system", "content": "a"},
        {"role": "user", "content": "b!"},
        {"role": "assistant", "content": "c"},
    ]


# ------------------------------------------------------------------------------- variables


def test_unnamed_generations_are_numbered_and_the_last_of_a_name_wins():
    def body(s):
        s += lm.gen() + lm.gen("x") + lm.gen() + lm.select(choices=["c"]) + lm.gen("x")
        return [s["_0"], s["_1"], s["_2"], s["x"]]

    assert run(body, ScriptedBackend(["a", "b", "d", "e"])).ret_value == ["a", "d", "c", "e"]


def test_reading_means_what_was_appended_before_it():
    def body(s):
        s += lm.gen("x")
        first = s["x"]
        s["x"] = 5
        second = s["x"], s.text_of("x")
        s += lm.gen("x")
        return first, second, s["x"]

    assert run(body, ScriptedBackend(["a", "b"])).ret_value == ("a", (5, "5"), "b")


def test_a_name_is_there_as_soon_as_it_is_appended():
    def body(s):
        before = "x" in s
        s += lm.gen("x")
        return before, "x" in s, 3 in s

    assert run(body).ret_value == (False, True, False)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("answr", "no variable 'answr' has been appended here; did you mean 'answer'"),
        ("zzz", "defined are 'answer', 'mood'"),
    ],
)
def test_an_undefined_name_raises_at_once_with_near_misses(name, message):
    with ScriptedBackend(completes="when released") as backend:

        def body(s):
            s += lm.gen("answer") + lm.gen("mood")
            for read in (s.__getitem__, s.text_of, s.meta):
                with pytest.raises(lm.CaptureError, match=message):
                    read(name)
            backend.release()
            backend.wait_for(1)
            backend.release()

        run(body, backend)


def test_with_nothing_defined_the_message_says_how_to_define():
    with pytest.raises(lm.CaptureError, match=r"nothing is defined yet: append lm\.gen"):
        run(lambda s: s["x"])


@pytest.mark.parametrize("read", [lambda s: s[0], lambda s: list(s), lambda s: s.meta(None)])
def test_names_are_strings_and_a_state_is_no_sequence(read):
    with pytest.raises(TypeError, match="a variable's name is a string"):
        run(read)


def test_setting_needs_a_name():
    with pytest.raises(lm.ProgramError, match="name cannot be empty"):
        run(lambda s: s.__setitem__("", 1))


def test_meta_of_a_generation():
    def body(s):
        s += "ab" + lm.gen("x", max_tokens=3, stop="\n") + lm.gen("y", max_tokens=2) + lm.gen("z")

    state = run(body, ScriptedBackend(["q\nr", "long", "end"]), seed=4)
    x, y, z = (state.meta(name) for name in "xyz")
    assert (x.finish, x.stop, x.tokens, x.logprobs) == ("stop", "\n", (113, 10), (-1.0, -1.0))
    assert (x.prompt_tokens, x.generated_tokens, x.logprob, x.seed) == (2, 2, -2.0, 4)
    assert (y.finish, y.stop, state["y"]) == ("length", None, "lo")
    assert (z.finish, z.generated_tokens) == ("eos", 4)
    assert state.usage() == Usage(prompt_tokens=2 + 3 + 5, generated_tokens=2 + 2 + 4)


def test_a_set_variable_has_no_meta():
    def body(s):
        s["x"] = 1
        return s.meta("x")

    with pytest.raises(lm.CaptureError, match="'x' was set by the program or a join"):
        run(body)


def test_max_tokens_zero_is_an_empty_text_of_finish_length():
    def body(s):
        s += "a" + lm.gen("x", max_tokens=0)

    state = run(body)
    assert (state["x"], state.meta("x").finish, state.text()) == ("", "length", "a")


def test_text_and_token_ids_are_the_backends():
    state = run(lambda s: s.user("hi"))
    assert state.text() == "<user>hi</user>"
    assert state.token_ids() == [ord(c) for c in "<user>hi</user>"]


def test_the_recording_is_in_order_and_knows_the_users_lines():
    def body(s):
        s += "a" + lm.gen("x", max_tokens=3)
        s["y"] = 1
        with s.user():
            s.fork(2).join()

    program = run(body).program()
    kinds = [type(node).__name__ for node in program.nodes]
    assert " ".join(kinds) == "Start Text Gen SetVar Role Fork Join EndRole Return"
    assert program.nodes[2].max_tokens == 3
    assert program == run(body).program()
    hash(program.nodes)
    made = {0}
    for node in program.nodes[1:]:
        assert node.state in made
        made |= set(ir.made_by(node))
    line = body.__code__.co_firstlineno
    sources = [source.rsplit(":", 1)[1] for _, source in sorted(program.sources.items())]
    # text, gen, set_var, role, two children, join; the end of a block is at its `with`
    assert [int(source) - line for source in sources] == [1, 1, 2, 3, 4, 4, 4, 3]
    assert all(source.startswith(__file__) for source in program.sources.values())


def test_repr_names_the_variables_and_waits_for_nothing():
    with ScriptedBackend(completes="when released") as backend:

        def body(s):
            s += lm.gen("x")
            shown = repr(s)
            backend.release()
            return shown

        assert run(body, backend).ret_value == "<ProgramState of body: x>"


def test_repr_is_short_whatever_variables_are_called():
    def body(s):
        s["n" * 100_000] = 1
        return repr(s)

    assert len(run(body, ScriptedBackend()).ret_value) < 300


def test_a_read_on_the_dispatcher_thread_raises_instead_of_waiting_for_itself():
    class Reading(ScriptedBackend):
        def generate(self, request):
            if threading.current_thread().name == "lmlang-dispatcher":
                state["y"]
            return super().generate(request)

    appended = threading.Event()

    def answer(_):
        assert appended.wait(60)  # so that the dispatcher goes on from here, and not the body
        return "there"

    with Reading(answer, completes="on a thread") as backend:

        def body(s):
            nonlocal state
            state = s
            s += lm.gen("x") + lm.gen("y")
            appended.set()
            return s["y"]

        state = None
        with pytest.raises(lm.ProgramError, match="read on lmlang's dispatcher thread"):
            run(body, backend)
