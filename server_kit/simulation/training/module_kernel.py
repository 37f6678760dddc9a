"""The kernel for any torch module: `torch.func` over a chunk at once, or one device after the other."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from server_kit.errors import InvalidSetting
from server_kit.simulation.training.dense import add_scaled
from server_kit.simulation.training.kernel import Chunk
from server_kit.simulation.training.module_spec import ModuleSpec
from server_kit.simulation.training.network import clipped_shares
from server_kit.simulation.training.noise import Noise
from server_kit.simulation.training.targets import SumOfUpdates, Target
from server_kit.simulation.training.workspace import Workspace


class ModuleKernel:
    """Stacked weights [n, size] of a module.

    Not every module can be computed for many devices at once (one that changes its buffers cannot); the first
    step finds out, and from then on devices are computed one after the other.
    """

    def __init__(self, spec: ModuleSpec, workspace: Workspace, where: torch.device) -> None:
        self._spec = spec
        # Each worker has a copy: a functional call borrows the module's own parameters while it runs.
        self._module = spec.module().train().to(where)
        self._buffers = {name: buffer.clone() for name, buffer in self._module.named_buffers()}
        self._workspace = workspace
        self._at_once = not spec.mixes_records

    def begin(self, chunk: Chunk, noise: Noise | None, target: Target) -> tuple[Tensor, Tensor]:
        del noise  # it comes with each step, into the vectors that are trained
        if chunk.task.is_private and self._spec.mixes_records:
            raise InvalidSetting(
                "a module with batch normalisation has no gradient of a single record; use group normalisation; "
                "nothing was trained"
            )
        self._chunk = chunk
        vectors = target.vectors(chunk.start.shape[1], self._workspace)
        return vectors.copy_(chunk.start), chunk.start

    @property
    def noised_from(self) -> int:
        return 0

    def accumulate(self, weights: Tensor, step: int, into: Tensor, beta: float, alpha: float) -> None:
        shares = self._chunk.batches.weights[step, : len(weights)]
        inputs, targets = self._batch(step, len(weights))
        clip_norm = self._chunk.task.clip_norm
        if clip_norm is None:
            gradients = self._gradients(weights, inputs, targets, shares)
        else:
            gradients = torch.stack(
                [self._clipped(*device, clip_norm) for device in zip(weights, inputs, targets, shares, strict=True)]
            )
        add_scaled(into, gradients, beta, alpha)

    def start_losses(self) -> Tensor | None:
        return None

    def finish(self, deviation: Tensor, target: Tensor) -> None:
        if deviation is not target:
            target.copy_(deviation)

    def finish_sum(self, deviation: Tensor, target: SumOfUpdates) -> None:
        target.add_rows(deviation)

    def _batch(self, step: int, devices: int) -> tuple[Tensor, Tensor]:
        rows = self._chunk.batches.rows[step, :devices]
        data = self._chunk.data
        inputs = self._workspace.take("inputs", rows.numel(), data.x[0].numel())
        data.inputs(rows.flatten(), out=inputs)
        targets = data.y.index_select(0, rows.flatten()).view(*rows.shape, *data.y.shape[1:])
        return inputs.view(*rows.shape, *self._spec.input_shape), targets

    def _gradients(self, weights: Tensor, inputs: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
        """The gradient of each device, [n, size]."""
        if self._at_once:
            try:
                return vmap(grad(self._objective))(weights, inputs, targets, shares)  # type: ignore[no-any-return]
            except RuntimeError:
                self._at_once = False
        alone = []
        for flat, x, y, share in zip(weights, inputs, targets, shares, strict=True):
            there = share > 0
            alone.append(grad(self._objective)(flat, x[there], y[there], share[there]))
        return torch.stack(alone)

    def _clipped(self, flat: Tensor, inputs: Tensor, targets: Tensor, shares: Tensor, clip_norm: float) -> Tensor:
        """The sum of one device's clipped gradients, [size]."""
        records = (inputs.unsqueeze(1), targets.unsqueeze(1), torch.ones_like(shares).unsqueeze(1))
        if self._at_once:
            try:
                own = vmap(grad(self._objective), in_dims=(None, 0, 0, 0))(flat, *records)
            except RuntimeError:
                self._at_once = False
        if not self._at_once:
            own = torch.stack([grad(self._objective)(flat, *record) for record in zip(*records, strict=True)])
        total: Tensor = clipped_shares(own.square().sum(dim=1), shares, clip_norm) @ own
        return total

    def _objective(self, flat: Tensor, inputs: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
        state = {**self._spec.layout.views(flat), **{name: value.clone() for name, value in self._buffers.items()}}
        losses = self._spec.loss(functional_call(self._module, state, (inputs,)), targets)
        if losses.shape != shares.shape:
            raise InvalidSetting(
                f"the loss must give one value for each of {len(shares)} records, it gave {tuple(losses.shape)}; "
                "nothing was trained"
            )
        return (losses * shares).sum()
