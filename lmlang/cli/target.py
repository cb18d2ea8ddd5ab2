"""``FILE:FUNC``: the program that a command is about, from a file or a module."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from lmlang.errors import ProgramError, quote
from lmlang.frontend.program import Function

FORM = "FILE.py:FUNC"
METAVAR = "FILE:FUNC"
HELP = "a program: FILE.py:FUNC or package.module:FUNC; FUNC may be left out where there is one"


def load(named: str) -> Function[Any, Any]:
    """The program that ``FILE:FUNC`` names; importing runs the file, as Python does.

    Raises:
        ProgramError: There is no such file or program, or the file cannot be imported.
        Exception: What the file itself raises.
    """
    place, name = split(named)
    found = programs(place)
    if name is None:
        if len(found) == 1:
            return next(iter(found.values()))
        raise ProgramError(f"{quote(place)} has {_listed(found)}: name one, as in {place}:FUNC.")
    if name in found:
        return found[name]
    there = vars(_module(place)).get(name)
    if there is not None and callable(there):
        raise ProgramError(
            f"{quote(name)} in {quote(place)} is no program: put @lm.function above its def."
        )
    near = difflib.get_close_matches(name, found, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise ProgramError(
        f"{quote(place)} has no program {quote(name)}{hint}; it has {_listed(found)}."
    )


def split(named: str) -> tuple[str, str | None]:
    """The place and the name of ``FILE:FUNC``; a drive's colon is part of the place."""
    place, colon, name = named.rpartition(":")
    if colon and name.isidentifier():
        return place, name
    return named, None


def programs(place: str) -> Mapping[str, Function[Any, Any]]:
    """All programs of a file or module, by their names there, in their order."""
    return {
        name: value for name, value in vars(_module(place)).items() if isinstance(value, Function)
    }


def _listed(found: Mapping[str, object]) -> str:
    if not found:
        return "no programs (@lm.function)"
    return f"the program{'s' if len(found) > 1 else ''} {', '.join(found)}"


@functools.cache
def _module(place: str) -> ModuleType:
    with contextlib.redirect_stdout(sys.stderr):  # what it prints is no result
        return _of_file(Path(place)) if _is_file(place) else _of_name(place)


def _is_file(place: str) -> bool:
    return place.endswith(".py") or "/" in place or "\\" in place


def _of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ProgramError(f"there is no file {quote(str(path))}: give a program as {FORM}.")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # for what it imports, as where Python runs it
    name = path.stem
    if name in sys.modules or name in sys.stdlib_module_names:
        name = f"{name}_program"  # it must not stand for the other one
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ProgramError(f"{quote(str(path))} is no Python file: give a program as {FORM}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where its dataclasses and annotations are looked up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _of_name(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        raise ProgramError(
            f"there is no file and no module {quote(name)}: give a program as {FORM}."
        ) from None
