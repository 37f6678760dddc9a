"""Models, data and the slow, obvious version that record-level DP-SGD is compared with."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from opacus.layers import DPLSTM, DPMultiheadAttention
from torch import Tensor, nn
from torch.nn import functional

from privacy.training.flat_model import FlatModel, trainable
from privacy.training.per_record_loss import PerRecordLoss
from privacy.training.per_sample_clipping import Batch, PerSampleClipper
from privacy.training.records import Records
from privacy.training.whole_gradients import SLACK, grid_step

Model = TypeVar("Model", bound=nn.Module)

torch.set_num_threads(1)  # test workers share the cores


def data(*shape: int, classes: int, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    inputs = torch.from_numpy(rng.normal(size=shape).astype(np.float32))
    return Batch(inputs, torch.from_numpy(rng.integers(0, classes, size=shape[0])))


def token_data(num_records: int, length: int, vocabulary: int, classes: int, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    tokens = torch.from_numpy(rng.integers(0, vocabulary, size=(num_records, length)))
    return Batch(tokens, torch.from_numpy(rng.integers(0, classes, size=num_records)))


def initialised(model: Model, seed: int = 0) -> Model:
    """The same weights whatever ran before."""
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            parameter.copy_(torch.from_numpy(rng.normal(scale=0.3, size=tuple(parameter.shape))))
    return model


def mlp(inputs: int = 6, hidden: int = 5, classes: int = 3) -> nn.Sequential:
    return initialised(nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes)))


def cnn() -> nn.Sequential:
    layers = [
        nn.Conv2d(1, 4, 3, padding=1, stride=2),
        nn.GroupNorm(2, 4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, 3, groups=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.LayerNorm(24),
        nn.Linear(24, 3),
    ]
    return initialised(nn.Sequential(*layers))


class Words(nn.Module):
    """Embedding with a padding row, recurrent layer, linear layer: sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4, padding_idx=0)
        self.lstm = DPLSTM(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0][:, -1])


class Attentive(nn.Module):
    """Attention, and a linear layer used at every place of a sequence, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.attention = DPMultiheadAttention(4, 2, batch_first=True)
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        hidden = self.attention(hidden, hidden, hidden, need_weights=False)[0]
        return self.head(self.mix(torch.tanh(self.mix(hidden))).mean(1))


class Patches(nn.Module):
    """A linear layer over a grid of places."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, patches: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(patches)).mean((1, 2)))


class Tied(nn.Module):
    """Two layers that share one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).mean(1))


CASES = {
    "mlp": lambda: (mlp(), data(12, 6, classes=3)),
    "cnn": lambda: (cnn(), data(12, 1, 8, 8, classes=3)),
    "words": lambda: (initialised(Words()), token_data(12, 7, 11, 3)),
    "attentive": lambda: (initialised(Attentive()), token_data(12, 7, 11, 3)),
    "patches": lambda: (initialised(Patches()), data(12, 3, 2, 4, classes=3)),
    "tied": lambda: (initialised(Tied()), token_data(12, 5, 11, 11)),
    "double": lambda: (mlp().double(), Batch(data(12, 6, classes=3).inputs.double(), data(12, 6, classes=3).targets)),
}


def slow_clipped_sum(model: nn.Module, records: Batch, clip_norm: float) -> Tensor:
    """One record at a time: its gradient, its norm, its share of the sum."""
    model.train()
    parameters = list(trainable(model).values())
    total = torch.zeros(sum(parameter.numel() for parameter in parameters), dtype=torch.float64)
    for index in range(len(records)):
        loss = functional.cross_entropy(model(records.inputs[index : index + 1]), records.targets[index : index + 1])
        parts = torch.autograd.grad(loss, parameters, materialize_grads=True)
        gradient = torch.cat([part.reshape(-1) for part in parts]).double()
        norm = float(gradient.norm())
        if np.isfinite(norm):
            total += gradient * min(1.0, clip_norm / SLACK / norm) if norm else 0
    return total


def fast_clipped_sum(model: nn.Module, records: Batch, clip_norm: float, *, ghost: bool) -> Tensor:
    """What the package does, on a copy of `model`."""
    flat = FlatModel(model)
    clipper = PerSampleClipper(flat.module, PerRecordLoss(nn.CrossEntropyLoss()), clip_norm, ghost=ghost)
    clipper.clipped(records).add_to(flat.sums)
    assert torch.equal(flat.whole, flat.whole.round())
    return flat.whole * grid_step(clip_norm)


def in_memory(records: Batch) -> Records:
    """The records as training reads them."""
    return Records(records, records, unreadable=lambda: None)


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in trainable(model).items()}
