"""A program that a client asks for: read, verified and within limits before anything of it runs."""

from __future__ import annotations

from lmlang.errors import LimitExceeded, LMLangError, ProgramError
from lmlang.frontend import ir
from lmlang.frontend.printer import parse_program
from lmlang.frontend.replay import why_not
from lmlang.frontend.verify import verify
from lmlang.protocol import Output, Prompt, Request, SamplingParams, ScoreRequest
from lmlang.server.config import ServerConfig
from lmlang.wire.programs import AskedProgram


def checked_program(asked: AskedProgram, config: ServerConfig) -> tuple[ir.Program, int]:
    """The program, and how many generations and scores of it may be under way at a time.

    Raises:
        ProgramError: It cannot be read or run; says which line is wrong, and why.
        LimitExceeded: It is larger than the server allows; says both numbers.
    """
    lines, most = asked.program.count("\n"), config.max_program_nodes
    if lines > most + 1:
        raise _too_large("lines", lines, most + 1)
    program = verify(parse_program(asked.program))
    if len(program.nodes) > most:
        raise _too_large("nodes", len(program.nodes), most)
    run = asked.run
    config.check(Request(Prompt(), run.params, top_logprobs=run.top_logprobs_num))
    config.check_counts(1, run.n)
    size = _Size(asked, config)
    for at, node in enumerate(program.nodes):
        try:
            size.add(node)
        except LMLangError as error:
            # What it says of itself stands; which line it is about is all that it lacks.
            kind = LimitExceeded if type(error) is LimitExceeded else ProgramError
            message = Exception.__str__(error)
            raise kind(f"{program.name[:80]!r}, line {at + 2:,}: {message}") from None
    at_once = size.at_once()
    most = config.max_batch * config.max_samples
    if at_once > most:
        raise _too_large("generations at a time", at_once, most)
    return program, at_once


class _Size:
    """How much the nodes of a program ask for, one after the other."""

    def __init__(self, asked: AskedProgram, config: ServerConfig) -> None:
        self._run = asked.run
        self._config = config
        self._known = sum(1 for told in asked.known if told.draw_key or not _is_output(told.item))
        self._line: dict[int, int] = {}  # the line that a state is of
        self._depth: list[int] = []
        self._widest: list[int] = []  # samples of a line's widest generation
        self._samples = 0
        self._tokens = 0

    def add(self, node: ir.Node) -> None:
        """Count a node in; refuses one that cannot be run here, or is too much."""
        reason = why_not(node)
        if reason is not None:
            raise ProgramError(f"it has {reason}, so only the client can run it.")
        match node:
            case ir.Start():
                self._begin(node.made, 0)
                return
            case ir.Gen():
                self._gen(node)
            case ir.Select():
                self._config.check_scores(ScoreRequest(Prompt(), node.choices))
                self._asks(node.state, 1)
            case ir.Fork():
                for made in node.made:
                    self._begin(made, self._depth[self._line[node.state]] + 1)
            case _:
                pass
        if not isinstance(node, (ir.Fork, ir.Return)):
            self._line[node.made] = self._line[node.state]

    def at_once(self) -> int:
        """How many generations and scores may be under way at a time: one for each line."""
        return max(1, min(sum(self._widest), self._samples - self._known))

    def _begin(self, state: int, depth: int) -> None:
        states, deepest = self._config.max_program_states, self._config.max_program_depth
        if len(self._depth) > states:
            raise LimitExceeded(
                f"the forks make more than {states:,} states, which this server allows."
            )
        if depth > deepest:
            raise LimitExceeded(
                f"the forks are nested deeper than the {deepest:,} levels that this server allows."
            )
        self._line[state] = len(self._depth)
        self._depth.append(depth)
        self._widest.append(0)

    def _gen(self, node: ir.Gen) -> None:
        samples = self._run.n if node.n is None else node.n
        self._config.check_counts(1, samples)
        self._config.check(
            Request(
                Prompt(),
                SamplingParams(stop=node.stop or (), stop_regex=node.stop_regex or ()),
                top_logprobs=node.top_logprobs_num or 0,
            )
        )
        if node.constraint is not None:
            self._config.check_constraint(node.constraint)
        most = self._run.params.max_tokens if node.max_tokens is None else node.max_tokens
        self._tokens += samples * (most + (node.think or 0))
        if self._tokens > self._config.max_program_tokens:
            raise LimitExceeded(
                f"the generations up to here may take {self._tokens:,} tokens, and this server "
                f"allows {self._config.max_program_tokens:,} to a program: lower their max_tokens."
            )
        self._asks(node.state, samples)

    def _asks(self, state: int, samples: int) -> None:
        line = self._line[state]
        self._widest[line] = max(self._widest[line], samples)
        self._samples += samples


def _is_output(item: object) -> bool:
    return isinstance(item, Output)


def _too_large(what: str, found: int, most: int) -> LimitExceeded:
    return LimitExceeded(
        f"the program has {found:,} {what}, and this server allows {most:,}: run it in parts, or "
        "one generation at a time."
    )
