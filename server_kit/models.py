"""The model that a federation trains: a few small ones to begin with, and how one's own is found.

`package.module:build` names a function without arguments that gives a torch module, of which the trainable
parameters are learned, or a mapping of names to arrays.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server_kit.errors import InvalidSetting
from server_kit.places import Place
from server_kit.reading import named_object

if TYPE_CHECKING:
    from torch import Tensor, nn

    from server_kit.layout import Layout

DIGITS_FEATURES, DIGITS_CLASSES = 64, 10
"""Handwritten digits of 8 x 8 pixels."""


@dataclass(frozen=True, eq=False)
class InitialModel:
    """What the first round starts from."""

    layout: Layout
    weights: Tensor
    """One flat float32 vector."""
    module: nn.Module | None
    """Computes the model, for evaluation; None if only arrays were given."""

    @property
    def size_bytes(self) -> int:
        return 4 * self.layout.size


def digits_softmax() -> nn.Module:
    """Softmax regression for digits of 8 x 8 pixels."""
    return dense(DIGITS_FEATURES, DIGITS_CLASSES)


def digits_mlp() -> nn.Module:
    """One hidden layer of 32 for digits of 8 x 8 pixels."""
    return dense(DIGITS_FEATURES, 32, DIGITS_CLASSES)


def mnist_mlp() -> nn.Module:
    """One hidden layer of 128 for images of 28 x 28 pixels."""
    return dense(784, 128, DIGITS_CLASSES)


def dense(*widths: int) -> nn.Module:
    """Dense layers of these widths with ReLU between them; devices can train it without torch."""
    from torch import nn

    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number in range(1, len(widths)):
        layers[f"dense{number}"] = nn.Linear(widths[number - 1], widths[number])
        if number < len(widths) - 1:
            layers[f"relu{number}"] = nn.ReLU()
    return nn.Sequential(layers)


def initial_model(target: str, seed: int, folder: Path | None = None) -> InitialModel:
    """What `target` builds, the same for the same seed. Its code is run.

    Modules in `folder`, and where the command is run, are found too.
    """
    import sys

    import torch

    for place_of_modules in (Path.cwd(), folder):
        if place_of_modules is not None and str(place_of_modules) not in sys.path:
            sys.path.insert(0, str(place_of_modules))
    place = Place("server.toml", ("federation",))
    build = _found(target, place)
    with torch.random.fork_rng(devices=[]):
        # A module draws its initial weights from torch's own generator.
        torch.manual_seed(seed)
        try:
            built = build()
        except Exception as error:
            raise place.wrong(f"model {target!r} failed when it was built ({type(error).__name__})") from error
    if isinstance(built, torch.nn.Module):
        return _of_module(built)
    if isinstance(built, Mapping) and built:
        return _of_arrays(built)
    raise place.wrong(f"model {target!r} gave a {type(built).__name__}, not a torch module or a mapping of arrays")


def _found(target: str, place: Place) -> Callable[[], Any]:
    try:
        build: Callable[[], Any] = named_object(target, place)
    except InvalidSetting:
        raise
    except Exception as error:
        raise place.wrong(f"model {target!r} failed when it was imported ({type(error).__name__})") from error
    return build


def _of_module(module: nn.Module) -> InitialModel:
    from server_kit.layout import Layout

    layout = Layout.of_module(module)
    if not layout.size:
        raise InvalidSetting("the model has no parameter that can be trained; nothing was started")
    return InitialModel(layout, layout.read(module), module)


def _of_arrays(arrays: Mapping[str, Any]) -> InitialModel:
    import torch

    from server_kit.layout import Layout

    tensors = {str(name): torch.as_tensor(array) for name, array in arrays.items()}
    layout = Layout(tuple((name, tuple(tensor.shape)) for name, tensor in tensors.items()))
    return InitialModel(layout, layout.pack(tensors), None)
