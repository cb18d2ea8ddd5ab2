"""lmlang as a subject: the programs as they are written in the language, on one Runtime."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import report

# isort: split
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from choices import Choices
from reviews import Question
from rows import our_prefill
from typed import Typed
from writings import Chats, Extractions, Forks, Tree

import lmlang as lm
from lmlang.runtime import batch

KV_TOKENS = 16_384
NEVER = 1 << 40
"""Slots to save before a shared prefix is attended once for its rows: more than there are."""
KINDS: Mapping[str, Any] = {"fork": Forks, "json": Extractions, "chat": Chats, "tree": Tree}


def workload(name: str, work: Mapping[str, Any]) -> Any:
    """A program of `writings` or `choices` from its JSON."""
    if name == "choose":
        asked = [Question(**{**q, "choices": tuple(q["choices"])}) for q in work["questions"]]
        return Choices(work["shots"], asked, work["prefix"], work["ids"])
    found = dict(work)
    for key in ("endings", "ends"):
        if key in found:
            found[key] = tuple(found[key])
    if name == "chat":
        found["said"] = [tuple(said) for said in found["said"]]
    return KINDS[name](**found)


def typed(work: Mapping[str, Any]) -> Typed:
    """Typed records from their JSON."""
    return Typed(**{**work, "ends": tuple(work["ends"])})


def made(
    model: str, folder: str, *, cascade: bool = True, **parameters: Any
) -> Callable[[str, dict[str, Any]], tuple[float, Any, dict[str, int]]]:
    """A runtime that runs works.

    Args:
        model: The GGUF file.
        folder: Not needed.
        cascade: Whether rows that share a prefix attend to it together.
        **parameters: Of the Runtime.
    """
    if not cascade:
        batch.MIN_SAVED_ON_CPU = NEVER
    runtime = lm.Runtime(model, kv_tokens=KV_TOKENS, **parameters)

    def run(name: str, work: dict[str, Any]) -> tuple[float, Any, dict[str, int]]:
        runtime.flush_cache()
        runtime.reset_stats()
        if name == "raw":
            seconds, more = our_prefill(runtime, work["ids"], work["tokens"])
            answer = [[*row, *new] for row, new in zip(work["ids"], more, strict=True)]
        elif name == "typed":
            seconds, answer = typed(work).ours(runtime)
        else:
            seconds, answer = workload(name, work).ours(runtime)
            if name == "choose":
                answer = dataclasses.asdict(answer) | {"chosen": answer.chosen}
        stats = runtime.stats()
        counted = {"computed": stats.computed_tokens + stats.scored_tokens, "steps": stats.steps}
        return seconds, answer, counted

    assert report  # which sets OpenMP up before torch is loaded
    return run
