"""Rows are always as many, tried before they are trusted, and a record that raises is taken out of its own row only."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from privacy.training import row_trial
from privacy.training.fixed_rows import NOBODY, in_rows, rows_at_once, without_those_that_raise
from privacy.training.per_record_loss import PerRecordLoss
from privacy.training.row_trial import made_up_weights, rows_for_gradients, rows_for_losses
from tests.privacy.dp_sgd_cases import CASES, data, initialised, mlp

LOSS = PerRecordLoss(nn.CrossEntropyLoss())


@pytest.mark.parametrize(
    ("wanted", "most_alike", "rows"), [(38, 40, 38), (38, 32, 32), (38, 7, 4), (38, 0, 1), (1, 0, 1)]
)
def test_the_largest_number_of_rows_that_come_out_alike_is_taken(wanted, most_alike, rows):
    assert rows_at_once(wanted, lambda tried: tried <= most_alike) == rows


@pytest.mark.parametrize("count", [0, 1, 4, 5, 9])
def test_every_part_has_as_many_rows(count):
    parts = list(in_rows(np.arange(count), 4))
    assert all(len(part) == 4 for part in parts)
    assert [number for part in parts for number in part if number != NOBODY] == list(range(count))


@pytest.mark.parametrize("raising", [set(), {0}, {3, 4}, {0, 1, 2, 3, 4, 5, 6}])
def test_halving_finds_those_that_raise_and_no_others(raising):
    def attempt(places):
        if raising & set(places):
            raise KeyError
        return list(places)

    found = dict.fromkeys(raising, False)
    for places, result in without_those_that_raise(attempt, range(7)):
        found |= dict.fromkeys(places, result is not None)
    assert found == {place: place not in raising for place in range(7)}


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError, KeyboardInterrupt])
def test_what_is_not_about_a_record_is_raised(error):
    def attempt(_):
        raise error

    with pytest.raises(error):
        list(without_those_that_raise(attempt, range(3)))


class PlaceMatters(nn.Module):
    """Its last rows come out otherwise, as those of some kernels do."""

    def __init__(self, from_row: int) -> None:
        super().__init__()
        self.linear, self.from_row = nn.Linear(6, 3), from_row

    def forward(self, inputs: Tensor) -> Tensor:
        rows = torch.arange(len(inputs)).unsqueeze(1)
        return self.linear(inputs) * torch.where(rows >= self.from_row, 1 + 2.0**-20, 1.0)


@pytest.fixture
def untried(monkeypatch):
    monkeypatch.setattr(row_trial, "_known", {})


@pytest.mark.parametrize(("from_row", "rows"), [(99, 24), (16, 16), (5, 4), (1, 1)])
@pytest.mark.parametrize("zero", [False, True], ids=["weights", "weights of zero"])
def test_rows_that_come_out_otherwise_are_not_used(untried, from_row, rows, zero):
    model = initialised(PlaceMatters(from_row))
    if zero:  # a server's, to hide what rounding would show
        nn.init.zeros_(model.linear.weight)
    for ghost in (True, False):
        assert rows_for_gradients(model, LOSS, data(0, 6, classes=3), 24, ghost=ghost) == rows
    assert rows_for_losses(model.eval(), LOSS, data(0, 6, classes=3), 24) == rows


def test_a_trial_with_the_tasks_weights_would_be_fooled(untried, monkeypatch):
    model = PlaceMatters(5)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    monkeypatch.setattr(row_trial, "made_up_weights", lambda module: module)
    assert rows_for_losses(model.eval(), LOSS, data(0, 6, classes=3), 24) == 24


def test_a_model_that_refuses_made_up_weights_computes_one_row_at_a_time(untried):
    class Picky(PlaceMatters):
        def forward(self, inputs: Tensor) -> Tensor:
            assert not self.linear.weight.any()
            return super().forward(inputs)

    model = Picky(99)
    nn.init.zeros_(model.linear.weight)
    assert rows_for_gradients(model, LOSS, data(0, 6, classes=3), 24, ghost=True) == 1


def test_rows_that_are_written_down_fit_into_memory(untried, monkeypatch):
    monkeypatch.setattr(row_trial, "rows_at_once", lambda most, _: most)
    monkeypatch.setattr(row_trial, "_MOST_BYTES_OF_ROWS", 53 * 4 * 5)
    assert rows_for_gradients(mlp(), LOSS, data(0, 6, classes=3), 24, ghost=False) == 5
    assert rows_for_gradients(mlp(), LOSS, data(0, 6, classes=3), 24, ghost=True) == 24


@pytest.mark.parametrize("case", CASES)
def test_the_trial_leaves_the_model_alone(untried, case):
    model, records = CASES[case]()
    before = [parameter.clone() for parameter in model.parameters()]
    assert rows_for_gradients(model, LOSS, records, 8, ghost=True) >= 1
    assert all(torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True))
    assert any(
        not torch.equal(now, then) for now, then in zip(made_up_weights(model).parameters(), before, strict=True)
    )
