"""Only the server's own words to that device pass as its feedback."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from device_sdk.wire.codec import decode_from_server, encode_from_server
from device_sdk.wire.messages import Feedback
from server_kit.daemon.feedback_mac import FeedbackSeal

ADA, BOB = "a" * 32, "b" * 32
SEAL = FeedbackSeal(b"\x07" * 32)
TOLD = SEAL.sealed(ADA, Feedback("0.1", 7, b"", reward_change=0.1 + 0.2, sub_cluster=0))
CHANGES: list[dict[str, Any]] = [
    {"cohort": "0.2"},
    {"round": 8},
    {"reward_change": 0.3},
    {"reward_change": None},
    {"sub_cluster": None},
    {"sub_cluster": 1},
    {"mac": b"\0" * 32},
    {"mac": b""},
]


def test_feedback_holds_for_its_device_after_a_journey():
    assert SEAL.holds(ADA, TOLD)
    arrived = decode_from_server(encode_from_server(TOLD))
    assert isinstance(arrived, Feedback)
    assert SEAL.holds(ADA, arrived)


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_no_word_of_it_can_be_changed(change):
    assert not SEAL.holds(ADA, replace(TOLD, **change))


def test_it_does_not_hold_for_another_device_or_another_server():
    assert not SEAL.holds(BOB, TOLD)
    assert not FeedbackSeal(b"\x08" * 32).holds(ADA, TOLD)


def test_no_verdict_is_sealed_too():
    silent = SEAL.sealed(ADA, Feedback("0", 1, b""))
    assert SEAL.holds(ADA, silent)
    assert not SEAL.holds(ADA, replace(silent, reward_change=0.0))


def test_the_secret_stands_in_no_repr():
    assert "7" not in repr(SEAL)
