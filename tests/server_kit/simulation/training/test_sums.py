"""A sum of updates that are never written down is the sum of the updates that would have been written."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from server_kit.aggregation import CoordinateMedian, FedAvg, FedYogi, NormBound
from server_kit.simulation import fleet as fleet_module
from server_kit.simulation.training import Cnn, LocalTask, Trainer
from server_kit.simulation.training.bench import Bench
from server_kit.simulation.training.planning import Group
from server_kit.simulation.training.row_space import RowSpaceKernel
from server_kit.simulation.training.workspace import Workspace
from server_kit.strategy import Strategy
from tests.server_kit.engine.worlds import people, same, small, world
from tests.server_kit.simulation.training.fleet import SEED, SPECS, by_kernel, fleet, one_chunk

TASKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "three epochs": {"epochs": 3},
    "proximal momentum": {"momentum": 0.5, "proximal": 0.3, "epochs": 2},
    "masked": {"mask": True},
    "clipped": {"clip_norm": 0.6},
    "noised": {"clip_norm": 0.6, "noise_multiplier": 1.0},
    "noised, two epochs": {"clip_norm": 0.6, "noise_multiplier": 1.0, "epochs": 2, "momentum": 0.5},
}
CASES = [
    (name, row_space, task)
    for name, spec in SPECS.items()
    for row_space in (False, True)
    for task in TASKS
    if not (row_space and (isinstance(spec, Cnn) or task == "masked"))
]
SHARES = [0.5, 2.0, 0.0, 1.0, 13.0, 0.25, 1.5, 3.0, 1.0]


@pytest.mark.parametrize(("spec_name", "row_space", "task_name"), CASES)
def test_a_sum_is_the_sum_of_each(spec_name, row_space, task_name):
    spec, settings = SPECS[spec_name], dict(TASKS[task_name])
    if settings.get("mask"):
        settings["mask"] = torch.arange(spec.layout.size) % 3 > 0
    task, data = LocalTask(0.1, batch_size=4, **settings), fleet(spec)
    devices = [device for device in data if data.count(device) or not row_space]
    shares = SHARES[: len(devices)]
    each = by_kernel(spec, data, devices, task, row_space=row_space)
    work, order = one_chunk(spec, data, devices, task)
    summed = work.sum(Group(order, row_space), shares, Bench(spec), Workspace())
    expected = sum(shares[position] * update for position, update in zip(each.positions, each.updates, strict=True))
    torch.testing.assert_close(summed.total, expected, rtol=1e-4, atol=1e-5)
    assert summed.positions == each.positions
    assert all(summed.finite)
    torch.testing.assert_close(summed.start_losses, each.start_losses, equal_nan=True)


@pytest.mark.parametrize("noise", [{}, {"clip_norm": 1.0, "noise_multiplier": 1.0}])
@pytest.mark.parametrize("row_space", [False, True])
@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -math.inf, 3e38])
def test_what_is_not_finite_is_found_and_left_out(row_space, noise, nonsense):
    spec = SPECS["mlp"]
    data, task = fleet(spec), LocalTask(0.1, batch_size=4, **noise)
    data.x[20] = nonsense  # one of d1's records
    devices = ["d0", "d1", "d2"]
    each = by_kernel(spec, data, devices, task, row_space=row_space)
    work, order = one_chunk(spec, data, devices, task)
    summed = work.sum(Group(order, row_space), [1.0, 2.0, 3.0], Bench(spec), Workspace())
    finite = each.updates.isfinite().all(dim=1)
    assert not finite[1]
    assert finite[0]
    assert summed.finite == tuple(finite.tolist())
    torch.testing.assert_close(summed.total.float(), each.updates[0] + 3.0 * each.updates[2], rtol=1e-4, atol=1e-5)


def test_a_product_that_forgets_the_shares_is_caught(monkeypatch):
    honest = RowSpaceKernel.finish_sum

    def forgetful(kernel: Any, deviation: Any, target: Any) -> None:
        honest(kernel, deviation, type(target)(target.total, torch.ones_like(target.shares)))

    monkeypatch.setattr(RowSpaceKernel, "finish_sum", forgetful)
    with pytest.raises(AssertionError):
        test_a_sum_is_the_sum_of_each("mlp", True, "plain")


@pytest.mark.parametrize("chunk", [2, 64])
def test_parts_of_a_sum_add_up_whatever_the_chunks(chunk):
    spec = SPECS["deep mlp"]
    data, task = fleet(spec), LocalTask(0.1, batch_size=4)
    devices = list(data)
    asked: dict[str, Any] = {"seed": SEED, "round_number": 3}
    with Trainer(spec, workers=2, devices_per_chunk=chunk) as trainer:
        each = trainer.train(spec.initial(1), data, devices, task, **asked)
        parts = trainer.sum_in_chunks(spec.initial(1), data, devices, task, shares=SHARES, **asked)
        total = sum(part.total.double() for part in parts)
    expected = (torch.tensor(SHARES).double().unsqueeze(1) * each.updates).sum(dim=0)
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-5)


class TestWholeRounds:
    """The engine with sums ends where it ends with one update after the other."""

    def model_and_views(self, aggregator: Any) -> tuple[torch.Tensor, Any]:
        with world(Strategy("some", aggregator=aggregator), people(), small(4, 5)) as now:
            now.go_on()
            return now.federation.model("0"), list(now.state.views.items())

    @pytest.mark.parametrize("aggregator", [FedAvg(), FedAvg(weighted=False), FedYogi()])
    def test_sums_and_single_updates_agree(self, aggregator, monkeypatch):
        summed, views = self.model_and_views(aggregator)
        monkeypatch.setattr(fleet_module._Answers, "summed", lambda *_: None)
        one_by_one, other_views = self.model_and_views(aggregator)
        torch.testing.assert_close(summed, one_by_one, rtol=1e-4, atol=1e-6)
        assert views == other_views

    @pytest.mark.parametrize(
        ("aggregator", "expected"), [(FedAvg(), True), (NormBound(FedAvg(), 1.0), False), (CoordinateMedian(), False)]
    )
    def test_only_those_who_want_nothing_but_a_sum_get_one(self, aggregator, expected, monkeypatch):
        asked: list[bool] = []
        honest: Callable[..., Any] = fleet_module.SimulatedFleet.summed

        def noting(*arguments: Any) -> Any:
            asked.append(True)
            return honest(*arguments)

        monkeypatch.setattr(fleet_module.SimulatedFleet, "summed", noting)
        self.model_and_views(aggregator)
        assert bool(asked) == expected

    def test_the_same_seed_gives_the_same_bits(self):
        assert same(self.model_and_views(FedAvg()), self.model_and_views(FedAvg()))
