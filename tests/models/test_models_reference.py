"""docs/reference/models.md is what the list of types says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tests.models import zoo

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_the_reference_is_what_the_list_says():
    spec = importlib.util.spec_from_file_location("generate_models", DOCS / "generate_models.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    page = (DOCS / "reference" / "models.md").read_text(encoding="utf-8")
    assert generator.page() == page, "run: python docs/generate_models.py"
    for kind in zoo.RUNS | zoo.MORE | zoo.REFUSED | zoo.MORE_REFUSED:
        assert f"`{kind}`" in page
