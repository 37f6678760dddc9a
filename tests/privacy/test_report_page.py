"""The HTML report: one page that loads nothing, escapes everything, and can be read without seeing it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from covey import ExitCode
from privacy.mechanisms import LabelHistogram
from privacy.reporting.findings import Finding, FindingKind, Notice
from privacy.reporting.fleet import Fleet, read_fleet
from privacy.reporting.page import page_of
from privacy.reporting.page_style import STYLE
from privacy.reporting.terminal import progress
from tests.privacy.cli_helpers import LABELS, Server, ask, device, opened, run

VOID = {"meta", "br", "hr", "img", "input", "link"}
HOSTILE = "<script>alert(1)</script>\"'&"


class Page(HTMLParser):
    """The elements of a page, whether they are balanced, and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.faults: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes something else")

    def named(self, *tags: str) -> list[dict]:
        return [attributes for tag, attributes in self.elements if tag in tags]

    def loads(self) -> list[str]:
        """Whatever would reach outside the page, or run."""
        reaching = [
            f"{tag} {name}={value}"
            for tag, attributes in self.elements
            for name, value in attributes.items()
            if (name in {"src", "srcset", "action", "data"} or name.endswith("href"))
            and not (value or "").startswith("#")
        ]
        running = [name for _, attributes in self.elements for name in attributes if name.startswith("on")]
        return reaching + running + [tag for tag, _ in self.elements if tag in {"script", "link", "iframe", "object"}]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory) -> Fleet:
    """Two devices, one finding, and names that somebody hostile chose."""
    tmp_path, server = tmp_path_factory.mktemp("fleet"), Server()
    states = [device(tmp_path / f"device-{number}", updates=2 + number, server=server) for number in range(2)]
    with opened(states[0]) as ledger:
        ask(ledger, LabelHistogram(2, "0.1"), LABELS, "1", server=HOSTILE, purpose=HOSTILE)
    del server.receipts[-1]
    return read_fleet(states, server.export(tmp_path / "receipts.jsonl"), progress, clock=lambda: 4_000_000_000)


@pytest.fixture(scope="module")
def text(fleet) -> str:
    return page_of(fleet)


def test_a_page_needs_nothing_else(text):
    page = Page(text)
    assert page.loads() == []
    assert "http" not in text.replace("http-equiv", "")
    assert re.search(r"url\((?!#)", text) is None
    assert "@import" not in text
    assert "default-src 'none'" in text


@pytest.mark.parametrize(
    "planted",
    [
        "<script>1</script>",
        "<img src='a.png'>",
        "<a href='x'>x</a>",
        "<p onclick='x'>x</p>",
        "<link rel='stylesheet' href='x'>",
    ],
)
def test_a_page_that_needs_something_is_caught(planted):
    assert Page(f"<body>{planted}</body>").loads()


def test_a_page_is_well_formed_and_every_name_is_unique(text):
    page = Page(text)
    assert (page.faults, page.open) == ([], [])
    names = Counter(attributes["id"] for _, attributes in page.elements if "id" in attributes)
    assert [name for name, count in names.items() if count > 1] == []
    references = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", text))
    assert references <= set(names)


def test_names_of_other_people_are_text_and_never_markup(text):
    assert HOSTILE not in text
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


@pytest.mark.parametrize("where", ["place", "sentence"])
def test_findings_and_notices_are_escaped_too(fleet, where):
    names = {"place": "here", "sentence": "broken", where: HOSTILE}
    finding = Finding(FindingKind.TAMPERED, names["place"], names["sentence"])
    notice = Notice(names["place"], names["sentence"])
    hostile = replace(fleet, findings=(finding,), notices=(notice,), receipts_name=HOSTILE, unchecked={HOSTILE: 1})
    assert "<script" not in page_of(hostile)


def test_what_does_not_reconcile_stands_before_every_figure(fleet, text):
    assert "1 thing does not reconcile" in text
    assert text.index("Released, never received") < text.index("At a glance") < text.index("<svg")
    quiet = page_of(replace(fleet, findings=()))
    assert "not reconcile" not in quiet
    assert "Nothing amiss was found" in quiet


def test_a_page_can_be_heard(text):
    page = Page(text)
    assert page.elements[0] == ("html", {"lang": "en"})
    assert len(page.named("h1")) == 1
    tables, captions = page.named("table"), page.named("caption")
    assert len(tables) == len(captions) > 5
    assert all(head.get("scope") in {"col", "row"} for head in page.named("th"))
    drawings = page.named("svg")
    assert len(drawings) == 3
    assert all(drawing["role"] == "img" and drawing["aria-labelledby"] for drawing in drawings)
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert all(below <= above + 1 for above, below in pairwise(levels))


def test_numbers_are_aligned_and_the_page_adapts():
    assert ".n { text-align: right" in STYLE
    for condition in ("prefers-color-scheme: dark", "max-width: 30rem", "@media print"):
        assert condition in STYLE


def test_figures_take_the_pages_colours_and_font(text):
    drawings = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert "var(--ink)" in drawings
    assert re.findall(r"#0[0-9a-f]0[0-9a-f]0[0-9a-f]", drawings) == []
    assert "DejaVu" not in drawings


def test_equal_fleets_give_equal_pages(fleet, text):
    assert page_of(fleet) == text


def test_hundreds_of_devices_stay_three_figures_and_a_folded_table(fleet):
    view = fleet.views[0]
    many = tuple(replace(view, place=f"fleet/device-{number:04d}") for number in range(400))
    text = page_of(replace(fleet, views=many, given=400))
    assert len(Page(text).named("svg")) == 3
    assert "375 more" in text
    assert "fleet/device-0399" in text or "device-0399" in text
    assert len(text) < 1_000_000


def test_a_fleet_of_which_nothing_stands_still_has_a_page(tmp_path):
    (tmp_path / "empty").mkdir()
    text = page_of(read_fleet([tmp_path / "empty"], None, progress))
    assert Page(text).faults == []
    assert "Unreadable (1)" in text


def test_an_unused_device_has_a_page(tmp_path):
    text = page_of(read_fleet([device(tmp_path / "new", updates=0, histogram=False)], None, progress))
    assert Page(text).faults == []
    assert "Remaining budget" in text


def test_the_command_writes_the_page_and_says_where(tmp_path, capsys):
    state, out = device(tmp_path / "state"), tmp_path / "report.html"
    told = run(capsys, "report", state, "-o", out)
    assert told.code == ExitCode.DONE
    assert f"The report is in {out}" in told.err
    assert Page(out.read_text(encoding="utf-8")).faults == []


def test_a_page_that_cannot_be_written_is_told_before_anything_is_read(tmp_path, capsys):
    told = run(capsys, "report", device(tmp_path / "state"), "-o", tmp_path / "nowhere" / "report.html")
    assert (told.code, told.out) == (ExitCode.USED_WRONGLY, "")
