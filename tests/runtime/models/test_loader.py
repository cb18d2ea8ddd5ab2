"""GGUF files: read as the gguf package reads them, and refused by name where they are broken."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize, quant_shape_to_byte_shape, quantize

from lmlang.errors import ModelError
from lmlang.runtime.models.gguf_file import open_gguf
from lmlang.runtime.models.loader import load_gguf
from tests import tiny
from tests.runtime.models.families import family_model, write_family_gguf
from tests.tiny import gguf_tensors, tiny_metadata, tiny_shape, tiny_weights, write_tiny_gguf

Kind = GGMLQuantizationType
SHAPE = tiny_shape(hidden=64, intermediate=96, head_dim=16)
"""Rows of 64 and 96 numbers: whole blocks of every simple quantisation."""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "good.gguf")


@pytest.mark.parametrize("tied", [True, False])
def test_weights_come_back_as_they_were_written(tmp_path, tied):
    shape = tiny_shape(tied_head=tied, layers=3)
    loaded = load_gguf(write_tiny_gguf(tmp_path / "m.gguf", shape))
    weights = tiny_weights(shape)
    assert loaded.weights.keys() == weights.keys()
    assert all(torch.equal(loaded.weights[name], weight) for name, weight in weights.items())
    sizes = (loaded.shape.layers, loaded.shape.kv_heads, loaded.shape.tied_head)
    assert sizes == (3, 2, tied)
    assert loaded.shape.norm_eps == pytest.approx(1e-5)


@pytest.mark.parametrize("kind", [Kind.F16, Kind.Q8_0, Kind.Q4_1, Kind.Q4_0, Kind.Q5_1, Kind.BF16])
def test_quantised_weights_are_those_that_gguf_dequantises(tmp_path, kind):
    loaded = load_gguf(write_tiny_gguf(tmp_path / "m.gguf", SHAPE, kind=kind))
    stored = gguf_tensors(SHAPE)
    for native, name in (("embed", "token_embd"), ("layers.1.down", "blk.1.ffn_down")):
        wanted = dequantize(quantize(stored[f"{name}.weight"], kind), kind)
        assert np.array_equal(loaded.weights[native].numpy(), wanted)
    values = dequantize(quantize(stored["blk.0.attn_q.weight"], kind), kind)
    turned = values.reshape(4, 8, 2, 64).swapaxes(1, 2).reshape(64, 64)
    assert np.array_equal(loaded.weights["layers.0.qkv"][:64].numpy(), turned)


@pytest.mark.parametrize("kind", [Kind.Q5_0, Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K])
def test_blocks_of_every_kind_are_those_that_gguf_dequantises(tmp_path, kind):
    shape = tiny_shape(hidden=256, intermediate=256, head_dim=64, layers=1)
    draw = np.random.default_rng(0)
    stored: dict[str, np.ndarray] = {}

    def blocks(values: np.ndarray, _: GGMLQuantizationType) -> np.ndarray:
        # gguf writes no K-quants; any bytes are a block, and most are of finite numbers
        return draw.integers(0, 60, quant_shape_to_byte_shape(values.shape, kind), dtype=np.uint8)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "quantize", blocks)
        path = write_tiny_gguf(tmp_path / "m.gguf", shape, kind=kind)
    for tensor in GGUFReader(path).tensors:
        stored[tensor.name] = dequantize(tensor.data, tensor.tensor_type)
    loaded = load_gguf(path)
    down = stored["blk.0.ffn_down.weight"]
    assert len(np.unique(down)) > 100
    assert np.array_equal(loaded.weights["layers.0.down"].numpy(), down)
    turned = stored["blk.0.attn_k.weight"].reshape(2, 32, 2, 256).swapaxes(1, 2).reshape(128, 256)
    assert np.array_equal(loaded.weights["layers.0.qkv"][256:384].numpy(), turned)
    half = load_gguf(path, torch.bfloat16).weights["layers.0.down"]
    assert torch.equal(half, torch.from_numpy(down).bfloat16())


def test_weights_are_given_in_the_dtype_asked_for(good):
    for name, weight in load_gguf(good, torch.bfloat16).weights.items():
        assert weight.dtype == (torch.float32 if name.endswith("norm") else torch.bfloat16)
    with pytest.raises(ModelError, match=r"loaded as torch\.int8: choose"):
        load_gguf(good, torch.int8)


def test_header_and_tensors_are_those_that_gguf_reads(tmp_path):
    path = write_tiny_gguf(tmp_path / "m.gguf", SHAPE, kind=Kind.Q8_0)
    ours, theirs = open_gguf(path), GGUFReader(path)
    wanted = {key: field.contents() for key, field in theirs.fields.items() if key[:5] != "GGUF."}
    found = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in ours.metadata.items()}
    assert found == wanted
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        entry = ours.tensors[tensor.name]
        assert entry.shape == tuple(int(size) for size in tensor.shape[::-1])
        assert (entry.kind, entry.nbytes) == (tensor.tensor_type, tensor.n_bytes)
        assert np.array_equal(ours.rows(tensor.name).ravel(), tensor.data.view(np.uint8).ravel())


def test_paths_that_are_no_file(tmp_path):
    with pytest.raises(ModelError, match=r"no model file .*absent\.gguf"):
        load_gguf(tmp_path / "absent.gguf")
    with pytest.raises(ModelError, match="cannot be read"):
        load_gguf(tmp_path)
    with pytest.raises(ModelError, match="cannot be read"):
        load_gguf("nul\0in.gguf")


@pytest.mark.parametrize("content", [b"", b"GG", b"GGUF", b"PK\x03\x04" * 100, b"\0" * 64])
def test_files_that_are_no_gguf(tmp_path, content):
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="not a usable GGUF file"):
        load_gguf(path)


def test_a_file_cut_anywhere_is_refused(good, tmp_path):
    whole = good.read_bytes()
    path = tmp_path / "cut.gguf"
    for length in [*range(0, 4_000, 97), *range(4_000, len(whole), 5_003), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            load_gguf(path)


@pytest.mark.parametrize("family", [None, "gemma3", "llama with yarn"])
def test_a_file_with_wrong_bytes_is_read_or_refused_and_nothing_else(good, tmp_path, family):
    if family is not None:
        good = tmp_path / "good.gguf"
        write_family_gguf(good, family, family_model(family))
    whole = good.read_bytes()
    header = min(entry.offset for entry in open_gguf(good).tensors.values())
    path = tmp_path / "odd.gguf"
    draw = random.Random(0)
    for _ in range(400):
        odd = bytearray(whole)
        for _ in range(draw.choice((1, 1, 8))):
            at = draw.randrange(header)
            odd[at : at + 1] = bytes([draw.randrange(256)])
        if draw.random() < 0.5:
            at = draw.randrange(header - 8)
            odd[at : at + 8] = struct.pack("<Q", draw.choice((2**64 - 1, 2**63, 2**32, 10**6, 0)))
        path.write_bytes(odd)
        try:
            load_gguf(path)
        except ModelError as error:
            assert "odd.gguf" in str(error)  # noqa: PT017


def header(*pairs: bytes, tensors: tuple[bytes, ...] = ()) -> bytes:
    return counts(len(tensors), len(pairs)) + b"".join(pairs + tensors)


def counts(tensors: int, pairs: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, pairs)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: bytes, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return (
        text(name)
        + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        + struct.pack("<IQ", kind, offset)
    )


def listed(kind: int, count: int, rest: bytes = b"") -> bytes:
    return pair(b"a", 9, struct.pack("<IQ", kind, count) + rest)


HUGE = 2**60
TWICE = (tensor(b"t", (4,)),) * 2
HOSTILE = {
    "other version": (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version is 9"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version is 50331648"),
    "endless pairs": (counts(0, HUGE), "pairs of metadata are announced"),
    "many pairs": (counts(0, 1000), "bytes are announced"),
    "tensors over one another": (
        header(tensors=(tensor(b"t", (9,)), tensor(b"u", (9,), offset=32))) + b"\0" * 99,
        "'u' lies over another",
    ),
    "endless tensors": (counts(HUGE, 0), "announced"),
    "endless numbers": (header(listed(4, HUGE)), "announced"),
    "endless strings": (header(listed(8, HUGE)), "strings are announced"),
    "endless string": (header(pair(b"a", 8, struct.pack("<Q", HUGE))), "announced"),
    "string ends outside": (header(listed(8, 1, struct.pack("<Q", 2**64 - 1))), "outside"),
    "array of arrays": (header(listed(9, 1)), "array of arrays"),
    "unknown type": (header(pair(b"a", 77, b"\0" * 8)), "unknown type 77"),
    "no UTF-8": (header(pair(b"\xff\xfe", 4, b"\0" * 4)), "not UTF-8"),
    "no UTF-8 in a list": (header(listed(8, 1, text(b"\xff"))), "list of strings"),
    "long name": (header(pair(b"x" * 70_000, 4, b"\0" * 4)), "name of 70,000 bytes"),
    "key twice": (header(*[pair(b"a", 4, b"\0" * 4)] * 2), "'a' stands twice"),
    "alignment": (header(pair(b"general.alignment", 4, struct.pack("<I", 3))), "power of two"),
    "alignment of text": (header(pair(b"general.alignment", 8, text(b"x"))), "power of two"),
    "huge tensor": (header(tensors=(tensor(b"t", (2**40, 2**40)),)), "beyond the end"),
    "far tensor": (header(tensors=(tensor(b"t", (4,), offset=2**64 - 32),)), "beyond the end"),
    "many dimensions": (header(tensors=(tensor(b"t", (1,) * 9),)), "9 dimensions"),
    "no dimensions": (header(tensors=(tensor(b"t", ()),)), "0 dimensions"),
    "empty tensor": (header(tensors=(tensor(b"t", (0, 4)),)), "impossible shape"),
    "unknown tensor type": (header(tensors=(tensor(b"t", (4,), kind=200),)), "unknown type 200"),
    "part of a block": (header(tensors=(tensor(b"t", (33,), kind=8),)), "impossible shape"),
    "tensor twice": (header(tensors=TWICE) + b"\0" * 99, "'t' stands twice"),
    "crooked": (header(tensors=(tensor(b"t", (1,), offset=5),)) + b"\0" * 99, "multiple of 32"),
}


@pytest.mark.parametrize(("content", "message"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_headers_are_refused_by_what_is_wrong(tmp_path, content, message):
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        load_gguf(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "gemma"}, "architecture 'gemma'"),
        ({"llama.block_count": None}, "lacks the metadata 'llama.block_count'"),
        ({"llama.block_count": "two"}, "'llama.block_count' is of the type str"),
        ({"llama.block_count": 2.0}, "is of the type float, and must be int"),
        ({"llama.block_count": 0}, "layers=0"),
        ({"llama.block_count": 3}, "lacks the tensor 'blk.2.attn_norm.weight' and 8 more"),
        ({"llama.block_count": 1}, "has the tensor 'blk.1"),
        ({"llama.block_count": 2**31}, "layers=2147483648"),
        ({"llama.context_length": 2**31}, "max_positions=2147483648"),
        ({"llama.attention.head_count": 0}, "heads=0"),
        ({"llama.attention.head_count_kv": 3}, "heads=4 and kv_heads=3"),
        (
            {"llama.attention.head_count_kv": 4},
            r"'blk\.0\.attn_k\.weight' has the shape \(16, 32\)",
        ),
        ({"llama.attention.key_length": 16}, "dimension_count=8 beside heads of 16"),
        ({"llama.attention.value_length": 4}, "value_length=4 beside heads of 8"),
        ({"llama.feed_forward_length": 65}, r"has the shape \(64, 32\).* ask for \(65, 32\)"),
        ({"llama.embedding_length": 33}, r"ask for \(286, 33\)"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "lacks the metadata"),
        ({"llama.rope.freq_base": -1.0}, "rope.freq_base' is -1.0, and must be a positive"),
        ({"llama.expert_count": 8}, "expert_count' = 8, which cannot be run"),
        ({"llama.rope.scaling.type": "longrope"}, "rope scaling of the type 'longrope'"),
        (
            {"llama.rope.scaling.type": "linear"},
            r"lacks the metadata 'llama\.rope\.scaling\.factor",
        ),
        ({"llama.something": 1}, r"unknown metadata 'llama\.something'"),
        ({"llama.attention.sliding_window": 2**31}, "window=2147483648"),
        ({"llama.embedding_length": 2**31}, "hidden=2147483648"),
    ],
)
def test_metadata_that_do_not_fit_are_refused(tmp_path, metadata, message):
    path = write_tiny_gguf(tmp_path / "m.gguf", metadata=metadata)
    with pytest.raises(ModelError, match=message):
        load_gguf(path)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"token_embd.weight": None}, "lacks the tensor 'token_embd.weight'"),
        ({"output_norm.weight": None}, "lacks the tensor 'output_norm.weight'"),
        ({"blk.1.ffn_up.weight": None}, "lacks the tensor 'blk.1.ffn_up.weight'"),
        ({"blk.0.attn_q.bias": np.zeros(32, np.float32)}, "lacks the tensor 'blk.0.attn_k.bias'"),
        ({"blk.0.attn_sinks": np.zeros(32, np.float32)}, "has the tensor 'blk.0.attn_sinks'"),
        ({"rope_freqs.weight": np.ones(5, np.float32)}, r"rope factors of the shape \(5,\)"),
        ({"rope_freqs.weight": np.zeros(4, np.float32)}, "rope factor=0.0"),
        (
            {"output.weight": np.zeros((7, 32), np.float32)},
            r"'output.weight' has the shape \(7, 32",
        ),
        (
            {"token_embd.weight": np.zeros((9, 32), np.float32)},
            "has 286 tokens and an embedding of 9",
        ),
        ({"token_embd.weight": np.zeros(286, np.float32)}, r"ask for \(286, 32\)"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path, tensors, message):
    path = write_tiny_gguf(tmp_path / "m.gguf", tensors=tensors)
    with pytest.raises(ModelError, match=message):
        load_gguf(path)


def test_a_type_that_cannot_be_dequantised_is_refused(tmp_path):
    tensors = {"blk.0.attn_norm.weight": np.ones(32, np.float64)}
    path = write_tiny_gguf(tmp_path / "m.gguf", tensors=tensors)
    with pytest.raises(ModelError, match="is of type F64, which cannot be dequantised"):
        load_gguf(path)


def test_the_tiny_metadata_are_whole(good):
    assert set(tiny_metadata(tiny_shape())) < set(open_gguf(good).metadata)
