"""The steps of local training: what is done with a gradient once a kernel has computed it."""

from __future__ import annotations

from torch import Tensor

from server_kit.simulation.training.kernel import Chunk, Kernel
from server_kit.simulation.training.noise import Noise, StepNoise
from server_kit.simulation.training.workspace import Workspace, first


def descend(
    kernel: Kernel, chunk: Chunk, vectors: tuple[Tensor, Tensor], noise: Noise | None, workspace: Workspace
) -> Tensor | None:
    """Train the first of `vectors` [n, ·] in place, away from the second.

    With `halves`, returns how far the first half of the batches alone carried it.
    """
    weights = vectors[0]
    size = weights.shape[1] - kernel.noised_from
    steps_noise = None if noise is None else StepNoise(noise, size, chunk.task.noise_deviation, workspace)
    if chunk.task.is_plain:
        _descend_plainly(kernel, chunk, weights, steps_noise)
        return None
    return _FullRule(kernel, chunk, vectors, steps_noise, workspace).train()


def _descend_plainly(kernel: Kernel, chunk: Chunk, weights: Tensor, noise: StepNoise | None) -> None:
    """w ← w − η·gradient, without writing the gradient down."""
    rate = chunk.task.learning_rate
    for step, active in enumerate(chunk.batches.active):
        moving = first(weights, active)
        kernel.accumulate(moving, step, into=moving, beta=1.0, alpha=-rate)
        if noise:
            noise.add_to(moving[:, kernel.noised_from :], step, -rate)


class _FullRule:
    """Steps with everything that a task may ask for, in the order in which it is applied."""

    def __init__(
        self,
        kernel: Kernel,
        chunk: Chunk,
        vectors: tuple[Tensor, Tensor],
        noise: StepNoise | None,
        workspace: Workspace,
    ) -> None:
        self._kernel, self._chunk, self._task, self._noise = kernel, chunk, chunk.task, noise
        self._weights, self._origin = vectors
        weights = self._weights
        self._mask = None if self._task.mask is None else self._task.mask.to(weights.device)
        self._gradient = workspace.take("gradient", *weights.shape)
        self._velocity = workspace.zeros("velocity", *weights.shape) if self._task.momentum else None
        self._first_half: Tensor | None = None
        if self._task.halves:
            self._first_half = workspace.zeros("first-half", *weights.shape)
            self._half_gradient = workspace.take("half-gradient", *weights.shape)
            self._half_velocity = workspace.zeros("half-velocity", *weights.shape) if self._task.momentum else None

    def train(self) -> Tensor | None:
        for step, active in enumerate(self._chunk.batches.active):
            self._step(step, active)
        return self._first_half

    def _step(self, step: int, active: int) -> None:
        gradient, weights = first(self._gradient, active), first(self._weights, active)
        self._kernel.accumulate(weights, step, into=gradient, beta=0.0, alpha=1.0)
        if self._noise:
            self._noise.add_to(gradient[:, self._kernel.noised_from :], step, 1.0)
        if self._mask is not None:
            gradient.mul_(self._mask)
        if self._first_half is not None:
            self._step_first_half(self._first_half[:active], gradient, step)
        if self._task.proximal:
            gradient.add_(weights, alpha=self._task.proximal).sub_(self._origin[:active], alpha=self._task.proximal)
        self._move(weights, gradient, self._velocity)

    def _step_first_half(self, part: Tensor, gradient: Tensor, step: int) -> None:
        """The same rule, fed with the gradients of the first half alone: it is linear, so the halves add up."""
        share = self._chunk.batches.first_half[step, : len(part)].unsqueeze(1)
        own = self._half_gradient[: len(part)].copy_(gradient).mul_(share)
        own.add_(part, alpha=self._task.proximal)
        self._move(part, own, self._half_velocity)

    def _move(self, weights: Tensor, gradient: Tensor, velocity: Tensor | None) -> None:
        if velocity is not None:
            gradient = velocity[: len(weights)].mul_(self._task.momentum).add_(gradient)
        weights.add_(gradient, alpha=-self._task.learning_rate)
