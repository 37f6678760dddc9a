"""The same seed gives the same bits, and a run that was put away and taken up again never knows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from server_kit.presets import PRESETS
from server_kit.simulation.availability import DropOut
from server_kit.simulation.device_speeds import FactorSpeeds
from tests.server_kit.engine.test_invariants import EAGER, TOGETHER
from tests.server_kit.engine.worlds import people, run, same, small, world


def lively(seed: int = 0) -> Any:
    """Devices of all speeds that come and go."""
    return people(devices=10, seed=seed, speeds=FactorSpeeds(), availability=DropOut(0.2, 0.5), affinity_loss=0.1)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_two_runs_with_the_same_seed_are_equal_bit_for_bit(name):
    first, second = (run(name, lively(), small(2), seed=5, overrides=EAGER.get(name)) for _ in range(2))
    assert same(first, second)


def test_another_seed_is_another_run():
    assert not same(run("fedavg", lively(), small(3), seed=5), run("fedavg", lively(), small(3), seed=6))


@pytest.mark.parametrize("name", TOGETHER)
def test_a_run_continued_from_a_copy_of_its_state_equals_one_that_was_never_interrupted(name):
    settings = small(5)
    with world(name, lively(), settings, overrides=EAGER.get(name)) as through:
        through.go_on(12)
        photograph = through.photograph()
        through.go_on()
        with world(name, lively(), settings, overrides=EAGER.get(name), begun=False) as resumed:
            resumed.restore(photograph)
            resumed.go_on()
            assert same(resumed.photograph(), through.photograph())


@pytest.mark.parametrize("forgotten", ["records", "participations", "views", "aggregation"])
def test_the_comparison_catches_state_that_was_not_kept(forgotten):
    population, overrides = people(devices=6, speeds=FactorSpeeds(), newcomers=()), EAGER["auxo"]
    with world("auxo", population, small(6, 6), overrides=overrides) as through:
        through.go_on(20)
        photograph = through.photograph()
        through.go_on(10)
        with world("auxo", population, small(6, 6), overrides=overrides, begun=False) as resumed:
            resumed.restore(photograph)
            if forgotten == "aggregation":
                for cohort in resumed.state.cohorts.values():
                    cohort.aggregation.clear()
            else:
                part = resumed.state if hasattr(resumed.state, forgotten) else resumed.fleet
                getattr(part, forgotten).clear()
            resumed.go_on(10)
            assert not same(resumed.photograph(), through.photograph())


def test_same_means_the_same_bits():
    one = {"a": [torch.tensor([0.0, float("nan")])], "b": (1, float("nan"))}
    assert same(one, {"a": [torch.tensor([0.0, float("nan")])], "b": (1, float("nan"))})
    assert not same(one, {"a": [torch.tensor([-0.0, float("nan")])], "b": (1, float("nan"))})
    assert not same(one, {"b": (1, float("nan")), "a": [torch.tensor([0.0, float("nan")])]})
