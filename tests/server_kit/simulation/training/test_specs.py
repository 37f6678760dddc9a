"""Specs, layouts and tasks: what fits is kept to the letter, what does not is refused in a sentence."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from server_kit.errors import InvalidSetting
from server_kit.simulation.training import Cnn, DeviceData, LocalTask, LogisticRegression, Mlp
from server_kit.simulation.training.planning import Group, devices_per_chunk, plan, prefers_row_space
from tests.server_kit.simulation.training.fleet import SPECS


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_layout_is_that_of_the_module(spec):
    module = spec.module(spec.initial(2))
    named = [(name, tuple(value.shape)) for name, value in module.named_parameters()]
    assert list(spec.layout.tensors) == named
    assert torch.equal(spec.layout.read(module), spec.initial(2))


def test_parameter_counts_are_those_of_the_papers():
    assert LogisticRegression().layout.size == 7_850
    assert Mlp().layout.size == 101_770
    assert Cnn().layout.size == 44_426


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_packing_and_unpacking_are_inverse_and_views_write_through(spec):
    flat = spec.initial(1)
    tensors = spec.layout.unpack(flat)
    assert torch.equal(spec.layout.pack(tensors), flat)
    stacked = torch.stack([flat, spec.initial(2)])
    views = spec.layout.views(stacked)
    views["dense1.bias"][1] = 7
    assert (spec.layout.views(stacked[1])["dense1.bias"] == 7).all()
    assert torch.equal(stacked[0], flat)


def test_initial_weights_follow_the_seed_and_fill_their_range():
    spec = Mlp()
    assert torch.equal(spec.initial(1), spec.initial(1))
    assert not torch.equal(spec.initial(1), spec.initial(2))
    weight = spec.layout.views(spec.initial(1))["dense1.weight"]
    bound = 1 / math.sqrt(784)
    assert weight.abs().max() <= bound
    assert float(weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.01)
    assert abs(float(weight.mean())) < 5 * bound / math.sqrt(3 * weight.numel())


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({}, "missing"),
        ({"dense1.weight": torch.zeros(10, 784), "dense1.bias": torch.zeros(9)}, "shape"),
        ({"dense1.weight": torch.zeros(10, 784), "dense1.bias": torch.zeros(10), "x": torch.zeros(1)}, "unknown"),
    ],
)
def test_other_tensors_are_refused(tensors, sentence):
    with pytest.raises(InvalidSetting, match=sentence):
        LogisticRegression().layout.pack(tensors)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Mlp(features=0),
        lambda: Mlp(hidden=(3, 0)),
        lambda: Cnn(kernel=4),
        lambda: Cnn(channels=()),
        lambda: Cnn(padding=-1),
        lambda: Cnn(image=(1, 27, 28)),
        lambda: Cnn(image=(1, 6, 6)),
        lambda: Cnn(padding=1),
    ],
)
def test_an_impossible_model_is_refused(make):
    with pytest.raises(InvalidSetting, match="nothing was made"):
        make()


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rate": math.nan},
        {"batch_size": 0},
        {"epochs": 0},
        {"steps": -1},
        {"momentum": 1.0},
        {"proximal": -0.1},
        {"mask": torch.ones(3)},
        {"clip_norm": 0.0},
        {"noise_multiplier": 1.0},
        {"clip_norm": 1.0, "noise_multiplier": -1.0},
        {"sampling": "poisson"},
        {"sampling": "sometimes"},
        {"clip_norm": 1.0, "sampling": "poisson", "halves": True},
    ],
)
def test_an_impossible_task_is_refused(settings):
    with pytest.raises(InvalidSetting, match="nothing was trained"):
        LocalTask(**{"learning_rate": 0.1, **settings})


def test_data_must_fit_and_devices_must_exist():
    x, y = torch.zeros(6, 2), torch.zeros(6, dtype=torch.int64)
    with pytest.raises(InvalidSetting, match="targets"):
        DeviceData(x, y[:5], {})
    for rows in (range(4, 7), [0, -1], np.array([6])):
        with pytest.raises(InvalidSetting, match="outside"):
            DeviceData(x, y, {"a": rows})
    with pytest.raises(InvalidSetting, match="no data"):
        DeviceData(x, y, {"a": range(3)}).count("b")


def test_stored_bytes_become_scaled_floats():
    x = torch.arange(12, dtype=torch.uint8).view(6, 2)
    data = DeviceData(x, torch.zeros(6, dtype=torch.int64), {"a": [5, 0]}, scale=1 / 255)
    rows = torch.from_numpy(data.rows("a", np.array([0, 1])))
    assert torch.allclose(data.inputs(rows, torch.empty(2, 2)), x[[5, 0]].float() / 255)


def test_a_hundred_thousand_devices_cost_little_until_they_take_part():
    x, y = torch.zeros(1000, 2), torch.zeros(1000, dtype=torch.int64)
    data = DeviceData(x, y, {str(i): range(i % 900, i % 900 + 100) for i in range(100_000)})
    assert len(data) == 100_000
    assert data.count("99999") == 100
    assert "100000" not in data


@pytest.mark.parametrize(
    ("spec", "records", "task", "expected"),
    [
        (Mlp(), 60, LocalTask(0.1), True),
        (Mlp(), 60, LocalTask(0.1, epochs=20), True),
        (Mlp(), 400, LocalTask(0.1), False),
        (Mlp(), 5000, LocalTask(0.1, epochs=20), False),
        (Mlp(), 0, LocalTask(0.1), False),
        (Mlp(), 60, LocalTask(0.1, mask=torch.ones(101_770, dtype=torch.bool)), False),
        (LogisticRegression(), 60, LocalTask(0.1), False),
        (LogisticRegression(), 60, LocalTask(0.1, epochs=20), True),
        (Cnn(), 60, LocalTask(0.1), False),
    ],
)
def test_row_space_is_chosen_where_it_saves_work(spec, records, task, expected):
    assert prefers_row_space(spec, records, task) is expected


def test_a_plan_holds_every_device_once_in_falling_steps_and_keeps_starts_apart():
    spec, task = Mlp(), LocalTask(0.1)
    sizes = [60, 30, 61, 600, 5, 60, 59, 0, 200, 60] * 9
    ends = np.cumsum(sizes).tolist()
    rows = {str(i): range(end - size, end) for i, (end, size) in enumerate(zip(ends, sizes, strict=True))}
    data = DeviceData(torch.zeros(ends[-1], 1), torch.zeros(ends[-1], dtype=torch.int64), rows)
    starts = [i % 2 for i in range(len(sizes))]
    groups = plan(spec, data, list(data), starts, task, workers=2, largest=None)
    assert sorted(p for group in groups for p in group.positions) == list(range(len(sizes)))
    for group in groups:
        assert isinstance(group, Group)
        steps = [task.steps_for(sizes[p]) for p in group.positions]
        assert steps == sorted(steps, reverse=True)
        assert len({starts[p] for p in group.positions}) == 1
        most = max(sizes[p] for p in group.positions)
        assert len(group.positions) <= devices_per_chunk(spec, most, row_space=group.row_space)
