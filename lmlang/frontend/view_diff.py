"""Two results side by side: where their outputs part, aligned by token.

gen tip      = 12 tokens alike
gen verdict  ≠ parts at token 3: " good" 0.61 | " bad" 0.22
  The film was{- good-}{+ bad+}.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Literal

from lmlang import markup
from lmlang.errors import ProgramTypeError, an
from lmlang.frontend import ir
from lmlang.frontend.logged import LoggedOperation
from lmlang.frontend.recorder import ProgramState
from lmlang.frontend.runlog import RunLog
from lmlang.frontend.story import pieces
from lmlang.frontend.view_tokens import name_of, probability, share
from lmlang.markup import BLUE, CODE, MUTED, ORANGE, Html, element, tint

LONGEST = 1_500
"""Tokens of one output that are aligned one by one; what is beyond is compared as a whole."""
SHOWN = 1_000
"""Characters of one stretch of text that are shown."""

_WORD = re.compile(r"\s*\S+|\s+")

Side = Literal["both", "first", "second"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens in a row that both outputs have, or one of them.

    Args:
        side: Which has them.
        text: What they read like.
        tokens: How many they are.
    """

    side: Side
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Compared:
    """One output of a program in two runs.

    Args:
        path: Its place in both runs.
        name: Its variable.
        kind: "gen" or "select".
        stretches: Its tokens, aligned.
        parts: The index of the first token that differs; None: none does.
        why: What stands there in each, with its probability; or that one has no such output.
    """

    path: str
    name: str
    kind: str
    stretches: tuple[Stretch, ...]
    parts: int | None
    why: str

    @property
    def equal(self) -> bool:
        """Whether both runs have the same there."""
        return self.parts is None


@dataclass(frozen=True, slots=True, repr=False)
class Diff:
    """What `diff` returns: two runs, output by output; it prints. A value, thread-safe.

    Args:
        outputs: In the order of the first run, then those that only the second has.
        settings: How the runs themselves differ: model, seed and the like.
        written: What the programs wrote, aligned by word; empty where they wrote the same.
    """

    outputs: tuple[Compared, ...]
    settings: tuple[str, ...]
    written: tuple[Stretch, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether all outputs are the same."""
        return all(each.equal for each in self.outputs)

    def text(self, width: int | None = None) -> str:
        """The differences as text; width in columns, None: those of the terminal."""
        most = markup.columns() if width is None else max(markup.NARROWEST, width)
        return "\n".join(_lines(self, most))

    def html(self) -> str:
        """The differences as static HTML."""
        return str(_page(self))

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": self.html()}


def diff(first: ProgramState | RunLog, second: ProgramState | RunLog) -> Diff:
    """Compare two results output by output, aligned by token.

    Outputs belong together that stand at the same place of their programs (`LoggedOperation.path`).

    Args:
        first: A state or a run log.
        second: What it is compared with.

    Raises:
        ProgramTypeError: One is something else.
    """
    one, other = _log(first), _log(second)
    mine, theirs = _outputs(one), _outputs(other)
    paths = [*mine, *(path for path in theirs if path not in mine)]
    spelled = _spellings(one, other)
    compared = [_compared(path, mine.get(path), theirs.get(path), *spelled) for path in paths]
    wrote, writes = _written(one), _written(other)
    written = tuple(_aligned(wrote, writes)) if wrote != writes else ()
    return Diff(tuple(compared), tuple(_settings(one, other)), written)


def _log(result: object) -> RunLog:
    if isinstance(result, ProgramState):
        return result.run_log()
    if isinstance(result, RunLog):
        return result
    raise ProgramTypeError(
        f"diff: {an(type(result).__name__)} is no result: give two states, or run logs of states."
    )


def _outputs(log: RunLog) -> dict[str, LoggedOperation]:
    return {each.path: each for each in log.operations if each.kind in ("gen", "select")}


def _settings(one: RunLog, other: RunLog) -> Iterator[str]:
    for name in ("program", "model", "lora", "seed", "n", "max_program_tokens"):
        mine, theirs = getattr(one, name), getattr(other, name)
        if mine != theirs:
            yield f"{name}: {mine} | {theirs}"
    if one.row_key != other.row_key:
        yield "the rows differ (by arguments or key), and their draws with them"
    for name in one.params.__slots__:
        mine, theirs = getattr(one.params, name), getattr(other.params, name)
        if mine != theirs:
            yield f"{name}: {mine!r} | {theirs!r}"
    mine, theirs = _asked(one), _asked(other)
    if mine != theirs and one.program == other.program:
        yield "what the programs asked for differs"


def _asked(log: RunLog) -> list[ir.Node]:
    """The generations and selects of a recording, wherever they stand."""
    return [
        replace(node, state=0, made=0)
        for node in log.recording.nodes
        if isinstance(node, (ir.Gen, ir.Select))
    ]


def _written(log: RunLog) -> list[str]:
    """The words that a program wrote."""
    texts = [node.text for node in log.recording.nodes if isinstance(node, ir.Text)]
    return _WORD.findall("\n".join(texts))


def _spellings(one: RunLog, other: RunLog) -> tuple[dict[int, str], dict[int, str]]:
    """What tokens of each run read like; of one model, as either run knows it."""
    mine, theirs = dict(one.spelling), dict(other.spelling)
    return (mine | theirs, mine | theirs) if one.model == other.model else (mine, theirs)


def _compared(
    path: str,
    mine: LoggedOperation | None,
    theirs: LoggedOperation | None,
    one: dict[int, str],
    other: dict[int, str],
) -> Compared:
    there = mine or theirs
    assert there is not None
    name, kind = there.name or "", there.kind
    if mine is None or theirs is None:
        side: Side = "second" if mine is None else "first"
        (alone,) = _tokens((there, one if theirs is None else other))
        found = (Stretch(side, "".join(alone), len(alone)),)
        return Compared(path, name, kind, found, 0, f"only the {side} run has it")
    left, right = _tokens((mine, one), (theirs, other))
    stretches = tuple(_aligned(left, right))
    parts = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
    if parts is None and len(left) != len(right):
        parts = min(len(left), len(right))
    if parts is None and (mine.text, mine.status) != (theirs.text, theirs.status):
        parts = len(left)  # what stands behind the last token: how they ended
    why = ""
    if parts is not None:
        why = f"{_there(mine, left, parts, one)} | {_there(theirs, right, parts, other)}"
    return Compared(path, name, kind, stretches, parts, why)


def _there(
    operation: LoggedOperation, tokens: Sequence[str], at: int, spelling: dict[int, str]
) -> str:
    if at >= len(tokens):
        finish = operation.samples[0].finish if operation.samples else None
        return f"ends ({finish or operation.status})"
    sample = operation.samples[0] if operation.samples else None
    if sample is None or len(sample.tokens) < len(tokens):
        return f'"{markup.line(tokens[at])}"'
    spelled = {**dict.fromkeys(sample.tokens, tokens[at]), **spelling}
    return f"{name_of(sample.tokens[at], spelled)} {share(probability(sample, at))}".rstrip()


def _tokens(*of: tuple[LoggedOperation, dict[int, str]]) -> list[list[str]]:
    """What the tokens of outputs read like; the words of all where that is not known of one."""
    spelled = [_spelled(*each) for each in of]
    known = [each for each in spelled if each is not None]
    return known if len(known) == len(of) else [_words(operation) for operation, _ in of]


def _spelled(operation: LoggedOperation, spelling: dict[int, str]) -> list[str] | None:
    if not operation.samples:
        return _words(operation)
    return pieces(operation.samples[0], spelling)


def _words(operation: LoggedOperation) -> list[str]:
    if not operation.samples:
        return [operation.text] if operation.text else []
    sample = operation.samples[0]
    if len(sample.tokens) in (len(sample.text), len(sample.text) + 1):  # characters are tokens
        return list(sample.text)
    words = sample.text.split(" ")
    return [word if i == 0 else f" {word}" for i, word in enumerate(words)]


def _aligned(left: list[str], right: list[str]) -> Iterator[Stretch]:
    if max(len(left), len(right)) > LONGEST:
        common = next(
            (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b),
            min(len(left), len(right)),
        )
        blocks = [
            ("equal", 0, common, 0, common),
            ("replace", common, len(left), common, len(right)),
        ]
    else:
        blocks = list(SequenceMatcher(None, left, right, autojunk=False).get_opcodes())
    for kind, a, b, c, d in blocks:
        if kind == "equal":
            yield Stretch("both", "".join(left[a:b]), b - a)
            continue
        if b > a:
            yield Stretch("first", "".join(left[a:b]), b - a)
        if d > c:
            yield Stretch("second", "".join(right[c:d]), d - c)


# ------------------------------------------------------------------------------ shown


def _head(found: Diff) -> str:
    equal = sum(each.equal for each in found.outputs)
    count = markup.counted(len(found.outputs), "output")
    return f"{equal:,} of {count} alike" if found.outputs else "neither run has an output"


def _title(each: Compared) -> str:
    tokens = sum(stretch.tokens for stretch in each.stretches)
    said = f"{each.kind} {each.name} ({each.path})"
    if each.equal and each.kind == "select":
        return f"= {said}: alike"
    if each.equal:
        return f"= {said}: {markup.counted(tokens, 'token')} alike"
    return f"≠ {said} parts at token {each.parts}: {each.why}"


def _lines(found: Diff, width: int) -> Iterator[str]:
    yield from markup.wrapped(_head(found), width)
    for setting in found.settings:
        yield from markup.wrapped(f"· {markup.line(setting)[:300]}", width)
    if found.written:
        yield from markup.wrapped("≠ what the programs wrote", width)
        yield from _stretches(found.written, width)
    for each in found.outputs:
        yield from markup.wrapped(markup.plain(_title(each)), width)
        if not each.equal:
            yield from _stretches(each.stretches, width)
    if not found.equal or found.written:
        yield from markup.wrapped("{-first run only-} {+second run only+}", width)


def _stretches(stretches: Sequence[Stretch], width: int) -> list[str]:
    marks = {"both": "{}", "first": "{{-{}-}}", "second": "{{+{}+}}"}
    shown = "".join([marks[s.side].format(markup.middle(s.text, SHOWN)) for s in stretches])
    return markup.wrapped(markup.plain(shown), width, "  ")


def _page(found: Diff) -> Html:
    sheet = markup.Sheet()
    sheet.open("div", markup.PAGE)
    sheet.add(element("div", element("b", _head(found))))
    for setting in found.settings:
        sheet.add(element("div", setting[:300], style=MUTED))
    if found.written:
        _part(sheet, "≠ what the programs wrote", found.written)
    for each in found.outputs:
        _part(sheet, _title(each), () if each.equal else each.stretches)
    if not found.equal or found.written:
        legend = (_marked(Stretch(side, f"{side} run only", 1)) for side in ("first", "second"))
        sheet.add(element("div", *[markup.joined((each, " ")) for each in legend], style=MUTED))
    return sheet.end("print(lm.diff(…)) shows it")


def _part(sheet: markup.Sheet, title: str, stretches: Sequence[Stretch]) -> None:
    sheet.add(element("div", element("span", title, style=CODE), style="margin-top:6px"))
    sheet.open("pre", markup.TEXT + ";padding:2px 0 2px 12px")
    for stretch in stretches:
        if not sheet.add(_marked(stretch)):
            break
    sheet.close()


def _marked(stretch: Stretch) -> Html:
    text = markup.escaped(markup.middle(stretch.text, SHOWN))
    if stretch.side == "first":
        return element("del", text, style=f"{tint(ORANGE, 0.3)};border-radius:3px")
    if stretch.side == "second":
        style = f"{tint(BLUE, 0.25)};text-decoration:underline;border-radius:3px"
        return element("ins", text, style=style)
    return text
