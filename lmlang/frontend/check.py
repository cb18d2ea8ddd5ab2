"""``f.check()``: what is likely wrong in a program, from its trace and from its source.

trace   every line of states, in order: names, choices, budgets, texts      (this module)
source  what a trace cannot see, or never reaches: reads, lost expressions   check_source
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lmlang.errors import CaptureError, ConstraintError, LMLangError, quote
from lmlang.frontend import ir
from lmlang.frontend.check_source import Source, source_of
from lmlang.frontend.finding import Finding
from lmlang.frontend.options import GenDefaults
from lmlang.frontend.source import raised_at
from lmlang.grammar import literals
from lmlang.grammar.spec import Choice, Regex, Spec

SHARED = 200
"""Characters of common text behind an argument from which on they count."""
PER_TOKEN = 8
"""Bytes that a token of a constrained output hardly ever passes: most spell two to four."""


def check(
    trace: Callable[[], ir.Program],
    body: Callable[..., Any],
    receiver: int,
    inherited: GenDefaults,
) -> tuple[Finding, ...]:
    """Findings about a program, by their lines.

    Args:
        trace: Traces the program.
        body: Its function.
        receiver: Parameters before its state.
        inherited: What its generations inherit.
    """
    found: list[Finding] = []
    source = source_of(body, receiver)
    made: set[str] = set()
    try:
        traced = trace()
    except Exception as error:
        found.append(_raised(error, source))
    else:
        found += _Lines(traced, inherited).findings()
        made = {getattr(node, "name", "") for node in traced.nodes}
        if traced.stopped is not None:
            found.append(_stopped(traced.stopped, source))
    if source is not None:
        known = {(each.code, each.source) for each in found}
        more = source.findings(made)
        found += [each for each in more if (each.code, each.source) not in known]
    return tuple(sorted(dict.fromkeys(found), key=lambda each: (*each.place, each.code)))


def _raised(error: Exception, source: Source | None) -> Finding:
    at = error.context.source if isinstance(error, LMLangError) and error.context else None
    at = at or raised_at(error) or (source.first_line if source is not None else "")
    said = error.args[0] if isinstance(error, LMLangError) and error.args else error
    message = str(said).split("\n", 1)[0]
    if isinstance(error, CaptureError):
        return Finding.of("LM103", at, message)
    return Finding.of("LM100", at, f"{type(error).__name__}: {message}")


def _stopped(stop: ir.Stop, source: Source | None) -> Finding:
    what = "from here on, what is asked depends on a run"
    loop = None if source is None else source.loop_around(stop.source)
    if loop is not None:
        what = f"the loop of line {loop:,} is data-dependent: how often it runs, only a run shows"
    elif source is not None and source.is_branch(stop.source):
        what = "the branch is data-dependent: which side is taken, only a run shows"
    return Finding.of("LM109", stop.source, f"{what} ({stop.reason.rstrip('.')}).")


class _Line:
    """What is known on one line of states: who set each name, what stands before."""

    __slots__ = ("asked", "names", "own", "roles", "text", "turn")

    def __init__(self, parent: _Line | None = None) -> None:
        self.own = parent is None
        """Whether it is the program's own, and no fork's."""
        self.names: dict[str, str] = {} if parent is None else dict(parent.names)
        self.text: str = "" if parent is None else parent.text
        self.turn: str | None = None if parent is None else parent.turn
        self.roles: bool = parent is not None and parent.roles
        self.asked: bool = parent is not None and parent.asked
        """Whether a generation or select stands on it."""


class _Lines:
    """One walk over a trace. The findings come in the order of the nodes."""

    def __init__(self, program: ir.Program, inherited: GenDefaults) -> None:
        self._program = program
        self._inherited = inherited
        self._lines: dict[int, _Line] = {}
        self._outside: list[str] = []
        self._behind: tuple[str, str] | None = None
        self._later = 0
        self._before = 0

    def findings(self) -> list[Finding]:
        found: list[Finding] = []
        for node in self._program.nodes:
            if isinstance(node, ir.Start):
                self._lines[node.made] = _Line()
                continue
            line = self._lines[node.state]
            source = self._source(node)
            found += self._of(node, line, source)
            if isinstance(node, ir.Fork):
                self._lines.update((made, _Line(line)) for made in node.made)
            elif not isinstance(node, ir.Return):
                self._lines[node.made] = line
        if self._outside and any(line.roles for line in self._lines.values()):
            found += [
                Finding.of(
                    "LM113",
                    source,
                    "this text stands between the turns of a chat, where templates have no place "
                    "for it: put it into a turn.",
                )
                for source in self._outside
            ]
        if self._behind is not None and self._later >= max(SHARED, self._before + 1):
            name, source = self._behind
            found.append(
                Finding.of(
                    "LM108",
                    source,
                    f"{self._later:,} characters that all rows have in common stand behind the "
                    f"argument {quote(name)}, so that each row computes them anew: put them "
                    "before it.",
                )
            )
        return found

    def _source(self, node: ir.Node) -> str:
        made = ir.made_by(node)
        return self._program.sources.get(made[0], "") if made else ""

    def _of(self, node: ir.Node, line: _Line, source: str) -> Iterator[Finding]:
        match node:
            case ir.Text():
                if line.turn is None and node.text.strip():
                    self._outside.append(source)
                if self._is_first(line):
                    if self._behind is None:
                        self._before += len(node.text)
                    else:
                        self._later += len(node.text)
                line.text = (line.text + node.text)[-SHARED:]
            case ir.Arg():
                if self._is_first(line) and self._behind is None:
                    self._behind = node.name, source
                line.text = "…"
            case ir.Role():
                line.turn, line.roles, line.text = node.role, True, ""
            case ir.EndRole():
                line.turn, line.text = None, ""
            case ir.Gen():
                yield from self._set(node.name, line, source)
                yield from self._gen(node, line, source)
                line.text, line.asked = "…", True
            case ir.Select():
                yield from self._set(node.name, line, source)
                yield from self._select(node, source)
                line.text, line.asked = "…", True
            case ir.Ref() | ir.Image():
                line.text = "…"

    def _is_first(self, line: _Line) -> bool:
        """Whether this is the program's prompt before anything is asked."""
        return line.own and not line.asked

    def _set(self, name: str, line: _Line, source: str) -> Iterator[Finding]:
        before = line.names.get(name)
        if before is not None:
            how = (
                "in each round of a loop"
                if before == source
                else f"before, {_near(before, source)}"
            )
            yield Finding.of(
                "LM101",
                source,
                f"{quote(name)} is set here and {how}: the last one wins: give each a name "
                "of its own, as in a fork or with an f-string.",
            )
        line.names[name] = source

    def _gen(self, node: ir.Gen, line: _Line, source: str) -> Iterator[Finding]:
        params = self._inherited.params
        temperature = params.temperature if node.temperature is None else node.temperature
        n = self._inherited.n if node.n is None else node.n
        if n > 1 and temperature == 0:
            yield Finding.of(
                "LM112",
                source,
                f"n={n} samples at temperature 0 are all the same: raise the temperature, or "
                "leave n out.",
            )
        if not node.heal and node.constraint is None:
            yield from self._spaced(line, source)
        if node.max_tokens is None and params.max_tokens == _USUAL:
            ends = node.stop or node.stop_regex or node.stop_token_ids or params.stop
            name = quote(node.name)
            if node.constraint is not None and not _is_short(node.constraint):
                yield Finding.of(
                    "LM114",
                    source,
                    f"{name} has no max_tokens: at the run's {_USUAL} a longer output is closed "
                    "early (finish forced_close); give it as many as the largest value needs.",
                )
            elif node.constraint is None and not ends:
                yield Finding.of(
                    "LM110",
                    source,
                    f"{name} has no max_tokens and no stop: it runs to the model's own end, or to "
                    f"the run's {_USUAL} tokens.",
                )
        most = params.max_tokens if node.max_tokens is None else node.max_tokens
        if node.constraint is not None:
            yield from _budget(node.name, node.constraint, most, source)

    def _select(self, node: ir.Select, source: str) -> Iterator[Finding]:
        if len(node.choices) == 1:
            yield Finding.of(
                "LM105",
                source,
                f"{quote(node.name)} has one choice, {quote(node.choices[0])}, which is taken "
                "unasked: append it as text, or add choices.",
            )
        if node.ends_turn or node.method not in (None, "joint"):
            return
        beginning = _beginnings(node.choices)
        if beginning:
            choice, shorter = beginning[0]
            more = f" (so do {len(beginning) - 1:,} more)" if len(beginning) > 1 else ""
            yield Finding.of(
                "LM106",
                source,
                f"{quote(choice)} begins with another choice, {quote(shorter)}, which is at least "
                f"as likely{more}: end the choices alike (as with a full stop), let the select end "
                "its turn, or take lm.token_length_normalized.",
            )

    def _spaced(self, line: _Line, source: str) -> Iterator[Finding]:
        if line.text.endswith(" ") and line.text.strip():
            yield Finding.of(
                "LM111",
                source,
                f"the text before ends with a space ({quote(line.text[-24:])}), and most tokens "
                "begin with one: leave it out, or give heal=True.",
            )


def _near(source: str, other: str) -> str:
    """A line, by its number alone where it is of the same file as the other."""
    path, _, line = source.rpartition(":")
    return f"on line {line}" if other.startswith(f"{path}:") else f"at {source}"


_USUAL = GenDefaults().params.max_tokens


def _budget(name: str, constraint: Spec, most: int, source: str) -> Iterator[Finding]:
    try:
        shortest = _shortest(constraint)
    except ConstraintError as error:
        yield Finding.of("LM100", source, f"{quote(name)}: {str(error).splitlines()[0]}")
        return
    if shortest > most * PER_TOKEN:
        yield Finding.of(
            "LM107",
            source,
            f"{quote(name)} has max_tokens={most:,}, and its shortest output has {shortest:,} "
            "bytes: give it more.",
        )


def _shortest(constraint: Spec) -> int:
    """Bytes of a constraint's shortest output: its tokens where every byte is one."""
    from lmlang.grammar.toolbox import compile
    from lmlang.grammar.vocabulary import Vocabulary

    letters = [bytes([value]) for value in range(256)]
    alphabet = Vocabulary(letters, encode=str.encode, fingerprint="single bytes")
    return compile(constraint, alphabet).min_tokens()


def _is_short(constraint: Spec) -> bool:
    """Whether an output is a few tokens by itself: a choice, or a scalar of a known pattern."""
    if isinstance(constraint, Regex):
        return constraint.pattern in (literals.INTEGER, literals.REAL, literals.DATE)
    return isinstance(constraint, Choice)


def _beginnings(choices: Sequence[str]) -> list[tuple[str, str]]:
    """The choices that begin with another one, each with the shortest such, in their order."""
    shortest: dict[str, str] = {}
    open_: list[str] = []
    for choice in sorted(choices):  # what begins with a text follows it, before all else
        while open_ and not choice.startswith(open_[-1]):
            open_.pop()
        if open_:
            shortest[choice] = open_[0]
        open_.append(choice)
    return [(choice, shortest[choice]) for choice in choices if choice in shortest]
