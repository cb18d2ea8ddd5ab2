"""The embedded model against transformers in float32: the same tokens in every state of the engine.

Greedy tokens are checked by induction: one forward pass of transformers over prompt and output
gives, at every position, the token that its own greedy decoding would take next.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import LlamaForCausalLM

from lmlang.protocol import (
    EndTurn,
    Generation,
    Output,
    Prompt,
    Request,
    SamplingParams,
    Segment,
    Text,
    Turn,
)
from lmlang.runtime.local import Runtime
from lmlang.runtime.models.causal import Attend, Inputs
from lmlang.runtime.models.fetch import find_embedded_model
from lmlang.runtime.models.llama import LlamaModel
from lmlang.runtime.models.opened import OpenedModel, open_model
from tests.reference import reference_logits, reference_model

TOKENS = 64
TIE = 1e-3
"""Two leading logits closer than this are a floating-point tie: either token is right."""

PLAIN = [
    "Once upon a time", "The quick brown fox", "def fibonacci(n):\n    ", "1, 2, 3, 4, 5,",
    "The capital of France is", "In 1969, the first man", "Dear Sir or Madam,\n\n",
    "import numpy as np\n\nx = np.", "Roses are red,\nviolets are blue,\n", "Q: What is 7 + 5?\nA:",
    "日本の首都は", "Die Hauptstadt von Deutschland ist", "Il était une fois", "😀 means",
    "<html>\n<head>\n", "To be, or not to be,", "{\"name\": \"Ada\", \"age\":",
    "The three laws of robotics are:\n1.", "SELECT name FROM users WHERE", "x",
]  # fmt: skip
CHATS = [
    "Hi!", "What is the capital of Italy?", "Write a haiku about the sea.", "What is 12 times 9?",
    "Name three colours.", "Translate 'good morning' to French.", "Why is the sky blue?",
    "Tell me a joke about cats.", "Summarise: The cat sat on the mat. It was warm.",
    "Write a Python function that adds two numbers.",
]  # fmt: skip


def prompts() -> list[list[Segment]]:
    chats = [[Turn("user"), Text(chat), EndTurn(), Turn("assistant")] for chat in CHATS]
    return [*[[Text(plain)] for plain in PLAIN], *chats]


PROMPTS = prompts()


class Recorder:
    """The embedded model, remembering the logits that it gave."""

    def __init__(self, opened: OpenedModel) -> None:
        self.model = opened.model
        self.vocab, self.max_positions = opened.model.vocab, opened.model.max_positions
        self.kv_layers = opened.model.kv_layers
        self.dtype, self.device = opened.model.dtype, opened.model.device
        self.rows: list[torch.Tensor] = []
        self.recording = False

    def forward(self, inputs: Inputs, attend: Attend) -> torch.Tensor:
        found = self.model.forward(inputs, attend)
        if self.recording:
            self.rows += found.unbind(0)
        return found


@pytest.fixture(scope="module")
def opened() -> OpenedModel:
    return open_model(None)


@pytest.fixture(scope="module")
def reference(opened: OpenedModel) -> LlamaForCausalLM:
    assert isinstance(opened.model, LlamaModel)
    return reference_model(find_embedded_model(), opened.model.shape)


@pytest.fixture
def recorder(opened: OpenedModel) -> Recorder:
    return Recorder(opened)


@pytest.fixture
def rt(opened: OpenedModel, recorder: Recorder) -> Iterator[Runtime]:
    runtime = Runtime.over(recorder, opened.tokenizer, opened.template, kv_tokens=8_000)
    with runtime as rt:
        yield rt
        rt.check()


def ask(rt: Runtime, prompt: Prompt, tokens: int = TOKENS) -> Generation:
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    return rt.generate(Request(prompt, params))


@pytest.fixture(scope="module")
def agree(reference: LlamaForCausalLM):
    """Checks outputs against transformers; each continuation is computed once."""
    known: dict[tuple[int, ...], torch.Tensor] = {}

    def check(rt: Runtime, prompt: Prompt, output: Output) -> None:
        ids = [*rt.encode(prompt), *output.ids]
        if tuple(ids) not in known:
            known[tuple(ids)] = reference_logits(reference, ids)[-len(output.ids) - 1 : -1]
        logits = known[tuple(ids)]
        taken = torch.tensor(output.ids)
        best, chosen = logits.max(-1).values, logits.gather(-1, taken[:, None])[:, 0]
        assert torch.all(best - chosen <= TIE), (prompt, output.text)
        logprobs = chosen - logits.logsumexp(-1)
        bound = 2e-4 * logits.abs().max()  # of the logit and of the normaliser
        assert (torch.tensor(output.logprobs) - logprobs).abs().max() <= bound

    return check


def test_cold_and_alone(rt: Runtime, agree) -> None:
    for segments in PROMPTS:
        prompt = Prompt.of(*segments)
        rt.flush_cache()
        output = ask(rt, prompt).result()
        assert output.usage.cached_tokens == 0
        assert len(output.ids) == TOKENS
        agree(rt, prompt, output)


def test_cached_to_the_end(rt: Runtime, agree) -> None:
    for generation in [ask(rt, Prompt.of(*segments), 1) for segments in PROMPTS]:
        generation.result()
    asked = [Prompt.of(*segments) for segments in PROMPTS]
    for prompt, generation in zip(asked, [ask(rt, p) for p in asked], strict=True):
        output = generation.result()
        assert output.usage.cached_tokens == output.usage.prompt_tokens - 1
        agree(rt, prompt, output)


def test_batched_with_16_others(rt: Runtime, agree) -> None:
    order = [Prompt.of(*segments) for segments in PROMPTS]
    for group in (order[:17], order[13:]):
        rt.flush_cache()
        for prompt, generation in zip(group, [ask(rt, p) for p in group], strict=True):
            agree(rt, prompt, generation.result())


def test_chunked_at_7_tokens(opened: OpenedModel, agree) -> None:
    with Runtime.over(
        opened.model, opened.tokenizer, opened.template, kv_tokens=8_000, max_batch_tokens=7
    ) as rt:
        asked = [Prompt.of(*segments) for segments in PROMPTS]
        for prompt, generation in zip(asked, [ask(rt, p) for p in asked], strict=True):
            agree(rt, prompt, generation.result())


def test_forked(rt: Runtime, agree) -> None:
    """Half of the last text stands before the fork, half behind it, wherever a token is cut."""
    forks: list[Prompt] = []
    for segments in PROMPTS:
        whole = next(s for s in segments if isinstance(s, Text)).text
        at = segments.index(Text(whole))
        parent = Prompt.of(*segments[:at], Text(whole[: len(whole) // 2]))
        rt.encode(parent)
        child = parent.append(Text(whole[len(whole) // 2 :]))
        for segment in segments[at + 1 :]:
            child = child.append(segment)
        assert rt.encode(child) == rt.encode(Prompt.of(*segments))
        forks.append(child)
    for prompt, generation in zip(forks, [ask(rt, p) for p in forks], strict=True):
        agree(rt, prompt, generation.result())


@pytest.mark.parametrize("state", ["cold", "cached", "batched", "chunked"])
def test_logits_agree_to_1e_4(state: str, opened: OpenedModel, reference: LlamaForCausalLM) -> None:
    recorder = Recorder(opened)
    budget = 7 if state == "chunked" else 512
    with Runtime.over(
        recorder, opened.tokenizer, opened.template, kv_tokens=8_000, max_batch_tokens=budget
    ) as rt:
        asked = [Prompt.of(*segments) for segments in PROMPTS[::3]]
        if state == "cached":
            for generation in [ask(rt, p, 1) for p in asked]:
                generation.result()
        recorder.recording = True
        if state == "cold":
            for prompt in asked:
                ask(rt, prompt, 1).result()
        else:
            for generation in [ask(rt, p, 1) for p in asked]:
                generation.result()
        assert len(recorder.rows) == len(asked)
        for prompt in asked:
            wanted = reference_logits(reference, rt.encode(prompt))[-1]
            closest = min((row - wanted).abs().max() for row in recorder.rows)
            assert closest <= 1e-4 * wanted.abs().max()
