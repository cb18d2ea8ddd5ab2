"""The C form of a whole forward pass of a native model: structs of c/step.h, and the call."""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from lmlang.kernels import native
from lmlang.kernels.packed import PackedWeight

LEVELS = 2
"""Of shared stretches that a step can have."""


class Matrix(ctypes.Structure):
    """``lm_matrix``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("data", "digits", "bias")),
        *((name, ctypes.c_int32) for name in ("bits", "inputs", "outputs", "unused")),
    )

    @classmethod
    def of(cls, weight: PackedWeight, bias: Tensor | None = None) -> Matrix:
        """A weight, and what is added to its products; whoever asks keeps both."""
        outputs, inputs = weight.shape
        at = None if bias is None else bias.data_ptr()
        where = weight.data.data_ptr(), weight.digits.data_ptr(), at
        return cls(*where, weight.bits, inputs, outputs)


class Layer(ctypes.Structure):
    """``lm_layer``."""

    _fields_ = (
        *((name, Matrix) for name in ("qkv", "out", "gate_up", "down")),
        *((name, ctypes.c_void_p) for name in ("attention_norm", "mlp_norm", "qk_norm")),
        *((name, ctypes.c_void_p) for name in ("post_attention_norm", "post_mlp_norm")),
        *((name, ctypes.c_void_p) for name in ("k", "v", "k_scale", "v_scale")),
        *((name, ctypes.c_int32) for name in ("window", "rope", "parts")),
        ("scale", ctypes.c_float),
    )


class Model(ctypes.Structure):
    """``lm_model``."""

    _fields_ = (
        ("layers", ctypes.POINTER(Layer)),
        ("embed", Matrix),
        ("head", Matrix),
        ("norm", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("layer_count", "hidden", "heads", "kv_heads")),
        *((name, ctypes.c_int32) for name in ("head_dim", "intermediate", "gelu")),
        *((name, ctypes.c_int32) for name in ("kv_type", "scale_type", "slots")),
        *((name, ctypes.c_int32) for name in ("windows", "ropes")),
        *((name, ctypes.c_float) for name in ("eps", "embed_scale", "softcap", "logit_softcap")),
    )


class Rows(ctypes.Structure):
    """``lm_step_rows``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("queries", "starts", "table_starts")),
        *((name, ctypes.c_int32) for name in ("first", "count", "rows", "unused")),
    )


class Level(ctypes.Structure):
    """``lm_step_level``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("queries", "starts", "table_starts")),
        *((name, ctypes.c_int32) for name in ("members", "groups")),
    )


class Parts(ctypes.Structure):
    """``lm_step_parts``."""

    _fields_ = (
        ("rows", Rows * 2),
        ("levels", Level * LEVELS),
        *((name, ctypes.c_int32) for name in ("row_count", "level_count")),
    )


class Step(ctypes.Structure):
    """``lm_step``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("ids", "stores", "angles", "table")),
        ("parts", ctypes.POINTER(Parts)),
        *((name, ctypes.c_void_p) for name in ("logits_at", "logits", "space")),
        *((name, ctypes.c_int64) for name in ("space_size", "table_size")),
        *((name, ctypes.c_int32) for name in ("tokens", "wanted", "threads", "unused")),
    )


def run(model: Model, step: Step) -> None:
    """One forward pass; ``space`` and ``threads`` of the step are set here.

    Raises:
        ValueError: A table names a slot that the pool does not have, or does not hold together.
    """
    library, threads = _library(), native.threads()
    step.threads = threads
    size = library.lm_step_space(ctypes.byref(model), ctypes.byref(step))
    space = native.workspace(-(-size // 4))
    step.space, step.space_size = space.data_ptr(), space.nbytes
    native.check_fault(library.lm_run(ctypes.byref(model), ctypes.byref(step)))


def rows_of(ids: Tensor, weight: PackedWeight) -> Tensor:
    """The rows of a weight that ids name: float32 [n, I]; see `PackedWeight.rows`."""
    ids = ids.long().contiguous()
    out = torch.empty((len(ids), weight.shape[1]), dtype=torch.float32)
    matrix = Matrix.of(weight)
    library = _library()
    fault = library.lm_rows_of(ctypes.byref(matrix), ids.data_ptr(), len(ids), out.data_ptr())
    native.check_fault(fault)
    return out


@cache
def _library() -> ctypes.CDLL:
    library = native.library()
    library.lm_step_space.argtypes = [ctypes.POINTER(Model), ctypes.POINTER(Step)]
    library.lm_step_space.restype = ctypes.c_int64
    library.lm_run.argtypes = [ctypes.POINTER(Model), ctypes.POINTER(Step)]
    library.lm_rows_of.argtypes = [
        ctypes.POINTER(Matrix),
        ctypes.c_void_p,
        ctypes.c_int32,
        ctypes.c_void_p,
    ]
    return library
