"""The compile service: each grammar is made once, errors are everybody's own, time is finite."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for

import pytest

from lmlang.errors import (
    Cancelled,
    ConstraintError,
    GrammarDeadEnd,
    GrammarSyntaxError,
    GrammarTooLarge,
    ProgramError,
    ProgramTypeError,
    Unsatisfiable,
)
from lmlang.grammar.budget import Budget, OutOfTime, spend, within
from lmlang.grammar.compiler import Compiler, Grammar, compile_spec
from lmlang.grammar.spec import Choice, Either, Regex, Spec
from lmlang.grammar.vocabulary import Vocabulary
from tests.grammar.byte_sets import grammar_of, vocabulary_of

VOCABULARY = vocabulary_of([bytes([byte]) for byte in range(128)])


class Builder:
    """Makes grammars of choices; counts, waits where it is told to, fails where a text says so."""

    def __init__(self) -> None:
        self.built: list[str] = []
        self.open = threading.Event()
        self.open.set()
        self.begun = threading.Semaphore(0)
        self.running = self.most = 0
        self._lock = threading.Lock()

    def __call__(self, spec: Spec, vocabulary: Vocabulary) -> Grammar:
        assert isinstance(spec, Choice)
        with self._lock:
            self.built.append(spec.texts[0])
            self.running += 1
            self.most = max(self.most, self.running)
        self.begun.release()
        try:
            while not self.open.is_set() or spec.texts[0] == "endless":
                time.sleep(0.001)
                spend(1_000)
            if spec.texts[0] == "bad":
                raise GrammarSyntaxError("bad on purpose")
            if spec.texts[0] == "broken":
                raise ValueError("not ours")
            return grammar_of([text.encode() for text in spec.texts], vocabulary)
        finally:
            with self._lock:
                self.running -= 1


def choice(text: str) -> Choice:
    return Choice((text,))


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_equal_compiles_at_once_are_one() -> None:
    builder = Builder()
    compiler = Compiler(build=builder)
    builder.open.clear()
    futures = [compiler.submit(choice("a"), VOCABULARY) for _ in range(8)]
    builder.open.set()
    made = {id(future.result(60)) for future in futures}
    assert len(made) == 1
    assert builder.built == ["a"]
    assert id(compiler.compile(choice("a"), VOCABULARY)) in made
    assert builder.built == ["a"]
    compiler.close()


def test_other_specs_and_other_vocabularies_are_others() -> None:
    builder = Builder()
    compiler = Compiler(build=builder)
    twin = vocabulary_of([bytes([byte]) for byte in range(128)])
    other = vocabulary_of([b"a"])
    first = compiler.compile(choice("a"), VOCABULARY)
    assert compiler.compile(choice("a"), twin) is first
    assert compiler.compile(choice("a"), other) is not first
    assert compiler.compile(choice("b"), VOCABULARY) is not first
    compiler.close()


def test_one_who_goes_away_harms_nobody() -> None:
    builder = Builder()
    compiler = Compiler(max_workers=1, build=builder)
    builder.open.clear()
    first = compiler.submit(choice("first"), VOCABULARY)
    stays = compiler.submit(choice("a"), VOCABULARY)
    goes = compiler.submit(choice("a"), VOCABULARY)
    alone = compiler.submit(choice("nobody waits"), VOCABULARY)
    last = compiler.submit(choice("last"), VOCABULARY)
    assert goes.cancel()
    assert alone.cancel()
    builder.open.set()
    assert stays.result(60).match("a")
    assert first.result(60)
    assert last.result(60)
    assert builder.built == ["first", "a", "last"]
    compiler.close()


def test_so_many_threads_and_no_more_and_none_while_nothing_is_to_do() -> None:
    builder = Builder()
    compiler = Compiler(max_workers=2, build=builder)
    builder.open.clear()
    before = set(threading.enumerate())
    futures = [compiler.submit(choice(str(number)), VOCABULARY) for number in range(9)]
    assert builder.begun.acquire(timeout=60)
    assert builder.begun.acquire(timeout=60)
    assert len(set(threading.enumerate()) - before) == 2
    builder.open.set()
    wait_for(futures, 20)
    assert builder.most == 2
    eventually(lambda: set(threading.enumerate()) <= before)
    compiler.close()


def test_a_time_out_is_not_remembered() -> None:
    builder = Builder()
    compiler = Compiler(seconds=0.02, build=builder)
    builder.open.clear()
    with pytest.raises(GrammarTooLarge, match=r"took longer than 0\.02 s to compile: simplify"):
        compiler.compile(choice("a"), VOCABULARY)
    builder.open.set()
    assert compiler.compile(choice("a"), VOCABULARY).match("a")
    assert builder.built == ["a", "a"]
    compiler.close()


def test_an_error_is_remembered_and_everybodys_own() -> None:
    builder = Builder()
    compiler = Compiler(build=builder)
    builder.open.clear()
    futures = [compiler.submit(choice("bad"), VOCABULARY) for _ in range(3)]
    builder.open.set()
    errors = [future.exception(60) for future in futures]
    errors.append(compiler.submit(choice("bad"), VOCABULARY).exception(60))
    assert {str(error) for error in errors} == {"bad on purpose"}
    assert {type(error) for error in errors} == {GrammarSyntaxError}
    assert len({id(error) for error in errors}) == 4
    assert builder.built == ["bad"]
    for _ in range(2):
        with pytest.raises(ValueError, match="not ours"):
            compiler.compile(choice("broken"), VOCABULARY)
    assert builder.built == ["bad", "broken", "broken"]
    compiler.close()


def test_what_is_kept_is_bounded_and_the_least_recently_used_goes() -> None:
    builder = Builder()
    compiler = Compiler(max_kept=2, build=builder)
    for text in ("a", "b", "a", "c", "a", "b"):
        compiler.compile(choice(text), VOCABULARY)
    assert builder.built == ["a", "b", "c", "b"]
    compiler.close()


def test_namespaces_share_no_grammar() -> None:
    builder = Builder()
    compiler = Compiler(build=builder)
    spec = choice("a")
    mine, others = (compiler.submit(spec, VOCABULARY, name).result() for name in ("m", "o"))
    assert mine is not others
    assert compiler.submit(spec, VOCABULARY, "m").result() is mine
    compiler.forget(spec, VOCABULARY)  # of nobody's
    compiler.forget(spec, VOCABULARY, "o")
    assert compiler.submit(spec, VOCABULARY, "m").result() is mine
    assert compiler.submit(spec, VOCABULARY, "o").result() is not others
    assert builder.built == ["a"] * 3
    compiler.close()


def test_what_is_forgotten_is_made_anew() -> None:
    builder = Builder()
    compiler = Compiler(build=builder)
    compiler.compile(choice("a"), VOCABULARY)
    compiler.forget(choice("b"), VOCABULARY)
    compiler.compile(choice("a"), VOCABULARY)
    compiler.forget(choice("a"), VOCABULARY)
    compiler.compile(choice("a"), VOCABULARY)
    assert builder.built == ["a", "a"]
    compiler.close()


def test_grammars_that_have_met_many_states_leave_first_come_first_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lmlang.grammar.compiler.MAX_STATES", 40)
    compiler = Compiler()
    specs = [Regex(f"{letter}[a-z]{{20}}x*") for letter in "abc"]
    first, second, third = (compiler.compile(spec, VOCABULARY) for spec in specs)
    for grammar in (first, second):
        assert grammar.match(grammar.spec.pattern[0] + "q" * 20)  # type: ignore[union-attr]
        assert len(grammar.automaton) > 20
    assert compiler.compile(specs[2], VOCABULARY) is third
    assert compiler.compile(specs[1], VOCABULARY) is second
    assert compiler.compile(specs[0], VOCABULARY) is not first
    compiler.close()


def test_two_hundred_different_ones_at_once() -> None:
    compiler = Compiler()
    futures = [compiler.submit(Regex(f"{number}[a-z]{{1,9}}"), VOCABULARY) for number in range(200)]
    for number, future in enumerate(futures):
        assert future.result(60).match(f"{number}abc")
    compiler.close()


def test_closing_ends_what_runs_and_lets_go_of_what_waits() -> None:
    builder = Builder()
    compiler = Compiler(max_workers=1, build=builder)
    before = set(threading.enumerate())
    running = compiler.submit(choice("endless"), VOCABULARY)
    assert builder.begun.acquire(timeout=60)
    waiting = compiler.submit(choice("a"), VOCABULARY)
    compiler.close()
    for future in (running, waiting):
        assert isinstance(future.exception(60), Cancelled)
    eventually(lambda: set(threading.enumerate()) <= before)
    with pytest.raises(ProgramError, match="this compiler is closed"):
        compiler.submit(choice("a"), VOCABULARY)
    compiler.close()


def test_a_compiler_that_nobody_has_ends_what_it_does() -> None:
    builder = Builder()
    compiler = Compiler(build=builder)
    future: Future[Grammar] = compiler.submit(choice("endless"), VOCABULARY)
    assert builder.begun.acquire(timeout=60)
    del compiler
    gc.collect()
    assert isinstance(future.exception(60), Cancelled)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_child_of_os_fork_compiles_by_itself() -> None:
    script = (
        "import os, sys, threading\n"
        "from tests.grammar.test_compiler import *\n"
        "builder = Builder()\n"
        "compiler = Compiler(max_workers=1, build=builder)\n"
        "compiler.compile(choice('known'), VOCABULARY)\n"
        "builder.open.clear()\n"
        "lost = compiler.submit(choice('lost'), VOCABULARY)\n"
        "builder.begun.acquire(), builder.begun.acquire()\n"
        "child = os.fork()\n"
        "builder.open.set()\n"
        "if not child:\n"
        "    ok = compiler.submit(choice('known'), VOCABULARY).result(0)\n"
        "    ok = ok and compiler.submit(choice('new'), VOCABULARY).result(60).match('new')\n"
        "    os._exit(3 if ok else 4)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3\n"
        "assert lost.result(60).match('lost')\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=150)


def test_a_budget_is_that_of_the_work_at_hand() -> None:
    spend(10**9)
    with within(Budget(60)):
        spend(10**9)
        with pytest.raises(OutOfTime), within(Budget(-1)):
            spend(10**9)
        spend(10**9)
    budget = Budget(60)
    budget.stop()
    with pytest.raises(OutOfTime):
        budget.check()


@pytest.mark.parametrize(
    ("spec", "yes", "no"),
    [
        (Regex("[ab]+c"), "abac", "abca"),
        (Choice(("yes", "no", "yes sir")), "yes sir", "yes s"),
        (Either((Regex("[0-9]+"), Choice(("many", "9 or more")))), "9 or more", "9 or"),
        (Either((Regex("a"), Either((Regex("b"), Regex("c"))))), "c", "d"),
    ],
)
def test_specs_of_texts_become_grammars(spec: Spec, yes: str, no: str) -> None:
    grammar = compile_spec(spec, VOCABULARY)
    assert grammar.match(yes)
    assert not grammar.match(no)
    for seed in range(20):
        assert grammar.match(grammar.sample(seed, budget=12))
    assert grammar.explain()


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        (Regex("(a"), GrammarSyntaxError),
        (Regex("(?!a)a"), Unsatisfiable),
        (Either((Regex("a"), Regex("(b"))), GrammarSyntaxError),
        (Choice(("é",)), GrammarDeadEnd),
    ],
)
def test_specs_that_cannot_be_used_are_refused(spec: Spec, error: type[ConstraintError]) -> None:
    with pytest.raises(error):
        compile_spec(spec, VOCABULARY)


def test_what_is_no_spec_is_refused() -> None:
    with pytest.raises(ProgramTypeError, match="a str is no constraint: give a spec"):
        compile_spec("[ab]", VOCABULARY)  # type: ignore[arg-type]
