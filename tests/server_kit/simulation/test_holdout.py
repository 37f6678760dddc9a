"""What is tested on is never trained on, by no device, however samples are shared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server_kit.errors import InvalidSetting
from server_kit.simulation.datasets import Dataset
from server_kit.simulation.partition import (
    ClassesPerDevice,
    Dirichlet,
    Equal,
    GivenSizes,
    GivenSplit,
    Iid,
    LastFraction,
    LogNormal,
    NaturalUsers,
    WholeBlocks,
)
from server_kit.simulation.ragged import Ragged


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def data(count: int = 600) -> Dataset:
    number = np.arange(count)
    # 20 users with 30 samples each, in recordings of 10.
    return Dataset(
        number[:, None].astype(np.float32), number % 5, users=number // 30, split=(number % 6 == 0).astype(np.int64)
    )


DATA = data()
BLOCKS = np.arange(600) // 10
RECORDINGS = replace(DATA, blocks=BLOCKS, split=None)


def leaked(rows: Ragged, tested: np.ndarray, kind: np.ndarray) -> int:
    """How many kinds (samples, or blocks of samples) are both trained and tested on, by whomever."""
    return len(np.intersect1d(kind[rows.values[tested]], kind[rows.values[~tested]]))


def naive_last_fraction(rows: Ragged, fraction: float) -> np.ndarray:
    place = np.arange(len(rows.values)) - np.repeat(rows.offsets[:-1], rows.sizes)
    return place >= np.repeat(np.ceil(rows.sizes * (1 - fraction)), rows.sizes)


class TestLastFraction:
    def test_it_is_the_last_ones_in_the_right_number(self):
        partition = NaturalUsers().assign(DATA, 20, rng())
        tested = LastFraction(0.2).test_mask(DATA, partition, rng())
        assert tested.reshape(20, 30).tolist() == [[False] * 24 + [True] * 6] * 20

    def test_dealt_samples_come_in_no_order_so_that_tests_have_the_labels_of_the_rest(self):
        partition = ClassesPerDevice(2, Equal(40)).assign(DATA, 10, rng())
        tested = LastFraction(0.5).test_mask(DATA, partition, rng())
        test = partition.rows.where(tested)
        assert all(len(set(DATA.y[test[device]])) == 2 for device in range(10))

    @given(sizes=st.lists(st.integers(1, 25), min_size=1, max_size=20), fraction=st.floats(0, 0.99))
    @settings(max_examples=60)
    def test_every_device_keeps_one_to_train_on_and_tests_if_it_has_two(self, sizes, fraction):
        partition = Iid(GivenSizes(tuple(sizes))).assign(DATA, len(sizes), rng())
        tested = LastFraction(fraction).test_mask(DATA, partition, rng())
        for device, size in enumerate(sizes):
            number = int(tested[partition.rows.offsets[device] : partition.rows.offsets[device + 1]].sum())
            assert number <= size - 1
            assert (number >= 1) == (size > 1 and fraction > 0)

    @given(devices=st.integers(1, 300), mean=st.integers(1, 12), seed=st.integers(0, 9))
    @settings(max_examples=40)
    def test_shared_samples_are_tested_by_all_or_by_none(self, devices, mean, seed):
        few = data(60)
        partition = Iid(Equal(mean)).assign(few, devices, rng(seed))
        tested = LastFraction(0.3).test_mask(few, partition, rng(seed))
        assert leaked(partition.rows, tested, np.arange(60)) == 0
        assert partition.rows.where(~tested).sizes.min() >= 1

    def test_about_the_fraction_of_shared_samples_is_tested(self):
        partition = Dirichlet(1.0, LogNormal(0.5, 20)).assign(DATA, 500, rng())
        assert LastFraction(0.2).test_mask(DATA, partition, rng()).mean() == pytest.approx(0.2, abs=0.03)

    def test_cutting_each_device_by_itself_is_caught_when_samples_are_shared(self):
        partition = Iid(Equal(10)).assign(DATA, 300, rng())
        assert leaked(partition.rows, naive_last_fraction(partition.rows, 0.3), np.arange(600)) > 0

    def test_overlapping_windows_are_not_cut(self):
        partition = NaturalUsers().assign(RECORDINGS, 20, rng())
        with pytest.raises(InvalidSetting, match="WholeBlocks"):
            LastFraction().test_mask(RECORDINGS, partition, rng())

    @pytest.mark.parametrize("fraction", [-0.1, 1, float("nan")])
    def test_a_senseless_fraction_is_refused(self, fraction):
        for holdout in (LastFraction, WholeBlocks):
            with pytest.raises(InvalidSetting, match="fraction"):
                holdout(fraction)


class TestWholeBlocks:
    def test_a_block_is_trained_on_or_tested_on_never_both(self):
        partition = NaturalUsers().assign(RECORDINGS, 20, rng())
        tested = WholeBlocks(0.34).test_mask(RECORDINGS, partition, rng())
        assert leaked(partition.rows, tested, BLOCKS) == 0
        assert tested.reshape(20, 30).tolist() == [[False] * 20 + [True] * 10] * 20

    def test_a_cut_through_a_block_is_caught(self):
        partition = NaturalUsers().assign(RECORDINGS, 20, rng())
        assert leaked(partition.rows, naive_last_fraction(partition.rows, 0.2), BLOCKS) > 0

    def test_whoever_has_a_single_block_trains_on_it(self):
        single = replace(RECORDINGS, blocks=np.arange(600) // 30)
        partition = NaturalUsers().assign(single, 20, rng())
        assert not WholeBlocks(0.5).test_mask(single, partition, rng()).any()

    def test_blocks_that_several_devices_share_are_refused(self):
        shared = replace(RECORDINGS, blocks=np.arange(600) // 60)
        partition = NaturalUsers().assign(shared, 20, rng())
        with pytest.raises(InvalidSetting, match="several devices"):
            WholeBlocks().test_mask(shared, partition, rng())

    def test_without_blocks_there_are_none_to_hold_out(self):
        with pytest.raises(InvalidSetting, match="no blocks"):
            WholeBlocks().test_mask(DATA, NaturalUsers().assign(DATA, 5, rng()), rng())


class TestGivenSplit:
    def test_it_is_the_split_of_the_data(self):
        partition = NaturalUsers().assign(DATA, 20, rng())
        tested = GivenSplit().test_mask(DATA, partition, rng())
        np.testing.assert_array_equal(tested, partition.rows.values % 6 == 0)

    def test_a_device_that_could_not_train_is_refused(self):
        by_user = replace(DATA, split=(np.arange(600) // 30 == 3).astype(np.int64))
        with pytest.raises(InvalidSetting, match="only test samples"):
            GivenSplit().test_mask(by_user, NaturalUsers().assign(by_user, 20, rng()), rng())

    def test_without_a_split_there_is_none(self):
        with pytest.raises(InvalidSetting, match="without a split"):
            GivenSplit().test_mask(RECORDINGS, NaturalUsers().assign(RECORDINGS, 5, rng()), rng())
