"""What the source of a program shows that its trace cannot: reads, lost expressions, loops."""

from __future__ import annotations

import ast
import difflib
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator, Set
from typing import Any

from lmlang.errors import quote
from lmlang.frontend import dsl
from lmlang.frontend.expression import Expression
from lmlang.frontend.finding import Finding

_MADE = (
    "assistant", "assistant_begin", "assistant_end", "gen", "gen_int", "gen_string", "image",
    "select", "separate_reasoning", "system", "system_begin", "system_end", "user", "user_begin",
    "user_end",
)  # fmt: skip
"""Words whose value is an expression, to be appended."""
_NAMING = ("gen", "gen_int", "gen_string", "select")
"""Words whose first argument, or ``name``, is a variable."""
_READS = ("aget", "get_meta_info", "get_var", "meta", "text_of")
"""Methods of a state that read the variable which is their first argument."""
_OWN = frozenset({"call", "fork", "copy", "var_scope", "set_var"})


class Source:
    """The source of one program's body.

    Args:
        body: The function.
        tree: Its definition, with the line numbers of its file.
        path: Its file.
        state: The name of its state.
        parameters: Those behind it.
    """

    def __init__(
        self,
        body: Callable[..., Any],
        tree: ast.FunctionDef | ast.AsyncFunctionDef,
        path: str,
        state: str,
        parameters: tuple[str, ...],
    ) -> None:
        self._scope = _scope_of(body)
        self._tree = tree
        self._path = path
        self._state = state
        self._parameters = parameters

    @property
    def first_line(self) -> str:
        """Where it is defined, as ``path/file.py:12``."""
        return self._at(self._tree)

    def findings(self, made: Set[str] = frozenset()) -> Iterator[Finding]:
        """Arguments never used, reads of what nothing sets, expressions never appended.

        Args:
            made: Variables that a trace has seen, whoever made their expressions.
        """
        yield from self._unused()
        yield from self._undefined(made)
        yield from self._lost()

    def loop_around(self, source: str) -> int | None:
        """The line of the innermost loop around a line of this file; None: there is none."""
        line = self._line(source)
        loops = [
            node
            for node in ast.walk(self._tree)
            if isinstance(node, (ast.While, ast.For, ast.AsyncFor)) and _holds(node, line)
        ]
        return max((node.lineno for node in loops), default=None)

    def is_branch(self, source: str) -> bool:
        """Whether a line of this file is the condition of an ``if`` or a ``match``."""
        line = self._line(source)
        return any(
            isinstance(node, (ast.If, ast.IfExp, ast.Match))
            and _holds(node.subject if isinstance(node, ast.Match) else node.test, line)
            for node in ast.walk(self._tree)
        )

    def _line(self, source: str) -> int:
        path, _, line = source.rpartition(":")
        return int(line) if path == self._path and line.isdigit() else -1

    def _at(self, node: ast.stmt | ast.expr) -> str:
        return f"{self._path}:{node.lineno}"

    # ------------------------------------------------------------------ findings

    def _unused(self) -> Iterator[Finding]:
        used = {n.id for n in ast.walk(self._tree) if isinstance(n, ast.Name)}
        if "locals" in used:
            return
        for name in self._parameters:
            if name not in used and not name.startswith("_"):
                yield Finding.of(
                    "LM102",
                    self.first_line,
                    f"the argument {quote(name)} is never used, so no row's prompt has it: append "
                    "it, or remove it.",
                )

    def _undefined(self, made: Set[str]) -> Iterator[Finding]:
        names = self._names()
        if names is None:
            return
        names |= made
        for name, node in self._reads():
            if name not in names and not (name.startswith("_") and name[1:].isdigit()):
                near = difflib.get_close_matches(name, names, n=1)
                hint = f" (did you mean {quote(near[0])}?)" if near else ""
                yield Finding.of(
                    "LM103",
                    self._at(node),
                    f"{quote(name)} is read, and nothing in the program sets it{hint}.",
                )

    def _lost(self) -> Iterator[Finding]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Expr) and (word := self._made_by(node.value)):
                yield Finding.of(
                    "LM104",
                    self._at(node),
                    f"what lm.{word} makes is appended nowhere, so it never runs: write "
                    f"{self._state} += lm.{word}(…).",
                )

    def _made_by(self, node: ast.expr) -> str | None:
        """The word that makes an expression of this value; None: it is something else."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._made_by(node.left) or self._made_by(node.right)
        word = self._word(node)
        return word if word in _MADE else None

    # ------------------------------------------------------------------ names

    def _names(self) -> set[str] | None:
        """All variables that the program may set; None: it may set any."""
        found: set[str] = set()
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                found |= _constants(node.slice) or {""}
                if not isinstance(node.slice, ast.Constant) and isinstance(node.value, ast.Name):
                    return None
            if isinstance(node, ast.Name):  # an expression that stands outside of the body
                kept = self._scope.get(node.id)
                leaves = kept.leaves if isinstance(kept, Expression) else ()
                found |= {getattr(leaf.node, "name", "") for leaf in leaves}
            if not isinstance(node, ast.Call):
                continue
            word = self._word(node)
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if word in _NAMING or method in ("var_scope", "set_var") or self._calls_a_tool(node):
                named = _named(node)
                if named is None:
                    return None
                found |= named
            elif word is None and method not in _OWN and self._gets_state(node):
                return None  # another program, which may set names of its own
            if word == "separate_reasoning":
                return None
        return found

    def _calls_a_tool(self, node: ast.Call) -> bool:
        """Whether it is ``box.call(name)`` of a toolbox, and not ``s.call(program)``."""
        if not isinstance(node.func, ast.Attribute) or node.func.attr != "call":
            return False
        owner = node.func.value
        return not (isinstance(owner, ast.Name) and owner.id == self._state)

    def _gets_state(self, node: ast.Call) -> bool:
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        return any(isinstance(arg, ast.Name) and arg.id == self._state for arg in given)

    def _reads(self) -> Iterator[tuple[str, ast.expr]]:
        """Names read from the state itself, which are known texts."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                owner, names = node.value, node.slice
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in _READS
                and node.args
            ):
                owner, names = node.func.value, node.args[0]
            else:
                continue
            if isinstance(owner, ast.Name) and owner.id == self._state:
                for name in _constants(names):
                    yield name, node

    def _word(self, node: ast.expr) -> str | None:
        """The word of the language that a call is of; None: it is of none."""
        if not isinstance(node, ast.Call):
            return None
        target: object = None
        if isinstance(node.func, ast.Name):
            target = self._scope.get(node.func.id)
        elif isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            module = self._scope.get(node.func.value.id)
            if isinstance(module, types.ModuleType):
                target = getattr(module, node.func.attr, None)
        return next((word for word in _MADE if target is getattr(dsl, word)), None)


def source_of(body: Callable[..., Any], receiver: int) -> Source | None:
    """The source of a body; None where there is none to be read, as of a lambda."""
    try:
        text, first = inspect.getsourcelines(body)
        path = inspect.getsourcefile(body) or ""
        tree = ast.parse(textwrap.dedent("".join(text)))
    except (OSError, TypeError, SyntaxError):
        return None
    if len(tree.body) != 1 or not isinstance(tree.body[0], (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    definition = tree.body[0]
    ast.increment_lineno(definition, first - 1)
    code = getattr(inspect.unwrap(body), "__code__", None)
    if code is not None:
        path = code.co_filename  # as the lines of a trace have it
    arguments = definition.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    if len(names) <= receiver:
        return None
    named = (*names[receiver + 1 :], *(a.arg for a in arguments.kwonlyargs))
    return Source(body, definition, path, names[receiver], named)


def _scope_of(body: Callable[..., Any]) -> dict[str, Any]:
    function = inspect.unwrap(body)
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    found = dict(getattr(function, "__globals__", {}))
    if code is not None:
        for name, cell in zip(code.co_freevars, cells, strict=False):
            try:
                found[name] = cell.cell_contents
            except ValueError:  # not set yet
                continue
    return found


def _holds(node: ast.stmt | ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _constants(node: ast.expr) -> set[str]:
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def _named(node: ast.Call) -> set[str] | None:
    """The names that a call gives; None: they are computed."""
    first = node.args[0] if node.args else None
    for keyword in node.keywords:
        if keyword.arg is None:
            return None
        if keyword.arg == "name":
            first = keyword.value
    if first is None:
        return set()
    if isinstance(first, ast.Constant):
        return {first.value} if isinstance(first.value, str) else set()
    return None
