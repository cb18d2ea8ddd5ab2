"""What a backend is: the methods that programs use, and what it says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from lmlang.protocol.answer import Scores
from lmlang.protocol.generation import Generation
from lmlang.protocol.prompt import Prompt
from lmlang.protocol.request import Request, ScoreRequest

ToolForm: TypeAlias = Literal["tagged", "bare"]
"""How a model writes the call of a tool: ``<tool_call>``, then ``{"name": …, "arguments": …}``; or
``{"name": …, "parameters": …}`` alone."""


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """What a backend says of itself.

    Args:
        model: Its name or path.
        context_length: Tokens of prompt and output together, None where unknown.
        can_score: Whether `Backend.score` gives exact log-probabilities.
        has_tokens: Whether `Backend.encode` gives token ids.
        has_vision: Whether prompts may hold an `Image`.
        thinking: The tokens that begin and end the model's reasoning; None: it has none.
        implementation: Whose code computes the model: "native" (ours) or "transformers"; None
            where unknown.
        kernels: What computes it, for people; None where unknown.
        weights: How its matrices are kept: a dtype, or "int8", "blocks" or "blocks8" (see
            `Runtime`); None where unknown.
        adapters: Names that requests may give as their ``lora``, sorted, where they are known.
        fingerprint: The same wherever the same requests have the same answers: it stands for the
            weights and how they are kept, the tokenizer and the template. None: not known.
        adapter_fingerprints: Those of ``adapters``, in their order.
        tools: How its chat template has calls of tools written; None: it knows of no tools.
    """

    model: str
    context_length: int | None = None
    can_score: bool = True
    has_tokens: bool = True
    has_vision: bool = False
    thinking: tuple[int, int] | None = None
    implementation: str | None = None
    kernels: str | None = None
    weights: str | None = None
    adapters: tuple[str, ...] = ()
    fingerprint: str | None = None
    adapter_fingerprints: tuple[str, ...] = ()
    tools: ToolForm | None = None


class Backend(Protocol):
    """What runs generations. All methods are thread-safe; none blocks on the model."""

    def generate(self, request: Request) -> Generation:
        """Start one generation. Refusals come as its error, never as an exception here."""
        ...

    def score(self, request: ScoreRequest) -> Future[Scores]:
        """Start scoring; refusals come as the future's error."""
        ...

    def render(self, prompt: Prompt) -> str:
        """The prompt as the model reads it, template text included."""
        ...

    def encode(self, prompt: Prompt) -> list[int]:
        """The prompt's token ids."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; control tokens give nothing."""
        ...

    def info(self) -> BackendInfo:
        """Model, context, abilities."""
        ...

    def flush_cache(self) -> None:
        """Forget all cached prefixes that nothing uses."""
        ...

    def close(self) -> None:
        """End; unfinished work fails with BackendError. A second call does nothing."""
        ...


@runtime_checkable
class RunAware(Protocol):
    """A backend that plans by runs: it knows the requests of one run by their `Tag`."""

    def end_run(self, run_id: str) -> None:
        """The run will ask for nothing more, so that nothing need be kept for it."""
        ...


@runtime_checkable
class MayChange(Protocol):
    """A backend that remembers what it says of itself, and stands for what may be exchanged."""

    def info_now(self) -> BackendInfo:
        """As `Backend.info`, of what is there now."""
        ...


@runtime_checkable
class TokenAware(Protocol):
    """A backend whose tokens can be looked at one by one."""

    def token_bytes(self, token: int) -> bytes:
        """What a token spells; nothing for control tokens. ProgramError for an unknown id."""
        ...

    def token_name(self, token: int) -> str:
        """A token for people: its text, or how a control token reads in templates."""
        ...

    def template_ids(self, text: str) -> list[int]:
        """The ids of a whole prompt that somebody wrote as a chat template does.

        What spells a control token in it is one; so no part of it may come from strangers.
        """
        ...


@runtime_checkable
class ToolAware(Protocol):
    """A backend whose chat template may know of tools."""

    def tool_form(self) -> ToolForm | None:
        """How calls are written; None where the template knows of no tools."""
        ...

    def with_tools(self, prompt: Prompt, tools: str) -> Prompt:
        """The prompt with the tools in it, where the template writes them.

        Args:
            prompt: Its turns.
            tools: A list as JSON, each tool as OpenAI's clients send it; plain text, whatever it
                spells.
        """
        ...
