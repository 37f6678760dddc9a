"""Every record's gradient is clipped by itself, whatever the model and the way it is done."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from privacy.training import layer_gradients, whole_gradients
from privacy.training.flat_model import FlatModel
from privacy.training.layer_gradients import GhostLinear, MaterialisedGradient, SparseEmbedding
from privacy.training.per_record_loss import PerRecordLoss
from privacy.training.per_sample_clipping import Batch, PerSampleClipper
from privacy.training.whole_gradients import scales_for, within_bound
from tests.privacy.dp_sgd_cases import CASES, cnn, data, fast_clipped_sum, initialised, mlp, slow_clipped_sum

# Rounding to whole grid steps costs a product of two vectors some ten-thousandths of a clip norm.
CLOSE = 1e-3
WAYS = pytest.mark.parametrize("ghost", [True, False], ids=["ghost", "hooks"])


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@WAYS
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("clip_norm", [0.05, 1.0, 5.0])
def test_clipped_sum_is_that_of_one_record_at_a_time(case, clip_norm, ghost):
    model, records = CASES[case]()
    expected = slow_clipped_sum(model, records, clip_norm)
    assert relative_error(fast_clipped_sum(model, records, clip_norm, ghost=ghost), expected) < CLOSE


@pytest.mark.parametrize("case", ["cnn", "words", "patches"])
def test_rows_that_are_written_down_are_rounded_by_less_than_floats_are(case):
    model, records = CASES[case]()
    found = fast_clipped_sum(model, records, 0.05, ghost=False)
    assert relative_error(found, slow_clipped_sum(model, records, 0.05)) < 1e-5


@pytest.mark.parametrize(("inputs", "outputs"), [(6, 5), (784, 200), (3136, 512)])
def test_a_clipped_product_loses_less_than_half_a_percent_to_the_grid(inputs, outputs):
    layer = nn.Linear(inputs, outputs)
    rng = np.random.default_rng(inputs)
    factors = [torch.from_numpy(rng.normal(size=(4, width)).astype(np.float32)) for width in (inputs, outputs)]
    gradient = GhostLinear(layer, *factors)
    scales = 2.0**24 / gradient.squared_norms().sqrt() / 1.001
    products = gradient.whole(scales).products
    for row in range(4):
        true = torch.outer(factors[1][row].double(), torch.cat([factors[0][row], torch.ones(1)]).double()) * scales[row]
        assert relative_error(torch.outer(products.errors[row], products.inputs[row]), true) < 0.005


def clip_after_averaging(model: nn.Module, records: Batch, clip_norm: float) -> Tensor:
    mean = slow_clipped_sum(model, records, 1e9) / len(records)
    return mean * min(1.0, clip_norm / float(mean.norm())) * len(records)


def clip_pairs(model: nn.Module, records: Batch, clip_norm: float) -> Tensor:
    pairs = [records.select(torch.tensor([first, first + 1])) for first in range(0, len(records), 2)]
    sums = [slow_clipped_sum(model, pair, 1e9) / 2 for pair in pairs]
    return torch.stack([2 * part * min(1.0, clip_norm / float(part.norm())) for part in sums]).sum(0)


@pytest.mark.parametrize("broken", [clip_after_averaging, clip_pairs])
def test_comparison_catches_clipping_of_averages(broken):
    model, records = CASES["mlp"]()
    assert relative_error(broken(model, records, 0.05), slow_clipped_sum(model, records, 0.05)) > 1e-2


@WAYS
@pytest.mark.parametrize("case", CASES)
def test_a_record_counts_for_at_most_the_clip_norm(case, ghost):
    model, records = CASES[case]()
    for index in range(len(records)):
        one = records.select(torch.tensor([index]))
        assert float(fast_clipped_sum(model, one, 0.01, ghost=ghost).norm()) <= 0.01


@WAYS
def test_a_canary_of_a_hundred_clip_norms_is_clipped(ghost):
    model, records = mlp(), data(12, 6, classes=3)
    canary = Batch(records.inputs.clone(), records.targets.clone())
    canary.inputs[5] *= 1e4
    canary.targets[5] = model(canary.inputs[5:6]).argmin()
    alone = slow_clipped_sum(model, canary.select(torch.tensor([5])), 1e9)
    assert float(alone.norm()) > 100
    others = torch.tensor([index for index in range(12) if index != 5])
    influence = fast_clipped_sum(model, canary, 1.0, ghost=ghost) - fast_clipped_sum(
        model, canary.select(others), 1.0, ghost=ghost
    )
    assert 0.99 < float(influence.norm()) <= 1.0


@WAYS
@given(
    scale=st.sampled_from([0.0, 1e-30, 1e-8, 1.0, 1e8, 1e15, 1e18, 3e38, np.inf, np.nan]),
    clip_norm=st.sampled_from([1e-9, 0.1, 1e3]),
    seed=st.integers(0, 99),
)
def test_no_input_moves_the_sum_farther_than_the_clip_norm(ghost, scale, clip_norm, seed):
    model, records = mlp(), data(5, 6, classes=3, seed=seed)
    changed = Batch(records.inputs.clone(), records.targets)
    changed.inputs[2] = changed.inputs[2] * scale
    without = fast_clipped_sum(model, records.select(torch.tensor([0, 1, 3, 4])), clip_norm, ghost=ghost)
    moved = fast_clipped_sum(model, changed, clip_norm, ghost=ghost) - without
    assert float(moved.norm()) <= clip_norm


def test_a_small_gradient_beside_a_huge_input_has_a_norm():
    layer = nn.Linear(1, 1, bias=False)
    gradient = GhostLinear(layer, torch.full((1, 1), 1e18), torch.full((1, 1), 1e-24))
    assert float(gradient.squared_norms().sqrt()) == pytest.approx(1e-6, rel=1e-4)


@given(st.floats(30, 76))
@example(44.9)
def test_no_gradient_is_so_long_that_its_clip_factor_is_rounded_past_the_clip_norm(log_norm):
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    half = 10.0 ** (log_norm / 2)
    loss = PerRecordLoss(lambda outputs, _: (outputs * half).sum(1))
    batch = Batch(torch.full((1, 1), half), torch.zeros(1))
    for ghost in (True, False):
        summed = {layer.weight: torch.zeros(1, 1, dtype=torch.float64)}
        PerSampleClipper(layer, loss, 1.0, ghost=ghost).clipped(batch).add_to(summed)
        assert float(summed[layer.weight].abs()) <= 2.0**24


@WAYS
@pytest.mark.parametrize("case", ["mlp", "cnn"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_record_that_is_not_finite_counts_as_zero_and_spares_the_others(case, poison, ghost):
    model, records = CASES[case]()
    poisoned = Batch(records.inputs.clone(), records.targets)
    poisoned.inputs[3].view(-1)[0] = poison
    others = records.select(torch.tensor([index for index in range(12) if index != 3]))
    found = fast_clipped_sum(model, poisoned, 0.5, ghost=ghost)
    assert relative_error(found, slow_clipped_sum(model, others, 0.5)) < CLOSE


@WAYS
def test_comparison_catches_a_record_that_is_only_given_no_weight(ghost, monkeypatch):
    # 0·NaN is NaN: the factor alone does not keep it out.
    def only_weighted(xp, rows, scales, room=None):
        return xp.round(rows * scales[:, None])

    for module in (layer_gradients, whole_gradients):
        monkeypatch.setattr(module, "rounded", only_weighted)
    records, flat = data(12, 6, classes=3), FlatModel(mlp())
    records.inputs[3] = np.nan
    PerSampleClipper(flat.module, PerRecordLoss(nn.CrossEntropyLoss()), 0.5, ghost=ghost).clipped(records).add_to(
        flat.sums
    )
    assert not flat.whole.isfinite().all()


@WAYS
@pytest.mark.parametrize("label", [-1, 3, 10**6, -(10**6)])
def test_a_label_that_does_not_exist_counts_as_zero(label, ghost):
    records = data(12, 6, classes=3)
    mislabelled = Batch(records.inputs, records.targets.clone())
    mislabelled.targets[7] = label
    others = records.select(torch.tensor([index for index in range(12) if index != 7]))
    found = fast_clipped_sum(mlp(), mislabelled, 0.5, ghost=ghost)
    assert relative_error(found, slow_clipped_sum(mlp(), others, 0.5)) < CLOSE


def test_a_linear_layer_over_a_sequence_is_written_down():
    # Its places may cancel, and of that the factors say nothing.
    model, records = CASES["patches"]()
    clipper = PerSampleClipper(model, PerRecordLoss(nn.CrossEntropyLoss()), 1.0, ghost=True)
    kinds = {type(part) for part in clipper.gradients(records)}
    assert kinds == {GhostLinear, MaterialisedGradient}


def test_an_embedding_takes_no_memory_for_what_a_record_did_not_look_up():
    layer = nn.Embedding(1_000_000_000, 2, _weight=torch.zeros(1, 2).expand(1_000_000_000, 2))
    gradient = SparseEmbedding(layer, torch.tensor([[5, 9, 5], [7, 7, 9]]), torch.ones(2, 3, 2))
    assert gradient.squared_norms().tolist() == pytest.approx([10, 10], rel=1e-5)
    whole = gradient.whole(torch.tensor([100.0, 0.0]).double())
    assert whole.squares.tolist() == [100_000, 0]
    assert dict(zip(whole.tokens.tolist(), whole.rows.tolist(), strict=False))[5] == [200, 200]


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_an_embedding_whose_parts_are_not_finite_or_cancel_from_afar_counts_as_zero(value):
    layer = nn.Embedding(3, 1, dtype=torch.float64)
    gradients = torch.tensor([[[value], [-value], [1e-9]]], dtype=torch.float64)
    gradient = SparseEmbedding(layer, torch.zeros(1, 3, dtype=torch.int64), gradients)
    norms = gradient.squared_norms().sqrt()
    found = within_bound(torch, scales_for(torch, norms, 1.0), lambda s: ((w := gradient.whole(s)).squares, w))
    assert not found.rows.any()


class UsedBesideItsLayer(nn.Module):
    """Most of the gradient arises where no hook is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs) + 100 * inputs @ self.linear.weight.T


@WAYS
def test_what_no_hook_has_seen_cannot_enter_the_sum(ghost):
    # Such a model is refused; were it not, the clip norm would hold all the same.
    model, one = initialised(UsedBesideItsLayer()), data(1, 6, classes=3)
    one.targets[0] = model(one.inputs).argmin()
    assert float(slow_clipped_sum(model, one, 1e9).norm()) > 50
    assert float(fast_clipped_sum(model, one, 1.0, ghost=ghost).norm()) <= 1.0


def test_no_gradient_of_a_parameter_is_taken_by_autograd():
    flat = FlatModel(cnn())
    clipper = PerSampleClipper(flat.module, PerRecordLoss(nn.CrossEntropyLoss()), 1.0, ghost=True)
    clipper.clipped(data(4, 1, 8, 8, classes=3)).add_to(flat.sums)
    assert all(parameter.grad is None for parameter in flat.module.parameters())
    assert all(not module._forward_hooks for module in flat.module.modules())


@pytest.mark.parametrize(
    ("loss", "outputs", "targets", "expected"),
    [
        (nn.MSELoss(), [[1.0, 3.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 2.0]], [5.0, 2.0]),
        (nn.MSELoss(reduction="sum"), [[1.0, 3.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 2.0]], [10.0, 4.0]),
        (nn.functional.l1_loss, [[1.0, 3.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 2.0]], [2.0, 1.0]),
        (lambda outputs, targets: (outputs - targets)[:, 0], [[1.0, 3.0], [5.0, 0.0]], [[0.0], [0.0]], [1.0, 5.0]),
    ],
)
def test_a_loss_is_taken_record_by_record(loss, outputs, targets, expected):
    assert PerRecordLoss(loss)(torch.tensor(outputs), torch.tensor(targets)).tolist() == expected


def test_the_callers_loss_stays_as_it_was():
    loss = nn.CrossEntropyLoss()
    PerRecordLoss(loss)
    assert loss.reduction == "mean"
