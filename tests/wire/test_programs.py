"""Programs on the wire: what is written is read back; anything else is refused by its place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmlang import wire
from lmlang.errors import BackendError, Cancelled, LMLangError, WireError
from lmlang.protocol import (
    ChoiceScore,
    Event,
    Finish,
    Output,
    SamplingParams,
    Scores,
    Text,
    Usage,
)
from lmlang.wire import programs
from lmlang.wire.programs import AskedProgram, AskedRun, Told

keys = st.integers(0, 2**64 - 1)
texts = st.text(max_size=8)
ids = st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple)
items = st.one_of(
    st.builds(
        Event, st.integers(0, 99), ids, texts, st.just(()), st.none() | st.just(Finish("eos"))
    ),
    st.builds(
        Output, texts, ids, st.just(()), st.just(Finish("stop", "x")), st.just(Usage(3, 1, 2)),
        st.lists(st.builds(Text, texts), max_size=2).map(tuple),
    ),
    st.builds(Scores, st.lists(st.builds(ChoiceScore, ids, st.just(())), max_size=2).map(tuple),
              st.just(Usage(scored_tokens=2))),
)  # fmt: skip
told = st.builds(Told, texts, items, keys)
runs = st.builds(
    AskedRun,
    run_id=texts,
    seed=st.integers(0, 2**63 - 1),
    row_key=st.binary(max_size=20),
    params=st.builds(SamplingParams, max_tokens=st.integers(0, 99), stop=st.just(("a",))),
    n=st.integers(1, 9),
    return_logprob=st.booleans(),
    logprob_start_len=st.integers(-1, 9),
    top_logprobs_num=st.integers(0, 9),
    max_program_tokens=st.none() | st.integers(1, 2**53),
    deadline=st.none() | st.floats(0.001, 1e6),
    priority=st.integers(-9, 9),
    lora=st.none() | st.text(min_size=1, max_size=8),
    goes_on=st.booleans(),
)


@given(st.builds(AskedProgram, st.text(), runs, st.lists(told, max_size=3).map(tuple)))
def test_programs_are_read_as_they_were_written(asked):
    message = wire.loads(wire.dumps(programs.program_to_wire(asked)))
    assert programs.program_from_wire(message) == asked


@given(told)
def test_what_is_told_is_read_as_it_was_written(given_):
    message = wire.loads(wire.dumps(programs.told_to_wire(given_)))
    assert programs.answer_from_wire(message) == given_


@pytest.mark.parametrize("key", [0, 7])
def test_errors_of_operations_are_told_apart_from_those_of_programs(key):
    read = programs.answer_from_wire(programs.told_to_wire(Told("0", Cancelled("why"), key)))
    assert isinstance(read, Told)
    assert (read.op, read.draw_key, type(read.item)) == ("0", key, Cancelled)
    whole = programs.answer_from_wire(wire.to_wire(BackendError("why", retryable=True)))
    assert isinstance(whole, LMLangError)
    assert programs.answer_from_wire(programs.end_to_wire()) is None


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ([], r"\$: "),
        ({"v": 1}, r"the field program"),
        ({"v": 2, "program": ""}, r"\$\.v"),
        ({"v": 1, "program": 1}, r"\$\.program"),
        ({"v": 1, "program": "", "more": 1}, "unknown field 'more'"),
        ({"v": 1, "program": "", "run": {"seed": -1}}, r"\$\.run: seed=-1"),
        ({"v": 1, "program": "", "run": {"row_key": "0G"}}, r"\$\.run\.row_key"),
        ({"v": 1, "program": "", "run": {"row_key": "00" * 300}}, r"\$\.run: .*at most 256 bytes"),
        ({"v": 1, "program": "", "run": {"deadline": 0}}, r"\$\.run: deadline"),
        ({"v": 1, "program": "", "run": {"params": {"top_p": 2}}}, r"\$\.run\.params: top_p"),
        ({"v": 1, "program": "", "known": [{"op": "0"}]}, r"\$\.known\[0\]"),
        ({"v": 1, "program": "", "known": [{"op": "0", "draw_key": -1, "scores": {}}]}, "known"),
    ],
)
def test_anything_else_is_refused_by_its_place(message, place):
    with pytest.raises(WireError, match=place):
        programs.program_from_wire(message)
