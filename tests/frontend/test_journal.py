import contextlib
import dataclasses
import enum
import logging
import os
import sqlite3
import threading

import pydantic
import pytest

import lmlang as lm
from lmlang.testing import RandomBackend, ScriptedBackend


class Mood(enum.Enum):
    SAD = "sad"
    GLAD = "glad"


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: int


class Person(pydantic.BaseModel):
    name: str
    age: int


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.sqlite"


@lm.function
def tale(s, hero):
    s += lm.user(f"Tell of {hero}.")
    with s.assistant():
        s += lm.gen("start", max_tokens=9, stop="e") + " "
        s += lm.gen("age", type=int, max_tokens=9) + lm.select("mood", Mood, temperature=1.0)
    forks = s.fork(2)
    forks += lm.gen("part", max_tokens=5)
    forks.join()
    s += lm.gen("three", n=3, max_tokens=4, return_logprob=True, top_logprobs_num=2)
    s += lm.gen("point", type=Point, max_tokens=60, think=6)
    return s["age"]


HEROES = [{"hero": hero} for hero in ("Ann", "Bob", "Ann", "Zoë")]
NAMES = ("start", "age", "mood", "part", "three", "point")


def told(states):
    """All that a program or its caller can see of states."""
    return [
        (
            [state[name] for name in NAMES],
            [state.text_of(name) for name in NAMES],
            [
                dataclasses.replace(state.meta(name), id="", samples=())
                for name in ("start", "mood")
            ],
            [(each.tokens, each.probs, each.top_logprobs) for each in state.meta("three").samples],
            state.meta("point").thought,
            (state.text(), state.token_ids(), state.messages(), state.ret_value, state.usage()),
        )
        for state in states
    ]


@lm.function
def ask(s, question):
    s += f"Q: {question} A: " + lm.gen("answer", max_tokens=8)
    return s["answer"]


def questions(count):
    return [(f"q{i}",) for i in range(count)]


def answers(states):
    return [state["answer"] for state in states]


def test_a_second_run_asks_nothing_and_is_the_same(path, caplog):
    plain = tale.run_batch(HEROES, backend=ScriptedBackend(), seed=7)
    cold = tale.run_batch(HEROES, backend=ScriptedBackend(), seed=7, journal=path)
    assert told(cold) == told(plain)
    assert cold.usage.reused_generations == cold.usage.reused_tokens == 0
    again = ScriptedBackend()
    with caplog.at_level(logging.INFO, "lmlang"):
        warm = tale.run_batch(HEROES, backend=again, seed=7, journal=path)
    assert again.requests == []
    assert told(warm) == told(cold)
    asked = 9 * len(HEROES)  # three samples, two forks, a thought
    usage = warm.usage
    assert usage.reused_generations == asked + len(HEROES)
    assert usage.reused_tokens == usage.generated_tokens + usage.scored_tokens > 0
    (said,) = [r.getMessage() for r in caplog.records if "run_batch" in r.getMessage()]
    assert f"{usage.reused_tokens} tokens were not computed again: the journal {path}" in said
    assert repr(warm).endswith(f"{usage.reused_generations} generations "
                               f"({usage.reused_tokens:,} tokens) from the journal>")  # fmt: skip


def test_what_changed_in_a_program_runs_anew_and_nothing_else(path):
    def made(second):
        @lm.function
        def program(s, i):
            s += f"{i}. " + "First: " + lm.gen("a", max_tokens=5)
            s += second + lm.gen("b", max_tokens=5)
            s += " Third: " + lm.gen("c", max_tokens=5)

        return program

    rows = [(i,) for i in range(5)]
    made(" Second: ").run_batch(rows, backend=ScriptedBackend(), journal=path)
    backend = ScriptedBackend()
    edited = made(" And: ").run_batch(rows, backend=backend, journal=path)
    assert len(backend.requests) == 10  # what follows an edit follows it
    assert edited.usage.reused_generations == 5
    backend = ScriptedBackend()
    more = made(" And: ").run_batch([*rows, (9,)], backend=backend, journal=path)
    assert len(backend.requests) == 3
    assert more[:5][0]["c"] == edited[0]["c"]


def test_how_a_text_is_put_together_does_not_matter(path):
    @lm.function
    def joined(s, question):
        s += "Q: "
        s += question
        s += " A: "
        s += lm.gen("answer", max_tokens=8)

    first = ask.run_batch(questions(3), backend=ScriptedBackend(), journal=path)
    backend = ScriptedBackend()
    second = joined.run_batch(questions(3), backend=backend, journal=path)
    assert answers(first) == answers(second)
    assert backend.requests == []


def test_the_seed_of_the_first_run_holds_unless_another_is_given(path):
    first = answers(ask.run_batch(questions(3), backend=ScriptedBackend(), journal=path))
    assert answers(ask.run_batch(questions(3), backend=ScriptedBackend(), journal=path)) == first
    backend = ScriptedBackend()
    other = ask.run_batch(questions(3), backend=backend, journal=path, seed=1_000)
    assert answers(other) != first
    assert len(backend.requests) == 3
    assert answers(ask.run_batch(questions(3), backend=ScriptedBackend(), journal=path)) == first


def test_a_greedy_output_does_not_depend_on_the_seed(path):
    for seed, asked in ((1, 3), (2, 0)):
        backend = ScriptedBackend()
        ask.run_batch(questions(3), backend=backend, journal=path, seed=seed, temperature=0)
        assert len(backend.requests) == asked


def test_another_model_runs_anew(path):
    for seed in (1, 2, 1):
        found = ask.run_batch(questions(2), backend=RandomBackend(seed), journal=path, seed=1)
        plain = ask.run_batch(questions(2), backend=RandomBackend(seed), seed=1)
        assert answers(found) == answers(plain)
    assert found.usage.reused_generations == 2


def test_a_backend_that_does_not_say_what_it_is_is_refused(path):
    backend = ScriptedBackend(fingerprint=None)
    for lazy in (False, True):
        with pytest.raises(lm.ProgramError, match="'scripted' has no fingerprint"):
            list(ask.run_batch(questions(2), backend=backend, journal=path, generator_style=lazy))
    assert backend.requests == []


def test_streams_of_what_was_kept_have_all_of_it(path):
    @lm.function
    def streamed(s, i):
        s += f"{i}: " + lm.gen("a", max_tokens=9) + "."
        chunks = list(s.text_iter("a"))
        assert "".join(chunks) == s["a"]
        return list(s.text_iter())

    rows = [(i,) for i in range(3)]
    cold, warm = (
        [
            ("".join(state.ret_value), state.text(), state["a"])
            for state in streamed.run_batch(rows, backend=ScriptedBackend(chunk=2), journal=path)
        ]
        for _ in range(2)
    )
    assert cold == warm
    assert all(spoken == text for spoken, text, _ in cold)


@pytest.mark.parametrize("threads", [1, 3])
def test_lazy_batches_have_a_journal_too(path, threads):
    def run(backend, count):
        states = ask.run_batch(
            iter(questions(12)),
            backend=backend,
            journal=path,
            seed=3,
            generator_style=True,
            num_threads=threads,
        )
        found = [next(states)["answer"] for _ in range(count)]
        states.close()
        return found

    left = run(ScriptedBackend(), 4)
    backend = ScriptedBackend()
    assert run(backend, 12)[:4] == left
    assert len(backend.requests) <= 8
    backend = ScriptedBackend()
    assert run(backend, 12) == answers(
        ask.run_batch(questions(12), backend=ScriptedBackend(), seed=3)
    )
    assert backend.requests == []


def test_what_failed_runs_again_and_what_had_ended_does_not(path):
    @lm.function
    def two(s, i):
        s += f"{i}: " + lm.gen("a", max_tokens=4)
        s += f" {i + 1}: " + lm.gen("b", max_tokens=4)
        if i == 2 and not calm:
            s.sync()
            raise ValueError("two")

    rows = [(i,) for i in range(4)]
    calm = False

    def answer(prompt):
        if prompt.endswith("4: "):
            raise lm.ModelError("four")
        return prompt

    first = two.run_batch(rows, backend=ScriptedBackend(answer), journal=path, on_error="return")
    assert {i: type(error) for i, error in first.errors.items()} == {
        2: ValueError,
        3: lm.ModelError,
    }
    calm = True
    backend = ScriptedBackend()
    second = two.run_batch(rows, backend=backend, journal=path)
    assert len(backend.requests) == 1
    assert second.errors == {}
    assert second.usage.reused_generations == 7


def test_budgets_count_what_was_kept(path):
    for _ in range(2):
        with pytest.raises(lm.BudgetExceeded, match="max_program_tokens=12"):
            tale.run_batch(
                HEROES[:1], backend=ScriptedBackend(), journal=path, max_program_tokens=12
            )


def test_an_interrupt_loses_nothing_that_had_ended(path):
    @lm.function
    def program(s, i):
        s += f"{i}: " + lm.gen("a", max_tokens=4)
        if i == 3 and stopping:
            s.sync()
            raise KeyboardInterrupt
        return s["a"]

    rows = [(i,) for i in range(6)]
    stopping = True
    with pytest.raises(KeyboardInterrupt) as caught:
        program.run_batch(rows, backend=ScriptedBackend(), journal=path, num_threads=1)
    assert caught.value.partial.indices == (0, 1, 2)
    stopping = False
    backend = ScriptedBackend()
    program.run_batch(rows, backend=backend, journal=path)
    assert len(backend.requests) == 2


def test_batches_of_one_process_share_a_journal(path):
    @lm.function
    def outer(s, i):
        inner = ask.run_batch(questions(2), backend=s_backend, journal=path, seed=i)
        return answers(inner)

    s_backend = ScriptedBackend()
    found = outer.run_batch([(1,), (2,)], backend=ScriptedBackend(), journal=path, num_threads=2)
    assert [state.ret_value for state in found] == [
        answers(ask.run_batch(questions(2), backend=ScriptedBackend(), seed=i)) for i in (1, 2)
    ]
    assert not os.path.exists(f"{path}-lock")
    assert "lmlang-journal" not in {thread.name for thread in threading.enumerate()}


def test_what_is_appended_behind_a_batch_is_none_of_it(path):
    (state,) = ask.run_batch(questions(1), backend=ScriptedBackend(), journal=path)
    count = "SELECT count(*) FROM answers"
    with contextlib.closing(sqlite3.connect(path)) as journal:
        before = journal.execute(count).fetchone()
    state += "More: " + lm.gen("more", max_tokens=3)
    assert state["more"]
    with contextlib.closing(sqlite3.connect(path)) as journal:
        assert journal.execute(count).fetchone() == before


def test_only_the_owner_may_read_a_journal(path):
    modes = {}

    @lm.function
    def look(s, i):
        s += lm.gen("a", max_tokens=2)
        s.sync()
        for each in path.parent.iterdir():
            modes[each.name] = each.stat().st_mode & 0o777

    old = os.umask(0)
    try:
        look.run_batch([(1,)], backend=ScriptedBackend(), journal=path)
    finally:
        os.umask(old)
    assert set(modes) >= {"run.sqlite", "run.sqlite-wal", "run.sqlite-lock"}
    assert set(modes.values()) == {0o600}
    assert [each.name for each in path.parent.iterdir()] == ["run.sqlite"]


# ----------------------------------------------------------------------------- version


def whole(state):
    """All that is kept of a row."""
    return (
        {name: (state[name], type(state[name])) for name in NAMES},
        [state.text_of(name) for name in NAMES],
        (state.text(), state.token_ids(), state.messages(), state.ret_value, state.usage()),
        state.run_log(),
    )


def test_under_a_version_rows_are_taken_whole(path):
    first = tale.run_batch(HEROES, backend=ScriptedBackend(), journal=path, version="1")

    @lm.function
    def tale_(s, hero):
        raise AssertionError("the body ran")

    tale_.__name__ = "tale"
    backend = ScriptedBackend()
    second = tale_.run_batch(HEROES, backend=backend, journal=path, version="1")
    assert backend.requests == []
    assert list(map(whole, second)) == list(map(whole, first))
    assert second.usage.reused_rows == 4
    assert second.usage.reused_generations == 0
    usage = second.usage
    assert usage.reused_tokens == usage.generated_tokens + usage.scored_tokens
    assert usage.generated_tokens == first.usage.generated_tokens
    assert second[0].error() is None
    assert "".join(second[0].text_iter()) == first[0].text()
    assert "".join(second[0].text_iter("start")) == first[0].text_of("start")
    with pytest.raises(lm.CaptureError, match="metadata"):
        second[0].meta("start")
    with pytest.raises(lm.CaptureError, match="did you mean"):
        second[0]["startt"]


def test_another_version_seed_keyword_argument_model_or_program_runs_the_body(path):
    ran = []

    @lm.function
    def program(s, text, extra=0):
        ran.append(text)
        s += text + lm.gen("a", max_tokens=3)

    @lm.function
    def other(s, text, extra=0):
        ran.append(text)

    def run(row, program=program, **keywords):
        ran.clear()
        given = {"version": "1", "seed": 1, "backend": ScriptedBackend()} | keywords
        program.run_batch([row], journal=path, **given)
        return len(ran)

    row = {"text": "a"}
    assert run(row) == 1
    assert run(row) == 0
    assert run(row, version="2") == 1
    assert run(row, seed=2) == 1
    assert run(row, temperature=0.5) == 1
    assert run(row, max_program_tokens=9) == 1
    assert run(row, backend=ScriptedBackend(fingerprint="another")) == 1
    assert run(row | {"extra": 1}) == 1
    assert run(row, key=lambda _: "k") == 1
    assert run(row, key=lambda _: "k") == 0
    assert run(row | {"text": "b"}, key=lambda _: "k") == 1
    assert run(row) == 0
    assert run(row, other) == 1


def test_rows_that_failed_are_not_kept(path):
    ran = []

    @lm.function
    def program(s, i):
        ran.append(i)
        s += f"{i}: " + lm.gen("a", max_tokens=3)
        if i == 1 and len(ran) <= 3:
            raise ValueError("one")

    for expected in ([0, 1, 2], [0, 1, 2, 1]):
        program.run_batch(
            [(i,) for i in range(3)],
            backend=ScriptedBackend(),
            journal=path,
            version="1",
            on_error="return",
            num_threads=1,
        )
        assert ran == expected


def test_values_of_all_kinds_are_kept_with_their_types(path):
    values = [None, True, 2**70, -1.5, "é\ud800", [1, (2, {3})], {"$": 1}, {1: "a"}, Mood.SAD]
    values += [Point(1, 2), [Person(name="Ann", age=3)], b"\0x", float("inf")]

    @lm.function
    def program(s):
        s["values"] = values
        return values[-1]

    for _ in range(2):
        (state,) = program.run_batch([()], backend=ScriptedBackend(), journal=path, version="1")
    assert state["values"] == values
    assert [type(value) for value in state["values"]] == [type(value) for value in values]


@pytest.mark.parametrize("on_error", ["raise", "return"])
def test_a_value_that_cannot_be_kept_is_named(path, on_error):
    @dataclasses.dataclass
    class Local:
        x: int

    @lm.function
    def program(s, kind):
        s += lm.gen("a", max_tokens=3)
        if kind == "variable":
            s["lock"] = threading.Lock()
        if kind == "local":
            s["here"] = [Local(1)]
        return threading if kind == "value" else None

    for kind, message in (
        ("variable", "version: the variable 'lock' is a lock, which a journal cannot keep"),
        ("local", "the variable 'here' is of the class Local, which is defined in a function"),
        ("value", "what the program returns is a module, which a journal cannot keep"),
    ):
        run = program.options(backend=ScriptedBackend()).run_batch
        if on_error == "raise":
            with pytest.raises(lm.ProgramError, match=message):
                run([(kind,)], journal=path, version="1")
        else:
            found = run([(kind,), ("none",)], journal=path, version="1", on_error="return")
            assert message in str(found.errors[0])
            assert 1 not in found.errors


# ----------------------------------------------------------------------------- refusals


class Opaque:
    pass


def test_an_argument_without_canonical_form_is_named(path):
    @lm.function
    def program(s, text, tool=None):
        s += text + lm.gen("a", max_tokens=3)

    rows = [("a",), ("b", Opaque())]
    backend = ScriptedBackend()
    with pytest.raises(TypeError, match=r"row 1: the argument 'tool' .*Opaque has no canonical"):
        program.run_batch(rows, backend=backend, journal=path)
    assert backend.requests == []
    found = program.run_batch(rows, backend=backend, journal=path, on_error="return")
    assert list(found.errors) == [1]
    keyed = program.run_batch(rows, backend=backend, journal=path, key=lambda row: row[0])
    assert keyed.errors == {}


def test_rows_of_one_key_whose_arguments_are_not_told_apart_are_refused(path):
    @lm.function
    def program(s, tool):
        s["tool"] = tool if isinstance(tool, str) else ""

    def run(*tools, **keywords):
        rows = [(tool,) for tool in tools]
        keywords |= {"backend": ScriptedBackend(), "on_error": "return", "key": lambda row: "k"}
        return program.run_batch(rows, **keywords)

    kept = {"journal": path, "version": "1"}
    found = run(Opaque(), "a", Opaque(), "b", **kept)
    assert list(found.errors) == [2]
    with pytest.raises(TypeError, match=r"key\(row\) of row 2 is that of a row before, and a jou"):
        raise found.errors[2]
    assert [found[i]["tool"] for i in (0, 1, 3)] == ["", "a", "b"]
    assert run(Opaque(), Opaque()).errors == {}


def test_what_a_journal_cannot_tell_apart_is_refused(path):
    @lm.function
    def program(s):
        s += lm.gen("a", logits_processor=lambda ids, logits: logits)

    with pytest.raises(lm.ProgramError, match="logits_processor is a function, which a journal"):
        program.run_batch([()], backend=ScriptedBackend(), journal=path)
    with pytest.raises(lm.ProgramError, match="ship=True has a server run whole programs"):
        ask.run_batch(questions(1), backend=ScriptedBackend(), journal=path, ship=True)
    with pytest.raises(lm.ProgramError, match="version has 0 characters"):
        ask.run_batch(questions(1), backend=ScriptedBackend(), journal=path, version="")
    with pytest.raises(TypeError, match='version=2 must be a text, as in version="2"'):
        ask.run_batch(questions(1), backend=ScriptedBackend(), journal=path, version=2)


def test_a_choices_method_of_the_programs_own_decides_again(path):
    def last(**given):
        return lm.ChoicesDecision(given["choices"][-1])

    @lm.function
    def program(s):
        s += "a" + lm.select("x", ["b", "c"], choices_method=last)

    for asked in (1, 0):
        backend = ScriptedBackend()
        (state,) = program.run_batch([()], backend=backend, journal=path)
        assert (state["x"], len(backend.requests)) == ("c", asked)
