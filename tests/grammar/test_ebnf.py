"""Grammars in the GBNF dialect: against all texts that small ones derive, and against llguidance."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.errors import ConstraintError, GrammarSyntaxError, GrammarTooLarge, Unsatisfiable
from lmlang.grammar.automaton import DEAD, LEAVE, Automaton, State
from lmlang.grammar.ebnf_rules import ebnf_rules
from lmlang.grammar.spec import Ebnf

LETTERS = "abé"
LONGEST = 4
TEXTS = ["".join(t) for n in range(LONGEST + 1) for t in itertools.product(LETTERS, repeat=n)]
RULES = ("root", "x", "y")

Tree = tuple[Any, ...]
"""("text", t), ("class", letters, negated), ("rule", name), ("all", …), ("any", …), or
("repeat", tree, least, most)."""


def compiled(text: str, root: str = "root") -> Automaton:
    return Automaton(ebnf_rules(Ebnf(text, root)))


def accepts(automaton: Automaton, text: str) -> bool:
    state = automaton.run(automaton.start, text.encode())
    return state is not None and state.accepting


_leaves = st.one_of(
    st.builds(lambda t: ("text", t), st.text(LETTERS, max_size=2)),
    st.builds(
        lambda letters, negated: ("class", "".join(sorted(letters)), negated),
        st.sets(st.sampled_from(LETTERS), min_size=1, max_size=2),
        st.booleans(),
    ),
    st.builds(lambda name: ("rule", name), st.sampled_from(RULES)),
)
TREES = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.builds(lambda parts: ("all", *parts), st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda parts: ("any", *parts), st.lists(inner, min_size=1, max_size=3)),
        st.builds(
            lambda tree, counts: ("repeat", tree, *counts),
            inner,
            st.sampled_from([(0, None), (1, None), (0, 1), (2, 2), (1, 3), (0, 0), (2, None)]),
        ),
    ),
    max_leaves=5,
)
GRAMMARS = st.fixed_dictionaries(dict.fromkeys(RULES, TREES))


def spelled(tree: Tree) -> str:
    kind = tree[0]
    if kind == "text":
        return f'"{tree[1]}"'
    if kind == "class":
        return f"[{'^' if tree[2] else ''}{tree[1]}]"
    if kind == "rule":
        return str(tree[1])
    if kind == "repeat":
        most = "" if tree[3] is None else tree[3]
        return f"({spelled(tree[1])}){{{tree[2]},{most}}}"
    return f"({(' ' if kind == 'all' else ' | ').join(map(spelled, tree[1:]))})"


def derived(tree: Tree, known: dict[str, set[str]]) -> set[str]:
    """The texts of at most `LONGEST` letters that a tree derives from what its rules derive."""
    kind = tree[0]
    if kind == "text":
        return {tree[1]}
    if kind == "class":
        return {letter for letter in LETTERS if (letter in tree[1]) != tree[2]}
    if kind == "rule":
        return known[tree[1]]
    if kind == "any":
        return set().union(*(derived(each, known) for each in tree[1:]))
    found = {""}
    if kind == "all":
        for each in tree[1:]:
            found = joined(found, derived(each, known))
        return found
    inside, least, most = derived(tree[1], known), tree[2], tree[3]
    for _ in range(least):
        found = joined(found, inside)
    for _ in range(LONGEST if most is None else most - least):
        found |= joined(found, inside)
    return found


def joined(ones: set[str], others: set[str]) -> set[str]:
    return {one + other for one in ones for other in others if len(one + other) <= LONGEST}


def language(grammar: dict[str, Tree]) -> set[str]:
    known: dict[str, set[str]] = {name: set() for name in grammar}
    while True:
        new = {name: derived(tree, known) for name, tree in grammar.items()}
        if new == known:
            return known["root"]
        known = new


def written(grammar: dict[str, Tree]) -> str:
    return "\n".join(f"{name} ::= {spelled(tree)}" for name, tree in grammar.items())


def grown(grammar: dict[str, Tree]) -> Automaton | None:
    """Its automaton; None where it derives no finite text."""
    try:
        return compiled(written(grammar))
    except Unsatisfiable:
        return None


@settings(max_examples=400)
@given(GRAMMARS)
def test_accepted_is_what_the_grammar_derives(grammar: dict[str, Tree]) -> None:
    automaton, texts = grown(grammar), language(grammar)
    if automaton is None:
        assert not texts
        return
    for text in TEXTS:
        assert accepts(automaton, text) == (text in texts), text


@settings(max_examples=200)
@given(GRAMMARS)
def test_every_state_is_viable_and_completes_by_the_fewest_bytes(grammar: dict[str, Tree]) -> None:
    automaton = grown(grammar)
    if automaton is None:
        return
    texts = [text.encode() for text in language(grammar)]
    for text in TEXTS:
        for cut in range(len(text.encode()) + 1):
            prefix = text.encode()[:cut]
            state = automaton.run(automaton.start, prefix)
            longer = [len(each) - cut for each in texts if each.startswith(prefix)]
            assert state is not None or not longer
            if state is not None:
                completion = automaton.completion(state)
                ended = automaton.run(state, completion)
                assert ended is not None
                assert ended.accepting
                assert len(completion) <= min(longer, default=len(completion))
                whole = (prefix + completion).decode()
                if len(whole) <= LONGEST and set(whole) <= set(LETTERS):
                    assert whole.encode() in texts
                assert automaton.following(state) == bytes(
                    byte for byte in range(256) if automaton.push(state, byte) is not None
                )


def told(automaton: Automaton, state: State, run: bytes) -> bool | None:
    """What the tables say of a run of bytes: possible, not possible, or to be asked."""
    asked = False
    for table, at in automaton.rules.contents(state.key):
        for byte in run:
            onward = table.push(at, byte)
            if onward in (DEAD, LEAVE):
                asked |= onward == LEAVE
                break
            at = onward
        else:
            return True
    return None if asked else False


@settings(max_examples=200)
@given(GRAMMARS)
def test_tables_agree_with_the_automaton(grammar: dict[str, Tree]) -> None:
    automaton = grown(grammar)
    if automaton is None:
        return
    for prefix in TEXTS[:40]:
        state = automaton.run(automaton.start, prefix.encode())
        if state is not None and automaton.rules.contents(state.key):
            for text in TEXTS:
                for run in (text.encode(), text.encode()[:-1]):
                    said = told(automaton, state, run)
                    assert said in (None, automaton.run(state, run) is not None)


@settings(max_examples=100)
@given(GRAMMARS, st.randoms(use_true_random=False))
def test_tables_make_rows_of_what_they_push(
    grammar: dict[str, Tree], chance: random.Random
) -> None:
    automaton = grown(grammar)
    if automaton is None:
        return
    state = automaton.start
    while state is not None and (following := automaton.following(state)):
        for table, at in automaton.rules.contents(state.key):
            (row,) = table.rows(np.array([at]))
            assert [table.push(at, byte) for byte in range(256)] == row.tolist()
            assert table.following(at) == bytes(np.flatnonzero(row != DEAD).tolist())
            inside = table.completion(at)
            for byte in inside:
                at = table.push(at, byte)
                if at < 0:
                    break
            assert at == LEAVE or table.accepting(at)
        if len(automaton._states) > 30:
            break
        state = automaton.push(state, chance.choice(following))
