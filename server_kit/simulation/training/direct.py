"""The kernel that trains a spec in its own weights: right for every task, every size of device."""

from __future__ import annotations

from torch import Tensor

from server_kit.simulation.training.dense import softmax_residual
from server_kit.simulation.training.kernel import Chunk
from server_kit.simulation.training.network import Bound, Network
from server_kit.simulation.training.noise import Noise
from server_kit.simulation.training.specs import StackedSpec
from server_kit.simulation.training.targets import SumOfUpdates, Target
from server_kit.simulation.training.workspace import Workspace, first


class DirectKernel:
    """Stacked weights [n, size]; each step copies its batch, and nothing of the data stays."""

    def __init__(self, spec: StackedSpec, workspace: Workspace) -> None:
        self._network = Network(spec, workspace)
        self._workspace = workspace

    def begin(self, chunk: Chunk, noise: Noise | None, target: Target) -> tuple[Tensor, Tensor]:
        del noise  # it comes with each step, into the vectors that are trained
        self._chunk = chunk
        self._network.begin(len(chunk), chunk.batches.rows.shape[2])
        self._rows, self._shares = chunk.batches.rows.unbind(), chunk.batches.weights.unbind()
        self._bound: dict[tuple[int, int], Bound] = {}
        vectors = target.vectors(chunk.start.shape[1], self._workspace)
        return vectors.copy_(chunk.start), chunk.start

    @property
    def noised_from(self) -> int:
        return 0

    def accumulate(self, weights: Tensor, step: int, into: Tensor, beta: float, alpha: float) -> None:
        bound, target = self._bind(weights), self._bind(into)
        inputs, labels = self._batch(step, len(weights))
        shares = first(self._shares[step], len(weights))
        residual = softmax_residual(self._network.forward(bound, inputs), labels)
        if self._chunk.task.clip_norm is None:
            self._network.backward(bound, residual.mul_(shares.unsqueeze(2)))
            self._network.accumulate(target, beta, alpha)
        else:
            self._network.backward(bound, residual)
            self._network.accumulate_clipped(target, shares, self._chunk.task.clip_norm, beta, alpha)

    def start_losses(self) -> Tensor | None:
        return None

    def finish(self, deviation: Tensor, target: Tensor) -> None:
        if deviation is not target:
            target.copy_(deviation)

    def finish_sum(self, deviation: Tensor, target: SumOfUpdates) -> None:
        target.add_rows(deviation)

    def _batch(self, step: int, devices: int) -> tuple[Tensor, Tensor]:
        rows = first(self._rows[step], devices)
        data = self._chunk.data
        features = data.x[0].numel()
        inputs = self._workspace.take("inputs", rows.numel(), features)
        data.inputs(rows.flatten(), out=inputs)
        return inputs.view(*rows.shape, features), data.labels(rows).unsqueeze(2)

    def _bind(self, flat: Tensor) -> Bound:
        """Views of the layers, remembered: making them anew for each step costs more than a small product."""
        key = (flat.data_ptr(), len(flat))
        if key not in self._bound:
            self._bound[key] = self._network.bind(flat)
        return self._bound[key]
