"""What commands show fits 80 columns, in whole words."""

from __future__ import annotations

import pytest

from server_kit.commands.overview import DeviceCounts, Overview
from server_kit.commands.texts import overview_text
from server_kit.privacy_spend import PrivacySpend
from server_kit.store.protocol import Happening

ROUND = {"round": 17, "selected": 24, "arrived": 24, "devices": 24, "seconds": 1.25, "accuracy": 0.875}


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (ROUND, "round 17, selected 24, arrived 24"),
        ({"why": "label histograms differ"}, "why label histograms differ"),
        ({"why": "x" * 100, "round": 3}, "why " + "x" * 37 + "…"),
        ({"children": ["0.0", "0.1"]}, ""),
        ({}, ""),
    ],
)
def test_a_happening_is_told_in_whole_facts(facts, told):
    happening = Happening("round", 0.0, "0.1", facts)
    found = Overview(
        "ward",
        "covey",
        "",
        False,
        60.0,
        (),
        (),
        DeviceCounts(0, 0, 0, None),
        {},
        PrivacySpend(),
        8.0,
        1e-6,
        (happening,),
    )
    text = overview_text(found)
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[-1].partition("round       ")[2].strip() == told
