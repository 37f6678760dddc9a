"""Plain text for a terminal of 80 columns: tables, bars and paragraphs that survive a pipe."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

WIDTH = 80
_GAP = "  "
_BAR_CELLS = 20


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], sides: str = "", indent: str = "") -> str:
    """Columns under their headers. `sides` has a letter for each: r for numbers, f for fixed words, l for the others.

    Where the table is too wide, the widest of the others gives way, and what is cut ends in an ellipsis.
    """
    if not rows:
        return ""
    sides = sides.ljust(len(headers), "l")
    columns = [[header, *(row[index] for row in rows)] for index, header in enumerate(headers)]
    widths = _fitted([max(map(len, column)) for column in columns], sides, WIDTH - len(indent))
    lines = [
        _GAP.join(_cell(text, width, side) for text, width, side in zip(line, widths, sides, strict=True))
        for line in [headers, *rows]
    ]
    ruler = _GAP.join("-" * width for width in widths)
    return "\n".join((indent + line).rstrip() for line in [lines[0], ruler, *lines[1:]])


def bar(share: float) -> str:
    """A share of 1 as a bar; anything above nothing shows, and only all of it is full."""
    full = min(_BAR_CELLS, max(0, round(_BAR_CELLS * share)))
    if 0 < share < 1:
        full = min(_BAR_CELLS - 1, max(1, full))
    return "#" * full + "." * (_BAR_CELLS - full)


def paragraph(text: str, indent: str = "", first: str | None = None) -> str:
    """One wrapped paragraph; `first` replaces the indent of its first line."""
    return textwrap.fill(
        " ".join(text.split()),
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


def pairs(lines: Sequence[tuple[str, str]], indent: str = "  ") -> str:
    """Labels and what they stand for, the latter wrapped beside them."""
    width = max(len(label) for label, _ in lines) + len(_GAP)
    return "\n".join(paragraph(text, indent + " " * width, indent + label.ljust(width)) for label, text in lines)


def _fitted(widths: list[int], sides: str, room: int) -> list[int]:
    widths = list(widths)
    while sum(widths) + len(_GAP) * (len(widths) - 1) > room:
        words = [index for index, side in enumerate(sides) if side == "l" and widths[index] > 8]
        if not words:
            break
        widths[max(words, key=widths.__getitem__)] -= 1
    return widths


def _cell(text: str, width: int, side: str) -> str:
    text = text if len(text) <= width else text[: width - 1] + "…"
    return text.rjust(width) if side == "r" else text.ljust(width)
