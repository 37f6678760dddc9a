"""Records that no step visits are left out, and nothing else changes."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from server_kit.simulation.training import DeviceData, LocalTask
from server_kit.simulation.training.batches import stack
from server_kit.simulation.training.streams import Draw
from server_kit.simulation.training.visited import visited


def poisson_batches(counts: list[int], seed: int):
    total = sum(counts)
    rows = {f"d{i}": range(sum(counts[:i]), sum(counts[: i + 1])) for i in range(len(counts))}
    data = DeviceData(torch.zeros(total, 1), torch.zeros(total, dtype=torch.int64), rows)
    task = LocalTask(0.1, batch_size=3, clip_norm=1.0, sampling="poisson")
    return stack(list(rows), [Draw(seed, device, 0) for device in rows], data, task)


sizes = st.lists(st.integers(1, 30), min_size=1, max_size=4).map(lambda own: sorted(own, reverse=True))


@given(sizes, st.integers(0, 2**30))
def test_every_visit_meets_the_record_that_it_met_before(counts, seed):
    batches = poisson_batches(counts, seed)
    found = visited(batches)
    flat = found.batches.places.transpose(0, 1).flatten(1)
    met = found.numbers.gather(1, flat).view(len(counts), *batches.places.shape[::2]).transpose(0, 1)
    present = batches.weights > 0
    assert torch.equal(met[present], batches.places[present])


@given(sizes, st.integers(0, 2**30))
def test_what_is_left_is_what_is_visited_once_each_and_in_order(counts, seed):
    batches = poisson_batches(counts, seed)
    found = visited(batches)
    for i, count in enumerate(found.counts):
        own = batches.places[:, i][batches.weights[:, i] > 0].unique()
        assert found.numbers[i, :count].tolist() == own.tolist()
        assert (found.batches.places[:, i] < max(1, count)).all()
