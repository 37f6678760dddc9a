"""The building blocks of a report: every text is escaped, every table has headers and a caption."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from privacy.reporting.amounts import printable
from privacy.reporting.page_style import STYLE


@dataclass(frozen=True)
class Raw:
    """Markup made here; any other text is escaped."""

    markup: str


Cell = str | Raw


def text(words: Cell) -> str:
    """Words as HTML. Names in ledgers and receipts are other people's, and may be hostile."""
    return words.markup if isinstance(words, Raw) else html.escape(printable(words))


def whole_page(title: str, body: str) -> str:
    """A page that needs nothing else."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # The page loads nothing and runs nothing, and a browser holds it to that.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def paragraph(words: Cell, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f"<p{attribute}>{text(words)}</p>"


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]], kinds: Sequence[str]) -> str:
    """A table whose first column names its rows; `kinds` has a class for each column, "n" for numbers."""
    head = "".join(f'<th scope="col" class="{kind}">{text(word)}</th>' for word, kind in zip(heads, kinds, strict=True))
    body = "".join(f"<tr>{_row(row, kinds)}</tr>\n" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(caption, quote=True)}"><table>'
        f"<caption>{text(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>"
    )


def long_table(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]], kinds: Sequence[str], shown: int
) -> str:
    """A table whose first rows are open and whose others can be unfolded."""
    first = table(caption, heads, rows[:shown], kinds)
    if len(rows) <= shown:
        return first
    return first + details(f"{len(rows) - shown:,} more", table(f"{caption}, continued", heads, rows[shown:], kinds))


def details(summary: str, inside: str) -> str:
    return f"<details><summary>{text(summary)}</summary>\n{inside}</details>"


def figure(title: str, drawing: str, caption: str, numbers: str) -> str:
    """A drawing under its title, with a caption and the numbers it was drawn from."""
    return (
        f"<figure><h3>{text(title)}</h3>{drawing}<figcaption>{text(caption)}</figcaption>"
        f"{details('The numbers', numbers)}</figure>"
    )


def bar(share: float) -> Raw:
    """A bar that repeats a number beside it, hidden from those who hear the page."""
    return Raw(f'<span aria-hidden="true" style="width: {100 * max(0.0, min(1.0, share)):.1f}%"></span>')


def tiles(pairs: Sequence[tuple[str, str]]) -> str:
    inside = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in pairs)
    return f'<dl class="tiles">{inside}</dl>'


def glossary(pairs: Sequence[tuple[str, str]]) -> str:
    inside = "".join(f"<dt>{text(word)}</dt><dd>{text(meaning)}</dd>" for word, meaning in pairs)
    return f'<dl class="gloss">{inside}</dl>'


def section(title: str, *parts: str) -> str:
    return f"<section><h2>{text(title)}</h2>\n" + "\n".join(part for part in parts if part) + "\n</section>"


def _row(row: Sequence[Cell], kinds: Sequence[str]) -> str:
    first, *rest = row
    cells = "".join(f'<td class="{kind}">{text(cell)}</td>' for cell, kind in zip(rest, kinds[1:], strict=True))
    return f'<th scope="row" class="{kinds[0]}">{text(first)}</th>{cells}'
