"""One subject in a process of its own: reads works, a line of JSON each, and answers them by lines.

    python worker.py MODULE MODEL FOLDER [PARAMETERS as JSON]
    <- {"name": "fork", "work": {…}}     -> {"seconds": …, "answer": […], "counters": {…}}

The module has ``made(model, folder, **parameters)``, which returns a function of name and work that
returns seconds and an answer, or seconds, answer and counters. What libraries print goes to the
standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any


def main() -> None:
    """Answer works until there are no more."""
    module, model, folder, *rest = sys.argv[1:]
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # also of what C code prints
    made: Any = importlib.import_module(module).made
    run = made(model, folder, **(json.loads(rest[0]) if rest else {}))
    print(json.dumps({"ready": True}), file=told, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            seconds, answer, *counters = run(asked["name"], asked["work"])
            found = {"seconds": seconds, "answer": answer, "counters": (counters or [{}])[0]}
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(found), file=told, flush=True)


if __name__ == "__main__":
    main()
