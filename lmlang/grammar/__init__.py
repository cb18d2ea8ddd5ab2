"""Constraints on text: characters, bytes and token ids only; knows no request and no model.

The names of the toolbox are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmlang.grammar.grammar import Grammar, Match
    from lmlang.grammar.masks import Mask
    from lmlang.grammar.matcher import GrammarMatcher
    from lmlang.grammar.spec import Choice, Ebnf, Either, JsonSchema, Regex
    from lmlang.grammar.toolbox import compile
    from lmlang.grammar.vocabulary import Vocabulary

__all__ = [
    "Choice",
    "Ebnf",
    "Either",
    "Grammar",
    "GrammarMatcher",
    "JsonSchema",
    "Mask",
    "Match",
    "Regex",
    "Vocabulary",
    "compile",
]

_HOME = {
    "Grammar": "grammar",
    "GrammarMatcher": "matcher",
    "Mask": "masks",
    "Match": "grammar",
    "Vocabulary": "vocabulary",
    "compile": "toolbox",
} | dict.fromkeys(("Choice", "Ebnf", "Either", "JsonSchema", "Regex"), "spec")


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lmlang.grammar' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"lmlang.grammar.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
