"""Random patterns in Python's syntax, and texts that they may match."""

from __future__ import annotations

from hypothesis import strategies as st

CHARACTERS = "abkKsSſ1٣_ \n\té🙂你iİı"
TEXTS = st.text(CHARACTERS, max_size=12)

_atoms = st.one_of(
    st.sampled_from([c for c in CHARACTERS if c not in " \n\t"]),
    st.sampled_from([".", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", r"\n", "[^a]", r"[^\w\n]"]),
    st.sampled_from(["[a-k]", "[K-Sé]", r"[\d_]", "[^a-s🙂]", "[À-ÿ]", r"[\s\S]", "[ı-ſ]"]),
)
_anchors = st.sampled_from(["^", "$", r"\b", r"\B", r"\A", r"\Z"])


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    counts = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{0,2}?", "{2,}"])
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda ways: f"(?:{'|'.join(ways)})"),
        st.builds("(?:{}){}".format, inner, counts),
        st.builds("({})".format, inner),
        st.builds("(?{}:{})".format, st.sampled_from(["i", "s", "m", "a", "ia", "i-s"]), inner),
    )


PATTERNS = st.builds(
    "{}{}".format,
    st.sampled_from(["", "", "(?i)", "(?s)", "(?m)", "(?a)", "(?ims)", "(?ia)"]),
    st.recursive(_atoms, _grown, max_leaves=8),
)
"""Patterns without assertions."""

ANCHORED = st.builds(
    "{}{}".format,
    st.sampled_from(["", "", "(?i)", "(?m)", "(?am)", "(?s)"]),
    st.recursive(_atoms | _anchors, _grown, max_leaves=8),
)
"""Patterns with assertions too."""


def _looking(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    behind = st.sampled_from(["a", "b|S", r"\w1", "[^a]", r"(?m:k$)", r"\bab", "(?<!s)a", r"^.\Z"])
    return _grown(inner) | st.one_of(
        st.builds("({}{})".format, st.sampled_from(["?=", "?!"]), inner),
        st.builds("(?{}{})".format, st.sampled_from(["<=", "<!"]), behind),
    )


LOOKING = st.builds(
    "{}{}".format,
    st.sampled_from(["", "", "(?i)", "(?m)", "(?s)"]),
    st.recursive(_atoms | _anchors, _looking, max_leaves=8),
)
"""Patterns with look-around too."""
