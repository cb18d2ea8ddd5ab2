"""Pages of the documentation: their Python blocks run as they stand, and their tables are data.

## A section                       its blocks share their names
<!-- backend: ScriptedBackend() --> the next block's backend; `embedded` is the real model
<!-- not run: needs a GPU -->       the next block does not run here
```python
state["x"]  # -> 'value'           the repr of what the line gives; … stands for any text
lm.gen(n=0)  # raises ProgramError: n=0 …
```
```text                            what the block above prints
```
"""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import re
import sys
import tokenize
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmlang as lm
from lmlang.testing import RandomBackend, ScriptedBackend

ROOT = Path(__file__).parent.parent
PRELUDE = "import lmlang as lm; from lmlang.testing import RandomBackend, ScriptedBackend"
_BLOCK = re.compile(r"(?:<!-- (\w[^\n]*?): ([^\n]+) -->\n)?```python\n(.*?)```\n", re.DOTALL)
_OUTPUT = re.compile(r"\n?```text\n(.*?)```\n", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """Python of a page: its first line there, its backend, and what it prints (None: anything)."""

    line: int
    source: str
    backend: str | None
    output: str | None


@dataclass(frozen=True)
class Section:
    """A heading of the second level with what stands below it."""

    page: str
    title: str
    text: str
    blocks: tuple[Block, ...]

    def module(self) -> str:
        """The blocks as one file, every line with the number that it has in the page."""
        lines: dict[int, str] = {1: PRELUDE}
        for block in self.blocks:
            lines |= dict(enumerate(block.source.splitlines(), block.line))
        return "".join(f"{lines.get(number, '')}\n" for number in range(1, max(lines) + 1))


def sections(page: str) -> list[Section]:
    """The sections of a page, with what stands above its first heading."""
    text = (ROOT / page).read_text(encoding="utf-8")
    starts = [0, *(found.start() + 1 for found in re.finditer(r"\n## ", text)), len(text)]
    found = []
    for start, end in itertools.pairwise(starts):
        body = text[start:end]
        title = body.partition("\n")[0].lstrip("# ")
        found.append(Section(page, title, body, tuple(_blocks(body, text.count("\n", 0, start)))))
    return found


def _blocks(body: str, lines_before: int) -> list[Block]:
    blocks = []
    for match in _BLOCK.finditer(body):
        if match.group(1) not in (None, "backend"):
            continue
        output = _OUTPUT.match(body, match.end())
        line = lines_before + body.count("\n", 0, match.start(3)) + 1
        told = None if output is None else output.group(1)
        blocks.append(Block(line, match.group(3), match.group(2), told))
    return blocks


def table(section: Section, heading: str) -> list[list[str]]:
    """The cells, row by row, of the table whose first column has this heading."""
    (body,) = re.findall(rf"^\| {heading} \|.*\n\|[-| ]+\|\n((?:\|.*\n)+)", section.text, re.M)
    return [
        [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        for row in body.splitlines()
    ]


def coded(cell: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def run(section: Section) -> None:
    """Run all blocks of a section and compare what they say they show."""
    page = sys.modules["page"] = types.ModuleType("page")  # where classes of its blocks are
    try:
        _run(section, vars(page))
    finally:
        del sys.modules["page"]


def _run(section: Section, names: dict[str, Any]) -> None:
    names |= {"_shown": _shown, "_raised": _raised}
    exec(PRELUDE, names)
    for block in section.blocks:
        printed = io.StringIO()
        with _backend(block.backend, names), contextlib.redirect_stdout(printed):
            exec(_compiled(section.page, block), names)
        if block.output is not None:
            said = printed.getvalue()
            assert _alike(said, block.output), f"{section.page}:{block.line} printed\n{said}"


@contextlib.contextmanager
def _backend(expression: str | None, names: dict[str, Any]) -> Any:
    if expression == "embedded":
        yield
    else:
        made = RandomBackend() if expression is None else eval(expression, names)
        assert isinstance(made, (RandomBackend, ScriptedBackend))
        with made, lm.use(made):
            yield


def _compiled(page: str, block: Block) -> Any:
    """The block, its remarks turned into checks."""
    remarks = {}
    for token in tokenize.generate_tokens(io.StringIO(block.source).readline):
        remark = re.match(r"# (->|raises) (.*)", token.string)
        if token.type == tokenize.COMMENT and remark:
            alone = not token.line[: token.start[1]].strip()
            remarks[token.start[0] - alone] = remark
    checked = _Checked(remarks)
    tree = ast.fix_missing_locations(checked.visit(ast.parse(block.source)))
    assert not remarks, f"{page}:{block.line}: remarks {list(remarks)} belong to no line"
    ast.increment_lineno(tree, block.line - 1)
    return compile(tree, page, "exec", dont_inherit=True)


class _Checked(ast.NodeTransformer):
    """Takes the remarks that belong to statements, and puts checks there."""

    def __init__(self, remarks: dict[int, re.Match[str]]) -> None:
        self._remarks = remarks

    def generic_visit(self, node: ast.AST) -> Any:
        super().generic_visit(node)
        last = getattr(node, "end_lineno", None)
        if not isinstance(node, ast.stmt) or last not in self._remarks:
            return node
        remark = self._remarks.pop(last)
        if remark[1] == "->":
            assert isinstance(node, ast.Expr), ast.unparse(node)
            name = ast.Name("_shown", ast.Load())
            call = ast.Call(name, [node.value, ast.Constant(remark[2])], [])
            return ast.copy_location(ast.Expr(call), node)
        guard = ast.parse(f"with _raised({remark[2]!r}): pass").body[0]
        assert isinstance(guard, ast.With)
        guard.body = [node]  # type: ignore[list-item]
        return ast.copy_location(guard, node)


def _shown(value: object, expected: str) -> None:
    assert _alike(repr(value), expected), f"gives {value!r}, and the page says {expected}"


@contextlib.contextmanager
def _raised(expected: str) -> Any:
    try:
        yield
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        assert _alike(said, expected), f"raises {said}, and the page says {expected}"
    else:
        raise AssertionError(f"raises nothing, and the page says {expected}")


def _alike(said: str, expected: str) -> bool:
    pattern = ".*".join(map(re.escape, expected.split("…")))
    return re.fullmatch(pattern, said, re.DOTALL) is not None
