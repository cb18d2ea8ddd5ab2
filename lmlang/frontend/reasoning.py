"""Reasoning apart from the answer: the markers of model families, and how a text splits at them.

"<think>Paris is in France.</think>It is Paris."  ->  "Paris is in France.", "It is Paris."
"""

from __future__ import annotations

from dataclasses import dataclass

from lmlang.errors import ProgramError, quote


@dataclass(frozen=True, slots=True)
class Markers:
    """How a model family marks its reasoning.

    Args:
        begin: Stands before it.
        end: Stands behind it.
        begun: The output begins inside the reasoning, with or without ``begin``.
    """

    begin: str
    end: str
    begun: bool


_THINK = Markers("<think>", "</think>", begun=False)
_THINKING = Markers("<think>", "</think>", begun=True)

MARKERS = {
    "deepseek-r1": _THINKING,
    "glm45": _THINK,
    "kimi": Markers("◁think▷", "◁/think▷", begun=False),
    "qwen3": _THINK,
    "qwen3-thinking": _THINKING,
    "step3": _THINKING,
}
"""By SGLang's model types."""

SUFFIX = "_reasoning_content"
"""Behind a generation's name: the variable that holds its reasoning."""


def checked_type(model_type: object) -> str:
    """A known model type, in lower case."""
    if isinstance(model_type, str) and model_type.lower() in MARKERS:
        return model_type.lower()
    if model_type is None:
        raise ProgramError(
            f"separate_reasoning: give model_type=…, one of {', '.join(map(repr, MARKERS))}."
        )
    raise ProgramError(
        f"separate_reasoning: model_type={quote(repr(model_type))[1:-1]} is unknown: give one of "
        f"{', '.join(map(repr, MARKERS))}."
    )


def split(text: str, model_type: str) -> tuple[str, str]:
    """The reasoning in an output, and the rest of it; without reasoning "" and the output itself.

    An output that ends before the reasoning does is all reasoning.
    """
    markers = MARKERS[model_type]
    if not markers.begun and markers.begin not in text:
        return "", text
    reasoning, _, answer = text.replace(markers.begin, "").strip().partition(markers.end)
    return reasoning, answer.strip()
