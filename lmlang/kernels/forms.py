"""Which form of the kernels runs: the fastest for the device, the reference, the row-invariant.

``LMLANG_KERNELS=reference`` forces the reference implementations; read once, when first needed.
Inside of `row_invariant` the kernels compute every row with the same arithmetic whatever other
rows there are, so that it gets the same bits alone and in any batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from lmlang.errors import ModelError, quote

_ROW_INVARIANT: ContextVar[bool] = ContextVar("row_invariant", default=False)


@contextmanager
def row_invariant() -> Iterator[None]:
    """In this block, on this thread, a row's bits do not depend on the rows beside it."""
    token = _ROW_INVARIANT.set(True)
    try:
        yield
    finally:
        _ROW_INVARIANT.reset(token)


def is_row_invariant() -> bool:
    """Whether the block of `row_invariant` is running."""
    return _ROW_INVARIANT.get()


@cache
def use_reference() -> bool:
    """Whether only reference implementations may run.

    Raises:
        ModelError: The variable has a value that means nothing.
    """
    chosen = os.environ.get("LMLANG_KERNELS", "auto")
    if chosen not in ("auto", "reference"):
        raise ModelError(
            f"LMLANG_KERNELS={quote(chosen)} means nothing: set it to 'auto' or 'reference'."
        )
    return chosen == "reference"
