"""What the attention of a transformers model is like, seen in two short forward passes.

Configs lie, and layers are not always what their index says; so each call of the interface is one
layer, and what it is like is taken from the tensors and options of the call and from the function
of its mask. What we could not honour is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lmlang.errors import quote
from lmlang.runtime.models.hf_interface import AttentionCall, AttentionDoor, MaskFunction
from lmlang.runtime.models.hf_refusals import Refused
from lmlang.runtime.shape import KVLayer

SAME = frozenset(
    {
        *("dropout", "is_causal", "position_ids", "cache_position", "use_cache", "layer_idx"),
        *("output_attentions", "output_hidden_states", "output_router_logits", "return_dict"),
        *("scaling", "sliding_window", "softcap", "s_aux", "num_items_in_batch"),
    }
)
"""Options of a call that ask for nothing, or that we honour."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What two forward passes have shown.

    Args:
        kv_layers: By order of call.
        vocab: Logits of a token.
        max_positions: Tokens of the longest context in which every layer sees all, or a window.
        keeps_rows: Whether the model's ``logits_to_keep`` takes the places of tokens.
    """

    kv_layers: tuple[KVLayer, ...]
    vocab: int
    max_positions: int
    keeps_rows: bool


@torch.inference_mode()
def probe(model: Any, door: AttentionDoor, max_positions: int) -> Probed:
    """Look at a model that is on its device, in ``eval`` mode; it is left under ``door.name``.

    Raises:
        Refused: Its attention cannot be ours.
    """
    model.set_attn_implementation(door.tagging)
    calls, logits = _run(model, door, 2)
    if not calls:
        raise Refused(
            "its attention does not go through transformers' AttentionInterface, so it would see "
            "the tokens of all rows of a batch"
        )
    kinds: list[KVLayer] = []
    for call in calls:
        layer, longest = _layer(call, door.masks, max_positions)
        kinds.append(layer)
        max_positions = min(max_positions, longest)
    model.set_attn_implementation(door.name)
    again, _ = _run(model, door, 3)
    _compare(kinds, again)
    kept = _kept_rows(model, door)
    layers = tuple(
        replace(kind, window=0) if kind.window >= max_positions else kind  # which hides nothing
        for kind in kinds
    )
    return Probed(layers, logits.shape[-1], max_positions, kept)


def _run(
    model: Any, door: AttentionDoor, tokens: int, **options: Any
) -> tuple[list[AttentionCall], Tensor]:
    """The calls of one forward pass over so many tokens, none of which is attended to."""
    calls: list[AttentionCall] = []

    def handler(call: AttentionCall) -> Tensor:
        _check_call(call, tokens)
        calls.append(call)
        return call.v.new_zeros((tokens, call.q.shape[1], call.v.shape[2]))

    places = torch.arange(tokens, device=model.device)[None]
    try:
        with door.answered_by(handler):
            out = model(input_ids=places + 3, position_ids=places, use_cache=False, **options)
    except Refused:
        raise
    except Exception as error:  # of any kind: it is someone else's code in a use of our own
        raise Refused(
            f"its forward pass fails over a packed row ({type(error).__name__}: "
            f"{quote(str(error)[:128])})"
        ) from error
    logits: Tensor = out.logits
    return calls, logits


def _check_call(call: AttentionCall, tokens: int) -> None:
    """Refuse a call that asks for more than our attention does."""
    if len(call.k) != tokens or len(call.q) != tokens:
        raise Refused("it attends to something else than the tokens of its row")
    if call.options.get("is_causal", getattr(call.module, "is_causal", True)) is False:
        raise Refused("its attention sees tokens in both directions")
    for name, value in call.options.items():
        if name not in SAME and value is not None and value is not False:
            raise Refused(f"it hands {quote(name)} to its attention, which ours does not know")
    heads, kv_heads = call.q.shape[1], call.k.shape[1]
    if heads % kv_heads or call.q.shape[2] != call.k.shape[2] or call.v.shape[1] != kv_heads:
        shapes = ", ".join(str(tuple(x.shape[1:])) for x in (call.q, call.k, call.v))
        raise Refused(f"heads of queries, keys and values do not fit one another ({shapes})")


def _layer(
    call: AttentionCall, masks: list[MaskFunction], max_positions: int
) -> tuple[KVLayer, int]:
    """A layer, and the longest context in which it sees all, or a window of one size."""
    window, longest = _sight(_mask_function(call.mask, masks), max_positions)
    return replace(_sizes(call), window=window), longest


def _sizes(call: AttentionCall) -> KVLayer:
    """What a call says of its layer, whose window its mask says."""
    scale = call.options.get("scaling")
    return KVLayer(
        heads=call.q.shape[1],
        kv_heads=call.k.shape[1],
        key_dim=call.q.shape[2],
        value_dim=call.v.shape[2],
        scale=call.q.shape[2] ** -0.5 if scale is None else float(scale),
        softcap=float(call.options.get("softcap") or 0.0),
        sinks=call.sinks is not None,
    )


def _mask_function(mask: Tensor | None, masks: list[MaskFunction]) -> MaskFunction:
    """The function behind a mask that was made under ``tagging``."""
    if mask is None:
        raise Refused("it masks nothing: its attention sees tokens in both directions")
    numbers = set(mask.flatten().tolist())
    number = numbers.pop()
    if numbers or number not in range(1, len(masks) + 1):
        raise Refused("it makes its attention's mask by itself, or changes it")
    return masks[int(number) - 1]


def _sight(sees: MaskFunction, max_positions: int) -> tuple[int, int]:
    """A mask's window (0: none), and up to which length of context that is all there is to it."""
    last = max_positions - 1
    if last and _visible(sees, 0, last):
        raise Refused("its attention sees tokens in both directions")
    reach = _reach(sees, last)
    if reach == last:
        return 0, max_positions
    # A window hides the same distance everywhere; what does not (chunks) is taken up to where it
    # begins to hide anything.
    whole = _largest(lambda place: _visible(sees, place, 0), last)
    if whole == reach and all(
        _reach(sees, place) == reach for place in (reach + 1, (reach + last + 1) // 2, last)
    ):
        return reach + 1, max_positions
    return 0, whole + 1


def _reach(sees: MaskFunction, place: int) -> int:
    """How far back a query at this place sees."""
    return _largest(lambda back: _visible(sees, place, place - back), place)


def _largest(holds: Callable[[int], bool], highest: int) -> int:
    """The largest number up to ``highest`` that holds, where all below it do; 0 does."""
    low, high = 0, highest
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _visible(sees: MaskFunction, query: int, key: int) -> bool:
    zero = torch.tensor(0)
    try:
        return bool(sees(zero, zero, torch.tensor(query), torch.tensor(key)))
    except IndexError:  # it looks the place up in tensors of this forward pass
        raise Refused("its attention's mask depends on more than places") from None


def _compare(kinds: list[KVLayer], again: list[AttentionCall]) -> None:
    """Refuse a model whose second pass differs from its first."""
    if len(again) != len(kinds):
        raise Refused(
            f"its attention is called {len(kinds)} times in one forward pass and {len(again)} "
            "times in another"
        )
    for index, (kind, call) in enumerate(zip(kinds, again, strict=True)):
        if call.mask is not None:
            raise Refused("it makes its attention's mask by itself")
        now = _sizes(call)
        same = replace(kind, scale=now.scale, window=0) == now
        if not same or not math.isclose(now.scale, kind.scale, rel_tol=1e-6):
            raise Refused(f"attention {index} differs from one forward pass to another")


def _kept_rows(model: Any, door: AttentionDoor) -> bool:
    """Whether ``logits_to_keep`` takes places: tried, as signatures do not say."""
    wanted = torch.tensor([0, 2], device=model.device)
    _, whole = _run(model, door, 3)
    try:
        _, kept = _run(model, door, 3, logits_to_keep=wanted)
    except Refused:  # it fails over an argument that it does not expect
        return False
    return kept.shape == (1, 2, whole.shape[-1]) and torch.equal(kept, whole[:, wanted])
