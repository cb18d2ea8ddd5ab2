"""Journals over the embedded model: a warm batch computes nothing, a killed one goes on."""

import os
import signal
import subprocess
import sys
from typing import Literal

import pytest

import lmlang as lm
from lmlang.runtime.fingerprint import EVERY, HEAD, WHOLE, of_files
from tests.runtime.adapters import write_lora
from tests.tiny import write_tiny_gguf

ROWS = 4
SEED = 5


@lm.function
def review(s, i):
    s += lm.user(f"Say something about the number {i}.")
    with s.assistant():
        s += lm.gen("said", max_tokens=6)
    forks = s.fork(2)
    forks += lm.user("Another word?") + lm.assistant(lm.gen("word", max_tokens=3))
    forks.join()
    s += lm.user("Is it good?")
    s += lm.assistant(lm.select("good", ["yes", "no"]) + " " + lm.gen("mark", type=Literal[1, 2]))
    if i == 2 and "LMLANG_TEST_KILL" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    return s["mark"]


def run(backend, **keywords):
    rows = [{"i": i} for i in range(ROWS)]
    return review.run_batch(rows, backend=backend, seed=SEED, num_threads=1, **keywords)


def told(states):
    return [[s.text(), s["said"], s["word"], s["good"], s["mark"]] for s in states]


@pytest.fixture(scope="module")
def rt():
    with lm.Runtime(kv_tokens=4_096, deterministic=True) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def expected(rt):
    return told(run(rt))


def test_a_warm_batch_does_no_step(rt, expected, tmp_path):
    cold = run(rt, journal=tmp_path / "run.sqlite")
    assert told(cold) == expected
    rt.reset_stats()
    warm = run(rt, journal=tmp_path / "run.sqlite")
    assert told(warm) == told(cold)
    assert [s.meta("good").probs for s in warm] == [s.meta("good").probs for s in cold]
    assert (rt.stats().steps, rt.stats().generated_tokens, rt.stats().scored_tokens) == (0, 0, 0)
    assert warm.usage.reused_generations == 5 * ROWS
    assert warm.usage.generated_tokens == cold.usage.generated_tokens


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_a_killed_batch_goes_on_in_another_process(rt, expected, tmp_path):
    journal = tmp_path / "run.sqlite"
    child = subprocess.run(
        [sys.executable, __file__, journal],
        env={**os.environ, "LMLANG_TEST_KILL": "1", "PYTHONPATH": os.getcwd()},
        timeout=120,
    )
    assert child.returncode == -signal.SIGKILL
    rt.reset_stats()
    result = run(rt, journal=journal)
    assert result.usage.reused_generations >= 5 * 2  # whole rows, of one in flight at a time
    assert rt.stats().generated_tokens < 0.7 * result.usage.generated_tokens
    assert told(result) == expected


def test_a_fingerprint_is_that_of_the_model_and_how_it_is_kept(rt):
    with lm.Runtime(kv_tokens=256) as same, lm.Runtime(kv_tokens=256, quantize=None) as other:
        assert same.info().fingerprint == rt.info().fingerprint
        assert other.info().fingerprint != rt.info().fingerprint
    for keywords in ({"chat_template": "chatml"}, {"kv_dtype": "int8"}):
        with lm.Runtime(kv_tokens=256, **keywords) as other:
            assert other.info().fingerprint != rt.info().fingerprint


def test_a_fingerprint_sees_changes_of_small_and_large_files(tmp_path):
    small, large = tmp_path / "config.json", tmp_path / "model.safetensors"
    small.write_text("{}")
    large.write_bytes(bytes(WHOLE + 5))
    seen = {of_files(tmp_path, (".json", ".safetensors"))}
    (tmp_path / "README.md").write_text("not read")
    assert of_files(tmp_path, (".json", ".safetensors")) in seen
    small.write_text("{ }")
    seen.add(of_files(tmp_path, (".json", ".safetensors")))
    large.write_bytes(bytes(WHOLE + 6))  # longer, and all samples of it are alike
    seen.add(of_files(tmp_path, (".json", ".safetensors")))
    for at in (0, HEAD + 4 * EVERY, WHOLE + 4):  # one after the other
        with large.open("r+b") as file:
            file.seek(at)
            file.write(b"x")
        seen.add(of_files(tmp_path, (".json", ".safetensors")))
    large.rename(tmp_path / "other.safetensors")
    seen.add(of_files(tmp_path, (".json", ".safetensors")))
    assert len(seen) == 7
    with pytest.raises(lm.ModelError, match="cannot be read"):
        of_files(tmp_path / "none", ())


@lm.function
def tale(s, i):
    s += f"the user {i} " + lm.gen("more", max_tokens=6, temperature=0, ignore_eos=True)
    s += lm.select("pick", ["world", "hello"])


def test_adapters_have_answers_of_their_own(tmp_path):
    modules = {f"model.layers.{layer}.mlp.up_proj": (32, 64) for layer in range(2)}
    for name, strength in (("old", 2), ("new", 3)):
        write_lora(tmp_path / name, modules, strength=strength)
    write_tiny_gguf(tmp_path / "tiny.gguf")
    asked = []
    for lora, folder in (("mine", "old"), ("mine", "old"), ("mine", "new"), (None, "old")):
        adapters = {"mine": tmp_path / folder, "other": tmp_path / "new"}
        with lm.Runtime(tmp_path / "tiny.gguf", lora=adapters, kv_tokens=2_000) as tiny:
            found = tale.run_batch([(1,)], backend=tiny, journal=tmp_path / "j", lora=lora)
            assert found[0].text() == tale(1, backend=tiny, lora=lora).text()
            asked.append(2 - found.usage.reused_generations)
    assert asked == [2, 0, 2, 2]


if __name__ == "__main__":
    run(lm.Runtime(kv_tokens=4_096, deterministic=True), journal=sys.argv[1])
