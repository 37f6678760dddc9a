"""A few dishonest devices cannot carry a model away: over the real wire, with the settings of `covey server init`.

They hold valid keys, know the server's code, and send updates as long as the server takes.
"""

from __future__ import annotations

import time

import pytest

from tests.hostile.server.lying_devices import Digits, Outcome, backdoor, federation_with, replacing

pytestmark = pytest.mark.integration
STRIKE = 4
"""In the round of this number, when there is something to replace."""


def told(outcome: Outcome) -> str:
    """For whoever reads a failure: the accuracy of each model."""
    digits = Digits.load()
    return " ".join(f"{digits.accuracy(weights):.2f}" for weights in [*outcome.handed_out, outcome.final])


def test_one_device_of_nine_does_not_replace_the_model(tmp_path):
    digits = Digits.load()
    outcome = federation_with(tmp_path, [replacing(9, lambda number: number == STRIKE)], honest=8, rounds=STRIKE + 1)
    assert not outcome.refused
    assert digits.accuracy(outcome.handed_out[-1]) > 0.5, told(outcome)
    assert digits.accuracy(outcome.final) > 0.5, told(outcome)
    assert digits.share_called_target(outcome.final) < 0.4, told(outcome)


def test_an_update_beyond_every_honest_one_is_refused_and_its_round_goes_on(tmp_path):
    began = time.monotonic()
    lie = replacing(9, lambda number: number == 1)
    outcome = federation_with(tmp_path, [lie], honest=8, rounds=3, keep_limit=False)
    assert [sentence for sentence in outcome.refused if "longer than its task's clipping and noise allow" in sentence]
    assert time.monotonic() - began < 300, "the round waited for its deadline"
    assert Digits.load().accuracy(outcome.final) > 0.4, told(outcome)


@pytest.mark.stress
def test_without_a_guard_the_same_device_does(tmp_path):
    """The broken twin: nothing else stands in its way."""
    lie = replacing(9, lambda number: number == STRIKE)
    outcome = federation_with(tmp_path, [lie], honest=8, rounds=STRIKE + 1, guard="none", most_records=40.0)
    assert Digits.load().accuracy(outcome.final) < 0.4, told(outcome)


@pytest.mark.stress
@pytest.mark.parametrize("level", ["record", "device"])
@pytest.mark.parametrize(("honest", "liars"), [(8, 1), (18, 2), (16, 4)], ids=["1 of 9", "2 of 20", "4 of 20"])
def test_those_who_try_in_every_round_do_not_replace_it_either(tmp_path, honest, liars, level):
    digits = Digits.load()
    lies = [replacing(honest + liars, lambda number: number >= 2) for _ in range(liars)]
    outcome = federation_with(tmp_path, lies, honest=honest, rounds=8, level=level)
    print(f"\n{liars} of {honest + liars}, {level}, replacement: {told(outcome)}")  # noqa: T201 - figures for the docs
    assert digits.share_called_target(outcome.final) < 0.5, told(outcome)
    if level == "record":
        assert digits.accuracy(outcome.final) > 0.5, told(outcome)


@pytest.mark.stress
@pytest.mark.parametrize(("honest", "liars"), [(8, 1), (18, 2), (16, 4)], ids=["1 of 9", "2 of 20", "4 of 20"])
def test_a_backdoor_does_not_open(tmp_path, honest, liars):
    digits = Digits.load()
    lies = [backdoor(honest + liars, lambda number: number >= 2) for _ in range(liars)]
    outcome = federation_with(tmp_path, lies, honest=honest, rounds=8)
    opened = [round(digits.backdoor(weights), 2) for weights in [*outcome.handed_out, outcome.final]]
    print(f"\n{liars} of {honest + liars}, record, backdoor: {opened}, {told(outcome)}")  # noqa: T201
    assert digits.accuracy(outcome.final) > 0.5, told(outcome)
    assert digits.backdoor(outcome.final) < 0.5, opened
