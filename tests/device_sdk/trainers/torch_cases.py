"""Models and records for the trainer that uses torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from privacy.training.flat_model import trainable


def records(count: int = 40, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(count, 6)).astype(np.float32)), torch.from_numpy(rng.integers(0, 3, count))


def mlp(*between: nn.Module) -> nn.Sequential:
    """Six inputs, three classes, weights that are the same every time."""
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), *between, nn.Linear(5, 3))
    rng = np.random.default_rng(7)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            parameter.copy_(torch.from_numpy(rng.normal(scale=0.3, size=tuple(parameter.shape))))
    return model


def weights_of(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: parameter.detach().numpy().copy() for name, parameter in trainable(model).items()}


def state_of(model: nn.Module) -> list[Any]:
    """Everything about a model that training might change."""
    tensors = [tensor.clone() for tensor in (*model.parameters(), *model.buffers())]
    gradients = [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]
    modes = [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    return [tensors, gradients, modes, hooks, [id(parameter) for parameter in model.parameters()]]


def same(one: list[Any], other: list[Any]) -> bool:
    tensors, *rest = one
    others, *others_rest = other
    return all(map(torch.equal, tensors, others)) and rest == others_rest


class Items(Dataset[tuple[Tensor, int]]):
    """Records that are read one by one."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self._inputs, self._targets = inputs, targets

    def __len__(self) -> int:
        return len(self._targets)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return self._inputs[number], int(self._targets[number])
