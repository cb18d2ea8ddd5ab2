"""Runs tests of Triton kernels under its interpreter, in one process of their own.

A test module asks for it by ``INTERPRETED = True``. Triton makes up its mind when it is imported,
so in the ordinary process such tests are not called: all that were selected are run by another
pytest under ``TRITON_INTERPRET=1``, once, and each reports what came of it there.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

SECONDS = 300
"""After so many the interpreter's process is given up."""
_results = pytest.StashKey[dict[str, str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Report what the interpreter's process found instead of calling an interpreted test."""
    asked = getattr(pyfuncitem.module, "INTERPRETED", False)
    if asked and os.environ.get("TRITON_INTERPRET") == "1":
        _mend_index()
        return None
    if not asked:
        return None
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed: pip install triton")
    session = pyfuncitem.session
    if _results not in session.stash:
        chosen = [i for i in session.items if getattr(_module(i), "INTERPRETED", False)]
        session.stash[_results] = _run([item.nodeid for item in chosen], session.config.rootpath)
    found = session.stash[_results].get(_key(pyfuncitem.nodeid), "it was not run")
    if found.startswith("skipped: "):
        pytest.skip(found.removeprefix("skipped: "))
    if found:
        pytest.fail(f"under Triton's interpreter:\n{found}", pytrace=False)
    return True


@cache
def _mend_index() -> None:
    """Let a number that Triton 3.6 holds as an array of one be a bound of a loop with NumPy 2.4."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def mended(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = mended


def _module(item: pytest.Item) -> object:
    return item.module if isinstance(item, pytest.Function) else None


def _key(nodeid: str) -> str:
    file, name = nodeid.split("::", 1)
    return f"{file.removesuffix('.py').replace('/', '.')}.{name}"


def _run(nodeids: list[str], root: Path) -> dict[str, str]:
    """What is wrong with each test, by `_key`; nothing where it passed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-o", "junit_family=xunit1", f"--junitxml={report}"]
        # NumPy's notes on infinities, which a device does not make.
        command += ["-W", "ignore::RuntimeWarning", *nodeids]
        environment = os.environ | {"TRITON_INTERPRET": "1"}
        try:
            done = subprocess.run(
                command, cwd=root, env=environment, capture_output=True, text=True, timeout=SECONDS
            )
            said = (done.stdout + done.stderr)[-4000:]
        except subprocess.TimeoutExpired:
            said = f"not done after {SECONDS} seconds"
        if not report.exists():
            return dict.fromkeys(map(_key, nodeids), said)
        cases = ElementTree.parse(report).getroot().iter("testcase")
        return {f"{case.get('classname')}.{case.get('name')}": _fault(case) for case in cases}


def _fault(case: ElementTree.Element) -> str:
    for kind in ("failure", "error"):
        fault = case.find(kind)
        if fault is not None:
            return fault.text or str(fault.get("message"))
    skipped = case.find("skipped")
    return "" if skipped is None else f"skipped: {skipped.get('message')}"
