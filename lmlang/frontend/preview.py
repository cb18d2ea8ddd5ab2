"""What a program will ask first: the exact prompt up to its first generation, and what follows.

The body is traced; a backend renders and tokenises the prompt, or computes it ahead.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmlang import markup
from lmlang.errors import ProgramError
from lmlang.frontend import ir
from lmlang.frontend.outline import outline
from lmlang.frontend.passes import prefix, prefix_and_rest
from lmlang.frontend.printer import print_node
from lmlang.frontend.spec_text import write_spec
from lmlang.protocol import Backend, EndTurn, Prompt, Request, SamplingParams, Segment, Text, Turn


@dataclass(frozen=True, slots=True)
class Preview:
    """A program before its first run. A value, thread-safe.

    ``print()`` shows it, constraints in short; ``.rest`` has all of them.

    Args:
        prompt: The text up to the first generation, select, image or hole. With a backend as
            that renders it; without one ``<user>…</user>`` stand for its template.
        token_ids: The backend's tokens of that; None without a backend, and of one that has none
            which are known.
        complete: Whether the prompt reaches the first generation or the end, with no hole before.
        rest: What follows and what forks do, as lines of IR; holes are ``arg`` and ``ref``.
        program: The trace; ``.stopped`` says where its static part ended, if it did.
    """

    prompt: str
    token_ids: tuple[int, ...] | None
    complete: bool
    rest: tuple[str, ...]
    program: ir.Program

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        from lmlang.frontend.view_program import preview_page

        lines = self._outlined()
        shown = preview_page(self.prompt, self.token_ids, self.complete, lines, self.program)
        return {"text/plain": markup.plain(str(self)), "text/html": str(shown)}

    def __str__(self) -> str:
        ids = self.token_ids
        counted = "" if ids is None else f" ({len(ids):,} token{'' if len(ids) == 1 else 's'})"
        lines = [f"prompt{counted}:", self.prompt, "then:"]
        lines += [f"  {line}" for line in self._outlined()]
        if self.program.stopped is not None:
            lines.append(f"  … {self.program.stopped.source}: {self.program.stopped.reason}")
        return "\n".join(lines)

    def _outlined(self) -> list[str]:
        """What follows, in lines that can be read."""
        return [_outlined(node) for node in prefix_and_rest(self.program)[1]]


def preview(program: ir.Program, backend: Backend | None) -> Preview:
    """What a traced program will ask first.

    Args:
        program: As `trace` makes it.
        backend: Renders and tokenises; None: neither.
    """
    segments, rest = prefix_and_rest(program)
    prompt = Prompt.of(*segments)
    asks = (ir.Gen, ir.Select, ir.Return)
    complete = isinstance(_next(program, rest), asks) or (not rest and program.stopped is None)
    return Preview(
        prompt=_plain(segments) if backend is None else backend.render(prompt),
        token_ids=None if backend is None else _ids(backend, prompt),
        complete=complete,
        rest=tuple(map(print_node, rest)),
        program=program,
    )


def _ids(backend: Backend, prompt: Prompt) -> tuple[int, ...] | None:
    try:
        return tuple(backend.encode(prompt))
    except ProgramError:
        if backend.info().has_tokens:
            raise
        return None


def compute_ahead(program: ir.Program, backend: Backend, lora: str | None) -> int:
    """Have a backend compute the prompt of a traced program; how many tokens that has."""
    segments = prefix(program)
    if not segments:
        return 0
    request = Request(Prompt.of(*segments), SamplingParams(max_tokens=0), lora=lora)
    return backend.generate(request).result().usage.prompt_tokens


def _outlined(node: ir.Node) -> str:
    line = print_node(node)
    if not isinstance(node, ir.Gen) or node.constraint is None:
        return line
    return line.replace(write_spec(node.constraint), outline(node.constraint))


def _next(program: ir.Program, rest: tuple[ir.Node, ...]) -> ir.Node | None:
    """The node behind the prompt on the program's own line."""
    beside = {made for node in program.nodes if isinstance(node, ir.Fork) for made in node.made}
    for node in rest:
        if isinstance(node, (ir.Start, ir.Fork)):
            continue
        if node.state not in beside:
            return node
        beside.update(ir.made_by(node))
    return None


def _plain(segments: tuple[Segment, ...]) -> str:
    parts = []
    role = ""
    for segment in segments:
        match segment:
            case Text():
                parts.append(segment.text)
            case Turn():
                role = segment.role
                parts.append(f"<{role}>")
            case EndTurn():
                parts.append(f"</{role}>")
    return "".join(parts)
