"""Links within the repository lead somewhere: to a file that exists, to a heading that exists."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.architecture.repository import ROOT, name_of
from tests.docs.markdown import anchors_of, links_of, markdown_files


def dead_links(page: Path) -> list[str]:
    """The relative links of a page that lead nowhere. Those to other sites are not followed."""
    targets = [target for target in links_of(page.read_text(encoding="utf-8")) if not urlsplit(target).scheme]
    return [target for target in targets if not leads_somewhere(page, target)]


def leads_somewhere(page: Path, target: str) -> bool:
    parts = urlsplit(target)
    file = page.parent / unquote(parts.path) if parts.path else page
    if not file.exists():
        return False
    if not parts.fragment or file.suffix != ".md":
        return True
    return unquote(parts.fragment) in anchors_of(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", markdown_files(), ids=name_of)
def test_links_lead_somewhere(page):
    assert dead_links(page) == []


def test_there_are_pages_to_look_at():
    assert ROOT / "README.md" in markdown_files()


def test_dead_links_are_caught(tmp_path):
    (tmp_path / "there.md").write_text("# A heading, `coded`\n\n# Again\n\n# Again\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Own\n[1](gone.md) [2](there.md#gone) [3](#gone) ![4](gone.png) [5][ref]\n\n[ref]: gone/\n\n"
        "[6](there.md) [7](there.md#a-heading-coded) [8](there.md#again-1) [9](#own) [10](https://example.com/gone)\n\n"
        "`[11](gone.md)`\n\n```\n[12](gone.md)\n```\n"
    )
    assert dead_links(page) == ["gone.md", "there.md#gone", "#gone", "gone.png", "gone/"]
