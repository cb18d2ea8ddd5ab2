"""Random JSON schemas, and random values that are near to what they speak of."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

KEYS = st.sampled_from(["a", "b", "ab", "x-a", ""])
SCALARS = st.sampled_from(
    [None, True, False, 0, 1, 2, 3, -1, 1.5, 0.5, 10, "", "a", "b", "ab", "b7"]
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=5,
)
PATTERNS = st.sampled_from(["a", "^a", "b$", "^x-", "[0-9]", "^$", "."])
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
SMALL = st.integers(0, 3)
NUMBERS = st.sampled_from([-1, 0, 1, 2, 1.5, 0.5])
STEPS = st.sampled_from([1, 2, 3, 0.5, 1.5])


def schemas(unevaluated: bool = False) -> st.SearchStrategy[Any]:
    """Schemas of draft 2020-12.

    Args:
        unevaluated: Whether unevaluatedProperties and unevaluatedItems may be in them.
    """
    names = st.lists(KEYS, max_size=2, unique=True)
    leaves = st.booleans() | st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
            "enum": st.lists(VALUES, min_size=1, max_size=4),
            "const": VALUES,
            "minimum": NUMBERS,
            "exclusiveMaximum": NUMBERS,
            "multipleOf": STEPS,
            "minLength": SMALL,
            "maxLength": SMALL,
            "pattern": PATTERNS,
            "minItems": SMALL,
            "maxItems": SMALL,
            "uniqueItems": st.booleans(),
            "required": names,
            "minProperties": SMALL,
            "maxProperties": SMALL,
            "dependentRequired": st.dictionaries(KEYS, names, max_size=1),
        },
    )
    return st.recursive(leaves, lambda inner: _nested(inner, unevaluated), max_leaves=6)


def _nested(inner: st.SearchStrategy[Any], unevaluated: bool) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    optional = {
        "type": TYPES,
        "prefixItems": some,
        "items": inner,
        "contains": inner,
        "minContains": SMALL,
        "maxContains": SMALL,
        "properties": st.dictionaries(KEYS, inner, max_size=3),
        "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
        "additionalProperties": inner,
        "propertyNames": inner,
        "required": st.lists(KEYS, max_size=2, unique=True),
        "dependentSchemas": st.dictionaries(KEYS, inner, max_size=1),
        "allOf": some,
        "anyOf": some,
        "oneOf": some,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
    }
    if unevaluated:
        optional |= {"unevaluatedProperties": inner, "unevaluatedItems": inner}
    return st.lists(st.sampled_from(sorted(optional)), max_size=4, unique=True).flatmap(
        lambda keywords: st.fixed_dictionaries({keyword: optional[keyword] for keyword in keywords})
    )
