"""What crosses the border between programs and backends: prompts, requests, generations, scores.

    frontend --Request--> Backend --Generation (future + Event stream)--> frontend
             --ScoreRequest-->     --Future[Scores]-->

Values are frozen; a `Generation` is the one living thing, and it is thread-safe.
"""

from __future__ import annotations

from lmlang.protocol.answer import (
    ChoiceScore,
    Event,
    Finish,
    FinishReason,
    InputLogprobs,
    Output,
    Scores,
    TopLogprobs,
    Usage,
)
from lmlang.protocol.answering import (
    answering,
    is_answering,
)
from lmlang.protocol.backend import (
    Backend,
    BackendInfo,
)
from lmlang.protocol.generation import (
    Generation,
)
from lmlang.protocol.prompt import (
    EndTurn,
    Image,
    Prompt,
    Segment,
    Text,
    Tokens,
    Turn,
)
from lmlang.protocol.request import (
    Request,
    SamplingParams,
    ScoreRequest,
    Tag,
)

__all__ = [
    "Backend",
    "BackendInfo",
    "ChoiceScore",
    "EndTurn",
    "Event",
    "Finish",
    "FinishReason",
    "Generation",
    "Image",
    "InputLogprobs",
    "Output",
    "Prompt",
    "Request",
    "SamplingParams",
    "ScoreRequest",
    "Scores",
    "Segment",
    "Tag",
    "Text",
    "Tokens",
    "TopLogprobs",
    "Turn",
    "Usage",
    "answering",
    "is_answering",
]
