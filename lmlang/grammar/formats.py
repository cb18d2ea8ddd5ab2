r"""The formats of JSON Schema as languages: what their RFCs allow, to the calendar and the octet.

A format is a small pattern, or a few of them that must hold together: a leap second is one in UTC,
so its hour and its minute each have to fit the offset. Everything is ASCII but for IRIs.

Host names leave out labels with ``--`` in the third and fourth place: these are reserved, and
whether an ``xn--`` is a name hangs on what it decodes to.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from lmlang.grammar import idn
from lmlang.grammar.language import Language, matching, of_length
from lmlang.grammar.literals import DATE, HOUR, YEAR

# Dates and times: RFC 3339, ISO 8601 as its appendix A has it for durations.
_SIXTY = "[0-5][0-9]"
_FRACTION = r"(?:\.[0-9]+)?"
_TIME = f"{HOUR}:{_SIXTY}:{_SIXTY}{_FRACTION}(?:[Zz]|[+-]{HOUR}:{_SIXTY})"

# Internet addresses: RFC 3986, RFC 5321, RFC 1123.
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_WORD = "[0-9A-Fa-f]{1,4}"
_LAST_WORDS = f"(?:{_WORD}:{_WORD}|{_IPV4})"
_IPV6 = "(?:{})".format(
    "|".join(
        [f"(?:{_WORD}:){{6}}{_LAST_WORDS}"]
        + [
            (f"(?:{_WORD}(?::{_WORD}){{0,{left - 1}}})?" if left else "")
            + "::"
            + (f"(?:{_WORD}:){{{5 - left}}}{_LAST_WORDS}" if left < 6 else _WORD * (left == 6))
            for left in range(8)
        ]
    )
)
_LABEL = "{a}(?:{a}|{h}{a}|{h}(?:{a}{a}|-{a})|{h}(?:{a}{h}|-{a}){h}{{0,58}}{a})?".format(
    a="[0-9A-Za-z]", h="[0-9A-Za-z-]"
)
_LDH = "[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
_ATOM = "[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]+"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~]){0,62}"'
_EMAIL = (
    rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})@(?:{_LDH}(?:\.{_LDH})*|\[(?:{_IPV4}|IPv6:{_IPV6})\])"
)
_SHORT_LOCAL_PART = r'[^"@][^@]{0,63}@[^@]*|".*'


def _uri(more: str, private: str) -> dict[str, str]:
    """The patterns of references; ``more`` is what is unreserved besides, as parts of a class."""
    unreserved, delimiters = rf"0-9A-Za-z._~\-{more}", "!$&'()*+,;="
    percent = "%[0-9A-Fa-f]{2}"
    char = f"(?:[{unreserved}{delimiters}:@]|{percent})"
    colonless = f"(?:[{unreserved}{delimiters}@]|{percent})"
    user = f"(?:[{unreserved}{delimiters}:]|{percent})*"
    name = f"(?:[{unreserved}{delimiters}]|{percent})*"
    future = rf"[vV][0-9A-Fa-f]+\.[0-9A-Za-z._~\-{delimiters}:]+"
    authority = rf"(?:{user}@)?(?:\[(?:{_IPV6}|{future})\]|{name})(?::[0-9]*)?"
    tail = rf"(?:\?(?:{char}|[/?{private}])*)?(?:#(?:{char}|[/?])*)?"
    onward = f"(?:/{char}*)*"
    hierarchy = f"//{authority}{onward}|/(?:{char}+{onward})?"
    whole = f"[A-Za-z][0-9A-Za-z+.-]*:(?:{hierarchy}|{char}+{onward}|)"
    relative = f"(?:{hierarchy}|{colonless}+{onward}|)"
    return {"whole": f"{whole}{tail}", "reference": f"(?:{whole}|{relative}){tail}"}


_UCS = r"\xa0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef" + "".join(
    rf"\U000{plane:x}{'1000' if plane == 14 else '0000'}-\U000{plane:x}fffd"
    for plane in range(1, 15)
)
_PRIVATE = r"\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd"

_VARIABLE = r"(?:[0-9A-Za-z_]|%[0-9A-Fa-f]{2})(?:\.?(?:[0-9A-Za-z_]|%[0-9A-Fa-f]{2}))*"
_SPECIFIED = rf"{_VARIABLE}(?::[1-9][0-9]{{0,3}}|\*)?"
_TEMPLATE = (
    rf"(?:[!#$&(-;=?-\[\]_a-z~{_UCS}{_PRIVATE}]|%[0-9A-Fa-f]{{2}}"
    rf"|\{{[+#./;?&]?{_SPECIFIED}(?:,{_SPECIFIED})*\}})*"
)
_POINTER = r"(?:/(?:[^/~]|~[01])*)*"


def _duration() -> Language:
    number = "[0-9]+"
    clock = f"T(?:{number}H(?:{number}M(?:{number}S)?)?|{number}M(?:{number}S)?|{number}S)"
    day = f"(?:{number}D|{number}M(?:{number}D)?|{number}Y(?:{number}M(?:{number}D)?)?)"
    return matching(f"P(?:{day}(?:{clock})?|{clock}|{number}W)")


def _leap_seconds(before: str, on_time: str, after: str) -> Language:
    """Second 60 of 23:59 in UTC, by its local time and offset.

    Args:
        before: What stands before the time.
        on_time: The same, where the offset is none or negative.
        after: The same, where it is positive.
    """
    rest = f":60{_FRACTION}"
    any_hour, any_minute = HOUR, _SIXTY
    utc = matching(f"{on_time}23:59{rest}(?:[Zz]|[+-]00:00)")
    # Behind UTC the local time and the offset together are 23:59.
    minutes = "|".join(f"{m:02}{rest}-{any_hour}:{59 - m:02}" for m in range(60))
    hours = "|".join(f"{h:02}:{any_minute}{rest}-{23 - h:02}:{any_minute}" for h in range(24))
    behind = matching(f"{on_time}{any_hour}:(?:{minutes})") & matching(f"{before}(?:{hours})")
    # Ahead of it the offset is a minute more than the local time.
    minutes = "|".join(f"{m:02}{rest}\\+{any_hour}:{(m + 1) % 60:02}" for m in range(60))
    hours = "|".join(
        f"{h:02}:(?:[0-4][0-9]|5[0-8]){rest}\\+{h:02}:{any_minute}"
        + (f"|{h:02}:59{rest}\\+{h + 1:02}:{any_minute}" if h < 23 else "")
        for h in range(24)
    )
    ahead = matching(f"{after}{any_hour}:(?:{minutes})") & matching(f"{before}(?:{hours})")
    return utc | behind | ahead


def _time() -> Language:
    return matching(_TIME) | _leap_seconds("", "", "")


def _date_time() -> Language:
    leap = _leap_seconds(
        f"{DATE}[Tt]", f"{YEAR}-(?:06-30|12-31)[Tt]", f"{YEAR}-(?:07-01|01-01)[Tt]"
    )
    return matching(f"{DATE}[Tt]{_TIME}") | leap


REGEX_DEPTH = 3
"""Groups inside of groups in texts of the format "regex"; what no bound holds is not regular."""


def _regex() -> str:
    """Regular expressions that ECMA-262 and Python read alike, their groups nested so deep.

    Without look-around, back-references and named groups; of the counts {n,m} those of one digit.
    """
    span = "|".join(
        f"{first}-[{first}-{last}]"
        for run, last in (("abcdefghijklmnopqrstuvwxyz", "z"), ("0123456789", "9"))
        for first in run
    )
    span += "|" + "|".join(f"{first}-[{first}-Z]" for first in "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    escaped = r"\\(?:[dDsSwWfnrtv]|[\^$.*+?()[\]{}|/\\]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4})"
    member = rf"(?:{span}|[^\^\\[\]\-\n\r&~|]|{escaped}|\\-)"
    counts = "|".join(f"{least},[{least}-9]" for least in range(10))
    times = rf"(?:[*+?]|\{{(?:[0-9]{{1,3}},?|{counts})\}})\??"
    atom = rf"(?:[^\^$\\.*+?()[\]{{}}|\n\r]|\.|{escaped}|\[\^?(?:-?{member}+-?|-)\])"
    inside = ""
    for _ in range(REGEX_DEPTH + 1):
        nested = rf"|\((?:\?:)?{inside}\)" if inside else ""
        term = rf"(?:(?:{atom}{nested})(?:{times})?|[\^$]|\\[bB])"
        inside = rf"(?:{term}|\|)*"
    return inside


def _idn_email() -> str:
    """Addresses with few letters that are not ASCII (RFC 6531)."""
    atom = f"{_ATOM[:-2]}{idn.letters()}]+"
    return rf"(?=[^@]{{1,16}}@){atom}(?:\.{atom})*@{idn.host_name()}"


def format_of(name: str) -> Language:
    """The texts of a format that is known."""
    found = format_language(name)
    assert found is not None
    return found


_FORMATS: dict[str, Callable[[], Language]] = {
    "date": lambda: matching(DATE),
    "time": _time,
    "date-time": _date_time,
    "duration": _duration,
    "email": lambda: matching(_EMAIL) & matching(_SHORT_LOCAL_PART) & of_length(3, 254),
    "hostname": lambda: matching(rf"{_LABEL}(?:\.{_LABEL})*") & of_length(1, 253),
    "idn-email": lambda: format_of("email") | matching(_idn_email()),
    "idn-hostname": lambda: format_of("hostname") | matching(idn.host_name()),
    "ipv4": lambda: matching(_IPV4),
    "ipv6": lambda: matching(_IPV6),
    "uuid": lambda: matching("[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"),
    "uri": lambda: matching(_uri("", "")["whole"]),
    "uri-reference": lambda: matching(_uri("", "")["reference"]),
    "iri": lambda: matching(_uri(_UCS, _PRIVATE)["whole"]),
    "iri-reference": lambda: matching(_uri(_UCS, _PRIVATE)["reference"]),
    "uri-template": lambda: matching(_TEMPLATE),
    "json-pointer": lambda: matching(_POINTER),
    "regex": lambda: matching(_regex()),
    "relative-json-pointer": lambda: matching(f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})"),
}


@lru_cache(maxsize=64)
def format_language(name: str) -> Language | None:
    """The texts of a format; None for names that say nothing here, which are annotations."""
    make = _FORMATS.get(name)
    return None if make is None else make()
