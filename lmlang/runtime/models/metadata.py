"""Checked look-ups in what a model file says about itself: by key, of the type it must have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lmlang.errors import ModelError

T = TypeVar("T")


class NotNative(ModelError):
    """A type or a variant of models that the native family has not; another code may run it."""


HUGE = 1 << 63


@dataclass(frozen=True, slots=True)
class Metadata:
    """Keys and values of a file that may say anything; a value of None is none.

    Args:
        path: The file, for messages.
        values: What it says.
        within: Put before keys in messages, for values inside of others.
    """

    path: Path
    values: Mapping[str, Any]
    within: str = ""

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """A value of exactly this type (a whole number may stand for a float).

        Raises:
            ModelError: It is of another type, absurdly large, or missing without a default.
        """
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise ModelError(
                f"{self.path} lacks the metadata {self.name(key)}: it is incomplete or no "
                "language model."
            )
        if kind is float and type(value) is int and abs(value) < HUGE:
            return kind(value)  # type: ignore[call-arg]
        if type(value) is not kind:
            raise ModelError(
                f"{self.path}: the metadata {self.name(key)} is of the type "
                f"{type(value).__name__}, and must be {kind.__name__}: the file is damaged or "
                "not supported."
            )
        if isinstance(value, int) and abs(value) >= HUGE:
            raise self.wrong(key, "is no size")
        return value

    def size(self, key: str, default: int | None = None, highest: int = 1 << 27) -> int:
        """A whole number from 1 to ``highest``."""
        value = self.get(key, int, default)
        if not 1 <= value <= highest:
            raise self.wrong(key, f"must be a whole number from 1 to {highest:,}")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.get(key, float, default)
        if not 0 < value < 1e30:
            raise self.wrong(key, "must be a positive number")
        return value

    def has(self, key: str) -> bool:
        """Whether there is a value that is not None."""
        return self.values.get(key) is not None

    def wrong(self, key: str, rule: str) -> ModelError:
        """The error for a value that breaks a rule."""
        return ModelError(
            f"{self.path}: the metadata {self.name(key)} is {str(self.values.get(key))[:64]}, and "
            f"{rule}: the file is damaged or not supported."
        )

    def refuse(self, what: str) -> NotNative:
        """The error for a variant that cannot be run."""
        return NotNative(f"{self.path} has {what}, which cannot be run: give another model.")

    def name(self, key: str) -> str:
        """A key as messages write it."""
        return repr(f"{self.within}{key}")
