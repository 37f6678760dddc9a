"""Every setting a person can choose is described in the docs."""

from __future__ import annotations

import dataclasses
import re

import pytest

from privacy.budget import PrivacyBudget
from tests.architecture.repository import ROOT

SETTINGS = {"docs/privacy_guarantees.md": PrivacyBudget}


def undescribed(settings: type, text: str) -> set[str]:
    """Fields that the text never names in a code span."""
    named = set(re.findall(r"`(\w+)`", text))
    return {field.name for field in dataclasses.fields(settings)} - named


@pytest.mark.parametrize(("page", "settings"), SETTINGS.items())
def test_every_setting_is_described(page: str, settings: type) -> None:
    assert not undescribed(settings, (ROOT / page).read_text())


def test_a_setting_nobody_wrote_about_is_missed() -> None:
    assert "pure_epsilon" in undescribed(PrivacyBudget, "only `epsilon` and `delta`")
