"""The noise of all steps of DP-SGD on a first layer, drawn once: exactly as if it had been drawn at each step.

Step s adds noise e_s to the gradient of the layer, a matrix [out, in + 1] of independent Gaussians (the last
column belongs to the bias). Two things are ever seen of it. At the end, the weights have moved by
N = Σ a_s·e_s, with numbers a that follow from learning rate, momentum and proximal term. In between, at step
t, the layer's answer to record x has moved by Σ A[t, s]·e_s·x. All of these are jointly Gaussian, so we draw
N as one matrix and then the answers given N:

- on average they are (A[t]·a / |a|²)·N·x, by linear regression;
- what is left does not depend on N, and between (t, x) and (u, z) has the covariance
  (A[t]·A[u] − (A[t]·a)(A[u]·a)/|a|²) · (x·z + 1), drawn by a Cholesky factor.

A model of D parameters needs about D draws for a whole round instead of D for each step. With `halves` there
are two sums N, over the steps of either half, and both are conditioned on.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from server_kit.local_task import LocalTask
from server_kit.simulation.training.kernel import Chunk
from server_kit.simulation.training.noise import Noise
from server_kit.simulation.training.workspace import Workspace

# Records that repeat make the covariance singular; this share of variance on top keeps it regular.
_RIDGE = 1e-3

Numbers = NDArray[np.float64]


def first_layer_noise(
    chunk: Chunk, noise: Noise, own: tuple[Tensor, Tensor], targets: list[Tensor], workspace: Workspace
) -> Tensor:
    """Write the noise of all steps into `targets` and return how it moves the answers, [n, visits, out].

    `own` are the records [n, count, in] and their products x·z + 1, [n, count, count]. `targets` are the
    layer, weights and bias side by side, inside the whole update and, with `halves`, the first half's. The
    visits are those from step 1 on, step by step: the first step meets no noise.
    """
    records, products = own
    steps, n, width = chunk.batches.rows.shape
    out = targets[0].shape[1] // (records.shape[2] + 1)
    powers, slopes, left = _moments(chunk)
    shift = workspace.zeros("noise-shift", n, (steps - 1) * width, out)
    # The first half is drawn where it will stay, what remains of the whole in `targets[0]`.
    for part, layer in enumerate(reversed(targets)):
        deviations = chunk.task.noise_deviation * np.sqrt(powers[:, part])
        answers = _draw(chunk, noise, records, layer, deviations.tolist())
        slope = _float32(slopes[:, part, 1:], shift.device)
        shift.addcmul_(answers, slope.repeat_interleave(width, dim=1).unsqueeze(2))
    if len(targets) > 1:
        targets[0] += targets[1]
    if steps > 1:
        covariance = _covariance(chunk, products, _float32(left[:, 1:, 1:], shift.device))
        _add_remainder(chunk, noise, covariance, shift, workspace)
    return shift


def impulse_response(task: LocalTask, steps: int) -> Numbers:
    """[steps + 1, steps]: where a gradient of 1 at step s has carried a weight before step t (and at the end)."""
    response = np.zeros((steps + 1, steps))
    velocity = np.zeros(steps)
    for step in range(steps):
        gradient = task.proximal * response[step]
        gradient[step] += 1
        velocity = task.momentum * velocity + gradient
        response[step + 1] = response[step] - task.learning_rate * velocity
    return response


def _moments(chunk: Chunk) -> tuple[Numbers, Numbers, Numbers]:
    """|a|² [n, parts], A[t]·a/|a|² [n, parts, t], and the covariance in time that is left [n, t, u]."""
    batches, steps = chunk.batches, len(chunk.batches.active)
    response = impulse_response(chunk.task, steps)
    own_steps = (np.array(batches.active)[None, :] > np.arange(len(chunk))[:, None]).sum(axis=1)
    ends = response[own_steps][:, None, :]
    if chunk.task.halves:
        first = batches.first_half.cpu().numpy().T[:, None, :]
        ends = np.concatenate([ends * first, ends * (1 - first)], axis=1)
    powers = (ends**2).sum(axis=2)
    overlap = ends @ response[:steps].T
    slopes = np.divide(overlap, powers[:, :, None], out=np.zeros_like(overlap), where=powers[:, :, None] > 0)
    left = response[:steps] @ response[:steps].T - overlap.transpose(0, 2, 1) @ slopes
    return powers, slopes, left


def _draw(chunk: Chunk, noise: Noise, records: Tensor, layer: Tensor, deviations: list[float]) -> Tensor:
    """Fill `layer` with noise and return what it answers to the visits, [n, visits, out]."""
    n, _, inputs = records.shape
    out = layer.shape[1] // (inputs + 1)
    weight, bias = layer[:, :-out].view(n, out, inputs), layer[:, -out:]
    single = chunk.batches.single_pass
    visited = records[:, chunk.batches.rows.shape[2] :] if single else records
    answers = torch.empty(n, visited.shape[1], out, device=records.device)
    products = zip(bias, visited, weight.transpose(1, 2), answers, strict=True)
    for i, (row, deviation, (constant, own, transposed, target)) in enumerate(
        zip(layer, deviations, products, strict=True)
    ):
        # Device by device: the noise is still in the cache when it is multiplied.
        noise.fill(i, row, deviation)
        torch.addmm(constant, own, transposed, out=target)
    return answers if single else answers.gather(1, _visits(chunk).unsqueeze(2).expand(-1, -1, out))


def _add_remainder(chunk: Chunk, noise: Noise, covariance: Tensor, shift: Tensor, workspace: Workspace) -> None:
    """Add to `shift` what the final noise does not tell about it."""
    factor = _root(covariance)
    present = _present(chunk)
    standard = workspace.take("noise-standard", *shift.shape)
    out = shift.shape[2]
    for i, (row, count) in enumerate(zip(standard.flatten(1), present.sum(dim=1).tolist(), strict=True)):
        # What a device draws must not depend on its company: it draws for visits that take place, not for padding.
        noise.fill(i, row[: count * out], chunk.task.noise_deviation)
        if count < present.shape[1]:
            standard[i, present[i]] = standard[i, :count].clone()
            standard[i, ~present[i]] = 0
    shift.baddbmm_(factor, standard)


def _root(covariance: Tensor) -> Tensor:
    """A matrix whose square is `covariance`: its Cholesky factor, or by eigenvalues where rounding spoilt that."""
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(covariance)
    for device in failed.nonzero().flatten().tolist():
        if covariance[device].isfinite().all():
            values, vectors = torch.linalg.eigh(covariance[device].double())
            factor[device] = (vectors * values.clamp_min(0).sqrt()).float()
    return factor


def _covariance(chunk: Chunk, products: Tensor, left: Tensor) -> Tensor:
    """[n, visits, visits], regular by a ridge; an identity where no visit takes place."""
    steps, n, width = chunk.batches.rows.shape
    if chunk.batches.single_pass:
        covariance = products[:, width:, width:].clone()
    else:
        visits = _visits(chunk)
        covariance = products.gather(1, visits.unsqueeze(2).expand(-1, -1, products.shape[2]))
        covariance = covariance.gather(2, visits.unsqueeze(1).expand(-1, visits.shape[1], -1))
    longest = covariance.diagonal(dim1=1, dim2=2).amax(dim=1, keepdim=True)
    covariance.view(n, steps - 1, width, steps - 1, width).mul_(left.view(n, steps - 1, 1, steps - 1, 1))
    absent = ~_present(chunk)
    if absent.any():
        covariance.masked_fill_(absent.unsqueeze(1) | absent.unsqueeze(2), 0.0)
    diagonal = covariance.diagonal(dim1=1, dim2=2)
    # A visit whose noise the final sum tells completely has no variance left; it gets a trace of some.
    trace = 1e-3 * _RIDGE * longest * left.diagonal(dim1=1, dim2=2).amax(dim=1, keepdim=True)
    diagonal.mul_(1 + _RIDGE).add_(trace.clamp_min(1e-30)).add_(absent)
    return covariance


def _visits(chunk: Chunk) -> Tensor:
    """The records visited from step 1 on, [n, visits]."""
    return chunk.batches.places[1:].transpose(0, 1).flatten(1)


def _present(chunk: Chunk) -> Tensor:
    """[n, visits]: which of them take place."""
    return chunk.batches.weights[1:].transpose(0, 1).flatten(1) > 0


def _float32(values: Numbers, where: torch.device) -> Tensor:
    return torch.from_numpy(values.astype(np.float32)).to(where)
