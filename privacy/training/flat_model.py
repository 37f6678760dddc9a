"""A private copy of the caller's model whose trainable parameters lie side by side in one vector."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from privacy.errors import UnsupportedModel
from privacy.key_stream import KeyStream
from privacy.training.secret_dropout import replace_dropout


class FlatModel:
    """The copy, in training mode. Noise and steps then touch one vector instead of many tensors.

    `weights` is what `module` computes with. `whole` holds sums of clipped gradients in whole grid steps, in float64
    whatever the model's own type; `sums` are views into it, one for each parameter. Parameters stand in the order of
    their names, as in every release.
    """

    def __init__(self, model: nn.Module) -> None:
        self.module = _copied(model)
        self._dropouts = replace_dropout(self.module)
        self.module.train()
        self.parameters = trainable(self.module)
        self.weights = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters.values()])
        self.whole = torch.zeros_like(self.weights, dtype=torch.float64)
        self.sums: dict[Tensor, Tensor] = {}
        sizes = [parameter.numel() for parameter in self.parameters.values()]
        parts = zip(torch.split(self.weights, sizes), torch.split(self.whole, sizes), strict=True)
        for parameter, (weights, whole) in zip(self.parameters.values(), parts, strict=True):
            parameter.grad = None
            parameter.data = weights.view(parameter.shape)
            self.sums[parameter] = whole.view(parameter.shape)

    @property
    def has_dropout(self) -> bool:
        return bool(self._dropouts)

    def drop_out(self, stream: KeyStream) -> None:
        """From now on dropout layers draw their masks from `stream`; until then they let everything pass."""
        for dropout in self._dropouts:
            dropout.stream = stream


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise UnsupportedModel(
            f"the model cannot be copied, and the caller's own must not be changed: {error}; "
            "remove what rewrites its parameters, such as weight_norm; nothing was booked"
        ) from error


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training changes, sorted by name."""
    return {name: parameter for name, parameter in sorted(model.named_parameters()) if parameter.requires_grad}
