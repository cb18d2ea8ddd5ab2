r"""Pre-tokenisers: how byte-level vocabularies cut text before they merge its bytes.

A cut is a series of steps, each applied to the pieces of the one before. Those that are known, by
the name that GGUF files give them; their patterns are those of the published tokenizer.json files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import tokenizers
from tokenizers import pre_tokenizers

from lmlang.errors import ModelError, quote


@dataclass(frozen=True, slots=True)
class Split:
    """Matches of a pattern become pieces of their own, and so does what is between them.

    Args:
        pattern: An Oniguruma regular expression, or a text if ``literal``.
        literal: Whether it is a text.
        behavior: What becomes of matches, in the words of the ``tokenizers`` library.
    """

    pattern: str
    literal: bool = False
    behavior: str = "isolated"


@dataclass(frozen=True, slots=True)
class Digits:
    """Digits become pieces, each its own or in runs."""

    individual: bool = True


@dataclass(frozen=True, slots=True)
class Words:
    """GPT-2's own pattern."""


Step: TypeAlias = Split | Digits | Words

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BREAKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA_3 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|"
    + _BREAKS
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_FIRST = r"[^\r\n\p{L}\p{N}]?"


def _cased(contractions: str, digits: str) -> str:
    """Words cut where a capital letter follows a small one."""
    return (
        f"{_FIRST}{_UPPER}*{_LOWER}+{contractions}|{_FIRST}{_UPPER}+{_LOWER}*{contractions}|{digits}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _BREAKS
    )


_DEEPSEEK_3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
    r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
).replace(r"\r\n", "\r\n")  # the published file has the characters themselves

KNOWN: dict[str, tuple[Step, ...]] = {
    "gpt-2": (Words(),),
    "smollm": (Digits(), Words()),
    "llama-bpe": (Split(_LLAMA_3),),
    "qwen2": (Split(_LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")),),
    "deepseek-v3": (Split(r"\p{N}{1,3}"), Split("[一-龥\u3040-ゟ゠-ヿ]+"), Split(_DEEPSEEK_3)),
    "tekken": (Split(_cased("", r"\p{N}")),),
    "gpt-4o": (Split(_cased(_CONTRACTIONS + "?", r"\p{N}{1,3}")),),
}
"""Name in GGUF files to steps."""

ALIASES = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "deepseek-r1-qwen": "qwen2"}
WHOLE_PIECES = frozenset({"llama-bpe", "tekken"})
"""Families where a piece that is a token is one, whatever the merges say."""
BEGINS_WITH_BOS = frozenset({"llama-bpe", "tekken"})
"""Families whose prompts begin with the token of the beginning, unless the file says otherwise."""
COMPOSED = frozenset({"qwen2"})
"""Families whose text is put into Unicode's normal form C first."""


def pre_by_name(pre: str) -> str:
    """The known name that a GGUF file means.

    Raises:
        ModelError: It is not known.
    """
    name = ALIASES.get(pre, pre)
    if name not in KNOWN:
        raise ModelError(
            f"the file's pre-tokeniser is {quote(pre)}, and only "
            f"{', '.join(map(repr, KNOWN))} are known: another would cut text wrongly, so this "
            "model cannot be run."
        )
    return name


def is_known(steps: Sequence[Step]) -> bool:
    """Whether `WordBoundaries` hold for these steps."""
    return tuple(steps) in KNOWN.values()


def pre_tokenizer(steps: Sequence[Step]) -> pre_tokenizers.PreTokenizer:
    """These steps, and bytes to the byte alphabet at last.

    Raises:
        ModelError: A pattern is no regular expression.
    """
    made: list[pre_tokenizers.PreTokenizer] = []
    for step in steps:
        if isinstance(step, Digits):
            made.append(pre_tokenizers.Digits(individual_digits=step.individual))
        elif isinstance(step, Split):
            made.append(pre_tokenizers.Split(_compiled(step), step.behavior))
    words = Words() in steps
    made.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words))
    return pre_tokenizers.Sequence(made)


def _compiled(step: Split) -> tokenizers.Regex | str:
    if step.literal:
        return step.pattern
    try:
        return tokenizers.Regex(step.pattern)
    except Exception as error:  # the library's own, without a type
        raise ModelError(
            f"the pre-tokeniser's pattern {quote(step.pattern)} is no regular expression "
            f"({quote(str(error))}): the file is damaged."
        ) from error
