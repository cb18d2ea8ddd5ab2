import dataclasses
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmlang as lm
from lmlang.frontend import ir
from lmlang.frontend.runlog import Choice, Failure, LoggedOperation, RunLog, Sample
from lmlang.protocol import Provenance, SamplingParams, Usage
from lmlang.testing import ScriptedBackend
from tests.frontend.random_ir import programs


def joined(text):
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


texts = st.text(st.characters(exclude_categories=()), max_size=6).map(joined)
counts = st.integers(0, 2**63)
times = st.floats(allow_nan=False)
failures = st.builds(Failure, texts, texts)
usages = st.builds(Usage, counts, counts, counts, counts)
tops = st.lists(st.lists(st.tuples(counts, times), max_size=2).map(tuple), max_size=2).map(tuple)
samples = st.builds(
    Sample,
    text=texts,
    tokens=st.lists(counts, max_size=3).map(tuple),
    logprobs=st.lists(times, max_size=3).map(tuple),
    stop=st.none() | texts | st.integers(-1, 9),
    probs=st.lists(times, max_size=3).map(tuple),
    top_logprobs=tops,
    top_probs=tops,
    provenance=st.lists(
        st.builds(Provenance, st.booleans(), counts, times, counts, texts), max_size=2
    ).map(tuple),
    thought=texts,
    tries=counts,
)
operations = st.builds(
    LoggedOperation,
    path=texts,
    state=texts,
    branch=st.none() | counts,
    source=texts,
    name=st.none() | texts,
    children=counts,
    usage=usages,
    samples=st.lists(samples, max_size=2).map(tuple),
    choices=st.lists(st.builds(Choice, texts, times), max_size=2).map(tuple),
    draw_keys=st.lists(st.integers(0, 2**64 - 1), max_size=2).map(tuple),
    first_draw=counts,
    text=st.none() | texts,
    error=st.none() | failures,
    queued=times,
    submitted=st.none() | times,
    first_token=st.none() | times,
    finished=st.none() | times,
    made=st.integers(0, 20) | counts,
)
logs = st.builds(
    RunLog,
    program=texts,
    run_id=texts,
    model=texts,
    seed=st.integers(0, 2**63 - 1),
    row_key=st.binary(max_size=4).map(bytes.hex),
    params=st.builds(
        SamplingParams,
        max_tokens=st.integers(100, 1_000),
        temperature=st.floats(0, 1_000),
        stop=st.lists(st.text(min_size=1), max_size=2, unique=True).map(tuple),
        stop_token_ids=st.lists(st.integers(0, 9), max_size=2, unique=True).map(tuple),
        logit_bias=st.dictionaries(st.integers(0, 9), st.floats(-100, 100), max_size=2),
        min_tokens=st.integers(0, 100),
        ignore_eos=st.booleans(),
        stop_regex=st.lists(st.sampled_from(["a+", r"\d"]), max_size=2, unique=True).map(tuple),
        heal=st.booleans(),
        top_k=st.integers(-1, 9),
    ),
    n=counts,
    lora=st.none() | texts,
    max_program_tokens=st.none() | counts,
    began=times,
    seconds=st.none() | times,
    error=st.none() | failures,
    operations=st.lists(operations, max_size=3).map(tuple),
    recording=programs(),
    spelling=st.lists(st.tuples(counts, texts), max_size=2).map(tuple),
    version=st.just(2),
)


@settings(max_examples=100, deadline=None)
@given(logs)
def test_a_log_survives_json_exactly_and_prints_a_line_for_each_operation(log):
    text = log.to_json()
    assert RunLog.from_json(text) == log
    assert text.isascii()
    json.loads(text, parse_constant=pytest.fail)
    shown = str(log)
    assert len(shown.split("\n")) == len(log.operations) + 3 + (log.error is not None)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\xa0\u2028-\u202e\ud800-\udfff]", shown)
    assert len(shown.splitlines()) == len(shown.split("\n"))


LOG = RunLog(
    "tips",
    "0123",
    "scripted",
    7,
    "00ff",
    SamplingParams(stop="\n"),
    1,
    None,
    None,
    0.0,
    1.5,
    None,
    (
        LoggedOperation(
            "gen", "done", "0", "", None, "/x/tips.py:12", "tip", 0, Usage(1200, 200, 3),
            (Sample("a\n\x1b[31m", (1, 2, 3), (-0.5, -1.0, float("-inf")), "stop", "\n"),) * 3,
            (), (1, 2, 3), 0, "a\n\x1b[31m", None, 0.0, 0.25, 0.5, 1.5,
        ),
        LoggedOperation(
            "join", "done", "", "1/fork0.1", 1, "tips.py:14", None, 3, Usage(), (), (), (), 0,
            None, None, 0.5, None, None, 0.75,
        ),
        LoggedOperation(
            "select", "failed", "1/fork0.1/22/fork123.4567/2", "", None, "tips.py:15", "a b" * 9,
            0, Usage(), (), (Choice("x", -0.5),), (), 0, None, Failure("ModelError", "no\nmore"),
            0.5, 0.6, None, 0.7,
        ),
        LoggedOperation(
            "set", "skipped", "", "", None, "tips.py:16", "v", 0, Usage(), (), (), (), 0, "x",
            None, 0.5, None, None, None,
        ),
    ),
    ir.Program("tips", (ir.Start(), ir.Text(0, 1, "x")), sources={1: "tips.py:9"}),
)  # fmt: skip

TABLE = r"""
tips on scripted: 4 operations, 1,500.0 ms; run 0123, seed 7
tokens: 1,200 prompt (200 cached), 3 generated, 0 scored
path                      source      kind    name                      prompt  cached  new       ms  text
0                         tips.py:12  gen     tip                        1,200     200    3  1,250.0  "a\n\x1b[31m" and 2 more
1/fork0.1                 tips.py:14  join                                                            3 states
…rk0.1/22/fork123.4567/2  tips.py:15  select  a ba ba ba ba ba ba ba …                         100.0  failed: ModelError: no\nmore
                          tips.py:16  set     v                                                       skipped
"""  # noqa: E501


def test_a_log_reads_as_a_table():
    assert str(LOG) == TABLE.strip("\n")
    assert repr(LOG) == "<RunLog of tips: 4 operations>"


def test_a_table_tells_which_outputs_were_closed_to_fit():
    @lm.function
    def two(s):
        s += lm.gen("a", regex=r"\[\d(, \d)*\]", max_tokens=8)
        s += lm.gen("b", regex=r"\d")

    lines = str(two(backend=ScriptedBackend(["[1, 2, 3, 4]", "5"])).run_log()).split("\n")
    assert lines[2] == "closed to fit max_tokens: 1 output"
    assert lines[4].endswith('"[1, 2]" (closed)')
    assert lines[5].endswith('"5"')


def test_a_table_counts_forced_tokens():
    operation = dataclasses.replace(LOG.operations[0], usage=Usage(2, 0, 9, forced_tokens=4))
    (_, tokens, *_) = str(dataclasses.replace(LOG, operations=(operation,))).split("\n")
    assert tokens == "tokens: 2 prompt (0 cached), 9 generated (4 forced), 0 scored"


def changed(*pointer, to):
    """The JSON of LOG with one place changed."""
    whole = place = json.loads(LOG.to_json())
    for step in pointer[:-1]:
        place = place[step]
    place[pointer[-1]] = to
    return json.dumps(whole)


def without(*pointer):
    whole = place = json.loads(LOG.to_json())
    for step in pointer[:-1]:
        place = place[step]
    del place[pointer[-1]]
    return json.dumps(whole)


FIRST = ("operations", 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON at line 1, column 1"),
        ('{"version":1,}', "not JSON at line 1, column"),
        ("null", "$: expected an object, found null"),
        ("[" * 1_000_000, "nested too deep"),
        ('{"version":' * 200_000, "nested too deep"),
        ('{"version":2,"operations":' + "[" * 500 + "]" * 500 + "}", "expected the field program"),
        ("9" * 1_000_000, "an integer of 1,000,000 digits"),
        ("1e999", "'1e999' is no finite number"),
        ("[NaN]", "NaN is no number of JSON"),
        ('{"version":1,"version":1}', "the key 'version' stands twice"),
        (changed("version", to=1), "has version 1, and this lmlang reads version 2"),
        (changed("version", to="1"), "$.version: expected an integer of at least 0, found '1'"),
        (changed("version", to=True), "$.version: expected an integer of at least 0, found true"),
        (without("version"), "$: expected the field version, found an object of 15"),
        (without("seed"), "expected the field seed"),
        (changed("x" * 99, to=1), "$: unknown field 'xxxx"),
        (changed("row_key", to="0"), "$.row_key: expected hexadecimal digits"),
        (changed("row_key", to="0g"), "$.row_key: expected hexadecimal digits"),
        (changed("row_key", to="00\n"), "$.row_key: expected hexadecimal digits"),
        (changed("params", "temperature", to=-1), "$.params: temperature=-1.0 is out of range"),
        (changed("params", "stop", to="x"), "$.params.stop: expected a list, found 'x'"),
        (changed("params", "stop_regex", to=["a("]), "$.params: the pattern 'a(' is no regular"),
        (
            changed("params", "logit_bias", to=[[1]]),
            "$.params.logit_bias[0]: expected a list of two",
        ),
        (changed("operations", to={}), "$.operations: expected a list, found an object of 0"),
        (changed(*FIRST, "kind", to="text"), "$.operations[0].kind: expected one of gen, select"),
        (changed(*FIRST, "status", to=[]), "$.operations[0].status: expected one of queued"),
        (
            changed(*FIRST, "branch", to=-1),
            "$.operations[0].branch: expected an integer of at least",
        ),
        (
            changed(*FIRST, "queued", to=None),
            "$.operations[0].queued: expected a number, found null",
        ),
        (
            changed(*FIRST, "queued", to=True),
            "$.operations[0].queued: expected a number, found true",
        ),
        (changed(*FIRST, "queued", to="Infinity"), "$.operations[0].queued: expected a number"),
        (changed(*FIRST, "draw_keys", to=["+000000000000001"]), "expected 16 hexadecimal digits"),
        (
            changed(*FIRST, "draw_keys", 2, to=3),
            "$.operations[0].draw_keys[2]: expected 16 hexadec",
        ),
        (
            changed(*FIRST, "samples", 1, "tokens", 0, to=1.0),
            "$.operations[0].samples[1].tokens[0]: ",
        ),
        (changed(*FIRST, "samples", 1, "stop", to=[]), ".samples[1].stop: expected an integer"),
        (
            changed(*FIRST, "usage", to=None),
            "$.operations[0].usage: expected an object, found null",
        ),
        (without(*FIRST, "usage", "cached_tokens"), ".usage: expected the field cached_tokens"),
        (changed("error", to={"type": "x"}), "$.error: expected the field message"),
        (changed("recording", "ir", to="program p("), "$.recording.ir: "),
        (changed("recording", "ir", to='program p()\n  %0 = start\n  %1 = text %2 ""'), ".ir: "),
        (changed("recording", "sources", to=[[1]]), "$.recording.sources[0]: expected a list of"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_what_is_no_log_is_refused_with_its_place(text, message):
    with pytest.raises(lm.WireError) as caught:
        RunLog.from_json(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_log_is_read_from_a_string():
    with pytest.raises(lm.ProgramTypeError, match="read from a string, not bytes"):
        RunLog.from_json(LOG.to_json().encode())


jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(st.data(), jsons)
def test_a_log_that_was_tampered_with_is_read_or_refused(data, to):
    whole = json.loads(LOG.to_json())
    place = whole
    while True:
        keys = range(len(place)) if isinstance(place, list) else sorted(place)
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], (list, dict)) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = to
    text = json.dumps(whole)[: data.draw(st.none() | st.integers(0, 5_000))]
    try:
        log = RunLog.from_json(text)
    except lm.WireError:
        return
    assert RunLog.from_json(log.to_json()) == log or "nan" in log.to_json()


def test_a_field_is_in_the_json_of_everything():
    sample = Sample(
        "a", (1,), (-1.0,), "eos", None, (0.5,), (((1, 0.5),),), (((1, 0.5),),),
        (Provenance(True, 1, 0.5, 1, ""),), "hm", 3,
    )  # fmt: skip
    operation = dataclasses.replace(LOG.operations[0], samples=(sample,))
    whole = json.loads(dataclasses.replace(LOG, operations=(operation,)).to_json())
    for kind, found in (
        (RunLog, whole),
        (LoggedOperation, whole["operations"][0]),
        (Sample, whole["operations"][0]["samples"][0]),
        (Usage, whole["operations"][0]["usage"]),
        (SamplingParams, whole["params"]),
    ):
        assert {field.name for field in dataclasses.fields(kind)} == found.keys()


def test_a_log_is_loaded_from_a_path_and_not_from_an_open_file():
    with pytest.raises(TypeError, match="PathLike"):
        RunLog.load(0)
