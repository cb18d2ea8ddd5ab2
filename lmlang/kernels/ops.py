"""The kernels as operators of torch, ``torch.ops.lmlang.*``: what a compiler sees of them.

Each runs the form for its device as a black box, and has a fake twin that says shape and dtype of
what comes out. While torch compiles, `lmlang.kernels.forms.dispatch` calls these; otherwise they
are left out, as they cost some microseconds a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lmlang.kernels import activation, bitmask, linear, norm, paged, rope, sampling
from lmlang.kernels.forms import chosen_form


def _define(
    name: str,
    schema: str,
    reference: Callable[..., Any],
    fake: Callable[..., Any],
    writes: tuple[str, ...] = (),
    device: int = 0,
) -> None:
    """Define ``lmlang::name``.

    Args:
        name: Of the op.
        schema: What it takes and gives.
        reference: Its reference implementation.
        fake: Makes empty results for the same arguments.
        writes: Arguments that are written in place.
        device: The argument whose device decides.
    """

    def run(*args: Any) -> Any:
        return chosen_form(name, reference, args[device])(*args)

    op = torch.library.custom_op(f"lmlang::{name}", run, mutates_args=writes, schema=schema)
    op.register_fake(fake)


def _nothing(*args: Any) -> None:
    """What an op returns that writes to its arguments alone."""


def _half(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))


_define(
    "rms_norm",
    "(Tensor x, Tensor weight, float eps) -> Tensor",
    norm.rms_norm_reference,
    lambda x, weight, eps: x.new_empty(x.shape),
)
_define(
    "add_rms_norm",
    "(Tensor x, Tensor(a!) residual, Tensor weight, float eps) -> Tensor",
    norm.add_rms_norm_reference,
    lambda x, residual, weight, eps: residual.new_empty(residual.shape),
    ("residual",),
)
_define(
    "add_rms_norm_at",
    "(Tensor x, Tensor residual, Tensor at, Tensor weight, float eps) -> Tensor",
    norm.add_rms_norm_at_reference,
    lambda x, residual, at, weight, eps: residual.new_empty((at.shape[0], x.shape[1])),
)
_define("silu_mul", "(Tensor gate_up) -> Tensor", activation.silu_mul_reference, _half)
_define("gelu_tanh_mul", "(Tensor gate_up) -> Tensor", activation.gelu_tanh_mul_reference, _half)
_define(
    "apply_rope",
    "(Tensor(a!) x, Tensor cos, Tensor sin) -> ()",
    rope.apply_rope_reference,
    _nothing,
    ("x",),
)
_define(
    "rope_store",
    "(Tensor(a!) qkv, Tensor cos, Tensor sin, int heads, Tensor slots, Tensor(b!) k, "
    "Tensor(c!) v, Tensor(d!)? k_scale, Tensor(e!)? v_scale) -> ()",
    rope.rope_store_reference,
    _nothing,
    ("qkv", "k", "v", "k_scale", "v_scale"),
)
_define(
    "store",
    "(Tensor slots, Tensor k, Tensor v, Tensor(a!) k_pool, Tensor(b!) v_pool, "
    "Tensor(c!)? k_scale, Tensor(d!)? v_scale) -> ()",
    paged.store_reference,
    _nothing,
    ("k_pool", "v_pool", "k_scale", "v_scale"),
)
_define(
    "apply_bitmask",
    "(Tensor(a!) logits, Tensor masks, Tensor rows) -> ()",
    bitmask.apply_bitmask_reference,
    _nothing,
    ("logits",),
)
_define(
    "draw",
    "(Tensor scores, Tensor words, Tensor temperatures, Tensor top_k, Tensor top_p, "
    "Tensor min_p, bool truncates) -> Tensor",
    sampling.draw_reference,
    lambda scores, *settings: scores.new_empty((3, scores.shape[0]), dtype=torch.int32),
)
_define(
    "int8_product",
    "(Tensor x, Tensor values, Tensor scale) -> Tensor",
    linear.int8_product_reference,
    lambda x, values, scale: x.new_empty((x.shape[0], values.shape[0])),
)
