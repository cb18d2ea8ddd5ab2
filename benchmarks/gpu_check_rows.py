"""Rows of the GPU check's table; free of torch, so that whoever only prints them starts at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table.

    Args:
        name: What was looked at.
        value: The measured number; None where there is none.
        unit: Of the number.
        target: What is wanted, in words; "" where nothing is.
        ok: Whether it is as wanted; None where nothing is.
        note: For people; of what failed, why.
        speed: Whether the target is one of speed, which is missed rather than failed.
    """

    name: str
    value: float | None = None
    unit: str = ""
    target: str = ""
    ok: bool | None = None
    note: str = ""
    speed: bool = False


Rows = Iterator[Row]


def failed(name: str, error: BaseException) -> Row:
    """The row of a check that raised."""
    said = str(error).strip().splitlines()
    return Row(name, ok=False, note=f"{type(error).__name__}: {said[0][:160] if said else ''}")


def at_least(name: str, value: float, unit: str, least: float, note: str = "") -> Row:
    """A speed that is to be no smaller."""
    return Row(name, value, unit, f">= {least:g}", value >= least, note, speed=True)


def at_most(name: str, value: float, unit: str, most: float, note: str = "") -> Row:
    """A time that is to be no larger."""
    return Row(name, value, unit, f"<= {most:g}", value <= most, note, speed=True)
