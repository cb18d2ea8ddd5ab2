import inspect

import pytest

import lmlang as lm
from lmlang.testing import ScriptedBackend


@lm.function
def greet(s, name: str, times: int = 1, *, mark: str = "!"):
    """Says hello."""
    s += f"Hello {name}{mark}" * times
    return name


def test_a_program_keeps_its_name_its_doc_and_its_signature():
    assert (greet.__name__, greet.__doc__, greet.__module__) == ("greet", "Says hello.", __name__)
    assert list(inspect.signature(greet).parameters) == ["s", "name", "times", "mark"]
    assert "greet(s, name: str" in repr(greet)


def test_calling_and_run_are_the_same():
    backend = ScriptedBackend()
    for state in (
        greet("Ann", 2, mark="?", backend=backend),
        greet.run("Ann", times=2, mark="?", backend=backend),
        greet.options(backend=backend)(name="Ann", times=2, mark="?"),
    ):
        assert isinstance(state, lm.ProgramState)
        assert (state.text(), state.ret_value) == ("Hello Ann?Hello Ann?", "Ann")


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"greet\(name: str.*missing a required argument: 'name'"),
        (("a", 1, 2), {}, "too many positional arguments"),
        (("a",), {"nam": 1}, "unexpected keyword argument 'nam'"),
        (("a",), {"name": "b"}, "multiple values for argument 'name'"),
    ],
)
def test_wrong_arguments_are_type_errors(args, kwargs, message):
    with pytest.raises(TypeError, match=message):
        greet(*args, **kwargs, backend=ScriptedBackend())


def params(program, *args, **kwargs):
    backend = ScriptedBackend()
    program.run(*args, backend=backend, **kwargs)
    return [request.params for request in backend.requests]


@lm.function
def generate(s):
    s += lm.gen("x") + lm.gen("y", max_tokens=3, temperature=0.5, stop=[])


def test_the_runs_keywords_have_the_fields_names_and_defaults():
    first, second = params(generate)
    assert (first.max_tokens, first.temperature, first.top_p, first.top_k) == (128, 1.0, 1.0, -1)
    assert (first.min_p, first.stop, first.ignore_eos) == (0.0, (), False)
    assert (second.max_tokens, second.temperature) == (3, 0.5)


def test_what_a_gen_leaves_open_it_takes_from_the_run():
    given = {
        "max_new_tokens": 7,
        "temperature": 0.25,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "stop": "\n",
        "ignore_eos": True,
    }
    first, second = params(generate, **given)
    assert (first.max_tokens, first.temperature, first.top_p) == (7, 0.25, 0.5)
    assert (first.top_k, first.min_p, first.stop, first.ignore_eos) == (3, 0.1, ("\n",), True)
    assert (second.max_tokens, second.temperature, second.top_p, second.stop) == (3, 0.5, 0.5, ())


def test_the_nearest_option_wins_and_none_inherits():
    program = lm.function(temperature=0.1, max_new_tokens=9)(generate._body)
    assert params(program)[0].temperature == 0.1
    assert params(program.options(temperature=0.2))[0].temperature == 0.2
    assert params(program.options(temperature=0.2), temperature=0.3)[0].temperature == 0.3
    assert params(program, temperature=None)[0].temperature == 0.1
    assert params(program.options(temperature=0))[0].max_tokens == 9
    assert params(program)[0].temperature == 0.1


def test_a_parameter_of_the_programs_own_wins_over_the_runs():
    @lm.function
    def program(s, temperature, seed=None):
        s += f"{temperature} {seed} " + lm.gen("x")

    backend = ScriptedBackend()
    state = program.options(temperature=0.5, seed=3)(30, seed="s", backend=backend)
    assert state.text().startswith("30 s ")
    assert backend.requests[0].params.temperature == 0.5
    assert state.meta("x").seed == 3


def test_var_keywords_take_what_the_run_does_not():
    @lm.function
    def program(s, *args, **extra):
        return args, extra

    state = program(1, 2, a=3, temperature=0, backend=ScriptedBackend())
    assert state.ret_value == ((1, 2), {"a": 3})


def test_methods_class_attributes_and_static_methods_work():
    class Bot:
        mood = "glad"

        @lm.function
        def say(self, state, text="hi"):
            state += f"{self.mood} {text}"

        @staticmethod
        @lm.function
        def plain(s, text):
            s += text

    backend = ScriptedBackend()
    assert Bot().say(backend=backend).text() == "glad hi"
    assert Bot().say.options(temperature=0).run("ho", backend=backend).text() == "glad ho"
    assert Bot.say.__name__ == "say"
    assert Bot.plain("x", backend=backend).text() == "x"
    assert [s.text() for s in Bot().say.run_batch([("a",)], backend=backend)] == ["glad a"]


def test_the_first_parameter_may_have_any_name():
    assert lm.function(lambda anything: anything.user("x"))(backend=ScriptedBackend()).text()
    assert lm.function(lambda *all_of_them: len(all_of_them))(1, 2, backend=ScriptedBackend())


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ({"stream": True}, "run: stream=True is not available in this version"),
        ({"deadline": 3}, "run: deadline=3 is not available"),
        ({"max_program_tokens": 3}, "max_program_tokens=3 is not available"),
        ({"frequency_penalty": 3}, "frequency_penalty=3 is out of range"),
        ({"return_logprob": 1}, "return_logprob=1 must be True or False"),
        ({"max_new_tokens": -1}, "max_new_tokens=-1 is out of range"),
        ({"max_new_tokens": 2_000_000}, "max_new_tokens=2000000 is out of range"),
        ({"temperature": float("inf")}, "temperature=inf is out of range"),
        ({"temperature": "0"}, "temperature='0' must be a number"),
        ({"seed": 1.0}, "seed=1.0 must be an integer"),
        ({"stop": [""]}, "stop='' would end every output"),
        ({"backend": "gpt"}, r"backend is a str, which is no backend \(it has no generate"),
        ({"backend": ScriptedBackend}, r"is a class: make one of it, ScriptedBackend\("),
    ],
)
def test_wrong_keywords_of_a_run_raise_before_anything_runs(keyword, message):
    def body(s):
        raise AssertionError("it ran")

    program = lm.function(body)
    for attempt in (
        lambda: program.run(**keyword),
        lambda: program.options(**keyword),
        lambda: lm.function(**keyword)(body),
        lambda: program.run_batch([()], **keyword),
    ):
        with pytest.raises(lm.ProgramError, match=message):
            attempt()


def test_what_asks_for_nothing_more_is_accepted():
    assert lm.function(lambda s: 1)(
        backend=ScriptedBackend(), stream=False, use_thread=True, frequency_penalty=0.0
    )


async def asynchronous(s):
    pass


def generator(s):
    yield


@pytest.mark.parametrize(
    ("decorate", "message"),
    [
        (lambda: lm.function(3), "decorates a function, and this is int"),
        (lambda: lm.function(lm.function(lambda s: 1)), "decorates a function, and this is Func"),
        (lambda: lm.function(lambda: 1), r"needs a first parameter for its state: def <lambda>\(s"),
        (lambda: lm.function(asynchronous), "async def asynchronous is not available"),
        (lambda: lm.function(generator), r"generator\(\) is a generator"),
        (lambda: lm.function(tmperature=0)(generate._body), "'tmperature' is no keyword of a run"),
        (lambda: generate.options(name=1), "'name' is no keyword of a run; these are: max_new"),
    ],
)
def test_what_is_no_program_is_refused_when_decorated(decorate, message):
    with pytest.raises(lm.ProgramError, match=message):
        decorate()


def test_a_method_without_a_parameter_for_the_state_is_refused_when_bound():
    class Bot:
        @lm.function
        def say(self):
            pass

    with pytest.raises(lm.ProgramError, match="needs a first parameter for its state"):
        Bot().say  # noqa: B018


def test_a_program_in_a_program_is_not_available_by_state_but_is_by_call():
    def inline(s):
        greet(s, "a")

    def own(s):
        return greet("a", backend=ScriptedBackend()).text()

    with pytest.raises(lm.ProgramError, match=r"greet\(s, …\) inside a program is not available"):
        lm.function(inline)(backend=ScriptedBackend())
    assert lm.function(own)(backend=ScriptedBackend()).ret_value == "Hello a!"


def test_a_state_can_be_used_after_its_run():
    state = greet("a", backend=ScriptedBackend(["yes"]))
    state += lm.gen("x")
    assert state["x"] == "yes"
