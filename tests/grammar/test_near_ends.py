"""Masks where texts come near to their longest or must soon end: equal to trying every token."""

from __future__ import annotations

import pytest

from lmlang.grammar.compiler import compile_spec
from lmlang.grammar.contents import LENGTHS as LEVELS
from lmlang.grammar.matcher import GrammarMatcher
from lmlang.grammar.spec import JsonSchema, Regex, Spec
from lmlang.grammar.vocabulary import Vocabulary

SHORT = LEVELS[-1]
LENGTHS = (1, 2, 5, SHORT - 1, SHORT, SHORT + 1, SHORT + 2, 2 * SHORT, 2 * SHORT + 1, 40)
PIECES = sorted(
    {bytes([byte]) for byte in range(0x20, 0x7F)}
    | {b"a" * length + end for length in LENGTHS for end in (b"", b".", b"-", b"@", b'"', b"b")}
    | {b"a." * (length // 2) for length in LENGTHS if length > 1}
    | {("é" * length).encode() for length in LENGTHS}
)
"""Tokens of all lengths about that up to which most tokens are."""
VOCABULARY = Vocabulary(
    PIECES, encode=lambda text: [PIECES.index(bytes([b])) for b in text.encode()]
)


def string(**keywords: object) -> Spec:
    return JsonSchema.of({"type": "string", **keywords})


def legal(matcher: GrammarMatcher) -> list[int]:
    """Every token that may come next, each tried."""
    found = []
    for index in range(len(PIECES)):
        if matcher.accept_token(index):
            matcher.rollback(1)
            found.append(index)
    return found


@pytest.mark.parametrize(
    ("spec", "begin", "more"),
    [
        (string(maxLength=50), b'"', b"a"),
        (string(minLength=20, maxLength=50), b'"', b"a"),
        (string(pattern="^[a.]*$", maxLength=50), b'"', b"a"),
        (string(pattern="^(a+[.-])*a+$", maxLength=50), b'"', b"a"),
        (string(format="email"), b'"', b"a"),
        (string(format="email"), b'"a@', b"a"),
        (string(format="email", maxLength=90), b'"', b"a"),
        (string(format="hostname", maxLength=50), b'"', b"a"),
        (string(allOf=[{"pattern": "^[abc]{0,50}$"}, {"pattern": "^(a|bccc)*$"}]), b'"', b"a"),
        (Regex(r"[a.]{3,50}"), b"", b"a"),
        (Regex(r"a{0,50}[.@]"), b"", b"a"),
        (Regex(r"[é.]{0,45}-"), b"", "é".encode()),
    ],
    ids=str,
)
def test_masks_equal_trying_every_token_all_the_way_to_the_end(
    spec: Spec, begin: bytes, more: bytes
) -> None:
    matcher = compile_spec(spec, VOCABULARY).matcher()
    taken = matcher.accept_bytes(begin) if begin else True
    length = 0
    while taken:
        assert matcher.mask().ids().tolist() == legal(matcher), length
        taken = matcher.accept_bytes(more)
        length += 1
    assert length > 20


def test_a_long_token_is_legal_up_to_the_last_place_that_has_room_for_it() -> None:
    matcher = compile_spec(string(format="email"), VOCABULARY).matcher()
    assert matcher.accept_bytes(b'"')
    token = PIECES.index(b"a" * SHORT + b".")
    seen = []
    while matcher.accept_bytes(b"a"):
        seen.append(matcher.mask().allows(token))
    assert seen[:1] + seen[-1:] == [True, False]
    assert seen == sorted(seen, reverse=True)
    assert sum(seen) == 63 - (SHORT + 1)  # of at most 64 characters one must follow the dot
