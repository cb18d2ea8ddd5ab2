"""vLLM as a subject: its CPU build, automatic prefix caching, structured outputs for choices."""

from __future__ import annotations

import os

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
# By itself it leaves a core to its scheduler, and binds all threads of its worker to the others: of
# two cores, to one, where they spin for one another.
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{int(os.environ['OMP_NUM_THREADS']) - 1}")

from collections.abc import Callable, Sequence
from typing import Any

from plays import Ids, Work, common, play
from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams


class VLLM:
    """A model in bfloat16.

    Args:
        folder: Weights and tokenizer as Hugging Face has them.
    """

    def __init__(self, folder: str) -> None:
        self._model = LLM(
            folder, dtype="bfloat16", enable_prefix_caching=True, max_model_len=4_096,
            max_num_seqs=64, disable_log_stats=True,
        )  # fmt: skip

    def fresh(self) -> None:
        """Forget cached prefixes."""
        self._model.reset_prefix_cache()

    def complete(self, rows: Ids, tokens: int, ends: Sequence[int] = ()) -> Ids:
        """See `plays.Engine`."""
        params = SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, stop_token_ids=list(ends),
            detokenize=False,
        )  # fmt: skip
        prompts: Any = [{"prompt_token_ids": row} for row in rows]
        done = self._model.generate(prompts, params, use_tqdm=False)
        return [list(each.outputs[0].token_ids) for each in done]

    def choose(self, prefix: list[int], questions: list[Work]) -> list[int]:
        """See `plays.Engine`: greedy among the choices, token by token."""
        self.complete([prefix], 1)
        prompts: Any = [{"prompt_token_ids": q["ids"][0][: common(q["ids"])]} for q in questions]
        params = [
            SamplingParams(
                temperature=0, max_tokens=16,
                structured_outputs=StructuredOutputsParams(choice=q["choices"]),
            )
            for q in questions
        ]  # fmt: skip
        done = self._model.generate(prompts, params, use_tqdm=False)
        return [
            q["choices"].index(text) if (text := each.outputs[0].text) in q["choices"] else -1
            for q, each in zip(questions, done, strict=True)
        ]

    def written(self, rows: Ids, schema: str, tokens: int) -> list[str]:
        """See `plays.Engine`."""
        params = SamplingParams(
            temperature=0, max_tokens=tokens,
            structured_outputs=StructuredOutputsParams(json=schema),
        )  # fmt: skip
        prompts: Any = [{"prompt_token_ids": row} for row in rows]
        done = self._model.generate(prompts, params, use_tqdm=False)
        return [str(each.outputs[0].text) for each in done]


def made(model: str, folder: str) -> Callable[[str, Work], tuple[float, Any]]:
    """A model that plays works."""
    engine = VLLM(folder)
    return lambda name, work: play(engine, name, work)
