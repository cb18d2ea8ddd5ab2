from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.frontend import ir
from lmlang.frontend.passes import merge_text, own_refs, prefix, shared_prefix
from lmlang.frontend.printer import parse_program, print_program
from lmlang.protocol import EndTurn, Text, Turn
from tests.frontend.random_ir import programs, texts


def lines(*nodes):
    head = "program p()\n  %0 = start\n"
    return parse_program(head + "".join(f"  {line}\n" for line in nodes))


def contents(program):
    """For each state what its line holds up to there: texts joined, other nodes without ids."""
    found = {}
    for node in program.nodes:
        if isinstance(node, ir.Start):
            found[node.made] = ()
        elif isinstance(node, ir.Fork):
            found.update((made, (*found[node.state], i)) for i, made in enumerate(node.made))
        elif not isinstance(node, ir.Return):
            before = found[node.state]
            if isinstance(node, ir.Text):
                same = before and isinstance(before[-1], str)
                found[node.made] = (
                    (*before[:-1], before[-1] + node.text) if same else (*before, node.text)
                )
            else:
                shown = [
                    found[v] if name == "of" and v is not None
                    else tuple(found[c] for c in v) if name == "children"
                    else v
                    for name in node.__slots__
                    if name not in ("state", "made")
                    for v in [getattr(node, name)]
                ]  # fmt: skip
                found[node.made] = (*before, (type(node), *shown))
    return found


# ------------------------------------------------------------------------------- merge_text


def test_adjacent_texts_are_joined_along_a_line():
    merged = merge_text(
        lines(
            '%1 = text %0 "a"',
            "%2, %3 = fork %1 2",
            '%4 = text %1 "b"',
            '%5 = text %2 "c"',
            '%6 = text %4 "d"',
            '%7 = text %5 "e"',
            "%8 = join %6 %7 %3",
            '%9 = text %8 "f"',
            '%10 = text %9 ""',
            "return %10",
        )
    )
    assert print_program(merged).splitlines()[2:] == [
        '  %1 = text %0 "a"',
        "  %2, %3 = fork %1 2",
        '  %6 = text %1 "bd"',
        '  %7 = text %2 "ce"',
        "  %8 = join %6 %7 %3",
        '  %10 = text %8 "f"',
        "  return %10",
    ]


def test_a_joined_text_has_the_source_of_its_beginning():
    program = lines('%1 = text %0 "a"', '%2 = text %1 "b"', '%3 = text %2 "c"')
    program.sources.update({1: "a.py:1", 2: "a.py:2", 3: "a.py:3"})
    assert merge_text(program).sources == {3: "a.py:1"}


@settings(max_examples=100, deadline=None)
@given(programs(size=30))
def test_merging_keeps_the_meaning_and_a_second_time_changes_nothing(program):
    merged = merge_text(program)
    assert merge_text(merged) == merged
    assert merged.nodes[:1] == program.nodes[:1]
    before, after = contents(program), contents(merged)
    assert {state: before[state] for state in after} == after
    left = {type(node) for node in program.nodes} - {type(node) for node in merged.nodes}
    assert not left
    lost = [n for n in program.nodes if not set(ir.made_by(n)) <= after.keys()]
    assert all(isinstance(node, ir.Text) for node in lost)


def test_many_texts_take_linear_time():
    nodes = [ir.Text(i, i + 1, "a") for i in range(100_000)]
    merged = merge_text(ir.Program("p", (ir.Start(), *nodes)))
    assert merged.nodes == (ir.Start(), ir.Text(0, 100_000, "a" * 100_000))


# --------------------------------------------------------------------------------- own_refs


def test_refs_name_a_state_only_where_they_must():
    program = lines(
        "%1 = gen %0 -> x",
        "%2, %3 = fork %1 2",
        "%4 = ref %2 x [of=%1]",
        "%5 = gen %4 -> y",
        "%6 = ref %1 y [of=%5]",
        "%7 = gen %6 -> x",
        "%8 = ref %7 x [of=%1]",
        "%9 = join %8 %5 %3",
        "%10 = ref %9 y[0] [of=%9]",
        "%11 = ref %10 x [of=%7]",
        "return %11",
    )
    refs = [node.of for node in own_refs(program).nodes if isinstance(node, ir.Ref)]
    assert refs == [None, 5, 1, None, None]


# ----------------------------------------------------------------------------------- prefix


def test_a_prefix_ends_before_what_only_a_run_knows():
    program = lines(
        "%1 = set_var %0 -> x 1",
        "%2 = role %1 system",
        '%3 = text %2 "a"',
        "%4, %5 = fork %3 2",
        '%6 = text %4 "not this"',
        '%7 = text %3 "b"',
        "%8 = end_role %7 system",
        "%9 = join %8 %6 %5",
        "%10 = scope %9 v",
        '%11 = text %10 "c"',
        "%12 = gen %11 -> y",
        '%13 = text %12 "d"',
    )
    assert prefix(program) == (Turn("system"), Text("ab"), EndTurn(), Text("c"))


def test_appended_children_end_a_prefix():
    program = lines(
        '%1 = text %0 "a"',
        "%2 = fork %1 1",
        '%3 = join %1 %2 [mode="concate_and_append"]',
        '%4 = text %3 "b"',
    )
    assert prefix(program) == (Text("a"),)


def with_texts(*parts):
    nodes = [ir.Text(i, i + 1, part) for i, part in enumerate(parts)]
    return ir.Program("p", (ir.Start(), *nodes))


def test_what_prompts_share():
    assert shared_prefix([]) == ()
    assert shared_prefix([with_texts("ab", "c")]) == (Text("abc"),)
    assert shared_prefix([with_texts("abc"), with_texts("a", "bd")]) == (Text("ab"),)
    assert shared_prefix([with_texts("abc"), with_texts("abc")]) == (Text("abc"),)
    assert shared_prefix([with_texts("abc"), with_texts("x")]) == ()
    assert shared_prefix([with_texts("abc"), with_texts()]) == ()
    turn = ["%1 = role %0 user", '%2 = text %1 "a"']
    more = [*turn, "%3 = end_role %2 user"]
    assert shared_prefix([lines(*turn), lines(*more)]) == (Turn("user"), Text("a"))
    assert shared_prefix([lines(*turn), with_texts("a")]) == ()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(texts, max_size=4), min_size=1, max_size=4))
def test_the_shared_prefix_of_texts_is_the_longest(rows):
    wholes = ["".join(row) for row in rows]
    shared = shared_prefix(with_texts(*row) for row in rows)
    text = "".join(segment.text for segment in shared)
    assert all(whole.startswith(text) for whole in wholes)
    longer = {whole[: len(text) + 1] for whole in wholes}
    assert len(longer) > 1 or longer == {text}
    assert len(shared) == bool(text)
