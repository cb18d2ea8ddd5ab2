"""Does a model of transformers say the same on our pool as by itself? Asked once a model.

    A  [0 1 2 3 | 4 5 6 | 7]         prefilled in two chunks, then decoded
    B  [0 1 2 3]  4'5'6'  7'         shares A's first slots; its own tokens beside A's last one
    C             [0'']              another row in between

No flag tells of everything that a layer may keep beside keys and values, or number by itself; so
these rows are compared with the same weights under transformers' eager attention, each row whole.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lmlang.errors import quote
from lmlang.runtime.attention import AttentionPlan, plan_attention, run_attention
from lmlang.runtime.cache.pool import KVPool
from lmlang.runtime.models.causal import Inputs
from lmlang.runtime.models.fetch import cache_folder
from lmlang.runtime.models.hf import HFModel
from lmlang.runtime.models.hf_refusals import Refused
from lmlang.runtime.sharing import RowSlots

log = logging.getLogger("lmlang")

FORM = 3
"""Raised whenever the check, or what is run, changes: verdicts of before are none."""
PASSED = "right\n"
"""What the file of a model that has passed holds."""
TOKENS = 8
SLOTS = 32
TOLERANCES = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 0.1}
"""Of the distance between two rows of logits, relative to the length of the exact one. Of a hundred
types of tiny models with random weights, what is right is off by at most 7e-6 in float32, 0.015 in
float16, 0.085 in bfloat16; what keeps a state by 1e-3 with weights near 0, by 0.1 with larger."""


def check_parity(model: HFModel) -> None:
    """Compare a model on our pool with itself.

    Raises:
        Refused: They differ, with the relative distance.
    """
    try:
        distance = measure(model)
    except Exception as error:  # of any kind: it is someone else's code in a use of our own
        raise Refused(
            f"it fails over cached prefixes ({type(error).__name__}: {quote(str(error)[:128])})"
        ) from error
    tolerance = TOLERANCES[model.dtype]
    if math.isinf(distance):
        raise Refused(
            "its logits are not finite (NaN or infinity): its weights are damaged, or too large "
            f"for {str(model.dtype).removeprefix('torch.')}"
        )
    if not distance <= tolerance:  # NaN is refused too
        raise Refused(
            "its outputs in chunks over cached prefixes differ from those of whole rows (by "
            f"{distance:.2g} of their length, {tolerance:g} is allowed): it keeps more than keys "
            "and values, or numbers positions by itself"
        )


@torch.inference_mode()
def measure(model: HFModel) -> float:
    """The distance of logits on our pool to those of transformers, relative to the latter.

    Infinite where the latter are not finite.
    The largest of all tokens in float32. In shorter types the middle one of those that stand behind
    cached tokens, as a router of experts may send a single one elsewhere for the last bit.
    """
    rows = _token_rows(model)
    ours, exact = _on_our_pool(model, rows), _by_itself(model, rows)
    if not exact.isfinite().all():
        return math.inf
    ours, exact = (logits - logits.mean(-1, keepdim=True) for logits in (ours, exact))
    distances = (ours - exact).norm(dim=-1) / exact.norm(dim=-1)
    if model.dtype == torch.float32:
        return float(distances.max())
    half = TOKENS // 2
    behind = torch.cat([distances[half:TOKENS], distances[TOKENS + half : 2 * TOKENS]])
    return float(behind.median())


def _token_rows(model: HFModel) -> Tensor:
    """int64 [3, TOKENS]: A, B with A's first half, and C, none of them tokens with a meaning."""
    config = model.module.config.to_dict()
    special = {value for name, value in config.items() if name.endswith(("_token_id", "_index"))}
    plain = np.setdiff1d(np.arange(model.vocab), [i for i in special if isinstance(i, int)])
    rows = np.random.default_rng(0).choice(plain, (3, TOKENS))
    rows[1, : TOKENS // 2] = rows[0, : TOKENS // 2]
    return torch.from_numpy(rows).to(model.device)


def _on_our_pool(model: HFModel, rows: Tensor) -> Tensor:
    """Logits [17, vocab] of A, B and the first token of C, by the steps of the picture."""
    kv_layers, device = model.kv_layers, model.device
    pool = KVPool(kv_layers, SLOTS, model.dtype, device)
    windows = tuple({layer.window for layer in kv_layers})
    slots = np.arange(SLOTS)
    tables = {0: slots[:TOKENS], 1: np.append(slots[: TOKENS // 2], slots[TOKENS:]), 2: slots[20:]}
    found: dict[tuple[int, int], Tensor] = {}
    steps = (((0, 0, 4),), ((2, 0, 1), (0, 4, 7)), ((0, 7, 8), (1, 4, 7)), ((1, 7, 8),))
    for step in steps:
        places = [(row, place) for row, begin, end in step for place in range(begin, end)]
        row_slots, start = [], 0
        for row, begin, end in step:
            row_slots.append(RowSlots(start, end - begin, tables[row][:end]))
            start += end - begin
        plan = plan_attention(row_slots, device, windows)

        def attend(
            layer: int,
            q: Tensor,
            k: Tensor,
            v: Tensor,
            sinks: Tensor | None = None,
            plan: AttentionPlan = plan,
        ) -> Tensor:
            return run_attention(plan, q, k, v, pool.layers[layer], kv_layers[layer], sinks)

        of_row, positions = torch.tensor(places, device=device).T
        inputs = Inputs(rows[of_row, positions], positions, torch.arange(start, device=device))
        found |= zip(places, model.forward(inputs, attend), strict=True)
    shared = {(1, place): found[0, place] for place in range(TOKENS // 2)}
    return torch.stack([logits for _, logits in sorted((found | shared).items())])


def _by_itself(model: HFModel, rows: Tensor) -> Tensor:
    """The same logits under transformers' own attention, each row whole."""
    parts = (rows[0], rows[1], rows[2, :1])
    with model.plain():
        whole = [model.module(input_ids=part[None], use_cache=False).logits[0] for part in parts]
    return torch.cat(whole).float()


# --------------------------------------------------------------------------- who has passed before


def has_passed(key: str) -> bool:
    """Whether a model was found to be right before.

    Nothing is kept of those that were not: next time weights may be whole, or memory larger.
    """
    try:
        return _place(key).read_text(encoding="utf-8") == PASSED
    except (OSError, ValueError):  # not there, or not as we write it
        return False


def keep_passed(key: str) -> None:
    """Keep for the next time that a model is right; where that cannot be, it is compared again."""
    place = _place(key)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=place.parent, delete=False, encoding="utf-8"
        ) as file:
            file.write(PASSED)
        os.replace(file.name, place)
    except OSError as error:
        log.info("the verdict on a model cannot be kept in %s: %s", place.parent, error)


def verdict_key(config: Path, dtype: torch.dtype, device: torch.device) -> str:
    """Of all that a verdict depends on: the config, versions, dtype, kind of device."""
    import transformers

    parts = (FORM, transformers.__version__, torch.__version__, dtype, device.type)
    digest = hashlib.sha256(repr(parts).encode())
    digest.update(config.read_bytes())
    return digest.hexdigest()


def _place(key: str) -> Path:
    return cache_folder() / "transformers" / f"{key}.txt"
