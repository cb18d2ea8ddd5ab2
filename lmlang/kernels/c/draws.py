"""C forms over rows of logits: draws and log-normalisers, as in lmlang/kernels/sampling.py."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence as Seq
from functools import cache
from struct import Struct
from typing import NamedTuple

import torch
from torch import Tensor

from lmlang.kernels import native

_ROW = Struct("=QQQQIfffii16x")
"""``lm_draw_row`` of lmlang.h, what is written in it left empty."""
_DRAWN = Struct("=56xiiff")
"""The same, what is written in it alone."""


class NormaliserRows(ctypes.Structure):
    """``lm_normaliser_rows`` of lmlang.h."""

    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("rows", "size", "threads")),
    )


class DrawRow(NamedTuple):
    """One draw, as `lmlang.kernels.sampling.draw` describes it, over rows given by address.

    Args:
        scores: Of float32 [N], what is drawn from.
        logits: Of float32 [N], the model's own logits; may be the same.
        mask: Of int32 [words], bit i % 32 of word i // 32 set where id i may be drawn; 0: all may.
        key: 64 bits, which with ``number`` make the noise (`lmlang.noise.draw_words`).
        number: The token's number in its output.
        temperature: 0, or at least `lmlang.kernels.sampling.COLDEST`.
        top_p: 1 for no limit.
        min_p: 0 for no limit.
        top_k: N for no limit.
        words: Of the mask.
    """

    scores: int
    logits: int
    mask: int
    key: int
    number: int
    temperature: float
    top_p: float
    min_p: float
    top_k: int
    words: int = 0


class _Room(threading.local):
    """A thread's own rows, which grow to the most that it asked for."""

    rows = ctypes.create_string_buffer(0)


_room = _Room()


def draw_rows(rows: Seq[DrawRow], size: int) -> list[tuple[int, int, float, float]]:
    """One token of each row of ``size`` logits; whoever asks keeps what the addresses name.

    Returns:
        For each row the token; whether it is the reference's for sure, or for the reference to
        draw, for rounding or as more than 256 tokens would have to be put in order; its
        probability among those that the mask leaves; its log-probability by the model's logits,
        NaN where they are not finite.
    """
    places = range(0, len(rows) * _ROW.size, _ROW.size)
    if len(_room.rows) < places.stop:
        _room.rows = ctypes.create_string_buffer(places.stop)
    there = _room.rows
    for at, row in zip(places, rows, strict=True):
        _ROW.pack_into(there, at, *row)
    _library().lm_draw(there, len(rows), size, native.threads())
    return [_DRAWN.unpack_from(there, at) for at in places]


def log_normalisers(logits: Tensor) -> Tensor:
    """float32 [R]: log Σ exp(logits [R, V])."""
    logits = rows_of(logits)
    out = torch.empty(len(logits), dtype=torch.float32)
    numbers = (logits.stride(0), *logits.shape, native.threads())
    job = NormaliserRows(logits.data_ptr(), out.data_ptr(), *numbers)
    _library().lm_normalise(ctypes.byref(job))
    return out


def rows_of(logits: Tensor) -> Tensor:
    """Logits [R, V] whose rows are dense each.

    Raises:
        ValueError: They are no rows of float32.
    """
    if logits.dtype != torch.float32 or logits.ndim != 2 or not logits.shape[1]:
        raise ValueError(f"logits are {logits.dtype} {list(logits.shape)}: float32 rows are needed")
    return logits if logits.stride(1) == 1 else logits.contiguous()


@cache
def _library() -> ctypes.CDLL:
    library = native.library()
    library.lm_normalise.argtypes = [ctypes.POINTER(NormaliserRows)]
    library.lm_draw.argtypes = [ctypes.c_void_p, *[ctypes.c_int32] * 3]
    library.lm_draw.restype = None
    return library
