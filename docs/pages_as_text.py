"""A hook of mkdocs: the pages' own text beside them on the site, where llms.txt names it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any


def on_post_build(config: Any, **_: Any) -> None:
    """Copy every page's Markdown into the finished site.

    Args:
        config: Of mkdocs: ``docs_dir`` and ``site_dir`` are its folders.
    """
    source, site = Path(config["docs_dir"]), Path(config["site_dir"])
    for page in source.rglob("*.md"):
        target = site / page.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, target)
