"""docs/parts.md, made of the parts themselves: what can be named in a preset's overrides, and the settings of each.

python -m tests.docs.parts_page      write the page anew
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from server_kit.parts import PARTS
from server_kit.presets import PRESETS
from server_kit.strategy import Strategy
from tests.architecture.repository import ROOT

PAGE = ROOT / "docs" / "parts.md"
_HEAD = """# Parts and their settings

A preset is a choice of parts. What stands in `overrides`, in an experiment's `[[compare]]` or in `server.toml`, is laid
over it: `overrides = {{ selector = {{ kind = "oort" }}, over_commit = 1.5 }}`. A part of your own is named
`package.module:Class` ([extending.md](extending.md)). This page is made of the parts' own descriptions; a test compares
the two.

Presets: {presets}.
"""


def page() -> str:
    """The whole page."""
    presets = ", ".join(f"`{name}`" for name in sorted(PRESETS))
    sections = [_HEAD.format(presets=presets), _strategy(), *(_point(point, kinds) for point, kinds in PARTS.items())]
    return "\n".join(sections)


def _strategy() -> str:
    return f"## Strategy\n\n{_description(Strategy)}\n\n{_settings(Strategy, without=frozenset({'name'}))}"


def _point(point: Any, kinds: Mapping[str, Any]) -> str:
    parts = "\n".join(f"### `{kind}`\n\n{_description(made)}\n\n{_settings(made)}" for kind, made in kinds.items())
    return f"## {point.__name__}\n\n{_description(point)}\n\n{parts}"


def _description(thing: Any) -> str:
    paragraphs = (inspect.getdoc(thing) or "").split("\n\n")
    return "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)


def _settings(made: Any, without: frozenset[str] = frozenset()) -> str:
    rows = [f"| `{name} = {default}` | {said} |" for name, default, said in _fields(made) if name not in without]
    return "\n".join(["| setting | |", "|---|---|", *rows, ""]) if rows else "No settings.\n"


def _fields(made: Any) -> Iterator[tuple[str, str, str]]:
    said = _said_of_fields(made)
    for field in dataclasses.fields(made):
        if field.init:
            yield field.name, _default(field), said.get(field.name, "")


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if value is dataclasses.MISSING:
        return "…"
    if isinstance(value, enum.Enum):
        value = value.value
    named = next((kind for kinds in PARTS.values() for kind, made in kinds.items() if type(value) is made), None)
    return named or ("none" if value is None else str(value))


def _said_of_fields(made: Any) -> dict[str, str]:
    """The texts below fields, as the source has them."""
    found = re.findall(r'^    (\w+): [^\n]*\n    """(.*?)"""', inspect.getsource(made), re.DOTALL | re.MULTILINE)
    return {name: " ".join(text.split()).replace("|", "\\|") for name, text in found}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
