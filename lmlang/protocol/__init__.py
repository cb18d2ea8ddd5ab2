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
    Provenance,
    Scores,
    TopLogprobs,
    TopProbs,
    Usage,
)
from lmlang.protocol.answering import (
    answering,
    is_answering,
)
from lmlang.protocol.backend import (
    Backend,
    BackendInfo,
    MayChange,
    RunAware,
    TokenAware,
    ToolAware,
    ToolForm,
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
    LogitsProcessor,
    OnBudget,
    Request,
    SamplingParams,
    ScoreRequest,
    Tag,
)
from lmlang.protocol.tree import (
    CacheTree,
    TreeNode,
)

__all__ = [
    "Backend",
    "BackendInfo",
    "CacheTree",
    "ChoiceScore",
    "EndTurn",
    "Event",
    "Finish",
    "FinishReason",
    "Generation",
    "Image",
    "InputLogprobs",
    "LogitsProcessor",
    "MayChange",
    "OnBudget",
    "Output",
    "Prompt",
    "Provenance",
    "Request",
    "RunAware",
    "SamplingParams",
    "ScoreRequest",
    "Scores",
    "Segment",
    "Tag",
    "Text",
    "TokenAware",
    "Tokens",
    "ToolAware",
    "ToolForm",
    "TopLogprobs",
    "TopProbs",
    "TreeNode",
    "Turn",
    "Usage",
    "answering",
    "is_answering",
]
