"""A record's clipped gradient is whole numbers no longer than the clip norm, whatever comes in; sums are exact."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from privacy.mechanisms.dp_sgd import DenseFactors
from privacy.training import dense_update
from privacy.training.dense_update import add_whole_gradients
from privacy.training.flat_model import FlatModel
from privacy.training.loop import Work
from privacy.training.per_record_loss import PerRecordLoss
from privacy.training.per_sample_clipping import Batch, PerSampleClipper
from privacy.training.row_trial import rows_for_gradients
from privacy.training.whole_gradients import OuterProducts, lengths, scales_for, within_bound
from tests.privacy.dp_sgd_cases import CASES, in_memory

BOUND = 2**24
ANYTHING = st.one_of(
    st.floats(width=32),
    st.sampled_from([0.0, -0.0, 1e38, -3e38, 1e-38, 1e-45, 2.0**-126, math.nan, math.inf, -math.inf]),
)
CLIP_NORMS = [1e-12, 2.9e-7, 1.0, 1e12]
WAYS = pytest.mark.parametrize("ghost", [True, False], ids=["ghost", "hooks"])


def squared(whole) -> int:
    """In Python's integers, which are never rounded."""
    values = np.asarray(whole, dtype=np.float64).ravel()
    assert np.array_equal(values, np.rint(values))
    return sum(int(value) ** 2 for value in values)


def dense_sum(inputs, errors, clip_norm):
    into = {"a.weight": np.zeros((errors.shape[1], inputs.shape[1])), "a.bias": np.zeros(errors.shape[1])}
    add_whole_gradients([DenseFactors("a", inputs, errors)], clip_norm, into)
    return np.concatenate([part.ravel() for part in into.values()])


@given(
    npst.arrays(np.float32, (1, 5), elements=ANYTHING),
    npst.arrays(np.float32, (1, 3), elements=ANYTHING),
    st.sampled_from(CLIP_NORMS),
)
def test_no_record_of_a_dense_layer_counts_for_more_than_the_clip_norm(inputs, errors, clip_norm):
    assert squared(dense_sum(inputs, errors, clip_norm)) <= BOUND**2


def subnormal_factors(xp, scales, whole):
    """What was once done: products are rounded to subnormal floats, and nobody looks at them again."""
    found = whole(scales)[1]
    for each in found:
        each.errors[...] = np.ceil(np.abs(each.errors) / 1e6) * 2e6
    return found


def test_the_integer_law_catches_factors_that_were_rounded_up(monkeypatch):
    monkeypatch.setattr(dense_update, "within_bound", subnormal_factors)
    assert squared(dense_sum(np.full((1, 8), 1e38, np.float32), np.full((1, 2), 0.5, np.float32), 2.9e-7)) > BOUND**2


@pytest.mark.parametrize("clip_norm", [2.9e-7, 1e-12, 1e-5])
@pytest.mark.parametrize("size", [1e30, 1e38, 1.19e38])
def test_features_beside_which_factors_vanish_count_in_full_and_no_more(clip_norm, size):
    found = dense_sum(np.full((1, 8), size, np.float32), np.array([[0.5, -0.5]], np.float32), clip_norm)
    assert 0.99 * BOUND < math.sqrt(squared(found)) <= BOUND


def work(model, records, clip_norm, *, ghost):
    flat, loss = FlatModel(model), PerRecordLoss(torch.nn.CrossEntropyLoss())
    rows = rows_for_gradients(flat.module, loss, records, 8, ghost=ghost)
    return Work(flat, PerSampleClipper(flat.module, loss, clip_norm, ghost=ghost), in_memory(records), rows)


@WAYS
@pytest.mark.parametrize("clip_norm", CLIP_NORMS)
@pytest.mark.parametrize("case", CASES)
def test_no_record_of_any_model_counts_for_more_than_the_clip_norm(case, clip_norm, ghost):
    model, records = CASES[case]()
    for scale in (1.0, 0.0, 1e-42, 1e18, 1e38, math.inf, math.nan):
        changed = Batch(records.inputs.clone(), records.targets)
        if changed.inputs.is_floating_point():
            changed.inputs[3] *= scale
        sums = work(model, changed, clip_norm, ghost=ghost)
        for number in (0, 3):
            assert squared(sums.clipped_sum(np.array([number]))) <= BOUND**2


@pytest.mark.parametrize("inputs", [1e-300, 1e-150, 1.0, 1e150, 1e300])
@pytest.mark.parametrize("errors", [1e-300, 1e-150, 1.0, 1e150, 1e300])
def test_no_float64_of_any_size_breaks_the_bound(inputs, errors):
    rng = np.random.default_rng(1)
    products = OuterProducts.of(np, rng.normal(size=(4, 3)) * errors, rng.normal(size=(4, 5)) * inputs)
    for clip_norm in CLIP_NORMS:
        with np.errstate(all="ignore"):
            norms = np.sqrt(products.squared_norms())
            found = within_bound(
                np, scales_for(np, norms, clip_norm), lambda scales: ((w := products.whole(scales)).squares(), w)
            )
        for row in range(4):
            assert squared(np.outer(found.errors[row], found.inputs[row])) <= BOUND**2


@given(st.integers(1, 60), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_norms_do_not_depend_on_the_rows_beside_them_nor_on_the_library(rows, width, seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, width)) * 10.0 ** rng.integers(-9, 9, size=(rows, width))
    together = lengths(np, values)
    assert np.array_equal(together, [lengths(np, values[row : row + 1])[0] for row in range(rows)])
    assert np.array_equal(together, lengths(torch, torch.from_numpy(values)).numpy())
    assert together == pytest.approx(np.linalg.norm(values, axis=1), rel=1e-4)


def test_plain_norms_depend_on_the_order_of_adding_up():
    values = np.random.default_rng(0).normal(size=(200, 37))
    assert (np.linalg.norm(values, axis=1) != np.linalg.norm(values[:, ::-1], axis=1)).any()
    assert np.array_equal(lengths(np, values), lengths(np, values[:, ::-1]))


@WAYS
@pytest.mark.parametrize("case", CASES)
def test_a_sum_is_the_sum_of_its_parts_in_any_grouping_bit_for_bit(case, ghost):
    model, records = CASES[case]()
    sums = work(model, records, 0.3, ghost=ghost)
    whole = sums.clipped_sum(np.arange(12)).clone()
    rng = np.random.default_rng(5)
    for _ in range(3):
        order, cut = rng.permutation(12), int(rng.integers(1, 12))
        parts = [sums.clipped_sum(part).clone() for part in (order[:cut], order[cut:])]
        assert torch.equal(parts[0] + parts[1], whole)
    alone = [sums.clipped_sum(np.array([number])).clone() for number in range(12)]
    assert torch.equal(torch.stack(alone).sum(0), whole)


def test_float_sums_depend_on_their_grouping():
    values = torch.randn(12, 500, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(values[:5].sum(0) + values[5:].sum(0), values.sum(0))
