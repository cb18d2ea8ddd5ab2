"""The rows of a batch as a static HTML table: arguments, variables, what went wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lmlang import markup
from lmlang.frontend.batch_table import told
from lmlang.markup import CODE, MUTED, RED, Html, element, tint

FIRST, LAST = 20, 5
"""Rows that are shown of a batch that has more."""
COLUMNS = 12
"""Columns that are shown, the last one among them."""
LONGEST = 200
"""Characters of a cell."""


def page(head: str, indices: Sequence[int], columns: Mapping[str, Sequence[object]]) -> Html:
    """The table of a batch.

    Args:
        head: What is said of it as a whole.
        indices: The numbers of its rows.
        columns: A value for each row, by the column's name; what went wrong is the last one.
    """
    names = list(columns)
    hidden = max(0, len(names) - COLUMNS)
    if hidden:
        names = [*names[: COLUMNS - 1], names[-1]]
    numbers = [
        i + 1
        for i, name in enumerate(names)
        if any(value is not None for value in columns[name]) and all(map(_number, columns[name]))
    ]
    sheet = markup.Sheet()
    sheet.open("div", markup.PAGE)
    sheet.add(element("div", element("b", head)))
    sheet.open(markup.TABLE, markup.TABLE_STYLE)
    sheet.add(markup.row(["row", *(markup.line(name) for name in names)], [0, *numbers], head=True))
    for place in _places(len(indices)):
        if place is None:
            more = f"… {len(indices) - FIRST - LAST:,} more rows"
            sheet.add(markup.row(["", element("i", more)], styles={1: "white-space:nowrap"}))
            continue
        cells = [_cell(columns[name][place]) for name in names]
        if columns[names[-1]][place] is not None:
            cells[-1] = element("span", "✗ ", cells[-1], style=tint(RED, 0.18))
        shown = [element("span", f"{indices[place]:,}", style=MUTED), *cells]
        if not sheet.add(markup.row(shown, [0, *numbers])):
            break
    sheet.close()
    if hidden:
        columns_left = f"… {markup.counted(hidden, 'more column')}: to_pandas() has all"
        sheet.add(element("div", element("i", columns_left), style=MUTED))
    return sheet.end("to_pandas() has all of it")


def _places(count: int) -> list[int | None]:
    """The rows that are shown; None stands for those that are left out."""
    if count <= FIRST + LAST:
        return list(range(count))
    return [*range(FIRST), None, *range(count - LAST, count)]


def _number(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _cell(value: object) -> Html:
    """A value; one that is no text in the font of code."""
    if value is None:
        return Html("")
    text = markup.middle(told(value), LONGEST)
    if isinstance(value, str) or _number(value):
        return markup.escaped(text)
    return element("span", text, style=CODE)
