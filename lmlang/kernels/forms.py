"""Which form of the kernels runs: the fastest for the device, the reference, the row-invariant.

    an op       while compiling  -> its operator torch.ops.lmlang.*, a black box to the compiler
                on CUDA          -> its Triton form          } both of the same name,
                on a CPU         -> its C form, if it has one } looked up in `HOMES`
                otherwise        -> the reference implementation, in plain torch

``LMLANG_KERNELS`` is read once, when first needed: ``auto`` as above; ``reference`` for the
reference implementations everywhere; ``c`` as ``auto``, but the library of C kernels must be
there; ``triton`` for the Triton forms on CPU tensors too, which runs under Triton's interpreter
alone (``TRITON_INTERPRET=1``, for tests).
Inside of `row_invariant` the kernels compute every row with the same arithmetic whatever other
rows there are, so that it gets the same bits alone and in any batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Literal, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from lmlang.errors import ModelError, quote
from lmlang.kernels import native

Form: TypeAlias = Literal["triton", "c", "reference"]
Kernel = TypeVar("Kernel", bound=Callable[..., object])

HOMES: dict[Form, dict[str, str]] = {
    "triton": {
        "rms_norm": "lmlang.kernels.triton.norm",
        "add_rms_norm": "lmlang.kernels.triton.norm",
        "add_rms_norm_at": "lmlang.kernels.triton.norm",
        "silu_mul": "lmlang.kernels.triton.activation",
        "gelu_tanh_mul": "lmlang.kernels.triton.activation",
        "apply_rope": "lmlang.kernels.triton.rope",
        "rope_store": "lmlang.kernels.triton.rope",
        "store": "lmlang.kernels.triton.rope",
        "apply_bitmask": "lmlang.kernels.triton.bitmask",
        "draw": "lmlang.kernels.triton.sampling",
        "int8_product": "lmlang.kernels.triton.products",
        "paged_prefill": "lmlang.kernels.triton.attention",
        "paged_shared": "lmlang.kernels.triton.attention",
        "paged_decode": "lmlang.kernels.triton.decode",
        "merge_states": "lmlang.kernels.triton.states",
    },
    "c": {
        "log_normalisers": "lmlang.kernels.c.draws",
        "packed_product": "lmlang.kernels.c.products",
        "rows_of": "lmlang.kernels.c.step",
        "paged_prefill": "lmlang.kernels.c.attention",
        "paged_decode": "lmlang.kernels.c.attention",
        "add_shared": "lmlang.kernels.c.attention",
        "rms_norm": "lmlang.kernels.c.rows",
        "add_rms_norm": "lmlang.kernels.c.rows",
        "silu_mul": "lmlang.kernels.c.rows",
        "gelu_tanh_mul": "lmlang.kernels.c.rows",
        "apply_rope": "lmlang.kernels.c.rows",
        "store": "lmlang.kernels.c.rows",
    },
}
"""By form and op, the module with a function of the op's name that takes the same arguments."""

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


def dispatch(op: str, reference: Kernel, x: Tensor) -> Kernel:
    """The form of an op that runs for a tensor; called with what the reference is called with.

    Args:
        op: Its name in `HOMES`, and in ``torch.ops.lmlang``.
        reference: Its reference implementation.
        x: The tensor whose device decides.

    Raises:
        ModelError: As `form_of`.
    """
    if torch.compiler.is_compiling():
        operator = getattr(torch.ops.lmlang, op)
        return cast(Kernel, lambda *args: operator(*_flat(args)))
    return chosen_form(op, reference, x)


def _flat(args: tuple[object, ...]) -> Iterator[object]:
    """Arguments as an operator takes them: a dataclass of tensors, field by field."""
    for arg in args:
        if is_dataclass(arg):
            yield from (getattr(arg, field.name) for field in fields(arg))
        else:
            yield arg


def chosen_form(op: str, reference: Kernel, x: Tensor) -> Kernel:
    """`dispatch` outside of a compiler: what runs in the end."""
    return cast(Kernel, _kernel(form_of(x), op) or reference)


def form_of(x: Tensor) -> Form:
    """The form of the kernels that runs for a tensor.

    Raises:
        ModelError: ``LMLANG_KERNELS`` has a value that means nothing, or asks for what is not
            there; or Triton is missing where there is a GPU.
    """
    chosen = _chosen()
    if chosen == "reference":
        return "reference"
    if x.device.type == "cuda":
        _need_triton()
        return "triton"
    if chosen == "triton":
        if os.environ.get("TRITON_INTERPRET") != "1":
            raise ModelError(
                f"LMLANG_KERNELS='triton' asks for Triton kernels on the device "
                f"{str(x.device)!r}, where they run under Triton's interpreter alone: set "
                "TRITON_INTERPRET=1 too (slow, for tests), or LMLANG_KERNELS to 'auto'."
            )
        _need_triton()
        return "triton"
    if chosen == "c":
        native.library()
    return "c" if x.device.type == "cpu" and native.available() else "reference"


def kernels_of(x: Tensor) -> str:
    """What runs for a tensor, for people: "C kernels (avx512, 2 threads)", or why there are none.

    Raises:
        ModelError: As `form_of`.
    """
    form = form_of(x)
    if form == "c":
        return native.description()
    if form == "triton":
        return "Triton kernels"
    why = "asked for" if _chosen() == "reference" else native.description()
    return f"reference implementations ({why})"


def use_reference() -> bool:
    """Whether only reference implementations may run.

    Raises:
        ModelError: The variable has a value that means nothing.
    """
    return _chosen() == "reference"


@cache
def _chosen() -> str:
    chosen = os.environ.get("LMLANG_KERNELS", "auto")
    if chosen not in ("auto", "reference", "c", "triton"):
        raise ModelError(
            f"LMLANG_KERNELS={quote(chosen)} means nothing: set it to 'auto', 'reference', 'c' or "
            "'triton'."
        )
    return chosen


@cache
def _need_triton() -> None:
    if find_spec("triton") is None:
        raise ModelError(
            "the kernels for GPUs need Triton, which is not installed: pip install triton, or set "
            "LMLANG_KERNELS=reference to run slowly without it."
        )


@cache
def _kernel(form: Form, op: str) -> Callable[..., object] | None:
    """The function of a form and an op; None where the reference is the form."""
    home = HOMES[form].get(op) if form != "reference" else None
    return None if home is None else cast(Callable[..., object], getattr(import_module(home), op))


def check(
    name: str,
    x: Tensor,
    shape: Seq[int | None],
    dtypes: Seq[torch.dtype],
    device: torch.device | None = None,
    *,
    dense: int = 1,
) -> None:
    """Refuse a tensor that is out of a kernel's contract, before anything is launched.

    Args:
        name: Of the argument.
        x: The argument.
        shape: Its axes; None where any size will do.
        dtypes: Which it may have.
        device: Where it must lie; None: anywhere.
        dense: So many axes from the last on lie one number behind the other, without gaps.

    Raises:
        ValueError: It is another.
    """
    sizes, strides = x.shape, x.stride()
    fits = len(sizes) == len(shape)
    if not fits or any(b is not None and a != b for a, b in zip(sizes, shape, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} has the shape {tuple(sizes)}: it must be ({wanted})")
    if x.dtype not in dtypes:
        wanted = " or ".join(str(dtype) for dtype in dtypes)
        raise ValueError(f"{name} is {x.dtype}: it must be {wanted}")
    if device is not None and x.device != device:
        raise ValueError(f"{name} lies on {x.device}: it must lie on {device}")
    step = 1
    for axis in range(len(sizes) - 1, len(sizes) - 1 - dense, -1):
        if sizes[axis] != 1 and strides[axis] != step and x.numel():
            raise ValueError(
                f"{name} has the strides {strides} for the shape {tuple(sizes)}: its last "
                f"{'axis' if dense == 1 else f'{dense} axes'} must be dense"
            )
        step *= sizes[axis]
