"""Programs on models that transformers computes: tokens, cache and choices are right."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import lmlang as lm
from lmlang.errors import ProgramError
from lmlang.protocol import Prompt, ScoreRequest, Text
from tests.models import zoo
from tests.models.folders import save
from tests.models.paged import whole
from tests.reference import greedy
from tests.tiny import write_tiny_gguf

TEXTS = ["hello", "the user's 12 hello", "a\n\nb, you"]
STORY = "the user hello world and the hello user, " * 3


@lm.function
def more(s: Any, text: str) -> None:
    s += text
    s += lm.gen("x", max_tokens=20, temperature=0, ignore_eos=True)


@lm.function
def branches(s: Any, text: str) -> Any:
    s += text
    for i, fork in enumerate(forks := s.fork(3)):
        fork += f" {i}" + lm.gen("x", max_tokens=6, temperature=0, ignore_eos=True)
    forks.join()
    s += lm.select("choice", ["hello", " the world", " user"])
    return [list(fork.meta("x").tokens) for fork in forks]


KINDS = ["gpt_neox", "gpt_oss", "deepseek_v3", "gemma4_text"]


@pytest.fixture(scope="module", params=KINDS)
def model(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A plain model; windows, sinks and experts; values of another size; layers of two sizes."""
    if why := zoo.missing(request.param):
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("model") / request.param
    return folder, save(folder, request.param)


def test_greedy_tokens_of_a_batch_are_those_of_transformers(model):
    folder, reference = model
    with lm.Runtime(folder, kv_tokens=512, max_batch_tokens=16) as runtime:
        assert runtime.info().implementation == "transformers"
        rows = more.run_batch([{"text": text} for text in TEXTS], backend=runtime)
        for text, row in zip(TEXTS, rows, strict=True):
            expected = greedy(reference, runtime.encode(Prompt.of(Text(text))), 20)
            assert list(row.meta("x").tokens) == expected
        runtime.check()


def test_forks_and_choices_go_on_from_what_is_cached(model):
    folder, reference = model
    with lm.Runtime(folder, kv_tokens=512) as runtime:
        state = branches.run(STORY, backend=runtime)
        first = runtime.stats()
        story = len(runtime.encode(Prompt.of(Text(STORY))))
        assert first.cached_tokens >= 3 * (story - 1)  # of four requests, the first computes it
        for i in range(3):
            ids = runtime.encode(Prompt.of(Text(f"{STORY} {i}")))
            assert state.ret_value[i] == greedy(reference, ids, 6)
        again = branches.run(STORY, backend=runtime)
        assert again.text() == state.text()
        computed = runtime.stats().computed_tokens - first.computed_tokens
        assert computed < first.computed_tokens / 2
        runtime.check()


def test_scores_of_choices_are_those_of_whole_rows(model):
    folder, reference = model
    choices = (" hello", " the world", "!! user")
    with lm.Runtime(folder, kv_tokens=512) as runtime:
        prompt = Prompt.of(Text(STORY))
        scores = runtime.score(ScoreRequest(prompt, choices)).result()
        for choice, score in zip(choices, scores.choices, strict=True):
            ids = runtime.encode(Prompt.of(Text(STORY + choice)))
            start = len(ids) - len(score.ids)
            assert ids[start:] == list(score.ids)
            logprobs = whole(reference, ids).log_softmax(-1)
            exact = [logprobs[start - 1 + i, token] for i, token in enumerate(score.ids)]
            torch.testing.assert_close(
                torch.tensor(score.logprobs), torch.stack(exact), atol=1e-3, rtol=0
            )


def test_runtimes_that_share_a_model_do_not_meet(model):
    folder, _ = model
    with lm.Runtime(folder, kv_tokens=256) as one, lm.Runtime(folder, kv_tokens=256) as two:
        assert one._opened is two._opened
        alone = [more.run(text, backend=one).text() for text in TEXTS]
        found: dict[int, list[str]] = {}

        def work(number: int, backend: lm.Runtime) -> None:
            backend.flush_cache()
            found[number] = [more.run(text, backend=backend).text() for text in TEXTS]

        threads = [threading.Thread(target=work, args=pair) for pair in enumerate((one, two))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {0: alone, 1: alone}


def test_native_and_transformers_say_the_same_of_one_folder(tmp_path):
    save(tmp_path, "llama")
    with (
        lm.Runtime(tmp_path, kv_tokens=256) as native,
        lm.Runtime(tmp_path, kv_tokens=256, model_impl="transformers") as other,
    ):
        assert native.info().implementation == "native"
        assert other.info().implementation == "transformers"
        for text in TEXTS:
            states = [more.run(text, backend=runtime) for runtime in (native, other)]
            assert states[0].meta("x").tokens == states[1].meta("x").tokens


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_may_be_in_short_types(model, dtype):
    folder, _ = model
    with lm.Runtime(folder, kv_tokens=256, dtype=dtype) as runtime:
        assert runtime._opened.model.dtype == getattr(torch, dtype)
        assert more.run(TEXTS[0], backend=runtime).meta("x").tokens


def test_what_only_the_native_code_can_do_is_refused(model, tmp_path):
    folder, _ = model
    with pytest.raises(ProgramError, match="deterministic=True fixes the order of our own sums"):
        lm.Runtime(folder, kv_tokens=64, deterministic=True)
    path = write_tiny_gguf(tmp_path / "m.gguf")
    with pytest.raises(ProgramError, match="is a GGUF file, which runs natively"):
        lm.Runtime(path, implementation="transformers")
    with pytest.raises(ProgramError, match="implementation='x' is unknown: give one of 'auto'"):
        lm.Runtime(path, implementation="x")
