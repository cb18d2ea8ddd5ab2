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


def test_a_signature_reads_as_it_was_written_where_annotations_are_texts():
    def capital(s, country: "str", tone: "list[int] | None" = None) -> "None":
        s += country

    program = lm.function(capital)
    assert repr(program) == (
        "<program capital(s, country: str, tone: list[int] | None = None) -> None>"
    )
    with pytest.raises(lm.ProgramTypeError, match=r"capital\(country: str, tone: list\[int\]"):
        program.run(land="Peru", backend=ScriptedBackend())


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
        (("a",), {"nam": 1}, r"unexpected keyword argument 'nam' \(did you mean name\?\)"),
        ((), {"nam": 1}, r"unexpected keyword argument 'nam' \(did you mean name\?\)\.$"),
        (("a",), {"max_tokens": 3}, r"argument 'max_tokens' \(did you mean max_new_tokens\?\)"),
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


def test_methods_can_be_called_through_their_class():
    class Bot:
        mood = "glad"

        @lm.function
        def say(self, s, text):
            s += f"{self.mood} {text}"
            return text

        plain = lm.function(lambda s, text: s.__iadd__(text))

    @lm.function
    def inline(s):
        return Bot.say(bot, s, "ho"), s.call(Bot.say, bot, "hu")

    class Other(Bot):
        mood = "sad"

    bot, backend = Bot(), ScriptedBackend()
    assert Bot.say(bot, "hi", backend=backend).text() == "glad hi"
    assert Bot.say(Other(), text="hi", backend=backend).text() == "sad hi"
    assert Bot.say.run(bot, "hi", backend=backend).ret_value == "hi"
    assert "".join(e.text for e in Bot.say.stream(bot, "hi", backend=backend)) == "glad hi"
    state = inline(backend=backend)
    assert (state.ret_value, state.text()) == (("ho", "hu"), "glad ho")
    assert Bot.plain("x", backend=backend).text() == "x"


def test_the_first_parameter_may_have_any_name():
    assert lm.function(lambda anything: anything.user("x"))(backend=ScriptedBackend()).text()
    assert lm.function(lambda *all_of_them: len(all_of_them))(1, 2, backend=ScriptedBackend())


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ({"stream": 1}, "stream=1 must be True or False"),
        ({"deadline": 0}, "deadline=0 is out of range: it must be above 0"),
        ({"deadline": "3"}, "deadline='3' must be a number"),
        ({"max_program_tokens": 0}, "max_program_tokens=0 is out of range"),
        ({"max_program_tokens": 1.5}, "max_program_tokens=1.5 must be an integer"),
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


def generator(s):
    yield


async def asynchronous_generator(s):
    yield


@pytest.mark.parametrize(
    ("decorate", "message"),
    [
        (lambda: lm.function(3), "decorates a function, and this is int"),
        (lambda: lm.function(lm.function(lambda s: 1)), "decorates a function, and this is Func"),
        (lambda: lm.function(staticmethod(len)), "a staticmethod: write @staticmethod above @lm"),
        (lambda: lm.function(classmethod(len)), "a classmethod: leave @classmethod out"),
        (lambda: lm.function(lambda: 1), r"needs a first parameter for its state: def <lambda>\(s"),
        (lambda: lm.function(asynchronous_generator), r"asynchronous_generator\(\) is a gener"),
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


# ------------------------------------------------------------------------ programs in programs


def test_a_program_called_on_a_state_runs_there_and_returns_its_value():
    def outer(s):
        s += "> "
        return greet(s, "Ann", mark="?")

    state = lm.function(outer)(backend=ScriptedBackend())
    assert (state.text(), state.ret_value) == ("> Hello Ann?", "Ann")
    kinds = [type(node).__name__ for node in state.program().nodes]
    assert kinds == ["Start", "Text", "Call", "Text", "Return"]
    call = state.program().nodes[2]
    assert call.callee == "greet"
    assert call.arguments == (("name", "Ann"), ("times", 1), ("mark", "?"))


def test_inline_is_the_same_as_written_out():
    @lm.function
    def ask(s, n):
        s += f"{n}: " + lm.gen("x")

    def inline(s):
        for n in range(3):
            ask(s, n)
        return s["x"]

    def written_out(s):
        for n in range(3):
            s += f"{n}: " + lm.gen("x")
        return s["x"]

    one, other = (
        lm.function(body).run(seed=1, backend=ScriptedBackend()) for body in (inline, written_out)
    )
    assert (one.text(), one.ret_value) == (other.text(), other.ret_value)


def test_methods_and_bound_arguments_work_inline():
    class Bot:
        mood = "glad"

        @lm.function
        def say(self, s, text):
            s += f"{self.mood} {text}"

    def outer(s):
        Bot().say(s, "hi")
        Bot().say.bind(text=" ho")(s)

    assert lm.function(outer)(backend=ScriptedBackend()).text() == "glad higlad  ho"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: greet(s), r"greet\(name: str.*missing a required argument: 'name'"),
        (lambda s: greet(s, "a", temperature=0), r"greet\(s, temperature=…\): on a state"),
        (lambda s: greet.run(s, "a"), r"a state of its own: on a state write greet\(s, …\)"),
    ],
)
def test_what_does_not_fit_inline_raises(call, message):
    with pytest.raises(lm.ProgramError, match=message):
        lm.function(call)(backend=ScriptedBackend())


def test_a_program_in_a_program_may_have_a_run_of_its_own():
    def own(s):
        return greet("a", backend=ScriptedBackend()).text()

    assert lm.function(own)(backend=ScriptedBackend()).ret_value == "Hello a!"


def test_call_runs_a_program_on_a_child_and_returns_its_value():
    @lm.function
    def guess(s, what):
        s += what + lm.gen("guess")
        return s["guess"]

    def outer(s):
        s += "P"
        return s.call(guess, "Q"), s.call(lambda c: c.text()), "guess" in s

    state = lm.function(outer)(backend=ScriptedBackend(lambda prompt: prompt.lower()))
    assert state.ret_value == ("pq", "P", False)
    assert state.text() == "P"


def test_what_is_no_program_is_not_called():
    @lm.function
    def program(s):
        s.call(3)

    with pytest.raises(lm.ProgramTypeError, match="call: an int is no program: give one"):
        program(backend=ScriptedBackend())


def test_an_error_of_a_called_child_is_raised_by_the_program():
    def outer(s):
        s.call(lambda c: c.__iadd__(lm.gen("x")))

    with pytest.raises(lm.BackendError, match="scripted to fail"):
        lm.function(outer)(backend=ScriptedBackend(fail_at=0))


# ------------------------------------------------------------------------------- bind


def test_bound_arguments_are_given_and_those_of_the_call_win():
    bound = greet.bind(name="Bob").bind(mark=".", times=2)
    backend = ScriptedBackend()
    assert bound(backend=backend).text() == "Hello Bob.Hello Bob."
    assert bound(times=1, backend=backend).text() == "Hello Bob."
    assert bound("Ann", 1, backend=backend).text() == "Hello Ann."
    assert bound.options(temperature=0).run(backend=backend).text() == "Hello Bob.Hello Bob."
    texts = [state.text() for state in bound.run_batch([{}, ("Ann",)], backend=backend)]
    assert texts == ["Hello Bob.Hello Bob.", "Hello Ann.Hello Ann."]
    assert greet("Cy", backend=backend).text() == "Hello Cy!"


def test_a_row_key_knows_bound_arguments_as_given_ones():
    @lm.function
    def ask(s, a, b):
        s += lm.gen("x")

    one = ask.bind(b=2).run_batch([(1,)], seed=1, backend=ScriptedBackend())
    other = ask.run_batch([(1, 2)], seed=1, backend=ScriptedBackend())
    assert one[0]["x"] == other[0]["x"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nam": 1}, "greet.bind: got an unexpected keyword argument 'nam': its signature is"),
        ({"temperature": 0}, r"set with greet\.options\(temperature=…\)"),
    ],
)
def test_binding_what_is_no_parameter_raises(arguments, message):
    with pytest.raises(TypeError, match=message):
        greet.bind(**arguments)


def test_a_state_can_be_used_after_its_run():
    state = greet("a", backend=ScriptedBackend(["yes"]))
    state += lm.gen("x")
    assert state["x"] == "yes"


# ------------------------------------------------------------------------------- cache


def test_cache_asks_for_the_prompt_up_to_what_only_a_run_knows():
    @lm.function
    def program(s, topic):
        s += lm.system("Be brief.")
        s += lm.user("About " + topic + lm.gen("x"))

    backend = ScriptedBackend()
    prefix = "<system>Be brief.</system><user>About "
    assert program.cache(backend) == len(prefix)
    with lm.use(backend):
        assert program.cache(topic="frogs") == len(prefix + "frogs")
    texts = [backend.render(request.prompt) for request in backend.requests]
    assert texts == [prefix, prefix + "frogs"]
    assert [request.params.max_tokens for request in backend.requests] == [0, 0]


def test_cache_of_a_program_that_begins_with_an_argument_asks_nothing():
    backend = ScriptedBackend()
    assert lm.function(lambda s, a: s.__iadd__(a)).cache(backend) == 0
    assert backend.requests == []


def test_cache_raises_what_failed():
    with pytest.raises(lm.BackendError, match="scripted to fail"):
        lm.function(lambda s: s.__iadd__("a")).cache(ScriptedBackend(fail_at=0))
    with pytest.raises(TypeError, match="backend is a str"):
        generate.cache("gpt")
