"""What a device does depends on its records and its draw, never on who else takes part or how they are grouped."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from server_kit.simulation.training import DeviceData, LocalTask, Trainer
from tests.server_kit.simulation.training.fleet import SEED, SPECS, by_kernel, fleet

TASKS = {
    "plain": LocalTask(0.1, batch_size=4, epochs=2),
    "noised": LocalTask(0.1, batch_size=4, clip_norm=0.5, noise_multiplier=1.0),
    "noised epochs": LocalTask(0.1, batch_size=4, epochs=3, clip_norm=0.5, noise_multiplier=1.0),
    "noised halves": LocalTask(0.1, batch_size=4, clip_norm=0.5, noise_multiplier=1.0, halves=True, momentum=0.5),
    "Poisson": LocalTask(0.1, batch_size=4, clip_norm=0.5, noise_multiplier=1.0, sampling="poisson"),
    "Poisson epochs": LocalTask(0.1, batch_size=4, epochs=2, clip_norm=0.5, noise_multiplier=1.0, sampling="poisson"),
}


@pytest.mark.parametrize("row_space", [False, True])
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_device_does_the_same_alone_and_in_company(task, row_space):
    spec = SPECS["mlp"]
    data = fleet(spec)
    together = by_kernel(spec, data, ["d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7"], task, row_space=row_space)
    for device, update in zip(together.devices, together.updates, strict=True):
        by_itself = by_kernel(spec, data, [device], task, row_space=row_space)
        torch.testing.assert_close(update, by_itself.updates[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("spec_name", ["mlp", "cnn"])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("devices_per_chunk", [1, 3, None])
def test_chunks_and_threads_change_nothing(spec_name, workers, devices_per_chunk):
    spec, task = SPECS[spec_name], TASKS["noised"]
    data = fleet(spec)

    def trained(**settings):
        with Trainer(spec, **settings) as trainer:
            return trainer.train(spec.initial(1), data, list(data), task, seed=SEED).updates

    reference = trained(workers=1, devices_per_chunk=len(data))
    found = trained(workers=workers, devices_per_chunk=devices_per_chunk)
    torch.testing.assert_close(found, reference, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("change", [{"seed": SEED + 1}, {"round_number": 1}])
def test_another_seed_or_round_draws_other_batches(change):
    spec, data = SPECS["mlp"], fleet(SPECS["mlp"])
    with Trainer(spec, workers=1) as trainer:
        settings: dict[str, Any] = {"seed": SEED, "round_number": 0}
        first = trainer.train(spec.initial(1), data, ["d0"], TASKS["plain"], **settings)
        again = trainer.train(spec.initial(1), data, ["d0"], TASKS["plain"], **settings)
        other = trainer.train(spec.initial(1), data, ["d0"], TASKS["plain"], **settings | change)
    assert torch.equal(first.updates, again.updates)
    assert not torch.allclose(first.updates, other.updates, rtol=1e-3)


@pytest.mark.parametrize("row_space", [False, True])
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_what_is_not_a_number_stays_with_its_device(task, row_space):
    spec = SPECS["mlp"]
    data = fleet(spec)
    devices = ["d0", "d1", "d3", "d5", "d7"]
    sound = by_kernel(spec, data, devices, task, row_space=row_space)
    x = data.x.clone()
    x[data.rows("d1", torch.arange(13).numpy())] = torch.nan
    sick = by_kernel(
        spec, DeviceData(x, data.y, {d: data.rows(d, torch.arange(data.count(d)).numpy()) for d in data}),
        devices, task, row_space=row_space,
    )  # fmt: skip
    for device, before, after in zip(sound.devices, sound.updates, sick.updates, strict=True):
        if device == "d1":
            assert after.isnan().any()
        else:
            torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-6)


def test_a_convolution_keeps_what_is_not_a_number_with_its_device():
    spec, task = SPECS["cnn"], LocalTask(0.1, batch_size=4)
    data = fleet(spec)
    sound = by_kernel(spec, data, ["d0", "d1", "d2"], task, row_space=False)
    data.x[13:26] = torch.nan
    sick = by_kernel(spec, data, ["d0", "d1", "d2"], task, row_space=False)
    assert sick.updates[sick.devices.index("d1")].isnan().any()
    for device in ("d0", "d2"):
        place = sick.devices.index(device)
        torch.testing.assert_close(sick.updates[place], sound.updates[place])
    # The memory that held it is used again, and must not remember it.
    again = by_kernel(spec, data, ["d0", "d2"], task, row_space=False)
    assert again.updates.isfinite().all()
