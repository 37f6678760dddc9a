"""Which model is trained: a built-in kind or a torch module of one's own; its sizes follow from the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from server_kit.places import Place
from server_kit.reading import Reader, named_object

if TYPE_CHECKING:
    from server_kit.simulation.datasets import Dataset
    from server_kit.simulation.training.bench import Spec

INFERRED = ("features", "classes", "image")


@dataclass(frozen=True)
class Model:
    """Makes the spec for a data set and a seed."""

    make: Callable[[Dataset, int], Spec]
    place: Place

    def spec(self, dataset: Dataset, seed: int) -> Spec:
        """The same data set and seed, the same initial weights."""
        with self.place.named_in_errors():
            return self.make(dataset, seed)


@dataclass(frozen=True)
class OwnModule:
    """`build(input_shape, num_classes, **settings)` gives a torch module."""

    module: str
    settings: dict[str, Any] = field(default_factory=dict)


def model_kinds() -> Mapping[str, Callable[..., Any]]:
    """The built-in kinds of model."""
    from server_kit.simulation.training import Cnn, LogisticRegression, Mlp

    return {"cnn": Cnn, "logistic": LogisticRegression, "mlp": Mlp}


def read_model(reader: Reader, table: Mapping[str, Any], place: Place) -> Model:
    """The model of a table: `kind` (by default mlp) with its settings, or `module`."""
    if "module" in table:
        return _own(reader, table, place)
    kinds, rest = model_kinds(), dict(table)
    kind = rest.pop("kind", "mlp")
    if kind not in kinds:
        raise place.unknown("kind", str(kind), kinds)
    settings = reader.settings(rest, place, kinds[kind], without=INFERRED)

    def make(dataset: Dataset, _: int) -> Spec:
        shape = input_shape(dataset)
        size: dict[str, Any] = {"image": shape} if kind == "cnn" else {"features": math.prod(shape)}
        if kind == "cnn" and len(shape) != 3:
            raise place.wrong(f"a cnn needs images, {dataset.name} has inputs of shape {shape}")
        spec: Spec = kinds[kind](**settings, **size, classes=dataset.num_classes)
        return spec

    return Model(make, place)


def input_shape(dataset: Dataset) -> tuple[int, ...]:
    """Of one sample, images with their channels first; one channel is added where images have none."""
    shape = dataset.x.shape[1:]
    return (1, *shape) if len(shape) == 2 else shape


def _own(reader: Reader, table: Mapping[str, Any], place: Place) -> Model:
    own = OwnModule(**reader.settings(table, place, OwnModule))
    build = named_object(own.module, place)

    def make(dataset: Dataset, seed: int) -> Spec:
        import torch

        from server_kit.simulation.training import ModuleSpec

        shape = input_shape(dataset)
        # A module draws its initial weights from torch's own generator.
        torch.manual_seed(seed)
        module = build(shape, dataset.num_classes, **own.settings)
        if not isinstance(module, torch.nn.Module):
            raise place.wrong(f"{own.module} gave a {type(module).__name__}, not a torch module")
        return ModuleSpec(module, shape)

    return Model(make, place)
