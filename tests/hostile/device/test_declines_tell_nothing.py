"""A decline tells nothing of what was spent elsewhere.

Attack: a server that gave a device little offers a task that fits its whole budget, and listens whether the no sounds
like money or like a device that is not charging.
"""

from __future__ import annotations

import pytest

from device_sdk import Conditions
from device_sdk import policy as policy_module
from device_sdk.policy import Reason
from device_sdk.wire.messages import DeclineReason
from privacy import ClippedUpdate, RandomizedResponse, Request
from privacy.errors import BudgetExhausted
from tests.device_sdk.runtime.asking import CHOICE
from tests.device_sdk.runtime.trainers import trainer
from tests.hostile.device.witness import witnessed

pytestmark = pytest.mark.integration
FIRST_SECONDS, NEAR_SECONDS = 0.5, 0.25


def spend_elsewhere(device, *, training):
    """Use up what the device has, at another server."""
    ledger = device._ledger
    if not training:
        ledger.reserve("other", {}, RandomizedResponse(2, 2).cost, Request("another server", "question", "1"))
        return
    cost = ClippedUpdate({"w": (1,)}, 1, 8).cost
    number = 0
    while True:
        try:
            ledger.reserve("other", {}, cost, Request("another server", "training", str(number)))
        except BudgetExhausted:
            return
        number += 1


class NotCharging:
    """Charging when the device looks for work, and no longer when the work is there."""

    def __init__(self):
        self.asked = 0

    def __call__(self):
        self.asked += 1
        return self.asked != 3


def declined(home, *, training, spent):
    """What is seen of a device that does not take part: because of its budget, or of its charger."""
    with witnessed(home, rounds=int(training)) as witness:
        witness.asking.asked = [] if training else [dict(CHOICE)]
        conditions = Conditions() if spent else Conditions(charging=NotCharging())
        given = {"conditions": conditions, "schedule": {"first_seconds": FIRST_SECONDS}}
        with witness.federation.enrolled(home, **given) as device:
            if spent:
                spend_elsewhere(device, training=training)
            witness.sees(device, trainer(), 1)
        names = [sight[0] for sight in witness.seen]
        at = names.index("decline")
        return witness.seen[: at + 1], witness.times[at] - witness.times[names.index("check_in")]


@pytest.mark.parametrize("training", [True, False], ids=["a task", "a question"])
def test_a_budget_that_was_spent_elsewhere_sounds_like_a_charger_that_is_gone(tmp_path, training):
    poor, poor_seconds = declined(tmp_path / "poor", training=training, spent=True)
    unplugged, unplugged_seconds = declined(tmp_path / "unplugged", training=training, spent=False)
    assert poor == unplugged
    assert poor[-1] == ("decline", DeclineReason.NOT_NOW.name)
    assert abs(poor_seconds - unplugged_seconds) < NEAR_SECONDS


@pytest.mark.parametrize("training", [True, False], ids=["a task", "a question"])
def test_a_device_that_speaks_of_money_is_caught(tmp_path, monkeypatch, training):
    """The broken twin: what the budget forbids is heard as terms."""
    monkeypatch.setitem(policy_module._HEARD, Reason.BUDGET, DeclineReason.TERMS)
    poor, _ = declined(tmp_path / "poor", training=training, spent=True)
    unplugged, _ = declined(tmp_path / "unplugged", training=training, spent=False)
    assert poor != unplugged
