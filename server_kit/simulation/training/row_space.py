"""Training in the space of a device's own records: the first dense layer is not written until the end.

Every gradient of the first layer is a sum of records, so after any number of steps its weights are those of
the start plus Σ c_r·x_r. Instead of the weights [out, in] we keep the coefficients c [records, out]. What
the layer answers to record s then changes by Σ (x_r·x_s + 1)·c_r, the one being the bias: all that steps
need of the data are the products of the records with each other and with the starting weights, computed
once, in large products. A further epoch costs almost nothing, and the weights are written once instead of
once a step. The result is the same up to rounding; `planning` says when this is the faster way.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from server_kit.simulation.training.dense import (
    DenseLayers,
    Layer,
    add_scaled,
    scale,
    softmax_residual,
    squared_norms,
)
from server_kit.simulation.training.kernel import Chunk
from server_kit.simulation.training.module_spec import cross_entropy
from server_kit.simulation.training.network import add_dense_squares, clipped_shares
from server_kit.simulation.training.noise import Noise
from server_kit.simulation.training.row_space_noise import first_layer_noise
from server_kit.simulation.training.specs import LogisticRegression, Mlp
from server_kit.simulation.training.workspace import Workspace, first


class RowSpaceKernel:
    """Vectors [n, records·out + rest]: coefficients of the first layer, then the other layers as they are."""

    def __init__(self, spec: Mlp | LogisticRegression, workspace: Workspace) -> None:
        self._inputs, self._outputs = spec.widths[:2]
        self._first_size = (self._inputs + 1) * self._outputs
        self._others = DenseLayers(spec.widths[1:], workspace, "others")
        self._workspace = workspace

    def begin(
        self, chunk: Chunk, noise: Noise | None, updates: Tensor, first_half: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        self._chunk = chunk
        self._width = chunk.batches.rows.shape[2]
        self._read_records()
        self._answer_start()
        # Without a second visit, batch t only meets the batches before it.
        self._skipped = self._width if chunk.batches.single_pass and not chunk.task.is_private else 0
        self._multiply_records()
        self._noised = noise is not None
        if noise is not None:
            targets = [target[:, : self._first_size] for target in (updates, first_half) if target is not None]
            own = (self._records, self._products)
            self._shift = first_layer_noise(chunk, noise, own, targets, self._workspace)
        self._bound: dict[tuple[int, int], tuple[Tensor, list[Layer]]] = {}
        return self._start_vectors()

    @property
    def noised_from(self) -> int:
        """The first layer gets its noise in `begin`, all steps at once."""
        return self._count * self._outputs

    def _read_records(self) -> None:
        """Fetch the chunk's records: in the order of their only visit, or as the devices number them."""
        batches, data = self._chunk.batches, self._chunk.data
        if batches.single_pass:
            rows = batches.rows.transpose(0, 1).flatten(1)
        else:
            counts = np.array([data.count(device) for device in self._chunk.devices])
            numbers = np.arange(counts.max())
            rows = torch.from_numpy(data.rows_of(self._chunk.devices, numbers * (numbers < counts[:, None])))
        n, self._count = rows.shape
        self._device_starts = torch.arange(n).mul_(self._count).unsqueeze(1)
        flat = self._workspace.take("records", n * self._count, self._inputs)
        self._records = data.inputs(rows.flatten(), out=flat).view(n, self._count, self._inputs)
        self._record_labels = data.labels(rows)
        self._labels = data.labels(batches.rows).unbind()
        self._shares = batches.weights.unbind()

    def _answer_start(self) -> None:
        """What the first layer answers to each record before training."""
        weight, bias = self._first_layer(self._chunk.start)
        n = len(self._records)
        self._answers = self._workspace.take("answers", n, self._count, self._outputs)
        if len(weight) == 1:
            torch.addmm(bias, self._records.flatten(0, 1), weight[0].t(), out=self._answers.flatten(0, 1))
        else:
            torch.baddbmm(bias.unsqueeze(1), self._records, weight.transpose(1, 2), out=self._answers)

    def _multiply_records(self) -> None:
        """x_r·x_s + 1 for the records of each device; `_skipped` first rows and last columns are left out."""
        later, earlier = self._records[:, self._skipped :], self._records[:, : self._count - self._skipped]
        shape = (len(later), later.shape[1], earlier.shape[1])
        self._products = self._workspace.take("products", *shape)
        if later.shape[1]:
            torch.bmm(later, earlier.transpose(1, 2), out=self._products).add_(1)

    def _start_vectors(self) -> tuple[Tensor, Tensor]:
        start = self._chunk.start
        size = self.noised_from + start.shape[1] - self._first_size
        origin = self._workspace.zeros("row-space-origin", len(start), size)
        origin[:, self.noised_from :] = start[:, self._first_size :]
        return self._workspace.take("row-space", len(self._chunk), size).copy_(origin), origin

    def accumulate(self, weights: Tensor, step: int, into: Tensor, beta: float, alpha: float) -> None:
        coefficients, others = self._bind(weights)
        outputs = self._answer(coefficients, step)
        flow = self._flow_on(others, outputs)
        residual = softmax_residual(flow[-1], first(self._labels[step], len(weights)))
        shares = first(self._shares[step], len(weights))
        if self._chunk.task.clip_norm is None:
            differences = self._others.backward(others, flow, residual.mul_(shares.unsqueeze(2)), inward=True)
        else:
            differences = self._others.backward(others, flow, residual, inward=True)
            self._clip(flow, differences, step, shares, self._chunk.task.clip_norm)
        coefficients, others = self._bind(into)
        self._add_to_coefficients(coefficients, differences[0], step, beta, alpha)
        self._others.accumulate(others, flow, differences[1:], beta, alpha)

    def start_losses(self) -> Tensor | None:
        chunk = self._chunk
        counts = torch.tensor([chunk.data.count(device) for device in chunk.devices])
        if chunk.batches.single_pass:
            present = chunk.batches.weights.transpose(0, 1).flatten(1) > 0
        else:
            present = torch.arange(self._count) < counts.unsqueeze(1)
        if not torch.equal(present.sum(dim=1), counts):
            return None  # some records are never visited, so nothing is known about them
        answers = self._workspace.take("start-answers", *self._answers.shape).copy_(self._answers)
        others = self._others.bind(chunk.start[:, self._first_size :])
        logits = self._flow_on(others, answers.view(len(chunk.start), -1, self._outputs))[-1]
        losses = cross_entropy(logits.flatten(0, 1), self._record_labels.flatten()).view(present.shape)
        return torch.where(present, losses, 0).sum(dim=1) / counts

    def finish(self, deviation: Tensor, target: Tensor) -> None:
        coefficients = deviation[:, : self.noised_from].view(len(deviation), self._count, self._outputs)
        weight, bias = self._first_layer(target)
        beta = 1.0 if self._noised else 0.0
        weight.baddbmm_(coefficients.transpose(1, 2), self._records, beta=beta)
        add_scaled(bias, coefficients.sum(dim=1), beta, 1.0)
        target[:, self._first_size :] = deviation[:, self.noised_from :]

    def _answer(self, coefficients: Tensor, step: int) -> Tensor:
        """What the first layer answers to the batch of a step."""
        n, width = len(coefficients), self._width
        outputs = self._workspace.take("answer", n, width, self._outputs)
        if self._chunk.batches.single_pass:
            seen = step * width
            outputs.copy_(first(self._answers, n)[:, seen : seen + width])
            if step:
                products = first(self._products, n)[:, seen - self._skipped : seen - self._skipped + width, :seen]
                outputs.baddbmm_(products, coefficients[:, :seen])
        else:
            visited = self._visited(step, n)
            torch.index_select(self._answers.flatten(0, 1), 0, visited, out=outputs.flatten(0, 1))
            products = self._workspace.take("batch-products", n * width, self._count)
            torch.index_select(self._products.flatten(0, 1), 0, visited, out=products)
            outputs.baddbmm_(products.view(n, width, self._count), coefficients)
        if self._noised and step:
            outputs += first(self._shift, n)[:, (step - 1) * width : step * width]
        return outputs

    def _visited(self, step: int, n: int) -> Tensor:
        """The records of a step's batch, numbered through the first n devices of the chunk."""
        return (self._chunk.batches.places[step, :n] + self._device_starts[:n]).flatten()

    def _flow_on(self, others: list[Layer], outputs: Tensor) -> list[Tensor]:
        return self._others.forward(others, outputs.clamp_min_(0) if others else outputs)

    def _clip(self, flow: list[Tensor], differences: list[Tensor], step: int, shares: Tensor, clip_norm: float) -> None:
        """Scale what came back for each record, so that its gradient of all layers is at most `clip_norm` long."""
        n = len(shares)
        lengths = self._products.diagonal(dim1=1, dim2=2)[:n]
        if self._chunk.batches.single_pass:
            lengths = lengths[:, step * self._width : (step + 1) * self._width]
        else:
            lengths = lengths.gather(1, self._chunk.batches.places[step, :n])
        squares = lengths * squared_norms(differences[0])
        add_dense_squares(squares, flow, differences[1:])
        shares = clipped_shares(squares, shares, clip_norm).unsqueeze(2)
        for difference in differences:
            difference.mul_(shares)

    def _add_to_coefficients(self, into: Tensor, difference: Tensor, step: int, beta: float, alpha: float) -> None:
        scale(into, beta)
        if self._chunk.batches.single_pass:
            into[:, step * self._width : (step + 1) * self._width].add_(difference, alpha=alpha)
        else:
            chosen = self._workspace.zeros("chosen", len(into), self._width, self._count)
            chosen.scatter_(2, self._chunk.batches.places[step, : len(into)].unsqueeze(2), 1.0)
            into.baddbmm_(chosen.transpose(1, 2), difference, alpha=alpha)

    def _first_layer(self, flat: Tensor) -> Layer:
        middle = self._inputs * self._outputs
        weight = flat[:, :middle].view(len(flat), self._outputs, self._inputs)
        return weight, flat[:, middle : self._first_size]

    def _bind(self, flat: Tensor) -> tuple[Tensor, list[Layer]]:
        """Coefficients and other layers inside vectors, remembered as in `direct`."""
        key = (flat.data_ptr(), len(flat))
        if key not in self._bound:
            coefficients = flat[:, : self.noised_from].view(len(flat), self._count, self._outputs)
            self._bound[key] = coefficients, self._others.bind(flat[:, self.noised_from :])
        return self._bound[key]
