"""What constraints cost: from text to the first mask, masks along documents, and what is forced.

    compile   a schema or pattern as text, to the mask of the first token
    first     masks along valid documents, with a grammar that no output has had before, and that
              has had the time that the service takes while a first prompt is read
    again     the same for a second output of the same grammar
    forced    tokens that the grammar leaves no choice about; each must be the document's own. More
              lie in forced bytes; of these another document is looked for that begins with the same
              tokens and has another one there, so that nobody could force them. Those that are held
              open because of it are computed in the pass of what is before them all the same, and
              cost none of their own where they are what is drawn

Every engine sees the same texts in turn in the same process, so the ratios depend little on the
machine. Documents are those that all engines take, written compactly. No model runs.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from constraints import PATTERNS, Case, Writer, cases
from engines import OURS, Engine, engines
from tables import print_json, print_table

from lmlang.grammar.automaton import State
from lmlang.grammar.compiler import compile_spec
from lmlang.grammar.grammar import Grammar
from lmlang.grammar.spec import JsonSchema
from lmlang.grammar.vocabulary import Vocabulary
from lmlang.runtime.models.fetch import find_embedded_model
from lmlang.runtime.models.gguf_file import open_gguf
from lmlang.runtime.tokenizer import Tokenizer

MAX_OTHERS = 2_000
"""Other documents that are tried for one token."""
KNOWN_TOKENS = 24
"""Of the tokens before it so many are looked at."""


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Microseconds that a piece of work took, and what it returned."""
    started = time.perf_counter_ns()
    done = work()
    return (time.perf_counter_ns() - started) / 1e3, done


def shown(values: Sequence[float]) -> dict[str, float]:
    """What is told of many times."""
    ordered = sorted(values)
    at = {name: ordered[int(part * (len(ordered) - 1))] for name, part in
          (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))}  # fmt: skip
    return {
        name: round(value, 2) for name, value in (at | {"mean": statistics.fmean(ordered)}).items()
    }


def compiled(engine: Engine, make: Callable[[str], Any], text: str) -> tuple[float | None, Any]:
    """Microseconds from a text to the mask of its first token; None where it is refused."""

    def work() -> Any:
        made = make(text)
        engine.begin(made).fill()
        return made

    try:
        return timed(work)
    except Exception:  # each has its own errors
        return None, None


def along(engine: Engine, made: Any, ids: Sequence[int]) -> list[float] | None:
    """Microseconds of each mask along a document; None where it does not allow all of it."""
    output = engine.begin(made)
    times = []
    for index in ids:
        micros, _ = timed(output.fill)
        times.append(micros)
        if not output.allows(index):
            return None
        output.accept(index)
    return times


def regexes(found: Sequence[Engine], repeat: int) -> dict[str, Any]:
    """Compile typical patterns, and walk outputs of ours twice."""
    times: dict[str, dict[str, list[float]]] = {engine.name: {} for engine in found}
    for turn in range(repeat):
        for name, pattern in PATTERNS.items():
            for engine in found:
                # An empty group, so that nobody finds what was compiled in an earlier turn.
                micros, _ = compiled(engine, engine.regex, pattern + "(?:)" * turn)
                if micros is not None:
                    times[engine.name].setdefault(name, []).append(micros)
    ours = found[0]
    warm: list[float] = []
    for pattern in PATTERNS.values():
        made = ours.regex(pattern)
        for seed in range(3):
            ids = made.vocabulary.encode(made.sample(seed, budget=64))
            along(ours, made, ids)
            warm += along(ours, made, ids) or []
    medians = {
        name: {pattern: statistics.median(each) for pattern, each in taken.items()}
        for name, taken in times.items()
    }
    return {
        "compile": {name: shown(list(each.values())) for name, each in medians.items() if each},
        "patterns": medians,
        "warm": shown(warm),
    }


def schemas(found: Sequence[Engine], given: Sequence[Case]) -> tuple[dict[str, Any], list[Case]]:
    """Compile every schema with every engine; those that all of them take."""
    times: dict[str, list[float]] = {engine.name: [] for engine in found}
    common: dict[str, list[float]] = {engine.name: [] for engine in found}
    kept = []
    for case in given:
        took = {engine.name: compiled(engine, engine.schema, case.schema)[0] for engine in found}
        for name, micros in took.items():
            if micros is not None:
                times[name].append(micros)
                if None not in took.values():
                    common[name].append(micros)
        if None not in took.values():
            kept.append(case)
    result = {
        "schemas": len(given),
        "taken": {name: len(each) for name, each in times.items()},
        "all_taken": {name: shown(each) for name, each in times.items() if each},
        "common": len(kept),
        "compile": {name: shown(each) for name, each in common.items() if each},
    }
    return result, kept


def masks(found: Sequence[Engine], kept: Sequence[Case], vocabulary: Vocabulary) -> dict[str, Any]:
    """Masks along the documents that every engine allows, with fresh grammars and once more."""
    first: dict[str, list[float]] = {engine.name: [] for engine in found}
    again: dict[str, list[float]] = {engine.name: [] for engine in found}
    documents = left_out = 0
    for case in kept:
        fresh = {engine.name: engine.schema(case.schema) for engine in found}
        writer = Writer(found[0].schema(case.schema).automaton, case.schema)
        texts = [writer.written(document) for document in case.documents]
        for engine in found:
            engine.ready(fresh[engine.name])
        gc.collect()  # the case before and what wrote the texts, which no runtime has beside it
        for text in texts:
            ids = [] if text is None else vocabulary.encode(text)
            taken = {engine.name: along(engine, fresh[engine.name], ids) for engine in found}
            if not ids or None in taken.values():
                left_out += 1
                continue
            documents += 1
            for engine in found:
                first[engine.name] += taken[engine.name] or []
                again[engine.name] += along(engine, fresh[engine.name], ids) or []
    return {
        "documents": documents,
        "left_out": left_out,
        "tokens": len(first[OURS]),
        "first": {name: shown(each) for name, each in first.items() if each},
        "again": {name: shown(each) for name, each in again.items() if each},
    }


def forced(given: Sequence[Case], vocabulary: Vocabulary) -> dict[str, Any]:
    """How many tokens of all documents that we take are forced, and whether they are their own."""
    tokens = free = other = documents = inside = held = missed = 0
    shown: dict[Any, bool] = {}
    open_ = Counter[bool]()
    for case in given:
        try:
            grammar = compile_spec(JsonSchema(case.schema, "compact"), vocabulary)
        except Exception:  # counted where schemas are compiled
            continue
        for document in case.documents:
            text = Writer(grammar.automaton, case.schema).written(document)
            if text is None:
                continue
            ids, at = vocabulary.encode(text), 0
            matcher = grammar.matcher()
            documents += 1
            inside += _inside(grammar, ids)
            while at < len(ids):
                run = matcher.forced_tokens()
                other += run != list(ids[at : at + len(run)])
                if not run:
                    free += 1
                    run = [ids[at]]
                    guess = matcher.held_token()
                    held += guess == ids[at]
                    missed += guess not in (None, ids[at])
                    if matcher.forced_bytes().startswith(vocabulary.pieces[ids[at]]):
                        key = (matcher.state, *ids[max(0, at - 8) : at + 1])
                        if key not in shown:
                            known = ids[max(0, at - KNOWN_TOKENS) : at]
                            shown[key] = _otherwise(grammar, known, ids[at], matcher.state)
                        open_[shown[key]] += 1
                matcher.accept_tokens(ids[at : at + len(run)])
                at += len(run)
            tokens += len(ids)
    share = (tokens - free) / tokens if tokens else 0.0
    return {
        "documents": documents,
        "tokens": tokens,
        "passes": free - held,
        "forced": round(share, 4),
        "held_open": round(held / tokens, 4) if tokens else 0.0,
        "held_open_in_vain": missed,
        "inside_forced_bytes": round(inside / tokens, 4) if tokens else 0.0,
        "elsewise_in_another_document": open_[True],
        "undecided": open_[False],
        "runs_unlike_the_document": other,
    }


def _inside(grammar: Grammar, ids: Sequence[int]) -> int:
    """How many tokens have no byte that was not forced: with luck, all that could be forced."""
    found, state = 0, grammar.automaton.start
    for index in ids:
        data = grammar.vocabulary.token_bytes[index]
        found += grammar.automaton.forced(state).startswith(data)
        behind = grammar.automaton.run(state, data)
        assert behind is not None, "the document was written by this automaton"
        state = behind
    return found


def _otherwise(grammar: Grammar, before: Sequence[int], own: int, state: State) -> bool:
    """Whether a document was found that goes on after the same tokens with other than ``own``."""
    automaton, vocabulary = grammar.automaton, grammar.vocabulary
    run = automaton.forced(state)
    behind = automaton.run(state, run)
    assert behind is not None, "forced bytes are possible"
    begun = b"".join([vocabulary.pieces[index] for index in before])
    level = [(run, behind)]
    for _ in range(2):  # documents that part within so many bytes
        level = [
            (data + bytes([byte]), onward)
            for data, here in level
            for byte in automaton.following(here)
            if (onward := automaton.push(here, byte)) is not None
        ][:MAX_OTHERS]
        for data, here in level:
            ids = vocabulary.encode(
                (begun + data + automaton.completion(here)).decode("utf-8", "replace")
            )
            if ids[: len(before)] == list(before) and ids[len(before)] != own:
                return True
    return False


def table(title: str, measured: Mapping[str, Mapping[str, float]], unit: float = 1) -> None:
    """Print what was measured of each engine, and how its median compares to ours."""
    ours = measured[OURS]["p50"]
    names = ("p50", "p90", "p99", "max", "mean")
    rows = [
        [name, *(f"{values[each] / unit:,.2f}" for each in names), f"{values['p50'] / ours:.2f}"]
        for name, values in measured.items()
    ]
    print_table(title, ["", *names, "p50 / ours"], rows)


def told(
    name: str, vocabulary: Vocabulary, given: Sequence[Case], repeat: int, skip: Sequence[str]
) -> dict[str, Any]:
    """Measure everything with one vocabulary and print it."""
    found, missing = engines(vocabulary, skip)
    print(f"\n== {name}: {vocabulary.size:,} tokens", *missing, sep="\n")
    gc.collect()
    by_pattern = regexes(found, repeat)
    by_schema, kept = schemas(found, given)
    by_mask = masks(found, kept, vocabulary)
    by_force = forced(given, vocabulary)
    table(f"regex, text to first mask, ms ({len(PATTERNS)} patterns)", by_pattern["compile"], 1e3)
    table("regex, a mask of a state met before, µs", {OURS: by_pattern["warm"]})
    taken = ", ".join(f"{count} by {engine}" for engine, count in by_schema["taken"].items())
    table(
        f"schema, text to first mask, ms (all that each takes; of {len(given)}: {taken})",
        by_schema["all_taken"],
        1e3,
    )
    common = by_schema["common"]
    table(f"schema, text to first mask, ms (the {common} that all take)", by_schema["compile"], 1e3)
    for turn, title in (("first", "fresh grammars"), ("again", "a second output of each")):
        size = f"{by_mask['tokens']:,} tokens of {by_mask['documents']} documents"
        table(f"mask, µs, {title} ({size})", by_mask[turn])
    print(
        f"\nforced: {by_force['forced']:.1%} of {by_force['tokens']:,} tokens of "
        f"{by_force['documents']} documents, and {by_force['held_open']:.1%} held open and drawn "
        f"in the same pass ({by_force['held_open_in_vain']} others in vain), so "
        f"{by_force['passes']:,} passes; {by_force['inside_forced_bytes']:.1%} lie in forced "
        f"bytes, of which {by_force['elsewise_in_another_document']:,} more have another valid "
        f"document with another token there, and of {by_force['undecided']:,} none was found; "
        f"{by_force['runs_unlike_the_document']} runs that are not the document's own"
    )
    facts = {"vocabulary": name, "size": vocabulary.size, "missing": missing}
    return facts | {"regex": by_pattern, "schema": by_schema, "mask": by_mask, "forced": by_force}


def main() -> None:
    """Measure in turns, print tables and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="turns of the patterns (default: 3)")
    parser.add_argument("--small", action="store_true", help="few schemas; times mean little")
    parser.add_argument("--model", type=Path, help="a .gguf file (default: the embedded model)")
    parser.add_argument("--llama3", type=Path, help="a folder with Llama 3's tokenizer.json")
    parser.add_argument("--skip", nargs="*", default=[], help="engines to leave out")
    given = parser.parse_args()
    path = given.model or find_embedded_model()
    tokenizers = {path.name: Tokenizer.from_gguf(open_gguf(path).metadata)}
    if given.llama3:
        tokenizers["Llama 3"] = Tokenizer.from_folder(given.llama3)
    else:
        print("Llama 3's 128k tokens are not measured: give --llama3 a folder with tokenizer.json")
    measured = cases(given.small)
    if not given.small:
        random.Random(0).shuffle(measured)
    results = [
        told(name, Vocabulary.of(each), measured, given.repeat, given.skip)
        for name, each in tokenizers.items()
    ]
    facts = {"python": platform.python_version(), "load_before": round(os.getloadavg()[0], 2)}
    facts |= {"versions": {name: _version(name) for name in ("llguidance", "xgrammar", "numpy")}}
    line = {"benchmark": "grammar", "small": given.small, "model": path.name, **facts}
    print_json(line | {"repeat": given.repeat, "results": results})


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
