"""DP-SGD is audited like any other mechanism, and under the terms that once left its low bits bare."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from privacy.accounting import epsilon_spent
from privacy.auditing import audit, built_in, extremes_of
from privacy.auditing import mechanisms as audited_mechanisms
from privacy.auditing.claims import Claim
from privacy.auditing.rules import Promise
from privacy.auditing.worlds import World, worlds_of
from privacy.budget import NeighbouringRelation, PrivacyCost, PrivacyUnit
from privacy.errors import InvalidTerms
from privacy.mechanisms.dp_sgd import DenseTrainingData, DpSgd
from privacy.randomness import NoiseSource, SeededSource

torch.set_num_threads(1)  # test workers share the cores

RELATIONS = list(NeighbouringRelation)
EXTREMES = extremes_of("dp_sgd")
BIASED = {"dense.weight": (3, 5), "dense.bias": (3,)}


def step(shapes, noise_multiplier, clip_norm=1, **terms) -> DpSgd:
    return DpSgd(shapes, 1, noise_multiplier, clip_norm, 1, 1, 1, **terms)


def sharpest(mechanism) -> list[World]:
    """The sharpest pair for NumPy, and the same for a float64 model."""
    worlds = worlds_of(mechanism)
    assert worlds[-1].name.endswith("float64")
    return [worlds[0], worlds[-1]]


@pytest.mark.parametrize("name", EXTREMES.mechanisms)
def test_dp_sgd_hides_its_records_under_extreme_terms(name):
    mechanism = EXTREMES.mechanisms[name]
    report = audit(mechanism, sharpest(mechanism), trials=1_500, seed=1)
    assert not report.exceeds_claim, str(report)


@pytest.mark.parametrize("relation", RELATIONS)
def test_dp_sgd_hides_its_records_in_every_built_in_world(relation):
    report = audit(built_in("dp_sgd", relation=relation), trials=600, seed=1)
    assert not report.exceeds_claim, str(report)


class ClaimsTwiceTheNoise(DpSgd):
    @property
    def cost(self):
        sampled = super().cost.sampled
        assert sampled is not None
        return PrivacyCost(PrivacyUnit.RECORD, self.relation, sampled=replace(sampled, noise_multiplier=Fraction(4)))


def test_half_the_noise_of_a_step_is_found_and_all_of_it_is_not():
    honest = step({"dense.weight": (4, 4)}, 2)
    twin = ClaimsTwiceTheNoise(honest.shapes, 1, 2, 1, 1, 1, 1)
    found, expected = (audit(each, worlds_of(each)[:1], trials=2_000, seed=1) for each in (twin, honest))
    assert found.exceeds_claim, str(found)
    assert 0.4 * expected.claimed_epsilon < expected.lower_bound <= expected.claimed_epsilon


def test_only_batches_of_all_records_are_held_to_a_gaussian():
    of_all, sampled = (DpSgd({"dense.weight": (4, 4)}, rate, 2, 1, 4, 1, 1) for rate in (1, Fraction(1, 2)))
    assert Claim.of(of_all, 1e-6) == Claim(Promise.GAUSSIAN, 2.0, 1e-6)
    assert Claim.of(of_all, 1e-6).epsilon <= epsilon_spent([of_all.cost], 1e-6)
    assert Claim.of(sampled, 1e-6).promise is Promise.APPROXIMATE


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("shapes", [{"dense.weight": (4, 4)}, BIASED], ids=str)
@pytest.mark.parametrize("clip_norm", [1, Fraction(3, 10)], ids=str)
def test_the_centres_are_what_would_be_released_without_noise(shapes, clip_norm, relation):
    mechanism = step(shapes, Fraction(1, 10**5), clip_norm, relation=relation)
    known = [world for world in worlds_of(mechanism) if world.centres is not None]
    assert {world.name.rpartition(", ")[2] for world in known} == {"NumPy float32", "torch float32", "torch float64"}
    for world in known:
        assert world.centres is not None
        for data, centre in zip((world.first, world.second), world.centres, strict=True):
            mechanism.check(data)
            released = mechanism.decode_steps(mechanism.answer(data, NoiseSource(SeededSource(1))).payload)
            assert np.abs(released - centre).max() <= 0.6
            assert np.linalg.norm(centre) <= 2**mechanism.grid_bits


@pytest.mark.parametrize("relation", RELATIONS)
def test_worlds_of_training_differ_by_one_record(relation):
    for world in worlds_of(built_in("dp_sgd", relation=relation)):
        sizes = [
            data.num_records if isinstance(data, DenseTrainingData) else len(data.inputs)
            for data in (world.first, world.second)
        ]
        assert sizes == ([0, 1] if relation is NeighbouringRelation.ADD_REMOVE else [1, 1])


def test_the_sums_of_several_steps_are_not_said_to_be_known():
    many = DpSgd({"dense.weight": (4, 4)}, Fraction(1, 2), 1, 1, 3, 1, 1)
    assert all(world.centres is None for world in worlds_of(many))


@pytest.mark.parametrize("shapes", [{"dense.weight": (4,)}, {"a.weight": (2, 2), "b.weight": (2, 2)}, {"scale": (3,)}])
def test_another_model_needs_worlds_of_its_own(shapes):
    with pytest.raises(InvalidTerms, match="one dense layer"):
        worlds_of(step(shapes, 1))


def test_without_torch_the_report_says_which_models_were_left_out(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    mechanism = built_in("dp_sgd")
    assert all("torch" not in world.name for world in worlds_of(mechanism))
    assert "torch is not installed" in audit(mechanism, trials=60, seed=0).left_out[0]


def test_terms_that_the_mechanism_refuses_are_named(monkeypatch):
    monkeypatch.setattr(audited_mechanisms, "_EXTREMES_OF_DP_SGD", ((8, 24), (8, 25)))
    extremes = extremes_of("dp_sgd")
    assert list(extremes.mechanisms) == ["dp_sgd 8, grid 24"]
    assert extremes.refused == ("noise multiplier 8, grid 25: it refuses such terms, so that nobody can ask for them",)
    assert extremes_of("label_histogram").mechanisms == {}
