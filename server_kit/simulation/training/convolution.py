"""Convolution, 2 x 2 maximum pooling and ReLU of many devices at once, as a few batched products.

Each pooling window is one column: the (k+1) x (k+1) pixels that its four outputs see, times all input
channels. A device's weights become a matrix with a row for each of the four outputs and each channel, zero
where an output does not look. For a 5 x 5 kernel that is 1.44 times the arithmetic but a third of the
copying, and the four candidates of a maximum lie in four contiguous blocks.

What flows is [n, channels, height, width, batch]. Inside, even and odd rows and columns of an image lie
apart ("split"), so that the pixels of all windows at one offset are long stretches of memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from server_kit.simulation.training.dense import Layer, add_scaled, relu_backward
from server_kit.simulation.training.specs import POOL, ConvolutionShape
from server_kit.simulation.training.workspace import Workspace, first

_CORNERS = tuple((down, right) for down in range(POOL) for right in range(POOL))


class ConvolutionLayer:
    """`begin` for a chunk of devices, then `forward`, `backward` and `accumulate` for each step.

    A step concerns the first devices of the chunk, as many as the weights that it is handed.
    """

    def __init__(self, shape: ConvolutionShape, workspace: Workspace, name: str) -> None:
        self._shape = shape
        self._workspace = workspace
        self._name = name
        self._tile = shape.kernel + 1
        self._seen = shape.channels_in * self._tile**2
        self._candidates = len(_CORNERS) * shape.channels_out

    def begin(self, devices: int, batch: int) -> None:
        """Set memory aside for a chunk."""
        shape = self._shape
        self._batch = batch
        self._places = shape.pooled[0] * shape.pooled[1] * batch
        sides = [(side + 2 * shape.padding) // POOL for side in (shape.height, shape.width)]
        # The image's border, and what an output does not see, stay zero until the next chunk.
        self._image = self._take("image", devices, shape.channels_in, POOL, POOL, *sides, batch).zero_()
        self._matrix = self._take("matrix", devices, self._candidates, self._seen).zero_()
        self._columns = self._take("columns", devices, self._seen, self._places)
        self._outputs = self._take("outputs", devices, len(_CORNERS), shape.channels_out, self._places)
        self._better = self._take("better", 3, devices, shape.channels_out, self._places)
        self._pooled = self._take("pooled", devices, shape.channels_out, self._places)

    def forward(self, layer: Layer, entering: Tensor) -> Tensor:
        """What comes out, [n, channels_out, *pooled, batch]."""
        weight, bias = layer
        n = len(weight)
        for outside, inside in self._woven(entering, first(self._image, n)):
            inside.copy_(outside)
        for block in self._blocks(first(self._matrix, n)):
            block.copy_(weight)
        first(self._columns, n).view(self._windows(n).shape).copy_(self._windows(n))
        torch.bmm(first(self._matrix, n), first(self._columns, n), out=first(self._outputs, n).flatten(1, 2))
        return self._maximum(n).add_(bias.unsqueeze(2)).clamp_min_(0).view(self.outgoing(n, self._batch))

    def outgoing(self, devices: int, batch: int) -> tuple[int, ...]:
        """The shape of what comes out."""
        return devices, self._shape.channels_out, *self._shape.pooled, batch

    def backward(self, difference: Tensor, *, inward: bool) -> Tensor:
        """Take the loss's gradient by what came out (and overwrite it); with `inward`, return that by what entered."""
        n = len(difference)
        difference = relu_backward(difference.view(n, self._shape.channels_out, self._places), first(self._pooled, n))
        self._difference = difference
        self._unpool(difference)
        return self._entering_gradient(n) if inward else difference

    def accumulate(self, into: Layer, beta: float, alpha: float) -> None:
        """`into` ← beta·`into` + alpha·gradient."""
        weight, bias = into
        n = len(weight)
        tiles = self._take("tiles", n, self._candidates, self._seen)
        torch.bmm(first(self._outputs, n).flatten(1, 2), first(self._columns, n).transpose(1, 2), out=tiles)
        add_scaled(bias, self._difference.sum(dim=2), beta, alpha)
        for block in self._blocks(tiles):
            add_scaled(weight, block, beta, alpha)
            beta = 1.0

    def record_gradients(self) -> tuple[Tensor, Tensor]:
        """Each record's own gradient, of the weights [n, batch, out·in·k·k] and of the bias [n, batch, out].

        Written down, unlike those of dense layers: a kernel is small, and their sum is then nearly free.
        """
        shape = self._shape
        n, places = len(self._difference), self._places // self._batch
        outputs = self._batch_first("outputs-first", first(self._outputs, n).view(n, self._candidates, places, -1))
        columns = self._batch_first("columns-first", first(self._columns, n).view(n, self._seen, places, -1))
        tiles = self._take("record-tiles", n * self._batch, self._candidates, self._seen)
        torch.bmm(outputs, columns.transpose(1, 2), out=tiles)
        kernel = (shape.channels_out, shape.channels_in, shape.kernel, shape.kernel)
        gradients = self._take("record-gradients", n * self._batch, *kernel)
        corner, *others = self._blocks(tiles)
        gradients.copy_(corner)
        for block in others:
            gradients.add_(block)
        biases = self._difference.view(n, shape.channels_out, places, self._batch).sum(dim=2).transpose(1, 2)
        return gradients.view(n, self._batch, -1), biases

    def accumulate_records(
        self, into: Layer, gradients: tuple[Tensor, Tensor], shares: Tensor, beta: float, alpha: float
    ) -> None:
        """`into` ← beta·`into` + alpha·Σ share·gradient over the records; `shares` is [n, batch]."""
        for target, values in zip(into, gradients, strict=True):
            total = torch.bmm(shares.unsqueeze(1), values)
            add_scaled(target, total.view(target.shape), beta, alpha)

    def _batch_first(self, part: str, values: Tensor) -> Tensor:
        """[n, a, places, batch] as a copy [n·batch, a, places]."""
        n, rows, places, batch = values.shape
        moved = self._take(part, n, batch, rows, places)
        return moved.copy_(values.permute(0, 3, 1, 2)).view(n * batch, rows, places)

    def _maximum(self, n: int) -> Tensor:
        """The largest of the four candidates, the first among equals, and which one it was."""
        outputs, (upper, lower, whole), pooled = first(self._outputs, n), self._better[:, :n], first(self._pooled, n)
        top, bottom = self._take("top", *pooled.shape), self._take("bottom", *pooled.shape)
        for better, winner, pair in ((upper, top, outputs[:, :2]), (lower, bottom, outputs[:, 2:])):
            torch.ge(pair[:, 0], pair[:, 1], out=better)
            torch.maximum(pair[:, 0], pair[:, 1], out=winner)
        torch.ge(top, bottom, out=whole)
        return torch.maximum(top, bottom, out=pooled)

    def _unpool(self, difference: Tensor) -> None:
        """Write the gradient by each candidate over the candidates: only the largest of four gets it."""
        n = len(difference)
        outputs, (upper, lower, whole) = first(self._outputs, n), self._better[:, :n]
        top, bottom = self._take("top", *difference.shape), self._take("bottom", *difference.shape)
        torch.sub(difference, torch.mul(difference, whole, out=top), out=bottom)
        for better, winner, pair in ((upper, top, outputs[:, :2]), (lower, bottom, outputs[:, 2:])):
            torch.sub(winner, torch.mul(winner, better, out=pair[:, 0]), out=pair[:, 1])

    def _entering_gradient(self, n: int) -> Tensor:
        shape = self._shape
        columns = self._take("columns-back", n, self._seen, self._places)
        torch.bmm(first(self._matrix, n).transpose(1, 2), first(self._outputs, n).flatten(1, 2), out=columns)
        columns = columns.view(self._windows(n).shape)
        split = self._take("image-back", *first(self._image, n).shape).zero_()
        rows, width = shape.pooled
        for down in range(self._tile // POOL):
            for right in range(self._tile // POOL):
                split[..., down : down + rows, right : right + width, :].add_(columns[:, :, down, :, right])
        natural = self._take("natural-back", n, shape.channels_in, shape.height, shape.width, self._batch)
        for outside, inside in self._woven(natural, split):
            outside.copy_(inside)
        return natural

    def _windows(self, n: int) -> Tensor:
        """The pixels under every window, as a view of the split image: nothing is copied."""
        image = first(self._image, n)
        each, channel, odd_row, odd_column, row, column, _ = image.stride()
        half = self._tile // POOL
        return image.as_strided(
            (n, self._shape.channels_in, half, POOL, half, POOL, *self._shape.pooled, self._batch),
            (each, channel, row, odd_row, column, odd_column, row, column, 1),
        )

    def _blocks(self, tiles: Tensor) -> Iterator[Tensor]:
        """For each of the four outputs of a window, where its kernel lies, as views [n, out, in, k, k]."""
        shape = self._shape
        grid = tiles.view(len(tiles), len(_CORNERS), shape.channels_out, shape.channels_in, self._tile, self._tile)
        for corner, (down, right) in enumerate(_CORNERS):
            yield grid[:, corner, :, :, down : down + shape.kernel, right : right + shape.kernel]

    def _woven(self, natural: Tensor, split: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of views of the same pixels in an image and in a padded split one."""
        padding = self._shape.padding
        for odd_row, odd_column in _CORNERS:
            top, left = (odd_row - padding) % POOL, (odd_column - padding) % POOL
            outside = natural[:, :, top::POOL, left::POOL]
            first_row, first_column = (top + padding) // POOL, (left + padding) // POOL
            rows, columns = outside.shape[2:4]
            yield (
                outside,
                split[:, :, odd_row, odd_column, first_row : first_row + rows, first_column : first_column + columns],
            )

    def _take(self, part: str, *shape: int) -> Tensor:
        return self._workspace.take(f"{self._name}-{part}", *shape)
