"""docs/experiments.md names every kind and every setting with its default, and none that does not exist."""

from __future__ import annotations

import re

import pytest

from server_kit.presets import PRESETS
from tests.architecture.repository import ROOT
from tests.docs.markdown import sections_of
from tests.server_kit.simulation.experiments.documented import kinds, settings, spans, written

PAGE = (ROOT / "docs/experiments.md").read_text(encoding="utf-8")


def rows_below(page: str, heading: str) -> list[list[str]]:
    """The cells of the tables below a heading, without their heads."""
    (text,) = [section.text for section in sections_of(page) if section.title == heading]
    lines = [
        line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| setting", "| kind"))
    ]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def wrong_settings(page: str, heading: str) -> set[str]:
    """Settings that the page forgets, invents, or shows with another default."""
    return {row[0] for row in rows_below(page, heading)} ^ set(spans(settings()[heading]))


def wrong_kinds(page: str, heading: str) -> set[str]:
    described = {row[0].strip("`"): row[1] for row in rows_below(page, heading)}
    real = {name: ", ".join(spans(fields)) for name, fields in kinds()[heading].items()}
    return {name for name in described.keys() | real.keys() if described.get(name) != real.get(name)}


@pytest.mark.parametrize("heading", settings())
def test_every_setting_is_described_with_its_default(heading):
    assert wrong_settings(PAGE, heading) == set()


@pytest.mark.parametrize("heading", kinds())
def test_every_kind_is_described_with_its_settings(heading):
    assert wrong_kinds(PAGE, heading) == set()


def presets_on(page: str) -> set[str]:
    (text,) = [section.text for section in sections_of(page) if section.title == "[[compare]]"]
    return set(re.findall(r"`(\w+)`", text.partition("Presets:")[2]))


def test_every_preset_is_named():
    assert presets_on(PAGE) == set(PRESETS)


@pytest.mark.parametrize(
    ("old", "new"),
    [("| `rounds = 100` |", "| `rounds = 10` |"), ("| `rounds = 100` |", "| `turns = 100` |")],
)
def test_a_wrong_default_or_name_is_caught(old, new):
    assert wrong_settings(PAGE.replace(old, new), "[run]")


@pytest.mark.parametrize(("old", "new"), [("`alpha` (required), ", ""), ("| `dirichlet` |", "| `dirichlett` |")])
def test_a_kind_with_a_forgotten_setting_or_another_name_is_caught(old, new):
    assert wrong_kinds(PAGE.replace(old, new), "partition")


def test_what_is_required_and_what_has_no_default_look_different():
    assert (written("a", "required"), written("a", ""), written("a", "3")) == ("`a` (required)", "`a`", "`a = 3`")
