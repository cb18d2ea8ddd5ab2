"""Batches with a journal over OpenAI's interface: the journal is the client's."""

from __future__ import annotations

from pathlib import Path

import pytest

import lmlang as lm
from lmlang.runtime.local import Runtime
from tests.server.served import served
from tests.tiny import tiny_model

pytest.importorskip("openai", reason="needs the openai package: pip install 'lmlang[openai]'")


@lm.function
def talk(s: lm.ProgramState, name: str) -> None:
    s += lm.user("hello " + name) + lm.assistant(lm.gen("first", max_tokens=4))
    s += lm.user("the world") + lm.assistant(lm.gen("second", max_tokens=4, temperature=0))


def test_a_second_run_asks_the_server_nothing(tmp_path: Path) -> None:
    rows = [{"name": name} for name in ("ann", "bob")]
    model = "in memory"
    tiny = Runtime.over(*tiny_model(max_positions=2_000), kv_tokens=4_000)
    with tiny as runtime, served(runtime) as url:
        backend = lm.OpenAI(model, is_chat_model=True, base_url=f"{url}/v1")
        cold = talk.run_batch(rows, backend=backend, seed=1, journal=tmp_path / "j")
        runtime.reset_stats()
        warm = talk.run_batch(rows, backend=backend, seed=1, journal=tmp_path / "j")
        assert runtime.stats().steps == 0
        backend.close()
        assert [s.text() for s in warm] == [s.text() for s in cold]
        assert warm.usage.reused_generations == 4
        for other in (
            lm.OpenAI("other", is_chat_model=True, base_url=f"{url}/v1"),
            lm.OpenAI(model, is_chat_model=True, base_url="http://localhost:1/v1"),
        ):
            assert other.info().fingerprint != backend.info().fingerprint
            other.close()
