"""What answers are worth: as those of a reference, valid, right."""

from __future__ import annotations

from typing import Any

from choices import MARGIN
from typed import read


def judged(name: str, work: Any, results: dict[str, dict[str, Any]], reference: Any) -> None:
    """Count what is as in a reference, and tokens that were made; drops the answers."""
    for found in results.values():
        answer = found.pop("answer", None)
        if answer is not None and name == "typed":
            found |= _typed(work, answer)
            continue
        if answer is None or reference is None:
            continue
        if name == "choose":
            found |= _choices(work, answer, reference)
            continue
        pairs = [(_plain(a, work), _plain(b, work)) for a, b in zip(answer, reference, strict=True)]
        found["same"] = sum(a == b for a, b in pairs)
        found["of"] = len(pairs)
        found["tokens"] = sum(map(len, answer))
        if name == "json":
            found["right"] = sum(
                _plain(row, work) == wanted
                for row, wanted in zip(answer, work["right"], strict=True)
            )


def _typed(work: Any, texts: list[str]) -> dict[str, Any]:
    """How many texts are of the schema, and how many say what the reviews say."""
    records = [read(text) for text in texts]
    valid = sum(record is not None for record in records)
    right = sum(a == b for a, b in zip(records, work["right"], strict=True))
    return {"valid": valid, "of": len(texts), "right": right}


def _plain(row: list[int], work: Any) -> list[int]:
    """A row without the end of its line."""
    return row[:-1] if row and row[-1] in work.get("ends", ()) else row


def _choices(work: Any, answer: Any, reference: Any) -> dict[str, Any]:
    chosen = answer["chosen"] if isinstance(answer, dict) else answer
    wanted = reference["chosen"]
    close = [sorted(row)[-1] - sorted(row)[-2] < MARGIN for row in reference["logprobs"]]
    same = sum(a == b or near for a, b, near in zip(chosen, wanted, close, strict=True))
    right = sum(
        0 <= c < len(q["choices"]) and q["choices"][c] == q["answer"]
        for q, c in zip(work["questions"], chosen, strict=True)
    )
    return {"same": same, "of": len(chosen), "right": right}
