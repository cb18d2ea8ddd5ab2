"""POST /lm/programs: whole programs of IR, and whatever else is sent there."""

import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lmlang as lm
from lmlang import wire
from lmlang.frontend import ir
from lmlang.frontend.printer import print_program
from lmlang.protocol import Event, Generation, Output, Scores, Tokens
from lmlang.server.config import ServerConfig
from lmlang.testing import RandomBackend, ScriptedBackend
from lmlang.wire.programs import AskedProgram, AskedRun, Told, answer_from_wire, program_to_wire
from tests.frontend.random_ir import programs as random_programs
from tests.server.harness import SECONDS, running, until, values
from tests.tiny import tiny_model

pytest.importorskip("fastapi")

TIPS = """program tips()
  %0 = start
  %1 = text %0 "Two tips: "
  %2, %3 = fork %1 2
  %4 = gen %2 -> tip [max_tokens=5]
  %5 = gen %3 -> tip [max_tokens=5]
  %6 = join %1 %4 %5 [mode="concate_and_append"]
  %7 = select %6 -> verdict ["hello", "world"]
  %8 = gen %7 -> end [max_tokens=3, n=2]
  return %8
"""


@lm.function
def tips(s):
    s += "Two tips: "
    forks = s.fork(2)
    forks += lm.gen("tip", max_tokens=5)
    forks.join("concate_and_append")
    s += lm.select("verdict", ["hello", "world"])
    s += lm.gen("end", max_tokens=3, n=2)


@pytest.fixture(scope="module")
def runtime():
    with lm.Runtime.over(*tiny_model(), kv_tokens=4_096, deterministic=True) as found:
        yield found


@pytest.fixture(scope="module")
def server(runtime):
    with running(runtime) as found:
        yield found


def asked(program, known=(), **run):
    return program_to_wire(AskedProgram(program, AskedRun(**run), tuple(known)))


def told_by(server, message, key=None):
    """What a server tells of a program, to its end."""
    with server.client(key) as client:
        answer = client.post("/lm/programs", json=message)
    assert answer.status_code == 200, answer.text
    *items, done = values(answer.text)
    assert done == "[DONE]"
    assert all(item["v"] == 1 for item in items)
    return [answer_from_wire(item) for item in items]


def error_of(server, message, status=400):
    with server.client() as client:
        answer = client.post("/lm/programs", json=message)
    assert answer.status_code == status, answer.text
    return wire.error_from_wire(answer.json())


def streamed(client, message, name="x"):
    headers = {"X-Request-Id": name}
    return client.stream("POST", "/lm/programs", json=message, headers=headers)


def outcomes(told):
    return {
        (each.op, each.draw_key): each.item
        for each in told
        if isinstance(each, Told) and isinstance(each.item, (Output, Scores))
    }


def test_a_whole_program_with_joins_is_one_round_trip(server, runtime):
    state = tips.run(backend=runtime, seed=5)
    found = told_by(server, asked(TIPS, seed=5, row_key=state._cursor.run.row_key))
    assert found[-1] is None
    texts = {}
    for (op, _), item in outcomes(found).items():
        texts.setdefault(op, []).append(item.text if isinstance(item, Output) else item.choices)
    assert sorted(texts) == ["0/fork0.0/0", "0/fork0.1/0", "1", "2"]
    log = state.run_log()
    generated = {operation.path: operation for operation in log.operations if operation.path}
    for op in ("0/fork0.0/0", "0/fork0.1/0", "2"):
        assert sorted(texts[op]) == sorted(sample.text for sample in generated[op].samples)
        keys = {key for path, key in outcomes(found) if path == op}
        assert keys == set(generated[op].draw_keys)
    (choices,) = texts["1"]
    logprobs = [sum(choice.logprobs) for choice in choices]
    assert logprobs == [choice.logprob for choice in generated["1"].choices]


def test_events_come_in_order_and_join_to_the_output(server):
    found = told_by(server, asked(TIPS, seed=5))
    for (op, key), item in outcomes(found).items():
        if isinstance(item, Output):
            events = [each.item for each in found if each and (each.op, each.draw_key) == (op, key)]
            assert events[-1] == item
            assert "".join(event.text for event in events[:-1]) == item.text
            assert sum((event.ids for event in events[:-1]), ()) == item.ids


class Seen:
    """A runtime that notes what it is asked for."""

    def __init__(self, backend):
        self._backend = backend
        self.requests = []
        self.ended = []

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def offer(self, request):
        self.requests.append(request)
        return self._backend.offer(request)

    def offer_score(self, request):
        self.requests.append(request)
        return self._backend.score(request)

    def end_run(self, run_id):
        self.ended.append(run_id)


def test_what_is_known_is_neither_computed_nor_told(runtime):
    seen = Seen(runtime)
    with running(seen) as server:
        whole = outcomes(told_by(server, asked(TIPS, seed=5)))
        assert len(seen.requests) == len(whole) == 5
        known = [Told(op, item, key) for (op, key), item in whole.items() if op != "2"]
        again = outcomes(told_by(server, asked(TIPS, known, seed=5)))
        assert [request.tag.op_path for request in seen.requests[5:]] == ["2", "2"]
        assert {key: item.text for key, item in again.items()} == {
            (op, key): item.text for (op, key), item in whole.items() if op == "2"
        }
        everything = [Told(op, item, key) for (op, key), item in whole.items()]
        assert told_by(server, asked(TIPS, everything, seed=5)) == [None]
        assert len(seen.requests) == 7


def test_a_program_without_generations_ends_at_once(server):
    assert told_by(server, asked("program x()\n  %0 = start\n")) == [None]


def test_an_operation_that_fails_is_told_and_others_go_on(server):
    program = (
        "program x()\n  %0 = start\n  %1 = text %0 \"hello\"\n  %2, %3 = fork %1 2\n"
        "  %4 = gen %2 -> a [stop_token_ids=[5000]]\n  %5 = gen %3 -> b [max_tokens=2]\n"
        "  %6 = gen %4 -> c\n"
    )  # fmt: skip
    found = told_by(server, asked(program))
    (failed,) = [each for each in found if each and isinstance(each.item, lm.LMLangError)]
    assert failed.op == "0/fork0.0/0"
    assert isinstance(failed.item, lm.ProgramError)
    assert failed.item.context is None
    assert {op for op, _ in outcomes(found)} == {"0/fork0.1/0"}
    assert found[-1] is None


def test_the_error_of_a_child_that_is_joined_ends_the_program(server):
    program = TIPS.replace("gen %2 -> tip [max_tokens=5]", "gen %2 -> tip [stop_token_ids=[5000]]")
    found = told_by(server, asked(program))
    assert isinstance(found[-1], lm.ProgramError)


class Quick(ScriptedBackend):
    """A backend that has said its first token before anybody can watch, and says no other."""

    def generate(self, request):
        generation = Generation(request, self._cancel)
        generation.push(Event(0, (104,), "h", (-1.0,)))
        return generation


def test_what_was_said_before_anybody_watched_is_told_at_once():
    with (
        running(Quick()) as server,
        server.client() as client,
        client.stream("POST", "/lm/programs", json=asked(forks_of(1)), timeout=60) as answer,
    ):
        told = answer_from_wire(values(next(answer.iter_lines()))[0])
        assert told.item.text == "h"


def test_budgets_and_deadlines_end_the_program(server):
    found = told_by(server, asked(TIPS, max_program_tokens=3))
    assert isinstance(found[-1], lm.BudgetExceeded)
    with server.client() as client:  # the deadline may come before anything has been told, or not
        answer = client.post("/lm/programs", json=asked(long(), deadline=0.02))
    last = values(answer.text)[-2] if answer.status_code == 200 else answer.json()
    assert last["error"]["type"] == "DeadlineExceeded"
    until(lambda: not server.inside.desk.under_way)


def test_a_client_that_goes_away_ends_its_program(server, runtime):
    with server.client() as client, streamed(client, asked(long())) as answer:
        lines = answer.iter_lines()  # which closes the stream when it is dropped
        next(lines)
        assert server.inside.desk.under_way > 0
    until(lambda: not runtime.stats().running and not runtime.stats().waiting)
    until(lambda: not server.inside.desk.under_way)


def test_a_program_can_be_aborted_by_its_request_id(server):
    with server.client() as client, streamed(client, asked(long()), "mine") as answer:
        lines = answer.iter_lines()
        next(lines)
        with server.client() as other:
            told = other.post("/lm/abort", json={"request_id": "mine"}).json()
        assert told["aborted"] == 1
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    last = answer_from_wire(wire.loads(rest[-2].removeprefix("data: ")))
    assert isinstance(last, lm.Cancelled)


def test_tenants_share_no_cache_and_no_run(runtime):
    seen = Seen(runtime)
    program = BEGIN + '%1 = text %0 "a"\n  %2 = gen %1 -> a [max_tokens=1]\n'
    with running(seen, keys=("one", "two")) as found:
        for key in ("one", "two"):
            told_by(found, asked(program, run_id="r"), key)
    first, second = seen.requests
    assert first.namespace != second.namespace
    assert first.tag.run_id != second.tag.run_id
    assert seen.ended == [first.tag.run_id, second.tag.run_id]


def test_a_run_that_goes_on_is_not_ended(runtime):
    seen = Seen(runtime)
    with running(seen) as found:
        told_by(found, asked(TIPS, run_id="r", goes_on=True))
        assert not seen.ended
        told_by(found, asked(TIPS, run_id="r"))
        until(lambda: seen.ended == ["r"])


BEGIN = "program x()\n  %0 = start\n  "


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("", "line 1"),
        ("program x(", "line 1"),
        ("program x()\n  %0 = gen", "line 2"),
        ("program x() version 2\n  %0 = start\n", "version 1"),
        ("program x(p)\n  %0 = start\n  %1 = arg %0 p\n", "line 3: it has a hole of a trace"),
        (BEGIN + '%1 = text %7 "a"', "line 3"),
        (BEGIN + "%1 = gen %0 -> a [temperature=-1.0]", "line 3.*temperature"),
        (BEGIN + '%1 = image %0 "/etc/passwd"', "line 3: it has a picture"),
        (BEGIN + '%1 = gen %0 -> a [processor="f"]', "line 3: .*logits_processor"),
        (BEGIN + '%1 = select %0 -> a ["b", "c"] [method="mine"]', "line 3: .*choices method"),
        (BEGIN + "%1 = gen %0 -> a [n=17]", "line 3: n=17"),
        (BEGIN + "%1 = gen %0 -> a [top_logprobs_num=21]", "line 3: top_logprobs"),
    ],
)
def test_what_is_no_program_is_refused_with_its_place(server, program, message):
    error = error_of(server, asked(program))
    assert isinstance(error, lm.ProgramError)
    with pytest.raises(lm.ProgramError, match=message):
        raise error


def forks_of(count, options="max_tokens=1"):
    """A program of so many forks with a generation each, behind some text."""
    made = ", ".join(f"%{state}" for state in range(2, count + 2))
    gens = "".join(
        f"  %{count + state} = gen %{state} -> a [{options}]\n" for state in range(2, count + 2)
    )
    return f'program x()\n  %0 = start\n  %1 = text %0 "hello"\n  {made} = fork %1 {count}\n{gens}'


def long():
    """A program that takes seconds."""
    return forks_of(40, "max_tokens=480, ignore_eos=True")


def nested(depth):
    lines = [f"  %{state + 1} = fork %{state} 1\n" for state in range(depth)]
    return "program x()\n  %0 = start\n" + "".join(lines)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (forks_of(10_000), "the forks make more than 2,048 states"),
        (forks_of(1_500), "1,500 generations at a time, and this server allows 1,024"),
        (nested(300), "deeper than the 256 levels"),
        ("program x()\n  %0 = start\n" + "\n" * 30_000, "30,002 lines"),
        (
            "program x()\n  %0 = start\n"
            + "".join(f"  %{i + 1} = gen %{i} -> a [max_tokens=1000000]\n" for i in range(5)),
            "line 7: the generations up to here may take 5,000,000 tokens",
        ),
    ],
    ids=["forks", "parallel", "nested", "lines", "tokens"],
)
def test_programs_that_are_too_large_are_refused_before_anything_runs(
    server, runtime, program, message
):
    before = runtime.stats().prompt_tokens
    error = error_of(server, asked(program))
    assert type(error) is lm.LimitExceeded
    with pytest.raises(lm.LimitExceeded, match=message):
        raise error
    assert runtime.stats().prompt_tokens == before


@pytest.mark.parametrize(
    ("limit", "program", "message"),
    [
        ({"max_program_nodes": 8}, TIPS, "10 lines, and this server allows 9"),
        ({"max_program_states": 2}, forks_of(3), "more than 2 states"),
        ({"max_program_depth": 2}, nested(3), "deeper than the 2 levels"),
        ({"max_program_tokens": 15}, TIPS, "may take 16 tokens, and this server allows 15"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_the_limits_of_programs_are_the_servers_own(runtime, limit, program, message):
    with running(runtime, **limit) as server:
        assert message in str(error_of(server, asked(program)))
        told = told_by(server, asked("program x()\n  %0 = start\n"))
        assert told == [None]


def test_a_place_is_taken_for_each_generation_at_a_time():
    backend = ScriptedBackend(completes="when released")
    with running(backend, max_requests=3) as server:
        error = error_of(server, asked(forks_of(4)), 503)
        assert isinstance(error, lm.QueueFull)
        found = []
        client = threading.Thread(target=lambda: found.extend(told_by(server, asked(forks_of(3)))))
        client.start()
        until(lambda: len(backend.requests) == 3)
        assert server.inside.desk.under_way == 3
        assert isinstance(error_of(server, asked(forks_of(1)), 503), lm.QueueFull)
        for _ in range(3):
            backend.release()
        client.join(SECONDS)
        assert found[-1] is None
        until(lambda: not server.inside.desk.under_way)


# ------------------------------------------------------------------------------ hostile texts

HOSTILE = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
RUN = AskedRun(params=lm.protocol.SamplingParams(max_tokens=2), max_program_tokens=200)


@pytest.fixture(scope="module")
def random_server():
    with running(RandomBackend(1)) as found:
        yield found


def survives(server, message):
    with server.client() as client:
        data = wire.dumps(message)  # lone surrogates too
        headers = {"Content-Type": "application/json"}
        answer = client.post("/lm/programs", content=data, headers=headers)
    assert answer.status_code in (200, 400), answer.text[:300]
    if answer.status_code == 400:
        assert len(answer.text) < 4_096
        wire.error_from_wire(answer.json())
    else:
        assert values(answer.text)[-1] == "[DONE]"
        assert "Traceback" not in answer.text


@HOSTILE
@given(text=st.text() | st.binary().map(lambda data: data.decode("utf-8", "replace")))
def test_random_texts_are_refused(random_server, text):
    survives(random_server, program_to_wire(AskedProgram(text, RUN)))


@HOSTILE
@given(program=random_programs(), seed=st.integers(0, 2**32), edits=st.integers(0, 4))
def test_edits_of_programs_are_run_or_refused(random_server, program, seed, edits):
    shuffled = random.Random(seed)
    text = list(print_program(program))
    for _ in range(edits):
        at = shuffled.randrange(len(text))
        action = shuffled.randrange(4)
        if action == 0:
            del text[at : at + shuffled.randrange(1, 9)]
        elif action == 1:
            text[at:at] = text[shuffled.randrange(len(text)) :][: shuffled.randrange(1, 30)]
        elif action == 2:
            text[at] = shuffled.choice('%0123456789"[]=,\\ \n-x')
        else:
            text[at:at] = shuffled.choice(["[", '"', "%1", "-1", "1e999", "fork %0 9", "\n  "])
        text = text or ["p"]
    survives(random_server, program_to_wire(AskedProgram("".join(text), RUN)))


@HOSTILE
@given(
    fields=st.dictionaries(
        st.sampled_from(["program", "run", "known", "v", "more"]),
        st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers()),
    )
)
def test_odd_messages_are_refused(random_server, fields):
    survives(random_server, {"v": 1, "program": TIPS, **fields})


def test_known_answers_of_the_wrong_kind_are_errors_of_their_operation(server):
    scores = next(
        item for item in outcomes(told_by(server, asked(TIPS))).values() if isinstance(item, Scores)
    )
    output = next(
        item for item in outcomes(told_by(server, asked(TIPS))).values() if isinstance(item, Output)
    )
    wrong = [Told("0/fork0.0/0", scores), Told("1", output)]
    found = told_by(server, asked(TIPS, wrong))
    assert isinstance(found[-1], lm.ProgramError)


def test_made_up_tokens_are_errors_of_what_reads_them(server):
    found = outcomes(told_by(server, asked(TIPS)))
    (key, output), *_ = [(key, item) for (op, key), item in found.items() if op == "0/fork0.0/0"]
    made_up = replace(output, ids=(2**31 - 1,), history=(Tokens((2**31 - 1,), "x"),))
    told = told_by(server, asked(TIPS, [Told("0/fork0.0/0", made_up, key)]))
    errors = [each.item for each in told if each and isinstance(each.item, lm.LMLangError)]
    assert errors
    assert all(isinstance(error, lm.ProgramError) for error in errors)


def test_the_limits_are_those_of_the_page():
    config = ServerConfig()
    text = (
        *(config.max_program_nodes, config.max_program_states),
        *(config.max_program_depth, config.max_program_tokens),
    )
    page = Path("docs/reference/wire.md").read_text()
    assert all(f"{number:,}" in page for number in text)
    assert ir.VERSION == 1
