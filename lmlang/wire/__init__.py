"""The wire: values of the protocol as versioned JSON, for the server and for what talks to it.

    value --to_wire--> message (a dict) --dumps--> text --loads--> message --…_from_wire--> value

Reading is strict: unknown fields, wrong types and numbers that are not finite are `WireError`, with
their place.
"""

from __future__ import annotations

from lmlang.wire.forms import (
    dumps,
    loads,
)
from lmlang.wire.messages import (
    VERSION,
    Item,
    count_from_wire,
    count_to_wire,
    error_from_wire,
    ids_from_wire,
    ids_to_wire,
    info_from_wire,
    item_from_wire,
    prompt_from_wire,
    request_from_wire,
    run_from_wire,
    run_to_wire,
    score_request_from_wire,
    scores_from_wire,
    spec_from_wire,
    text_from_wire,
    text_to_wire,
    to_wire,
)

__all__ = [
    "VERSION",
    "Item",
    "count_from_wire",
    "count_to_wire",
    "dumps",
    "error_from_wire",
    "ids_from_wire",
    "ids_to_wire",
    "info_from_wire",
    "item_from_wire",
    "loads",
    "prompt_from_wire",
    "request_from_wire",
    "run_from_wire",
    "run_to_wire",
    "score_request_from_wire",
    "scores_from_wire",
    "spec_from_wire",
    "text_from_wire",
    "text_to_wire",
    "to_wire",
]
