"""The toolbox's front door: any constraint and any tokenizer to a grammar."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from lmlang.errors import ProgramError, quote
from lmlang.grammar.compiler import Compiler
from lmlang.grammar.grammar import Grammar
from lmlang.grammar.spec import Spec, Style, is_spec
from lmlang.grammar.vocabulary import Vocabulary

MAX_KEPT = 64


def compile(type_or_spec: Any, tokenizer: Any, *, json_style: Style = "line") -> Grammar:
    """The grammar of a type or a spec. Equal ones are made once, and the last ones are kept.

    Args:
        type_or_spec: A spec (`Regex`, `JsonSchema`, `Ebnf`, `Choice`, `Either`), a type as `gen`
            takes it, or a JSON schema as a dict.
        tokenizer: A Runtime, its tokenizer, a Hugging Face tokenizer or a `Vocabulary`.
        json_style: White space of what a type or a dict makes be written as JSON.

    Raises:
        ConstraintError: The constraint cannot be used; the message says why.
        GrammarTooLarge: It would need too large an automaton, or too long to make.
        ProgramError: The tokenizer's tokens do not spell text, or ``json_style`` cannot act.
    """
    vocabulary = Vocabulary.of(tokenizer)
    if is_spec(type_or_spec):
        if json_style != "line":
            raise ProgramError(
                f"json_style={quote(repr(json_style))[1:-1]} cannot act on a spec, which says it "
                "itself: write it into JsonSchema.of(schema, style)."
            )
        spec: Spec = type_or_spec
    else:
        from lmlang.grammar.types import spec_of

        spec = spec_of(type_or_spec, json_style=json_style)
    return _compiler().compile(spec, vocabulary)


@lru_cache(maxsize=1)
def _compiler() -> Compiler:
    return Compiler(max_kept=MAX_KEPT)
