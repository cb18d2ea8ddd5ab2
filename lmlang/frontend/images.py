"""Pictures in a prompt: read where they are written, carried as the bytes of their file."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import os
import re
import stat
from pathlib import Path

from lmlang.errors import ProgramError, ProgramTypeError, quote
from lmlang.protocol import Image

MAX_BYTES = 64 * 2**20
"""Of one picture's file."""

FORMATS = {
    "PNG": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "JPEG": re.compile(rb"\xff\xd8\xff"),
    "GIF": re.compile(rb"GIF8[79]a"),
    "WebP": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
    "BMP": re.compile(rb"BM"),
}
"""How the file of a picture begins, by its format."""


def read_image(source: object) -> Image:
    """A picture from a path, bytes, a ``data:`` address or a PIL image (kept as PNG).

    Raises:
        ProgramError: It cannot be read, is empty, too large or no picture.
    """
    scheme = source[:8].lower() if isinstance(source, str) else ""
    if isinstance(source, str) and scheme.startswith("data:"):
        name, data = "data", _decoded(source)
    elif isinstance(source, str) and scheme.startswith(("http://", "https://")):
        raise ProgramError(
            f"image({quote(source)}): nothing is fetched from the network: download it and give "
            "its path or bytes."
        )
    elif isinstance(source, str) and scheme.startswith("file:"):
        raise ProgramError(f"image({quote(source)}) is an address: give the path of the file.")
    elif isinstance(source, (str, os.PathLike)):
        name = os.fsdecode(source)
        if not name:
            raise ProgramError("image('') is empty: give the path of a picture's file.")
        data = _read(Path(name))
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
    if not any(beginning.match(data) for beginning in FORMATS.values()):
        raise ProgramError(
            f"image({quote(name)}) is no picture: its first bytes are {data[:8]!r}, and none of "
            f"{', '.join(FORMATS)} begins like that."
        )
    return Image(hashlib.sha256(data).hexdigest(), name, data)


def _read(path: Path) -> bytes:
    """A regular file's bytes, one more than are allowed at most."""
    shown = f"image({quote(str(path))})"
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            raise ProgramError(f"{shown} is a folder: give the path of one picture's file.")
        if not stat.S_ISREG(found.st_mode):  # a device may have no end, a pipe no beginning
            raise ProgramError(f"{shown} is no regular file: give the path of a picture's file.")
        if found.st_size > MAX_BYTES:
            raise ProgramError(
                f"{shown} has {found.st_size:,} bytes: at most {MAX_BYTES:,} are allowed."
            )
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ProgramError(f"{shown} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:  # a path that no system can have
        raise ProgramError(f"{shown} cannot be read: {error}.") from None


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
