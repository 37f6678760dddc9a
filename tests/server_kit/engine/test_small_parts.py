"""Matchers, mixing and objectives against slow, obvious versions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from server_kit.aggregation import CasaDecay
from server_kit.errors import InvalidSetting
from server_kit.interfaces import CheckIn, DeviceView, Split
from server_kit.inviting import Trained
from server_kit.layout import Layout
from server_kit.local_task import LocalTask
from server_kit.matching import Assigned, BestModel, ByRequest, OwnChoice
from server_kit.mixing import InterGroup
from server_kit.objectives import Plain, Proximal, SparseMasked, magnitude_mask
from server_kit.strategy import Strategy
from tests.server_kit.engine.scripted import SIZE, Play, ScriptedFleet, names, rng
from tests.server_kit.engine.test_federation import Planned

USUAL = LocalTask(learning_rate=0.1, epochs=3)


class TestMatchers:
    @pytest.fixture
    def now(self):
        split = Split("0", 3, models=[torch.full((SIZE,), float(number)) for number in range(3)])
        now = Play(Strategy("three", formation=Planned({("0", 1): split})), ScriptedFleet(names(4)))
        now.round()
        return now

    def test_by_request_the_device_decides(self, now):
        wishes = [CheckIn("d0", "0.2"), CheckIn("d1", "0", 1)]
        assert ByRequest().match(wishes, now.federation, rng()) == ["0.2", "0.1"]

    def test_assigned_the_table_decides_and_not_the_device(self, now):
        now.federation.memory["assigned"] = {"d0": "0.1", "d1": "0.2"}
        wishes = [CheckIn("d0", "0.2"), CheckIn("d1", "0", 1)]
        assert Assigned().match(wishes, now.federation, rng()) == ["0.1", "0.2"]

    def test_who_is_in_no_table_goes_anywhere(self, now):
        wishes = [CheckIn(device) for device in names(60)]
        assert set(Assigned().match(wishes, now.federation, rng())) == {"0.0", "0.1", "0.2"}

    def test_best_model_the_data_decide(self, now):
        now.fleet.prefers = lambda device, models: int((models[:, 0] - float(device[1])).abs().argmin())
        wishes = [CheckIn(device, "0.0") for device in names(3)]
        assert BestModel().match(wishes, now.federation, rng()) == ["0.0", "0.1", "0.2"]

    def test_with_one_leaf_nobody_is_asked_to_choose(self, now):
        now.state.tree = now.state.tree.merge("0")
        now.fleet.prefers = None
        assert BestModel().match([CheckIn("d0")], now.federation, rng()) == ["0"]

    def test_who_does_not_choose_goes_anywhere(self, now):
        now.fleet.choices = lambda devices, models: {}
        homes = BestModel().match([CheckIn(device) for device in names(60)], now.federation, rng())
        assert set(homes) == {"0.0", "0.1", "0.2"}

    def test_own_choice_is_kept_until_the_tree_changes(self, now):
        now.fleet.prefers = lambda device, models: 2
        assert OwnChoice().match([CheckIn("d0")], now.federation, rng()) == ["0.2"]
        now.fleet.prefers = lambda device, models: 0
        assert OwnChoice().match([CheckIn("d0"), CheckIn("d1")], now.federation, rng()) == ["0.2", "0.0"]
        now.state.tree = now.state.tree.split("0.1", 2)
        for leaf in ("0.1.0", "0.1.1"):
            now.state.cohorts[leaf] = now.state.cohorts["0.1"]
        assert OwnChoice().match([CheckIn("d0")], now.federation, rng()) == ["0.0"]

    def test_own_choice_is_made_anew_when_the_data_change_or_its_time_is_over(self, now):
        now.fleet.prefers = lambda device, models: 2
        OwnChoice().match([CheckIn("d0"), CheckIn("d1")], now.federation, rng())
        now.fleet.prefers = lambda device, models: 0
        assert OwnChoice().match([CheckIn("d0", changed=True)], now.federation, rng()) == ["0.0"]
        now.state.steps += 5
        assert OwnChoice(renew_steps=6).match([CheckIn("d1")], now.federation, rng()) == ["0.2"]
        assert OwnChoice(renew_steps=5).match([CheckIn("d1")], now.federation, rng()) == ["0.0"]

    def test_own_choice_begins_where_a_split_put_the_device(self, now):
        now.state.suggested = {"d0": "0.1", "d1": "0.7"}
        now.fleet.prefers = lambda device, models: 2
        assert OwnChoice().match([CheckIn("d0"), CheckIn("d1")], now.federation, rng()) == ["0.1", "0.2"]

    def test_who_was_placed_is_not_asked_again_and_who_has_chosen_is(self, now):
        now.state.suggested = {"d0": "0.1"}
        choose = OwnChoice(renew_steps=1)
        now.fleet.prefers = lambda device, models: 2
        assert choose.match([CheckIn("d0"), CheckIn("d1")], now.federation, rng()) == ["0.1", "0.2"]
        now.state.steps += 1
        now.fleet.prefers = lambda device, models: 0
        assert choose.match([CheckIn("d0"), CheckIn("d1")], now.federation, rng()) == ["0.1", "0.0"]


def slow_mixture(models: list[list[float]], rate: float, normalised: bool) -> list[list[float]]:
    """FedGroup's formula, written as it is printed."""
    norms = [sum(value**2 for value in model) ** 0.5 for model in models]
    mixed = []
    for j, model in enumerate(models):
        others = [number for number in range(len(models)) if number != j and norms[number] > 0]
        moved = [value + rate * sum(models[o][place] / norms[o] for o in others) for place, value in enumerate(model)]
        divisor = 1 + rate * sum(1 / norms[o] for o in others) if normalised else 1.0
        mixed.append([value / divisor for value in moved])
    return mixed


@given(
    models=st.lists(st.lists(st.integers(-9, 9), min_size=3, max_size=3), min_size=1, max_size=5),
    rate=st.floats(0, 1),
    normalised=st.booleans(),
)
def test_inter_group_is_the_printed_formula(models, rate, normalised):
    tensors = {str(number): torch.tensor(model, dtype=torch.float32) for number, model in enumerate(models)}
    before = {cohort: model.clone() for cohort, model in tensors.items()}
    mixed = InterGroup(rate, normalised).mixed(tensors)
    expected = slow_mixture(models, rate, normalised)
    for cohort, row in zip(mixed, expected, strict=True):
        torch.testing.assert_close(mixed[cohort], torch.tensor(row, dtype=torch.float32), rtol=1e-5, atol=1e-5)
        assert torch.equal(tensors[cohort], before[cohort])


def test_inter_group_by_hand():
    models = {"0.0": torch.tensor([2.0, 0.0]), "0.1": torch.tensor([0.0, 4.0])}
    assert InterGroup(0.5, normalised=False).mixed(models)["0.0"].tolist() == [2.0, 0.5]
    assert InterGroup(0.5).mixed(models)["0.0"].tolist() == pytest.approx([2 / 1.125, 0.5 / 1.125])


class TestObjectives:
    layout = Layout((("one.weight", (2, 3)), ("one.bias", (2,)), ("two.weight", (4, 2)), ("two.bias", (4,))))

    def cohort(self, model: torch.Tensor | None = None, **aggregation: object) -> Trained:
        return Trained(torch.arange(20.0) if model is None else model, aggregation, self.layout)

    def test_plain_changes_nothing(self):
        assert Plain().task_for(USUAL, DeviceView("d"), self.cohort()) is USUAL

    def test_proximal_adds_its_pull_and_nothing_else(self):
        task = Proximal(0.3).task_for(USUAL, DeviceView("d"), self.cohort())
        assert (task.proximal, task.epochs, task.learning_rate) == (0.3, 3, 0.1)

    def test_a_pull_is_not_a_push(self):
        with pytest.raises(InvalidSetting, match="mu is 0 or more"):
            Proximal(-1.0)

    def test_masks_leave_out_the_smallest_weights_of_each_layer_after_the_first(self):
        model = torch.tensor([0.0] * 8 + [5, -1, 3, -0.5, 4, 2, -6, 7] + [0.0] * 4)
        mask = magnitude_mask(self.layout, model, 0.5)
        assert mask.tolist() == [True] * 8 + [True, False, False, False, True, False, True, True] + [True] * 4

    def test_who_answers_in_time_trains_everything(self):
        task = SparseMasked().task_for(USUAL, DeviceView("d", staleness=0), self.cohort(members=2))
        assert task.mask is None

    @pytest.mark.parametrize(("staleness", "left_out"), [(0, 0), (2, 0.125), (4, 0.25), (100, 0.4375)])
    def test_the_later_the_fewer_weights(self, staleness, left_out):
        # α of a late answer is α₀/√τ, so the rate is ½·(1 − 1/√τ), rounded down to sixteenths.
        cohort = self.cohort(members=2, staleness=[0])
        task = SparseMasked().task_for(USUAL, DeviceView("d", staleness=staleness), cohort)
        assert (0 if task.mask is None else int((~task.mask).sum())) == int(left_out * 8)

    def test_a_device_never_heard_of_is_as_late_as_others_were(self):
        cohort = self.cohort(members=1, staleness=[9, 0, 0])
        expected = SparseMasked(aggregator=CasaDecay()).task_for(USUAL, DeviceView("d", staleness=3), cohort)
        task = SparseMasked(aggregator=CasaDecay()).task_for(USUAL, DeviceView("d"), cohort)
        assert (task.mask is None) == (expected.mask is None)
