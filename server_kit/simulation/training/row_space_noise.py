"""The noise of all steps of DP-SGD on a first layer, drawn once: exactly as if it had been drawn at each step.

Step s adds noise e_s to the gradient of the layer, a matrix [out, in + 1] of independent Gaussians (the last
column belongs to the bias). Two things are ever seen of it. At the end, the weights have moved by
N = Σ a_s·e_s, with numbers a that follow from learning rate, momentum and proximal term. In between, at step
t, the layer's answer to record x has moved by Σ A[t, s]·e_s·x. All of these are jointly Gaussian, so we draw
N as one matrix and then the answers given N:

- on average they are (A[t]·a / |a|²)·N·x, by linear regression;
- what is left does not depend on N, and between (t, x) and (u, z) has the covariance
  (A[t]·A[u] − (A[t]·a)(A[u]·a)/|a|²) · (x·z + 1); see `row_space_remainder`.

A model of D parameters needs about D draws for a whole round instead of D for each step. With `halves` there
are two sums N, over the steps of either half, and both are conditioned on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from server_kit.local_task import LocalTask
from server_kit.simulation.training.kernel import Chunk
from server_kit.simulation.training.noise import Noise
from server_kit.simulation.training.row_space_remainder import (
    Law,
    Left,
    add_remainder,
    rows_of_each,
    visits_after_first,
)
from server_kit.simulation.training.targets import NoiseRows
from server_kit.simulation.training.workspace import Workspace

_TOGETHER = 8  # devices whose noise is drawn and then multiplied, while it is still in the cache. Measured
_ROWS_AT_ONCE = 1 << 13  # answers that are looked up at once: few calls, and little enough for the cache

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Own:
    """What a device has of its own."""

    records: Tensor
    """[n, count, in]."""
    products: Tensor
    """x·z + 1 for the records x and z of each device, [n, count, count]."""
    visited: tuple[int, ...]
    """How many of the records each device visits; the rest is padding."""


def first_layer_noise(chunk: Chunk, noise: Noise, own: Own, targets: list[NoiseRows], workspace: Workspace) -> Tensor:
    """Write the noise of all steps into `targets` and return how it moves the answers, [n, visits, out].

    `targets` are for the layer, weights and bias side by side, of the whole update and, with `halves`, of the first
    half. The visits are those from step 1 on, step by step: the first step meets no noise.
    """
    records = own.records
    steps, n, width = chunk.batches.rows.shape
    out = targets[0].room(slice(1)).shape[1] // (records.shape[2] + 1)
    moments = _moments(chunk)
    met = records[:, width:] if chunk.batches.single_pass else records  # the first batch of a single pass meets none
    shift = workspace.zeros("noise-shift", n, max(0, steps - 1) * width, out)
    # The first half is drawn where it will stay, what remains of the whole in `targets[0]`.
    for part, rows in enumerate(reversed(targets)):
        deviations = chunk.task.noise_deviation * np.sqrt(moments.powers[moments.kind_of, part])
        answers = workspace.take("noise-answers", n, met.shape[1], out)
        _draw(noise, met, rows, deviations.tolist(), answers)
        slopes = torch.from_numpy(moments.slopes[moments.kind_of, part, 1:].astype(np.float32)).to(shift.device)
        _add_visited(chunk, answers, slopes, shift)
    if len(targets) > 1:
        targets[0].room(slice(n)).add_(targets[1].room(slice(n)))
    if steps > 1:
        left = Left(moments.left[:, 1:, 1:], moments.kind_of)
        add_remainder(chunk, noise, Law(own.products, left, own.visited), shift, workspace)
    return shift


class Rule(NamedTuple):
    """What a step does with a gradient."""

    learning_rate: float
    momentum: float
    proximal: float

    @classmethod
    def of(cls, task: LocalTask) -> Rule:
        return cls(task.learning_rate, task.momentum, task.proximal)


def impulse_response(rule: Rule, steps: int) -> Numbers:
    """[steps + 1, steps]: where a gradient of 1 at step s has carried a weight before step t (and at the end)."""
    response = np.zeros((steps + 1, steps))
    velocity = np.zeros(steps)
    for step in range(steps):
        gradient = rule.proximal * response[step]
        gradient[step] += 1
        velocity = rule.momentum * velocity + gradient
        response[step + 1] = response[step] - rule.learning_rate * velocity
    return response


@dataclass(frozen=True)
class _Moments:
    """How the noise of steps adds up, for each kind of device in a chunk: most of them take the same steps."""

    powers: Numbers
    """|a|² [kinds, parts]."""
    slopes: Numbers
    """A[t]·a/|a|² [kinds, parts, t]."""
    left: Numbers
    """The covariance in time that is left [kinds, t, u]."""
    kind_of: NDArray[np.int64]


def _moments(chunk: Chunk) -> _Moments:
    batches, steps = chunk.batches, len(chunk.batches.active)
    kinds = (np.array(batches.active)[None, :] > np.arange(len(chunk))[:, None]).sum(axis=1)[:, None]
    if chunk.task.halves:
        kinds = np.concatenate([kinds, batches.first_half.cpu().numpy().T], axis=1)
    kinds, kind_of = np.unique(kinds, axis=0, return_inverse=True)
    return _Moments(*_of_kinds(Rule.of(chunk.task), steps, tuple(map(tuple, kinds.tolist()))), kind_of)


@lru_cache(maxsize=64)
def _of_kinds(rule: Rule, steps: int, kinds: tuple[tuple[float, ...], ...]) -> tuple[Numbers, Numbers, Numbers]:
    """Powers, slopes and what is left, of kinds: a number of steps and, with `halves`, which belong to the first half.

    Remembered, since a run asks for the same ones in every round.
    """
    response = impulse_response(rule, steps)
    ends = response[[int(kind[0]) for kind in kinds]][:, None, :]
    if len(kinds[0]) > 1:
        first = np.array(kinds)[:, None, 1:]
        ends = np.concatenate([ends * first, ends * (1 - first)], axis=1)
    powers = (ends**2).sum(axis=2)
    overlap = ends @ response[:steps].T
    slopes = np.divide(overlap, powers[:, :, None], out=np.zeros_like(overlap), where=powers[:, :, None] > 0)
    left = response[:steps] @ response[:steps].T - overlap.transpose(0, 2, 1) @ slopes
    return powers, slopes, left


def _draw(noise: Noise, records: Tensor, rows: NoiseRows, deviations: list[float], answers: Tensor) -> None:
    """Fill `rows` with noise, and `answers` [n, count, out] with what it answers to the records."""
    n, _, inputs = records.shape
    out = answers.shape[2]
    for start in range(0, n, _TOGETHER):
        some = slice(start, start + _TOGETHER)
        layer = rows.room(some)
        for i, row in enumerate(layer, start):
            noise.fill(i, row, deviations[i])
        weight, bias = layer[:, :-out].view(-1, out, inputs), layer[:, -out:]
        torch.baddbmm(bias.unsqueeze(1), records[some], weight.transpose(1, 2), out=answers[some])
        rows.drawn(some)


def _add_visited(chunk: Chunk, answers: Tensor, slopes: Tensor, shift: Tensor) -> None:
    """Add to `shift` the answers to the records of each visit, times the slope [n, steps] of its step."""
    width = chunk.batches.rows.shape[2]
    slopes = slopes.repeat_interleave(width, dim=1).unsqueeze(2)
    if chunk.batches.single_pass:
        shift.addcmul_(answers, slopes)
        return
    visits = visits_after_first(chunk)
    together = max(1, _ROWS_AT_ONCE // max(1, visits.shape[1]))
    for start in range(0, len(shift), together):
        some = slice(start, start + together)
        shift[some].addcmul_(rows_of_each(answers[some], visits[some]), slopes[some])
