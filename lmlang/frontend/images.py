"""Pictures in a prompt: read where they are written, carried as the bytes of their file."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import os
from pathlib import Path

from lmlang.errors import ProgramError, ProgramTypeError, quote
from lmlang.protocol import Image

MAX_BYTES = 64 * 2**20
"""Of one picture's file."""


def read_image(source: object) -> Image:
    """A picture from a path, bytes, a ``data:`` address or a PIL image (kept as PNG).

    Raises:
        ProgramError: It cannot be read, is empty or too large.
    """
    if isinstance(source, str) and source.startswith("data:"):
        name, data = "data", _decoded(source)
    elif isinstance(source, str) and source.startswith(("http://", "https://")):
        raise ProgramError(
            f"image({quote(source)}): nothing is fetched from the network: download it and give "
            "its path or bytes."
        )
    elif isinstance(source, (str, os.PathLike)):
        name, data = os.fspath(source), _read(Path(source))
        name = os.fsdecode(name)
    elif isinstance(source, (bytes, bytearray, memoryview)):
        name, data = "bytes", bytes(source)
    elif callable(getattr(source, "save", None)):
        name, data = type(source).__name__, _as_png(source)
    else:
        raise ProgramTypeError(
            f"image(…) takes a path, bytes or a PIL image, not {type(source).__name__}."
        )
    if not data:
        raise ProgramError(f"image({quote(name)}) is empty: give the bytes of a picture's file.")
    if len(data) > MAX_BYTES:
        raise ProgramError(
            f"image({quote(name)}) has {len(data):,} bytes: at most {MAX_BYTES:,} are allowed."
        )
    return Image(hashlib.sha256(data).hexdigest(), name, data)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ProgramError(
            f"image({quote(str(path))}) cannot be read: {error.strerror or error}."
        ) from None


def _decoded(address: str) -> bytes:
    head, comma, body = address.partition(",")
    if not comma or not head.endswith(";base64"):
        raise ProgramError(f"image({quote(address[:40])}…) is no data:…;base64,… address.")
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise ProgramError(f"image({quote(head)},…) is no valid base64: {error}.") from None


def _as_png(picture: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")  # type: ignore[attr-defined]
    return buffer.getvalue()
