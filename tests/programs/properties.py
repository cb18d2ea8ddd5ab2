"""What holds for every program: its sums, its silence, its seed, and a runtime that is at rest."""

from __future__ import annotations

from typing import Any

import pytest

import lmlang as lm
from lmlang.protocol import Usage

SEED = 7


def ran(
    program: Any, rows: list[dict[str, Any]], runtime: lm.Runtime, **keywords: Any
) -> list[lm.ProgramState]:
    """The states of a batch, once what holds for all has been looked at.

    The states' sums are those of their logs, the runtime counted the same, and nothing is left.
    """
    runtime.reset_stats()
    keywords = {"seed": SEED, **keywords}
    result = program.run_batch(rows, backend=runtime, **keywords)
    total = Usage()
    for state in result:
        assert state.usage() == state.run_log().usage
        total += state.usage()
    stats = runtime.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.generated_tokens == stats.sampled_tokens + stats.forced_tokens
    assert result.usage.prompt_tokens == total.prompt_tokens
    assert result.usage.generated_tokens == total.generated_tokens
    return list(result)


def value_of(state: lm.ProgramState) -> tuple[Any, str]:
    """What two equal runs have in common."""
    return state.ret_value, state.text()


def same_alone(
    program: Any, rows: list[dict[str, Any]], states: list[lm.ProgramState], runtime: lm.Runtime
) -> None:
    """A batch equals its single runs of the same seed; for models without ties only."""
    for row, state in zip(rows, states, strict=True):
        alone = program.run(**row, backend=runtime, seed=SEED)
        assert value_of(alone) == value_of(state)


def silent(capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing has been written to either stream."""
    assert capfd.readouterr() == ("", "")
