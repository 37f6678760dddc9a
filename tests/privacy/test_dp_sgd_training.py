"""Steps follow the terms and nothing else: not how many records a batch held, nor what was wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from privacy.errors import UnsupportedModel
from privacy.training import clipping_choice
from privacy.training.clipping_choice import ghost_is_faster
from privacy.training.flat_model import FlatModel
from privacy.training.loop import Work, train
from privacy.training.per_record_loss import PerRecordLoss
from privacy.training.per_sample_clipping import Batch, PerSampleClipper
from privacy.training.step_rule import StepRule
from privacy.training.whole_gradients import SLACK, grid_step
from tests.privacy.dp_sgd_cases import (
    CASES,
    Words,
    cnn,
    data,
    in_memory,
    initialised,
    mlp,
    slow_clipped_sum,
    token_data,
)

CLIP_NORM = 0.5
Train = Callable[[nn.Module, Batch, Sequence[Sequence[int]], StepRule], Tensor]


class GivenBatches:
    """These batches, one after another."""

    def __init__(self, batches: Sequence[Sequence[int]]) -> None:
        self.left = [np.array(batch, dtype=np.int64) for batch in batches]

    def draw(self) -> np.ndarray:
        return self.left.pop(0)


class NoNoise:
    def add_to(self, vector: np.ndarray) -> None:
        """Nothing is added."""


class ConstantNoise:
    def add_to(self, vector: np.ndarray) -> None:
        vector += 0.25 / grid_step(CLIP_NORM)


def trained(model, records, batches, rule, *, noise=None, micro_batch_size=64, ghost=True) -> Tensor:
    flat = FlatModel(model)
    clipper = PerSampleClipper(flat.module, PerRecordLoss(nn.CrossEntropyLoss()), CLIP_NORM, ghost=ghost)
    work = Work(flat, clipper, in_memory(records), micro_batch_size)
    return train(work, rule, GivenBatches(batches), noise or NoNoise()).double()


def slowly_trained(model, records, batches, rule) -> Tensor:
    """torch's own optimiser on gradients of one record at a time; the proximal term written as a loss."""
    flat = FlatModel(model)
    start, parameters = flat.weights.clone(), list(flat.parameters.values())
    optimiser = torch.optim.SGD(parameters, lr=rule.learning_rate, momentum=rule.momentum)
    for batch in batches:
        total = slow_clipped_sum(flat.module, records.select(torch.tensor(batch, dtype=torch.int64)), CLIP_NORM)
        gradient = total / rule.expected_batch_size + rule.proximal * (flat.weights - start)
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, part in zip(parameters, torch.split(gradient, sizes), strict=True):
            parameter.grad = part.reshape(parameter.shape).to(parameter.dtype)
        optimiser.step()
    return (flat.weights - start).double()


BATCHES = [[0, 3, 4, 9], [], [1], list(range(12)), [2, 5]]
RULES = [
    StepRule(5, expected_batch_size=4.0, learning_rate=0.3),
    StepRule(5, expected_batch_size=2.5, learning_rate=0.1, momentum=0.9),
    StepRule(5, expected_batch_size=4.0, learning_rate=0.2, momentum=0.5, proximal=0.7),
]


def is_right(candidate: Train, rule: StepRule, case: str = "mlp") -> bool:
    model, records = CASES[case]()
    expected = slowly_trained(model, records, BATCHES, rule)
    return float((candidate(model, records, BATCHES, rule) - expected).norm() / expected.norm()) < 1e-3


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("case", ["mlp", "cnn", "words"])
def test_training_is_that_of_one_record_at_a_time(case, rule):
    assert is_right(trained, rule, case)


@pytest.mark.parametrize("micro_batch_size", [1, 3, 12])
@pytest.mark.parametrize("ghost", [True, False])
def test_parts_of_a_batch_add_up_before_the_step(micro_batch_size, ghost):
    def in_parts(model, records, batches, rule):
        return trained(model, records, batches, rule, micro_batch_size=micro_batch_size, ghost=ghost)

    assert is_right(in_parts, RULES[1])


def by_actual_size(model, records, batches, rule):
    """Divides by the size that each batch really had."""
    flat = FlatModel(model)
    start = flat.weights.clone()
    for batch in batches:
        once = StepRule(1, max(1, len(batch)), rule.learning_rate)
        flat.weights += trained(flat.module, records, [batch], once).float()
    return (flat.weights - start).double()


def without_empty_batches(model, records, batches, rule):
    """Momentum stands still where a batch is empty."""
    filled = [batch for batch in batches if batch]
    return trained(model, records, filled, StepRule(len(filled), rule.expected_batch_size, rule.learning_rate, 0.9))


def clipped_by_parts(model, records, batches, rule):
    """Clips the mean of each part instead of each record."""
    flat = FlatModel(model)
    start = flat.weights.clone()
    for batch in batches:
        if batch:
            total = slow_clipped_sum(flat.module, records.select(torch.tensor(batch)), 1e9)
            total *= min(1.0, CLIP_NORM * len(batch) / float(total.norm()))
            flat.weights -= (total * rule.learning_rate / rule.expected_batch_size).float()
    return (flat.weights - start).double()


@pytest.mark.parametrize(
    ("broken", "rule"), [(by_actual_size, RULES[0]), (without_empty_batches, RULES[1]), (clipped_by_parts, RULES[0])]
)
def test_comparison_catches_a_training_that_was_not_paid_for(broken, rule):
    assert not is_right(broken, rule)


def test_an_empty_batch_is_noised_and_steps():
    rule = StepRule(3, expected_batch_size=2.0, learning_rate=0.1)
    moved = trained(mlp(), data(12, 6, classes=3), [[], [], []], rule, noise=ConstantNoise())
    assert torch.allclose(moved, torch.tensor(-3 * 0.1 * 0.25 / 2.0, dtype=torch.float64), atol=1e-6)


def test_noise_is_added_once_a_step_however_many_parts_a_batch_has():
    rule = StepRule(1, expected_batch_size=4.0, learning_rate=0.1)
    records = data(12, 6, classes=3)
    with_noise, without = (
        trained(mlp(), records, [list(range(12))], rule, noise=noise, micro_batch_size=2)
        for noise in (ConstantNoise(), NoNoise())
    )
    assert torch.allclose(with_noise - without, torch.tensor(-0.1 * 0.25 / 4.0, dtype=torch.float64), atol=1e-6)


def test_an_index_that_does_not_exist_counts_as_zero_and_spares_the_others():
    model, records = initialised(Words()), token_data(12, 7, 11, 3)
    wrong = Batch(records.inputs.clone(), records.targets)
    wrong.inputs[4, 2] = 10**6
    wrong.inputs[9, 0] = -3
    rule = StepRule(1, expected_batch_size=4.0, learning_rate=0.3)
    spared = [index for index in range(12) if index not in {4, 9}]
    found = trained(model, wrong, [list(range(12))], rule)
    expected = slowly_trained(model, records, [spared], rule)
    assert float((found - expected).norm() / expected.norm()) < 1e-3


class Picky(nn.Module):
    """Raises for some records, as a model's own assertions may."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.linear, self.error = nn.Linear(6, 3), error

    def forward(self, inputs: Tensor) -> Tensor:
        if (inputs > 1e3).any():
            raise self.error
        return self.linear(inputs)


@pytest.mark.parametrize("error", [ValueError, AssertionError, KeyError, UnsupportedModel])
def test_a_record_that_makes_the_model_raise_counts_as_zero(error):
    records = data(12, 6, classes=3)
    records.inputs[5] = 1e4
    rule = StepRule(1, expected_batch_size=4.0, learning_rate=0.3)
    model = initialised(Picky(error))
    spared = [index for index in range(12) if index != 5]
    assert torch.equal(trained(model, records, [list(range(12))], rule), trained(model, records, [spared], rule))
    assert not trained(model, records, [[5]], rule).any()


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_what_is_not_about_a_record_is_raised(error):
    records = data(3, 6, classes=3)
    records.inputs[1] = 1e4
    with pytest.raises(error):
        trained(initialised(Picky(error)), records, [[0, 1, 2]], StepRule(1, 4.0, 0.3))


def test_a_training_that_runs_off_ends_all_the_same():
    rule = StepRule(4, expected_batch_size=1e-9, learning_rate=1e9)
    moved = trained(mlp(), data(12, 6, classes=3), [list(range(12))] * 4, rule, noise=ConstantNoise())
    assert len(moved) == 53


def test_frozen_parameters_are_neither_trained_nor_noised():
    model = cnn()
    for name in ("0.weight", "0.bias"):
        model.get_parameter(name).requires_grad_(False)
    frozen = model.get_parameter("0.weight").clone()
    flat = FlatModel(model)
    assert set(flat.parameters) == {name for name, _ in model.named_parameters() if not name.startswith("0.")}
    clipper = PerSampleClipper(flat.module, PerRecordLoss(nn.CrossEntropyLoss()), CLIP_NORM, ghost=True)
    work = Work(flat, clipper, in_memory(data(6, 1, 8, 8, classes=3)), 64)
    train(work, StepRule(1, 4.0, 0.3), GivenBatches([[0, 1, 2]]), ConstantNoise())
    assert torch.equal(flat.module.get_parameter("0.weight"), frozen)


def test_the_way_of_clipping_is_timed_once_for_a_model_and_batch_size(monkeypatch):
    timed = []

    def seconds(model, loss, batch, *, ghost):
        timed.append((len(batch), ghost))
        return 1.0 if ghost else 2.0

    monkeypatch.setattr(clipping_choice, "_seconds", seconds)
    monkeypatch.setattr(clipping_choice, "_chosen", {})
    loss, records = PerRecordLoss(nn.CrossEntropyLoss()), data(12, 6, classes=3)
    for size in (4, 4, 5):
        assert ghost_is_faster(FlatModel(mlp()), loss, records, size)
    assert ghost_is_faster(FlatModel(mlp(hidden=7)), loss, records, 4)
    assert timed == [(4, True), (4, False), (5, True), (5, False), (4, True), (4, False)]


def test_timing_takes_the_faster_way_and_leaves_no_trace(monkeypatch):
    monkeypatch.setattr(clipping_choice, "_chosen", {})
    # A hundred thousand weights a record: writing them down is slower beyond doubt.
    flat = FlatModel(mlp(300, 300))
    assert ghost_is_faster(flat, PerRecordLoss(nn.CrossEntropyLoss()), data(1, 300, classes=3), 64)
    assert not flat.whole.any()


def test_rows_that_would_not_fit_are_not_even_tried(monkeypatch):
    monkeypatch.setattr(clipping_choice, "_MOST_BYTES_OF_ROWS", 100)
    monkeypatch.delattr(clipping_choice, "_seconds")
    assert ghost_is_faster(FlatModel(mlp()), PerRecordLoss(nn.CrossEntropyLoss()), data(1, 6, classes=3), 64)


def test_layers_without_a_ghost_form_need_no_timing(monkeypatch):
    monkeypatch.delattr(clipping_choice, "_seconds")
    model = nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten())
    assert not ghost_is_faster(FlatModel(model), PerRecordLoss(nn.CrossEntropyLoss()), data(1, 1, 8, 8, classes=3), 64)


def test_slack_is_small():
    assert 1 < SLACK < 1.002
