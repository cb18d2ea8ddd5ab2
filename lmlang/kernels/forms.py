"""Which form of the kernels runs: the fastest for the device, or the reference everywhere.

``LMLANG_KERNELS=reference`` forces the reference implementations; read once, when first needed.
"""

from __future__ import annotations

import os
from functools import cache

from lmlang.errors import ModelError, quote


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
