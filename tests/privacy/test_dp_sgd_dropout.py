"""Dropout in private training: the masks are the device's secret, and each record has its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from opacus.layers import DPLSTM
from scipy import stats
from torch import nn

from privacy.key_stream import KeyStream
from privacy.mechanisms.dp_sgd import DpSgd, TrainingData
from privacy.randomness import NoiseSource, SeededSource
from privacy.training.flat_model import FlatModel
from privacy.training.secret_dropout import SecretDropout, replace_dropout
from tests.privacy.dp_sgd_cases import data, initialised, shapes_of


def secret(p: float, *, channels: bool = False, key: int = 0) -> SecretDropout:
    dropout = SecretDropout(p, channels=channels)
    dropout.stream = KeyStream(key.to_bytes(32))
    return dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_values_are_dropped_as_often_as_torch_does_and_keep_their_mean(p):
    dropped = secret(p)(torch.ones(1000, 100))
    assert stats.binomtest(int((dropped == 0).sum()), dropped.numel(), p).pvalue > 1e-4
    assert dropped.unique().tolist() == pytest.approx([0, 1 / (1 - p)])


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_all_or_nothing_is_kept(p):
    assert torch.equal(secret(p)(torch.ones(10, 10)), nn.functional.dropout(torch.ones(10, 10), p))


def test_whole_channels_are_dropped_together():
    dropped = secret(0.5, channels=True)(torch.ones(40, 8, 3, 3))
    assert all(len(set(channel.flatten().tolist())) == 1 for record in dropped for channel in record)
    assert 0.3 < float((dropped[:, :, 0, 0] == 0).float().mean()) < 0.7


def test_masks_differ_from_call_to_call_and_from_key_to_key():
    dropout = secret(0.5)
    first, second = dropout(torch.ones(100)), dropout(torch.ones(100))
    assert not torch.equal(first, second)
    assert not torch.equal(first, secret(0.5, key=1)(torch.ones(100)))
    assert torch.equal(first, secret(0.5)(torch.ones(100)))


def test_without_a_stream_or_outside_training_everything_passes():
    values = torch.ones(100)
    assert torch.equal(SecretDropout(0.5, channels=False)(values), values)
    assert torch.equal(secret(0.5).eval()(values), values)


def test_every_dropout_layer_is_replaced_wherever_it_lies():
    model = nn.Sequential(nn.Dropout(0.2), nn.Sequential(nn.Dropout2d(0.3)), DPLSTM(3, 4, num_layers=2, dropout=0.4))
    assert sorted((layer.p, layer.channels) for layer in replace_dropout(model)) == [
        (0.2, False), (0.3, True), (0.4, False),
    ]  # fmt: skip
    assert not any(isinstance(module, nn.Dropout | nn.Dropout2d) for module in model.modules())


def dropping() -> nn.Module:
    return initialised(nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5), nn.Linear(40, 3)))


def released(noise: NoiseSource) -> np.ndarray:
    records, model = data(12, 6, classes=3), dropping()
    terms = DpSgd(shapes_of(model), 1, "0.00001", 1, 3, 12, 1)
    work = TrainingData(model, nn.CrossEntropyLoss(), records.inputs, records.targets, clipping="ghost")
    terms.check(work)
    return terms.decode_steps(terms.answer(work, noise).payload)


def test_seeding_torch_does_not_fix_the_masks():
    # Next to no noise and everybody in each batch: what differs are the masks.
    def after_seeding() -> np.ndarray:
        torch.manual_seed(0)
        return released(NoiseSource())

    assert np.abs(after_seeding() - after_seeding()).max() > 10


def test_a_seeded_source_fixes_the_masks():
    first, second = (released(NoiseSource(SeededSource("masks"))) for _ in range(2))
    assert np.array_equal(first, second)


def test_the_callers_dropout_stays():
    model = dropping()
    FlatModel(model).drop_out(KeyStream(bytes(32)))
    assert [type(module) for module in model.children()] == [nn.Linear, nn.Dropout, nn.Linear]
