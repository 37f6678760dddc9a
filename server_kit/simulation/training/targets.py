"""Where the outcome of a chunk goes: a row for each device, or one sum over all of them.

A sum needs no memory for updates. In row space they are never written down: the coefficients of all devices, times
their records, are one large product (see `row_space`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from server_kit.simulation.training.workspace import Workspace


class NoiseRows(Protocol):
    """Where the noise of a first layer is drawn, some devices at a time."""

    def room(self, some: slice) -> Tensor:
        """[devices, layer]: to be overwritten with their noise."""

    def drawn(self, some: slice) -> None:
        """Their noise is there, and has been read by whoever had to."""


class Target(Protocol):
    """What a kernel is told when it turns to a chunk."""

    def vectors(self, size: int, workspace: Workspace) -> Tensor:
        """[n, size]: where a kernel that trains whole models may do so."""

    def noise_rows(self, layer: int, workspace: Workspace) -> list[NoiseRows]:
        """For the first `layer` coordinates of each update and, with `halves`, of its first half."""


@dataclass(frozen=True)
class EachUpdate:
    """Updates [n, size] are written down and, with `halves`, what their first halves contributed."""

    updates: Tensor
    first_half: Tensor | None = None

    def vectors(self, size: int, workspace: Workspace) -> Tensor:
        del size, workspace
        return self.updates

    def noise_rows(self, layer: int, workspace: Workspace) -> list[NoiseRows]:
        del workspace
        return [_Kept(target[:, :layer]) for target in (self.updates, self.first_half) if target is not None]


@dataclass(frozen=True)
class SumOfUpdates:
    """`total` [size], zero at first, is to become the sum of `shares` [n] times updates."""

    total: Tensor
    shares: Tensor

    def vectors(self, size: int, workspace: Workspace) -> Tensor:
        return workspace.take("summed-vectors", len(self.shares), size)

    def noise_rows(self, layer: int, workspace: Workspace) -> list[NoiseRows]:
        return [_Added(self.total[:layer], self.shares, workspace)]

    def add_rows(self, updates: Tensor) -> None:
        """Add updates that a kernel has written down anyway."""
        self.total.addmv_(updates.t(), self.shares)


@dataclass(frozen=True)
class _Kept:
    rows: Tensor

    def room(self, some: slice) -> Tensor:
        return self.rows[some]

    def drawn(self, some: slice) -> None:
        """It stays where it is."""


@dataclass(frozen=True)
class _Added:
    total: Tensor
    shares: Tensor
    workspace: Workspace

    def room(self, some: slice) -> Tensor:
        return self.workspace.take("summed-noise", len(self.shares[some]), len(self.total))

    def drawn(self, some: slice) -> None:
        self.total.addmv_(self.room(some).t(), self.shares[some])
