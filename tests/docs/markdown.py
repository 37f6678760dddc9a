"""Reads Markdown for the tests of the documentation: fences, headings, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt  # comes with rich
from markdown_it.token import Token

from tests.architecture.repository import kept_files


@dataclass(frozen=True)
class Fence:
    """A block of code: the words after the backticks, the first line of code in the file, the code."""

    tags: tuple[str, ...]
    line: int
    code: str


@dataclass(frozen=True)
class Section:
    """A heading, as plain text, and what stands below it until the next heading."""

    title: str
    text: str


def markdown_files() -> list[Path]:
    return [path for path in kept_files() if path.suffix == ".md"]


def tokens_of(text: str) -> list[Token]:
    return MarkdownIt().enable("table").parse(text)


def fences_of(text: str) -> list[Fence]:
    found = [token for token in tokens_of(text) if token.type == "fence"]
    return [Fence(tuple(token.info.split()), first_line(token) + 1, token.content) for token in found]


def first_line(token: Token) -> int:
    assert token.map is not None
    return token.map[0] + 1


def sections_of(text: str) -> list[Section]:
    """The document cut at its headings; what stands before the first one has no title."""
    tokens = tokens_of(text)
    starts = [place for place, token in enumerate(tokens) if token.type == "heading_open"]
    lines = text.splitlines()
    cuts = [first_line(tokens[place]) - 1 for place in starts] + [len(lines)]
    titles = [plain(tokens[place + 1]) for place in starts]
    return [
        Section(title, "\n".join(lines[begin + 1 : end]))
        for title, begin, end in zip(titles, cuts, cuts[1:], strict=False)
    ]


def plain(inline: Token) -> str:
    return "".join(child.content for child in inline.children or ())


def anchors_of(text: str) -> set[str]:
    """The names by which headings can be linked to, as code hosts make them."""
    found: set[str] = set()
    for section in sections_of(text):
        base = re.sub(r"[^\w\- ]", "", section.title.lower()).replace(" ", "-")
        repeated = (f"{base}-{count}" for count in range(1, len(found) + 2))
        found.add(base if base not in found else next(name for name in repeated if name not in found))
    return found


def links_of(text: str) -> Iterator[str]:
    """Every target of a link or picture; not those that are only shown as code."""
    for token in tokens_of(text):
        for child in token.children or ():
            target = child.attrGet("href") or child.attrGet("src")
            if target:
                yield str(target)
