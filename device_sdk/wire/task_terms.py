"""What a task's message means: which mechanism noises the update, what is sent of it, how its mask reads.

Server and device must read a task alike, or the bytes of an update mean something else at either end. Nothing here
depends on data.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from device_sdk.wire.errors import PayloadMismatch
from device_sdk.wire.messages import DeviceLevelTerms, Dtype, RecordLevelTerms
from privacy.budget import NeighbouringRelation
from privacy.mechanisms.clipped_update import ClippedUpdate
from privacy.mechanisms.dp_sgd import DpSgd
from privacy.tensor_shapes import Shapes, in_order, size_of, unflattened

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from device_sdk.wire.messages import LocalObjective, PrivacyTerms, Task, TensorSpec

UpdateMechanism = ClippedUpdate | DpSgd
HALVES = ("first/", "second/")
"""With `halves`, an update is two: what even and odd batches contributed; their sum is the update."""
TRAINABLE = frozenset({Dtype.F32, Dtype.F16})


def shapes_of(task: Task) -> Shapes:
    """The shapes of the task's model, in the order of the names."""
    return _shapes(task.model.tensors)


def released_shapes(task: Task) -> Shapes:
    """The shapes of what the task wants to be sent."""
    return _released(task.model.tensors, task.objective)


def mechanism_of(task: Task) -> UpdateMechanism:
    """The mechanism that the task's terms describe; `InvalidTerms` where they make no sense."""
    return _mechanism(task.model.tensors, task.objective, task.privacy)


def _shapes(tensors: tuple[TensorSpec, ...]) -> Shapes:
    return in_order({spec.name: spec.shape for spec in tensors})


def _released(tensors: tuple[TensorSpec, ...], objective: LocalObjective) -> Shapes:
    shapes = _shapes(tensors)
    if not objective.halves:
        return shapes
    return in_order({f"{half}{name}": shape for half in HALVES for name, shape in shapes.items()})


@lru_cache(maxsize=16)  # the same for all tasks of many rounds, and asked for several times in each
def _mechanism(tensors: tuple[TensorSpec, ...], objective: LocalObjective, terms: PrivacyTerms) -> UpdateMechanism:
    if isinstance(terms, DeviceLevelTerms):
        return ClippedUpdate(
            _released(tensors, objective),
            clip_norm=terms.clip_norm,
            noise_multiplier=terms.noise_multiplier,
            relation=NeighbouringRelation(terms.relation.value),
            grid_bits=terms.grid_bits,
        )
    return DpSgd(
        _shapes(tensors),
        sampling_rate=terms.sampling_rate,
        noise_multiplier=terms.noise_multiplier,
        clip_norm=terms.clip_norm,
        steps=objective.steps or 0,
        expected_batch_size=terms.expected_batch_size,
        learning_rate=objective.learning_rate,
        momentum=objective.momentum,
        proximal=objective.proximal,
        relation=NeighbouringRelation(terms.relation.value),
        grid_bits=terms.grid_bits,
    )


def is_record_level(task: Task) -> bool:
    """Whether the task asks for DP-SGD."""
    return isinstance(task.privacy, RecordLevelTerms)


def mask_size_bytes(shapes: Shapes) -> int:
    """How long a mask for such a model is."""
    return (size_of(shapes) + 7) // 8


def read_mask(payload: bytes | memoryview, shapes: Shapes) -> dict[str, NDArray[np.bool_]]:
    """A mask out of its bytes: one bit for each coordinate, lowest first, tensors in the order of their names."""
    import numpy as np

    if len(payload) != mask_size_bytes(shapes):
        raise PayloadMismatch("this mask is not as long as its model; it was thrown away")
    bits = np.unpackbits(np.frombuffer(payload, dtype=np.uint8), count=size_of(shapes), bitorder="little")
    return unflattened(bits.astype(np.bool_), in_order(shapes))
