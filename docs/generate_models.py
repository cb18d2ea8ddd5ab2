"""Writes the tables of docs/reference/models.md from the list of types that the tests run.

python docs/generate_models.py
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from lmlang.runtime.models.hf_config import FAMILIES  # noqa: E402 - of this tree
from tests.models import zoo  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "models.md"

BEGIN = "## Types that run"
"""What stands before it is written by hand."""

REASONS = {
    zoo.STATE: (
        "beside keys and values it keeps a recurrent or convolutional state, which a tree of "
        "prefixes cannot share"
    ),
    zoo.LAYERS: "its layers choose, compress or bias what they attend to",
    zoo.ENCODER: "it is an encoder-decoder, or the decoder of one",
    zoo.ALIBI: "its positions are ALiBi biases on the scores",
    zoo.POSITIONS: "it numbers positions by itself, where a batch needs its own",
    zoo.PRIVATE: (
        "its attention does not go through transformers' `AttentionInterface`, so rows of a batch "
        "would see each other"
    ),
    zoo.MASK: "it makes the mask of its attention by itself",
    zoo.PLACES: "it scales queries by their place in the batch, not by their position",
}
"""For people, by how the message of the refusal begins."""


def page() -> str:
    """The page, its tables anew."""
    by_hand, _, _ = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return by_hand + "\n\n".join([*_running(), *_refused()]) + "\n"


def _running() -> list[str]:
    runs = zoo.RUNS | zoo.MORE
    lines = ["| `model_type` | computed by | |", "|---|---|---|"]
    for kind in sorted(runs):
        by = "native, transformers" if kind in FAMILIES else "transformers"
        note = "with `is_decoder`" if runs[kind] == zoo.DECODER else ""
        note = "its text; no pictures" if "text" in runs[kind] else note
        note = f"from transformers {zoo.SINCE[kind]} on" if kind in zoo.SINCE else note
        lines.append(f"| `{kind}` | {by} | {note} |")
    told = (
        f"These {len(runs)} types are run by the tests, each as a small model with random weights, "
        "and must give the same logits in pieces as whole. Other types of transformers' causal "
        "language models are tried when they are loaded."
    )
    return [BEGIN, told, "\n".join(lines)]


def _refused() -> list[str]:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for kind, (reason, _) in sorted((zoo.REFUSED | zoo.MORE_REFUSED).items()):
        by_reason[reason].append(f"`{kind}`")
    lines = ["| why | `model_type` |", "|---|---|"]
    lines += [f"| {told} | {', '.join(by_reason[reason])} |" for reason, told in REASONS.items()]
    told = (
        "A type stands here as its config has it by default; a config without the part that is "
        "refused may run. Models that see in both directions, such as `bert` without `is_decoder`, "
        "are refused too."
    )
    return ["## Types that are refused", told, "\n".join(lines)]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
