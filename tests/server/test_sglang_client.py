"""SGLang's own frontend, unmodified, against ``lmlang serve`` with the embedded model.

It runs in an environment of its own, which ``make test`` makes, as it asks for other versions of
torch and transformers than we do:

    python -m venv .venv/sglang-0.4.10.post2
    .venv/sglang-0.4.10.post2/bin/pip install requests numpy tqdm ipython pybase64 pydantic aiohttp
    .venv/sglang-0.4.10.post2/bin/pip install --no-deps sglang==0.4.10.post2
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lmlang as lm
from lmlang.runtime.local import Runtime
from lmlang.server.app import make_app
from tests.backends.served import served
from tests.tiny import tiny_model

PROGRAMS = Path(__file__).with_name("sglang_programs.py")
FIRST, LATER = "0.4.10.post2", "0.5.10"
SECONDS = 300


def python_with(version: str) -> str:
    """An interpreter that has this version of sglang; the test skips where there is none."""
    python = Path(sys.prefix) / f"sglang-{version}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"sglang {version} is not installed in {python.parent.parent}: see this file")
    return str(python)


def run(version: str, url: str, *names: str) -> dict[str, Any]:
    """What SGLang's programs gave against a server."""
    done = subprocess.run(
        [python_with(version), str(PROGRAMS), url, *names],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of ``lmlang serve``."""
    python_with(FIRST)
    command = [sys.executable, "-m", "lmlang", "serve", "--port", "0", "--kv-tokens", "16384"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        said = []
        for line in server.stderr:
            said.append(line)
            if '"listening"' in line:
                break
        assert said, "it ended without a word"
        assert '"listening"' in said[-1], said
        rest = threading.Thread(target=server.stderr.read)
        rest.start()
        try:
            yield f"http://127.0.0.1:{json.loads(said[-1])['port']}"
        finally:
            server.terminate()
            assert server.wait(SECONDS) == 0
            rest.join(SECONDS)


@pytest.fixture(scope="module")
def told(url: str) -> dict[str, Any]:
    return run(FIRST, url)


# ---------------------------------------------------------------- its own programs


def test_few_shot_qa(told):
    found = told["few_shot_qa"]
    assert "berlin" in found["single"].lower()
    assert "tokyo" in found["batch"][1].lower()
    assert found["single"] == found["batch"][0]


def test_mt_bench(told):
    found = told["mt_bench"]
    assert [message["role"] for message in found["messages"]] == [
        *("system", "user", "assistant", "user", "assistant")
    ]
    assert [found["messages"][at]["content"] for at in (2, 4)] == [
        answer.lstrip() for answer in found["answers"]
    ]
    assert "<|im_" not in "".join(found["answers"])


def test_select(told):
    found = told["select"]
    assert found.keys() == {
        *("token_length_normalized", "greedy_token_selection"),
        "unconditional_likelihood_normalized",
    }
    for one in found.values():
        assert one["answer"] in ("True", "False", "Unknown")
        assert one["end"].endswith(one["answer"])
        assert len(one["normalized"]) == 3
    assert len(told["select_in_a_batch"]) == 6
    assert set(told["select_in_a_batch"]) <= {0, 1}


def test_decode_int(told):
    assert [int(number) for number in told["decode_int"]] == [24, 7]


@pytest.mark.parametrize("name", ["decode_json", "decode_json_regex"])
def test_decode_json(told, name):
    city = json.loads(told[name])
    assert isinstance(city["name"], str)
    assert isinstance(city["population"], int)
    assert isinstance(city["area"], int)


def test_json_schema(told):
    person = json.loads(told["json_schema"])
    assert re.fullmatch("[A-Z][a-z]{1,9}", person["name"])
    assert 0 <= person["age"] <= 150


def test_expert_answer(told):
    found = told["expert_answer"]
    assert not set(".\n") & set(found["expert"])
    assert "." not in found["answer"]
    assert found["text"].endswith(f"{found['expert']} would say that {found['answer']}.")


def test_tool_use_and_react(told):
    assert ")" not in told["tool_use"]["expression"]
    assert told["tool_use"]["answer"] == "2450"
    assert told["react"]["actions"][0] in ("Search", "Finish")
    assert f"Action 1: {told['react']['actions'][0]}" in told["react"]["text"]


def test_parallel_decoding(told):
    found = told["parallel_decoding"]
    assert found["text"].endswith("\nIn summary," + found["summary"])
    assert [f"Tip {number}:" in found["text"] for number in (1, 2, 3)] == [True] * 3


def test_parallel_encoding(told):
    found = told["parallel_encoding"]
    statements = "".join(f"Statement {i}: {text}\n" for i, text in enumerate(found["contexts"]))
    assert statements in found["text"]
    assert found["text"].endswith("ASSISTANT:" + found["answer"])


def test_stream(told):
    found = told["stream"]
    assert len(found["answer"]) > 3
    assert "".join(found["text"]) == found["whole"]
    assert "".join(found["answer"]) == found["value"] == found["unstreamed"]
    assert found["meta"]["finish_reason"]["type"] in ("stop", "length")


def test_regex(told):
    assert re.fullmatch(told["regex"]["pattern"], told["regex"]["answer"])


def test_dtype_gen(told):
    found = told["dtype_gen"]
    int(found["int"])
    float(found["float"])
    assert found["bool"] in ("True", "False")
    assert found["str"].startswith('"')


def test_min_tokens(told):
    assert 12 <= told["min_tokens"]["completion_tokens"] <= 16


def test_log_probabilities(told):
    meta = told["log_probabilities"]["meta"]
    inputs, outputs = meta["input_token_logprobs"], meta["output_token_logprobs"]
    assert "".join(text for _, _, text in inputs) == "The capital of France is"
    assert "".join(text for _, _, text in outputs) == told["log_probabilities"]["answer"]
    assert [len(top) for top in meta["output_top_logprobs"]] == [2] * len(outputs)


def test_administration(told):
    assert "SmolLM2" in told["administration"]["model"]
    assert told["administration"]["context"] == 8192


def test_refusals_reach_the_program(told):
    assert "top_p=5.0" in told["refused"]


# ---------------------------------------------------------------- a later one, and our own


def test_a_later_frontend_runs_too(url, told):
    names = ["few_shot_qa", "select", "stream", "dtype_gen", "administration"]
    found = run(LATER, url, *names)
    assert found["few_shot_qa"] == told["few_shot_qa"]
    assert found["stream"]["value"] == told["stream"]["value"]
    assert found["administration"] == told["administration"]
    for method, one in found["select"].items():
        assert one["answer"] == told["select"][method]["answer"]


def test_it_scores_choices_as_our_own_frontend_does():
    @lm.function
    def program(s, statement, method):
        s += "Say whether each statement is True, False, or Unknown.\n"
        s += "Statement: The capital of France is Berlin.\nAnswer: False\n"
        s += "Statement: The capital of Italy is Rome.\nAnswer: True\n"
        s += "Statement: " + statement + "\nAnswer: "
        s += lm.select("answer", ["True", "False", "Unknown"], choices_method=method)

    with Runtime.over(*tiny_model(max_positions=4096), kv_tokens=4096) as runtime:
        with served(make_app(runtime)) as url:
            theirs = run(FIRST, url, "select")["select"]
        for name, found in theirs.items():
            state = program.run(
                statement="The capital of Germany is Berlin.",
                method=getattr(lm, name),
                backend=runtime,
            )
            info = state.get_meta_info("answer")
            assert state["answer"] == found["answer"]
            assert info["normalized_prompt_logprobs"] == pytest.approx(
                found["normalized"], abs=1e-4
            )
