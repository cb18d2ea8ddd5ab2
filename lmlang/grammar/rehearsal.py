"""Before the first output of a grammar: what outputs meet sooner or later is worked out beforehand.

    contents    what tokens do in the strings and keys that may come
    rehearsal   masks and forced tokens along the shortest output

So it is not in the way of the steps of other outputs. It ends where its time is over.
"""

from __future__ import annotations

import time

from lmlang.errors import GrammarTooLarge
from lmlang.grammar.grammar import Grammar

MOST = 64
"""Bytes of a completion that are looked at for its first token."""


def rehearse(grammar: Grammar, seconds: float) -> None:
    """Work out what the outputs of a grammar meet, as far as its rules tell, for some time."""
    end = time.monotonic() + seconds
    try:
        for contents in grammar.automaton.ahead():
            for content in contents:
                if time.monotonic() > end:
                    return
                grammar.masks.expect(content)
            if time.monotonic() > end:
                return
        if grammar.automaton.is_swift and grammar.vocabulary.cut is not None:
            _walk(grammar, end)  # an encoder that nothing is known of is left to those who need it
    except GrammarTooLarge:  # where no output may ever come to
        return


def _walk(grammar: Grammar, end: float) -> None:
    matcher, automaton, vocabulary = grammar.matcher(), grammar.automaton, grammar.vocabulary
    while time.monotonic() <= end and not matcher.is_accepting():
        forced = matcher.forced_tokens()
        if matcher.accept_tokens(forced) and not matcher.is_accepting():
            continue
        matcher.mask()
        rest = automaton.completion(matcher.state)
        ids = vocabulary.encode(rest[:MOST].decode("utf-8", "ignore"))
        if not (ids and matcher.accept_token(ids[0])) and not matcher.accept_bytes(rest[:1]):
            return
