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

from lmlang.kernels import activation, bitmask, linear, norm, paged, paged_attention, rope, sampling
from lmlang.kernels.forms import chosen_form
from lmlang.kernels.paged import PagedKV


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

    _register(name, schema, run, fake, writes)


def _define_over_pool(name: str, schema: str, reference: Callable[..., Any], at: int) -> None:
    """Define ``lmlang::name``, an attention of the first argument that gives a state.

    Args:
        name: Of the op.
        schema: What it takes besides the tensors of its `PagedKV`.
        reference: Its reference implementation.
        at: Where the `PagedKV` stands among the arguments.
    """

    def run(*args: Any) -> Any:
        kv = PagedKV(*args[at : at + 4])
        return chosen_form(name, reference, args[0])(*args[:at], kv, *args[at + 4 :])

    def fake(*args: Any) -> tuple[Tensor, Tensor]:
        q, states, value_dim = args[0], args[1 if at > 1 else 0], args[at + 1].shape[2]
        shape = (states.shape[0], q.shape[1])
        return q.new_empty((*shape, value_dim)), q.new_empty(shape, dtype=torch.float32)

    parts = schema.split(", ")
    parts[at:at] = ["Tensor k", "Tensor v", "Tensor? k_scale", "Tensor? v_scale"]
    _register(name, f"({', '.join(parts)}) -> (Tensor, Tensor)", run, fake, ())


def _register(
    name: str,
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    writes: tuple[str, ...],
) -> None:
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
_define_over_pool(
    "paged_prefill",
    "Tensor q, Tensor starts, Tensor table, Tensor table_starts, float scale, int window, "
    "float softcap",
    paged_attention.prefill_reference,
    at=1,
)
_define_over_pool(
    "paged_decode",
    "Tensor q, Tensor table, Tensor table_starts, float scale, int window, float softcap",
    paged_attention.decode_reference,
    at=1,
)
_define_over_pool(
    "paged_shared",
    "Tensor q, Tensor rows, Tensor group_starts, Tensor table, Tensor table_starts, "
    "float scale, float softcap",
    paged_attention.shared_reference,
    at=3,
)
_define(
    "merge_states",
    "(Tensor(a!) out, Tensor(b!) lse, Tensor part, Tensor part_lse, Tensor? rows) -> ()",
    paged_attention.merge_reference,
    _nothing,
    ("out", "lse"),
)
_define(
    "int8_product",
    "(Tensor x, Tensor values, Tensor scale) -> Tensor",
    linear.int8_product_reference,
    lambda x, values, scale: x.new_empty((x.shape[0], values.shape[0])),
)
