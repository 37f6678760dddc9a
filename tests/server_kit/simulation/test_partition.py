"""Every partition rule keeps one contract; each also deals what it promises."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server_kit.errors import InvalidSetting
from server_kit.simulation.datasets import Dataset, LabelCounts, count_labels
from server_kit.simulation.partition import (
    ClassesPerDevice,
    Dirichlet,
    DrawnSizes,
    Equal,
    GivenLabelCounts,
    GivenSizes,
    Iid,
    LabelPermutationGroups,
    LogNormal,
    MajorityMix,
    NaturalUsers,
    Partition,
    PowerLaw,
    RotationGroups,
)
from server_kit.simulation.partition.apportion import apportion
from server_kit.simulation.ragged import Ragged

CLASSES = 10


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def squares(count: int = 3000, classes: int = CLASSES) -> Dataset:
    """Samples that know their own number, of classes that differ in size."""
    y = np.sort(rng(1).integers(0, classes, count))
    x = np.arange(count, dtype=np.float32)[:, None, None] * np.ones((2, 2), np.float32)
    users = rng(2).integers(0, 40, count)
    return Dataset(x, y, users=users, populations=users % 3, num_classes=classes)


DATA = squares()
USERS = rng(2).integers(0, 40, len(DATA))
DEALT_BY_LABEL = [
    ClassesPerDevice(2),
    ClassesPerDevice(3, choice="random"),
    Dirichlet(0.1),
    Dirichlet(100.0),
    MajorityMix(),
    MajorityMix((0.7, 0.1, 0.1, 0.1), LogNormal(0.5)),
]
ALL = [
    *DEALT_BY_LABEL,
    Iid(),
    Iid(PowerLaw(1.5)),
    RotationGroups(),
    RotationGroups((0, 45), ClassesPerDevice(2)),
    LabelPermutationGroups(3),
    LabelPermutationGroups(2, RotationGroups((0, 180), MajorityMix())),
]


def groups_of(partition: Partition) -> np.ndarray:
    assert partition.groups is not None
    return partition.groups


def counts_of(partition: Partition, dataset: Dataset = DATA) -> np.ndarray:
    return count_labels(partition.rows, dataset.y, dataset.num_classes)


def dealt_twice(partition: Partition) -> int:
    """How many samples more than one device has."""
    return int((np.bincount(partition.rows.values) > 1).sum())


def held_twice(partition: Partition) -> int:
    """How many samples some device holds more than once."""
    keys = partition.rows.owners * 10**7 + partition.rows.values
    return len(keys) - len(np.unique(keys))


@pytest.mark.parametrize("rule", ALL, ids=repr)
class TestEveryRule:
    def test_no_sample_is_dealt_twice_and_nobody_goes_empty(self, rule):
        partition = rule.assign(DATA, 37, rng())
        assert len(partition) == 37
        assert partition.rows.sizes.min() >= 1
        assert dealt_twice(partition) == 0
        assert held_twice(partition) == 0

    def test_the_generator_decides(self, rule):
        first, again, other = (rule.assign(DATA, 20, rng(seed)) for seed in (5, 5, 6))
        np.testing.assert_array_equal(first.rows.values, again.rows.values)
        np.testing.assert_array_equal(first.rows.offsets, again.rows.offsets)
        assert first.transforms == again.transforms
        assert not np.array_equal(first.rows.values, other.rows.values[: len(first.rows.values)])

    def test_more_devices_than_samples_still_get_one_each(self, rule):
        partition = rule.assign(squares(200), 500, rng())
        assert partition.rows.sizes.min() >= 1
        assert held_twice(partition) == 0

    def test_without_devices_there_is_nothing_to_deal(self, rule):
        with pytest.raises(InvalidSetting, match="num_devices"):
            rule.assign(DATA, 0, rng())

    def test_overlapping_samples_are_not_dealt_one_by_one(self, rule):
        blocks = replace(DATA, blocks=np.arange(len(DATA)) // 10)
        with pytest.raises(InvalidSetting, match="overlap"):
            rule.assign(blocks, 5, rng())


def test_a_rule_that_deals_with_replacement_is_caught():
    partition = DealsWithReplacement().assign(DATA, 37, rng())
    assert dealt_twice(partition) > 0
    assert held_twice(partition) > 0


@dataclass(frozen=True)
class DealsWithReplacement:
    def assign(self, dataset: Dataset, num_devices: int, generator: np.random.Generator) -> Partition:
        each = len(dataset) // num_devices
        rows = generator.integers(0, len(dataset), num_devices * each)
        return Partition(Ragged.of_sizes(rows, np.full(num_devices, each)))


class TestIid:
    @given(devices=st.integers(1, 60), seed=st.integers(0, 3))
    @settings(max_examples=30)
    def test_all_samples_are_dealt(self, devices, seed):
        partition = Iid().assign(DATA, devices, rng(seed))
        assert sorted(partition.rows.values) == list(range(len(DATA)))
        assert np.ptp(partition.rows.sizes) <= 1

    def test_there_is_one_group_and_one_mix_of_labels(self):
        partition = Iid().assign(DATA, 10, rng())
        assert set(groups_of(partition)) == {0}
        shares = counts_of(partition) / partition.rows.sizes[:, None]
        np.testing.assert_allclose(shares, np.tile(DATA.class_counts / len(DATA), (10, 1)), atol=0.08)


class TestReuse:
    """When more is asked for than there is, samples come again only after all have come once."""

    @given(mean=st.integers(1, 40), devices=st.integers(1, 120), seed=st.integers(0, 5))
    @settings(max_examples=60)
    def test_a_device_never_holds_a_sample_twice(self, mean, devices, seed):
        small = squares(50)
        partition = Iid(Equal(mean)).assign(small, devices, rng(seed))
        assert partition.rows.sizes.tolist() == [mean] * devices
        assert held_twice(partition) == 0
        uses = np.bincount(partition.rows.values, minlength=50)
        assert uses.max() - uses.min() <= 1

    def test_a_class_that_is_too_small_for_one_device_is_named(self):
        with pytest.raises(InvalidSetting, match="different samples of class"):
            ClassesPerDevice(1, Equal(400)).assign(squares(1000), 10, rng())


class TestClassesPerDevice:
    @given(
        classes=st.integers(1, CLASSES),
        devices=st.integers(1, 60),
        choice=st.sampled_from(["neighbouring", "random"]),
        seed=st.integers(0, 5),
    )
    @settings(max_examples=40)
    def test_every_device_has_exactly_that_many_in_equal_numbers(self, classes, devices, choice, seed):
        partition = ClassesPerDevice(classes, LogNormal(1.0), choice).assign(DATA, devices, rng(seed))
        counts = counts_of(partition)
        assert ((counts > 0).sum(axis=1) == classes).all()
        spread = np.where(counts > 0, counts, -1).max(axis=1) - np.where(counts > 0, counts, 10**6).min(axis=1)
        assert spread.max() <= 1

    def test_groups_are_sets_of_classes(self):
        for choice in ("neighbouring", "random"):
            partition = ClassesPerDevice(2, choice=choice).assign(DATA, 50, rng())
            sets = [tuple(np.flatnonzero(row)) for row in counts_of(partition)]
            assert (
                len({*zip(sets, groups_of(partition), strict=True)}) == len(set(sets)) == len(set(groups_of(partition)))
            )

    def test_neighbouring_sets_cover_all_classes_evenly(self):
        partition = ClassesPerDevice(2).assign(DATA, 50, rng())
        assert np.bincount(groups_of(partition)).tolist() == [5] * 10

    def test_classes_without_samples_are_left_out(self):
        sparse = Dataset(DATA.x, np.where(DATA.y == 4, 5, DATA.y), num_classes=12)
        partition = ClassesPerDevice(2).assign(sparse, 30, rng())
        counts = counts_of(partition, sparse)
        assert ((counts > 0).sum(axis=1) == 2).all()
        assert not counts[:, [4, 10, 11]].any()

    @pytest.mark.parametrize("classes", [0, 11])
    def test_an_impossible_number_of_classes_is_refused(self, classes):
        with pytest.raises(InvalidSetting, match="labels"):
            ClassesPerDevice(classes).assign(DATA, 5, rng())


class TestDirichlet:
    def test_a_tiny_alpha_gives_one_label_each(self):
        counts = counts_of(Dirichlet(1e-6).assign(DATA, 40, rng()))
        assert ((counts > 0).sum(axis=1) == 1).all()
        assert len(set(counts.argmax(axis=1))) > 5

    def test_a_huge_alpha_gives_everyone_the_mix_of_the_data(self):
        lopsided = Dataset(DATA.x, np.where(DATA.y < 6, 0, DATA.y), num_classes=CLASSES)
        partition = Dirichlet(1e7).assign(lopsided, 20, rng())
        shares = counts_of(partition, lopsided) / partition.rows.sizes[:, None]
        np.testing.assert_allclose(shares, np.tile(lopsided.class_counts / len(DATA), (20, 1)), atol=0.02)
        assert len(partition.rows.values) > 0.9 * len(DATA)

    def test_skew_falls_with_alpha(self):
        def largest_share(alpha: float) -> float:
            partition = Dirichlet(alpha, Equal(50)).assign(DATA, 60, rng())
            return float((counts_of(partition).max(axis=1) / 50).mean())

        assert largest_share(0.05) > largest_share(0.5) > largest_share(5) > largest_share(500)

    def test_nobody_claims_to_know_groups(self):
        assert Dirichlet(0.5).assign(DATA, 5, rng()).groups is None

    @pytest.mark.parametrize("alpha", [0, -1, float("inf"), float("nan")])
    def test_a_senseless_alpha_is_refused(self, alpha):
        with pytest.raises(InvalidSetting, match="alpha"):
            Dirichlet(alpha)


class TestMajorityMix:
    @pytest.mark.parametrize("shares", [(0.75, 0.12, 0.07, 0.06), (0.7, 0.1, 0.1, 0.1)])
    def test_shares_are_kept_to_a_sample(self, shares):
        partition = MajorityMix(shares, Equal(60)).assign(DATA, 40, rng())
        counts = -np.sort(-counts_of(partition), axis=1)
        assert (counts[:, len(shares) :] == 0).all()
        assert np.abs(counts[:, : len(shares)] - 60 * np.array(shares)).max() < 1

    def test_the_majority_is_the_group_and_groups_are_even(self):
        partition = MajorityMix().assign(DATA, 50, rng())
        np.testing.assert_array_equal(counts_of(partition).argmax(axis=1), groups_of(partition))
        assert np.bincount(groups_of(partition)).tolist() == [5] * 10

    def test_minorities_differ_between_devices_of_a_group(self):
        partition = MajorityMix().assign(DATA, 100, rng())
        of_first = counts_of(partition)[groups_of(partition) == 0] > 0
        assert len(np.unique(of_first, axis=0)) > 3

    @pytest.mark.parametrize("shares", [(), (0.5, 0.4), (1.2, -0.2)])
    def test_shares_must_add_up(self, shares):
        with pytest.raises(InvalidSetting, match="shares"):
            MajorityMix(shares)


class TestGroups:
    def test_rotation_groups_are_even_and_known(self):
        partition = RotationGroups((0, 90, 180, 270)).assign(DATA, 41, rng())
        assert sorted(np.bincount(groups_of(partition))) == [10, 10, 10, 11]
        for device in range(41):
            assert partition.transform(device).rotation_degrees == 90 * groups_of(partition)[device]

    def test_group_zero_keeps_its_labels_and_the_others_differ(self):
        partition = LabelPermutationGroups(4).assign(DATA, 20, rng())
        assert partition.transforms[0].is_identity
        assert len(set(partition.transforms)) == 4

    def test_groups_combine_with_those_of_the_base(self):
        partition = RotationGroups((0, 180), MajorityMix()).assign(DATA, 200, rng())
        majority = counts_of(partition).argmax(axis=1)
        turned = [partition.transform(device).rotation_degrees for device in range(200)]
        pairs = {*zip(majority, turned, strict=True)}
        assert (
            len({*zip(majority, turned, groups_of(partition), strict=True)})
            == len(pairs)
            == len(set(groups_of(partition)))
        )

    def test_both_kinds_of_group_stack(self):
        partition = LabelPermutationGroups(2, RotationGroups((0, 180))).assign(DATA, 40, rng())
        assert len(set(groups_of(partition))) == 4

    def test_groups_over_dirichlet_are_the_rotations(self):
        assert set(groups_of(RotationGroups((0, 90), Dirichlet(0.5)).assign(DATA, 9, rng()))) == {0, 1}

    @pytest.mark.parametrize("degrees", [(), (0, 360), (10, 10)])
    def test_equal_rotations_are_no_groups(self, degrees):
        with pytest.raises(InvalidSetting, match="angles"):
            RotationGroups(degrees)

    @pytest.mark.parametrize("groups", [0, 3])
    def test_there_are_only_so_many_permutations(self, groups):
        with pytest.raises(InvalidSetting, match="ways"):
            LabelPermutationGroups(groups).assign(squares(100, classes=2), 5, rng())

    def test_only_square_images_have_rotation_groups(self):
        flat = Dataset(DATA.x.reshape(len(DATA), -1), DATA.y)
        with pytest.raises(InvalidSetting, match="square"):
            RotationGroups().assign(flat, 4, rng())


class TestNaturalUsers:
    def test_every_device_is_one_user_with_all_its_samples_in_order(self):
        partition = NaturalUsers().assign(DATA, 40, rng())
        for device in range(40):
            np.testing.assert_array_equal(partition.rows[device], np.flatnonzero(np.equal(USERS, device)))
        np.testing.assert_array_equal(groups_of(partition), np.arange(40) % 3)

    def test_fewer_devices_are_a_random_choice_of_users(self):
        partition = NaturalUsers().assign(DATA, 7, rng())
        users = [set(USERS[partition.rows[device]]) for device in range(7)]
        assert all(len(one) == 1 for one in users)
        assert len(set.union(*users)) == 7

    def test_small_users_can_be_left_out(self):
        sizes = np.bincount(USERS)
        limit = int(np.median(sizes))
        partition = NaturalUsers(least_samples=limit).assign(DATA, int((sizes >= limit).sum()), rng())
        assert partition.rows.sizes.min() >= limit

    def test_more_devices_than_users_and_unknown_users_are_refused(self):
        with pytest.raises(InvalidSetting, match="40 users"):
            NaturalUsers().assign(DATA, 41, rng())
        with pytest.raises(InvalidSetting, match="who made"):
            NaturalUsers().assign(replace(DATA, users=None), 5, rng())


class TestGivenLabelCounts:
    def test_devices_have_exactly_these_labels(self):
        given_counts = rng(3).integers(1, 9, (25, CLASSES))
        partition = GivenLabelCounts(LabelCounts(given_counts)).assign(DATA, 20, rng())
        np.testing.assert_array_equal(counts_of(partition), given_counts[:20])

    def test_counts_of_other_labels_or_too_few_devices_are_refused(self):
        for counts, devices in ((np.ones((5, 3), int), 5), (np.ones((5, CLASSES), int), 6)):
            with pytest.raises(InvalidSetting, match="label counts has"):
                GivenLabelCounts(LabelCounts(counts)).assign(DATA, devices, rng())


class TestSizes:
    @pytest.mark.parametrize(
        "sizes", [Equal(50), LogNormal(1.0, 50), PowerLaw(2.5, 50), DrawnSizes(np.array([1, 10, 100]), 50)], ids=repr
    )
    def test_the_mean_is_what_was_asked_for(self, sizes):
        partition = Iid(sizes).assign(DATA, 100, rng())
        assert partition.rows.sizes.mean() == pytest.approx(50, abs=0.5)
        assert (np.ptp(partition.rows.sizes) == 0) == isinstance(sizes, Equal)

    @given(st.lists(st.integers(1, 60), min_size=1, max_size=40))
    @settings(max_examples=50)
    def test_given_sizes_are_exact(self, samples):
        partition = Iid(GivenSizes(tuple(samples))).assign(DATA, len(samples), rng())
        assert partition.rows.sizes.tolist() == samples

    def test_given_sizes_are_one_for_each_device(self):
        with pytest.raises(InvalidSetting, match="3 sizes were given for 4 devices"):
            Iid(GivenSizes((1, 2, 3))).assign(DATA, 4, rng())

    def test_a_heavier_tail_makes_a_larger_largest(self):
        largest = [Iid(LogNormal(sigma)).assign(DATA, 50, rng()).rows.sizes.max() for sigma in (0.1, 1.0, 2.0)]
        assert largest == sorted(largest)

    def test_the_least_is_kept(self):
        assert Iid(LogNormal(3.0, 30, least=5)).assign(DATA, 50, rng()).rows.sizes.min() >= 5

    @pytest.mark.parametrize("rule", DEALT_BY_LABEL, ids=repr)
    def test_without_a_mean_the_data_are_used_up_as_far_as_the_labels_allow(self, rule):
        partition = rule.assign(DATA, 30, rng())
        left = DATA.class_counts - counts_of(partition).sum(axis=0)
        # Some class is nearly used up: one sample more for each device would not fit.
        assert left.min() <= 30

    @pytest.mark.parametrize(
        "wrong",
        [
            lambda: Equal(0),
            lambda: Equal(10, least=0),
            lambda: LogNormal(-1),
            lambda: PowerLaw(0),
            lambda: GivenSizes(()),
            lambda: GivenSizes((3, 0)),
            lambda: DrawnSizes(np.array([0])),
        ],
    )
    def test_senseless_sizes_are_refused(self, wrong):
        with pytest.raises(InvalidSetting):
            wrong()


class TestApportion:
    @given(
        shares=st.lists(st.floats(0, 1).map(lambda value: round(value, 3)), min_size=1, max_size=12).filter(any),
        total=st.integers(0, 500),
        start=st.floats(0, 1, exclude_max=True),
    )
    def test_counts_add_up_and_stay_within_one_of_their_share(self, shares, total, start):
        row = np.array([shares])
        counts = apportion(row, np.array([total]), np.array([start]))[0]
        assert counts.sum() == total
        assert np.abs(counts - total * row[0] / row.sum()).max() < 1 + 1e-5
        assert not counts[row[0] == 0].any()

    def test_rounding_favours_nobody(self):
        counts = apportion(np.ones((6000, 3)), np.ones(6000, int), rng().random(6000))
        assert counts.sum(axis=0).min() > 1800
