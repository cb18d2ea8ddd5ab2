"""Specs to grammars: one at a time, or by a service whose threads make each grammar once."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias

from lmlang.errors import (
    Cancelled,
    ConstraintError,
    ProgramError,
    ProgramTypeError,
    an,
    fresh,
)
from lmlang.grammar.automaton import Automaton, Rules, Swift
from lmlang.grammar.budget import Budget, OutOfTime, within
from lmlang.grammar.grammar import Grammar
from lmlang.grammar.rehearsal import rehearse
from lmlang.grammar.spec import Choice, Ebnf, Either, Hole, JsonSchema, Regex, Spec
from lmlang.grammar.vocabulary import Vocabulary

__all__ = ["Compiler", "Grammar", "compile_spec", "rules_of"]

MAX_STATES = 75_000
"""States of all grammars that are kept, some 3 KB each; the last one used may have more.

A collection of garbage looks at all that they are made of, some 16 objects each: half a second.
"""
REHEARSAL = 0.05
"""Seconds, at about, in which what outputs may come to is worked out, while prompts are read."""
MAX_FRESH = 64
"""Grammars that wait for that; there are so many only where more come than can be made."""
SECONDS = 10.0
"""Time to compile one constraint, unless another limit is given."""

ANY_BUDGET = 1 << 30

Key: TypeAlias = tuple[Spec, str, str]
"""A spec, the vocabulary's fingerprint, and for whom: none sees what another has compiled."""
Explain: TypeAlias = Callable[[], str]
Build: TypeAlias = Callable[[Spec, Vocabulary], Grammar]


def rules_of(spec: Spec) -> tuple[Rules, Explain]:
    """The rules of a spec, whatever the vocabulary, and what tells how it was understood.

    Raises:
        ConstraintError: It cannot be used; the message says why.
    """
    if isinstance(spec, (Regex, Choice)):
        from lmlang.grammar.language import matching, of_texts
        from lmlang.grammar.text_rules import TextRules

        language = matching(spec.pattern) if isinstance(spec, Regex) else of_texts(spec.texts)
        return TextRules(language), lambda: repr(spec)
    if isinstance(spec, JsonSchema):
        from lmlang.grammar.schema.graph import compile_schema, explain
        from lmlang.grammar.schema.rules import SchemaRules

        graph = compile_schema(spec)
        return SchemaRules(graph, spec.style), lambda: explain(graph)
    if isinstance(spec, Hole):
        from lmlang.grammar.hole import HoleRules

        whole, explained = rules_of(spec.schema)
        assert isinstance(whole, Swift), "those of schemas are"
        return HoleRules(spec, whole), explained
    if isinstance(spec, Ebnf):
        from lmlang.grammar.ebnf_rules import ebnf_rules

        return ebnf_rules(spec), lambda: spec.text
    if isinstance(spec, Either):
        from lmlang.grammar.either_rules import EitherRules

        parts = [rules_of(part) for part in spec.specs]
        return EitherRules([rules for rules, _ in parts]), lambda: "\n\n".join(
            f"either {number}\n{explain()}" for number, (_, explain) in enumerate(parts, 1)
        )
    raise ProgramTypeError(
        f"{an(type(spec).__name__)} is no constraint: give a spec of lm.grammar, as Regex(…)."
    )


def compile_spec(spec: Spec, vocabulary: Vocabulary) -> Grammar:
    """The grammar of a spec.

    Raises:
        ConstraintError: The spec cannot be used; the message says why.
        GrammarDeadEnd: The vocabulary cannot spell any output.
    """
    rules, explain = rules_of(spec)
    grammar = Grammar(spec, vocabulary, Automaton(rules), explain)
    if not grammar.closings.fits(grammar.automaton.start, ANY_BUDGET):
        grammar.closings.tokens(grammar.automaton.start)  # which says why
    return grammar


class _Job:
    """One grammar that is to be made, and who waits for it."""

    def __init__(self, spec: Spec, vocabulary: Vocabulary) -> None:
        self.spec = spec
        self.vocabulary = vocabulary
        self.budget: Budget | None = None
        self.waiting: list[Future[Grammar]] = []

    def run(self, build: Build) -> Grammar | Exception:
        assert self.budget is not None
        try:
            with within(self.budget):
                grammar = build(self.spec, self.vocabulary)
                grammar.masks.mask(grammar.automaton, grammar.automaton.start)
            return grammar
        except Exception as error:
            return error


class _Service:
    """What the threads of a compiler share; outlives it no longer than they run."""

    def __init__(self, max_workers: int, max_kept: int, seconds: float, build: Build) -> None:
        self.build = build
        self.max_workers = max_workers
        self.max_kept = max_kept
        self.seconds = seconds
        self.made: OrderedDict[Key, Grammar | ConstraintError] = OrderedDict()
        self.closed = False
        self.begin()

    def begin(self) -> None:
        """Without threads, as in a new process; what was made is kept."""
        self.process = os.getpid()
        self.lock = threading.RLock()  # a collected compiler ends it wherever that happens
        self.jobs: dict[Key, _Job] = {}
        self.queue: deque[Key] = deque()
        self.fresh: deque[Grammar] = deque(maxlen=MAX_FRESH)
        self.threads: set[threading.Thread] = set()

    def submit(self, spec: Spec, vocabulary: Vocabulary, namespace: str) -> Future[Grammar]:
        if self.process != os.getpid():
            self.begin()
        future: Future[Grammar] = Future()
        key = (spec, vocabulary.fingerprint, namespace)
        with self.lock:
            if self.closed:
                raise ProgramError("this compiler is closed: make another one.")
            made = self.made.get(key)
            if made is None:
                self._join(key, spec, vocabulary, future)
                return future
            self.made.move_to_end(key)
            self._make_room()
        _settle(future, made)
        return future

    def forget(self, key: Key) -> None:
        with self.lock:
            self.made.pop(key, None)

    def _make_room(self) -> None:
        """Let the least recently used go where too much is kept; holds the lock."""
        states = [len(m.automaton) if isinstance(m, Grammar) else 0 for m in self.made.values()]
        left, total = len(states), sum(states)
        for count in states:
            if left <= self.max_kept and (total <= MAX_STATES or left == 1):
                return
            self.made.popitem(last=False)
            left, total = left - 1, total - count

    def _join(self, key: Key, spec: Spec, vocabulary: Vocabulary, future: Future[Grammar]) -> None:
        job = self.jobs.get(key)
        if job is None:
            if len(self.threads) < self.max_workers:
                thread = threading.Thread(target=self._work, name="lmlang-grammar", daemon=True)
                thread.start()  # it waits for the lock; where it cannot start, nothing is queued
                self.threads.add(thread)
            job = self.jobs[key] = _Job(spec, vocabulary)
            self.queue.append(key)
        job.waiting.append(future)

    def _work(self) -> None:
        while True:
            with self.lock:
                if self.queue:
                    key = self.queue.popleft()
                    job = self.jobs[key]
                    if all(future.cancelled() for future in job.waiting):
                        del self.jobs[key]
                        continue
                    job.budget = Budget(self.seconds)
                elif self.fresh:
                    job, fresh = None, self.fresh.popleft()
                else:
                    self.threads.discard(threading.current_thread())
                    return
            if job is not None:
                self._make(key, job)
                continue
            # What fails here fails again in the outputs that come there, whose readers hear of it.
            with contextlib.suppress(Exception):
                rehearse(fresh, REHEARSAL)

    def _make(self, key: Key, job: _Job) -> None:
        made = job.run(self.build)
        with self.lock:
            del self.jobs[key]
            if self.closed:
                made = Cancelled("the compiler was closed before it had made this grammar.")
            elif isinstance(made, Grammar):
                self.fresh.append(made)
            if isinstance(made, Grammar) or (
                isinstance(made, ConstraintError) and not isinstance(made, OutOfTime)
            ):
                self.made[key] = made
                self._make_room()
        for future in job.waiting:
            _settle(future, made)

    def stop(self) -> list[threading.Thread]:
        """Let go of everything; the threads that still run, which soon end."""
        if self.process != os.getpid():
            self.begin()
        with self.lock:
            self.closed = True
            dropped = [self.jobs.pop(key) for key in self.queue]
            self.queue.clear()
            for job in self.jobs.values():
                if job.budget is not None:
                    job.budget.stop()
            threads = [t for t in self.threads if t is not threading.current_thread()]
            self.made.clear()
            self.fresh.clear()
        for job in dropped:
            for future in job.waiting:
                _settle(future, Cancelled("the compiler was closed before it had made this."))
        return threads


def _settle(future: Future[Grammar], made: Grammar | Exception) -> None:
    """Answer one who waits, who may have gone away; every reader gets an error of their own."""
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(made, Grammar):
        future.set_result(made)
    else:
        future.set_exception(fresh(made))


class Compiler:
    """Makes grammars off the caller's thread, equal ones once. Thread-safe.

    What was made is kept, the least recently used is let go; so are errors, but for time-outs.

    Args:
        max_workers: Threads at most; there are none while there is nothing to do.
        max_kept: Grammars and errors that are kept.
        seconds: Time for one of them.
        build: What makes a grammar.
    """

    def __init__(
        self,
        max_workers: int = 2,
        max_kept: int = 256,
        seconds: float = SECONDS,
        build: Build = compile_spec,
    ) -> None:
        self._service = _Service(max_workers, max_kept, seconds, build)
        self._end = weakref.finalize(self, _Service.stop, self._service)
        self._end.atexit = False

    def submit(self, spec: Spec, vocabulary: Vocabulary, namespace: str = "") -> Future[Grammar]:
        """The grammar of a spec, in the future; cancelling it harms nobody else.

        Grammars of different namespaces, and what is found out of their states, are apart.
        Callbacks of the future run on the thread that made the grammar, or at once.

        Raises:
            ProgramError: The compiler is closed.
        """
        return self._service.submit(spec, vocabulary, namespace)

    def forget(self, spec: Spec, vocabulary: Vocabulary, namespace: str = "") -> None:
        """Make a grammar anew when it is asked for again, as one that has outgrown its limits."""
        self._service.forget((spec, vocabulary.fingerprint, namespace))

    def compile(self, spec: Spec, vocabulary: Vocabulary) -> Grammar:
        """The grammar of a spec.

        Raises:
            ConstraintError: The spec cannot be used; the message says why.
            GrammarTooLarge: It was not made in its time.
        """
        return self.submit(spec, vocabulary).result()

    def close(self) -> None:
        """Let go of all that waits, end what is being made, and keep nothing."""
        for thread in self._end() or ():
            thread.join()
