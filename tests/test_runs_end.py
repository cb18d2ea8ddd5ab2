"""Programs tell the engine when they end, however they end: nothing stays marked for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import lmlang as lm
from lmlang.runtime.local import Runtime
from tests.frontend.by_hand import deadlines_pass
from tests.tiny import tiny_model

over = threading.Event()
"""Whether the run has ended that was too late."""


@pytest.fixture(scope="module")
def rt() -> Iterator[Runtime]:
    model, tokenizer, template = tiny_model()
    with Runtime.over(model, tokenizer, template, kv_tokens=4_000) as rt:
        yield rt


def live(rt: Runtime) -> int:
    """States that the tree is kept for."""
    return sum(node.live for node in rt.tree().nodes)


@lm.function
def program(s: lm.ProgramState, how: str, rt: Runtime) -> None:
    s += "the user and the " + lm.gen("a", max_tokens=4, ignore_eos=True)
    for child in s.fork(3):
        child += "and " + lm.gen("b", max_tokens=3, ignore_eos=True)
    s.sync()
    if how == "raises":
        raise ValueError("stop")
    if how == "looks":
        assert live(rt) > 0
    if how == "too late":
        rt._engine.tell(lambda _: over.wait(60))
        deadlines_pass()
    s += lm.gen("c", max_tokens=3, ignore_eos=True)


@pytest.mark.parametrize("how", ["ends", "looks", "raises", "too late"])
def test_a_run_that_has_ended_leaves_no_mark(rt: Runtime, how: str) -> None:
    over.clear()
    error = {"raises": ValueError, "too late": lm.DeadlineExceeded}.get(how)
    if error is None:
        program.run(how, rt, backend=rt)
    else:
        with pytest.raises(error):
            program.run(how, rt, backend=rt, deadline=600)
    over.set()
    assert live(rt) == 0
    assert rt._engine.call(lambda loop: len(loop.scheduler.runs)) == 0
    rt.check()
