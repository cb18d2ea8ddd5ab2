r"""How constraints stand in printed IR, and back: as calls of their kinds.

regex("[0-9]+")   json_schema("{\"type\": \"integer\"}", 2)   ebnf("…", "start")
choice("a", "b")   either(regex("a"), choice("b"))
"""

from __future__ import annotations

from typing import Any

from lmlang.errors import ConstraintError
from lmlang.frontend.literals import Scanner, integer_text, quoted
from lmlang.grammar.spec import Choice, Ebnf, Either, JsonSchema, Regex, Spec

_WORDS = ("regex", "json_schema", "ebnf", "choice")


def write_spec(spec: Spec) -> str:
    """A spec's text."""
    if isinstance(spec, Either):  # which has no other in it
        return f"either({', '.join(map(write_spec, spec.specs))})"
    if isinstance(spec, Regex):
        return f"regex({quoted(spec.pattern)})"
    if isinstance(spec, Choice):
        return f"choice({', '.join(map(quoted, spec.texts))})"
    if isinstance(spec, Ebnf):
        root = "" if spec.root == "root" else f", {quoted(spec.root)}"
        return f"ebnf({quoted(spec.text)}{root})"
    assert isinstance(spec, JsonSchema)  # no program has a hole
    style = spec.style
    shown = integer_text(style) if isinstance(style, int) else quoted(style)
    return f"json_schema({quoted(spec.text)}{'' if style == 'line' else f', {shown}'})"


def read_spec(scanner: Scanner) -> Spec:
    """The spec that comes next."""
    scanner.spaces()
    start = scanner.position
    if scanner.word("a constraint") != "either":
        scanner.position = start
        return _read_plain(scanner)
    scanner.take("(")
    specs = [_read_plain(scanner)]
    while scanner.taken(","):
        specs.append(_read_plain(scanner))
    scanner.take(")")
    return Either(tuple(specs))


def _read_plain(scanner: Scanner) -> Spec:
    scanner.spaces()
    start = scanner.position
    word = scanner.word("a constraint")
    if word not in _WORDS:
        scanner.refuse(f"a constraint ({', '.join(_WORDS)}; either around several)", start)
    scanner.take("(")
    texts: list[str] = [scanner.string()]
    style: Any = "line"
    while scanner.taken(","):
        if word == "json_schema":
            style = scanner.string() if scanner.sees('"') else scanner.number("a style of JSON")
        else:
            texts.append(scanner.string())
    scanner.take(")")
    try:
        return _made(word, texts, style)
    except (ConstraintError, TypeError) as error:
        scanner.refuse(f"a constraint that can be ({error})", start)


def _made(word: str, texts: list[str], style: Any) -> Spec:
    if word == "choice":
        return Choice(tuple(texts))
    if word == "json_schema":
        return JsonSchema(texts[0], style)
    return Regex(*texts) if word == "regex" else Ebnf(*texts)
