"""Products of records are those of the records, whenever they were worked out and whoever asked."""

from __future__ import annotations

import pytest
import torch

from server_kit.simulation.training import DeviceData, LocalTask, Trainer, record_products
from tests.server_kit.simulation.training.fleet import SEED, SPECS, by_kernel, fleet

TASKS = {
    "single pass": LocalTask(0.1, batch_size=4),
    "epochs": LocalTask(0.1, batch_size=4, epochs=3),
    "noised": LocalTask(0.1, batch_size=4, clip_norm=0.5, noise_multiplier=1.0),
}


def products_of(data: DeviceData, devices: list[str], numbers: list[int]) -> torch.Tensor | None:
    places = torch.tensor([numbers] * len(devices))
    return data.products(devices, places, places, torch.empty(len(devices), len(numbers), len(numbers)))


def test_a_product_is_that_of_the_records_plus_one():
    data = fleet(SPECS["mlp"])
    devices, numbers = ["d7", "d0", "d3"], [2, 0, 8, 2]
    found = products_of(data, devices, numbers)
    assert found is not None
    for device, own in zip(devices, found, strict=True):
        records = data.x[torch.from_numpy(data.rows(device, torch.tensor(numbers).numpy()))].flatten(1)
        torch.testing.assert_close(own, records @ records.t() + 1)


def test_bytes_are_scaled_before_they_are_multiplied():
    x = torch.randint(0, 256, (6, 5), dtype=torch.uint8)
    data = DeviceData(x, torch.zeros(6, dtype=torch.int64), {"a": range(3), "b": [5, 4]}, scale=1 / 255)
    found = products_of(data, ["b"], [0, 1])
    records = x[[5, 4]].float() / 255
    assert found is not None
    torch.testing.assert_close(found[0], records @ records.t() + 1)


def test_what_is_kept_is_what_would_be_worked_out_anew():
    data, again = fleet(SPECS["mlp"]), fleet(SPECS["mlp"])
    products_of(data, ["d0", "d1"], [0, 1])
    kept, fresh = (products_of(each, ["d1", "d2", "d0"], [3, 1, 2]) for each in (data, again))
    assert kept is not None
    assert fresh is not None
    assert torch.equal(kept, fresh)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_fleet_too_large_to_keep_products_trains_the_same(task, monkeypatch):
    spec = SPECS["mlp"]
    devices = ["d0", "d1", "d3", "d4", "d6"]
    kept = by_kernel(spec, fleet(spec), devices, task, row_space=True)
    monkeypatch.setattr(record_products, "_MOST_BYTES", 0)
    large = fleet(spec)
    assert products_of(large, ["d0"], [0]) is None
    torch.testing.assert_close(by_kernel(spec, large, devices, task, row_space=True).updates, kept.updates)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_later_round_is_the_same_as_if_it_were_the_first(workers):
    """Bit for bit: a run that goes on from a checkpoint knows no products yet."""
    spec, task = SPECS["mlp"], TASKS["single pass"]
    with Trainer(spec, workers=workers, devices_per_chunk=2) as trainer:

        def updates(data: DeviceData, round_number: int) -> torch.Tensor:
            return trainer.train(spec.initial(1), data, list(data), task, seed=SEED, round_number=round_number).updates

        data = fleet(spec)
        updates(data, 0)
        assert torch.equal(updates(data, 1), updates(fleet(spec), 1))
