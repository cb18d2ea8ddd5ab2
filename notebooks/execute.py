"""Run the notebooks from the top, each in a new kernel, as `make docs` does; --write keeps outputs.

A notebook fails with a cell that raises, with anything on its standard error stream, with outputs
that are not static or not small, and where nbconvert cannot turn it into a page.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter

HERE = Path(__file__).parent
MOST_BYTES = 120_000
"""Of a notebook with its outputs."""
KINDS = {"text/plain", "text/html", "text/markdown", "image/png", "image/svg+xml"}


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a run of its own, in a folder of its own."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(HERE)}}
    )
    with tempfile.TemporaryDirectory() as folder:
        kernel = client.create_kernel_manager()  # by TCP others could listen, which it warns of
        kernel.transport, kernel.ip = "ipc", f"{folder}/kernel"
        client.execute()
    for cell in notebook.cells:
        cell.metadata.clear()  # times, which differ in every run
    return notebook


def faults(notebook: nbformat.NotebookNode) -> list[str]:
    """What a reader would mind."""
    found = []
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                found.append(f"cell {number} wrote to the error stream: {output['text'][:200]}")
            for kind in set(output.get("data", ())) - KINDS:
                found.append(f"cell {number} shows {kind}, which is not static")
    if (size := len(nbformat.writes(notebook))) > MOST_BYTES:
        found.append(f"it is {size:,} bytes large, of {MOST_BYTES:,} at most")
    HTMLExporter().from_notebook_node(notebook)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path, help="left out: all")
    parser.add_argument("--write", action="store_true", help="keep the outputs in the files")
    options = parser.parse_args()
    failed = 0
    for path in options.notebooks or sorted(HERE.glob("*.ipynb")):
        began = time.perf_counter()
        notebook = executed(path)
        found = faults(notebook)
        failed += bool(found)
        print(f"{path.name}: {time.perf_counter() - began:.0f} s", *found, sep="\n  ")
        if options.write and not found:
            path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
