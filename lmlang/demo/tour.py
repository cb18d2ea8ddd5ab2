"""Five short programs on the embedded model, each with its output and what the runtime did."""

from __future__ import annotations

import dataclasses
import json
import textwrap
import time
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

import lmlang as lm
from lmlang.demo.say import Say
from lmlang.runtime.metrics import Stats

QUESTION = "What is Paris known for? Answer in two sentences."

CITIES = ("Milan", "Rome", "Venice")

PASSAGE = (
    "Marie Curie was born in Warsaw in 1867 and studied in Paris. With her husband Pierre she "
    "discovered the elements polonium and radium. She won the Nobel Prize in Physics in 1903 and "
    "the Nobel Prize in Chemistry in 1911."
)
ASKED = (
    "Where was she born?", "When was she born?", "What did she discover?",
    "Which prizes did she win?",
)  # fmt: skip

LIFE = (
    "Marie Curie (born on 7 November 1867) was a physicist. She won the Nobel Prize in Physics in "
    "1903 and the Nobel Prize in Chemistry in 1911."
)

COUNTRIES = (
    "Italy", "Japan", "Egypt", "Canada", "Norway", "Peru", "India", "Kenya", "Poland", "Greece",
    "Cuba", "Chile", "Austria", "Ireland", "Portugal", "Hungary", "Finland", "Russia", "China",
    "England",
)  # fmt: skip

EXAMPLES = (
    ("France", "Paris"), ("Spain", "Madrid"), ("Germany", "Berlin"), ("Brazil", "Brasília"),
    ("Belgium", "Brussels"), ("Denmark", "Copenhagen"), ("Sweden", "Stockholm"),
    ("Turkey", "Ankara"), ("Mexico", "Mexico City"), ("Argentina", "Buenos Aires"),
)  # fmt: skip


@lm.function
def chat(s: lm.ProgramState, question: str) -> None:
    """A chat turn in the model's own template."""
    s += lm.user(question)
    s += lm.assistant(lm.gen("answer", max_tokens=100, temperature=0))


@lm.function
def choose(s: lm.ProgramState, question: str) -> None:
    """A choice among three, scored exactly."""
    s += lm.user(question)
    s += lm.assistant(lm.select("city", CITIES))


@lm.function
def read(s: lm.ProgramState, passage: str) -> None:
    """One prompt, computed once, and four questions about it side by side."""
    s += lm.system("You answer questions about a text in one short sentence.")
    with s.user():
        s += passage + "\n\n"
        forks = s.fork(len(ASKED))
        for branch, question in zip(forks, ASKED, strict=True):
            branch += question
            branch += lm.user_end()
            branch += lm.assistant(lm.gen("fact", max_tokens=32, temperature=0))
        forks.join()


@dataclasses.dataclass
class Scientist:
    """What is to be read out of a text."""

    name: Annotated[str, Field(max_length=40)]
    year_of_birth: Annotated[int, Field(ge=1000, le=2100)]
    profession: Literal["biologist", "chemist", "mathematician", "physicist"]
    years_of_prizes: Annotated[list[Annotated[int, Field(ge=1901, le=2100)]], Field(max_length=2)]


@lm.function
def extract(s: lm.ProgramState, text: str) -> None:
    """A typed value: whatever the model writes, it is valid."""
    s += lm.user(text + "\n\nWrite down who this is about, as JSON.")
    s += lm.assistant(lm.gen("who", type=Scientist, max_tokens=120, temperature=0))


@lm.function
def capital(s: lm.ProgramState, country: str) -> None:
    """One row of a few-shot batch: every row begins with the same examples."""
    for known, answer in EXAMPLES:
        s += f"Country: {known}\nCapital: {answer}\n\n"
    s += f"Country: {country}\nCapital:" + lm.gen("capital", max_tokens=8, temperature=0, stop="\n")


def run_demo(say: Say) -> None:
    """Run the five programs on a runtime of their own; the last line is JSON."""
    say("Loading the embedded model, SmolLM2-135M-Instruct …")
    started = time.perf_counter()
    with lm.Runtime() as runtime:
        say(f"Loaded in {time.perf_counter() - started:.1f} s: {runtime.info().model}")
        totals = {
            "chat": _part(runtime, say, "A chat answer", _chat),
            "select": _part(runtime, say, "A select with probabilities", _choose),
            "fork": _part(runtime, say, "One prompt forked into four", _read),
            "extract": _part(runtime, say, "A typed value out of a text", _extract),
            "batch": _part(runtime, say, "Twenty rows over one few-shot prefix", _batch),
        }
    say("")
    say(json.dumps(totals))


def _chat(runtime: lm.Runtime, say: Say) -> None:
    say(f"> {QUESTION}")
    state = chat.run(question=QUESTION, backend=runtime)
    say(textwrap.fill(str(state["answer"]), 96))


def _choose(runtime: lm.Runtime, say: Say) -> None:
    question = "Which city is the capital of Italy: Milan, Rome or Venice?"
    say(f"> {question}")
    state = choose.run(question=question, backend=runtime)
    for city, probability in state.meta("city").probs.items():
        chosen = "  <- chosen" if city == state["city"] else ""
        say(f"  {city:<7} {probability:6.1%}{chosen}")


def _read(runtime: lm.Runtime, say: Say) -> None:
    say(textwrap.fill(PASSAGE, 96, initial_indent="> ", subsequent_indent="> "))
    state = read.run(passage=PASSAGE, backend=runtime)
    for question, fact in zip(ASKED, state["fact"], strict=True):
        say(f"  {question:<26} {fact.strip()}")


def _extract(runtime: lm.Runtime, say: Say) -> None:
    state = extract.run(text=LIFE, backend=runtime)
    say(textwrap.fill(LIFE, 96, initial_indent="> ", subsequent_indent="> "))
    say(textwrap.fill(repr(state["who"]), 94, initial_indent="  ", subsequent_indent="    "))
    meta = state.meta("who")
    say(f"  {meta.forced_tokens} of {meta.generated_tokens} tokens left no choice.")


def _batch(runtime: lm.Runtime, say: Say) -> None:
    states = capital.run_batch([{"country": country} for country in COUNTRIES], backend=runtime)
    cells = [
        f"{country}: {str(state['capital']).strip()}"
        for country, state in zip(COUNTRIES, states, strict=True)
    ]
    for row in range(0, len(cells), 4):
        say("  " + "".join(f"{cell:<24}" for cell in cells[row : row + 4]).rstrip())


def _part(
    runtime: lm.Runtime, say: Say, title: str, program: Callable[[lm.Runtime, Say], None]
) -> dict[str, int | float]:
    """Run one program and tell what it took."""
    say("")
    say(f"── {title} " + "─" * (92 - len(title)))
    runtime.reset_stats()
    started = time.perf_counter()
    program(runtime, say)
    seconds = time.perf_counter() - started
    stats = runtime.stats()
    computed = stats.computed_tokens + stats.scored_tokens
    steps = "1 step" if stats.steps == 1 else f"{stats.steps} steps"
    scored = f", {stats.scored_tokens} scored" if stats.scored_tokens else ""
    say(
        f"  [{stats.prompt_tokens} prompt tokens, {stats.cached_tokens} of them cached; "
        f"{stats.computed_tokens} computed{scored}; {stats.generated_tokens} generated;\n"
        f"   {steps}; {seconds:.2f} s; {computed / seconds:.0f} computed tokens/s]"
    )
    return _summary(stats, seconds)


def _summary(stats: Stats, seconds: float) -> dict[str, int | float]:
    counters = dataclasses.asdict(stats)
    names = (
        "requests", "prompt_tokens", "cached_tokens", "prefill_tokens", "decode_tokens",
        "computed_tokens", "generated_tokens", "forced_tokens", "scored_tokens", "steps",
    )  # fmt: skip
    return {name: counters[name] for name in names} | {"seconds": round(seconds, 3)}
