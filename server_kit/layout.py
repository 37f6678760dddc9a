"""Where each tensor of a model lies in the one flat vector that stands for the whole model.

A simulated device is a row: a fleet of n devices is one float32 matrix [n, size], and every tensor of every
device is a view into it. What leaves for a user, a checkpoint or torch goes through `pack` and `unpack`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from server_kit.errors import InvalidSetting


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's tensors, in the order in which they lie side by side."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of_module(cls, module: nn.Module) -> Layout:
        """The trainable parameters of a torch module, in the module's own order."""
        return cls(tuple((name, tuple(value.shape)) for name, value in _trainable(module)))

    @cached_property
    def size(self) -> int:
        """How many parameters the model has."""
        return sum(math.prod(shape) for _, shape in self.tensors)

    @cached_property
    def places(self) -> dict[str, tuple[int, int, tuple[int, ...]]]:
        """Name to (first coordinate, one past the last, shape)."""
        places = {}
        start = 0
        for name, shape in self.tensors:
            places[name] = (start, start + math.prod(shape), shape)
            start += math.prod(shape)
        return places

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors inside `flat` [..., size], as views [..., *shape]: writing to one writes to `flat`."""
        self.check(flat)
        return {
            name: flat[..., start:stop].view(*flat.shape[:-1], *shape)
            for name, (start, stop, shape) in self.places.items()
        }

    def pack(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """One flat float32 vector out of named tensors; every name must be there, and no other."""
        if set(tensors) != set(self.places):
            missing, unknown = set(self.places) - set(tensors), set(tensors) - set(self.places)
            raise InvalidSetting(
                f"the model has other tensors: missing {sorted(missing)}, unknown {sorted(unknown)}; nothing was packed"
            )
        for name, (_, _, shape) in self.places.items():
            if tuple(tensors[name].shape) != shape:
                found = tuple(tensors[name].shape)
                raise InvalidSetting(f"tensor {name!r} has shape {found}, the model needs {shape}; nothing was packed")
        return torch.cat([tensors[name].detach().reshape(-1).to(torch.float32) for name, _ in self.tensors])

    def unpack(self, flat: Tensor) -> dict[str, Tensor]:
        """Copies of the tensors inside one model `flat` [size]."""
        return {name: view.clone() for name, view in self.views(flat).items()}

    def read(self, module: nn.Module) -> Tensor:
        """The parameters of a torch module as one flat vector."""
        return self.pack(dict(_trainable(module)))

    def write(self, flat: Tensor, module: nn.Module) -> None:
        """Copy one model `flat` [size] into the parameters of a torch module."""
        views = self.views(flat)
        with torch.no_grad():
            for name, parameter in _trainable(module):
                parameter.copy_(views[name])

    def check(self, flat: Tensor) -> None:
        """Refuse a vector that cannot hold this model."""
        if flat.shape[-1] != self.size:
            raise InvalidSetting(
                f"a vector of {flat.shape[-1]} numbers cannot hold a model of {self.size} parameters; nothing was read"
            )


def _trainable(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, value) for name, value in module.named_parameters() if value.requires_grad)
