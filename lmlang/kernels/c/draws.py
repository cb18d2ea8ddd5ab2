"""C forms over rows of logits; their contracts are in lmlang/kernels/sampling.py."""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from lmlang.kernels import native


class NormaliserRows(ctypes.Structure):
    """``lm_normaliser_rows`` of lmlang.h."""

    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("rows", "size", "threads")),
    )


class DrawRows(ctypes.Structure):
    """``lm_draw_rows`` of lmlang.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("scores", "words", "temperatures", "out")),
        *((name, ctypes.c_int64) for name in ("stride", "word_row", "word")),
        *((name, ctypes.c_int32) for name in ("rows", "size", "threads")),
    )


def log_normalisers(logits: Tensor) -> Tensor:
    """float32 [R]: log Σ exp(logits [R, V])."""
    logits = _rows(logits)
    out = torch.empty(len(logits), dtype=torch.float32)
    numbers = (logits.stride(0), *logits.shape, native.threads())
    job = NormaliserRows(logits.data_ptr(), out.data_ptr(), *numbers)
    _library().lm_normalise(ctypes.byref(job))
    return out


def draw(
    scores: Tensor,
    words: Tensor,
    temperatures: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    truncates: bool,
) -> Tensor:
    """One token of every row; rows with a limit are left to the reference, as not sure."""
    scores, temperatures = _rows(scores), temperatures.contiguous()
    if words.dtype != torch.int32 or temperatures.dtype != torch.float32:
        raise ValueError(f"words are {words.dtype}, temperatures {temperatures.dtype}")
    out = torch.empty((3, len(scores)), dtype=torch.int32)
    job = DrawRows(
        scores.data_ptr(),
        words.data_ptr(),
        temperatures.data_ptr(),
        out.data_ptr(),
        scores.stride(0),
        *words.stride(),
        *scores.shape,
        native.threads(),
    )
    _library().lm_draw(ctypes.byref(job))
    if truncates:
        limited = (top_k < scores.shape[1]) | (top_p < 1) | (min_p > 0)
        out[2].masked_fill_(limited & (temperatures > 0), 0)
    return out


def _rows(logits: Tensor) -> Tensor:
    if logits.dtype != torch.float32 or logits.ndim != 2 or not logits.shape[1]:
        raise ValueError(f"logits are {logits.dtype} {list(logits.shape)}: float32 rows are needed")
    return logits if logits.stride(1) == 1 else logits.contiguous()


@cache
def _library() -> ctypes.CDLL:
    library = native.library()
    library.lm_normalise.argtypes = [ctypes.POINTER(NormaliserRows)]
    library.lm_draw.argtypes = [ctypes.POINTER(DrawRows)]
    return library
