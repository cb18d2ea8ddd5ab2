"""The GBNF dialect: against all texts that small grammars derive, and against llguidance."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.errors import GrammarSyntaxError, GrammarTooLarge, Unsatisfiable
from lmlang.grammar.automaton import DEAD, LEAVE, Automaton, Leaving, State
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
    """What the tables say of a run of bytes: possible, not possible, or to be asked.

    Where it is left by the last byte, it is possible.
    """
    asked = False
    for table, at in automaton.rules.contents(state.key):
        for number, byte in enumerate(run, 1):
            onward = table.push(at, byte)
            if onward in (DEAD, LEAVE):
                asked |= onward == LEAVE
                if onward == LEAVE and number == len(run):
                    assert automaton.rules.leaving(state.key) is Leaving.FREE
                    return True
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


JSON = r"""
# after the grammar that everybody knows
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})? ws
ws     ::= [ \t\n]{0,3}
"""
ARITHMETIC = r"""
root ::= sum "=" number "\n"
sum  ::= product ([-+] product)*
product ::= factor | product [*/] factor
factor ::= number | "(" sum ")"
number ::= "0" | [1-9] [0-9]*
"""
SQL = r"""
root ::= "SELECT " columns " FROM " name (" WHERE " condition)? (" ORDER BY " columns)? ";"
columns ::= "*" | name (", " name)*
condition ::= term | term " AND " condition | term " OR " condition | "(" condition ")"
term ::= name " " ("=" | "<" | ">" | "<>") " " literal
literal ::= "'" [^'\n]* "'" | [0-9]+
name ::= [a-z] [a-z_0-9]*
"""
CHESS = r"""
root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
"""
ITEMS = 'root ::= item+\nitem ::= ("- " | "* ") [^\\r\\n\\x0b-\\x1f]+ "\\n"\n'
TALK = """
root ::= sentence (" " sentence)*
sentence ::= [あ-ん]+ "。" | word (" " word){0,4} [.!?]
word ::= [A-Za-zé]+ ("'" [a-z]+)?
"""


class Foreign:
    """The same grammar in llguidance, byte by byte, by its masks."""

    def __init__(self, text: str) -> None:
        self._guidance = pytest.importorskip("llguidance")
        self._grammar = self._guidance.gbnf_to_lark.gbnf_to_lark(text)
        self._tokens = self._guidance.LLTokenizer("byte")

    def accepts(self, text: bytes) -> bool:
        matcher = self._guidance.LLMatcher(self._tokens, self._grammar)
        assert not matcher.get_error()
        for byte in text:
            if not matcher.compute_bitmask()[byte // 8] >> byte % 8 & 1:
                return False
            matcher.consume_token(byte)
        return bool(matcher.is_accepting())


def mutated(text: bytes, alphabet: bytes, chance: random.Random) -> bytes:
    """A text a few bytes away."""
    found = bytearray(text)
    for _ in range(chance.randrange(3)):
        at = chance.randrange(len(found) + 1)
        found[at : at + chance.randrange(2)] = [chance.choice(alphabet)] * chance.randrange(2)
    return bytes(found)


def walked(automaton: Automaton, chance: random.Random, steps: int) -> bytes:
    """A random output, of which the end is the nearest one."""
    state, found = automaton.start, bytearray()
    for _ in range(steps):
        following = automaton.following(state)
        if not following:
            break
        found.append(chance.choice(following))
        onward = automaton.push(state, found[-1])
        assert onward is not None
        state = onward
    return bytes(found) + automaton.completion(state)


@pytest.mark.parametrize("text", [JSON, ARITHMETIC, SQL, CHESS, ITEMS, TALK])
def test_accepted_is_what_llguidance_accepts(text: str) -> None:
    automaton, foreign = compiled(text), Foreign(text)
    chance = random.Random(5)
    accepted = 0
    for _ in range(120):
        output = walked(automaton, chance, chance.randrange(60))
        state = automaton.run(automaton.start, output)
        assert state is not None
        assert state.accepting
        assert foreign.accepts(output), output
        near = mutated(output, output, chance)
        state = automaton.run(automaton.start, near)
        ours = state is not None and state.accepting
        assert ours == foreign.accepts(near), near
        accepted += ours
    assert 0 < accepted < 120


def test_a_json_text_needs_few_states_however_it_is_nested() -> None:
    automaton = compiled(JSON)
    text = json.dumps({"a": [1, 2, {"b": "some words", "c": [[], {}, [[-1.5e3]]]}] * 40}).encode()
    state = automaton.run(automaton.start, text)
    assert state is not None
    assert state.accepting
    assert len(automaton._states) < 150


def test_right_and_left_recursion_come_back_to_the_same_states() -> None:
    for text in ('root ::= "a" root | "b"', 'root ::= root "a" | "a"', "root ::= [a]*"):
        automaton = compiled(text)
        assert automaton.run(automaton.start, b"a" * 10_000) is not None
        assert len(automaton._states) <= 3


@pytest.mark.parametrize(
    ("text", "cycle"),
    [
        ('root ::= root root | "a"', "a"),
        ('root ::= root root root | "a"', "a"),
        ('root ::= root [-+*] root | "a" | "(" root ")"', "a+"),
        ('root ::= "if " root (" else " root)? | "x"', "if "),
    ],
)
def test_what_can_be_read_in_many_ways_has_few_items(text: str, cycle: str) -> None:
    automaton = compiled(text)
    state = automaton.run(automaton.start, (cycle * 300).encode())
    assert state is not None
    assert len(state.key.items) <= 3  # type: ignore[attr-defined]


@settings(max_examples=50)
@given(GRAMMARS, st.randoms(use_true_random=False))
def test_completions_do_not_hang_on_what_was_met_before(
    grammar: dict[str, Tree], chance: random.Random
) -> None:
    one, other = grown(grammar), grown(grammar)
    if one is None or other is None:
        return
    for text in chance.sample(TEXTS, 30):
        other.run(other.start, text.encode())
    for text in TEXTS[:40]:
        here, there = one.run(one.start, text.encode()), other.run(other.start, text.encode())
        assert (here is None) == (there is None)
        if here is not None and there is not None:
            assert one.completion(here) == other.completion(there)


def test_depth_of_the_output_and_of_the_text_is_no_recursion() -> None:
    automaton = compiled('root ::= "(" root ")" | "x"')
    state = automaton.run(automaton.start, b"(" * 10_000)
    assert state is not None
    assert automaton.completion(state) == b"x" + b")" * 10_000
    assert accepts(compiled("root ::= " + "(" * 10_000 + '"a"' + ")" * 10_000), "a")
    assert accepts(compiled('root ::= "a"' + "*" * 5_000), "aaa")
    chain = "\n".join(f'r{number} ::= "a" r{number + 1}' for number in range(3_000))
    assert accepts(compiled(f'{chain}\nr3000 ::= "b"', "r0"), "a" * 3_000 + "b")


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ('root ::= "a" # comment ::= "b"\n  | "b"\n# more', "b"),
        ('root::="a"\n"b"\n(\n"c"\n)', "abc"),
        ('root ::= x | "u"\nx ::= "v"', "v"),
        (r'root ::= "\x41\u00e9\U0001f642\n\t\r\\\"\[\]\-"', 'Aé🙂\n\t\r\\"[]-'),
        (r"root ::= [\x41-\x43\]\-] [a-] [-a] [^^]", "]-a]"),
        ("root ::= [🙂-🙄é] . .", "🙃\n你"),
        ('root ::= "" | "a"', ""),
        ('Some-rule_2 ::= "a" { 2 , 3 }\nroot ::= Some-rule_2', "aaa"),
        ('root ::= ("a" |)', ""),
    ],
)
def test_the_dialect(text: str, output: str) -> None:
    assert accepts(compiled(text), output)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('root ::= "a" "b', ["line 1, column 14", "does not end"]),
        ("root ::= [a", ["line 1, column 10", "does not end"]),
        ('root ::= ("a"\nx ::= "b"', ["line 1, column 10", "not closed"]),
        ('root ::= "a")', ["column 13", "closes nothing"]),
        ("root ::= * ", ["column 10", "nothing to repeat"]),
        ('root ::= "a" | +', ["nothing to repeat"]),
        ('root ::= "a"{,3}', ["column 13", "{0,5}"]),
        ('root ::= "a"{3,2}', ["from 3 to 2"]),
        ('root ::= "a"\n\nvalue ::= vaule\n', ["line 3, column 11", "'vaule'", "value"]),
        ('x ::= "a"', ["'root'", "no rule"]),
        ('root ::= "a"\nroot ::= "b"', ["line 2, column 1", "twice"]),
        ('"a"', ["column 1", "begins with its name"]),
        ('?start: "a" | b', ["line 1, column 1", "the : of Lark write ::=", "first rule root"]),
        (r'root ::= "a\q"', ["column 12", "escape"]),
        (r'root ::= "\ud800"', ["U+D800"]),
        (r'root ::= "\U00110000"', ["U+110000"]),
        ("root ::= [z-a]", ["'z' back to 'a'"]),
        ("root ::= []", ["no characters"]),
        (r"root ::= [^\x00-\U0010ffff]", ["no characters"]),
        ("root ::= <think>", ["column 10", "tokens"]),
        ("root ::= !<think>", ["column 10", "tokens"]),
        ("root ::= 'a'", ["column 10", "double quotes"]),
        ("root ::= x :", ["column 12", "::="]),
        ("# nothing", ["no rule"]),
        ("root ::= é", ["column 10", "means nothing"]),
    ],
)
def test_what_is_no_grammar_is_refused_with_its_place(text: str, words: list[str]) -> None:
    with pytest.raises(GrammarSyntaxError) as caught:
        compiled(text)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        'root ::= ((("a"{1,500}){1,500}){1,500}){1,500}',
        'root ::= "a"{99999999999999999999}',
        f'root ::= "{"a" * 1_000_001}"',
        f'root ::= "{"a" * 70_000}"',
        "\n".join(f"r{n} ::= r{n + 1} r{n + 1}" for n in range(60)) + '\nr60 ::= "a"\nroot ::= r0',
    ],
    ids=["counts", "digits", "text", "literal", "shortest"],
)
def test_what_is_too_large_is_refused(text: str) -> None:
    with pytest.raises(GrammarTooLarge) as caught:
        compiled(text)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "text", ["root ::= root", 'root ::= "a" x\nx ::= "b" x', "root ::= x\nx ::= root | x x"]
)
def test_a_root_without_a_finite_text_is_refused(text: str) -> None:
    with pytest.raises(Unsatisfiable, match="'root'"):
        compiled(text)


def test_ways_without_an_end_are_not_taken() -> None:
    automaton = compiled('root ::= "a" dead | "b"\ndead ::= "x" dead')
    assert automaton.following(automaton.start) == b"b"
