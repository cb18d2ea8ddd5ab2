"""The GGUF container: header and metadata read with every length checked, tensors on demand.

    "GGUF" | version u32 | tensors u64 | pairs u64
    | pair:   key string, type u32, value                                  ... pairs times
    | tensor: name string, dims u32, dim u64 ..., type u32, offset u64     ... tensors times
    | padding to `general.alignment` | tensor data

Source: the GGUF specification of the ggml project, versions 2 and 3, little-endian. The `gguf`
package's own reader keeps a numpy array per string (2 s for a vocabulary) and trusts the counts
that a file claims; its tables of types and its dequantisation are used here.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from lmlang.errors import ModelError, quote

MAX_NAME_BYTES = 65_535
MAX_DIMENSIONS = 4
MAX_ENTRIES = 1 << 20
"""Pairs of metadata, or tensors."""
MAX_STRINGS = 1 << 24
"""Strings of one list: several times the largest vocabulary with its merges."""
CHUNK = 1 << 16
"""Numbers dequantised at a time."""
STRING, ARRAY = 8, 9
SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4",
    7: "<?", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
"""Metadata type number to numpy dtype."""

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies in the file.

    Args:
        shape: Rows first, as torch and numpy write it (GGUF writes it reversed).
        kind: How its numbers are stored.
        offset: First byte, from the start of the file.
        nbytes: Bytes it takes.
    """

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """A file that has been opened and whose header holds together; read only, thread-safe.

    Args:
        path: The file.
        metadata: Values by key: int, float, bool, str, list of str, or a numpy array.
        tensors: Entries by name, all of them inside the file.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]
    _bytes: NDArray[np.uint8] = field(repr=False, compare=False)

    def rows(self, name: str) -> NDArray[np.uint8]:
        """A matrix as stored: ``[rows, bytes of one row]``, a view of the file."""
        entry = self.tensors[name]
        data = self._bytes[entry.offset : entry.offset + entry.nbytes]
        return data.reshape(int(np.prod(entry.shape[:-1], dtype=np.int64)), -1)

    def read(
        self, name: str, out: NDArray[np.float32], order: NDArray[np.int64] | None = None
    ) -> None:
        """Dequantise a tensor into ``out``, some rows at a time so that they stay in the cache.

        Args:
            name: One of ``tensors``.
            out: ``[rows, columns]`` or ``[columns]``, contiguous; **written**.
            order: New order of the rows, None for the file's.

        Raises:
            ModelError: Its type cannot be dequantised.
        """
        entry = self.tensors[name]
        rows = self.rows(name)
        out = out.reshape(len(rows), -1)
        step = max(1, CHUNK // out.shape[1])
        try:
            with np.errstate(all="ignore"):  # a damaged scale may be infinite
                for start in range(0, len(rows), step):
                    chunk = slice(start, start + step)
                    part = rows[chunk] if order is None else rows[order[chunk]]
                    out[chunk] = dequantize(part, entry.kind)
        except (NotImplementedError, ValueError) as error:
            raise ModelError(
                f"{self.path}: the tensor {name!r} is of type {entry.kind.name}, which cannot be "
                "dequantised here: use a file in F32, F16, BF16, Q8_0, Q4, Q5 or a K-quant."
            ) from error


def open_gguf(path: Path) -> GGUFFile:
    """Open a GGUF file and read its header.

    Raises:
        ModelError: There is no such file, it is no GGUF, or its header or data do not fit in it.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except FileNotFoundError:
        raise ModelError(f"there is no model file {path}: give the path of a .gguf file.") from None
    except (OSError, ValueError) as error:  # a folder, no permission, a NUL in the path
        raise ModelError(
            f"the model file {path} cannot be read ({error}): give the path of a readable "
            ".gguf file."
        ) from None
    return _Header(path, memoryview(view)).file()


class _Header:
    """A reader that walks the header once; no length is believed before the file covers it."""

    def __init__(self, path: Path, view: memoryview) -> None:
        self.path = path
        self.view = view
        self.at = 0

    def fail(self, fault: str) -> NoReturn:
        raise ModelError(
            f"{self.path} is not a usable GGUF file: {fault}. It is damaged, cut off or of "
            "another format: fetch it anew."
        )

    def take(self, count: int) -> int:
        """Step over ``count`` bytes; returns where they begin."""
        start = self.at
        if count > len(self.view) - start:
            self.fail(f"{count:,} bytes are announced at byte {start:,} of {len(self.view):,}")
        self.at = start + count
        return start

    def u32(self) -> int:
        return int(_U32.unpack_from(self.view, self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack_from(self.view, self.take(8))[0])

    def raw_name(self) -> str:
        length = self.u64()
        if length > MAX_NAME_BYTES:
            self.fail(f"a name of {length:,} bytes stands at byte {self.at:,}")
        return self.decoded(self.take(length), length)

    def decoded(self, start: int, length: int) -> str:
        try:
            return str(self.view[start : start + length], "utf-8")
        except UnicodeDecodeError:
            self.fail(f"the text at byte {start:,} is not UTF-8")

    def string(self) -> str:
        length = self.u64()
        return self.decoded(self.take(length), length)

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array()
        dtype = self.dtype(kind)
        return np.frombuffer(self.view, dtype, 1, self.take(dtype.itemsize))[0].item()

    def dtype(self, kind: int) -> np.dtype[Any]:
        if kind not in SCALARS:
            self.fail(f"the value at byte {self.at:,} is of the unknown type {kind}")
        return np.dtype(SCALARS[kind])

    def array(self) -> Any:
        kind, count = self.u32(), self.u64()
        if kind == ARRAY:
            self.fail(f"an array of arrays stands at byte {self.at:,}")
        if kind != STRING:
            dtype = self.dtype(kind)
            return np.frombuffer(self.view, dtype, count, self.take(count * dtype.itemsize))
        if count > min(MAX_STRINGS, (len(self.view) - self.at) // 8):
            self.fail(f"{count:,} strings are announced at byte {self.at:,}")
        return self.strings(count)

    def strings(self, count: int) -> list[str]:
        # a vocabulary and its merges are 100,000 of these: no call per string
        found: list[str] = []
        view, at, end, unpack = self.view, self.at, len(self.view), _U64.unpack_from
        try:
            for _ in range(count):
                start = at + 8
                at = start + unpack(view, at)[0]
                if at > end:
                    self.fail(f"a string that begins at byte {start:,} ends outside")
                found.append(str(view[start:at], "utf-8"))
        except (struct.error, UnicodeDecodeError):
            self.fail(f"the list of strings at byte {self.at:,} is broken")
        self.at = at
        return found

    def file(self) -> GGUFFile:
        if bytes(self.view[:4]) != b"GGUF":
            self.fail("it does not begin with 'GGUF'")
        self.at = 4
        version = self.u32()
        if version not in (2, 3):
            self.fail(f"its version is {version}, and only 2 and 3 are known")
        tensor_count, pair_count = self.u64(), self.u64()
        for count, what in ((tensor_count, "tensors"), (pair_count, "pairs of metadata")):
            if count > MAX_ENTRIES:
                self.fail(f"{count:,} {what} are announced")
        metadata: dict[str, Any] = {}
        for _ in range(pair_count):  # ends at the latest with the file: each pair takes bytes
            key = self.raw_name()
            if key in metadata:
                self.fail(f"the key {quote(key)} stands twice")
            metadata[key] = self.value(self.u32())
        alignment = metadata.get("general.alignment", 32)
        if (
            not isinstance(alignment, int)
            or not 0 < alignment <= 1 << 20
            or alignment & (alignment - 1)
        ):
            self.fail("its alignment is no power of two")
        listed = [self.tensor() for _ in range(tensor_count)]
        base = -(-self.at // alignment) * alignment
        tensors: dict[str, TensorEntry] = {}
        for name, entry in listed:
            if name in tensors:
                self.fail(f"the tensor {quote(name)} stands twice")
            if base + entry.offset + entry.nbytes > len(self.view):
                self.fail(f"the tensor {quote(name)} ends beyond the end of the file")
            if entry.offset % alignment:
                self.fail(f"the tensor {quote(name)} does not begin at a multiple of {alignment}")
            tensors[name] = TensorEntry(entry.shape, entry.kind, base + entry.offset, entry.nbytes)
        self.check_apart(tensors)
        return GGUFFile(self.path, metadata, tensors, np.frombuffer(self.view, np.uint8))

    def check_apart(self, tensors: Mapping[str, TensorEntry]) -> None:
        end = 0
        for name, entry in sorted(tensors.items(), key=lambda item: item[1].offset):
            if entry.offset < end:
                self.fail(f"the tensor {quote(name)} lies over another")
            end = entry.offset + entry.nbytes

    def tensor(self) -> tuple[str, TensorEntry]:
        name, dimensions = self.raw_name(), self.u32()
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            self.fail(f"the tensor {quote(name)} has {dimensions} dimensions")
        shape = tuple(self.u64() for _ in range(dimensions))[::-1]
        number, offset = self.u32(), self.u64()
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            self.fail(f"the tensor {quote(name)} is of the unknown type {number}")
        per_block, block_bytes = GGML_QUANT_SIZES[kind]
        elements = 1
        for size in shape:
            elements *= size
        if elements == 0 or shape[-1] % per_block:
            self.fail(f"the tensor {quote(name)} has the impossible shape {shape}")
        return name, TensorEntry(shape, kind, offset, elements // per_block * block_bytes)
