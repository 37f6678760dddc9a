"""The noise of simulated DP-SGD has the law it claims, drawn at each step or all at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from server_kit.simulation.training import DeviceData, LocalTask, LogisticRegression, Mlp
from server_kit.simulation.training.batches import stack
from server_kit.simulation.training.kernel import Chunk
from server_kit.simulation.training.noise import DeviceNoise, Noise, NoiseScratch
from server_kit.simulation.training.row_space_noise import Own, Rule, first_layer_noise, impulse_response
from server_kit.simulation.training.streams import Draw
from server_kit.simulation.training.targets import EachUpdate
from server_kit.simulation.training.workspace import Workspace
from tests.server_kit.simulation.training.fleet import by_kernel

INPUTS, OUTPUTS, RECORDS, COPIES = 3, 2, 5, 6000


def draws(count: int, key: bytes = b"k" * 32) -> np.ndarray:
    values = np.empty(count, dtype=np.float32)
    DeviceNoise(key).fill(values, 1.0, NoiseScratch())
    return values.astype(np.float64)


@pytest.mark.statistical
def test_draws_have_the_moments_and_quantiles_of_a_gaussian():
    values = draws(1_000_000)
    error = 1 / math.sqrt(len(values))
    assert abs(values.mean()) < 5 * error
    assert abs(values.var() - 1) < 5 * math.sqrt(2) * error
    assert abs((values**4).mean() - 3) < 5 * math.sqrt(96) * error
    cumulative = np.array([0.5 * math.erfc(-point / math.sqrt(2)) for point in (-3, -2, -1, 0, 1, 2, 3)])
    found = np.array([(values < point).mean() for point in (-3, -2, -1, 0, 1, 2, 3)])
    assert np.all(np.abs(found - cumulative) < 5 * error * np.sqrt(cumulative * (1 - cumulative)) + 2e-5)


@pytest.mark.statistical
def test_neighbouring_draws_and_streams_of_devices_are_uncorrelated():
    values, others = draws(400_000), draws(400_000, b"q" * 32)
    for lag in (1, 2, 3, 4):
        assert abs((values[lag:] * values[:-lag]).mean()) < 5 / math.sqrt(len(values))
    assert abs((values * others).mean()) < 5 / math.sqrt(len(values))
    assert abs((values[::2] ** 2 * values[1::2] ** 2).mean() - 1) < 5 * math.sqrt(8 / (len(values) / 2))


@pytest.mark.parametrize("parts", [(10,), (4, 6), (1, 2, 7), (3, 3, 4)])
def test_a_stream_goes_on_where_it_stopped(parts):
    stream, scratch = DeviceNoise(b"k" * 32), NoiseScratch()
    pieces = [np.empty(part, dtype=np.float32) for part in parts]
    for piece in pieces:
        stream.fill(piece, 1.0, scratch)
    assert len({float(value) for piece in pieces for value in piece}) == sum(parts)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 7, 8, 9, 12, 15])
def test_the_first_draws_are_the_same_however_many_are_asked_for(count):
    assert draws(count).tolist() == draws(24)[:count].tolist()


def chunk_of_copies(task: LocalTask) -> Chunk:
    """The same device again and again: only the noise differs."""
    numbers = np.random.default_rng(4)
    x = torch.from_numpy(numbers.normal(size=(RECORDS, INPUTS)).astype(np.float32))
    data = DeviceData(x, torch.zeros(RECORDS, dtype=torch.int64), {"d": range(RECORDS)})
    devices = ["d"] * COPIES
    batches = stack(devices, [Draw(1, "d", 0)] * COPIES, data, task)
    size = LogisticRegression(INPUTS, OUTPUTS).layout.size
    return Chunk(tuple(range(COPIES)), tuple(devices), torch.zeros(1, size), batches, data, task)


def drawn_at_once(chunk: Chunk) -> tuple[torch.Tensor, list[torch.Tensor]]:
    records = chunk.data.x[chunk.batches.rows.transpose(0, 1).flatten(1)] if chunk.batches.single_pass else chunk.data.x
    records = records.expand(COPIES, *records.shape[-2:]).contiguous()
    products = records @ records.transpose(1, 2) + 1
    noise = Noise(tuple(DeviceNoise(Draw(2, str(i), 0).noise_key()) for i in range(COPIES)), NoiseScratch())
    layer = (INPUTS + 1) * OUTPUTS
    targets = [torch.empty(COPIES, layer) for _ in range(1 + chunk.task.halves)]
    rows = EachUpdate(*targets).noise_rows(layer, Workspace())
    own = Own(records, products, (RECORDS,) * COPIES)
    return first_layer_noise(chunk, noise, own, rows, Workspace()), targets


def exact_covariance(chunk: Chunk) -> np.ndarray:
    """Of (how each visit's answer moves, the final noise of each part) for one output, by summing over steps."""
    steps = len(chunk.batches.active)
    response = impulse_response(Rule.of(chunk.task), steps)
    present = chunk.batches.weights[:, 0] > 0
    x = chunk.data.x[chunk.batches.rows[:, 0]].double().numpy()
    x = np.concatenate([x, np.ones((*x.shape[:2], 1))], axis=2)
    # Each variable as a linear map of the noise [steps, inputs + 1].
    maps = [np.outer(response[t], x[t, b]).ravel() for t in range(1, steps) for b in range(x.shape[1]) if present[t, b]]
    first = chunk.batches.first_half[:, 0].double().numpy()
    for part in [np.ones(steps), first][: 1 + chunk.task.halves]:
        maps += [np.outer(response[steps] * part, coordinate).ravel() for coordinate in np.eye(INPUTS + 1)]
    return np.stack(maps) @ np.stack(maps).T * chunk.task.noise_deviation**2


def found_covariance(chunk: Chunk, shift: torch.Tensor, targets: list[torch.Tensor], output: int) -> np.ndarray:
    present = (chunk.batches.weights[1:, 0] > 0).flatten()
    moved = shift[..., output][:, present]
    layers = [
        torch.cat([target[:, output * INPUTS : (output + 1) * INPUTS], target[:, [INPUTS * OUTPUTS + output]]], dim=1)
        for target in targets
    ]
    return np.cov(torch.cat([moved, *layers], dim=1).double().numpy().T)


def largest_error(found: np.ndarray, exact: np.ndarray) -> float:
    """In standard errors of an empirical covariance, with the ridge's thousandth allowed for."""
    spread = np.sqrt((np.outer(np.diag(exact), np.diag(exact)) + exact**2) / COPIES)
    excess = np.abs(found - exact) - 2e-3 * np.sqrt(np.outer(np.diag(exact), np.diag(exact)))
    return float((excess / np.maximum(spread, 1e-12)).max())


AT_ONCE = {
    "one epoch": {},
    "two epochs": {"epochs": 2},
    "momentum and proximal": {"epochs": 2, "momentum": 0.6, "proximal": 0.5},
    "halves": {"epochs": 2, "halves": True, "momentum": 0.3},
    "two steps in halves": {"steps": 2, "halves": True},
    "one step": {"steps": 1},
    "Poisson": {"sampling": "poisson"},
    "Poisson, two epochs": {"sampling": "poisson", "epochs": 2},
}


@pytest.mark.statistical
@pytest.mark.parametrize("settings", AT_ONCE.values(), ids=AT_ONCE)
def test_noise_drawn_at_once_has_the_joint_law_of_noise_drawn_at_each_step(settings):
    task = LocalTask(0.3, batch_size=2, clip_norm=2.0, noise_multiplier=1.5, **settings)
    chunk = chunk_of_copies(task)
    shift, targets = drawn_at_once(chunk)
    exact = exact_covariance(chunk)
    for output in range(OUTPUTS):
        assert largest_error(found_covariance(chunk, shift, targets, output), exact) < 5.5


@pytest.mark.statistical
def test_noise_that_does_not_know_its_own_sum_is_caught():
    chunk = chunk_of_copies(LocalTask(0.3, batch_size=2, clip_norm=2.0, noise_multiplier=1.5))
    shift, targets = drawn_at_once(chunk)
    somebody_elses = [target.roll(1, dims=0) for target in targets]
    assert largest_error(found_covariance(chunk, shift, somebody_elses, 0), exact_covariance(chunk)) > 20


@pytest.mark.statistical
def test_training_in_row_space_ends_where_step_by_step_noise_ends():
    """Noise large enough to change the gradients that follow it: mean and variance of the update tell."""
    spec = Mlp(features=3, hidden=(3,), classes=2)
    numbers = np.random.default_rng(0)
    x = torch.from_numpy(numbers.normal(size=(6, 3)).astype(np.float32))
    data = DeviceData(x, torch.tensor([0, 1, 0, 1, 1, 0]), {str(i): range(6) for i in range(6000)})
    task = LocalTask(0.8, batch_size=2, epochs=1, clip_norm=2.0, noise_multiplier=1.0)
    step_by_step, at_once = (by_kernel(spec, data, list(data), task, row_space=row) for row in (False, True))
    a, b = step_by_step.updates.double(), at_once.updates.double()
    error = torch.sqrt((a.var(dim=0) + b.var(dim=0)) / len(a))
    assert ((a.mean(dim=0) - b.mean(dim=0)).abs() / error).max() < 5
    assert ((a.var(dim=0) / b.var(dim=0)).log().abs() * math.sqrt(len(a))).max() < 5 * math.sqrt(2 * 2)


@pytest.mark.statistical
@pytest.mark.parametrize("row_space", [False, True])
def test_the_noise_of_an_update_is_as_large_as_the_task_says(row_space):
    spec = Mlp(features=40, hidden=(20,), classes=3)
    data = DeviceData(torch.zeros(12, 40), torch.zeros(12, dtype=torch.int64), {"d": range(12)})
    task = LocalTask(0.1, batch_size=4, epochs=2, clip_norm=0.01, noise_multiplier=50.0)
    (update,) = by_kernel(spec, data, ["d"], task, row_space=row_space).updates
    first = update[: 20 * 40]
    expected = 0.1 * math.sqrt(6) * 50.0 * 0.01 / 4
    assert abs(float(first.std()) / expected - 1) < 5 / math.sqrt(2 * len(first))


def test_the_impulse_response_of_plain_descent_is_a_staircase():
    response = impulse_response(Rule.of(LocalTask(0.5)), 3)
    assert response.tolist() == [[0, 0, 0], [-0.5, 0, 0], [-0.5, -0.5, 0], [-0.5, -0.5, -0.5]]
