"""Texts and lines can be told from their ground in both themes, by the ratios of WCAG 2.2; cohorts from each other."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from server_kit.dashboard.routes import STATIC

STYLE = (STATIC / "style.css").read_text(encoding="utf-8")
TEXTS = ("text", "quiet", "accent", "good", "bad", "warn")
COHORTS = tuple(f"c{number}" for number in range(8))
GROUNDS = ("ground", "surface")
SELECTORS = {
    "light": ":root {",
    "dark": ':root[data-theme="dark"] {',
    "system dark": ':root:not([data-theme="light"]) {',
}


def colours(selector: str) -> dict[str, str]:
    block = STYLE[STYLE.index(selector) :].partition("}")[0]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))


THEMES = {name: colours(selector) for name, selector in SELECTORS.items()}


def luminance(colour: str) -> float:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def ratio(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def too_pale(theme: dict[str, str], names: tuple[str, ...], least: float) -> list[str]:
    return [name for name in names for ground in GROUNDS if ratio(theme[name], theme[ground]) < least]


@pytest.mark.parametrize("theme", THEMES)
def test_texts_stand_out(theme):
    assert too_pale(THEMES[theme], TEXTS, 4.5) == []


@pytest.mark.parametrize("theme", THEMES)
def test_names_of_cohorts_stand_out_as_texts(theme):
    assert too_pale(THEMES[theme], COHORTS, 4.5) == []


@pytest.mark.parametrize("theme", THEMES)
def test_bars_stand_out_from_what_they_fill(theme):
    assert ratio(THEMES[theme]["fill"], THEMES[theme]["rest"]) >= 3


def test_a_pale_grey_would_be_caught():
    assert too_pale(THEMES["light"] | {"quiet": "#9aa0a6"}, TEXTS, 4.5) == ["quiet", "quiet"]


def test_the_ratio_is_that_of_the_standard():
    assert ratio("#000000", "#ffffff") == pytest.approx(21)
    assert ratio("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_both_ways_into_the_dark_are_the_same():
    assert THEMES["dark"] == THEMES["system dark"]
    assert set(THEMES["dark"]) == set(THEMES["light"])


# What people see who lack one kind of cone (Machado, Oliveira and Fernandes 2009, severity 1), on linear light.
CONES = {
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}


def seen(colour: str, cones: tuple[tuple[float, ...], ...]) -> tuple[float, ...]:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    return tuple(sum(weight * part for weight, part in zip(row, parts, strict=True)) for row in cones)


def nearest(theme: dict[str, str], cones: tuple[tuple[float, ...], ...]) -> float:
    """How far the two most similar of the first four cohorts are apart; the others are named at their lines."""
    found = [seen(theme[name], cones) for name in COHORTS[:4]]
    return min(sum((a - b) ** 2 for a, b in zip(*pair, strict=True)) ** 0.5 for pair in combinations(found, 2))


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("cones", CONES)
def test_colour_blind_people_tell_cohorts_apart(theme, cones):
    assert nearest(THEMES[theme], CONES[cones]) > 0.1


@pytest.mark.parametrize("cones", CONES)
def test_red_beside_green_would_be_caught(cones):
    muddled = dict(zip(COHORTS, ("#0072b2", "#8f6000", "#5c7a00", "#a6428a"), strict=False))
    assert nearest(muddled, CONES[cones]) < nearest(THEMES["light"], CONES[cones])
