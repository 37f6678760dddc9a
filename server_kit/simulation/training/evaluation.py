"""How good models are on the records of many devices, each device with the model of its cohort.

The records of all devices that share a model pass through it together; models with few records are stacked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from server_kit.simulation.training.bench import Bench
from server_kit.simulation.training.devices import DeviceData

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Evaluation:
    """One entry for each device, in the order in which they were asked for; NaN for a device without records."""

    devices: tuple[str, ...]
    losses: Tensor
    """[n]: mean over the device's records."""
    accuracies: Tensor
    """[n]: share of records whose largest output is that of their label."""
    records: Tensor
    """[n] int64."""

    @property
    def accuracy(self) -> float:
        """Over all records of all devices: each counts once."""
        return float((self.accuracies * self.records).nansum() / self.records.sum())

    @property
    def loss(self) -> float:
        """Over all records of all devices."""
        return float((self.losses * self.records).nansum() / self.records.sum())


@dataclass(frozen=True)
class _Piece:
    """Some rows of devices that share a model, and whose they are."""

    model: int
    rows: Numbers
    owners: Numbers


@dataclass(frozen=True)
class Panel:
    """Pieces that are computed at once, padded to the longest; what comes out are sums for each device."""

    pieces: tuple[_Piece, ...]
    models: Tensor
    data: DeviceData
    devices: int

    def sums(self, bench: Bench, _room: object = None) -> tuple[Tensor, Tensor]:
        """Sum of losses and number of right answers for each device, [devices] in double precision on the processor."""
        longest = max(len(piece.rows) for piece in self.pieces)
        rows = torch.from_numpy(np.stack([np.resize(piece.rows, longest) for piece in self.pieces])).to(bench.where)
        inputs = bench.workspace.take("evaluated", rows.numel(), self.data.x[0].numel())
        self.data.inputs(rows.flatten(), out=inputs)
        targets = self.data.y.index_select(0, rows.flatten()).view(*rows.shape, *self.data.y.shape[1:])
        models = self.models[[piece.model for piece in self.pieces]]
        outputs = bench.outputs(models, inputs.view(*rows.shape, -1))
        losses = bench.losses(outputs, targets).view(rows.shape)
        right = _right_answers(outputs, targets)
        return self._by_device(losses), self._by_device(right)

    def _by_device(self, values: Tensor) -> Tensor:
        sums = torch.zeros(self.devices, dtype=torch.float64, device="cpu")
        for piece, own in zip(self.pieces, values.to("cpu", torch.float64), strict=True):
            sums.index_add_(0, torch.from_numpy(piece.owners), own[: len(piece.owners)])
        return sums


def panels(
    models: Tensor, model_of: Sequence[int], data: DeviceData, devices: Sequence[str], rows_at_once: int
) -> list[Panel]:
    """The work of an evaluation, cut into parts of so many rows."""
    pieces = sorted(_pieces(model_of, data, devices, rows_at_once), key=lambda piece: -len(piece.rows))
    groups: list[list[_Piece]] = []
    for piece in pieces:
        if not groups or (len(groups[-1]) + 1) * len(groups[-1][0].rows) > rows_at_once:
            groups.append([])
        groups[-1].append(piece)
    return [Panel(tuple(group), models, data, len(devices)) for group in groups]


def _pieces(model_of: Sequence[int], data: DeviceData, devices: Sequence[str], rows_at_once: int) -> list[_Piece]:
    by_model: dict[int, list[int]] = {}
    for position, model in enumerate(model_of):
        if data.count(devices[position]):
            by_model.setdefault(model, []).append(position)
    pieces = []
    for model, positions in by_model.items():
        counts = [data.count(devices[position]) for position in positions]
        rows = np.concatenate(
            [data.rows(devices[p], np.arange(count)) for p, count in zip(positions, counts, strict=True)]
        )
        owners = np.repeat(np.array(positions, dtype=np.int64), counts)
        for start in range(0, len(rows), rows_at_once):
            part = slice(start, start + rows_at_once)
            pieces.append(_Piece(model, rows[part], owners[part]))
    return pieces


def _right_answers(outputs: Tensor, targets: Tensor) -> Tensor:
    """[k, rows]: 1 where the largest output is the label's; NaN where outputs are not classes."""
    if outputs.dim() != 3 or targets.dim() != 2 or targets.dtype.is_floating_point:
        return torch.full(outputs.shape[:2], torch.nan, device=outputs.device)
    return (outputs.argmax(dim=2) == targets).to(torch.float32)
