"""How the noise of DP-SGD moves a first layer's answers in between, as far as its final sum does not tell.

By `row_space_noise` this is Gaussian, with covariance T[t, u]·G[x, z] between the answers to record x at step t and
to record z at step u: a matrix in time times one over records. Noise of this law is made in one of two ways.

- In a single pass there are as many visits as records, and all of T[t, u]·G[x, z] gets one Cholesky factor.
- Where records are visited again that matrix would be large. T = R·Rᵀ and G = L·Lᵀ have small factors, and
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


def add_remainder(chunk: Chunk, noise: Noise, law: tuple[Tensor, Left], shift: Tensor, workspace: Workspace) -> None:
    """Add it to `shift` [n, visits, out]; the visits are those from step 1 on.

    `law` are G of each device's records, [n, count, count], and T.
    """
    products, left = law
    if chunk.batches.single_pass:
        width = chunk.batches.rows.shape[2]
        _add_by_visits(chunk, noise, (products[:, width:, width:].clone(), left), shift, workspace)
    else:
        _add_by_factors(chunk, noise, (products.clone(), left), shift, workspace)


def _add_by_visits(chunk: Chunk, noise: Noise, law: tuple[Tensor, Left], shift: Tensor, workspace: Workspace) -> None:
    products, left = law
    present = chunk.batches.weights[1:].transpose(0, 1).flatten(1) > 0
    factor = _root(_over_visits(products, present, left.by_device(left.covariance, shift.device)))
    standard = workspace.take("noise-standard", *shift.shape)
    rows = standard.flatten(1)
    for i, count in enumerate(present.sum(dim=1).tolist()):
        # What a device draws must not depend on its company: it draws for visits that take place, not for padding,
        # which in a single pass comes after all of them.
        noise.fill(i, rows[i, : count * shift.shape[2]], chunk.task.noise_deviation)
        if count < shift.shape[1]:
            standard[i, count:] = 0
    shift.baddbmm_(factor, standard)


def _over_visits(products: Tensor, present: Tensor, left: Tensor) -> Tensor:
    """`products` of visits times what is `left` of time, regular by a ridge; an identity where no visit takes place."""
    n, steps = left.shape[:2]
    longest = products.diagonal(dim1=1, dim2=2).amax(dim=1, keepdim=True)
    products.view(n, steps, -1, steps, products.shape[2] // steps).mul_(left.view(n, steps, 1, steps, 1))
    diagonal = products.diagonal(dim1=1, dim2=2)
    if not present.all():
        absent = ~present
        products.masked_fill_(absent.unsqueeze(1) | absent.unsqueeze(2), 0.0)
        diagonal.add_(absent)
    # A visit whose noise the final sum tells completely has no variance left; it gets a trace of some.
    trace = 1e-3 * _RIDGE * longest * left.diagonal(dim1=1, dim2=2).amax(dim=1, keepdim=True)
    diagonal.mul_(1 + _RIDGE).add_(trace.clamp_min(1e-30))
    return products


def _add_by_factors(chunk: Chunk, noise: Noise, law: tuple[Tensor, Left], shift: Tensor, workspace: Workspace) -> None:
    products, left = law
    width, out = chunk.batches.rows.shape[2], shift.shape[2]
    in_time = left.by_device(left.roots(), shift.device)
    products.diagonal(dim1=1, dim2=2).mul_(1 + _RIDGE)
    over_records = _root(products)
    visits = visits_after_first(chunk)
    for some, steps, records in _alike(chunk):
        # As above: as many draws as a device has steps and records.
        n = some.stop - some.start
        white, walk = (workspace.take(f"noise-{name}", n, steps, records * out) for name in ("drawn", "mixed"))
        for i, row in enumerate(white.flatten(1), some.start):
            noise.fill(i, row, chunk.task.noise_deviation)
        torch.bmm(in_time[some, :steps, :steps], white, out=walk)
        rows = rows_of_each(over_records[some], visits[some, : steps * width])[:, :, :records]
        moved = torch.bmm(rows.view(n * steps, width, -1), walk.view(n * steps, records, out))
        shift[some, : steps * width].add_(moved.view(n, -1, out))


def _alike(chunk: Chunk) -> Iterator[tuple[slice, int, int]]:
    """Neighbours that take equally many steps after the first and have equally many records, a few at a time."""
    active = np.array(chunk.batches.active)
    steps = (active[None, :] > np.arange(len(chunk))[:, None]).sum(axis=1) - 1
    kinds = [(own, chunk.data.count(device)) for own, device in zip(steps.tolist(), chunk.devices, strict=True)]
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
