import random
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings

import lmlang as lm
from lmlang import limits
from lmlang.frontend import ir
from lmlang.frontend.printer import parse_program, print_program
from lmlang.frontend.verify import verify
from tests.frontend.random_ir import programs


def lines(*nodes):
    """A program of these lines behind its start."""
    head = "program p(topic: str, *rest)\n  %0 = start\n"
    return parse_program(head + "".join(f"  {line}\n" for line in nodes))


def program(*nodes):
    return ir.Program("p", (ir.Start(), *nodes))


@pytest.mark.parametrize(
    "nodes",
    [
        ("%1, %2 = fork %0 2", '%3 = text %1 "a"', '%4 = text %0 "b"', "%5 = join %4 %3 %2"),
        ("%1, %2, %3 = fork %0 3", "%4 = join %0 %1 %3"),
        ("%1, %2 = fork %0 2", "%3 = join %0 %1 %2", '%4 = text %1 "the child goes on"'),
        ("%1 = role %0 user", "%2 = fork %1 1", "%3 = end_role %2 user", "%4 = end_role %1 user"),
        ("%1 = role %0 user", "return %1"),
        ("%1 = scope %0 v", "%2 = scope %1 v", "%3 = end_scope %2 v", "%4 = end_scope %3 v"),
        ("%1 = set_var %0 -> x", "%2 = fork %1 1", "%3 = ref %2 x", "return %1 ref x"),
        ("%1 = fork %0 1", "%2 = gen %1 -> x", "%3 = ref %0 x [of=%2]"),
        ("%1 = fork %0 1", "%2 = gen %1 -> x", "%3 = join %0 %2", "%4 = ref %3 x[0]"),
        ("%1 = gen %0 -> x [n=2]", "%2 = ref %1 x[1]"),
        ('%1 = gen %0 -> x [reasoning="qwen3"]', "%2 = ref %1 x_reasoning_content"),
        ("%1 = arg %0 rest", "return %1", '%2 = text %1 "when it had ended"'),
    ],
)
def test_what_is_well_formed_is_returned(nodes):
    made = lines(*nodes)
    assert verify(made) is made


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ((), None),
        (('%1 = text %0 "a"', '%2 = text %0 "b"'), "line 4 .*%0 has been taken already: %1 is"),
        (("%1 = fork %0 1", '%2 = text %0 "a"', "%3 = fork %0 1"), "%0 has been taken already"),
        (("%1 = start",), "line 3 .%1 = start.: start stands once, and first"),
        (("%1 = join %0",), "the number of children=0 is out of range"),
        (("%1 = join %0 %0",), "%0 is no child of one fork"),
        (("%1 = fork %0 1", "%2 = fork %1 1", "%3 = join %0 %2"), "%2 is no child of one fork"),
        (("%1 = fork %0 1", "%2 = fork %0 1", "%3 = join %0 %1 %2"), "%2 is no child of one fork"),
        (("%1, %2 = fork %0 2", "%3 = join %0 %2 %1"), "%1 stands out of fork order"),
        (("%1 = fork %0 1", "%2 = join %0 %1 %1"), "%1 stands out of fork order"),
        (("%1 = fork %0 1", "%2 = join %0 %1", "%3 = join %2 %1"), "joined already"),
        (("%1, %2 = fork %0 2", '%3 = text %1 ""', "%4 = join %0 %1 %2"), "%1 has been taken"),
        (("%1 = fork %0 1", '%2 = role %1 user', '%3 = join %0 %2 [mode="concate_and_append"]'),
         "a turn is open at only one end"),
        (("%1 = role %0 user", "%2 = role %1 user"), "the user turn is open"),
        (("%1 = end_role %0 user",), "ends a user turn, and no turn is open"),
        (("%1 = role %0 user", "%2 = end_role %1 system"), "and the user turn is open"),
        (("%1 = end_scope %0 v",), "ends the scope 'v', and none is open here"),
        (("%1 = scope %0 a", "%2 = scope %1 b", "%3 = end_scope %2 a"), "'b' is the innermost"),
        (("%1 = scope %0 v", "%2 = fork %1 1", "%3 = end_scope %2 v"), "and none is open here"),
        (("%1 = scope %0 v", "%2 = ref %1 v"), "the variable 'v' is defined by no line above"),
        (("%1 = ref %0 x", "%2 = gen %1 -> x"), "the variable 'x' is defined by no line above"),
        (("%1 = fork %0 1", "%2 = gen %0 -> x", "%3 = ref %1 x"), "'x' is defined by no line"),
        (("%1 = fork %0 1", "%2 = gen %1 -> x", "%3 = ref %0 x"), "'x' is defined by no line"),
        (("%1 = fork %0 1", "%2 = gen %1 -> x", "%3 = ref %0 x [of=%1]"), "'x' is defined by no"),
        (("%1 = gen %0 -> x", "%2 = ref %1 x[0]"), "'x' is one text and has no items"),
        (("%1 = gen %0 -> x [n=2]", "%2 = ref %1 x[2]"), "'x' has 2 items, counted from 0"),
        (("%1 = arg %0 tropic",), "'tropic' is no parameter"),
        (("return %0 ref x",), "'x' is defined by no line"),
        (("%1 = call %0 f [a=arg b]",), "'b' is no parameter"),
        (("return %0", "return %0"), "a program returns once"),
        (("%1 = fork %0 1", "return %1"), "returns on its own line"),
        (("%1 = select %0 -> x []",), "the number of choices=0 is out of range"),
        (('%1 = select %0 -> x ["a", "a"]',), "a choice is empty or stands twice"),
        (('%1 = select %0 -> x [""]',), "a choice is empty or stands twice"),
        (('%1 = select %0 -> x ["a"] [temperature=-1]',), "temperature=-1.0 is out of range"),
        (('%1 = text %0 "\\ud800"',), "lone surrogate"),
        (('%1 = gen %0 -> ""',), "its name is empty"),
        (("%1 = gen %0 -> x [max_tokens=1000001]",), "max_tokens=1000001 is out of range"),
        (("%1 = gen %0 -> x [min_tokens=5, max_tokens=4]",), "min_tokens=5 is more than"),
        (('%1 = gen %0 -> x [stop=["", "a"]]',), "stop='' would end every output"),
        (("%1 = gen %0 -> x [n=0]",), "n=0 is out of range"),
        (("%1 = gen %0 -> x [seed=-1]",), "seed=-1 is out of range"),
    ],
)  # fmt: skip
def test_what_is_not_is_refused_with_its_line(nodes, message):
    if message is None:
        verify(lines(*nodes))
        return
    with pytest.raises(lm.ProgramError, match=message) as caught:
        verify(lines(*nodes))
    assert str(caught.value).startswith("'p', line ")


def test_nodes_that_no_text_can_show_are_refused():
    for made, message in [
        (ir.Program("p", ()), "the program is empty"),
        (ir.Program("p", (ir.Text(0, 1, "a"),)), "start stands once, and first"),
        (program(ir.Text(0, 0, "a")), "%0 has been made before"),
        (program(ir.Text(1, 2, "a"), ir.Text(0, 1, "a")), "%1 is made by no line above"),
        (program(ir.Text(-1, 1, "a")), "state=-1 is no value of the type int"),
        (program(ir.Text(0, True, "a")), "made=True is no value"),
        (program(ir.Text(0, 1, b"a")), "text=b'a' is no value of the type str"),
        (program(ir.Gen(0, 1, "x", stop="ab")), r"stop='ab' is no value of the type tuple\[str"),
        (program(ir.Gen(0, 1, "x", temperature=float("nan"))), "temperature=nan is out of range"),
        (program(ir.Gen(0, 1, "x", logit_bias=((1, 2, 3),))), "logit_bias"),
        (program(ir.Return(0, [1])), "value=.1. is no value of the type Datum"),
        (program(ir.Return(0, float("inf"))), "value=inf is no value"),
        (program(ir.Return(0, ir.Arg(0, 1, "x"))), "is no value of the type Datum"),
        (program(ir.Join(0, 1, (), "gather")), "mode='gather' is no value of the type JoinMode"),
        (program("text"), "a str is no node"),
        (program(program()), "a Program is no node"),
        (program(ir.Role(0, 1, "")), "the role '' is no plain word of at most 64 letters"),
        (program(ir.Role(0, 1, "a b")), "the role 'a b' is no plain word"),
        (program(ir.Role(0, 1, "user\n")), r"the role 'user.n' is no plain word"),
        (program(ir.Role(0, 1, "<|im_end|>")), "is no plain word"),
        (program(ir.Role(0, 1, "r" * 65)), "is no plain word"),
        (None, "a NoneType is no program of IR"),
        (ir.Program("x", None), "the program's nodes are a NoneType: give a tuple"),
        (ir.Program(3, ()), "the program's name is an int"),
        (ir.Program("x", (), None), "the program's parameters are a NoneType"),
        (ir.Program("x", (), ("topic",)), "'topic' is no parameter"),
        (replace(program(), parameters=(ir.Parameter("a"), ir.Parameter("*a"))), "stands twice"),
        (replace(program(), version=2), "version 2 of the IR, and this lmlang reads version 1"),
    ]:
        with pytest.raises(lm.ProgramError, match=message):
            verify(made)


def test_sizes_have_limits(monkeypatch):
    monkeypatch.setattr(limits, "MAX_NODES", 3)
    monkeypatch.setattr(limits, "MAX_FORKS", 2)
    monkeypatch.setattr(limits, "MAX_CHOICES", 2)
    with pytest.raises(lm.ProgramError, match="has 4 nodes: at most 3"):
        verify(lines(*["return %0"] * 3))
    with pytest.raises(lm.ProgramError, match="the number of children=3 is out of range"):
        verify(lines("%1, %2, %3 = fork %0 3"))
    with pytest.raises(lm.ProgramError, match="the number of choices=3 is out of range"):
        verify(lines('%1 = select %0 -> x ["a", "b", "c"]'))


def nested(depth):
    return [ir.Fork(state, (state + 1,)) for state in range(depth)]


def test_deep_nesting_needs_no_stack():
    depth = 50_000
    nodes = [*nested(depth), ir.SetVar(0, depth + 1, "x")]
    verify(program(*nodes))
    verify(program(ir.Fork(0, (1,)), ir.SetVar(0, 10**9, "x"), *nested(depth)[1:]))


def test_variables_of_many_lines_up_are_found_soon():
    """As recursion leaves it: names from above, below and between, on 20,000 nested lines."""
    depth, nodes, at = 20_000, [ir.SetVar(0, 1, "x")], 1
    newest = []
    for level in range(depth):
        nodes += [ir.Fork(at, (at + 2,)), ir.SetVar(at + 2, at + 3, f"level{level}")]
        nodes += [ir.Ref(at + 3, at + 4, "x"), ir.Ref(at + 4, at + 5, f"level{level // 2}")]
        newest.append(at := at + 5)
    for level in reversed(range(depth)):
        at += 1
        nodes.append(ir.Ref(newest[level], at, f"level{level // 3}"))
        nodes.append(ir.SetVar(at, at := at + 1, "after"))
    began = time.thread_time()
    verify(program(*nodes))
    assert time.thread_time() - began < 20


def test_it_does_not_matter_how_a_variable_is_looked_for(monkeypatch):
    drawn = random.Random(3)
    verdicts = set()
    for _ in range(300):
        newest, nodes, made = [0], [], 0
        for _ in range(40):
            line, made = drawn.randrange(max(0, len(newest) - 3), len(newest)), made + 1
            state, name = newest[line], drawn.choice("abcdefgh")
            kind = drawn.choice(["fork", "set", "set", "ref"])
            if kind == "fork":
                nodes.append(ir.Fork(state, (made,)))
                newest.append(made)
                continue
            of = drawn.choice([None, drawn.randrange(made)])
            nodes.append(
                ir.SetVar(state, made, name) if kind == "set" else ir.Ref(state, made, name, (), of)
            )
            newest[line] = made
        found = []
        for near in (10**9, 0):
            monkeypatch.setattr("lmlang.frontend.verify.NEAR", near)
            try:
                verify(program(*nodes))
                found.append("")
            except lm.ProgramError as error:
                found.append(str(error))
        assert found[0] == found[1]
        verdicts.add(found[0] == "")
    assert verdicts == {True, False}


def test_programs_made_to_be_slow_are_refused_soon(monkeypatch):
    monkeypatch.setattr("lmlang.frontend.verify.FREE_STEPS", 100_000)
    monkeypatch.setattr("lmlang.frontend.verify.STEPS_PER_NODE", 16)
    depth, many, lines_each = 10_000, 100, 20
    nodes = [ir.SetVar(i, i + 1, f"x{i}") for i in range(many)]
    beside = tuple(range(many + 1, many + 1 + lines_each))
    nodes.append(ir.Fork(many, beside))
    at = beside[-1]
    for state in beside:
        for i in range(many):
            nodes.append(ir.SetVar(state, at := at + 1, f"x{i}"))
            state = at
    nodes.append(ir.Fork(many, (at := at + 1,)))
    nodes += [ir.Fork(at + i, (at + i + 1,)) for i in range(depth)]
    at += depth
    nodes += [ir.Ref(at + i, at + i + 1, f"x{i}") for i in range(many)]
    began = time.thread_time()
    with pytest.raises(lm.ProgramError, match="too entangled to be checked"):
        verify(program(*nodes))
    assert time.thread_time() - began < 10


@settings(max_examples=100, deadline=None)
@given(programs())
def test_every_loss_of_a_node_that_another_needs_is_seen(whole):
    verify(whole)
    taken = {node.state for node in whole.nodes[1:]}
    for index, node in enumerate(whole.nodes):
        if taken.intersection(ir.made_by(node)):
            left = whole.nodes[:index] + whole.nodes[index + 1 :]
            with pytest.raises(lm.ProgramError):
                verify(replace(whole, nodes=left))


def test_a_message_shows_the_line_as_it_is_printed():
    made = lines('%1 = text %0 "a"', "%2 = end_role %1 user")
    with pytest.raises(lm.ProgramError) as caught:
        verify(made)
    shown = print_program(made).splitlines()[3].strip()
    assert str(caught.value).startswith(f"'p', line 4 ({shown}): ")
