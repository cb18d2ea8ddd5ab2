"""Who may import whom, read from the source: rooms, circles, and what stays free of torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "lmlang"

MAY_TAKE = {
    "errors": set(),
    "limits": {"errors"},
    "grammar": {"errors"},
    "noise": set(),
    "markup": set(),
    "protocol": {"errors", "limits", "markup", "grammar"},
    "kernels": {"errors", "noise"},
    "wire": {"errors", "limits", "protocol", "grammar"},
    "frontend": {"errors", "limits", "markup", "noise", "protocol", "grammar", "wire"},
    "backends": {"errors", "limits", "noise", "protocol", "grammar", "wire"},
    "runtime": {"errors", "limits", "markup", "noise", "protocol", "kernels", "grammar"},
    "server": {"errors", "limits", "protocol", "grammar", "wire", "frontend"},
    "testing": {"errors", "limits", "protocol", "frontend", "backends", "runtime"},
    "": {"errors", "protocol", "frontend", "backends", "runtime", "testing", "grammar"},
    "demo": {"", "errors", "protocol", "frontend", "runtime"},
    "cli": {
        *("", "errors", "protocol", "frontend", "backends", "runtime", "kernels", "demo", "server"),
        "markup",
    },
    "__main__": {"cli"},
}
"""Room to the rooms that its modules may import, besides itself; "" is lmlang/__init__.py."""

STANDARD_ONLY = {"errors", "limits", "grammar", "markup", "noise", "protocol", "wire", "frontend"}
OPTIONAL = {
    "lmlang.frontend.live": {"IPython"},  # loaded by whoever runs in a notebook
    "lmlang.frontend.progress": {"tqdm"},  # may be missing: the bar is then a plain one
    "lmlang.frontend.status_line": {"IPython"},
    "lmlang.frontend.batch_result": {"pandas", "pyarrow"},
    "lmlang.frontend.batch_table": {"pandas", "pyarrow"},
    "lmlang.grammar.types": {"pydantic", "pydantic_core", "typing_extensions"},
    "lmlang.grammar.type_parts": {"pydantic", "typing_extensions"},
    "lmlang.grammar.type_text": {"pydantic"},
    "lmlang.frontend.telemetry": {"opentelemetry"},
    "lmlang.grammar.signatures": {"pydantic", "pydantic_core", "typing_extensions"},
    "lmlang.grammar.tables": {"numpy"},
    "lmlang.grammar.ebnf_table": {"numpy"},
    "lmlang.grammar.alike": {"numpy"},
    "lmlang.grammar.byte_tree": {"numpy"},
    "lmlang.grammar.counted": {"numpy"},
    "lmlang.grammar.mask": {"numpy"},
    "lmlang.grammar.merged": {"numpy"},
    "lmlang.grammar.free_text": {"numpy"},
    "lmlang.grammar.contents": {"numpy"},
    "lmlang.grammar.row_plan": {"numpy"},
    "lmlang.grammar.masks": {"numpy"},
    "lmlang.grammar.token_trie": {"numpy"},
    "lmlang.grammar.vocabulary": {"numpy"},
    "lmlang.grammar.matcher": {"numpy"},
    "lmlang.grammar.compiler": {"numpy"},
}
"""Packages beyond the standard library, by the modules that have them; loaded by what needs them,
and never by what a program is written with."""
FREE_OF_TORCH = (
    "lmlang", "lmlang.protocol", "lmlang.frontend.program", "lmlang.frontend.interpreter",
    "lmlang.testing", "lmlang.cli", "lmlang.runtime.sequence", "lmlang.runtime.scheduler",
    "lmlang.runtime.cache.radix", "lmlang.runtime.cache.manager", "lmlang.runtime.cache.host",
    "lmlang.runtime.policy", "lmlang.runtime.runs", "lmlang.runtime.samples",
    "lmlang.runtime.drafting",
    "lmlang.runtime.scoring", "lmlang.runtime.output", "lmlang.runtime.constraints",
    "lmlang.runtime.encoder", "lmlang.runtime.chat", "lmlang.runtime.tokenizer",
)  # fmt: skip


def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(module: str) -> set[str]:
    """All modules that a module names in import statements, lazy and type-checking ones too."""
    found: set[str] = set()
    tree = ast.parse(MODULES[module].read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
    return found


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_takes_only_from_rooms_below(module: str) -> None:
    allowed = MAY_TAKE[room(module)] | {room(module)}
    ours = {name for name in imports(module) if name.split(".")[0] == "lmlang"}
    wrong = {name for name in ours if room(name) not in allowed}
    assert not wrong, f"{module} may not import {sorted(wrong)}"


@pytest.mark.parametrize("module", sorted(m for m in MODULES if room(m) in STANDARD_ONLY))
def test_the_language_needs_the_standard_library_only(module: str) -> None:
    tops = {name.split(".")[0] for name in imports(module)} - OPTIONAL.get(module, set())
    assert tops <= set(sys.stdlib_module_names) | {"lmlang"}


def test_there_are_no_circles() -> None:
    edges = {module: imports(module) & MODULES.keys() - {module} for module in MODULES}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in done:
            for other in sorted(edges[module]):
                visit(other, (*path, module))
            done.add(module)

    for module in sorted(MODULES):
        visit(module, ())


@pytest.mark.parametrize("module", FREE_OF_TORCH)
def test_the_thinking_half_loads_no_torch(module: str) -> None:
    script = (
        f"import sys, {module}; sys.exit({{'torch', 'transformers'}} & sys.modules.keys() != set())"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_the_face_imports_what_it_names_for_type_checkers() -> None:
    import lmlang

    for name in lmlang.__all__:
        assert getattr(lmlang, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = lmlang.nonsense


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=str)
def test_every_module_says_its_job_in_its_first_line(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring
    assert docstring.splitlines()[0].endswith((".", ":")) or len(docstring.splitlines()) > 1
