"""An order of the engine as a message to a device: the model by its hash, the objective, the privacy terms."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from device_sdk.wire.messages import LocalObjective, ModelReference, PrivacyTerms, RecordLevelTerms, Task
from device_sdk.wire.tensors import model_bytes, model_specs

if TYPE_CHECKING:
    import torch

    from device_sdk.wire.messages import Blob
    from server_kit.daemon.model_shelf import ModelShelf
    from server_kit.interfaces import CohortId, Order
    from server_kit.layout import Layout
    from server_kit.local_task import LocalTask

_ID_BYTES = 16


def new_id() -> str:
    """A name that is never used twice."""
    return secrets.token_hex(_ID_BYTES)


@dataclass
class TaskWriter:
    """Writes tasks for one federation. A model is written once for each of its versions."""

    layout: Layout
    shelf: ModelShelf
    privacy: PrivacyTerms
    deadline_seconds: float
    usual_steps: int | None = None
    """DP-SGD counts steps: what a task gets that is given in epochs."""
    _written: dict[CohortId, tuple[int, ModelReference]] = field(default_factory=dict)

    def task(self, order: Order, round_number: int) -> Task:
        """The message; its name is new."""
        return Task(
            task=new_id(),
            device=order.device,
            cohort=order.cohort,
            round=round_number,
            model=self.model(order.cohort, order.version, order.model),
            objective=self.objective(order.task),
            privacy=self.privacy,
            deadline_seconds=self.deadline_seconds,
        )

    def model(self, cohort: CohortId, version: int, model: torch.Tensor) -> ModelReference:
        """A cohort's model, ready to be fetched."""
        known = self._written.get(cohort)
        if known is None or known[0] != version:
            known = self._written[cohort] = (version, self.reference(model, version))
        return known[1]

    def written(self) -> set[bytes]:
        """The hashes of the cohorts' newest models."""
        return {reference.blob.sha256 for _, reference in self._written.values()}

    def reference(self, model: torch.Tensor, version: int = 0) -> ModelReference:
        """Any model, ready to be fetched."""
        tensors = {name: value.numpy(force=True) for name, value in self.layout.views(model).items()}
        tensors = {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in tensors.items()}
        return ModelReference(version, self.shelf.put(model_bytes(tensors)), model_specs(tensors))

    def objective(self, task: LocalTask) -> LocalObjective:
        """What to do with the data. Halves stay with the device: each would be a release of its own."""
        steps = task.steps
        if steps is None and isinstance(self.privacy, RecordLevelTerms):
            steps = self.usual_steps
        return LocalObjective(
            learning_rate=task.learning_rate,
            batch_size=task.batch_size,
            epochs=task.epochs if steps is None else None,
            steps=steps,
            momentum=task.momentum,
            proximal=task.proximal,
            mask=None if task.mask is None else self._mask(task.mask),
        )

    def _mask(self, mask: torch.Tensor) -> Blob:
        views = self.layout.views(mask)
        bits = np.concatenate([views[name].numpy(force=True).reshape(-1) for name in sorted(views)])
        return self.shelf.put(np.packbits(bits, bitorder="little").tobytes())
