"""The C kernels against the reference implementations, with every instruction set this CPU has."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmlang.errors import ModelError
from lmlang.kernels import activation, forms, native, norm, paged, paged_attention, rope
from lmlang.kernels.c import attention, rows
from lmlang.kernels.paged import PagedKV

compiled = pytest.mark.skipif(not native.available(), reason=native.description())

SLOTS = 700
BOUNDS = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""What results may differ by: a few roundings of the dtype, relative and absolute."""
DTYPES = st.sampled_from(list(BOUNDS))
SIZES = st.sampled_from([8, 20, 64, 80, 96, 112, 128, 192])
INSTRUCTIONS = ("avx512", "avx2", "plain")


@pytest.fixture(params=INSTRUCTIONS)
def instructions(request: pytest.FixtureRequest) -> Iterator[None]:
    library = native.library()
    widest = library.lm_instructions()
    if library.lm_limit_instructions(request.param.encode()):
        pytest.skip(f"this CPU has no {request.param}")
    yield
    library.lm_limit_instructions(widest)


@pytest.fixture(params=["one thread", "torch's threads", "own threads"])
def sharing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whom a call's work is shared with."""
    monkeypatch.setattr(native, "threads", lambda: 1 if request.param == "one thread" else 3)
    native.library().lm_own_threads(request.param == "own threads")
    yield
    native.library().lm_own_threads(False)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def close(got: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    bound = BOUNDS[dtype]
    torch.testing.assert_close(got.float(), wanted.float(), rtol=bound, atol=bound)


def same_states(
    got: tuple[torch.Tensor, torch.Tensor], wanted: tuple[torch.Tensor, torch.Tensor]
) -> None:
    assert got[0].dtype == wanted[0].dtype
    close(got[0], wanted[0], got[0].dtype)
    close(got[1], wanted[1], torch.float32)


def pool(seed: int, dtype: torch.dtype, heads: int, key_dim: int, value_dim: int) -> PagedKV:
    k, v = (
        torch.randn(SLOTS, heads, size, generator=generator(seed + i))
        for i, size in enumerate((key_dim, value_dim))
    )
    if dtype == torch.int8:
        scale = (torch.float16, torch.float32)[seed % 2]
        (k, k_scale), (v, v_scale) = (paged.quantised(x, scale) for x in (k, v))
        return PagedKV(k, v, k_scale, v_scale)
    return PagedKV(k.to(dtype), v.to(dtype))


def starts(lengths: list[int], base: int = 0) -> torch.Tensor:
    return torch.tensor([base, *(base + end for end in accumulate(lengths))], dtype=torch.int32)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, object]:
    """Ragged rows: how many queries each has, and how many slots it sees before them."""
    seed, kv_heads, groups = draw(st.integers(0, 999)), draw(st.integers(1, 3)), draw(SIZES) % 7 + 1
    counts = draw(st.lists(st.sampled_from([0, 1, 1, 2, 5, 33, 70]), min_size=1, max_size=4))
    before = [draw(st.sampled_from([0, 0, 1, 30, 63, 64, 65, 300])) for _ in counts]
    lengths = [count + more for count, more in zip(counts, before, strict=True)]
    key_dim = draw(SIZES)
    value_dim = draw(st.sampled_from([key_dim, 24, 64]))
    kv_dtype = draw(st.sampled_from([*BOUNDS, torch.int8]))
    table = [
        torch.randperm(SLOTS, generator=generator(seed + i))[:n] for i, n in enumerate(lengths)
    ]
    base = draw(st.sampled_from([0, 3]))  # what stands before and behind is not looked at
    q = torch.randn(sum(counts) + 2, kv_heads * groups + 2, key_dim, generator=generator(seed))
    return {
        "q": q.to(draw(DTYPES))[:, : kv_heads * groups],
        "kv": pool(seed, kv_dtype, kv_heads, key_dim, value_dim),
        "starts": starts(counts),
        "table": torch.cat([torch.full((base,), -1), *table, torch.full((2,), SLOTS)]).int(),
        "table_starts": starts(lengths, base),
        "scale": key_dim**-0.5,
        "window": draw(st.sampled_from([0, 0, 1, 40, 200])),
        "softcap": draw(st.sampled_from([0.0, 0.0, 5.0])),
    }


@compiled
@pytest.mark.usefixtures("instructions", "sharing")
@settings(max_examples=30)
@given(case=cases())
def test_attention_is_that_of_the_reference(case: dict[str, object]) -> None:
    same_states(
        attention.paged_prefill(**case),
        paged_attention.prefill_reference(**case),
    )
    q, first = case.pop("q"), case.pop("starts")
    assert isinstance(q, torch.Tensor)
    assert isinstance(first, torch.Tensor)
    one = torch.randn(len(first) - 1, *q.shape[1:], generator=generator(1)).to(q.dtype)
    same_states(
        attention.paged_decode(one, **case),
        paged_attention.decode_reference(one, **case),
    )
    case.pop("window")
    members = torch.randperm(len(q), generator=generator(2))[: int(first[-1])].int()
    shared = paged_attention.shared_reference(q, members, first, **case)
    state = torch.randn(*q.shape[:2], shared[0].shape[-1]).to(q.dtype), torch.randn(q.shape[:2]) * 9
    state[1][torch.rand(q.shape[:2], generator=generator(3)) < 0.2] = -torch.inf
    state[0][state[1].isinf()] = torch.nan  # is not looked at
    wanted = state[0].nan_to_num(), state[1].clone()
    paged_attention.merge_reference(*wanted, *shared, members)
    attention.add_shared(*state, q, members, first, **case)
    members = members.long()
    seen = wanted[1][members] > -torch.inf
    same_states((state[0][members][seen], state[1][members]),
                (wanted[0][members][seen], wanted[1][members]))  # fmt: skip


@compiled
@pytest.mark.parametrize("spread", [1.0, 100.0])
def test_long_rows_are_shared_out_and_put_together_again(
    monkeypatch: pytest.MonkeyPatch, spread: float
) -> None:
    lengths = [3_000, 3, 0, 1_500, 0, 400, 64]
    kv = pool(0, torch.float32, 2, 64, 64)
    slots = torch.randint(SLOTS, (sum(lengths),), generator=generator(0))
    q = torch.randn(len(lengths), 6, 64, generator=generator(3)) * spread
    arguments = (q, kv, slots.int(), starts(lengths), 0.125)
    wanted = paged_attention.decode_reference(*arguments)
    for threads in range(1, 8):
        monkeypatch.setattr(native, "threads", lambda threads=threads: threads)
        for own in (False, True):
            native.library().lm_own_threads(own)
            got = attention.paged_decode(*arguments)
            native.library().lm_own_threads(False)
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@compiled
def test_rows_may_be_cut_where_python_takes_it() -> None:
    assert native.library().lm_attend_span() == paged_attention.SPAN


@compiled
@pytest.mark.usefixtures("instructions", "sharing")
@settings(max_examples=30)
@given(
    st.integers(0, 999), st.sampled_from([*BOUNDS, torch.int8]), st.integers(1, 3),
    st.sampled_from([1, 2, 3, 5, 7]), st.sampled_from([20, 64, 80]),
    st.lists(st.tuples(st.sampled_from([1, 1, 2, 5, 40]), st.integers(0, 900)), min_size=1,
             max_size=4),
    st.sampled_from([0, 0, 1, 90, 300]), st.sampled_from([0.0, 0.0, 5.0]), st.integers(0, 2),
)  # fmt: skip
def test_a_query_has_the_same_bits_alone_among_others_and_over_keys_in_parts(
    seed: int, kv_dtype: torch.dtype, kv_heads: int, groups: int, size: int,
    counts: list[tuple[int, int]], window: int, softcap: float, common: int,
) -> None:  # fmt: skip
    """Rows share ``common`` spans; each has some queries and some keys of its own before them."""
    kv = pool(seed, kv_dtype, kv_heads, size, size)
    shared = common * paged_attention.SPAN
    lengths = [shared + before + count for count, before in counts]
    slots = [torch.randint(SLOTS, (n,), generator=generator(seed + n)).int() for n in lengths]
    for table in slots:
        table[:shared] = slots[0][:shared]
    q = torch.randn(sum(c for c, _ in counts), kv_heads * groups, size, generator=generator(seed))
    first = starts([count for count, _ in counts])

    def over(q: torch.Tensor, tables: list[torch.Tensor], own: torch.Tensor | None) -> torch.Tensor:
        ends = starts([len(table) for table in tables])
        if own is None:
            return attention.paged_decode(q, kv, torch.cat(tables), ends, 0.2, window, softcap)
        return attention.paged_prefill(q, kv, own, torch.cat(tables), ends, 0.2, window, softcap)

    out, lse = over(q, slots, first)
    for row, table in enumerate(slots):
        for i in range(int(first[row]), int(first[row + 1])):
            seen = table[: len(table) - int(first[row + 1]) + i + 1]
            alone = over(q[i : i + 1], [seen], None)
            assert torch.equal(alone[0][0], out[i])
            assert torch.equal(alone[1][0], lse[i])
    if not common or window:
        return
    parts = over(q, [table[shared:] for table in slots], first)
    members = torch.randperm(len(q), generator=generator(seed)).int()
    groups_of = starts([len(q) // 3, len(q) - len(q) // 3])
    for span in reversed(range(common)):
        keys = slots[0][span * paged_attention.SPAN :][: paged_attention.SPAN]
        attention.add_shared(
            *parts, q, members, groups_of, kv, keys.repeat(2), starts([len(keys)] * 2), 0.2, softcap
        )
    assert torch.equal(parts[0], out)
    assert torch.equal(parts[1], lse)


@compiled
def test_what_is_no_number_is_not_hidden() -> None:
    kv = pool(0, torch.float32, 1, 64, 64)
    q = torch.ones(2, 1, 64)
    q[0, 0, 7] = torch.nan
    out, lse = attention.paged_decode(q, kv, torch.arange(20).int(), starts([10, 10]), 0.1)
    assert out[0].isnan().all()
    assert lse[0].isnan().all()
    assert out[1].isfinite().all()


@compiled
@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("scale", [torch.float16, torch.float32])
def test_what_is_no_number_is_kept_as_such_in_an_int8_pool(scale: torch.dtype) -> None:
    kv, new = pool(int(scale == torch.float32), torch.int8, 2, 40, 40), torch.randn(3, 2, 40)
    new[1, 0, 33] = torch.nan
    rows.store(torch.arange(3), new, new, *kv.tensors())
    for scales in (kv.k_scale, kv.v_scale):
        assert scales is not None
        assert scales.dtype == scale
        assert scales[:3].isnan().tolist() == [[False, False], [True, False], [False, False]]
    kept = kv.keys(torch.arange(3), torch.float32)
    assert kept[1, 0].isnan().all()
    assert (kept[[0, 2]] - new[[0, 2]]).abs().max() < new[[0, 2]].abs().max() / 127


@compiled
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"table": torch.tensor([0, 1, SLOTS, 3])}, "names a slot"),
        ({"table": torch.tensor([0, 1, -1, 3])}, "names a slot"),
        ({"table_starts": starts([1, 4])}, "starts must ascend"),
        ({"table_starts": torch.tensor([0, 3, 2])}, "starts must ascend"),
        ({"table_starts": torch.tensor([-1, 2, 4])}, "starts must ascend"),
        ({"table_starts": starts([1, 3]), "starts": starts([2, 1])}, "as many slots as queries"),
        ({"starts": starts([1, 9]), "table_starts": starts([1, 3])}, "starts must ascend"),
        ({"starts": torch.tensor([1, 2, 3])}, "starts must ascend"),
    ],
)
def test_what_the_tables_say_is_checked(changed: dict[str, torch.Tensor], told: str) -> None:
    given = {
        "q": torch.zeros(3, 2, 8),
        "kv": pool(0, torch.float32, 1, 8, 8),
        "starts": starts([1, 1]),
        "table": torch.arange(4),
        "table_starts": starts([2, 2]),
        "scale": 1.0,
    }
    attention.paged_prefill(**{**given, "table": given["table"].int()})
    given |= changed
    with pytest.raises(ValueError, match=told):
        attention.paged_prefill(
            **{name: x.int() if name in ("starts", "table", "table_starts") else x
               for name, x in given.items()}
        )  # fmt: skip


@compiled
def test_members_and_slots_outside_are_refused() -> None:
    q, kv = torch.zeros(3, 2, 8), pool(0, torch.float32, 1, 8, 8)
    table = torch.arange(4).int()
    state = torch.zeros(3, 2, 8), torch.zeros(3, 2)
    with pytest.raises(ValueError, match="members must be queries"):
        attention.add_shared(
            *state, q, torch.tensor([0, 3]).int(), starts([2]), kv, table, starts([4]), 1.0
        )
    new = torch.zeros(2, 1, 8)
    with pytest.raises(ValueError, match="names a slot"):
        rows.store(torch.tensor([0, SLOTS]), new, new, kv.k, kv.v, None, None)


@compiled
def test_too_small_a_workspace_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "workspace", lambda numbers: torch.empty(numbers // 2))
    monkeypatch.setattr(native, "threads", lambda: 1)
    kv, table = pool(0, torch.float32, 1, 8, 8), torch.arange(4).int()
    with pytest.raises(ValueError, match="workspace is too small"):
        attention.paged_decode(torch.zeros(1, 2, 8), kv, table, starts([4]), 1.0)


@compiled
@pytest.mark.usefixtures("instructions")
@settings(max_examples=30)
@given(
    st.integers(0, 999), st.integers(0, 40), st.sampled_from([2, 9]),
    st.sampled_from([2, 40, 64, 90]), DTYPES, st.booleans(),
)  # fmt: skip
def test_rows_are_those_of_the_reference(
    seed: int, count: int, heads: int, size: int, dtype: torch.dtype, wide: bool
) -> None:
    x = torch.randn(count, heads + 2, size, generator=generator(seed)).to(dtype)[:, 1 : heads + 1]
    weight = torch.randn(heads, size, generator=generator(seed)).to(
        torch.float32 if wide else dtype
    )
    close(rows.rms_norm(x, weight, 1e-5), norm.rms_norm_reference(x, weight, 1e-5), dtype)
    one, residual = x[:, 0], x[:, 1].clone()
    other = residual.clone()
    got = rows.add_rms_norm(one, residual, weight[0], 1e-5)
    close(got, norm.add_rms_norm_reference(one, other, weight[0], 1e-5), dtype)
    assert torch.equal(residual, other)
    gates = (
        (rows.silu_mul, activation.silu_mul_reference),
        (
            rows.gelu_tanh_mul,
            activation.gelu_tanh_mul_reference,
        ),
    )
    for gate, reference in gates:
        close(gate(x[:, 0]), reference(x[:, 0]), dtype)
    cos, sin = (
        torch.rand(count, 1, size // 2, generator=generator(seed + i)).to(dtype) for i in (1, 2)
    )
    turned, wanted = x.clone(), x.clone()
    rows.apply_rope(turned, cos, sin)
    rope.apply_rope_reference(wanted, cos, sin)
    close(turned, wanted, dtype)


@compiled
@pytest.mark.usefixtures("instructions")
@settings(max_examples=30)
@given(
    st.integers(0, 999), st.integers(0, 40), st.sampled_from([8, 40, 64]), DTYPES,
    st.sampled_from([*BOUNDS, torch.int8]), st.sampled_from([0.0, 1e-9, 1.0, 1e4]),
)  # fmt: skip
def test_stored_bits_are_those_of_the_reference(
    seed: int, count: int, size: int, dtype: torch.dtype, pool_dtype: torch.dtype, spread: float
) -> None:
    kv = pool(seed, pool_dtype, 3, size, size)
    wanted = PagedKV(*(x.clone() for x in kv.tensors()))
    new = (torch.randn(count, 7, size, generator=generator(seed)) * spread).to(dtype)
    k, v = new[:, 1:4], new[:, 4:]
    slots = torch.randperm(SLOTS, generator=generator(seed))[:count]
    for pools, run in ((kv, rows.store), (wanted, paged.store_reference)):
        run(
            slots if seed % 3 else slots.int(), k, v, pools.k, pools.v, pools.k_scale, pools.v_scale
        )
    for got, its in zip(kv.tensors(), wanted.tensors(), strict=True):
        assert torch.equal(got, its)


@compiled
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(
    "run",
    [
        lambda x: rows.rms_norm(x, torch.ones(90), 1e-6),
        lambda x: rows.add_rms_norm(x, x.clone(), torch.ones(90), 1e-6),
        rows.silu_mul,
        rows.gelu_tanh_mul,
    ],
    ids=["rms_norm", "add_rms_norm", "silu_mul", "gelu_tanh_mul"],
)
def test_a_row_has_the_same_bits_alone_and_among_others(
    run: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    x = torch.randn(700, 90, generator=generator(0)).to(dtype)
    together = run(x)
    for row in (0, 1, 350, 699):
        assert torch.equal(run(x[row : row + 1].clone())[0], together[row])


@compiled
@pytest.mark.parametrize(
    "run",
    [
        lambda: rows.rms_norm(torch.ones(2, 8), torch.ones(9), 1e-5),
        lambda: rows.add_rms_norm(torch.ones(2, 8), torch.ones(3, 8), torch.ones(8), 1e-5),
        lambda: rows.silu_mul(torch.ones(2, 7)),
        lambda: rows.apply_rope(torch.ones(2, 1, 8), torch.ones(1, 1, 4), torch.ones(2, 1, 4)),
        lambda: rows.rms_norm(torch.ones(2, 8).double(), torch.ones(8), 1e-5),
    ],
)
def test_tensors_that_do_not_fit_are_refused(run: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"go together|C kernels have no"):
        run()


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder that the library is looked for in."""
    monkeypatch.setattr(native, "HOME", tmp_path)
    native._loaded.cache_clear()
    yield tmp_path
    native._loaded.cache_clear()


@pytest.mark.usefixtures("elsewhere")
def test_a_missing_library_is_told() -> None:
    assert not native.available()
    assert native.description() == "no C kernels: lmlang was installed without them"
    with pytest.raises(ModelError, match=r"without them. Install lmlang again .* C compiler"):
        native.library()


def test_a_broken_library_is_told_and_not_used(elsewhere: Path) -> None:
    (elsewhere / "_native.abi3.so").write_bytes(b"\x7fELF and then nothing")
    assert "does not load on this" in native.description()
    with pytest.raises(ModelError, match="does not load"):
        native.library()


@compiled
def test_a_library_of_another_version_is_told_and_not_used(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = Path(native.library.__code__.co_filename).parent / "_native.abi3.so"
    shutil.copy(name, elsewhere)
    monkeypatch.setattr(native, "VERSION", native.VERSION + 1)
    assert f"needs {native.VERSION}" in native.description()


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    def chosen(value: str) -> None:
        monkeypatch.setenv("LMLANG_KERNELS", value)
        forms._chosen.cache_clear()

    yield chosen
    monkeypatch.undo()
    forms._chosen.cache_clear()


@pytest.mark.usefixtures("elsewhere")
def test_without_the_library_the_reference_runs_unless_c_is_asked_for(
    choose: Callable[[str], None],
) -> None:
    x = torch.ones(1)
    choose("auto")
    assert forms.form_of(x) == "reference"
    assert forms.kernels_of(x).endswith("(no C kernels: lmlang was installed without them)")
    choose("c")
    with pytest.raises(ModelError, match="the C kernels cannot be used"):
        forms.form_of(x)


@compiled
def test_with_the_library_it_runs_unless_the_reference_is_asked_for(
    choose: Callable[[str], None],
) -> None:
    x = torch.ones(1)
    for value, form in (("auto", "c"), ("c", "c"), ("reference", "reference")):
        choose(value)
        assert forms.form_of(x) == form
        told = f"C kernels ({native.library().lm_instructions().decode()}, "
        assert forms.kernels_of(x).startswith(told if form == "c" else "reference impl")
