"""The tokens of a run: how likely each was, what else could have come, what a constraint took away.

    #  token   p      unlikely             else could have come       masked   mark
    0  "42"    0.61   ▁▁▁                  "7" 0.22, "3" 0.05         34.0%    ▲ "Forty"
    1  "."     1.00                                                            forced

▲ the model's likeliest token was not allowed, and what that was; △ it may be that it was not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from lmlang import markup
from lmlang.frontend import ir
from lmlang.frontend.choices import softmax
from lmlang.frontend.logged import LoggedOperation, Sample
from lmlang.frontend.story import Step, Story, bytes_of, kind_of
from lmlang.frontend.view_transcript import heading, outcome
from lmlang.markup import BLUE, CODE, MUTED, ORANGE, Html, element, tint

LONGEST = 400
"""Tokens of one output that are listed in text; of HTML a quarter."""
OPEN = 40
"""Tokens of a page whose tables stand open."""
CHOICES = 40
"""Choices of a select that are listed."""
ALTERNATIVES = 3
"""Tokens beside each that are shown."""
MASKED, MAYBE = "▲", "△"


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One token as it is shown.

    Args:
        text: What it reads like, in quotes; its id where nobody has said.
        probability: Of it; None: unknown.
        alternatives: The likeliest others, with theirs.
        masked: The probability of all that its constraint forbade; None: not told.
        mark: "forced", ▲ or △ with the token that the model would rather have had; or "".
    """

    text: str
    probability: float | None
    alternatives: tuple[tuple[str, float], ...]
    masked: float | None
    mark: str


def token_rows(sample: Sample, spelling: dict[int, str], greedy: bool) -> Iterator[TokenRow]:
    """The rows of a sample's tokens.

    Args:
        sample: Of a generation.
        spelling: What tokens read like.
        greedy: Whether nothing was drawn, so that the likeliest allowed token came.
    """

    def spelled(token: int) -> str:
        return name_of(token, spelling)

    for i, token in enumerate(sample.tokens):
        chance = probability(sample, i)
        tops = sample.top_probs[i] if i < len(sample.top_probs) else None
        if tops is None and i < len(sample.top_logprobs):
            tops = tuple([(other, _exp(p)) for other, p in sample.top_logprobs[i]])
        others = [(spelled(other), p) for other, p in tops or () if other != token]
        told = sample.provenance[i] if i < len(sample.provenance) else None
        masked, mark = None, ""
        if told is not None:
            masked = told.masked
            sure = told.forced or greedy or (i < len(sample.top_probs) and bool(tops))
            legal = bool(tops) and i < len(sample.top_probs) and told.best == tops[0][0]  # type: ignore[index]
            possible = masked > 0 and masked >= _model(sample, i)
            if told.best != token and not legal and (sure or possible):
                mark = f"{MASKED if sure else MAYBE} {spelled(told.best)}"
            if told.forced:
                mark = f"forced {mark}".strip()
        yield TokenRow(spelled(token), chance, tuple(others[:ALTERNATIVES]), masked, mark)


def name_of(token: int, spelling: dict[int, str]) -> str:
    """What a token reads like, in quotes; a part of a character as its bytes; else its id."""
    if token not in spelling:
        return f"#{token}"
    text = spelling[token]
    return f'"{text if bytes_of(text) is not None else markup.line(text)}"'


def probability(sample: Sample, i: int) -> float | None:
    """Of a sample's token: that of the draw where it was recorded, else the model's."""
    if i < len(sample.probs):
        return sample.probs[i]
    return _model(sample, i) if i < len(sample.logprobs) else None


def _model(sample: Sample, i: int) -> float:
    return _exp(sample.logprobs[i]) if i < len(sample.logprobs) else 0.0


def _exp(logprob: float) -> float:
    return math.exp(min(0.0, logprob)) if not math.isnan(logprob) else math.nan


def not_recorded(story: Story) -> list[str]:
    """What the log does not have, and how to ask for it."""
    samples = [sample for each in story.made() for sample in each.samples if sample.tokens]
    gens = [step.node for step in story.steps if step.what == "gen"]
    bound = any(isinstance(node, ir.Gen) and node.constraint is not None for node in gens)
    found: list[str] = []
    if not samples:
        return found
    if not any(sample.probs for sample in samples):
        found.append(
            "p is the model's own, before temperature and constraint; that of the draw: "
            "return_logprob=True"
        )
    if not any(sample.top_logprobs or sample.top_probs for sample in samples):
        found.append("alternatives were not recorded: top_logprobs_num=5")
    if bound and not any(sample.provenance for sample in samples):
        found.append("what was forced or masked was not recorded: gen(…, provenance=True)")
    if not all(token in story.spelling for sample in samples for token in sample.tokens):
        found.append("what tokens read like was not recorded: return_text_in_logprobs=True")
    return found


def greedy(step: Step) -> bool:
    """Whether a generation drew nothing."""
    return step.operation is not None and not step.operation.draw_keys


def title(operation: LoggedOperation, step: Step) -> str:
    """What a list of tokens is of."""
    kind = kind_of(step.node)
    usage = operation.usage
    count = markup.counted(usage.generated_tokens + usage.scored_tokens, "token")
    said = [count + (f" ({usage.forced_tokens:,} forced)" if usage.forced_tokens else "")]
    hidden = usage.generated_tokens - sum(len(sample.tokens) for sample in operation.samples)
    if operation.status == "done" and operation.kind == "gen" and hidden > 0:
        refused = any(sample.tries > 1 for sample in operation.samples)
        what = "in values that validators refused" if refused else "of a hidden thought"
        said.append(f"{hidden:,} of them {what}")
    for sample in operation.samples[:1]:
        said.append(f"finish {sample.finish}" if sample.finish else "")
        said.append(f"stop {markup.line(repr(sample.stop))}" if sample.stop is not None else "")
    said.append(outcome(operation) if operation.status != "done" else "")
    named = f"{operation.name}: {kind}" if kind else f"{operation.name}"
    return f"{operation.kind} {named} — {', '.join(filter(None, said))}"


# ------------------------------------------------------------------------------ text


def lines(story: Story, width: int) -> list[str]:
    """The tokens as lines of at most so many columns."""
    found = [each for head in story.head for each in markup.wrapped(markup.plain(head), width)]
    for step in story.steps:
        operation = step.operation
        if operation is None or step.what not in ("gen", "select"):
            continue
        found += ["", *markup.wrapped(markup.line(title(operation, step)), width)]
        if step.what == "select":
            found += _choice_lines(operation, width)
        for number, sample in enumerate(operation.samples):
            if len(operation.samples) > 1:
                found.append(f"sample {number + 1} of {len(operation.samples)}")
            found += _sample_lines(sample, story, greedy(step), width)
    notes = not_recorded(story)
    for note in [*_marks(story), *notes]:
        found += ["", *markup.wrapped(note, width)]
    return found


def _sample_lines(sample: Sample, story: Story, greedily: bool, width: int) -> list[str]:
    if not sample.tokens:
        return []
    rows = [["#", "token", "p", "unlikely", "alternatives", "masked", "mark"]]
    for i, row in enumerate(token_rows(sample, story.spelling, greedily)):
        if i == LONGEST:
            break
        p = row.probability
        others = ", ".join([f"{text} {share(q)}" for text, q in row.alternatives])
        masked = "" if row.masked is None else f"{row.masked:.1%}"
        rows.append([f"{i}", row.text, share(p), _bar(p), others, masked, row.mark])
    kept = [i for i in range(7) if i < 3 or any(row[i] for row in rows[1:])]
    found = markup.table([[row[i] for i in kept] for row in rows], _right(kept), width)
    if len(sample.tokens) > LONGEST:
        found.append(f"… {markup.counted(len(sample.tokens) - LONGEST, 'more token')}")
    return found


def _right(kept: list[int]) -> list[int]:
    return [at for at, column in enumerate(kept) if column in (0, 2, 5)]


def share(p: float | None) -> str:
    """A probability as it is shown."""
    return "" if p is None else f"{p:.2f}" if p >= 0.005 or p == 0 else f"{p:.1g}"


def _bar(p: float | None) -> str:
    """The longer, the more unlikely: a mark for each halving, eight at most."""
    if p is None or math.isnan(p):
        return ""
    return "▪" * min(8, round(-math.log2(max(p, 1e-9)))) if p < 1 else ""


def _choice_lines(operation: LoggedOperation, width: int) -> list[str]:
    rows = [["", "choice", "p", "logprob"]]
    for chosen, text, p, logprob in choices(operation):
        rows.append(["●" if chosen else "", markup.line(text), share(p), f"{logprob:.2f}"])
    if len(rows) == 1:
        return ["nothing had to be scored"] if operation.status == "done" else []
    found = markup.table(rows[: CHOICES + 1], (2, 3), width)
    if len(rows) > CHOICES + 1:
        found.append(f"… {markup.counted(len(rows) - 1 - CHOICES, 'more choice')}")
    return found


def choices(operation: LoggedOperation) -> list[tuple[bool, str, float, float]]:
    """Of each choice of a select: whether it was taken, its text, probability and logprob."""
    if not operation.choices:
        return []
    probs = softmax([choice.logprob for choice in operation.choices])
    found = [
        (choice.text == operation.text, choice.text, p, choice.logprob)
        for choice, p in zip(operation.choices, probs, strict=True)
    ]
    return sorted(found, key=lambda each: (not each[0], -each[2]))


def _marks(story: Story) -> list[str]:
    samples = [sample for each in story.made() for sample in each.samples]
    if not any(sample.provenance for sample in samples):
        return []
    return [
        f"{MASKED} the model's likeliest token, named behind it, was not allowed; {MAYBE} it may "
        "be that it was not (top_logprobs_num=1 decides); masked: the probability of all that was "
        "not allowed"
    ]


# ------------------------------------------------------------------------------ HTML


def page(story: Story) -> Html:
    """The tokens as static HTML."""
    sheet = markup.Sheet()
    sheet.open("div", markup.PAGE)
    heading(sheet, story.head)
    for note in [*_marks(story), *not_recorded(story)]:
        sheet.add(element("div", note, style=MUTED))
    listed = 0
    for step in story.steps:
        operation = step.operation
        if operation is None or step.what not in ("gen", "select"):
            continue
        head = element("b", title(operation, step))
        sheet.add(element("div", head, style=f"margin-top:10px;{CODE}"))
        if step.what == "select":
            _choice_table(sheet, operation)
        for sample in operation.samples:
            listed += len(sample.tokens)
            _token_table(sheet, sample, story, greedy(step), listed <= OPEN)
    return sheet.end("print(log.tokens()) shows it")


_TOKEN = f"{CODE};white-space:pre-wrap"
_STYLES = {1: f"{CODE};white-space:pre", 3: "opacity:.6;white-space:nowrap"}


def _token_table(
    sheet: markup.Sheet, sample: Sample, story: Story, greedily: bool, stands_open: bool
) -> None:
    rows = list(token_rows(sample, story.spelling, greedily))
    if not rows:
        return
    most = LONGEST // 4
    sheet.open("div", f"{_TOKEN};line-height:2;margin:2px 0")
    for row in rows[:LONGEST]:
        if not sheet.add(_strip(row)):
            break
    sheet.close()
    columns = ["#", "token", "p", "unlikely", "alternatives", "masked", "mark"]
    cells = [
        [
            f"{i}",
            row.text,
            share(row.probability),
            _bar(row.probability),
            ", ".join([f"{text} {share(q)}" for text, q in row.alternatives]),
            "" if row.masked is None else f"{row.masked:.1%}",
            row.mark,
        ]
        for i, row in enumerate(rows[:most])
    ]
    kept = [i for i in range(7) if i < 4 or any(each[i] for each in cells)]
    sheet.open(f"details{' open' if stands_open else ''}")
    sheet.add(element("summary", f"{markup.counted(len(rows), 'token')} one by one", style=MUTED))
    sheet.open(markup.TABLE, markup.TABLE_STYLE)
    sheet.add(markup.row([columns[i] for i in kept], _right(kept), head=True))
    for each in cells:
        if not sheet.add(markup.row([each[i] for i in kept], _right(kept), styles=_STYLES)):
            break
    sheet.close()
    sheet.close()
    if len(rows) > most:
        more = f"… {len(rows) - most:,} more tokens: print(log.tokens()) shows them"
        sheet.add(element("div", element("i", more), style=MUTED))


def _strip(row: TokenRow) -> Html:
    """A token in its place in the text: the stronger the tint, the more unlikely it was."""
    text = row.text[1:-1] if row.text.startswith('"') else row.text
    p = row.probability
    halvings = 0.0 if p is None or p >= 1 or math.isnan(p) else min(8, -math.log2(max(p, 1e-9)))
    colour = ORANGE if MASKED in row.mark or MAYBE in row.mark else BLUE
    style = f"{tint(colour, 0.04 + halvings / 8 * 0.5)};padding:2px 1px;margin-right:1px"
    if row.mark.startswith("forced"):
        style += ";border-bottom:2px dotted rgba(128,128,128,.9)"
    mark = MASKED if MASKED in row.mark else MAYBE if MAYBE in row.mark else ""
    said = f"{row.text} p={share(p)} {row.mark}"
    return element(
        "span", text or "∅", element("sup", mark) if mark else Html(""), style=style, title=said
    )


def _choice_table(sheet: markup.Sheet, operation: LoggedOperation) -> None:
    found = choices(operation)
    if not found:
        return
    sheet.open(markup.TABLE, markup.TABLE_STYLE)
    sheet.add(markup.row(["", "choice", "p", "logprob", ""], (2, 3), head=True))
    for chosen, text, p, logprob in found[:CHOICES]:
        name = element(
            "b" if chosen else "span", markup.line(markup.middle(text, 200)), style=_TOKEN
        )
        bar = element("span", "▪" * round(p * 20), style="opacity:.6")
        sheet.add(
            markup.row(["●" if chosen else "", name, share(p), f"{logprob:.2f}", bar], (2, 3))
        )
    if len(found) > CHOICES:
        sheet.add(markup.row(["", f"… {len(found) - CHOICES:,} more choices", "", "", ""]))
    sheet.close()
