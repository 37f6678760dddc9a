"""How the noise of DP-SGD moves a first layer's answers in between, as far as its final sum does not tell.

By `row_space_noise` this is Gaussian, with covariance T[t, u]·G[x, z] between the answers to record x at step t and
to record z at step u: a matrix in time times one over records. Noise of this law is made in one of two ways.

- In a single pass, or a Poisson sample as large as one, there are about as many visits as records, and all of
  T[t, u]·G[x, z] gets one Cholesky factor.
- Where records are visited again and again that matrix would be large. T = R·Rᵀ and G = L·Lᵀ have small factors, and
  Σ R[t, k]·L[x]·Z[k] over all steps k, with white noise Z, has the same law for more draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from server_kit.simulation.training.kernel import Chunk
from server_kit.simulation.training.noise import Noise
from server_kit.simulation.training.workspace import Workspace

# Records that repeat make a covariance singular; this share of variance on top keeps it regular.
_RIDGE = 1e-3
_TRACE = 1e-9  # the same for time, where float64 is affordable
_TOGETHER = 8  # devices whose noise is worked out at once: few calls, and little enough for the cache

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Left:
    """T from step 1 on, [kinds, t, u], and which kind each device is."""

    covariance: Numbers
    kind_of: NDArray[np.int64]

    def by_device(self, values: Numbers, where: torch.device) -> Tensor:
        """`values` of kinds as float32 of devices."""
        return torch.from_numpy(values.astype(np.float32)[self.kind_of]).to(where)

    def roots(self) -> Numbers:
        """Triangular R: what it says about a device's steps does not depend on how many more others take."""
        largest = self.covariance.diagonal(axis1=1, axis2=2).max(axis=1)[:, None, None]
        regular = self.covariance + (_TRACE * largest + 1e-30) * np.eye(self.covariance.shape[1])
        roots: Numbers = np.linalg.cholesky(regular)
        return roots


@dataclass(frozen=True)
class Law:
    """What noise is to be made of."""

    products: Tensor
    """G of each device's records, [n, count, count]."""
    left: Left
    visited: tuple[int, ...]
    """How many of the records are there; the rest is padding."""


def add_remainder(chunk: Chunk, noise: Noise, law: Law, shift: Tensor, workspace: Workspace) -> None:
    """Add it to `shift` [n, visits, out]; the visits are those from step 1 on."""
    if chunk.batches.single_pass:
        _add_in_order(chunk, noise, law, shift, workspace)
    elif chunk.task.is_one_pass:
        _add_by_visits(chunk, noise, law, shift, workspace)
    else:
        _add_by_factors(chunk, noise, law, shift, workspace)


def _add_in_order(chunk: Chunk, noise: Noise, law: Law, shift: Tensor, workspace: Workspace) -> None:
    """Records lie in the order of their visits, those that do not take place after all others."""
    width = chunk.batches.rows.shape[2]
    in_time = law.left.by_device(law.left.covariance, shift.device)
    n, steps = in_time.shape[:2]
    covariance = law.products[:, width:, width:].clone()
    longest = covariance.diagonal(dim1=1, dim2=2).amax(dim=1, keepdim=True)
    covariance.view(n, steps, width, steps, width).mul_(in_time.view(n, steps, 1, steps, 1))
    present = chunk.batches.weights[1:].transpose(0, 1).flatten(1) > 0
    factor = _root(_regular(covariance, present, longest * _most(in_time)))
    shift.baddbmm_(factor, _standard(chunk, noise, present, shift.shape[2], workspace))


def _add_by_visits(chunk: Chunk, noise: Noise, law: Law, shift: Tensor, workspace: Workspace) -> None:
    """The same for visits in any order, with gaps between them: they are moved together first."""
    width, out = chunk.batches.rows.shape[2], shift.shape[2]
    taking_place = chunk.batches.weights[1:].transpose(0, 1).flatten(1) > 0
    counts = taking_place.sum(dim=1, keepdim=True)
    order = torch.sort(~taking_place, dim=1, stable=True).indices[:, : int(counts.max())]
    present = torch.arange(order.shape[1], device=order.device) < counts
    in_time = law.left.by_device(law.left.covariance, shift.device)
    covariance = _picked(law.products, visits_after_first(chunk).gather(1, order))
    longest = law.products.diagonal(dim1=1, dim2=2).amax(dim=1, keepdim=True)
    covariance.mul_(_picked(in_time, order.div(width, rounding_mode="floor")))
    factor = _root(_regular(covariance, present, longest * _most(in_time)))
    moved = torch.bmm(factor, _standard(chunk, noise, present, out, workspace))
    rows = order + torch.arange(0, shift.shape[0] * shift.shape[1], shift.shape[1], device=order.device).unsqueeze(1)
    shift.flatten(0, 1).index_add_(0, rows.flatten(), moved.flatten(0, 1))


def _picked(matrices: Tensor, numbers: Tensor) -> Tensor:
    """Of square matrices [n, side, side] the rows and columns with these numbers [n, m], [n, m, m]."""
    n, side = matrices.shape[:2]
    starts = torch.arange(0, n * side * side, side * side, device=numbers.device, dtype=torch.int32)
    narrow = numbers.int()  # half as wide as usual, and thereby twice as fast
    places = (narrow * side + starts.unsqueeze(1)).unsqueeze(2) + narrow.unsqueeze(1)
    return matrices.flatten().index_select(0, places.flatten()).view(places.shape)


def _most(in_time: Tensor) -> Tensor:
    return in_time.diagonal(dim1=1, dim2=2).amax(dim=1, keepdim=True)


def _standard(chunk: Chunk, noise: Noise, present: Tensor, out: int, workspace: Workspace) -> Tensor:
    """White noise [n, visits, out] for visits that are `present`, which come before those that are not.

    What a device draws must not depend on its company: it draws for visits that take place, not for padding.
    """
    standard = workspace.zeros("noise-standard", *present.shape, out)
    for i, (row, count) in enumerate(zip(standard.flatten(1), present.sum(dim=1).tolist(), strict=True)):
        noise.fill(i, row[: count * out], chunk.task.noise_deviation)
    return standard


def _regular(covariance: Tensor, present: Tensor, largest: Tensor) -> Tensor:
    """`covariance` of visits with a ridge; an identity where no visit takes place. `largest` is its scale, [n, 1]."""
    diagonal = covariance.diagonal(dim1=1, dim2=2)
    if not present.all():
        absent = ~present
        covariance.masked_fill_(absent.unsqueeze(1) | absent.unsqueeze(2), 0.0)
        diagonal.add_(absent)
    # A visit whose noise the final sum tells completely has no variance left; it gets a trace of some.
    diagonal.mul_(1 + _RIDGE).add_((1e-3 * _RIDGE * largest).clamp_min(1e-30))
    return covariance


def _add_by_factors(chunk: Chunk, noise: Noise, law: Law, shift: Tensor, workspace: Workspace) -> None:
    products, left = law.products.clone(), law.left
    width, out = chunk.batches.rows.shape[2], shift.shape[2]
    in_time = left.by_device(left.roots(), shift.device)
    products.diagonal(dim1=1, dim2=2).mul_(1 + _RIDGE)
    over_records = _root(products)
    visits = visits_after_first(chunk)
    for some, steps, records in _alike(chunk, law.visited):
        # As above: as many draws as a device has steps and records.
        n = some.stop - some.start
        white, walk = (workspace.take(f"noise-{name}", n, steps, records * out) for name in ("drawn", "mixed"))
        for i, row in enumerate(white.flatten(1), some.start):
            noise.fill(i, row, chunk.task.noise_deviation)
        torch.bmm(in_time[some, :steps, :steps], white, out=walk)
        rows = rows_of_each(over_records[some], visits[some, : steps * width])[:, :, :records]
        moved = torch.bmm(rows.view(n * steps, width, -1), walk.view(n * steps, records, out))
        shift[some, : steps * width].add_(moved.view(n, -1, out))


def _alike(chunk: Chunk, visited: tuple[int, ...]) -> Iterator[tuple[slice, int, int]]:
    """Neighbours that take equally many steps after the first and visit equally many records, a few at a time."""
    active = np.array(chunk.batches.active)
    steps = (active[None, :] > np.arange(len(chunk))[:, None]).sum(axis=1) - 1
    kinds = zip(steps.tolist(), visited, strict=True)
    start = 0
    for (own, records), members in groupby(kinds):
        end = start + len(list(members))
        if own > 0:
            for first in range(start, end, _TOGETHER):
                yield slice(first, min(end, first + _TOGETHER)), own, records
        start = end


def rows_of_each(matrices: Tensor, numbers: Tensor) -> Tensor:
    """Of matrices [n, rows, columns] the rows with these numbers [n, m], [n, m, columns]."""
    n, count, columns = matrices.shape
    starts = torch.arange(0, n * count, count, device=numbers.device).unsqueeze(1)
    return matrices.flatten(0, 1).index_select(0, (numbers + starts).flatten()).view(n, -1, columns)


def visits_after_first(chunk: Chunk) -> Tensor:
    """The records visited from step 1 on, [n, visits]."""
    return chunk.batches.places[1:].transpose(0, 1).flatten(1)


def _root(covariance: Tensor) -> Tensor:
    """A matrix whose square is `covariance`: its Cholesky factor, or by eigenvalues where rounding spoilt that."""
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(covariance)
    for device in failed.nonzero().flatten().tolist():
        if covariance[device].isfinite().all():
            values, vectors = torch.linalg.eigh(covariance[device].double())
            factor[device] = (vectors * values.clamp_min(0).sqrt()).float()
    return factor
