"""Training in the space of a device's own records: the first dense layer is not written until the end.

Every gradient of the first layer is a sum of records, so after any number of steps its weights are those of
the start plus Σ c_r·x_r. Instead of the weights [out, in] we keep the coefficients c [records, out]. What
the layer answers to record s then changes by Σ (x_r·x_s + 1)·c_r, the one being the bias: all that steps
need of the data are the products of the records with each other and with the starting weights, computed
once, in large products. A further epoch costs almost nothing, and the weights are written once instead of
once a step. The result is the same up to rounding; `planning` says when this is the faster way.
"""

from __future__ import annotations

import math
from dataclasses import replace

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
from server_kit.simulation.training.row_space_noise import Own, first_layer_noise
from server_kit.simulation.training.specs import LogisticRegression, Mlp
from server_kit.simulation.training.targets import SumOfUpdates, Target
from server_kit.simulation.training.visited import visited
from server_kit.simulation.training.workspace import Workspace, first

_ROWS_AT_ONCE = 600  # records that are fetched and then multiplied, while they are still in the cache. Measured


class RowSpaceKernel:
    """Vectors [n, ·]: the coefficients of the first layer [records, out], then the other layers as they are.

    A gap between them makes the vectors a whole number of rows of `out` long, so that all vectors together are one
    matrix in which a step adds to the rows of its records.
    """

    def __init__(self, spec: Mlp | LogisticRegression, workspace: Workspace) -> None:
        self._inputs, self._outputs = spec.widths[:2]
        self._first_size = (self._inputs + 1) * self._outputs
        self._others_size = spec.layout.size - self._first_size
        self._others = DenseLayers(spec.widths[1:], workspace, "others")
        self._workspace = workspace

    def begin(self, chunk: Chunk, noise: Noise | None, target: Target) -> tuple[Tensor, Tensor]:
        self._chunk = chunk
        self._width = chunk.batches.rows.shape[2]
        self._meet_records()
        # Without a second visit, batch t only meets the batches before it.
        self._skipped = self._width if chunk.batches.single_pass and not chunk.task.is_private else 0
        self._multiply_records()
        self._noised = noise is not None
        if noise is not None:
            rows = target.noise_rows(self._first_size, self._workspace)
            own = Own(self._records, self._products, self._visits)
            self._shift = first_layer_noise(self._chunk, noise, own, rows, self._workspace)
        self._bound: dict[tuple[int, int], tuple[Tensor, list[Layer]]] = {}
        return self._start_vectors()

    @property
    def noised_from(self) -> int:
        """The first layer gets its noise in `begin`, all steps at once."""
        return self._vector_rows * self._outputs - self._others_size

    def _meet_records(self) -> None:
        """Find the records that are visited: in the order of their only visit, or as the devices number them."""
        batches, data = self._chunk.batches, self._chunk.data
        if batches.single_pass:
            self._numbers = batches.places.transpose(0, 1).flatten(1)
            rows = batches.rows.transpose(0, 1).flatten(1)
            self._visits = tuple((batches.weights > 0).sum(dim=(0, 2)).tolist())
        else:
            met = visited(batches)
            self._numbers, self._visits, batches = met.numbers, met.counts, met.batches
            self._chunk = replace(self._chunk, batches=batches)
            rows = torch.from_numpy(data.rows_of(self._chunk.devices, met.numbers.cpu().numpy())).to(data.x.device)
        n, self._count = rows.shape
        self._vector_rows = self._count + math.ceil(self._others_size / self._outputs)
        self._records = self._workspace.take("records", n, self._count, self._inputs)
        self._answers = self._workspace.take("answers", n, self._count, self._outputs)
        together = max(1, _ROWS_AT_ONCE // self._count)
        for start in range(0, n, together):
            self._answer_start(rows, slice(start, start + together))
        self._record_labels = data.labels(rows)
        self._labels = data.labels(batches.rows).unsqueeze(3).unbind()
        self._shares = batches.weights.unsqueeze(3).unbind()
        if not batches.single_pass:
            self._visited = _numbered_through(batches.places, self._count).unbind()
            rows_of_vectors = _numbered_through(batches.places, self._vector_rows)
            self._changed = rows_of_vectors.unsqueeze(2).expand(-1, -1, self._outputs).unbind()

    def _answer_start(self, rows: Tensor, some: slice) -> None:
        """Fetch the records of some devices, and what the first layer answers to each before training."""
        weight, bias = self._first_layer(self._chunk.start)
        records, answers = self._records[some], self._answers[some]
        self._chunk.data.inputs(rows[some].flatten(), out=records.flatten(0, 1))
        if len(weight) == 1:
            torch.addmm(bias, records.flatten(0, 1), weight[0].t(), out=answers.flatten(0, 1))
        else:
            torch.baddbmm(bias[some].unsqueeze(1), records, weight[some].transpose(1, 2), out=answers)

    def _multiply_records(self) -> None:
        """x_r·x_s + 1 for the records of each device; `_skipped` first rows and last columns are left out."""
        later, earlier = slice(self._skipped, None), slice(self._count - self._skipped)
        sides = self._count - self._skipped
        self._products = self._workspace.take("products", len(self._records), sides, sides)
        numbers, records, devices = self._numbers, self._records, self._chunk.devices
        kept = self._chunk.data.products(devices, numbers[:, later], numbers[:, earlier], self._products)
        if kept is None and sides:
            torch.bmm(records[:, later], records[:, earlier].transpose(1, 2), out=self._products).add_(1)
        self._all_answers, self._all_products = self._answers.flatten(0, 1), self._products.flatten(0, 1)

    def _start_vectors(self) -> tuple[Tensor, Tensor]:
        start = self._chunk.start
        size = self._vector_rows * self._outputs
        origin = self._workspace.zeros("row-space-origin", len(start), size)
        origin[:, self.noised_from :] = start[:, self._first_size :]
        return self._workspace.take("row-space", len(self._chunk), size).copy_(origin), origin

    def accumulate(self, weights: Tensor, step: int, into: Tensor, beta: float, alpha: float) -> None:
        n = weights.shape[0]
        coefficients, others = self._bind(weights)
        flow = self._flow_on(others, self._answer(coefficients, step))
        residual = softmax_residual(flow[-1], first(self._labels[step], n))
        shares = first(self._shares[step], n)
        if self._chunk.task.clip_norm is None:
            differences = self._others.backward(others, flow, residual.mul_(shares), inward=True)
        else:
            differences = self._others.backward(others, flow, residual, inward=True)
            self._clip(flow, differences, step, shares, self._chunk.task.clip_norm)
        if into is not weights:
            coefficients, others = self._bind(into)
        self._others.accumulate(others, flow, differences[1:], beta, alpha)
        scale(coefficients, beta)
        self._add_to_coefficients(into, coefficients, differences[0], step, alpha)

    def start_losses(self) -> Tensor | None:
        chunk = self._chunk
        where = chunk.start.device
        counts = torch.tensor([chunk.data.count(device) for device in chunk.devices], device=where)
        visits = torch.tensor(self._visits, device=where)
        if not torch.equal(visits, counts):
            return None  # some records are never visited, so nothing is known about them
        present = torch.arange(self._count, device=where) < visits.unsqueeze(1)
        answers = self._workspace.take("start-answers", *self._answers.shape).copy_(self._answers)
        others = self._others.bind(chunk.start[:, self._first_size :])
        logits = self._flow_on(others, answers.view(len(chunk.start), -1, self._outputs))[-1]
        losses = cross_entropy(logits.flatten(0, 1), self._record_labels.flatten()).view(present.shape)
        return torch.where(present, losses, 0).sum(dim=1) / counts

    def finish(self, deviation: Tensor, target: Tensor) -> None:
        coefficients = self._coefficients(deviation)
        weight, bias = self._first_layer(target)
        beta = 1.0 if self._noised else 0.0
        weight.baddbmm_(coefficients.transpose(1, 2), self._records, beta=beta)
        add_scaled(bias, coefficients.sum(dim=1), beta, 1.0)
        target[:, self._first_size :] = deviation[:, self.noised_from :]

    def finish_sum(self, deviation: Tensor, target: SumOfUpdates) -> None:
        """All records of the chunk times their coefficients, in one product: the first layers are never written."""
        coefficients, shares = self._coefficients(deviation), target.shares
        weighted = self._workspace.take("weighted-coefficients", *coefficients.shape)
        torch.mul(coefficients, shares.view(-1, 1, 1), out=weighted)
        by_record = weighted.flatten(0, 1)
        weight, bias = self._first_layer(target.total.unsqueeze(0))
        weight[0].addmm_(by_record.t(), self._records.flatten(0, 1))
        bias[0].add_(by_record.sum(dim=0))
        target.total[self._first_size :].addmv_(deviation[:, self.noised_from :].t(), shares)

    def _answer(self, coefficients: Tensor, step: int) -> Tensor:
        """What the first layer answers to the batch of a step."""
        n, width = coefficients.shape[0], self._width
        outputs = self._workspace.take("answer", n, width, self._outputs)
        if self._chunk.batches.single_pass:
            seen = step * width
            outputs.copy_(first(self._answers, n)[:, seen : seen + width])
            if step:
                products = first(self._products, n)[:, seen - self._skipped : seen - self._skipped + width, :seen]
                outputs.baddbmm_(products, coefficients[:, :seen])
        else:
            visited = first(self._visited[step], n * width)
            torch.index_select(self._all_answers, 0, visited, out=outputs.view(n * width, self._outputs))
            products = self._workspace.take("batch-products", n * width, self._count)
            torch.index_select(self._all_products, 0, visited, out=products)
            outputs.baddbmm_(products.view(n, width, self._count), coefficients)
        if self._noised and step:
            outputs += first(self._shift, n)[:, (step - 1) * width : step * width]
        return outputs

    def _flow_on(self, others: list[Layer], outputs: Tensor) -> list[Tensor]:
        return self._others.forward(others, outputs.clamp_min_(0) if others else outputs)

    def _clip(self, flow: list[Tensor], differences: list[Tensor], step: int, shares: Tensor, clip_norm: float) -> None:
        """Scale what came back for each record, so that its gradient of all layers is at most `clip_norm` long."""
        n = shares.shape[0]
        lengths = self._products.diagonal(dim1=1, dim2=2)[:n]
        if self._chunk.batches.single_pass:
            lengths = lengths[:, step * self._width : (step + 1) * self._width]
        else:
            lengths = lengths.gather(1, self._chunk.batches.places[step, :n])
        squares = lengths * squared_norms(differences[0])
        add_dense_squares(squares, flow, differences[1:])
        shares = clipped_shares(squares, shares.squeeze(2), clip_norm).unsqueeze(2)
        for difference in differences:
            difference.mul_(shares)

    def _add_to_coefficients(
        self, vectors: Tensor, coefficients: Tensor, difference: Tensor, step: int, alpha: float
    ) -> None:
        """Add alpha·`difference` to the rows of a step's batch; `coefficients` are those inside `vectors`."""
        if self._chunk.batches.single_pass:
            coefficients[:, step * self._width : (step + 1) * self._width].add_(difference, alpha=alpha)
            return
        changed = first(self._changed[step], difference.shape[0] * self._width)
        values = difference.mul_(alpha).view(changed.shape)
        vectors.view(-1, self._outputs).scatter_add_(0, changed, values)

    def _coefficients(self, flat: Tensor) -> Tensor:
        return flat[:, : self._count * self._outputs].view(flat.shape[0], self._count, self._outputs)

    def _first_layer(self, flat: Tensor) -> Layer:
        middle = self._inputs * self._outputs
        weight = flat[:, :middle].view(len(flat), self._outputs, self._inputs)
        return weight, flat[:, middle : self._first_size]

    def _bind(self, flat: Tensor) -> tuple[Tensor, list[Layer]]:
        """Coefficients and other layers inside vectors, remembered as in `direct`."""
        key = (flat.data_ptr(), flat.shape[0])
        if key not in self._bound:
            self._bound[key] = self._coefficients(flat), self._others.bind(flat[:, self.noised_from :])
        return self._bound[key]


def _numbered_through(places: Tensor, each: int) -> Tensor:
    """Places [steps, n, width] inside the `each` rows of a device as rows of all devices, [steps, n·width]."""
    starts = torch.arange(places.shape[1], device=places.device).mul_(each).unsqueeze(1)
    return places.add(starts).flatten(1)
