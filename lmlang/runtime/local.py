"""Runtime: the Backend over our own engine, in this process."""

from __future__ import annotations

from lmlang.runtime import openmp  # noqa: F401 - before anything that loads torch

# isort: split
import os
import weakref
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from dataclasses import fields, replace
from functools import partial

import torch

from lmlang import limits
from lmlang.errors import (
    BackendError,
    Cancelled,
    GrammarTooLarge,
    LMLangError,
    ProgramError,
)
from lmlang.grammar.compiler import Compiler, Grammar
from lmlang.grammar.spec import Spec
from lmlang.grammar.vocabulary import Vocabulary
from lmlang.kernels.forms import kernels_of
from lmlang.protocol import (
    BackendInfo,
    CacheTree,
    Generation,
    Prompt,
    Request,
    ScoreRequest,
    Scores,
    ToolForm,
)
from lmlang.runtime.chat import ChatTemplate
from lmlang.runtime.chat_tools import joined_ids
from lmlang.runtime.config import RuntimeConfig
from lmlang.runtime.constraints import Constrained
from lmlang.runtime.engine import Engine, ends_here, exits
from lmlang.runtime.fingerprint import of_adapters, of_runtime
from lmlang.runtime.loop import EngineLoop
from lmlang.runtime.metrics import Stats
from lmlang.runtime.models.causal import CausalLM
from lmlang.runtime.models.opened import OpenedModel
from lmlang.runtime.parts import check_in_memory, model_of, parts_of
from lmlang.runtime.tokenizer import Tokenizer
from lmlang.runtime.tree_view import view


class Runtime:
    """A model with its engine: runs generations and scores choices in this process.

    Thread-safe. Use it as a context manager, or call `close`; at the end of the process, or when
    nothing refers to it any more, it closes by itself.

    Args:
        model: None for the embedded SmolLM2-135M-Instruct; a ``.gguf`` file; a folder with
            safetensors, config.json and tokenizer.json; or a name on the Hugging Face hub.
        dtype: "float32", "bfloat16" or "float16" of weights, keys and values. None ("auto") is
            float32 on a CPU: exact, and the reference; and bfloat16 on a GPU.
        quantize: Of the matrices of the model. None keeps them as they are: the reference. "blocks"
            keeps a GGUF file's own blocks of 4 and 8 bits (other files get blocks of 8) and
            multiplies them with rows of 15 bits: several times as fast as float32 on a CPU, and
            tokens hardly ever differ from it (docs/explanation/performance.md). "blocks8" has 15
            bits in the columns with the largest numbers alone and 8 in all others: faster still,
            and as near to float32 as bfloat16 is. "int8" gives each output a scale: half of the
            memory of bfloat16. "auto" is "blocks8" for a quantised GGUF file on a CPU ("blocks"
            where a trial run shows it to be too far from it), unless dtype says otherwise or the C
            kernels are missing; else None.
        kv_dtype: "int8" keeps keys and values as int8, with a scale for each token's head: 1.9
            times as many tokens as in bfloat16 with the same memory.
        device: "cpu", "cuda", or "cuda:1" for the second GPU. None ("auto") is the first GPU, and
            the CPU where there is none.
        implementation: Whose code computes the model: "native", "transformers" (any causal
            language model, at its speed; see `lmlang.runtime.models.hf`), or None ("auto") for
            the native one where there is one. `info` says which it is.
        revision: Of a model on the hub.
        offline: Take a hub's model from the local cache only.
        kv_tokens: Slots of the KV pool, one a token; None takes ``memory_fraction`` of the memory
            that is free on the device, of main memory at most 4 GiB.
        memory_fraction: Above 0 and at most 1; None is 0.8.
        host_kv_gb: GiB of main memory for prefixes that the pool has evicted; None is 0.
        max_batch_tokens: Tokens that one step computes at most; prompts are prefilled in chunks
            of at most this. None is 512 on a CPU and 2,048 on a GPU.
        max_running: Sequences that hold slots at a time; all others wait. None is 128.
        max_queued: Sequences that wait at most; whoever asks for more waits to ask. None is
            65,536.
        policy: Who of the waiting goes first: "program" (None), "fcfs", "lpm", "dfs", "priority"
            or "mlq"; see `lmlang.runtime.policy`.
        eviction: "program" (None) spares what running programs may go on from; "lru" does not.
        radix_cache: False computes every prompt whole: for measuring.
        in_batch_sharing: False lets no request wait for a prefix that another computes.
        speculative: "ngram" drafts tokens from prompt, output and cache, and verifies them in one
            pass. The tokens stay the same; it pays where outputs repeat their prompts.
        deterministic: The same bits of a position's logits cold or cached, alone or in a batch,
            in whatever chunks; for one CPU, build of torch and number of threads. Blocks have
            them anyway; in float32 steps take longer. Refused on a GPU.
        cuda_graphs: False launches every kernel of every decode step on a GPU by itself.
        heartbeat: Seconds without a sign of life after which the engine is given up and all who
            wait get `BackendError`. None is 120.
        chat_template: A name ("chatml", …), a path, or a template in Jinja, over the model's own.
        lora: Adapters by name: folders that PEFT has saved, for this model. Runs choose one by
            ``lora=``; those of different adapters run in one batch, and share no cache.
        **others: SGLang's spelling of these (model_path, max_total_tokens, …).

    Raises:
        ModelError: The model cannot be found, read or run.
        ProgramError: A parameter is out of range or not available in this version.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        dtype: str | None = None,
        quantize: str | None = "auto",
        kv_dtype: str | None = None,
        device: str | None = None,
        implementation: str | None = None,
        revision: str | None = None,
        offline: bool | None = None,
        kv_tokens: int | None = None,
        memory_fraction: float | None = None,
        host_kv_gb: float | None = None,
        max_batch_tokens: int | None = None,
        max_running: int | None = None,
        max_queued: int | None = None,
        policy: str | None = None,
        eviction: str | None = None,
        radix_cache: bool | None = None,
        in_batch_sharing: bool | None = None,
        speculative: str | None = None,
        deterministic: bool | None = None,
        cuda_graphs: bool | None = None,
        heartbeat: float | None = None,
        chat_template: str | os.PathLike[str] | None = None,
        lora: Mapping[str, str | os.PathLike[str]] | None = None,
        **others: object,
    ) -> None:
        asked = "none" if quantize is None else quantize
        named = locals() | {"quantize": None if asked == "auto" else asked}
        given = {f.name: named[f.name] for f in fields(RuntimeConfig) if named[f.name] is not None}
        config = RuntimeConfig.of(given | others)
        self._start(model_of(config), config)

    @classmethod
    def over(
        cls,
        model: CausalLM,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        **parameters: object,
    ) -> Runtime:
        """A runtime over a model that is in memory already; ``parameters`` as of `Runtime`.

        It computes where the model lies.
        """
        runtime = cls.__new__(cls)
        config = RuntimeConfig.of(parameters)
        check_in_memory(config, model.device)
        runtime._start(OpenedModel("in memory", model, tokenizer, template), config)
        return runtime

    def _start(self, opened: OpenedModel, config: RuntimeConfig) -> None:
        parts = parts_of(opened, config)
        self._opened = parts.opened
        self._kv_tokens = parts.kv_tokens
        self._intake = parts.intake
        self._tools = parts.tools
        self._compiler = parts.compiler
        self._grammars = parts.grammars
        self._engine = parts.engine
        self._fingerprint = of_runtime(opened.files, opened.template.source, config.kv_dtype)
        self._adapter_fingerprints = of_adapters(config.lora)
        # Not a bound method of self: the finalizer must not keep the Runtime alive.
        self._finalizer = weakref.finalize(self, _stop, self._engine, self._compiler)

    # ------------------------------------------------------------------ Backend

    def generate(self, request: Request) -> Generation:
        """Start one generation (see `Backend`); refusals come as its error.

        Where as many wait to run as may, this waits for a place.
        """
        return self._started(request, wait=True)

    def offer(self, request: Request) -> Generation:
        """The same, but where there is no place to wait, its error is `QueueFull`."""
        return self._started(request, wait=False)

    def _started(self, request: Request, *, wait: bool) -> Generation:
        generation = Generation(request, self._engine.cancel)
        try:
            prompt = self._intake.prompt(request)
        except LMLangError as refusal:
            generation.fail(refusal)
            return generation
        if request.constraint is None:
            self._begin(generation, prompt, None, wait=wait)
        else:
            try:
                grammar = self.grammar(request.constraint, request.namespace)
            except BackendError as closed:
                if not ends_here():
                    generation.fail(closed)
                return generation
            begin = partial(self._begin_constrained, generation, prompt, wait)
            grammar.add_done_callback(begin)
            vocabulary = Vocabulary.of(self._opened.tokenizer)
            generation.add_done_callback(partial(_forget_too_large, self._compiler, vocabulary))
        return generation

    def grammar(self, spec: Spec, namespace: str = "") -> Future[Grammar]:
        """What a constraint means to this model's vocabulary; made once, on a thread for that.

        Each namespace has its own.

        Raises:
            BackendError: The runtime is closed.
        """
        try:
            vocabulary = Vocabulary.of(self._opened.tokenizer)
            grammar = self._compiler.submit(spec, vocabulary, namespace)
        except ProgramError:
            raise BackendError("the runtime is closed: make a new one.") from None
        self._grammars.asked(grammar)
        return grammar

    def _begin_constrained(
        self, generation: Generation, prompt: list[int], wait: bool, grammar: Future[Grammar]
    ) -> None:
        """Start a generation whose constraint has been compiled; on the thread that did it."""
        if generation.done():
            return
        try:
            constraint = Constrained(grammar.result(), generation.request)
            self._begin(generation, prompt, constraint, wait=wait)
        except Cancelled:
            if not exits():
                generation.fail(BackendError("the runtime was closed before this had ended."))
        except Exception as refusal:
            generation.fail(refusal)

    def _begin(
        self,
        generation: Generation,
        prompt: list[int],
        constraint: Constrained | None,
        *,
        wait: bool,
    ) -> None:
        """Hand a generation to the engine, unless it has ended before it began."""
        sequence = self._intake.sequence(generation, prompt, constraint)
        refused = None if sequence is None else self._engine.submit(sequence, wait=wait)
        if refused is not None:
            generation.fail(refused)

    def score(self, request: ScoreRequest) -> Future[Scores]:
        """Start scoring (see `Backend`); refusals come as the future's error."""
        return self._scored(request, wait=True)

    def offer_score(self, request: ScoreRequest) -> Future[Scores]:
        """The same, but where there is no place to wait, its error is `QueueFull`."""
        return self._scored(request, wait=False)

    def _scored(self, request: ScoreRequest, *, wait: bool) -> Future[Scores]:
        future: Future[Scores] = Future()
        try:
            sequence = self._intake.scoring(request, future)
        except LMLangError as refusal:
            future.set_exception(refusal)
            return future
        refused = self._engine.submit(sequence, wait=wait)
        if refused is not None:
            future.set_exception(refused)
        else:
            engine = self._engine
            future.add_done_callback(lambda f: engine.forget(f) if f.cancelled() else None)
        return future

    def render(self, prompt: Prompt) -> str:
        """The prompt as the model reads it, template text included."""
        return self._intake.encoder.render(prompt)

    def encode(self, prompt: Prompt) -> list[int]:
        """The prompt's token ids."""
        return self._intake.encoder.encode(prompt)

    def decode(self, ids: Seq[int]) -> str:
        """The text of token ids; control tokens give nothing. ProgramError for an unknown id."""
        for token in ids:
            limits.integer("token id", token, 0, self._opened.tokenizer.vocab_size - 1)
        return self._opened.tokenizer.decode(ids)

    def token_bytes(self, token: int) -> bytes:
        """What a token spells; nothing for control tokens (see `TokenAware`)."""
        limits.integer("token id", token, 0, self._opened.tokenizer.vocab_size - 1)
        return self._opened.tokenizer.token_bytes[token]

    def token_name(self, token: int) -> str:
        """A token for people: its text, or how a control token reads in templates."""
        return self.decode([token]) or self._opened.tokenizer.spelling(token)

    def template_ids(self, text: str) -> list[int]:
        """The ids of a prompt written as a chat template does (see `TokenAware`)."""
        tokenizer = self._opened.tokenizer
        return joined_ids(tokenizer, tokenizer.split_control(text))

    def tool_form(self) -> ToolForm | None:
        """How the model's template has calls written; None where it knows of no tools."""
        return self._tools.form

    def with_tools(self, prompt: Prompt, tools: str) -> Prompt:
        """The prompt with tools in it, where the template writes them (see `ToolAware`)."""
        return self._tools.prompt(prompt, tools)

    def info(self) -> BackendInfo:
        """The model's name, what fits its context and the KV pool, what marks its reasoning."""
        marks = (self.tokenizer.whole("<think>"), self.tokenizer.whole("</think>"))
        return BackendInfo(
            self._opened.name,
            min(self._opened.model.max_positions, self._kv_tokens),
            thinking=None if None in marks else marks,  # type: ignore[arg-type]
            implementation=self._opened.implementation,
            kernels=kernels_of(torch.empty(0, device=self._opened.model.device)),
            weights=self._opened.weights,
            adapters=self._intake.loras,
            fingerprint=self._fingerprint,
            adapter_fingerprints=self._adapter_fingerprints,
            tools=self._tools.form,
        )

    def flush_cache(self) -> None:
        """Forget all cached prefixes that no running request reads."""
        self._engine.call(lambda loop: loop.cache.flush())

    def end_run(self, run_id: str) -> None:
        """Keep nothing for a run any more (see `RunAware`)."""
        self._engine.tell(lambda loop: loop.scheduler.runs.end(run_id))

    def close(self) -> None:
        """End the engine; unfinished work fails with BackendError. A second call does nothing."""
        self._finalizer()

    # ------------------------------------------------------------------ our own

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._opened.tokenizer

    def stats(self) -> Stats:
        """What was counted since the start or the last `reset_stats`; waits for the step's end."""
        return replace(self._engine.call(EngineLoop.stats), **self._grammars.numbers())

    def reset_stats(self) -> None:
        """Set all totals of `stats` to 0."""
        self._engine.call(lambda loop: loop.reset_stats())
        self._grammars.reset()

    def tree(self) -> CacheTree:
        """What the radix cache holds; it prints."""
        return self._engine.call(lambda loop: view(loop.cache.tree, self._opened.tokenizer))

    def silence(self) -> float:
        """Seconds for which the engine has owed a sign of life; raises what it ended with."""
        return self._engine.silence()

    def check(self) -> None:
        """Prove the invariants of pool and tree; raises AssertionError where they are broken."""
        self._engine.call(lambda loop: loop.cache.check())

    def shutdown(self) -> None:
        """SGLang's name of `close`."""
        self.close()

    def get_tokenizer(self) -> Tokenizer:
        """SGLang's name of `tokenizer`."""
        return self.tokenizer

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Runtime({self._opened.name!r}, kv_tokens={self._kv_tokens})"


def _forget_too_large(compiler: Compiler, vocabulary: Vocabulary, ended: Generation) -> None:
    """A grammar that has outgrown its limits while it was run is made anew the next time."""
    spec = ended.request.constraint
    if spec is not None and isinstance(ended.outcome(), GrammarTooLarge):
        compiler.forget(spec, vocabulary, ended.request.namespace)


def _stop(engine: Engine, compiler: Compiler) -> None:
    """End both; the engine first, so that no compiled constraint waits for a place in it."""
    engine.stop()
    compiler.close()
