"""OpenVINO GenAI as a subject: it reads the GGUF file itself; prefix cache, structured choices."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
from plays import Ids, Work, common, play

SETTINGS = {"INFERENCE_NUM_THREADS": int(os.environ["OMP_NUM_THREADS"])}


class OpenVINO:
    """A pipeline with continuous batching.

    Args:
        model: The GGUF file.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self.fresh()

    def fresh(self) -> None:
        """A new pipeline, as prefixes cannot be forgotten; its time is nobody's."""
        self._pipe = None
        config = genai.SchedulerConfig()
        config.enable_prefix_caching = True
        config.cache_size = 1  # GiB
        config.max_num_seqs = 64
        self._pipe = genai.ContinuousBatchingPipeline(self._model, config, "CPU", SETTINGS)
        self._tokenizer = self._pipe.get_tokenizer()

    def complete(self, rows: Ids, tokens: int, ends: Sequence[int] = ()) -> Ids:
        """See `plays.Engine`."""
        config = genai.GenerationConfig()
        config.do_sample, config.apply_chat_template = False, False
        config.max_new_tokens, config.ignore_eos = tokens, not ends
        if ends:
            config.stop_token_ids = set(ends)
        return self._generated(rows, [config] * len(rows))

    def choose(self, prefix: list[int], questions: list[Work]) -> list[int]:
        """See `plays.Engine`: greedy among the choices, token by token."""
        self.complete([prefix], 1)
        configs = []
        for question in questions:
            config = genai.GenerationConfig()
            config.do_sample, config.apply_chat_template = False, False
            config.max_new_tokens = 16
            either = "|".join(map(re.escape, question["choices"]))
            config.structured_output_config = genai.StructuredOutputConfig(regex=either)
            configs.append(config)
        rows = [question["ids"][0][: common(question["ids"])] for question in questions]
        texts = [self._tokenizer.decode(ids) for ids in self._generated(rows, configs)]
        return [
            next((i for i, c in enumerate(q["choices"]) if c.strip() == text.strip()), -1)
            for q, text in zip(questions, texts, strict=True)
        ]

    def written(self, rows: Ids, schema: str, tokens: int) -> list[str]:
        """See `plays.Engine`."""
        config = genai.GenerationConfig()
        config.do_sample, config.apply_chat_template = False, False
        config.max_new_tokens = tokens
        config.structured_output_config = genai.StructuredOutputConfig(json_schema=schema)
        done = self._generated(rows, [config] * len(rows))
        return [str(self._tokenizer.decode(ids)) for ids in done]

    def _generated(self, rows: Ids, configs: list[Any]) -> Ids:
        assert self._pipe is not None
        tensors = [ov.Tensor(np.array([row], dtype=np.int64)) for row in rows]
        done = self._pipe.generate(tensors, configs)
        return [list(each.m_generation_ids[0]) for each in done]


def made(model: str, folder: str) -> Callable[[str, Work], tuple[float, Any]]:
    """A model that plays works."""
    engine = OpenVINO(model)
    return lambda name, work: play(engine, name, work)
