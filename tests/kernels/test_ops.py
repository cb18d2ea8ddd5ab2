"""Which form of a kernel runs, and what a compiler sees of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from lmlang.kernels import forms
from lmlang.kernels.activation import gelu_tanh_mul, silu_mul
from lmlang.kernels.bitmask import apply_bitmask
from lmlang.kernels.linear import int8_product
from lmlang.kernels.norm import add_rms_norm, add_rms_norm_at, rms_norm
from lmlang.kernels.paged import PagedKV, store_kv
from lmlang.kernels.paged_attention import (
    merge_states,
    paged_decode,
    paged_prefill,
    paged_shared,
)
from lmlang.kernels.rope import apply_rope, rope_store
from lmlang.kernels.sampling import draw


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ints(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def pool(scales: bool = False, size: int = 8) -> PagedKV:
    kv = PagedKV(noise(9, 2, size), noise(9, 2, size, seed=1))
    if not scales:
        return kv
    numbers = (torch.ones(9, 2, size, dtype=torch.int8) for _ in "kv")
    return PagedKV(*numbers, torch.ones(9, 2), torch.ones(9, 2))


X, HEADS, EACH = noise(5, 32), noise(5, 7, 8), torch.ones(5)
COS, SIN = noise(2, 5, 1, 4)
SLOTS = torch.tensor([3, 1, 0, 7, 8])
CALLS = {
    "rms_norm": (rms_norm, (X, noise(32), 1e-5)),
    "add_rms_norm": (add_rms_norm, (X, noise(5, 32, seed=1), noise(32), 1e-5)),
    "add_rms_norm_at": (add_rms_norm_at, (X, X, torch.tensor([3, 0]), noise(32), 1e-5)),
    "silu_mul": (silu_mul, (X,)),
    "gelu_tanh_mul": (gelu_tanh_mul, (X,)),
    "apply_rope": (apply_rope, (HEADS.clone(), COS, SIN)),
    "rope_store": (rope_store, (HEADS.clone(), COS, SIN, 3, pool(), SLOTS)),
    "rope_store to int8": (rope_store, (HEADS.clone(), COS, SIN, 3, pool(True), SLOTS)),
    "store": (store_kv, (pool(), SLOTS, HEADS[:, :2], HEADS[:, 2:4])),
    "apply_bitmask": (apply_bitmask, (X.clone(), ints(5, 9)[:, None], torch.tensor([4, 0]))),
    "int8_product": (
        int8_product, (X, torch.arange(-96, 96).view(6, 32).to(torch.int8), noise(6).bfloat16())
    ),
    "draw": (draw, (X, ints(*range(10)).view(5, 2), EACH, ints(3, 3, 3, 3, 3), EACH, EACH, True)),
    "paged_prefill": (
        paged_prefill,
        (HEADS[:, :4], pool(), ints(0, 2, 5), ints(*range(8)), ints(0, 3, 8), 0.3, 0, 0.0),
    ),
    "paged_decode": (
        paged_decode,
        (HEADS[:, :4], pool(True), ints(*range(8)), ints(0, 1, 2, 3, 4, 8), 0.3, 2, 5.0),
    ),
    "paged_shared": (
        paged_shared,
        (HEADS[:, :4], ints(0, 2, 3), ints(0, 2, 3), pool(), ints(*range(8)), ints(0, 5, 8), 0.3,
         0.0),
    ),
    "merge_states": (
        merge_states,
        (HEADS.clone(), noise(5, 7), HEADS[:2].clone(), noise(2, 7), ints(4, 1)),
    ),
}  # fmt: skip


def copied(args: tuple) -> tuple:
    def copy(arg: object) -> object:
        if isinstance(arg, PagedKV):
            return PagedKV(*(None if x is None else x.clone() for x in forms._flat((arg,))))
        return arg.clone() if isinstance(arg, Tensor) else arg

    return tuple(map(copy, args))


def test_every_op_with_a_triton_form_is_tried() -> None:
    assert {name.split(" ")[0] for name in CALLS} == set(forms.HOMES["triton"])


def outcome(function: Callable, args: tuple) -> list:
    """What a call gives, and what its arguments are afterwards."""
    given = copied(args)
    result = function(*given)
    results = result if isinstance(result, tuple) else (result,)
    return [*results, *forms._flat(given)]


@pytest.mark.parametrize("name", CALLS)
def test_an_operator_says_what_it_writes_and_what_comes_out(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, args = CALLS[name]
    called: list[tuple] = []

    def noted(op: str, reference: Callable, x: Tensor) -> Callable:
        def run(*given: object) -> object:
            called.append(copied(given))
            return reference(*given)

        return run

    wanted = outcome(function, args)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for mine, its in zip(outcome(compiled, args), wanted, strict=True):
        assert torch.equal(mine, its) if isinstance(its, Tensor) else mine == its
    monkeypatch.setattr(forms, "chosen_form", noted)
    function(*copied(args))
    opcheck(getattr(torch.ops.lmlang, name.split(" ")[0]).default, tuple(forms._flat(called[0])))


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets the variable that chooses the form, which is otherwise read once."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    def choose(value: str) -> None:
        monkeypatch.setenv("LMLANG_KERNELS", value)
        forms._chosen.cache_clear()

    yield choose
    monkeypatch.undo()
    forms._chosen.cache_clear()


def test_the_environment_chooses_the_form_or_is_told_why_not(kernels) -> None:
    kernels("reference")
    assert forms.form_of(X) == "reference"
    kernels("triton")
    with pytest.raises(forms.ModelError, match="set TRITON_INTERPRET=1 too"):
        forms.form_of(X)
    kernels("quick")
    with pytest.raises(forms.ModelError, match="LMLANG_KERNELS='quick' means nothing"):
        forms.form_of(X)


def test_a_gpu_without_triton_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "find_spec", lambda name: None)
    forms._need_triton.cache_clear()
    with pytest.raises(forms.ModelError, match="pip install triton"):
        forms._need_triton()
    forms._need_triton.cache_clear()
