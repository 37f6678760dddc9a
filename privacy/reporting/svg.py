"""A matplotlib figure as a piece of an HTML page: no outside reference, no fixed size, the page's own colours and font.

Every colour that figures are drawn in stands for a variable of the page's style sheet and becomes it here, so that the
same drawing serves light, dark and paper.
"""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, GRID, ACCENT, WARN = "#010203", "#040506", "#070809", "#0a0b0c", "#0d0e0f"
_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", ACCENT: "--accent", WARN: "--warn"}
_REMOVED = re.compile(r"<metadata>.*?</metadata>|<style.*?</style>|\s(?:xmlns(?::\w+)?|version)=\"[^\"]*\"", re.DOTALL)
_NAMES = re.compile(r"(\bid=\"|\bhref=\"#|url\(#)")
_FONT = re.compile(r"font-family:[^;\"]*")


def inline(figure: Figure, name: str, title: str, description: str) -> str:
    """The figure as an <svg> element whose names begin with `name`, announced by `title` and `description`."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    text = drawn.getvalue()
    text = text[text.index("<svg") :]
    opening, _, rest = _REMOVED.sub("", text).partition(">")
    box = re.search(r"viewBox=\"[^\"]*\"", opening)
    if box is None:
        raise ValueError("a figure without a viewBox cannot be scaled")
    # Names must be unique on a page, and every figure numbers its parts from one.
    rest = _NAMES.sub(rf"\g<1>{name}-", rest)
    rest = _FONT.sub("font-family: inherit", rest)
    for colour, variable in _VARIABLES.items():
        rest = rest.replace(colour, f"var({variable})")
    return (
        f'<svg {box.group()} role="img" aria-labelledby="{name}-title {name}-text">'
        f'<title id="{name}-title">{html.escape(title)}</title><desc id="{name}-text">{html.escape(description)}</desc>'
        f"{rest.strip()}"
    )
