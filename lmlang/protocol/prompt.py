"""A prompt: an immutable list of segments that shares its beginning with others."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias

from lmlang.errors import ProgramError, quote

_ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text, whatever it spells: ``<|im_end|>`` in it is ten characters."""

    text: str


@dataclass(frozen=True, slots=True)
class Turn:
    """Opens a chat turn; the backend's template writes its heading.

    Raises:
        ProgramError: The role is no plain word, so that it could spell something else.
    """

    role: str

    def __post_init__(self) -> None:
        if not isinstance(self.role, str) or not _ROLE.fullmatch(self.role):
            raise ProgramError(
                f"the role {quote(str(self.role))} is no word of letters, digits, '-', '_': use "
                "one that the model's template knows, such as 'user'."
            )


@dataclass(frozen=True, slots=True)
class EndTurn:
    """Closes the open chat turn."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens that a model produced; they are never tokenised again.

    Args:
        ids: Token ids of the backend that made them.
        text: What they read as (for backends that only know text, and for display).
        heals: Whether they take the place of the last token of the text before them, and so begin
            with its characters, which ``text`` leaves out.
    """

    ids: tuple[int, ...]
    text: str
    heals: bool = False


@dataclass(frozen=True, slots=True)
class Image:
    """A picture, for backends whose `BackendInfo.has_vision` is true.

    Args:
        digest: SHA-256 of ``data``, in hexadecimal digits.
        name: Its path, or what else it came from; for display.
        data: The bytes of its file.
    """

    digest: str
    name: str = field(compare=False)
    data: bytes = field(repr=False, compare=False)


Segment: TypeAlias = Text | Turn | EndTurn | Tokens | Image


class Prompt:
    """An immutable list of segments that shares its beginning with what it was made from.

        root <- Turn(user) <- Text("Hi") <- EndTurn      each arrow one `append`
                                        ^- Text(" you")  a fork: shares all to its left

    ``append`` costs O(1) and never changes the prompt it is called on, so prompts may be read
    from any thread. ``memo`` belongs to the backend that encodes the prompt: a cache, never state.
    """

    __slots__ = ("__weakref__", "length", "memo", "parent", "segment")

    def __init__(self, parent: Prompt | None = None, segment: Segment | None = None) -> None:
        self.parent = parent
        self.segment = segment
        self.length: int = 0 if parent is None else parent.length + 1
        self.memo: object | None = None

    def append(self, segment: Segment) -> Prompt:
        """This prompt and one more segment."""
        return Prompt(self, segment)

    def nodes(self) -> list[Prompt]:
        """The prompts from the first segment's to this one, this one last; the root is left out."""
        found: list[Prompt] = []
        node: Prompt = self
        while node.parent is not None:
            found.append(node)
            node = node.parent
        found.reverse()
        return found

    def segments(self) -> list[Segment]:
        """All segments in order."""
        return [node.segment for node in self.nodes() if node.segment is not None]

    @classmethod
    def of(cls, *segments: Segment) -> Prompt:
        """A prompt of these segments."""
        prompt = cls()
        for segment in segments:
            prompt = prompt.append(segment)
        return prompt

    def __repr__(self) -> str:
        return f"Prompt({', '.join(map(repr, self.segments()))})"
