import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmlang as lm
from lmlang import markup
from lmlang.frontend import view_tree
from lmlang.frontend.logged import Sample
from lmlang.frontend.story import forced_parts, kind_of, pieces
from lmlang.frontend.view_diff import Stretch, _aligned
from lmlang.frontend.view_tokens import token_rows
from lmlang.protocol import Provenance, Usage
from lmlang.testing import RandomBackend, ScriptedBackend
from tests.frontend.by_hand import ByHand
from tests.frontend.html_pages import checked_page, checked_text
from tests.frontend.test_runlog import backends, programs, ran
from tests.frontend.test_runlog_json import logs

HOSTILE = "<script>alert('x')</script>&amp;\x1b[31m\x00\u202e\t</pre>"


def views(log):
    return {"transcript": log.transcript(), "tokens": log.tokens(), "tree": log.tree()}


# ------------------------------------------------------------------------- any log


@settings(max_examples=60)
@given(logs, st.sampled_from([20, 80]))
def test_any_log_is_shown_within_its_bounds_and_escaped(log, width):
    for view in views(log).values():
        checked_text(view.text(width), width)
        checked_page(view.html())
    checked_page(log._repr_mimebundle_()["text/html"])
    checked_page(lm.diff(log, log).html())
    assert lm.diff(log, log).equal


def test_the_name_of_an_errors_class_is_escaped_wherever_it_stands():
    @lm.function
    def program(s):
        with s.var_scope("x"):
            s += lm.gen("a")

    kind = type("\x1b[2J", (Exception,), {})
    backend = ScriptedBackend(fail_at=0, error=kind("no"))
    (state,) = program.run_batch([()], on_error="return", backend=backend)
    log = state.run_log()
    error = log.failed()[0].error
    failed = [dataclasses.replace(each, status="failed", error=error) for each in log.operations]
    for view in views(dataclasses.replace(log, operations=tuple(failed))).values():
        checked_text(view.text(80), 80)
        checked_page(view.html())


def test_the_name_of_what_was_thought_about_is_escaped():
    @lm.function
    def program(s):
        s += "x" + lm.gen("\x1b[2J", think=5, max_tokens=5)

    log = program(backend=ScriptedBackend(["hm</think>", "yes"])).run_log()
    assert "thought before \\x1b[2J: hm" in log.transcript().text(80)
    for view in views(log).values():
        checked_text(view.text(80), 80)
        checked_page(view.html())


@settings(max_examples=60)
@given(programs, backends, st.none() | st.integers(1, 20))
def test_the_views_of_a_run_agree_on_its_tokens(steps, backend, most):
    state, _ = ran(steps, backend, max_program_tokens=most, seed=3)
    log = state.run_log()
    usage = log.usage
    sums = f"tokens: {usage.prompt_tokens:,} prompt ({usage.cached_tokens:,} cached), "
    for view in views(log).values():
        assert view.text(200).split("\n")[1].startswith(sums)
        assert sums in checked_page(view.html())
    lines = [line for _, line in view_tree._lines(log.story())]
    assert sum((line.usage or Usage() for line in lines), Usage()) == usage
    told = [step.operation for step in log.story().steps if step.operation is not None]
    assert {id(each) for each in told} == {id(each) for each in log.operations}
    shown = log.transcript().text(100_000)
    for each in log.operations:
        assert each.status != "done" or each.kind != "gen" or f"⟦{each.name}:" in shown


def test_hostile_text_is_text_everywhere():
    @lm.function
    def program(s):
        s += lm.user(HOSTILE)
        s += lm.gen("x", max_tokens=999, top_logprobs_num=1, return_text_in_logprobs=True)
        s[HOSTILE] = HOSTILE
        s += lm.select(HOSTILE, [HOSTILE, "b"])

    backend = ScriptedBackend([HOSTILE], scores=lambda prompt, choice: -len(choice))
    state = program(backend=backend)
    log = state.run_log()
    for view in views(log).values():
        checked_text(view.text(80), 80)
        assert "<script>alert('x')</script>" in checked_page(view.html()) + log.tree().text(200)
    assert "<script>alert('x')</script>&amp;\\x1b[31m" in checked_page(log.transcript().html())
    for found in (state, log, state.program(), state.meta("x"), lm.diff(state, log)):
        bundle = found._repr_mimebundle_()
        checked_page(bundle["text/html"])
        assert "\x1b" not in bundle["text/plain"]
    with pytest.raises(lm.ProgramTypeError, match="diff: an int is no result"):
        lm.diff(state, 3)


# ------------------------------------------------------------------------- what they say


def test_a_transcript_has_turns_variables_types_and_what_was_forced():
    @lm.function
    def program(s):
        s += lm.user("How many?")
        with s.assistant():
            s += "About " + lm.gen("n", type=int) + lm.gen("word", regex="leg(s|gings)", stop="!")
            s += lm.select("ok", ["yes", "no"])
            s["kept"] = 3

    backend = ScriptedBackend(["42 ", "legs"], scores={"yes": -1.0, "no": -2.0})
    log = program(backend=backend).run_log()
    assert log.transcript().text(60).split("\n")[4:] == [
        "── user ──",
        "How many?",
        "── assistant ──",
        "About ⟦n: int 42⟧⟦word: /leg(s|gings)/ ‹leg›s⟧⟦ok: one of 2",
        "yes⟧",
        "· kept = 3",
        "",
        "⟦name: …⟧ was generated or chosen; ‹…› was forced by its",
        "constraint",
    ]
    page = log.transcript().html()
    assert ">leg</u>" in page
    assert "underline dotted" in page


def test_a_transcript_of_a_branch_has_its_own_part_alone():
    @lm.function
    def program(s):
        s += "shared "
        forks = s.fork(2)
        forks += lm.gen("x")
        s["a"] = forks[1].run_log().transcript("0/fork0.1").text(80)
        return forks

    state = program(backend=ScriptedBackend(["one", "two"]))
    text = state.ret_value[1]._repr_mimebundle_()["text/plain"]
    assert "⟦x: two⟧" in text
    assert "one" not in text.split("\n")[2]
    assert "shared" not in text


def test_the_path_of_no_state_is_told():
    @lm.function
    def program(s):
        s += "a" + lm.gen("x")
        s.fork(2)
        s.fork(3)[2].fork(1)

    log = program(backend=ScriptedBackend()).run_log()
    assert "⟦x:" not in log.transcript("2/fork1.2/0/fork0.0").text(80)
    for path in ("1/fork0.2", "1/fork1.0", "2/fork1.-1", "2", "x"):
        with pytest.raises(lm.CaptureError, match=r"there are 1/fork0\.0, 1/fork0\.1, 2/fork1\.0"):
            log.transcript(path)


@pytest.mark.parametrize("view", ["transcript", "tokens", "tree"])
def test_runs_that_go_on_failed_or_were_cancelled_are_shown(view):
    backend = ByHand()

    @lm.function
    def program(s):
        s += lm.gen("x") + lm.gen("y") + lm.gen("z")

    state = program(backend=backend, stream=True)
    backend.say("abc")
    shown = views(state.run_log())[view].text(80)
    assert "running" in shown
    assert "abc" in shown or view == "tokens"
    state.cancel()
    with pytest.raises(lm.Cancelled):
        state.sync()
    assert "cancelled" in views(state.run_log())[view].text(80)
    (state,) = program.run_batch([()], backend=ScriptedBackend(fail_at=1), on_error="return")
    shown = views(state.run_log())[view].text(120)
    assert "failed: BackendError: call 1 was scripted to fail." in shown
    assert "skipped" in shown


def test_tokens_tell_of_probabilities_alternatives_and_masks():
    @lm.function
    def program(s):
        s += lm.gen("x", regex="ab?c", temperature=0)

    log = program(backend=ScriptedBackend(["abc"])).run_log()
    told = log.tokens().text(100)
    for keyword in ("return_logprob=True", "top_logprobs_num=5", "provenance=True"):
        assert keyword in told
    (operation,) = log.operations
    (sample,) = operation.samples
    marks = (
        Provenance(True, 1, 0.9, ord("z"), ""),
        Provenance(False, 2, 0.6, ord("q"), ""),
        Provenance(True, 1, 0.0, ord("c"), ""),
    )
    sample = dataclasses.replace(
        sample,
        tokens=tuple(b"abc"),
        logprobs=(-0.1, -0.2, -0.3),
        probs=(1.0, 0.25, 1.0),
        top_logprobs=tuple(((ord("z"), -0.05), (token, -0.1)) for token in b"abc"),
        provenance=marks,
    )
    operation = dataclasses.replace(operation, samples=(sample,))
    spelling = tuple((token, chr(token)) for token in b"abcqz")
    log = dataclasses.replace(log, operations=(operation,), spelling=spelling)
    rows = [line.split() for line in log.tokens().text(100).split("\n")[4:8]]
    assert rows == [
        ["#", "token", "p", "unlikely", "alternatives", "masked", "mark"],
        ["0", '"a"', "1.00", '"z"', "0.95", "90.0%", "forced", "▲", '"z"'],
        ["1", '"b"', "0.25", "▪▪", '"z"', "0.95", "60.0%", "▲", '"q"'],
        ["2", '"c"', "1.00", '"z"', "0.95", "0.0%", "forced"],
    ]
    drawn = dataclasses.replace(operation, draw_keys=(1,))
    log = dataclasses.replace(log, operations=(drawn,))
    assert '△ "q"' not in log.tokens().text(100)  # 0.6 masked is less than b's own 0.82
    sample = dataclasses.replace(sample, logprobs=(-0.1, -2.0, -0.3))
    drawn = dataclasses.replace(drawn, samples=(sample,))
    log = dataclasses.replace(log, operations=(drawn,))
    assert '△ "q"' in log.tokens().text(100)
    assert "<sup>△</sup>" in log.tokens().html()
    for allowed, mark in ((ord("q"), ""), (ord("c"), '▲ "q"')):
        tops = tuple([((allowed, 0.6), (token, 0.4)) for token in b"abc"])
        row = list(token_rows(dataclasses.replace(sample, top_probs=tops), dict(spelling), False))
        assert row[1].mark == mark


def test_thoughts_are_shown_apart_and_counted():
    @lm.function
    def program(s):
        s += lm.gen("x", think=8, max_tokens=4)

    log = program(backend=ScriptedBackend(["hm <b>\n", "yes"])).run_log()
    assert "· thought before x: hm <b>" in log.transcript().text(80).split("\n")
    assert "thought before x: hm <b>" in checked_page(log.transcript().html())
    hidden = log.usage.generated_tokens - len(log.operations[0].samples[0].tokens)
    assert f"{hidden} of them of a hidden thought" in log.tokens().text(100)


def test_a_select_lists_its_choices_with_what_was_taken_first():
    @lm.function
    def program(s):
        s += lm.select("x", ["a", "bb", "c"])

    log = program(backend=ScriptedBackend(scores={"a": -2.0, "bb": -1.0, "c": -3.0})).run_log()
    lines = log.tokens().text(80).split("\n")
    assert [line.split()[-3] for line in lines[6:9]] == ["bb", "a", "c"]
    assert lines[6].startswith("●")


def test_many_branches_are_summed_in_one_line():
    @lm.function
    def program(s):
        forks = s.fork(40)
        forks += lm.gen("x")
        forks.join()

    log = program(backend=ScriptedBackend()).run_log()
    lines = [line for _, line in view_tree._lines(log.story())]
    (hidden,) = [line for line in lines if "28 more branches left out" in line.what]
    assert hidden.usage.generated_tokens == sum(
        each.usage.generated_tokens for each in log.operations[13:41]
    )
    assert "… 28 more branches left out" in log.transcript().text(80)
    assert "… 28 more branches left out" in checked_page(log.tree().html())


def test_a_deep_nest_of_forks_exhausts_nothing():
    @lm.function
    def program(s):
        states = [s]
        for _ in range(1_500):
            states += states[-1].fork(1)
        states[-1] += lm.gen("x")

    log = program(backend=ScriptedBackend()).run_log()
    for view in views(log).values():
        checked_text(view.text(80), 80)
        checked_page(view.html())


def test_a_page_says_what_it_leaves_out():
    @lm.function
    def program(s):
        for i in range(300):
            s += f"line {i} <" + lm.gen("x", max_tokens=900)

    log = program(backend=ScriptedBackend(lambda prompt: "&<>" * 200)).run_log()
    for name, view in views(log).items():
        shown = checked_page(view.html())
        assert f"… more was left out: print(log.{name}()) shows it" in shown


def test_a_short_page_leaves_nothing_out():
    @lm.function
    def program(s):
        s += lm.gen("x")

    for view in views(program(backend=ScriptedBackend()).run_log()).values():
        assert "left out" not in view.html()


# ------------------------------------------------------------------------- its parts


@given(st.text(max_size=20), st.data())
def test_pieces_of_tokens_make_up_the_text_however_they_cut_it(text, data):
    text = text.encode("utf-8", "replace").decode()
    whole, tokens, at = text.encode(), [], 0
    while at < len(whole):
        size = data.draw(st.integers(1, 5))
        tokens.append(whole[at : at + size])
        at += size
    spelling = {}
    for i, token in enumerate(tokens):
        try:
            spelling[i] = token.decode()
        except UnicodeDecodeError:
            spelling[i] = "".join(f"\\x{byte:02x}" for byte in token)
    ids = tuple(range(len(tokens)))
    found = pieces(Sample(text, ids, (0.0,) * len(ids), None, None), spelling)
    assert "".join(found) == text
    assert len(found) == len(ids)
    assert pieces(Sample(text, (-1,), (0.0,), None, None), spelling) is None


@pytest.mark.parametrize(
    "given_type", [int, bool, list[int], dict[str, bool], "a(b|cd)e*f", "x{3}y?"]
)
def test_what_was_forced_is_found_without_being_told(given_type):
    asked = {"regex": given_type} if isinstance(given_type, str) else {"type": given_type}

    @lm.function
    def program(s):
        s += lm.gen("x", max_tokens=60, **asked)

    for seed in range(5):
        found = []
        for told in (True, False):
            asked |= {"provenance": told, "return_text_in_logprobs": told}
            log = program(backend=RandomBackend(), seed=seed).run_log()
            (operation,) = log.operations
            parts = forced_parts(operation, log.recording.nodes[1], dict(log.spelling))
            assert "".join(text for text, _ in parts) == operation.text
            found.append(parts)
            forced = sum(len(text) for text, flag in parts if flag)
            assert forced == operation.usage.forced_tokens
        assert found[0] == found[1]


def test_constraints_have_names():
    @lm.function
    def program(s):
        for keywords in (
            {},
            {"type": int},
            {"regex": "a" * 99},
            {"regex": "\\d\n"},
            {"json_schema": {"title": "Card", "type": "object"}},
            {"json_schema": {"type": "array"}},
            {"ebnf": 'root ::= "x"'},
            {"type": int | None},
        ):
            s += lm.gen("x", **keywords)
        s += lm.select("y", ["a", "b"])

    named = [kind_of(node) for node in program.trace().nodes[1:-1]]
    assert named == [
        *("", "int", "/" + "a" * 26 + "…", r"/\d\n/", "Card", "array", "grammar"),
        *(named[7], "one of 2"),
    ]
    assert "int" in named[7]
    shown = str(program(backend=RandomBackend(1), seed=1).run_log().tree())
    assert r"gen x: /\d\n/" in shown


tokens = st.lists(st.sampled_from(["a", "b", "<", " c"]), max_size=12)


@given(tokens, tokens)
def test_aligned_tokens_are_those_of_both_sides(left, right):
    found = list(_aligned(left, right))
    assert "".join(s.text for s in found if s.side != "second") == "".join(left)
    assert "".join(s.text for s in found if s.side != "first") == "".join(right)
    assert sum(s.tokens for s in found if s.side != "second") == len(left)
    assert all(s.side == "both" for s in found) == (left == right)


def test_a_diff_says_where_outputs_part():
    @lm.function
    def program(s, more):
        s += lm.gen("x", return_text_in_logprobs=True) + lm.gen("same")
        if more:
            s += lm.gen("extra")

    def run(answer, more=False, **keywords):
        return program(more, backend=ScriptedBackend([answer, "s", "e"]), seed=1, **keywords)

    found = lm.diff(run("the cat sat"), run("the dog sat", True, temperature=0.5))
    assert [each.equal for each in found.outputs] == [False, True, False]
    assert (found.equal, found.outputs[0].parts) == (False, 4)
    assert found.outputs[0].why == '"c" 0.37 | "d" 0.37'
    assert "temperature: 1.0 | 0.5" in found.settings
    assert "the rows differ (by arguments or key), and their draws with them" in found.settings
    lines = found.text(80).split("\n")
    assert lines[0] == "1 of 3 outputs alike"
    assert "the {-cat-}{+dog+} sat" in found.text(80)
    assert "only the second run has it" in found.text(80)
    assert repr(found) == str(found)
    checked_text(found.text(20), 20)
    page = found.html()
    assert "<del " in page
    assert "<ins " in page
    assert lm.diff(run("a"), run("a").run_log()).equal
    assert str(lm.diff(run("a"), run("b")))


def test_a_diff_finds_the_token_where_only_one_run_has_told_what_it_reads_like():
    @lm.function
    def program(s, told):
        s += lm.gen("x", return_text_in_logprobs=told)

    one = program(True, backend=RandomBackend(1), seed=1, max_new_tokens=6).run_log()
    sample = dataclasses.replace(one.operations[0].samples[0], text="a light,", tokens=(5, 6, 7))
    operation = dataclasses.replace(one.operations[0], samples=(sample,), text="a light,")
    told = dataclasses.replace(
        one, operations=(operation,), spelling=((5, "a"), (6, " light"), (7, ","))
    )
    (compared,) = lm.diff(told, dataclasses.replace(told, spelling=())).outputs
    assert compared.stretches == (Stretch("both", "a light,", 3),)


def test_a_diff_tells_what_the_programs_wrote_and_asked_for():
    @lm.function
    def program(s, topic, most):
        s += f"Tell me about {topic}, shortly: " + lm.gen("x", max_tokens=most)

    def run(*arguments):
        return program(*arguments, backend=ScriptedBackend(["yes"]), seed=1)

    found = lm.diff(run("<dogs>", 8), run("cats", 8))
    assert "Tell me about{- <dogs>,-}{+ cats,+} shortly:" in found.text(80)
    assert found.equal
    assert " <dogs>," in checked_page(found.html())
    assert "what the programs asked for differs" not in found.settings
    found = lm.diff(run("cats", 9), run("cats", 8))
    assert found.written == ()
    assert "what the programs asked for differs" in found.settings


@given(st.lists(st.lists(st.text(max_size=30), min_size=3, max_size=3), min_size=1, max_size=5))
def test_tables_fit_whatever_they_hold(rows):
    shown = [[markup.line(cell) for cell in row] for row in rows]
    for width in (20, 40):
        checked_text("\n".join(markup.table(shown, [1], width)), width)


@given(st.text(), st.integers(20, 60))
def test_wrapped_lines_hold_all_of_a_text(text, width):
    lines = markup.wrapped(markup.plain(text), width, "│ ")
    assert all(markup.width(each) <= width for each in lines)
    kept = "".join(each.removeprefix("│").removeprefix(" ") for each in lines)
    assert kept.replace(" ", "") == markup.plain(text).replace("\n", "").replace(" ", "")


def test_text_goes_by_the_terminals_columns(monkeypatch):
    @lm.function
    def program(s):
        s += "word " * 40 + lm.gen("x")

    log = program(backend=ScriptedBackend()).run_log()
    for columns, width in (("40", 40), ("5", 20), ("500", 120)):
        monkeypatch.setenv("COLUMNS", columns)
        longest = max(map(len, str(log.transcript()).split("\n")))
        assert width - 8 < longest <= width
    assert repr(log.tree()) == str(log.tree())
