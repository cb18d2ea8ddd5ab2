"""Runtime as a whole: refusals at the door, failures inside, its end. Nothing waits for ever."""

from __future__ import annotations

import dataclasses
import enum
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from lmlang.errors import (
    BackendError,
    Cancelled,
    ContextOverflow,
    ModelError,
    ProgramError,
    ProgramTypeError,
)
from lmlang.protocol import (
    EndTurn,
    Generation,
    Prompt,
    Request,
    SamplingParams,
    ScoreRequest,
    Tag,
    Text,
    Tokens,
    Turn,
)
from lmlang.runtime import commit, engine
from lmlang.runtime.local import Runtime
from tests.runtime.test_engine import MODEL, TEMPLATE, TOKENIZER, StepCounter, expected, request
from tests.tiny import write_tiny_gguf


@pytest.fixture
def rt() -> Iterator[Runtime]:
    with Runtime.over(MODEL, TOKENIZER, TEMPLATE, kv_tokens=100) as rt:
        yield rt
        # whatever was refused or failed: the runtime goes on
        one = request("hello", 1, max_tokens=4)
        assert list(rt.generate(one).result(timeout=60).ids) == expected(one)
        rt.check()


def test_an_empty_prompt_is_refused(rt: Runtime) -> None:
    with pytest.raises(ProgramError, match="the prompt is empty: append some text"):
        rt.generate(Request(Prompt())).result(timeout=60)
    with pytest.raises(ProgramError, match="the prompt is empty"):
        rt.score(ScoreRequest(Prompt(), ("a", "b"))).result(timeout=60)


def test_what_can_never_fit_is_refused_with_both_numbers(rt: Runtime) -> None:
    with pytest.raises(ContextOverflow, match=r"together 600, .* context holds 512: shorten"):
        rt.generate(request("1" * 500, max_tokens=100)).result(timeout=60)
    with pytest.raises(ContextOverflow, match=r"together 101, .* KV pool holds 100: lower"):
        rt.generate(request("1" * 50, max_tokens=51)).result(timeout=60)
    with pytest.raises(ContextOverflow, match="the KV pool holds 100"):
        rt.score(ScoreRequest(Prompt.of(Text("1" * 90)), ("2" * 20, "3"))).result(timeout=60)
    assert (
        rt.generate(request("1" * 50, max_tokens=50)).result(timeout=60).usage.prompt_tokens == 50
    )


@pytest.mark.parametrize("text", ["hello world ", " "])
def test_a_prompt_of_a_million_characters_is_refused_with_both_numbers(
    rt: Runtime, text: str
) -> None:
    long = text * (1_000_000 // len(text))
    with pytest.raises(ContextOverflow, match=r"the prompt has [\d,]{7,} tokens .* holds 512"):
        rt.generate(request(long, max_tokens=1)).result(timeout=120)
    with pytest.raises(ContextOverflow, match="holds 512"):
        rt.score(ScoreRequest(Prompt.of(Text(long)), ("a", "b"))).result(timeout=120)


def test_text_that_is_no_unicode_is_refused(rt: Runtime) -> None:
    with pytest.raises(ProgramError, match="lone surrogate"):
        rt.generate(request("a\ud800b")).result(timeout=60)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kv_tokens": 0}, ProgramError, "kv_tokens=0 is out of range"),
        ({"kv_tokens": 1.5}, ProgramTypeError, "kv_tokens=1.5 must be an integer"),
        ({"memory_fraction": 0}, ProgramError, "memory_fraction=0 .* above 0 and at most 1"),
        ({"memory_fraction": float("nan")}, ProgramError, "memory_fraction=nan"),
        ({"max_batch_tokens": -5}, ProgramError, "max_batch_tokens=-5"),
        ({"max_running": True}, ProgramTypeError, "max_running=True must be an integer"),
        ({"policy": "best"}, ProgramError, "policy='best' is unknown: give one of 'fcfs', 'lpm'"),
        ({"host_kv_gb": -1}, ProgramError, "host_kv_gb=-1"),
        ({"host_kv_gb": 1 << 21}, ProgramError, "host_kv_gb=2097152 .* from 0 to 1,048,576"),
        ({"host_kv_gb": 1e-9}, ProgramError, "host_kv_gb=1e-09 holds no token, whose keys and"),
        ({"speculative": "EAGLE"}, ProgramError, "='eagle' is unknown: give 'ngram', or leave it"),
        ({"speculative": True}, ProgramTypeError, "speculative=True must be a string, not bool"),
        ({"dtype": torch.bfloat16}, ProgramTypeError, "dtype=torch.bfloat16 must be a string"),
        ({"trust_remote_code": True}, ProgramError, "=True. is refused: the code that comes"),
        ({"random_seed": 1}, ProgramError, r"Runtime\(random_seed=1\) is refused: a runtime has"),
        ({"disable_radix_cache": True, "host_kv_gb": 1}, ProgramError, "leave one of them out"),
        ({"max_queued": 0}, ProgramError, "max_queued=0"),
        ({"tp_size": 2}, ProgramError, r"Runtime\(tp_size=2\) is not available in this version"),
        ({"device": "gpu"}, ProgramError, "device='gpu' is unknown: give 'auto', 'cpu', 'cuda' or"),
        ({"device": "cuda:x"}, ProgramError, "device='cuda:x' is unknown"),
        ({"device": 0}, ProgramTypeError, "device=0 must be a string, not int: give 'auto'"),
        ({"cuda_graphs": "no"}, ProgramTypeError, "cuda_graphs"),
        ({"model": "a.gguf", "model_path": "b.gguf"}, ProgramTypeError, "got 'model' twice"),
        ({"chat_template": "chatmll"}, ProgramError, "did you mean 'chatml'"),
        ({"nonsense": 1}, ProgramTypeError, "has no parameter 'nonsense': see help"),
        ({"kv_token": 1}, ProgramTypeError, "did you mean 'kv_tokens'"),
        ({"model": 5}, ProgramTypeError, "model must be a path or None, not int"),
        (
            {"model": "no/such.gguf"},
            ModelError,
            "model='no/such.gguf' is no file or folder here: give",
        ),
        ({"model": ""}, ModelError, "model='' names nothing: give the path"),
        ({"model": "a\0b"}, ModelError, "model="),
        ({"model": "\ud800"}, ModelError, "model="),
        ({"model": "~nosuchuser/x.gguf"}, ModelError, "model="),
        ({"kv_tokens": 2**31}, ModelError, "kv_tokens: 2,147,483,648 tokens take .* bytes of"),
    ],
)
def test_bad_parameters_are_refused_by_name(
    options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Runtime(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"stop_token_ids": (900,)}, r"stop_token_ids: token id=900 is out of range: .* to \d+"),
        ({"logit_bias": ((900, 1.0),)}, "logit_bias: token id=900 is out of range"),
    ],
)
def test_ids_that_the_model_has_not_are_refused(
    rt: Runtime, params: dict[str, object], message: str
) -> None:
    with pytest.raises(ProgramError, match=message):
        rt.generate(request("hello", max_tokens=2, **params)).result(timeout=60)


def test_numbers_and_tree_print_for_people(rt: Runtime) -> None:
    for prompt in ("1", "12", "13"):
        rt.generate(request(prompt, max_tokens=1)).result(timeout=60)
    stats = rt.stats()
    lines = str(stats).splitlines()
    numbers = [field for field in fields(stats) if field.name != "grammar_waits"]  # a curve
    assert [line.split()[0] for line in lines] == [field.name for field in numbers]
    assert len({len(line) for line in lines}) == 1  # aligned
    for line, field in zip(lines, numbers, strict=True):
        shown = float(line.split()[1].replace(",", ""))
        assert shown == pytest.approx(getattr(stats, field.name), abs=5e-4)
    assert "prompt_tokens=5, " in repr(stats)
    assert str(rt.tree()).splitlines() == [
        "radix cache: 3 tokens in 3 nodes", "  '1'  (1 token)", "    '2'  (1 token)",
        "    '3'  (1 token)",
    ]  # fmt: skip


def test_a_file_runs_and_two_runtimes_share_its_weights(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    one = request("hello", 1, max_tokens=4)
    with Runtime(path, kv_tokens=50) as first, Runtime(str(path), kv_tokens=50) as second:
        assert first._opened is second._opened
        assert list(first.generate(one).result(timeout=60).ids) == expected(one)
        assert list(second.generate(one).result(timeout=60).ids) == expected(one)
        assert second.info().context_length == 50
    with Runtime(path, kv_tokens=1000) as runtime:
        assert runtime.info().context_length == 512


def test_parameters_may_be_spelled_as_in_sglang(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    with Runtime(
        model_path=path, max_total_tokens=64, max_running_requests=2, chunked_prefill_size=8,
        tp_size=1, dtype="auto", port=30_000, chat_template="chatml",
    ) as rt:  # fmt: skip
        assert rt.stats().kv_tokens_total == 64
        prompt = Prompt.of(Turn("user"), Text("hello"), EndTurn(), Turn("assistant"))
        assert rt.render(prompt).startswith("<|im_start|>user\nhello<|im_end|>\n")
        assert rt.get_tokenizer() is rt.tokenizer
        rt.shutdown()
        with pytest.raises(BackendError, match="closed"):
            rt.generate(request("hello", max_tokens=2)).result(timeout=60)


def test_a_forward_pass_that_raises_fails_its_rows_and_the_runtime_goes_on() -> None:
    model = StepCounter(MODEL)
    with Runtime.over(model, TOKENIZER, TEMPLATE, kv_tokens=300) as rt:

        def fail() -> None:
            raise RuntimeError("not enough memory")

        all_there = threading.Event()
        model.at(0, lambda: all_there.wait(60))
        model.at(2, fail)
        generations = [rt.generate(request("hello" + t, max_tokens=9)) for t in ("", " and")]
        scores = rt.score(ScoreRequest(Prompt.of(Text("the ")), ("hello", "and")))
        all_there.set()
        outcomes = [scores.exception(timeout=60), *map(outcome, generations)]
        failures = [failure for failure in outcomes if failure is not None]
        assert len(failures) >= 2
        for failure in failures:
            assert isinstance(failure, ModelError)
            assert "the forward pass failed: RuntimeError: not enough memory" in str(failure)
        rt.check()
        one = request("hello", 1, max_tokens=4)
        assert list(rt.generate(one).result(timeout=60).ids) == expected(one)
        assert rt.stats().running == rt.stats().waiting == 0


def test_a_step_that_fails_behind_the_forward_pass_fails_samples_that_had_no_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("no draw")

    with Runtime.over(MODEL, TOKENIZER, TEMPLATE, kv_tokens=300) as rt:
        monkeypatch.setattr(commit, "sample", broken)
        one = dataclasses.replace(request("hello", 1, max_tokens=4), tag=Tag("run", "0"))
        held = threading.Event()
        rt._engine.tell(lambda _: held.wait(60))  # so that all are there at the first step
        samples = [rt.generate(dataclasses.replace(one, draw_key=n)) for n in range(3)]
        held.set()
        for failure in map(outcome, samples):
            assert isinstance(failure, ModelError)
            assert "no draw" in str(failure)
        assert list(rt.generate(one).result(timeout=60).ids) == expected(one)
        assert rt.stats().running == 0
        rt.check()


def outcome(generation: Generation) -> Exception | None:
    try:
        generation.result(timeout=60)
    except Exception as error:
        return error
    return None


def test_when_the_engine_dies_every_waiter_hears_of_it() -> None:
    model = StepCounter(MODEL)
    rt = Runtime.over(model, TOKENIZER, TEMPLATE, kv_tokens=300, max_running=1)

    def die() -> None:
        raise KeyboardInterrupt("somebody pressed a key")

    model.at(1, die)
    waiting = [rt.generate(request("hello", n, max_tokens=9)) for n in range(3)]
    for generation in waiting:
        with pytest.raises(BackendError, match="engine died: KeyboardInterrupt"):
            generation.result(timeout=60)
    with pytest.raises(BackendError, match="engine died"):
        rt.generate(request("hello")).result(timeout=60)
    with pytest.raises(BackendError, match="engine died"):
        rt.stats()
    rt.close()


def test_closing_fails_what_is_under_way_and_refuses_what_comes_later() -> None:
    model = StepCounter(MODEL)
    rt = Runtime.over(model, TOKENIZER, TEMPLATE, kv_tokens=900, max_batch_tokens=4)
    inside, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        go_on.wait(60)

    model.at(0, hold)
    generations = [rt.generate(request("hello", n, max_tokens=99)) for n in range(3)]
    scores = rt.score(ScoreRequest(Prompt.of(Text("the ")), ("hello and", "and the")))
    assert inside.wait(60)
    closing = threading.Thread(target=rt.close)
    closing.start()
    while rt._engine._closed is None:
        closing.join(0.01)
    go_on.set()
    closing.join(60)
    rt.close()
    for waited in (*generations, scores, rt.generate(request("hello"))):
        with pytest.raises(BackendError, match="closed"):
            waited.result(timeout=60)
    with pytest.raises(BackendError, match="the runtime is closed: make a new one"):
        rt.score(ScoreRequest(Prompt.of(Text("the ")), ("hello", "and"))).result(timeout=60)
    with pytest.raises(BackendError, match="closed"):
        rt.flush_cache()


def test_a_score_that_is_cancelled_takes_no_more_steps() -> None:
    model = StepCounter(MODEL)
    with Runtime.over(model, TOKENIZER, TEMPLATE, kv_tokens=900) as rt:
        inside, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            inside.set()
            go_on.wait(60)

        model.at(0, hold)
        scores = rt.score(ScoreRequest(Prompt.of(Text("the ")), ("hello and", "hello the")))
        assert inside.wait(60)
        assert scores.cancel()
        go_on.set()
        rt.stats()
        assert rt.stats().waiting == rt.stats().running == 0
        assert model.step == 1
        rt.check()


def test_a_cancelled_generation_raises_cancelled() -> None:
    model = StepCounter(MODEL)
    with Runtime.over(model, TOKENIZER, TEMPLATE, kv_tokens=900) as rt:
        there = threading.Event()
        model.at(0, lambda: there.wait(60))
        generation = rt.generate(request("hello", max_tokens=400, ignore_eos=True))
        model.at(3, generation.cancel)
        there.set()
        with pytest.raises(Cancelled):
            generation.result(timeout=60)
        with pytest.raises(Cancelled):
            list(generation.events())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_no_model_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelError, match="is no file"):
        Runtime(tmp_path / "pipe.gguf")


def test_a_callback_that_raises_takes_nobodys_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = StepCounter(MODEL)
    with Runtime.over(model, TOKENIZER, TEMPLATE, kv_tokens=900) as rt:
        inside, go_on = threading.Event(), threading.Event()
        model.at(0, lambda: (inside.set(), go_on.wait(60)))
        rt.generate(request("and", max_tokens=1))
        assert inside.wait(60)
        first = rt.generate(request("hello", 1, max_tokens=1))
        first.add_done_callback(lambda _: 1 / 0)
        second = rt.generate(request("the", 1, max_tokens=1))
        go_on.set()
        assert list(second.result(timeout=60).ids) == expected(request("the", 1, max_tokens=1))
        assert first.result(timeout=60).ids
    assert "a callback of a generation raised" in caplog.text


def test_tokens_of_another_model_are_refused_at_the_door(rt: Runtime) -> None:
    for ids in ((10**9,), (-1,)):
        with pytest.raises(ProgramError, match="tokens of one model mean nothing"):
            rt.generate(Request(Prompt.of(Text("a"), Tokens(ids, "?")))).result(timeout=60)


def test_thousands_of_cancels_are_one_pass() -> None:
    model = StepCounter(MODEL)
    with Runtime.over(model, TOKENIZER, TEMPLATE, kv_tokens=900) as rt:
        inside, go_on = threading.Event(), threading.Event()
        model.at(0, lambda: (inside.set(), go_on.wait(60)))
        many = [rt.generate(request(f"{n}", n, max_tokens=9)) for n in range(3_000)]
        assert inside.wait(60)
        for generation in many:
            generation.cancel()
        go_on.set()
        for generation in many:
            with pytest.raises(Cancelled):
                generation.result(timeout=60)
        assert model.step == 1
        assert rt.stats().kv_tokens_used == rt.stats().kv_tokens_tree
        rt.check()


def test_choices_and_roles_are_checked_where_they_are_made() -> None:
    prompt = Prompt.of(Text("a"))
    with pytest.raises(ProgramError, match="a choice is empty"):
        ScoreRequest(prompt, ("", "a"))
    with pytest.raises(ProgramTypeError, match="a choice is of the type int"):
        ScoreRequest(prompt, ("b", 3))  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="'b' stands twice"):
        ScoreRequest(prompt, ("b", "a", "b"))
    with pytest.raises(ProgramError, match="is no word of letters"):
        Turn("user<|im_end|>")


class Marker(str, enum.Enum):
    COMMA = ","


def test_stop_strings_are_the_text_of_what_was_given() -> None:
    assert SamplingParams(stop=Marker.COMMA).stop == (",",)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="lone surrogate"):
        SamplingParams(stop=("a\ud800",))


def test_flush_forgets_prefixes_and_stats_reset(rt: Runtime) -> None:
    rt.generate(request("hello world", max_tokens=1)).result(timeout=60)
    assert rt.stats().kv_tokens_tree > 0
    rt.flush_cache()
    assert rt.stats().kv_tokens_tree == rt.stats().kv_tokens_used == 0
    assert (
        rt.generate(request("hello world", max_tokens=1)).result(timeout=60).usage.cached_tokens
        == 0
    )
    rt.reset_stats()
    assert rt.stats().steps == rt.stats().prompt_tokens == 0


def test_an_idle_engine_checks_itself_and_a_broken_pool_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "IDLE_SECONDS", 0.01)
    rt = Runtime.over(MODEL, TOKENIZER, TEMPLATE, kv_tokens=50)
    rt._engine.call(lambda loop: loop.cache.allocator.take(1))  # a slot is lost
    rt._engine._thread.join(60)
    with pytest.raises(BackendError, match="engine died: AssertionError: a slot is lost or twice"):
        rt.generate(request("hello", max_tokens=2)).result(timeout=60)


def engine_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "lmlang-engine"}


def test_a_runtime_that_nothing_refers_to_ends_its_thread() -> None:
    before = engine_threads()
    rt = Runtime.over(MODEL, TOKENIZER, TEMPLATE, kv_tokens=50)
    generation = rt.generate(request("hello", max_tokens=2))
    generation.result(timeout=60)
    assert len(engine_threads() - before) == 1
    del rt
    gc.collect()
    assert engine_threads() <= before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_after_a_fork_the_child_is_told_at_first_use() -> None:
    script = (
        "import os, sys\n"
        "from tests.runtime.test_engine import runtime, request\n"
        "rt = runtime()\n"
        "rt.generate(request('hello', max_tokens=2)).result()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        rt.generate(request('hello')).result(timeout=60)\n"
        "    except Exception as error:\n"
        "        os._exit(7 if 'os.fork' in str(error) else 8)\n"
        "    os._exit(9)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True)
    assert done.returncode == 7, done.stderr.decode()


def test_the_interpreter_ends_without_a_word_while_work_is_under_way() -> None:
    script = (
        "from tests.runtime.test_engine import runtime, request\n"
        "rt = runtime()\n"
        "running = [rt.generate(request('hello', n, max_tokens=400, ignore_eos=True))\n"
        "           for n in range(4)]\n"
        "next(running[0].events())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_many_threads_may_ask_at_once(rt: Runtime) -> None:
    wanted = {n: expected(request("hello " + str(n), n, max_tokens=5)) for n in range(12)}
    got: dict[int, list[int]] = {}

    def ask(n: int) -> None:
        got[n] = list(rt.generate(request("hello " + str(n), n, max_tokens=5)).result(60).ids)

    threads = [threading.Thread(target=ask, args=(n,)) for n in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == wanted


def test_params_are_checked_where_they_are_made() -> None:
    for name, value in (
        ("max_tokens", -1), ("max_tokens", 10**9), ("max_tokens", 1.0), ("temperature", -0.1),
        ("temperature", float("inf")), ("temperature", "hot"), ("top_p", 0), ("top_p", 1.1),
        ("top_k", -2), ("top_k", 2**40), ("min_p", -0.1), ("stop", ("",)), ("stop", 5),
        ("stop", ("x" * 2_000,)), ("stop", ("x",) * 65), ("ignore_eos", 1), ("max_tokens", None),
        ("temperature", 10**400),
    ):  # fmt: skip
        with pytest.raises(ProgramError, match=name):
            SamplingParams(**{name: value})  # type: ignore[arg-type]
