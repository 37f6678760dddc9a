"""Batches: every record once an epoch, an order that follows from the draw alone, halves that never mix."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server_kit.simulation.training import LocalTask
from server_kit.simulation.training.batches import device_batches
from server_kit.simulation.training.streams import Draw

draws = st.builds(Draw, st.integers(0, 2**40), st.text(max_size=5), st.integers(0, 1000))


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 4), st.booleans(), draws)
def test_each_epoch_visits_every_record_once_in_full_batches_but_the_last(records, batch, epochs, halves, draw):
    table = device_batches(records, LocalTask(0.1, batch_size=batch, epochs=epochs, halves=halves), draw)
    per_epoch = math.ceil(records / batch)
    assert len(table) == epochs * per_epoch
    for epoch in table.reshape(epochs, per_epoch, -1):
        assert sorted(epoch[epoch >= 0]) == list(range(records))
        sizes = (epoch >= 0).sum(axis=1).tolist()
        assert sizes[:-1] == [min(batch, records)] * (per_epoch - 1)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 30), draws)
def test_a_number_of_steps_is_kept_and_begins_like_the_epochs(records, batch, steps, draw):
    table = device_batches(records, LocalTask(0.1, batch_size=batch, steps=steps), draw)
    assert len(table) == steps
    first = device_batches(records, LocalTask(0.1, batch_size=batch), draw)
    together = min(steps, len(first))
    assert np.array_equal(np.sort(table.ravel()[: together * table.shape[1]]), np.sort(first[:together].ravel()))


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 4), draws)
def test_halves_never_share_a_record_and_leave_the_first_epoch_alone(records, batch, epochs, draw):
    table = device_batches(records, LocalTask(0.1, batch_size=batch, epochs=epochs, halves=True), draw)
    per_epoch = math.ceil(records / batch)
    grid = table.reshape(epochs, per_epoch, -1)
    first, second = ({int(r) for r in grid[:, half::2].ravel() if r >= 0} for half in (0, 1))
    assert not first & second
    plain = device_batches(records, LocalTask(0.1, batch_size=batch, epochs=epochs), draw).reshape(grid.shape)
    assert np.array_equal(np.sort(grid[0], axis=None), np.sort(plain[0], axis=None))


def test_plain_shuffles_do_mix_the_halves():
    grid = device_batches(40, LocalTask(0.1, batch_size=10, epochs=5), Draw(1, "d", 0)).reshape(5, 4, 10)
    first, second = ({*grid[:, half::2].ravel().tolist()} for half in (0, 1))
    assert first & second


@pytest.mark.parametrize("other", [Draw(2, "d", 0), Draw(1, "e", 0), Draw(1, "d", 1)])
def test_seed_device_and_round_each_change_the_order(other):
    task = LocalTask(0.1, epochs=2)
    table = device_batches(60, task, Draw(1, "d", 0))
    assert np.array_equal(table, device_batches(60, task, Draw(1, "d", 0)))
    assert not np.array_equal(table, device_batches(60, task, other))


@pytest.mark.statistical
def test_every_place_in_the_order_is_equally_likely():
    first = [int(device_batches(5, LocalTask(0.1, batch_size=5), Draw(1, str(i), 0))[0, 0]) for i in range(5000)]
    counts = np.bincount(first, minlength=5)
    assert np.abs(counts - 1000).max() < 5 * math.sqrt(800)


@pytest.mark.statistical
def test_poisson_batches_take_each_record_at_the_declared_rate():
    task = LocalTask(0.1, batch_size=10, steps=2000, clip_norm=1.0, sampling="poisson")
    table = device_batches(40, task, Draw(1, "d", 0))
    sizes = (table >= 0).sum(axis=1)
    assert abs(sizes.mean() - 10) < 5 * math.sqrt(7.5 / 2000)
    assert abs(sizes.var() - 7.5) < 5 * 7.5 * math.sqrt(2 / 2000)
    taken = np.bincount(table[table >= 0], minlength=40) / 2000
    assert np.abs(taken - 0.25).max() < 5 * math.sqrt(0.25 * 0.75 / 2000)
    assert all(len(set(row[row >= 0].tolist())) == (row >= 0).sum() for row in table)


def test_poisson_batches_of_a_small_device_hold_all_its_records():
    task = LocalTask(0.1, batch_size=10, clip_norm=1.0, sampling="poisson")
    assert device_batches(4, task, Draw(1, "d", 0)).tolist() == [[0, 1, 2, 3]]
