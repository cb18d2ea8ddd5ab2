"""The text of a part of a prompt, as its backend renders it."""

from __future__ import annotations

from lmlang.errors import ProgramError
from lmlang.protocol import Backend, Prompt, Text, Tokens


def text_since(backend: Backend, before: Prompt, after: Prompt) -> str:
    """What ``after`` says beyond ``before``, from which it was made; template text included.

    Raises:
        ProgramError: The chat template writes ``before`` anew when more follows.
    """
    parts: list[str] = []
    node = after
    while node is not before and isinstance(node.segment, (Text, Tokens)):
        parts.append(node.segment.text)
        assert node.parent is not None
        node = node.parent
    if node is before:
        return "".join(reversed(parts))
    return remainder(backend.render(before), backend.render(after))


def remainder(begun: str, whole: str) -> str:
    """What follows ``begun`` in ``whole``.

    Raises:
        ProgramError: Something else stands at the beginning.
    """
    if not whole.startswith(begun):
        raise ProgramError(
            "the chat template writes earlier text anew when more follows, so this part of the "
            "prompt has no text of its own: read s.text() at the end, or stream variables."
        )
    return whole[len(begun) :]
