"""Any torch module as a model to train: gradients by torch.func, many devices at once where torch can."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from server_kit.layout import Layout

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """One value for each record."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


@dataclass(frozen=True, eq=False)
class ModuleSpec:
    """A torch module, its input shape (of one record), and a loss that gives one value for each record.

    The module is copied and left alone. It trains in training mode; buffers (running statistics) are not
    trained and start each batch as they are now. Layers that draw (dropout) use torch's own generator, so
    that their runs cannot be repeated by seed.
    """

    source: nn.Module
    input_shape: tuple[int, ...]
    loss: Loss = cross_entropy

    @cached_property
    def layout(self) -> Layout:
        return Layout.of_module(self.source)

    def initial(self, seed: int = 0) -> Tensor:
        """The weights that the module has; a module draws its own, so the seed decides nothing."""
        del seed
        return self.layout.read(self.source)

    def module(self, weights: Tensor | None = None) -> nn.Module:
        """A copy of the module; with `weights`, with those."""
        module = copy.deepcopy(self.source)
        if weights is not None:
            self.layout.write(weights, module)
        return module

    @property
    def mixes_records(self) -> bool:
        """Whether a record's output depends on its batch, so that no batch may be padded."""
        return any(isinstance(part, _BatchNorm) for part in self.source.modules())
