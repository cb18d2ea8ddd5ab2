"""Every limit and parameter check, as pure functions that the library and a server share.

A check returns the value in its canonical type or raises ``ProgramError`` with the parameter's
name, the value and the range that is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from lmlang.errors import ProgramError, ProgramTypeError, quote

MAX_TOKENS = 1_000_000
"""Largest max_tokens of one generation."""
MAX_STOPS = 64
"""Stop strings of one generation."""
MAX_STOP_CHARACTERS = 1_024
"""Characters of one stop string."""
MAX_SAMPLES = 1_024
"""Samples of one generation (n)."""
MAX_CHOICES = 100_000
"""Choices of one select."""
MAX_FORKS = 100_000
"""Children of one fork."""
MAX_TEMPERATURE = 1_000.0
"""Above this a draw is uniform for any model."""
MAX_SEED = 2**63 - 1
MAX_NODES = 10_000_000
"""Nodes of one program's IR."""
MAX_TOP_LOGPROBS = 100
"""Likeliest tokens reported beside each token."""
MAX_TOKEN_IDS = 1_024
"""Entries of one stop_token_ids or logit_bias."""
MAX_NAME_CHARACTERS = 256
"""Characters of an adapter's name."""


def integer(name: str, value: object, low: int, high: int) -> int:
    """An integer from ``low`` to ``high``; a bool or a float is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ProgramTypeError(
            f"{name}={_shown(value)} must be an integer, not {type(value).__name__}: "
            f"give a whole number from {low:,} to {high:,}."
        )
    if not low <= value <= high:
        raise ProgramError(
            f"{name}={_shown(value)} is out of range: it must be from {low:,} to {high:,}."
        )
    return value


def number(name: str, value: object, low: float, high: float, *, above: bool = False) -> float:
    """A finite number from ``low`` to ``high``; with ``above`` it must exceed ``low``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ProgramTypeError(
            f"{name}={_shown(value)} must be a number, not {type(value).__name__}: "
            f"give one from {_bound(low)} to {_bound(high)}."
        )
    try:
        as_float = float(value)
    except OverflowError:
        as_float = math.inf
    if not math.isfinite(as_float) or not low <= as_float <= high or (above and as_float == low):
        lowest, highest = _bound(low), _bound(high)
        bounds = f"above {lowest} and at most {highest}" if above else f"from {lowest} to {highest}"
        raise ProgramError(f"{name}={_shown(value)} is out of range: it must be {bounds}.")
    return as_float


def boolean(name: str, value: object) -> bool:
    """True or False, nothing that merely counts as such."""
    if not isinstance(value, bool):
        raise ProgramTypeError(
            f"{name}={_shown(value)} must be True or False, not {type(value).__name__}."
        )
    return value


def adapter(name: str, value: object) -> str | None:
    """The name of an adapter, or None for none."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise ProgramTypeError(
            f"{name}={_shown(value)} must be the name of an adapter, not {type(value).__name__}."
        )
    if not 0 < len(value) <= MAX_NAME_CHARACTERS:
        raise ProgramError(
            f"{name}={_shown(value)} has {len(value):,} characters: a name has 1 to "
            f"{MAX_NAME_CHARACTERS}."
        )
    return value


def stop_strings(value: object, name: str = "stop") -> tuple[str, ...]:
    """Stop strings from None, one string or a sequence of strings; empty ones are refused."""
    if value is None:
        return ()
    stops: Sequence[object]
    if isinstance(value, str):
        stops = (value,)
    elif isinstance(value, (list, tuple)):
        stops = value
    else:
        raise ProgramTypeError(
            f"{name}={_shown(value)} must be a string or a list of strings, "
            f"not {type(value).__name__}."
        )
    if len(stops) > MAX_STOPS:
        raise ProgramError(f"{name} has {len(stops):,} strings: at most {MAX_STOPS} are allowed.")
    for stop in stops:
        if not isinstance(stop, str):
            raise ProgramTypeError(
                f"{name}={_shown(value)} must hold strings only, and holds {type(stop).__name__}."
            )
        if not stop:
            raise ProgramError(
                f"{name}='' would end every output at once: leave it out or give a text."
            )
        if len(stop) > MAX_STOP_CHARACTERS:
            raise ProgramError(
                f"{name} has a string of {len(stop):,} characters: at most "
                f"{MAX_STOP_CHARACTERS:,} are allowed."
            )
        if any("\ud800" <= character <= "\udfff" for character in stop):
            raise ProgramError(
                f"{name}={_shown(stop)} has a lone surrogate, which no output contains: decode "
                "its source with the right encoding."
            )
    return tuple(dict.fromkeys(str.__str__(stop) for stop in stops if isinstance(stop, str)))


def top_k(value: object) -> int:
    """-1 (or 0: no limit) or a count of tokens; canonical -1 for no limit."""
    checked = integer("top_k", value, -1, 2**31 - 1)
    return -1 if checked <= 0 else checked


def token_ids(name: str, value: object) -> tuple[int, ...]:
    """Token ids from None, one id or a sequence of ids."""
    if value is None:
        return ()
    given = value if isinstance(value, (list, tuple, set, frozenset)) else (value,)
    if len(given) > MAX_TOKEN_IDS:
        raise ProgramError(f"{name} has {len(given):,} ids: at most {MAX_TOKEN_IDS:,} are allowed.")
    return tuple(dict.fromkeys(integer(name, token, 0, 2**31 - 1) for token in given))


def logit_bias(value: object) -> tuple[tuple[int, float], ...]:
    """Pairs of token id and bias, sorted by id, from None, a dict or a sequence of pairs."""
    if value is None:
        return ()
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, (list, tuple)) or not all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs
    ):
        raise ProgramTypeError(
            f"logit_bias={_shown(value)} must map token ids to numbers, as in {{42: -100}}."
        )
    if len(pairs) > MAX_TOKEN_IDS:
        raise ProgramError(
            f"logit_bias has {len(pairs):,} ids: at most {MAX_TOKEN_IDS:,} are allowed."
        )
    checked = {
        integer("logit_bias", token, 0, 2**31 - 1): number("logit_bias", bias, -100, 100)
        for token, bias in pairs
    }
    return tuple(sorted(checked.items()))


def _bound(value: float) -> str:
    """A bound as people write it: 1,000,000 and 0.5."""
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"


def _shown(value: object) -> str:
    try:
        return quote(value) if isinstance(value, str) else quote(str(value))[1:-1]
    except ValueError:  # an int of more digits than Python prints
        return "a number of thousands of digits"
