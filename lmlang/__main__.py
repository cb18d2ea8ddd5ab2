"""``python -m lmlang``: the command line."""

from __future__ import annotations

import sys

from lmlang.cli import main

sys.exit(main())
