import dataclasses
import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmlang as lm
from lmlang.frontend import ir
from lmlang.frontend.printer import parse_program, print_node, print_program
from lmlang.frontend.verify import verify
from lmlang.grammar.spec import Choice, Ebnf, Either, JsonSchema, Regex
from tests.frontend.random_ir import anything, bigs, programs, values

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.ir"))

TIPS = ir.Program(
    "tips",
    (
        ir.Start(),
        ir.Text(0, 1, "Two tips about "),
        ir.Arg(1, 2, "topic"),
        ir.Fork(2, (3, 4)),
        ir.Gen(3, 5, "tip", max_tokens=32, stop=("\n",)),
        ir.Gen(4, 6, "tip", max_tokens=32, stop=("\n",)),
        ir.Join(2, 7, (5, 6)),
        ir.Ref(7, 8, "tip", (0,)),
        ir.Select(8, 9, "verdict", ("good", "bad")),
        ir.Return(9),
    ),
    (ir.Parameter("topic", "str"),),
)


def program(*nodes, **kwargs):
    return ir.Program("p", (ir.Start(), *nodes), **kwargs)


def typed(value):
    """With the types of all values: 1 is no 1.0, and no True; -0.0 is no 0.0."""
    if isinstance(value, tuple):
        return tuple(map(typed, value))
    if dataclasses.is_dataclass(value):
        return type(value), [typed(getattr(value, f.name)) for f in dataclasses.fields(value)]
    return type(value), value.hex() if isinstance(value, float) else value


def test_a_program_is_printed_as_documented():
    (golden,) = [path for path in GOLDEN if path.name == "tips.ir"]
    assert print_program(TIPS) == golden.read_text()


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_golden_programs_are_read_verified_and_printed_alike(path):
    text = path.read_text()
    assert print_program(verify(parse_program(text))) == text


def test_the_golden_programs_show_all_nodes_and_all_their_fields():
    (path,) = [path for path in GOLDEN if path.name == "everything.ir"]
    nodes = parse_program(path.read_text()).nodes
    assert {type(node) for node in nodes} == set(ir.Node.__args__)
    gens = [node for node in nodes if isinstance(node, ir.Gen)]
    for name in ir.Gen.__slots__:
        assert any(getattr(node, name) is not None for node in gens), name


@settings(max_examples=120, deadline=None)
@given(programs())
def test_printing_and_parsing_is_exact(program):
    assert verify(program) is program
    text = print_program(program)
    parsed = parse_program(text)
    assert parsed == program
    assert typed(parsed.nodes) == typed(program.nodes)
    assert print_program(parsed) == text
    assert parsed.digest() == program.digest()
    assert len(text.splitlines()) == 1 + len(program.nodes)
    text.encode()


@settings(max_examples=120, deadline=None)
@given(anything, anything, values | bigs)
def test_all_texts_names_and_values_are_exact(text, name, value):
    nodes = (
        ir.Text(0, 1, text),
        ir.Arg(1, 2, name),
        ir.SetVar(2, 3, name, value),
        ir.Call(3, 4, name, ((text, value), (name, ir.Ref(-1, -1, name, (0, 7))))),
        ir.Return(4, ir.Arg(-1, -1, name)),
    )
    printed = print_program(program(*nodes))
    assert typed(parse_program(printed).nodes[1:]) == typed(nodes)
    assert len(printed.splitlines()) == 7


def test_floats_that_are_no_numbers_are_refused():
    for value in (float("nan"), float("inf"), -float("inf")):
        with pytest.raises(lm.ProgramError, match="only finite numbers"):
            print_program(program(ir.Gen(0, 1, "x", temperature=value)))
        with pytest.raises(lm.ProgramError, match="only finite numbers"):
            print_program(program(ir.Return(0, value)))


def test_what_cannot_be_printed_is_refused():
    for node, message in [
        (ir.Text(ir.UNPLACED, ir.UNPLACED, "a"), "%-1 is no state"),
        (ir.Return(0, [1]), "a list is no data"),
        (ir.Ref(0, 1, "x", (-1,)), "no index"),
        (ir.Gen(0, 1, "x", temperature=10**400), "only finite numbers"),
    ]:
        with pytest.raises(lm.ProgramError, match=message):
            print_node(node)
    with pytest.raises(lm.ProgramError, match="a Program is no node"):
        print_node(TIPS)


def test_a_digest_is_of_the_content_alone():
    twin = ir.Program(TIPS.name, TIPS.nodes, TIPS.parameters, sources={1: "a.py:1"})
    assert twin.digest() == TIPS.digest()
    assert TIPS.digest() == parse_program(print_program(TIPS)).digest()
    assert len({TIPS.digest(), program().digest(), program(ir.Text(0, 1, "")).digest()}) == 3
    assert (
        program(ir.Gen(0, 1, "x", temperature=0)).digest()
        == program(ir.Gen(0, 1, "x", temperature=0.0)).digest()
    )
    # Stored digests must stay valid.
    assert TIPS.digest() == "16698848c7b0971e115b89c46b19f602f687f746f75e8301d3972e556b516a95"


def test_constraints_are_printed_as_calls_of_their_kinds():
    spec = Either(
        (Regex('"\\d'), Either((JsonSchema("{}", 2), Choice(("a", "b")))), Ebnf("x", "y"))
    )
    node = ir.Gen(0, 1, "x", constraint=spec)
    assert print_node(node) == (
        r"""%1 = gen %0 -> x [constraint=either(regex("\"\\d"), json_schema("{}", 2), """
        r"""choice("a", "b"), ebnf("x", "y"))]"""
    )
    assert parse_program(print_program(program(node))).nodes[1] == node


# ------------------------------------------------------------------------------- refusals

HEAD = "program p()\n  %0 = start\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: expected 'program', found the end"),
        ("programme p()", "line 1, column 1: expected 'program', found 'programme p"),
        ("program p", r"column 10: expected '\(', found the end"),
        ("program p(a b)", r"column 13: expected '\)', found 'b\)'"),
        ("program p(a: list[)", r"column 18: expected '\)', found '\[\)'"),
        ("program p() version 2", "column 21: expected version 1"),
        ("program p() x", "column 13: expected the end of the line, found 'x'"),
        (HEAD + "  %1 = jump %0", r"line 3, column 8: expected a node \(start, text.*found 'jump"),
        (HEAD + "  %0 = text %0 \"\"", "line 3, column 3: expected a state that nothing above"),
        (HEAD + "  %1, %1 = fork %0 2", "line 3, column 7: expected a state that nothing above"),
        (HEAD + "  %1 = text %1 \"\"", "column 13: expected a state that a line above makes"),
        (HEAD + "  %1 = text %7 \"\"", "column 13: expected a state that a line above makes"),
        (HEAD + "  %01 = text %0 \"\"", "column 3: expected a state such as %1, found '%01"),
        (HEAD + "  %1 = text %-1 \"\"", "column 13: expected a state such as %1"),
        (HEAD + f"  %{'9' * 99} = text %0", "column 3: expected a state such as %1"),
        (HEAD + "  %1 = text %0", "expected a text in double quotes, found the end"),
        (HEAD + '  %1 = text %0 "a', "column 18: expected a closing quote"),
        (HEAD + '  %1 = text %0 "a\nb"', "column 18: expected a closing quote"),
        (HEAD + r'  %1 = text %0 "\q"', "column 17: .*one of the escapes"),
        (HEAD + r'  %1 = text %0 "\U00110000"', "expected a code point of at most 10ffff"),
        (HEAD + '  %1 = text %0 "a" [x=1]', "expected the end of the line"),
        (HEAD + "  %1 = gen %0 x", "expected '->', found 'x'"),
        (HEAD + "  %1 = gen %0 -> x [tokens=1]", r"expected an option of gen \(max_tokens"),
        (HEAD + "  %1 = gen %0 -> x [n=1, n=2]", "expected n once only"),
        (HEAD + "  %1 = gen %0 -> x [n=1", "expected ']', found the end"),
        (HEAD + "  %1 = gen %0 -> x [n=1.5]", "expected an integer, found '1.5]'"),
        (HEAD + "  %1 = gen %0 -> x [n=None]", "expected an integer, found 'None]'"),
        (HEAD + "  %1 = gen %0 -> x [top_p=1e999]", "a number that a float can hold"),
        (HEAD + "  %1 = gen %0 -> x [top_p=nan]", "expected a number"),
        (HEAD + "  %1 = gen %0 -> x [stop=[[]]]", "expected a text in double quotes"),
        (HEAD + "  %1 = gen %0 -> x [ignore_eos=1]", "expected True or False"),
        (HEAD + f"  %1 = gen %0 -> x [seed={'9' * 5000}]", "at most 400 decimal digits"),
        (HEAD + "  %1 = set_var %0 -> x eval(1)", "expected a value: None, True.*found 'eval"),
        (HEAD + "  %1 = set_var %0 -> x <a", "expected '>'"),
        (HEAD + "  %1 = ref %0 x[-1]", r"expected an index such as \[0\]"),
        (HEAD + "  %1 = ref %0 x [of=%7]", "expected a state that a line above makes"),
        (HEAD + "  %1, %2 = fork %0 3", "expected 2, the number of states that are made"),
        (HEAD + "  fork %0 0", "expected the states that a fork makes"),
        (HEAD + '  text %0 "a"', r"makes 0 states \(text makes one state\)"),
        (HEAD + "  %1, %2 = gen %0 -> x", r"makes 2 states \(gen makes one state\)"),
        (HEAD + "  %1 = return %0", r"makes 1 states \(return makes nothing\)"),
        (HEAD + '  %1 = join %0 [mode="all"]', 'expected "gather_variable" or'),
    ],
)  # fmt: skip
def test_a_text_that_cannot_be_read_is_refused_at_its_place(text, message):
    with pytest.raises(lm.ProgramError, match=message):
        parse_program(text)


def test_spaces_and_blank_lines_are_free():
    text = '\n\n  program  p ( a :str )\r\n\n%0=start\n \n%1=gen %0->x[n = 2,stop = ["a" ]]  \n\n'
    gen = ir.Gen(0, 1, "x", n=2, stop=("a",))
    assert parse_program(text) == program(gen, parameters=(ir.Parameter("a", "str"),))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 2**20,
        "program p(" + "(" * 2**20,
        "program p(a: " + "[" * 2**20,
        "program p(a: " + "a[" * 2**19,
        "program p(" + "a," * 2**16,
        "program " * 2**17,
        HEAD + "  %1 = set_var %0 -> x " + "<" * 2**20,
        HEAD + "  %1 = gen %0 -> x [stop=" + "[" * 2**20,
        HEAD + "  %1 = ref %0 x" + "[0]" * 2**18 + "[",
        HEAD + '  %1 = text %0 "' + "\\\\" * 2**19,
        HEAD + "  " + "%1, " * 2**18,
        HEAD + "  " + ", ".join(f"%{i}" for i in range(1, 2**17)) + " = fork %0 5",
        HEAD + "\n" * 2**20 + "x",
        HEAD + " " * 2**20 + "x",
        "\r" * 2**20,
        "\0" * 2**20,
        "é" * 2**20,
        "\ud800" * 2**20,
    ],
    ids=range(18),
)
def test_hostile_texts_end_soon_in_a_typed_error(text):
    began = time.thread_time()
    with pytest.raises(lm.ProgramError) as caught:
        parse_program(text)
    assert time.thread_time() - began < 5
    assert len(str(caught.value)) < 1_000


def test_a_text_that_is_too_long_is_not_read(monkeypatch):
    monkeypatch.setattr("lmlang.frontend.parser.MAX_CHARACTERS", 10)
    with pytest.raises(lm.ProgramError, match="has 11 characters: at most 10 are read"):
        parse_program("program p()")


@settings(max_examples=100, deadline=None)
@given(programs(size=8), st.randoms(use_true_random=False), st.integers(1, 5))
def test_damaged_texts_are_read_or_refused_and_nothing_else(program, rng: random.Random, edits):
    text = list(print_program(program))
    for _ in range(edits):
        at = rng.randrange(len(text) + 1)
        text[at : at + rng.randrange(3)] = rng.choice(['"', "[", "%0", "\n", " ", "9", "\\", "x"])
    try:
        parsed = parse_program("".join(text))
    except lm.ProgramError:
        return
    assert parse_program(print_program(parsed)) == parsed


@pytest.mark.parametrize("text", [None, 3, b"program p()"])
def test_what_is_no_text_is_not_read(text):
    with pytest.raises(lm.ProgramTypeError, match="takes the text of a program, and this is a"):
        parse_program(text)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, "a NoneType is no program of IR"),
        (ir.Program("p", None), "the program's nodes are a NoneType"),
        (program(3), "an int is no node"),
        (program(ir.Text("0", 1, "a")), "state='0' is no value of the type int"),
        (program(ir.Text(0, 1, None)), "text=None is no value of the type str"),
        (program(ir.Select(0, 1, "x", 3)), "choices=3 is no value"),
        (program(ir.Gen(0, 1, "x", stop=3)), "stop=3 is no value"),
        (program(ir.Fork(0, 3)), "made=3 is no value"),
    ],
)
def test_bad_nodes_are_named_where_they_cannot_be_printed(made, message):
    with pytest.raises(lm.ProgramError, match=message):
        print_program(made)


def test_the_repr_of_a_program_is_short():
    assert repr(TIPS) == "<ir.Program 'tips': 10 nodes, shown by print_program>"
    assert repr(ir.Program("p", None)).startswith("<ir.Program 'p': 0 nodes")
    assert len(repr(dataclasses.replace(TIPS, name="n" * 10_000))) < 200
