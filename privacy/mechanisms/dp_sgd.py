"""A model trained on the device in noised steps: protects each of its records."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from privacy.budget import NeighbouringRelation, PrivacyCost, PrivacyUnit, SampledGaussian
from privacy.errors import InvalidTerms, MissingExtra
from privacy.exact import Number, as_written, exact_multiplier, positive
from privacy.packing import pack_array, unpack_array, width_for
from privacy.release import Answer, Guarantee
from privacy.tensor_shapes import Shapes, described, in_order, size_of, unflattened
from privacy.training.step_noise import deviation_in_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from privacy.randomness import NoiseSource
    from privacy.training.records import Items


def _nothing() -> None:
    """Nobody wants to know."""


_NOISE_RANGE = 6  # standard deviations that the packed width must hold; what lies beyond is clamped


@dataclass(frozen=True, eq=False)
class TrainingData:
    """What is trained, on which records, and how the work is done. None of it is public but its form.

    `model` is copied and stays as it is; its parameters with `requires_grad` are trained and released.
    `loss(outputs, targets)` is one of torch's or returns one value for each record. `inputs` and `targets`
    hold the records in their first dimension; with `items` they hold none and only tell the form of a record.
    """

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    inputs: Tensor
    targets: Tensor
    micro_batch_size: int = 64
    """How many rows pass through the model at once, at most; bounds the memory and changes nothing else."""
    clipping: Literal["fastest", "ghost", "hooks"] = "fastest"
    """Ghost clipping never writes down a record's gradient, hooks do; the faster depends on the model."""
    items: Items | None = None
    """Records that are read one by one, when a batch needs them: pairs of input and target."""
    on_unreadable: Callable[[], None] = _nothing
    """Called for a record that cannot be read or makes the model raise, which counts as zero; for the app alone."""


@dataclass(frozen=True, eq=False)
class DenseFactors:
    """A dense layer `name.weight`, maybe with `name.bias`, in a batch: one row for each record.

    A row must be the record's own to the last bit: neither the other records nor their number may change it.
    """

    name: str
    inputs: NDArray[np.float32]
    """What went in."""
    errors: NDArray[np.float32]
    """The gradient of the record's loss by what came out."""


@dataclass(frozen=True, eq=False)
class DenseTrainingData:
    """Dense layers that are trained without torch. The weights are copied and stay as they are.

    `factors(weights, chosen)` are those of all layers for the chosen records, at these weights.
    """

    weights: Mapping[str, NDArray[np.floating[Any]]]
    num_records: int
    factors: Callable[[Mapping[str, NDArray[np.float32]], NDArray[np.int64]], Sequence[DenseFactors]]


@dataclass(frozen=True)
class DpSgd:
    """The update of a model trained by DP-SGD (Abadi et al. 2016); Rényi DP for each record.

    In each of `steps` steps every record joins the batch with probability `sampling_rate`, by a secret coin
    of the device; its gradient is clipped to `clip_norm` by itself, in whole steps of clip_norm/2**24; the sum
    gets Gaussian noise of standard deviation noise_multiplier·clip_norm on the same grid and is divided by
    `expected_batch_size`, a constant of the terms: the size that a batch really had would tell of records. Under
    either relation one record moves a sum by at most clip_norm each time it is present, and changes nothing that
    others add; that REPLACE has two of them is the accountant's affair.

    Sums and noise are exact (`privacy.training.whole_gradients`, `privacy.grid_gaussian`). All that follows is
    post-processing, whatever the model's floats: what is released is the difference of the weights, rounded to
    a grid of learning_rate·clip_norm/(expected_batch_size·2**grid_bits).
    """

    shapes: Shapes
    sampling_rate: Number
    noise_multiplier: Number
    clip_norm: Number
    steps: int
    expected_batch_size: Number
    learning_rate: Number
    momentum: Number = 0
    proximal: Number = 0
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE
    grid_bits: int = 8
    name: ClassVar[str] = "dp_sgd"

    def __post_init__(self) -> None:
        whole = all(type(number) is int for number in (self.steps, self.grid_bits))
        if not whole or not 0 <= self.grid_bits <= 24:
            raise InvalidTerms(
                "steps must be whole and grid_bits lie within 0 and 24, "
                f"got {self.steps!r} and {self.grid_bits!r}; nothing was booked"
            )
        object.__setattr__(self, "shapes", in_order(self.shapes))
        object.__setattr__(self, "sampling_rate", positive(self.sampling_rate, "sampling_rate"))
        object.__setattr__(self, "noise_multiplier", exact_multiplier(self.noise_multiplier))
        for name in ("clip_norm", "expected_batch_size", "learning_rate"):
            object.__setattr__(self, name, _moderate(positive(getattr(self, name), name), name))
        for name, limit in (("momentum", 1), ("proximal", 10**12)):
            value = as_written(getattr(self, name), name)
            if not 0 <= value < limit:
                raise InvalidTerms(f"{name} must be at least 0 and below {limit}, got {value}; nothing was booked")
            object.__setattr__(self, name, value)
        object.__setattr__(self, "relation", NeighbouringRelation(self.relation))
        # Refused now, not after booking: an impossible rate or number of steps, noise that no integer can hold or that
        # cannot be drawn.
        _ = self.cost, self.width_bytes, deviation_in_steps(exact_multiplier(self.noise_multiplier))

    @property
    def terms(self) -> dict[str, int | str]:
        return {
            "shapes": described(self.shapes),
            "sampling_rate": str(self.sampling_rate),
            "noise_multiplier": str(self.noise_multiplier),
            "clip_norm": str(self.clip_norm),
            "steps": self.steps,
            "expected_batch_size": str(self.expected_batch_size),
            "learning_rate": str(self.learning_rate),
            "momentum": str(self.momentum),
            "proximal": str(self.proximal),
            "relation": self.relation.value,
            "grid_bits": self.grid_bits,
        }

    @property
    def cost(self) -> PrivacyCost:
        rate = positive(self.sampling_rate, "sampling_rate")
        sampled = SampledGaussian(rate, exact_multiplier(self.noise_multiplier), self.steps)
        return PrivacyCost(PrivacyUnit.RECORD, self.relation, sampled=sampled)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee(
            sensitivity=f"L2 C in each step, C the clip norm: one record, {self.relation.value}",
            noise="Gaussian of standard deviation noise_multiplier·C on every coordinate of every step, exactly, in "
            "whole steps of C/2^24; secret Poisson batches",
            proof="Abadi et al. 2016; Mironov, Talwar, Zhang 2019; docs/decisions/0006-dp-sgd.md",
        )

    @cached_property
    def size(self) -> int:
        """How many coordinates the update has."""
        return size_of(self.shapes)

    @cached_property
    def step(self) -> float:
        """The width of the grid: 2**-grid_bits of the farthest that one record can move a weight in one step."""
        farthest = as_written(self.learning_rate, "learning_rate") * as_written(self.clip_norm, "clip_norm")
        return float(farthest / as_written(self.expected_batch_size, "expected_batch_size") / (1 << self.grid_bits))

    @property
    def width_bytes(self) -> int:
        """Bytes for each coordinate, from the terms alone: a full batch of records that all pull one way, and noise."""
        noise = _NOISE_RANGE * exact_multiplier(self.noise_multiplier) * (math.isqrt(self.steps) + 1)
        reach = self.steps * as_written(self.expected_batch_size, "expected_batch_size") + noise
        return width_for(math.ceil(reach / (1 - as_written(self.momentum, "momentum")) * (1 << self.grid_bits)))

    def check(self, data: TrainingData | DenseTrainingData) -> None:
        """The model has the declared parameters and can be clipped by records; no record is looked at."""
        if isinstance(data, DenseTrainingData):
            from privacy.training import dense_update

            return dense_update.check_training(data, self.shapes)
        if data.clipping not in {"fastest", "ghost", "hooks"} or data.micro_batch_size < 1:
            raise InvalidTerms(
                "clipping is 'fastest', 'ghost' or 'hooks', and micro_batch_size is 1 or more; nothing was booked"
            )
        with _needs_torch():
            from privacy.training.private_update import check_training
        return check_training(data, self.shapes)

    def answer(self, data: TrainingData | DenseTrainingData, noise: NoiseSource) -> Answer:
        import numpy as np

        # A training that ran off to infinity is noised like any other; packing only needs a number.
        steps = np.clip(np.nan_to_num(self._update(data, noise) / self.step), -(2.0**62), 2.0**62)
        return Answer(pack_array(np.rint(steps).astype(np.int64), self.width_bytes), noise.seeded)

    def _update(self, data: TrainingData | DenseTrainingData, noise: NoiseSource) -> NDArray[np.float64]:
        from privacy.training.step_rule import StepRule

        rule = StepRule(
            steps=self.steps,
            expected_batch_size=float(self.expected_batch_size),
            learning_rate=float(self.learning_rate),
            momentum=float(self.momentum),
            proximal=float(self.proximal),
        )
        clip_norm = positive(self.clip_norm, "clip_norm")
        multiplier = exact_multiplier(self.noise_multiplier)
        rate, bound = positive(self.sampling_rate, "sampling_rate"), float(clip_norm)
        if isinstance(data, DenseTrainingData):
            from privacy.training import dense_update

            return dense_update.private_update(
                data, self.shapes, rule, noise, sampling_rate=rate, clip_norm=bound, noise_multiplier=multiplier
            )
        with _needs_torch():
            from privacy.training.private_update import private_update
        return private_update(data, rule, noise, sampling_rate=rate, clip_norm=bound, noise_multiplier=multiplier)

    def decode_steps(self, payload: bytes) -> NDArray[np.int64]:
        """The update as one vector of whole grid steps."""
        return unpack_array(payload, self.size, self.width_bytes)

    def decode(self, payload: bytes) -> dict[str, NDArray[np.float32]]:
        """The update as tensors, to be added to the weights that the training started from."""
        import numpy as np

        return unflattened((self.decode_steps(payload) * self.step).astype(np.float32), self.shapes)


@contextmanager
def _needs_torch() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "record-level DP-SGD of a torch model needs torch; install it with: pip install 'covey[torch]'; "
            "nothing was released"
        ) from error


def _moderate(value: Fraction, name: str) -> Fraction:
    if not Fraction(1, 10**12) <= value <= 10**12:
        raise InvalidTerms(f"{name} must lie within 1e-12 and 1e12, got {float(value):g}; nothing was booked")
    return value
