"""A fleet is what its settings say, the same for the same seed, and cheap however many devices it has."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from server_kit.errors import InvalidSetting
from server_kit.simulation.availability import Diurnal, DropOut
from server_kit.simulation.changes import LabelFlip, Newcomers, Shift
from server_kit.simulation.datasets import Dataset, Digits, Synthetic
from server_kit.simulation.device_speeds import HaccsSpeeds
from server_kit.simulation.partition import (
    ClassesPerDevice,
    Dirichlet,
    Equal,
    Iid,
    LabelPermutationGroups,
    LastFraction,
    LogNormal,
    NaturalUsers,
    RotationGroups,
)
from server_kit.simulation.population import Population


@pytest.fixture(scope="module")
def digits():
    return Digits().load()


def fleet(digits, partition=None, num_devices=40, **settings) -> Population:
    return Population(digits, partition or RotationGroups(), num_devices, **settings)


def groups_of(population, round_number=0):
    groups = population.true_groups(round_number)
    assert groups is not None
    return groups


class TestSamples:
    def test_a_device_sees_its_own_samples_turned_as_its_group_is(self, digits):
        population = fleet(digits)
        for device in population.devices[:12]:
            rows = population.seen.rows["train"][int(device)]
            assert population.true_group(device) == groups_of(population)[int(device)]
            expected = np.rot90(digits.inputs(rows), groups_of(population)[int(device)], axes=(1, 2))
            seen = population.samples(device)
            np.testing.assert_array_equal(seen.x, expected)
            np.testing.assert_array_equal(seen.y, digits.y[rows])

    def test_train_and_test_make_up_the_device_and_never_meet(self, digits):
        population = fleet(digits, partition=Dirichlet(0.3, LogNormal()))
        train, test = population.seen.rows["train"], population.seen.rows["test"]
        assert not np.intersect1d(train.values, test.values).size
        np.testing.assert_array_equal(train.sizes + test.sizes, population.dealt.rows.sizes)
        assert population.num_samples("3") == len(train[3])
        assert population.num_samples("3", "test") == len(test[3])

    def test_kernels_are_fed_what_devices_see(self, digits):
        population = fleet(digits, label_flip=LabelFlip(0.2))
        for part in ("train", "test"):
            data = population.device_data(part)
            assert len(data) == 40
            for device in population.devices:
                samples = population.samples(device, part)
                rows = data.rows(device, np.arange(data.count(device)))
                np.testing.assert_array_equal(data.y[rows].numpy(), samples.y)
                np.testing.assert_allclose(data.x[rows].numpy() * np.float32(data.scale), samples.x)

    def test_label_counts_are_those_of_the_devices_own_labels(self, digits):
        population = fleet(digits, partition=LabelPermutationGroups(), label_flip=LabelFlip(0.5))
        counts = population.label_counts()
        for device in population.devices:
            np.testing.assert_array_equal(counts[int(device)], np.bincount(population.samples(device).y, minlength=10))

    def test_natural_users_are_devices(self):
        data = Synthetic(num_devices=12, most_samples=80).load()
        population = Population(data, NaturalUsers(), data.num_users, holdout=LastFraction(0.1))
        assert population.samples("5").x.shape[1] == 60
        assert population.true_groups() is None
        assert population.true_group("5") is None

    @pytest.mark.parametrize("device", ["40", "-1", "01", "", "x", "²"])
    def test_unknown_devices_are_refused(self, digits, device):
        with pytest.raises(InvalidSetting, match="no device"):
            fleet(digits).samples(device)


class TestCompactness:
    def test_without_transforms_nothing_is_copied(self, digits):
        population = fleet(digits, partition=ClassesPerDevice(2))
        assert population.seen.table.x is digits.x
        assert population.seen.located("train", 0) is population.seen.rows["train"]

    def test_with_transforms_each_sample_is_there_once_and_compact(self, digits):
        table = fleet(digits).seen.table
        assert len(table.x) == len(digits)
        assert table.x.dtype == np.uint8

    def test_shared_samples_are_turned_once_for_each_group(self, digits):
        population = fleet(digits, partition=RotationGroups(base=Iid(Equal(100))), num_devices=200)
        assert len(population.seen.table.x) <= 4 * len(digits)

    def test_nothing_is_dealt_before_it_is_asked_for(self, digits):
        class Untouchable:
            def assign(self, *arguments):
                raise AssertionError("dealt too early")

        population = fleet(digits, partition=Untouchable())
        assert population.latency_seconds("1", 0, bytes_down=1, bytes_up=1, steps=1) > 0
        assert population.waiting(0.0)


class TestRepeatability:
    def test_the_seed_decides_everything(self, digits):
        settings = {
            "partition": Dirichlet(0.5),
            "speeds": HaccsSpeeds(),
            "availability": DropOut(0.5),
            "label_flip": LabelFlip(0.3),
            "newcomers": (Newcomers(0.5, 3),),
        }

        def facts(seed: int) -> list:
            population = fleet(digits, seed=seed, **settings)
            return [
                population.seen.rows["train"].values.tolist(),
                population.latency_seconds("7", 3, bytes_down=1e6, bytes_up=1e6, steps=5),
                population.waiting(1e4, 9),
                population.attackers.tolist(),
                population.joins_at_round.tolist(),
            ]

        assert facts(4) == facts(4)
        assert all(one != two for one, two in zip(facts(4), facts(5), strict=True))

    def test_one_setting_leaves_the_draws_of_the_others_alone(self, digits):
        plain = fleet(digits, speeds=HaccsSpeeds())
        busy = fleet(digits, speeds=HaccsSpeeds(), label_flip=LabelFlip(0.3), shifts=(Shift(0.5, 2, 90),))
        np.testing.assert_array_equal(plain.dealt.rows.values, busy.dealt.rows.values)
        np.testing.assert_array_equal(plain.latency.compute_factors, busy.latency.compute_factors)


class TestShifts:
    def test_data_change_in_that_round_and_only_for_that_share(self, digits):
        population = fleet(digits, partition=Iid(), shifts=(Shift(0.25, at_round=5, rotation_degrees=90),))
        changed = 0
        for device in population.devices:
            before, until, after = (population.samples(device, round_number=r) for r in (0, 4, 5))
            np.testing.assert_array_equal(before.x, until.x)
            turned = np.array_equal(after.x, np.rot90(before.x, axes=(1, 2)))
            assert turned or np.array_equal(after.x, before.x)
            changed += turned
        assert changed == 10
        assert population.device_data(round_number=3) is population.device_data(round_number=4)
        assert population.device_data(round_number=5) is not population.device_data(round_number=4)

    def test_tests_shift_with_the_world(self, digits):
        population = fleet(digits, partition=Iid(), shifts=(Shift(1.0, at_round=2, label_shift=3),))
        before, after = (population.samples("0", "test", r).y for r in (1, 2))
        np.testing.assert_array_equal(after, (before + 3) % 10)

    def test_a_device_that_turns_joins_the_group_that_was_turned_already(self, digits):
        population = fleet(digits, partition=RotationGroups((0, 90)), shifts=(Shift(1.0, 3, rotation_degrees=90),))
        before, after = groups_of(population, 0), groups_of(population, 3)
        joined = after[before == 0]
        assert set(joined) == {1}
        assert set(after[before == 1]) == {2}  # nobody was turned by 180° before

    def test_shifts_follow_each_other(self, digits):
        twice = (Shift(1.0, 2, rotation_degrees=90), Shift(1.0, 4, rotation_degrees=270))
        population = fleet(digits, partition=Iid(), shifts=twice)
        first, second, third = (population.samples("0", round_number=r).x for r in (0, 2, 4))
        assert not np.array_equal(first, second)
        np.testing.assert_array_equal(first, third)
        np.testing.assert_array_equal(population.true_groups(0), population.true_groups(4))


class TestAttackers:
    @pytest.mark.parametrize(("rule", "wrong"), [("next", lambda y: (y + 1) % 10), ("pairs", lambda y: y ^ 1)])
    def test_they_train_on_wrong_labels_and_are_tested_on_right_ones(self, digits, rule, wrong):
        population = fleet(digits, partition=Iid(), label_flip=LabelFlip(0.15, rule))
        assert population.attackers.sum() == 6
        for device in population.devices:
            train, test = (population.seen.rows[part][int(device)] for part in ("train", "test"))
            truth = digits.y[train]
            claimed = wrong(truth) if population.attackers[int(device)] else truth
            np.testing.assert_array_equal(population.samples(device).y, claimed)
            np.testing.assert_array_equal(population.samples(device, "test").y, digits.y[test])

    def test_lying_does_not_change_the_true_group(self, digits):
        np.testing.assert_array_equal(
            fleet(digits).true_groups(), fleet(digits, label_flip=LabelFlip(0.5)).true_groups()
        )


class TestComingAndGoing:
    def test_newcomers_are_not_there_before_their_round(self, digits):
        population = fleet(digits, newcomers=(Newcomers(0.25, at_round=7),))
        assert len(population.waiting(0.0, 6)) == 30
        assert population.waiting(0.0, 7) == list(population.devices)

    def test_who_waits_has_joined_and_is_available(self, digits):
        population = fleet(digits, availability=Diurnal(), newcomers=(Newcomers(0.5, 3),))
        time = 2 * 3600.0
        expected = [
            device
            for device in population.devices
            if population.available(device, time) and population.joins_at_round[int(device)] <= 1
        ]
        assert population.waiting(time, 1) == expected
        assert 0 < len(expected) < 40

    def test_affinity_is_lost_at_its_rate(self, digits):
        population = fleet(digits, affinity_loss=0.2)
        lost = [population.loses_affinity(device, r) for device in population.devices for r in range(50)]
        assert np.mean(lost) == pytest.approx(0.2, abs=0.03)
        assert not any(fleet(digits).loses_affinity(device, 3) for device in population.devices)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Population(Dataset(np.zeros((3, 2), np.float32), np.arange(3)), Iid(), 0),
        lambda: Population(Dataset(np.zeros((3, 2), np.float32), np.arange(3)), Iid(), 2, affinity_loss=2),
        lambda: Newcomers(1.1, 3),
        lambda: Newcomers(0.1, -1),
        lambda: Shift(0.5, 3),
        lambda: Shift(-0.5, 3, 90),
        lambda: LabelFlip(0.1, "sideways"),  # type: ignore[arg-type]
    ],
)
def test_senseless_settings_are_refused(wrong):
    with pytest.raises(InvalidSetting):
        wrong()


def test_images_that_are_none_cannot_shift_by_turning():
    data = Synthetic(num_devices=3, most_samples=60).load()
    population = Population(data, NaturalUsers(), 3, shifts=(Shift(1.0, 0, rotation_degrees=90),))
    with pytest.raises(InvalidSetting, match="square"):
        population.samples("0")


def test_a_hundred_thousand_devices_fit_into_little_memory(digits):
    """Half of this limit would hold the row numbers alone as Python lists; CSR arrays take a fraction of it."""
    tracemalloc.start()
    try:
        population = fleet(
            digits,
            partition=RotationGroups(base=ClassesPerDevice(2, LogNormal(0.3, 20))),
            num_devices=100_000,
            speeds=HaccsSpeeds(),
            availability=Diurnal(),
            label_flip=LabelFlip(0.1),
        )
        assert population.seen.located("train", 0).sizes.min() >= 1
        assert len(population.waiting(0.0)) > 50_000
        assert (population.latency.seconds(np.arange(100_000), 1, bytes_down=1e5, bytes_up=1e5, steps=5) > 0).all()
        assert len(np.unique(groups_of(population))) == 40
        assert tracemalloc.get_traced_memory()[1] < 300e6
    finally:
        tracemalloc.stop()
