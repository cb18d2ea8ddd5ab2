import importlib.util
import re
from dataclasses import fields
from pathlib import Path

from lmlang.frontend import ir
from lmlang.frontend.layout import NODES, word_of
from lmlang.frontend.printer import parse_program, print_program
from lmlang.frontend.verify import verify

DOCS = Path(__file__).parent.parent.parent / "docs"


def generator():
    spec = importlib.util.spec_from_file_location("generate_ir", DOCS / "generate_ir.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGE = (DOCS / "reference" / "ir.md").read_text(encoding="utf-8")


def test_the_reference_is_what_the_code_says():
    assert generator().page() == PAGE, "run: python docs/generate_ir.py"


def test_every_block_of_the_reference_is_a_program():
    blocks = re.findall(r"```ir\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 1 + len(NODES)
    assert PAGE.count("```") == 2 * len(blocks)
    kinds = set()
    for block in blocks:
        program = verify(parse_program(block))
        assert print_program(program) == block
        kinds |= {type(node) for node in program.nodes}
    assert kinds == set(NODES) == set(ir.Node.__args__)


def test_the_reference_names_every_node_and_field():
    for kind in NODES:
        (section,) = re.findall(rf"### {word_of(kind)}\n(.*?)(?=\n###|\Z)", PAGE, re.S)
        for field in fields(kind):
            if field.name not in ("state", "made"):
                assert f"| `{field.name}` |" in section
