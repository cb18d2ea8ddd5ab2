"""P4: twelve yes-or-no questions about one text in twelve forks; the text is computed once."""

from __future__ import annotations

from collections.abc import Sequence

import lmlang as lm
from lmlang.demo.say import Say

TAGS = (
    "sports", "science", "politics", "food", "travel", "music", "money", "weather", "health",
    "animals", "history", "technology",
)  # fmt: skip
TEXT = (
    "Marie Curie was born in Warsaw in 1867 and studied in Paris. With her husband Pierre she "
    "discovered the elements polonium and radium. She won the Nobel Prize in Physics in 1903 and "
    "the Nobel Prize in Chemistry in 1911."
)


@lm.function
def tags(s: lm.ProgramState, text: str, about: Sequence[str] = TAGS) -> dict[str, float]:
    """How likely a text is about each of some subjects."""
    s += "Text: " + text + "\n\n"
    forks = s.fork(len(about))
    for branch, subject in zip(forks, about, strict=True):
        branch += f"Question: Is this text about {subject}?\nAnswer:"
        branch += lm.select("answer", {"yes": " yes", "no": " no"})
    forks.join()
    return {
        subject: branch.meta("answer").probs["yes"]
        for branch, subject in zip(forks, about, strict=True)
    }


def run(runtime: lm.Runtime, say: Say) -> None:
    """One text, its likeliest subjects first."""
    say(TEXT)
    runtime.reset_stats()
    state = tags.run(text=TEXT, backend=runtime)
    for subject, chance in sorted(state.ret_value.items(), key=lambda pair: -pair[1]):
        say(f"  {chance:6.1%}  {subject}")
    stats = runtime.stats()
    say(f"{stats.prompt_tokens:,} prompt tokens, {stats.cached_tokens:,} of them shared")
