"""Models that the kernels of this package know: plain data that says which layers there are.

A spec knows its layout, its initial weights for a seed, and the torch module that computes the same thing.
Any other torch module trains too, more slowly: `module_spec.ModuleSpec`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from server_kit.errors import InvalidSetting
from server_kit.layout import Layout
from server_kit.simulation.training.streams import named_words

POOL = 2  # every convolution is followed by a maximum over 2 x 2


@dataclass(frozen=True)
class ConvolutionShape:
    """One convolution with ReLU and 2 x 2 maximum pooling, and the sizes that pass through it."""

    channels_in: int
    channels_out: int
    height: int
    width: int
    kernel: int
    padding: int

    @property
    def pooled(self) -> tuple[int, int]:
        """Height and width of what comes out."""
        return self._pooled(self.height), self._pooled(self.width)

    def _pooled(self, side: int) -> int:
        return (side + 2 * self.padding - self.kernel + 1) // POOL


class _Stack(ABC):
    """What the specs below share: convolutions (maybe none), then dense layers with ReLU between them."""

    @property
    def convolutions(self) -> tuple[ConvolutionShape, ...]:
        return ()

    @property
    @abstractmethod
    def widths(self) -> tuple[int, ...]:
        """Sizes between dense layers: inputs, hidden layers, classes."""

    @cached_property
    def layout(self) -> Layout:
        tensors: list[tuple[str, tuple[int, ...]]] = []
        for number, shape in enumerate(self.convolutions, start=1):
            kernel = (shape.channels_out, shape.channels_in, shape.kernel, shape.kernel)
            tensors += [(f"conv{number}.weight", kernel), (f"conv{number}.bias", kernel[:1])]
        for number, (fan_in, fan_out) in enumerate(pairwise(self.widths), start=1):
            tensors += [(f"dense{number}.weight", (fan_out, fan_in)), (f"dense{number}.bias", (fan_out,))]
        return Layout(tuple(tensors))

    def initial(self, seed: int) -> Tensor:
        """Weights and biases uniform within ±1/√(inputs of a unit), as torch draws them; the seed decides."""
        words = named_words(f"initial-weights:{seed}", self.layout.size)
        flat = torch.from_numpy((words >> np.uint64(40)).astype(np.float32) * 2.0**-23 - 1)
        views = self.layout.views(flat)
        for name, view in views.items():
            fan_in = math.prod(views[f"{name.partition('.')[0]}.weight"].shape[1:])
            view.div_(math.sqrt(fan_in))
        return flat

    def module(self, weights: Tensor | None = None) -> nn.Module:
        """The same model for torch, its parameters named as in `layout`; with `weights`, those."""
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for number, shape in enumerate(self.convolutions, start=1):
            layers[f"conv{number}"] = nn.Conv2d(
                shape.channels_in, shape.channels_out, shape.kernel, padding=shape.padding
            )
            layers[f"relu{number}"] = nn.ReLU()
            layers[f"pool{number}"] = nn.MaxPool2d(POOL)
        layers["flatten"] = nn.Flatten()
        for number, (fan_in, fan_out) in enumerate(pairwise(self.widths), start=1):
            layers[f"dense{number}"] = nn.Linear(fan_in, fan_out)
            if number < len(self.widths) - 1:
                layers[f"dense_relu{number}"] = nn.ReLU()
        module = nn.Sequential(layers)
        if weights is not None:
            self.layout.write(weights, module)
        return module


@dataclass(frozen=True)
class Mlp(_Stack):
    """Dense layers with ReLU between them."""

    features: int = 784
    hidden: tuple[int, ...] = (128,)
    classes: int = 10

    def __post_init__(self) -> None:
        _check_sizes(self.features, *self.hidden, self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.features,)

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.features, *self.hidden, self.classes)


@dataclass(frozen=True)
class LogisticRegression(_Stack):
    """Multinomial logistic regression (MCLR): one dense layer."""

    features: int = 784
    classes: int = 10

    def __post_init__(self) -> None:
        _check_sizes(self.features, self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.features,)

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.features, self.classes)


@dataclass(frozen=True)
class Cnn(_Stack):
    """A LeNet: convolutions with ReLU and 2 x 2 maximum pooling, then dense layers.

    The kernel has an odd side, and each pooling must come out even: with 28 x 28 pixels and kernel 5, padding
    0 gives 24, 12, 8, 4 and padding 2 gives 28, 14, 14, 7.
    """

    image: tuple[int, int, int] = (1, 28, 28)
    """Channels, height, width."""
    channels: tuple[int, ...] = (6, 16)
    kernel: int = 5
    padding: int = 0
    hidden: tuple[int, ...] = (120, 84)
    classes: int = 10

    def __post_init__(self) -> None:
        _check_sizes(*self.image, *self.channels, self.kernel, *self.hidden, self.classes)
        if not self.channels or self.kernel % 2 == 0 or self.padding < 0:
            raise InvalidSetting(
                "a CNN needs a convolution, an odd kernel and a padding of 0 or more; nothing was made"
            )
        for number, shape in enumerate(self.convolutions, start=1):
            for side in (shape.height, shape.width):
                outputs = side + 2 * self.padding - self.kernel + 1
                if outputs < POOL or outputs % POOL:
                    raise InvalidSetting(
                        f"convolution {number} gives {outputs} outputs along a side, which 2 x 2 pooling cannot halve; "
                        "choose another kernel, padding or image; nothing was made"
                    )

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.image

    @cached_property
    def convolutions(self) -> tuple[ConvolutionShape, ...]:
        channels_in, height, width = self.image
        shapes = []
        for channels_out in self.channels:
            shapes.append(ConvolutionShape(channels_in, channels_out, height, width, self.kernel, self.padding))
            channels_in, (height, width) = channels_out, shapes[-1].pooled
        return tuple(shapes)

    @property
    def widths(self) -> tuple[int, ...]:
        height, width = self.convolutions[-1].pooled
        return (self.channels[-1] * height * width, *self.hidden, self.classes)


def _check_sizes(*sizes: int) -> None:
    if min(sizes) < 1:
        raise InvalidSetting(f"every layer of a model needs a size of 1 or more, got {sizes}; nothing was made")


StackedSpec = LogisticRegression | Mlp | Cnn
"""The specs that have hand-written kernels."""
