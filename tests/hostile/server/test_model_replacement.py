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
SIZES = [(8, 1), (18, 2), (16, 4)]
NAMES = [f"{liars} of {honest + liars}" for honest, liars in SIZES]


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
@pytest.mark.parametrize(("honest", "liars"), SIZES, ids=NAMES)
def test_those_who_try_in_every_round_do_not_replace_it_either(tmp_path, honest, liars, level):
    digits = Digits.load()
    lies = [replacing(honest + liars, lambda number: number >= 2) for _ in range(liars)]
    outcome = federation_with(tmp_path, lies, honest=honest, rounds=8, level=level)
    print(f"\n{liars} of {honest + liars}, {level}, replacement: {told(outcome)}")  # noqa: T201 - figures for people
    assert digits.share_called_target(outcome.final) < 0.5, told(outcome)
    if level == "record":
        assert digits.accuracy(outcome.final) > 0.5, told(outcome)


def opened(outcome: Outcome) -> list[float]:
    """How often a painted corner works, model by model."""
    digits = Digits.load()
    return [round(digits.backdoor(weights), 2) for weights in [*outcome.handed_out, outcome.final]]


@pytest.mark.stress
@pytest.mark.parametrize(("honest", "liars"), SIZES, ids=NAMES)
def test_a_backdoor_does_not_open_in_a_round(tmp_path, honest, liars):
    digits = Digits.load()
    lies = [backdoor(honest + liars, lambda number: number == STRIKE) for _ in range(liars)]
    outcome = federation_with(tmp_path, lies, honest=honest, rounds=STRIKE + 2)
    print(f"\n{liars} of {honest + liars}, record, backdoor once: {opened(outcome)}, {told(outcome)}")  # noqa: T201
    assert digits.accuracy(outcome.final) > 0.5, told(outcome)
    assert max(opened(outcome)[STRIKE + 1 :]) < 0.5, opened(outcome)


@pytest.mark.stress
def test_without_a_guard_it_does(tmp_path):
    """The broken twin."""
    lies = [backdoor(9, lambda number: number == STRIKE)]
    outcome = federation_with(tmp_path, lies, honest=8, rounds=STRIKE + 1, guard="none", most_records=40.0)
    assert opened(outcome)[-1] > 0.8, opened(outcome)


@pytest.mark.stress
@pytest.mark.parametrize(("honest", "liars"), SIZES, ids=NAMES)
def test_a_backdoor_pushed_in_every_round_leaves_the_digits_alone(tmp_path, honest, liars):
    """What remains: where honest records say nothing, noise leaves room, and liars fill it round by round.

    The threat model says so. A corner of these images is such a place: it is always empty.
    """
    lies = [backdoor(honest + liars, lambda number: number >= 2) for _ in range(liars)]
    outcome = federation_with(tmp_path, lies, honest=honest, rounds=8)
    print(f"\n{liars} of {honest + liars}, record, backdoor always: {opened(outcome)}, {told(outcome)}")  # noqa: T201
    assert Digits.load().accuracy(outcome.final) > 0.4, told(outcome)
    assert opened(outcome)[3] < 0.5, opened(outcome)
