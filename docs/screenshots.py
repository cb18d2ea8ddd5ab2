"""Makes a picture of everything that lmlang shows in a notebook: light and dark, wide and narrow.

    python docs/screenshots.py FOLDER [NAME …]

One PNG for each view × (light, dark, bare, jupyter) × (1200, 700 pixels), by headless Chromium.
"bare" is without any style, as some sites strip them; "jupyter" is among the rules that JupyterLab
has for tables and text. For people to look at; no test runs it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmlang as lm
from lmlang.testing import ScriptedBackend

WIDTHS = (1200, 700)
HEIGHT = 1500
THEMES = {
    "light": ("#1f2328", "#ffffff"),
    "dark": ("#e6edf3", "#0d1117"),
    "bare": ("#000", "#fff"),
    "jupyter": ("#212121", "#ffffff"),
}
JUPYTER = """<style>
table { border: none; font-size: 12px; table-layout: fixed; margin: 0 auto 1em }
td, th, tr { vertical-align: middle; text-align: right; padding: .5em; white-space: normal }
tbody tr:nth-child(even) { background: #f5f5f5 } b { font-weight: bold }
pre, code { background: #fff; color: #212121; font-size: 13px; padding: 0 } div { line-height: 1.3 }
</style>"""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
CARD = {
    "title": "Card",
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 20},
        "stars": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["title", "stars"],
    "additionalProperties": False,
}


@lm.function
def review(s: lm.ProgramState, film: str) -> None:
    """Three remarks side by side, a typed card, a verdict."""
    s += lm.system("You are a film critic.")
    with s.user():
        s += f"Say something about {film}. Then rate it as JSON."
    with s.assistant():
        forks = s.fork(3)
        for fork in forks:
            fork += lm.gen("line", max_tokens=24, stop=".")
        forks.join()
        s += s["line"][0] + ".\n"
        s += lm.gen("card", json_schema=CARD, provenance=True, top_logprobs_num=3, max_tokens=40)
        s["film"] = film
        s += " So it is " + lm.select("verdict", ["good", "bad", "so-so"])


@lm.function
def nasty(s: lm.ProgramState) -> None:
    """What a page must survive: markup, control bytes, lengths, failures."""
    s += lm.user(
        "<script>alert('prompt')</script>\x1b[31m red? \u202e turned\n\tindented " + "x" * 300
    )
    with s.assistant():
        forks = s.fork(20)
        for fork in forks:
            fork += lm.gen("part")
        forks.join("concate_and_append")
        s += lm.gen("long", max_tokens=20_000) + lm.gen("fails") + lm.gen("never")


@lm.function
def capital(s: lm.ProgramState, country: str) -> None:
    """One row of a batch."""
    s += f"The capital of {country} is the city of"
    s += lm.gen("city", stop=[".", ",", "\n"], max_tokens=8)
    s += ", founded in the year " + lm.gen("year", type=int, max_tokens=8)


def nasty_state() -> lm.ProgramState:
    """A run that failed in its middle."""
    answers = [f"<b>part {i}</b>\x00" for i in range(20)] + ["long <i>text</i> & more " * 900]
    backend = ScriptedBackend(answers, fail_at=21)
    (state,) = nasty.run_batch([()], backend=backend, on_error="return")
    return state


def shown() -> dict[str, Callable[[], Any]]:
    """What is photographed, by its name."""
    runtime = lm.Runtime()
    keywords: dict[str, Any] = {"backend": runtime, "return_logprob": True, "temperature": 0.7}
    state = review("Metropolis", seed=1, **keywords)
    other = review("Metropolis", seed=2, **keywords)
    failed = nasty_state()
    rows = [{"country": name} for name in ("France", "Italy", "<Oz>", "Peru")] * 9
    batch = capital.run_batch([*rows, {"land": 1}], on_error="return", seed=3, **keywords)
    return {
        "transcript": state.run_log().transcript,
        "tokens": state.run_log().tokens,
        "tree": state.run_log().tree,
        "nasty_transcript": failed.run_log().transcript,
        "nasty_tokens": failed.run_log().tokens,
        "nasty_tree": failed.run_log().tree,
        "diff": lambda: lm.diff(state, other),
        "batch": lambda: batch,
        "program": state.program,
        "preview": lambda: review.preview(backend=runtime, film="Metropolis"),
        "meta": lambda: state.meta("card"),
        "stats": runtime.stats,
        "radix": runtime.tree,
        "function": lambda: review.options(temperature=0.5).bind(film="Metropolis"),
    }


def photograph(page: str, folder: Path, name: str, browser: str) -> None:
    """Write the pictures of one page."""
    for theme, (ink, paper) in THEMES.items():
        body = re.sub(r' style="[^"]*"', "", page) if theme == "bare" else page
        body = JUPYTER + body if theme == "jupyter" else body
        for width in WIDTHS:
            at = folder / f"{name}-{theme}-{width}"
            html = at.with_suffix(".html")
            html.write_text(
                f'<!doctype html><meta charset="utf-8"><body style="margin:16px;background:{paper};'
                f'color:{ink};font-family:system-ui,sans-serif;font-size:14px">{body}',
                encoding="utf-8",
            )
            command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
            command += [f"--window-size={width},{HEIGHT}", f"--screenshot={at.with_suffix('.png')}"]
            subprocess.run([*command, html.as_uri()], check=True, capture_output=True, timeout=60)


def main(arguments: list[str]) -> int:
    """Make the pictures; the exit code."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not arguments or browser is None:
        print(__doc__ if browser else f"no browser found: install one of {', '.join(BROWSERS)}.")
        return 2
    folder = Path(arguments[0]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in shown().items():
        if not arguments[1:] or name in arguments[1:]:
            found = make()._repr_mimebundle_()
            print(f"{name}: {len(found['text/html'].encode()):,} bytes")
            (folder / f"{name}.txt").write_text(found["text/plain"], encoding="utf-8")
            photograph(found["text/html"], folder, name, browser)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
