"""Run logs that are run again: nothing is sampled, all is compared; runs go on from within."""

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

import lmlang as lm
from lmlang.runtime.local import Runtime
from lmlang.testing import RandomBackend, ScriptedBackend
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def rt() -> Iterator[Runtime]:
    with Runtime.over(*tiny_model(), kv_tokens=8_000) as made:
        yield made
        made.check()


@lm.function
def shorter(s: lm.ProgramState, ask: str) -> None:
    s += ask + lm.gen("short", regex="[a-z]{2,8}")


@lm.function
def program(s: lm.ProgramState) -> str:
    """Whatever a program may have, but for what no log holds."""
    s += lm.user("hello the world")
    with s.assistant():
        s += lm.gen("plan", max_tokens=9, ignore_eos=True)
    s["plain"] = 3
    s += lm.user("and the user ")
    with s.var_scope("scope"):
        s += "or " + lm.gen("stopped", max_tokens=30, stop=["e", "a", "i", "o"])
    forks = s.fork(3)
    forks += lambda i: f" try {i} "
    forks += lm.gen("n", n=2, max_tokens=4) + lm.gen("healed", max_tokens=4, heal=True)
    forks.join()
    s += " hell" + lm.gen(max_tokens=4) + lm.gen("int", type=int, max_tokens=6)
    s += lm.select("pick", ["hello", "world", "and"], temperature=1.0)
    shorter(s, "once ")
    s.call(shorter, "twice ")
    s += lm.gen("sum", think=4, max_tokens=3)
    inner = s.fork(2)
    inner[1] += lm.gen("a", max_tokens=3, seed=5)
    inner.join("concate_and_append")
    return s.text_of("pick")


def alike(one, other):
    """What two run logs say of what came about."""
    assert len(one.operations) == len(other.operations)
    for was, now in zip(one.operations, other.operations, strict=True):
        kept = [
            (each.kind, each.status, each.path, each.state, each.name, each.text, each.draw_keys)
            for each in (was, now)
        ]
        assert kept[0] == kept[1]
        assert [s.tokens for s in was.samples] == [s.tokens for s in now.samples]


@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_recorded_comes_about_again_without_sampling(rt, seed):
    state = program(backend=rt, seed=seed)
    log = lm.RunLog.from_json(state.run_log().to_json())
    rt.reset_stats()
    again = log.replay(rt)
    alike(log, again.run_log())
    assert again.text() == state.text()
    assert again.token_ids() == state.token_ids()
    assert again.ret_value == state.ret_value
    assert (again["plain"], again["int"]) == (3, state.text_of("int"))
    assert again["n"] == state["n"]
    stats = rt.stats()
    assert stats.sampled_tokens + stats.forced_tokens == stats.generated_tokens
    assert stats.steps < state.usage().generated_tokens


@pytest.mark.parametrize("make", [RandomBackend, ScriptedBackend])
def test_other_backends_run_logs_again_too(make):
    with make() as backend:
        log = program(backend=backend, seed=1).run_log()
        alike(log, log.replay(backend).run_log())


def test_a_saved_log_is_its_owner_s_alone_and_whole_or_not_there(tmp_path, monkeypatch):
    with ScriptedBackend() as backend:
        log = program(backend=backend, seed=1).run_log()
    path = tmp_path / "run.json"
    path.write_text("an older one")
    path.chmod(0o644)
    log.save(path)
    assert lm.RunLog.load(path) == log
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        log.save(path)
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]
    path.write_bytes(b"\xff{")
    with pytest.raises(lm.WireError, match=r"run.json': not JSON"):
        lm.RunLog.load(path)
    path.write_text('{"version": 1}')
    with pytest.raises(lm.WireError, match=r"run.json': the run log has version 1"):
        lm.RunLog.load(path)


def full(*_):
    raise OSError(28, "No space left on device")


def changed(log, path, **sample):
    """The log, with something else in an operation's first sample."""
    operations = tuple(
        replace(each, samples=(replace(each.samples[0], **sample), *each.samples[1:]))
        if each.path == path
        else each
        for each in log.operations
    )
    return replace(log, operations=operations)


def test_where_it_parts_from_what_is_recorded_is_told_by_the_first_token(rt):
    log = program(backend=rt, seed=1).run_log()
    (plan,) = [each for each in log.operations if each.name == "plan"]
    sample = plan.samples[0]
    logprobs = (*sample.logprobs[:4], sample.logprobs[4] - 0.5, *sample.logprobs[5:])
    with pytest.raises(lm.ReplayError, match=r"the gen 'plan' at 0 .*token 4, .*log-prob") as e:
        changed(log, plan.path, logprobs=logprobs).replay(rt)
    assert (e.value.path, e.value.token) == (plan.path, 4)
    changed(log, plan.path, logprobs=logprobs).replay(rt, tolerance=0.6)
    cut = changed(log, plan.path, tokens=sample.tokens[:5], logprobs=sample.logprobs[:5])
    with pytest.raises(lm.ReplayError, match=r"token 5 was none and is") as e:
        cut.replay(rt)
    assert e.value.token == 5
    with pytest.raises(lm.ReplayError, match=r"its text reads otherwise from character 0 on"):
        changed(log, plan.path, text="?").replay(rt)
    (thought,) = [each for each in log.operations if each.name == "sum"]
    with pytest.raises(lm.ReplayError, match=r"its hidden reasoning reads otherwise from char"):
        changed(log, thought.path, thought=f"{thought.samples[0].thought}?").replay(rt)
    (picked,) = [each for each in log.operations if each.kind == "select"]
    other = replace(picked, text="nothing")
    operations = tuple(other if each is picked else each for each in log.operations)
    with pytest.raises(lm.ReplayError, match=r"the select 'pick' .* it was 'nothing' and is"):
        replace(log, operations=operations).replay(rt)


def test_another_model_is_found_out_by_what_it_thinks_of_the_tokens(rt):
    log = program(backend=rt, seed=1).run_log()
    model, tokenizer, template = tiny_model(seed=1)
    with (
        Runtime.over(model, tokenizer, template, kv_tokens=8_000) as other,
        pytest.raises(lm.ReplayError, match=r"the gen 'plan' .*token 0, .*log-probability") as e,
    ):
        log.replay(other)
    assert e.value.token == 0


def test_what_had_failed_or_was_cancelled_does_so_again():
    def answer(prompt):
        if prompt.endswith("1"):
            raise lm.BackendError("no")
        return prompt[-1]

    @lm.function
    def racing(s):
        forks = s.fork(3)
        forks += lambda i: f"{i}"
        forks += lm.gen("x")
        (winner,) = forks.first()
        s["x"] = winner["x"]
        s += "?" + lm.gen("y") + "1" + lm.gen("z")

    with ScriptedBackend(answer) as backend:
        (state,) = racing.run_batch([()], on_error="return", backend=backend)
        assert isinstance(state.error(), lm.BackendError)
        again = state.run_log().replay(ScriptedBackend(answer))
    assert isinstance(again.error(), lm.BackendError)
    assert again["y"] == state["y"]


@pytest.mark.parametrize("at", ["plan", "stopped", "n", "int", "pick", "sum"])
def test_a_fork_of_the_past_goes_on_as_it_did_where_nothing_is_changed(rt, at):
    state = program(backend=rt, seed=3)
    log = state.run_log()
    found = [each for each in log.operations if each.name == at]
    target = found[-1]
    node = next(n for n in log.recording.nodes if getattr(n, "made", None) == target.made)
    past = log.fork_at(target.path, rt)
    if at == "pick":
        past += lm.select(at, list(node.choices), temperature=1.0)
    elif at == "int":
        past += lm.gen(at, type=int, max_tokens=6)
    elif at == "stopped":
        past += lm.gen(at, max_tokens=30, stop=list(node.stop))
    elif at == "n":
        past += lm.gen(at, n=2, max_tokens=4)
    else:
        past += lm.gen(at, max_tokens=node.max_tokens, ignore_eos=at == "plan", think=node.think)
    assert past.text_of(at) == target.text


def test_a_fork_of_the_past_has_its_own_prompt_and_the_cache(rt):
    @lm.function
    def chat(s):
        s += lm.user("hello the world and the user " * 8)
        s += lm.assistant(lm.gen("plan", max_tokens=12, ignore_eos=True))
        s += lm.user("more") + lm.assistant(lm.gen("answer", max_tokens=4))

    log = chat(backend=rt, seed=1).run_log()
    rt.reset_stats()
    past = log.fork_at("answer", rt)
    assert past.messages()[-1] == {"role": "assistant", "content": ""}
    assert past["plan"] == next(each.text for each in log.operations if each.name == "plan")
    past += "hello " + lm.gen("answer", max_tokens=4) + lm.assistant_end()
    assert past.messages()[-1]["content"].startswith("hello ")
    stats = rt.stats()
    assert stats.cached_tokens > 0.9 * stats.prompt_tokens
    past += lm.gen()
    assert "_0" in past


def test_what_is_to_be_forked_at_is_found_or_told():
    with ScriptedBackend() as backend:
        log = program(backend=backend, seed=1).run_log()
        with pytest.raises(lm.CaptureError, match=r"is called 'plam'; did you mean 'plan'"):
            log.fork_at("plam", backend)
        with pytest.raises(lm.ProgramError, match=r"3 operations are called 'n': give the path"):
            log.fork_at("n", backend)
        with pytest.raises(lm.ProgramTypeError, match="3 is an int"):
            log.fork_at(3, backend)
        within = log.fork_at("2/fork0.1/1", backend)
        texts = {each.path: each.text for each in log.operations}
        assert within.text().endswith("try 1 " + texts["2/fork0.1/0"])
        assert "n" in within
        scoped = log.fork_at("plain", backend)
        assert "plain" not in scoped


def test_what_no_log_holds_is_named():
    @lm.function
    def seen(s):
        s += lm.image(b"BM, a picture") + lm.gen("x")

    with ScriptedBackend(vision=True) as backend:
        log = seen(backend=backend).run_log()
        with pytest.raises(lm.ProgramError, match=r"test_rerun.py:\d+ the program has a picture"):
            log.replay(backend)


def test_runs_that_were_ended_run_again_as_far_as_they_came(rt):
    @lm.function
    def long(s, cancelled):
        s += "hello " + lm.gen("a", max_tokens=6, ignore_eos=True)
        s.sync()
        for fork in s.fork(2):
            fork += "and " + lm.gen("b", max_tokens=400, ignore_eos=True)
        if cancelled:
            s.cancel()

    for cancelled, most, error in ((False, 9, lm.BudgetExceeded), (True, None, lm.Cancelled)):
        with pytest.raises(error) as e:
            long.run(cancelled, backend=rt, seed=1, max_program_tokens=most)
        log = e.value.partial.run_log()
        assert log.error is not None
        again = log.replay(rt)
        assert again.text_of("a") == e.value.partial["a"]
        ends = {each.status for each in again.run_log().operations if each.name == "b"}
        assert ends <= {"failed", "cancelled", "skipped"}
        past = log.fork_at("a", rt)
        past += lm.gen("a", max_tokens=6, ignore_eos=True)
        assert past["a"] == e.value.partial["a"]


def test_a_log_that_lacks_something_is_told_where(rt: Runtime) -> None:
    log = program.run(seed=1, backend=rt).run_log()
    for number, each in [*enumerate(log.operations)][::3]:
        cut = [log.operations[:number] + log.operations[number + 1 :]]
        if each.samples:
            short = replace(each.samples[0], logprobs=each.samples[0].logprobs[:-1])
            for less in (
                replace(each, samples=()),
                replace(each, samples=(short, *each.samples[1:])),
            ):
                cut.append((*log.operations[:number], less, *log.operations[number + 1 :]))
        if each.choices:
            less = replace(each, choices=each.choices[1:])
            cut.append((*log.operations[:number], less, *log.operations[number + 1 :]))
        for operations in cut:
            with pytest.raises((lm.ReplayError, lm.ProgramError)):
                replace(log, operations=tuple(operations)).replay(rt)
