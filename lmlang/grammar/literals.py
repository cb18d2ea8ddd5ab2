"""Plain scalars as patterns: how dates, times, durations and UUIDs are spelled, calendar-true."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date

_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
"""A year, 1 to 9999."""
HOUR = "(?:[01][0-9]|2[0-3])"
_BY_FOUR = "(?:0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR = f"(?:[0-9]{{2}}{_BY_FOUR}|{_BY_FOUR}00)"
_OFFSET = f"(?:Z|[+-]{HOUR}:[0-5][0-9])"
_SECONDS = r"[0-9]{1,5}(?:\.[0-9]{1,6})?S"
_CLOCK = (
    f"(?:[0-9]{{1,5}}H(?:[0-9]{{1,5}}M)?(?:{_SECONDS})?|[0-9]{{1,5}}M(?:{_SECONDS})?|{_SECONDS})"
)

_FRACTION_OF_SECOND = r"(?:\.[0-9]{0,5}[1-9])?"
_SECONDS_OF_DAY = (
    "(?:[0-9]|[1-9][0-9]{1,3}|[1-7][0-9]{4}|8[0-5][0-9]{3}|86[0-3][0-9]{2})" + _FRACTION_OF_SECOND
)

DATE = f"(?:{YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
"""A day of the years 1 to 9999, as Python's dates have them."""
TIME = rf"{HOUR}:[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?"
"""A time of day; Python has no leap seconds."""
DURATION = f"-?P(?:[0-9]{{1,8}}D(?:T{_CLOCK})?|T{_CLOCK})"
"""Days, hours, minutes and seconds, within what a timedelta can hold."""
INTEGER = "(?:0|-?[1-9][0-9]{0,399})"
"""Any integer, spelled as a number of JSON."""
_FRACTION = r"(?:\.[0-9]{1,20})?"
REAL = f"(?:-?[1-9][0-9]{{0,307}}{_FRACTION}|0{_FRACTION}|-0\\.0{{0,18}}[1-9][0-9]{{0,18}})"
"""Any number that a double holds, spelled as one of JSON without an exponent."""


TIME_ONCE = f"{HOUR}:[0-5][0-9]:[0-5][0-9]{_FRACTION_OF_SECOND}"
"""The same, each in one spelling."""
DURATION_ONCE = (
    f"(?:P(?:0|[1-9][0-9]{{0,7}})DT{_SECONDS_OF_DAY}S"
    f"|-P(?:[1-9][0-9]{{0,7}}DT{_SECONDS_OF_DAY}|0DT(?=[0.]*[1-9]){_SECONDS_OF_DAY})S)"
)
"""The same durations, each in one spelling: days, and seconds of a day."""
IPV6_ONCE = "(?:0|[1-9a-f][0-9a-f]{0,3})(?::(?:0|[1-9a-f][0-9a-f]{0,3})){7}"
"""Addresses, each in one spelling that Python reads."""


def time(aware: bool | None, once: bool = False) -> str:
    """A time of day, with an offset where it is aware; None: without.

    Args:
        aware: Whether it has an offset.
        once: Whether there is one spelling of it: those that are aware are in UTC.
    """
    if once:
        return f"{TIME_ONCE}Z" if aware else TIME_ONCE
    return f"{TIME}{_OFFSET}" if aware else TIME


def moment(aware: bool | None, once: bool = False) -> str:
    """A date and a time; with an offset, without one, or (None) either; ``once`` as in `time`."""
    offset = "Z" if once else _OFFSET
    offset = {True: offset, False: "", None: f"{offset}?"}[aware]
    return f"{DATE}T{TIME_ONCE if once else TIME}{offset}"


def uuid(version: int | None) -> str:
    """A UUID in lower case, of one version or of any."""
    if version is None:
        return "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    return (
        f"[0-9a-f]{{8}}-[0-9a-f]{{4}}-{version:x}[0-9a-f]{{3}}-[89ab][0-9a-f]{{3}}-[0-9a-f]{{12}}"
    )


_DOMAIN = "(?:[a-z0-9](?:-?[a-z0-9]){0,29}\\.){0,4}[a-z](?:-?[a-z0-9]){0,29}"
"""A host name in lower case; its last label is no number, and none begins with xn--."""


def url(schemes: Iterable[str]) -> str:
    """A URL with a host name, as pydantic reads it too (RFC 3986)."""
    char = "(?:[0-9A-Za-z._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
    port = "" if "file" in schemes else ":(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3})"
    tail = rf"(?:/{char}*)*(?:\?(?:{char}|[/?])*)?(?:#(?:{char}|[/?])*)?"
    return f"(?:{'|'.join(map(re.escape, schemes))})://{_DOMAIN}(?:{port})?{tail}"


EMAIL = (
    r"[0-9A-Za-z_+-]{1,30}(?:\.[0-9A-Za-z_+-]{1,15}){0,2}"
    r"@(?:[a-z0-9](?:-?[a-z0-9]){0,29}\.){1,4}[a-z]{2,24}"
)
"""An address that the package email-validator takes, names for special use aside."""
SPECIAL = r".*\.(?:arpa|invalid|local|localhost|onion|test)"
"""Addresses under names for special use (RFC 6761)."""


def from_day(bound: date, inclusive: bool) -> str:
    """Texts in the form of a date that is not before (or is after) a day."""
    return _beyond(bound.isoformat(), inclusive, "9")


def to_day(bound: date, inclusive: bool) -> str:
    """Texts in the form of a date that is not behind (or is before) a day."""
    return _beyond(bound.isoformat(), inclusive, "0")


def _beyond(text: str, inclusive: bool, last: str) -> str:
    """Texts of the same form whose first other digit is on the side of ``last``."""
    found = [text] if inclusive else []
    for index, digit in enumerate(text):
        if digit in ("-", last):
            continue
        low, high = sorted((chr(ord(digit) + (1 if last == "9" else -1)), last))
        rest = "".join(["-" if other == "-" else "[0-9]" for other in text[index + 1 :]])
        found.append(f"{text[:index]}[{low}-{high}]{rest}")
    return f"(?:{'|'.join(found)})"
