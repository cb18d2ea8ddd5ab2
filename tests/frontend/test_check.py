"""``f.check()``: each finding where it belongs, and none where a program is fine."""

import enum
import json
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pydantic
import pytest

import lmlang as lm
from lmlang.frontend import check, check_source
from lmlang.frontend.finding import CODES

HERE = Path(__file__)


def found(program, **known):
    return [(each.code, each.source.rpartition(":")[2]) for each in program.check(**known)]


def codes(program, **known):
    return [each.code for each in program.check(**known)]


def line_of(words):
    """The number of the only line of this file that ends with a remark."""
    lines = HERE.read_text().splitlines()
    (number,) = [n for n, line in enumerate(lines, 1) if line.rstrip().endswith(f"# {words}")]
    return str(number)


class Record(pydantic.BaseModel):
    name: str
    total: float


class Mood(enum.Enum):
    GLAD = "glad"
    SAD = "sad"


@lm.function
def fine(s, mail, question):
    s += lm.system("You answer mail of customers.")
    s += lm.user(mail + "\n\n" + question)
    s += lm.assistant(lm.select("mood", Mood))
    with s.user():
        s += "Who is it from?"
    s += lm.assistant(lm.gen("record", type=Record, max_tokens=60))
    forks = s.fork(2)
    forks += lm.user("A reply.") + lm.assistant(lm.gen("reply", max_tokens=40, temperature=0.8))
    forks.join()
    for reply in s["reply"]:
        s += reply + "\n"


def test_a_sound_program_has_no_warnings():
    assert [each for each in fine.check() if each.level != "note"] == []


@lm.function
def twice(s, topic):
    s += topic + lm.gen("a", max_tokens=4)
    s += "\n" + lm.gen("a", max_tokens=4)  # again
    for _ in range(2):
        s += "\n" + lm.gen("b", max_tokens=4)  # in a loop
    forks = s.fork(2)
    forks += "\n" + lm.gen("c", max_tokens=4)
    forks.join()


def test_names_that_are_set_twice():
    assert found(twice) == [("LM101", line_of("again")), ("LM101", line_of("in a loop"))]
    one, other = twice.check()
    assert "before, on line" in one.message
    assert "in each round of a loop" in other.message


@lm.function
def unused(s, topic, tone, _kept, *rest, **more):  # three arguments
    s += topic + lm.gen("a", max_tokens=4)


def test_arguments_that_nothing_uses():
    assert found(unused) == [("LM102", line_of("three arguments"))]
    assert "'tone'" in unused.check()[0].message


@lm.function
def misread(s, topic):
    s += topic + lm.gen("answer", max_tokens=4)
    if s["answer"] == "yes":
        return s["answr"]  # never reached by a trace
    return s.meta("asnwer"), s.text_of("answer")  # neither


@lm.function
def read_before(s):
    s["x"]  # read before it is set
    s += lm.gen("x", max_tokens=4)


@lm.function
def inner(s):
    s += lm.gen("from inner", max_tokens=4)


@lm.function
def open_names(s, names):
    for name in ("a", "b"):
        s += lm.gen(name, max_tokens=4)
    inner(s)
    return s["a"], s["from inner"]


@lm.function
def calling(s):
    s += lm.gen("a", max_tokens=4)
    inner(s)
    return s["from inner"]


KEPT = "It is " + lm.gen("kept", max_tokens=4)


def made():
    return lm.gen("made", max_tokens=4)


def a_tool(x: int) -> int:
    return x


@lm.function
def made_elsewhere(s):
    box = s.tools([a_tool])
    s += lm.user("Go.")
    with s.assistant():
        s += made() + box.call("step", max_tokens=90)
        if s["step"].run() > 0:
            s += KEPT
    return s["made"], s["kept"]


def test_reads_of_what_is_made_outside_of_the_body():
    assert "LM103" not in codes(made_elsewhere)


def test_reads_of_what_nothing_sets():
    assert ("LM103", line_of("never reached by a trace")) in found(misread)
    assert ("LM103", line_of("neither")) in found(misread)
    assert any("did you mean 'answer'?" in each.message for each in misread.check())
    assert ("LM103", line_of("read before it is set")) in found(read_before)
    assert "LM103" not in [*codes(open_names), *codes(calling)]


@lm.function
def lost(s):
    s += "A" + lm.gen("x", max_tokens=4)
    lm.gen("y", max_tokens=4)  # lost
    "text " + lm.user("z")  # lost too
    print("no expression", end="")


def test_expressions_that_are_never_appended():
    assert found(lost) == [("LM104", line_of("lost")), ("LM104", line_of("lost too"))]


@lm.function
def chosen(s):
    s += "A" + lm.select("x", ["only"])  # one
    s += "B" + lm.select("y", ["yes", "yes, please", "no"])  # a beginning
    s += "C" + lm.select("z", ["a", "ab"], choices_method=lm.token_length_normalized)
    s += lm.user("D") + lm.assistant(lm.select("w", ["a", "ab"]))


def test_choices():
    warned = [each for each in found(chosen) if each[0] != "LM113"]
    assert warned == [("LM105", line_of("one")), ("LM106", line_of("a beginning"))]


def test_many_choices_that_begin_others_are_one_finding():
    @lm.function
    def numbered(s):
        s += "The row is " + lm.select("row", [f"row {number}" for number in range(3_000)])

    (finding,) = [each for each in numbered.check() if each.code == "LM106"]
    assert finding.message.startswith("'row 10' begins with another choice, 'row 1', which")
    assert "(so do 2,989 more)" in finding.message


@lm.function
def counted(s):
    s += "There are " + lm.gen("n", type=int) + " of " + lm.gen("m", type=float)


def test_a_number_ends_by_itself():
    assert "LM114" not in codes(counted)


@lm.function
def tight(s):
    s += "A:" + lm.gen("x", type=Record, max_tokens=2)  # two tokens
    s += "B:" + lm.gen("y", type=Record, max_tokens=20)
    s += "C:" + lm.gen("z", regex="a{40}", max_tokens=3)  # three tokens
    s += "D:" + lm.gen("v", type=Literal["a", "b"])
    s += "E:" + lm.gen("w", type=Record)  # the run's
    s += "F:" + lm.gen("u")  # the run's too
    s += "G:" + lm.gen("t", stop="\n")


def test_budgets():
    assert found(tight) == [
        ("LM107", line_of("two tokens")),
        ("LM107", line_of("three tokens")),
        ("LM114", line_of("the run's")),
        ("LM110", line_of("the run's too")),
    ]
    assert "LM110" not in codes(tight.options(max_new_tokens=9))


def test_the_shortest_output_is_that_of_the_grammar():
    for pattern, shortest in (("a{40}", 40), ("é|ab", 2), ('"[a-z]*"', 2), ("x+y?", 1)):
        assert check._shortest(lm.grammar.Regex(pattern)) == shortest
    assert check._shortest(lm.grammar.JsonSchema.of({"type": "integer", "minimum": 10})) == 2


@lm.function
def order(s, email):
    s += "Mail: " + email + "\n"  # the mail first
    s += "Instruction. " * 20
    s += lm.gen("x", max_tokens=4)


@lm.function
def forked_order(s, email):
    s += "Instruction. " * 20 + "Mail: " + email
    forks = s.fork(4)
    forks += lambda i: "A question that all rows have. " * 10 + lm.gen("x", max_tokens=4)
    forks.join()


def test_what_rows_share_belongs_before_what_differs():
    assert ("LM108", line_of("the mail first")) in found(order)
    assert "LM108" not in codes(forked_order)
    assert "LM108" not in codes(order, email="known, so the same in all rows")


@lm.function
def form(s):
    asked = 0
    while asked < 8:
        s += f"Question {asked}:" + lm.gen(f"more{asked}", type=bool, max_tokens=6)
        asked += 1
        if not s[f"more{asked - 1}"]:  # the loop's
            break


@lm.function
def branching(s):
    s += "Tool:" + lm.select("tool", ["a", "b"])
    if s["tool"] == "a":  # the branch
        s += "A"


@lm.function
def reading(s, text):
    return len(text)  # just a use


def test_what_only_a_run_knows():
    (loop,) = [each for each in form.check() if each.code == "LM109"]
    assert (loop.level, loop.place[1]) == ("note", int(line_of("the loop's")))
    assert "the loop of line" in loop.message
    assert "data-dependent" in loop.message
    (branch,) = [each for each in branching.check() if each.code == "LM109"]
    assert branch.place[1] == int(line_of("the branch"))
    assert "the branch is data-dependent" in branch.message
    (use,) = [each for each in reading.check() if each.code == "LM109"]
    assert use.place[1] == int(line_of("just a use"))
    assert use.message.startswith("from here on")


@lm.function
def spaced(s, word):
    s += "Answer: " + lm.gen("x", max_tokens=4)  # a space
    s += "\nNumber: " + lm.gen("n", type=int, max_tokens=4)
    s += "\nAnswer: " + lm.gen("y", max_tokens=4, heal=True)
    s += "\n" + word + lm.gen("z", max_tokens=4, n=3, temperature=0)  # samples
    s += "\n" + word + lm.gen("w", max_tokens=4, n=3)


def test_spaces_and_samples():
    assert found(spaced) == [("LM111", line_of("a space")), ("LM112", line_of("samples"))]


@lm.function
def between(s):
    s += "Before.\n"  # between turns
    s += lm.user("A") + lm.assistant(lm.gen("x", max_tokens=4))
    s += "\n"


def test_text_between_turns():
    assert found(between) == [("LM113", line_of("between turns"))]


@lm.function
def raising(s):
    s += 3  # no text


def test_what_the_body_raises_is_a_finding():
    (only,) = raising.check()
    assert (only.code, only.level, only.place[1]) == ("LM100", "error", int(line_of("no text")))

    @lm.function
    def user_error(s):
        s += "a"
        raise KeyError("its own")

    (only,) = user_error.check()
    assert only.code == "LM100"
    assert "KeyError: 'its own'" in only.message


def test_methods_async_programs_and_those_without_source():
    class Bot:
        @lm.function
        def say(self, s, text, never):
            s += text + lm.gen("x", max_tokens=4)

    @lm.function
    async def waits(s, text):
        s += text + lm.gen("x", max_tokens=4)
        return await s.aget("y")

    assert codes(Bot().say) == ["LM102"]
    assert codes(waits) == ["LM103"]
    assert check_source.source_of(lambda s: s, 0) is None
    names: dict = {"lm": lm}
    exec("@lm.function\ndef f(s, never):\n    s += 'A: ' + lm.gen('x', max_tokens=3)\n", names)
    assert codes(names["f"]) == ["LM111"]


def test_findings_print_as_one_line_and_travel_as_json():
    for each in twice.check():
        assert str(each).count("\n") == 0
        assert f": {each.code} {CODES[each.code][0]}: " in str(each)
        assert json.loads(each.to_json())["message"] == each.message


def test_checking_needs_no_model():
    script = (
        "import sys, lmlang as lm\n"
        "f = lm.function(lambda s: s.__iadd__('A: ' + lm.gen('x', max_tokens=3)))\n"
        "assert [x.code for x in f.check()] == ['LM111']\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_every_code_is_found_by_some_test():
    told = HERE.read_text()
    for code in CODES:
        assert f'"{code}"' in told, code


@pytest.mark.parametrize("code", CODES)
def test_codes_have_a_level_and_a_meaning(code):
    level, meaning = CODES[code]
    assert level in ("error", "warning", "note")
    assert meaning
