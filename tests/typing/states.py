"""Types of states and of the words, read by mypy and pyright and run by nobody."""

from collections.abc import AsyncGenerator, Generator
from enum import Enum
from typing import Any

from typing_extensions import assert_type

import lmlang as lm
from lmlang.frontend.expression import Expression
from lmlang.frontend.forks import Forks
from lmlang.frontend.ir import Program
from lmlang.protocol import Usage


class Color(Enum):
    RED = "red"


def words() -> None:
    assert_type(lm.gen("x", max_tokens=3, stop="."), Expression)
    assert_type(lm.select("x", ["a", "b"]), Expression)
    assert_type(lm.select("x", Color, choices_method=lm.joint, ends_turn=True), Expression)
    assert_type("a" + lm.gen("x"), Expression)
    assert_type(lm.user("a" + lm.gen("x")) + "b", Expression)
    assert_type(lm.gen("x", type=int, think=5, on_budget="raise"), Expression)
    assert_type(lm.gen("x", json_schema={"type": "object"}, json_style=2), Expression)
    assert_type(lm.gen("x", logits_processor=lambda ids, row: row), Expression)
    assert_type(lm.gen_int("x", n=2), Expression)
    lm.gen("x", type=int, on_budget="cut")  # type: ignore[arg-type]
    lm.gen("x", max_tokens="3")  # type: ignore[arg-type]
    lm.gen(3)  # type: ignore[arg-type]
    lm.gen("x", max_token=3)  # type: ignore[call-arg]


def appending(s: lm.ProgramState) -> None:
    s += "a" + lm.gen("x")
    assert_type(s, lm.ProgramState)
    s.user("a")
    with s.assistant() as inner:
        assert_type(inner, lm.ProgramState)
    with s.var_scope("v") as inner:
        assert_type(inner, lm.ProgramState)
    with s.copy() as child:
        assert_type(child, lm.ProgramState)


def reading(s: lm.ProgramState) -> None:
    assert_type(s["x"], Any)
    assert_type("x" in s, bool)
    assert_type(s.text(), str)
    assert_type(s.text_of("x"), str)
    assert_type(s.token_ids(), list[int])
    assert_type(s.messages(), list[dict[str, str]])
    assert_type(s.usage(), Usage)
    assert_type(s.error(), BaseException | None)
    assert_type(s.program(), Program)
    assert_type(s.ret_value, Any)


def metadata(s: lm.ProgramState) -> None:
    meta = s.meta("x")
    assert_type(meta, lm.Meta)
    assert_type(meta.cached_tokens, int)
    assert_type(meta.margin, float | None)
    assert_type(meta.samples, tuple[lm.Meta, ...])
    assert_type(s.get_meta_info("x"), dict[str, Any] | list[dict[str, Any]])
    assert_type(meta.captures["a"].start, int)
    assert_type(meta.thought, str)
    meta.seed = 3  # type: ignore[misc]


def forking(s: lm.ProgramState) -> None:
    forks = s.fork(2)
    assert_type(forks, Forks[lm.ProgramState])
    assert_type(forks[0], lm.ProgramState)
    assert_type(forks[:1], list[lm.ProgramState])
    forks += "a" + lm.gen("x")
    forks += ["a", "b"]
    forks += lambda index: f"{index}: " + lm.gen("x")
    assert_type(forks, Forks[lm.ProgramState])
    for child in forks:
        assert_type(child, lm.ProgramState)
    forks.join("concate_and_append")
    forks.join("concatenate")  # type: ignore[arg-type]


def streaming(s: lm.ProgramState) -> None:
    assert_type(s.text_iter("x"), Generator[str, None, None])
    assert_type(s.text_async_iter(), AsyncGenerator[str, None])
    told = s.text_async_iter("x", return_meta_data=True)
    assert_type(told, AsyncGenerator[tuple[str, dict[str, Any] | list[dict[str, Any]]], None])


async def waiting(s: lm.ProgramState) -> None:
    assert_type(await s.aget("x"), Any)
    await s.adone()
    await s.fork(2).ajoin()


def backends() -> None:
    with lm.use(lm.Runtime(kv_tokens=1024)) as backend:
        assert_type(backend, lm.Backend)
    lm.set_default_backend(None)
    lm.use(3)  # type: ignore[arg-type]
