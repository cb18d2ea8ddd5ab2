"""Pictures: read where they are written, carried to backends that have vision."""

import base64
import hashlib
import io
import os

import pytest

import lmlang as lm
from lmlang.frontend import ir
from lmlang.frontend.images import MAX_BYTES, read_image
from lmlang.protocol import Image
from lmlang.testing import RandomBackend, ScriptedBackend

PICTURE = b"\x89PNG\r\n\x1a\n not really"
DIGEST = hashlib.sha256(PICTURE).hexdigest()


class Drawn:
    """What a PIL image can do."""

    def save(self, file: io.BytesIO, format: str) -> None:
        assert format == "PNG"
        file.write(PICTURE)


@lm.function
def ask(s, picture, question):
    s += lm.user(lm.image(picture) + question)
    s += lm.assistant(lm.gen("answer"))


def test_a_path_bytes_and_a_pil_image_are_the_same_picture(tmp_path):
    path = tmp_path / "cat.png"
    path.write_bytes(PICTURE)
    address = "data:image/png;base64," + base64.b64encode(PICTURE).decode()
    sources = (str(path), path, PICTURE, bytearray(PICTURE), Drawn(), address)
    found = [read_image(source) for source in sources]
    assert {image.digest for image in found} == {DIGEST}
    assert all(image.data == PICTURE for image in found)
    assert [image.name for image in found[2:]] == ["bytes", "bytes", "Drawn", "data"]
    assert found[0].name == found[1].name == str(path)


@pytest.mark.parametrize("backend", [ScriptedBackend, RandomBackend])
def test_a_backend_with_vision_gets_the_picture_in_its_place(backend):
    made = backend(vision=True)
    state = ask(PICTURE, "What is it?", backend=made)
    assert state.text().startswith(f"<user><image {DIGEST[:8]}>What is it?</user>")
    (node,) = [node for node in state.program().nodes if isinstance(node, ir.Image)]
    assert (node.image, node.digest) == ("bytes", DIGEST)


def test_the_request_carries_the_bytes():
    backend = ScriptedBackend(["a cat"], vision=True)
    ask(PICTURE, "?", backend=backend)
    (image,) = [s for s in backend.requests[0].prompt.segments() if isinstance(s, Image)]
    assert image.data == PICTURE


@pytest.mark.parametrize("backend", [ScriptedBackend, RandomBackend])
def test_a_backend_without_vision_raises_by_name(backend):
    name = backend().info().model
    with pytest.raises(lm.BackendError, match=rf"the backend '{name}' has no vision.*lm\.image"):
        ask(PICTURE, "?", backend=backend())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.png", r"image\('nowhere.png'\) cannot be read: No such file or directory"),
        (b"", r"image\('bytes'\) is empty"),
        ("", r"image\(''\) is empty: give the path"),
        (b"x" * (MAX_BYTES + 1), r"has 67,108,865 bytes: at most 67,108,864"),
        (3, "takes a path, bytes or a PIL image, not int"),
        ("https://example.com/a.png", "nothing is fetched from the network"),
        ("HTTP://example.com/a.png", "nothing is fetched from the network"),
        ("file:///pictures/a.png", "is an address: give the path of the file"),
        ("/dev/zero", r"image\('/dev/zero'\) is no regular file"),
        (os.curdir, r"image\('.'\) is a folder"),
        ("x\0y", r"cannot be read: .*null byte"),
        (b"%PDF-1.7 and more", r"is no picture: its first bytes are b'%PDF-1.7', and none of PNG,"),
        ("data:image/png,abc", r"is no data:…;base64,… address"),
        ("data:image/png;base64,a*b", "is no valid base64"),
    ],
    ids=lambda value: "" if isinstance(value, (bytes, int)) else None,
)
def test_what_is_no_picture_raises_where_it_is_written(source, message):
    with pytest.raises(lm.ProgramError, match=message):
        lm.image(source)


@pytest.mark.parametrize(
    "beginning",
    [PICTURE[:8], b"\xff\xd8\xff\xe0", b"GIF87a", b"GIF89a", b"RIFF\n\0\0\0WEBPVP8 ", b"BM"],
)
def test_pictures_are_known_by_their_first_bytes(beginning):
    assert read_image(beginning + b"...").data == beginning + b"..."


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(lm.ProgramError, match=r"pipe.png'\) is no regular file"):
        lm.image(tmp_path / "pipe.png")


def test_a_large_file_is_refused_unread(tmp_path):
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(lm.ProgramError, match=r"has 67,108,865 bytes: at most 67,108,864"):
        lm.image(tmp_path / "large.png")


def test_an_empty_file_is_named_as_such(tmp_path):
    (tmp_path / "empty.png").touch()
    with pytest.raises(lm.ProgramError, match=r"empty.png'\) is empty"):
        lm.image(tmp_path / "empty.png")
