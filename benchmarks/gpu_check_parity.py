"""Part of the GPU check: whole runs on the device beside the CPU, with and without CUDA graphs.

    embedded    programs in float32: the CPU's outputs, choices and constrained texts
    1B          a random Llama in bfloat16: graphs beside none; and in float32: transformers

Outputs are alike where tokens are the same, or part where both next tokens are about as likely:
then what each side says of its own token differs by no more than a tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from gpu_check_rows import Row, Rows, failed
from gpu_check_setting import (
    ONE_BILLION,
    TINY,
    Setting,
    byte_tokenizer,
    plain_template,
    random_llama,
    random_prompts,
    random_weights,
)

import lmlang as lm
from lmlang.protocol import Output, Prompt, Request, SamplingParams, ScoreRequest, Text, Tokens
from lmlang.runtime.local import Runtime

TIE = {torch.float32: 2e-3, torch.bfloat16: 0.08}
"""How far log-probabilities of two ways of computing may be apart."""
TEXTS = (
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):\n",
    "In 1969, the first people",
    "Water boils at",
    "The capital of France is the city of",
    "Dear Sir or Madam,",
    "1, 2, 3, 4,",
)


def alike(one: Output, other: Output, tolerance: float) -> str:
    """Where two greedy outputs part; nothing where they are alike."""
    pairs = zip(one.ids, other.ids, one.logprobs, other.logprobs, strict=False)
    for place, (a, b, said, told) in enumerate(pairs):
        if abs(said - told) > tolerance:
            return f"token {place}: log-probabilities {said:.4f} and {told:.4f}"
        if a != b:
            return ""
    return "" if len(one.ids) == len(other.ids) else "one is longer"


def greedy(runtime: Runtime, prompts: Sequence[Prompt], tokens: int) -> list[Output]:
    """All at once, so that batches are ragged."""
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    started = [runtime.generate(Request(prompt, params)) for prompt in prompts]
    return [generation.result() for generation in started]


def compared(name: str, ones: list[Output], others: list[Output], tolerance: float) -> Row:
    """One row for many outputs."""
    faults = [fault for a, b in zip(ones, others, strict=True) if (fault := alike(a, b, tolerance))]
    same = sum(a.ids == b.ids for a, b in zip(ones, others, strict=True))
    note = faults[0] if faults else f"{same} of {len(ones)} equal to the last token"
    return Row(name, len(faults), "outputs off", "0", not faults, note)


def graphs_of(runtime: Runtime) -> int:
    """How many CUDA graphs a runtime has recorded."""
    return runtime._engine.call(lambda loop: len(loop.runner.graphs.recorded))


@contextmanager
def runtimes(setting: Setting, *given: object, **options: object) -> Iterator[dict[str, Runtime]]:
    """On the device with graphs and without; of a model in memory or a file."""
    made: dict[str, Runtime] = {}
    try:
        for name, graphs in (("graphs", True), ("no graphs", False)):
            make = Runtime.over if len(given) > 1 else Runtime
            made[name] = make(*given, cuda_graphs=graphs, **options)
        yield made
    finally:
        for runtime in made.values():
            runtime.close()


@lm.function
def advice(s: lm.ProgramState, topic: str) -> None:
    """Branches, a choice and a typed output behind one prefix."""
    s += f"Notes on {topic}. They are short, and each is a line of its own.\n"
    forks = s.fork(3)
    for number, fork in enumerate(forks):
        fork += f"Note {number}:"
        fork += lm.gen("note", max_tokens=12, stop="\n")
    s += "Verdict: " + lm.select("verdict", ["good", "bad", "neither of the two"])
    s += "\nYear: " + lm.gen("year", regex="[12][0-9]{3}")
    s += "\nMark: " + lm.gen("mark", type=int, max_tokens=8)
    forks.join()


def programs(runtime: Runtime) -> list[str]:
    """What programs say, as texts."""
    states = advice.run_batch(
        [{"topic": topic} for topic in ("bread", "rain", "chess", "Paris")],
        backend=runtime, temperature=0,
    )  # fmt: skip
    return [state.text() for state in states]


def scores(runtime: Runtime) -> list[float]:
    """Log-probabilities of choices behind a prompt."""
    choices = (" Paris", " London", " the sea", " Paris, of course")
    asked = ScoreRequest(Prompt.of(Text("The capital of France is")), choices)
    return [sum(choice.logprobs) for choice in runtime.score(asked).result().choices]


def embedded(setting: Setting) -> Rows:
    """The embedded model in float32 beside the CPU."""
    if setting.model is None:
        yield Row("embedded model", ok=False, note="its file is not here: give --model")
        return
    options = {"dtype": "float32", "kv_tokens": 8_192}
    tokens = 6 if setting.dry else 32
    prompts = [Prompt.of(Text(text)) for text in TEXTS]
    with Runtime(setting.model, device="cpu", **options) as cpu:
        wanted, said, sums = greedy(cpu, prompts, tokens), programs(cpu), scores(cpu)
    device = str(setting.device)
    with runtimes(setting, setting.model, device=device, **options) as made:
        for name, runtime in made.items():
            title = f"embedded, float32, {name}"
            outputs = greedy(runtime, prompts, tokens)
            yield compared(f"{title}: outputs", outputs, wanted, TIE[torch.float32])
            same = sum(a == b for a, b in zip(programs(runtime), said, strict=True))
            yield Row(f"{title}: programs", same, "texts equal", f"{len(said)}", same == len(said))
            off = max(abs(a - b) for a, b in zip(scores(runtime), sums, strict=True))
            yield Row(f"{title}: choices", off, "logprob off", "<= 0.002", off <= 2e-3)
            runtime.check()
        if setting.device.type == "cuda":
            count = graphs_of(made["graphs"])
            yield Row("embedded: graphs recorded", count, "graphs", ">= 1", count >= 1)


def random_one(setting: Setting) -> Rows:
    """A random Llama of 1B: graphs beside none, over contexts that are shared and ragged."""
    shape = TINY if setting.dry else ONE_BILLION
    model = random_llama(shape, setting.half, setting.device)
    tokenizer = byte_tokenizer(shape.vocab)
    stem, *tails = random_prompts(14, 40 if setting.dry else 1_500)
    prompts = [Prompt.of(Tokens((*stem, *tail[: 5 + 9 * i]), "")) for i, tail in enumerate(tails)]
    prompts += [Prompt.of(Tokens(tuple(tail[: 3 + 100 * i]), "")) for i, tail in enumerate(tails)]
    options = {"kv_tokens": 4_096 if setting.dry else 60_000}
    count = 6 if setting.dry else 40
    with runtimes(setting, model, tokenizer, plain_template(), **options) as made:
        outputs = {name: greedy(runtime, prompts, count) for name, runtime in made.items()}
        again = greedy(made["graphs"], prompts, count)
        tie = TIE[torch.bfloat16]
        yield compared("1B, bfloat16: graphs beside none", *outputs.values(), tie)
        yield compared("1B, bfloat16: cached beside cold", outputs["graphs"], again, tie)
        if setting.device.type == "cuda":
            found = graphs_of(made["graphs"])
            yield Row("1B: graphs recorded", found, "graphs", ">= 1", found >= 1)


def beside_transformers(setting: Setting) -> Rows:
    """Logits of a random Llama beside transformers' on the same weights, in float32."""
    from by_hand import llama_of

    shape = TINY if setting.dry else ONE_BILLION
    weights = random_weights(shape, torch.float32, setting.device)
    theirs = llama_of(shape, weights)
    ids = random_prompts(1, 30 if setting.dry else 300)[0]
    with torch.inference_mode():
        logits = theirs(input_ids=torch.tensor([ids], device=setting.device)).logits[0].float()
    wanted = torch.log_softmax(logits, -1)[:-1].gather(
        -1, torch.tensor(ids[1:], device=setting.device)[:, None]
    )[:, 0]
    from lmlang.runtime.models.llama import LlamaModel

    options = {"kv_tokens": 1_024, "max_batch_tokens": 64}
    model = LlamaModel(shape, weights)
    template, tokenizer = plain_template(), byte_tokenizer(shape.vocab)
    with Runtime.over(model, tokenizer, template, **options) as runtime:
        asked = Request(
            Prompt.of(Tokens(tuple(ids), "")), SamplingParams(max_tokens=1), input_logprobs_from=1
        )
        inputs = runtime.generate(asked).result().input_logprobs
    found = torch.tensor(inputs.logprobs, device=setting.device)
    off = float((found - wanted).abs().max())
    yield Row("1B, float32: beside transformers", off, "logprob off", "<= 0.005", off <= 5e-3)


def run(setting: Setting) -> Rows:
    """All of them; what fails is a row."""
    for part in (embedded, random_one, beside_transformers):
        try:
            yield from part(setting)
        except Exception as error:
            yield failed(f"parity: {part.__name__}", error)
