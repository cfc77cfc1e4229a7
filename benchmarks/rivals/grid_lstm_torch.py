"""The LSTM on grids in PyTorch, batched by hand: all pixels of a diagonal of all images at once.

Both predecessors of a pixel are on the diagonal before. Their states are looked up with indices
prepared before, and a row of zeros for those that are absent; one product gives all gates. The
inputs of all pixels are multiplied once. The gates are in the order u, i, o, f, f, so that one call
computes the sigmoids of four of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.rivals.program import Given, Values, serve
from benchmarks.rivals.torch_pass import torch_pass

ORDER = (2, 0, 1, 3, 4)  # positions of u, i, o, f, f among the gates of cavs


@dataclass(frozen=True)
class Batch:
    """The diagonals of a batch of images, and the rows of their last pixels.

    pixels: of all diagonals, in order. counts: pixels of each diagonal. lookup: for each diagonal,
    left and upper predecessor of each pixel, as rows of the diagonal before; behind them is the
    row of zeros. ends: last pixels among the rows of each diagonal that has some.
    """

    pixels: Tensor
    counts: list[int]
    lookup: list[Tensor]
    ends: dict[int, Tensor]
    labels: Tensor


def prepare_batch(images: list[tuple[list[list[float]], int]]) -> Batch:
    """Return the indices of a batch."""
    diagonals: list[list[tuple[int, int, int]]] = []
    for number, (image, _) in enumerate(images):
        for row in range(len(image)):
            for column in range(len(image[0])):
                if row + column == len(diagonals):
                    diagonals.append([])
                diagonals[row + column].append((number, row, column))
    lookup, ends, labels = list[Tensor](), dict[int, Tensor](), list[int]()
    for d, cells in enumerate(diagonals):
        before = {cell: i for i, cell in enumerate(diagonals[d - 1])} if d else {}
        pairs = [((n, r, c - 1), (n, r - 1, c)) for n, r, c in cells]
        rows = [[before.get(cell, len(before)) for cell in pair] for pair in pairs]
        lookup.append(torch.tensor(rows).flatten())
        last = [
            (i, images[n][1])
            for i, (n, r, c) in enumerate(cells)
            if (r + 1, c + 1) == np.shape(images[n][0])
        ]
        if last:
            ends[d] = torch.tensor([i for i, _ in last])
            labels += [label for _, label in last]
    pixels = [images[n][0][r][c] for cells in diagonals for n, r, c in cells]
    counts = [len(cells) for cells in diagonals]
    return Batch(torch.tensor(pixels)[:, None], counts, lookup, ends, torch.tensor(labels))


class Network(torch.nn.Module):
    """The cell and the output layer."""

    def __init__(self, values: Values) -> None:
        super().__init__()

        def ordered(name: str) -> torch.nn.Parameter:
            blocks = np.split(values[name], 5, axis=-1)
            joined = np.concatenate([blocks[i] for i in ORDER], axis=-1)
            return torch.nn.Parameter(torch.from_numpy(joined))

        self.W, self.U, self.b = (ordered(f"grid.{name}") for name in "WUb")
        self.weight = torch.nn.Parameter(torch.from_numpy(values["output.weight"]))
        self.bias = torch.nn.Parameter(torch.from_numpy(values["output.bias"]))
        self.size = len(self.U) // 2

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss of a batch."""
        n = self.size
        h = c = torch.zeros(0, n)
        zeros, found = torch.zeros(1, n), list[Tensor]()
        inputs = torch.addmm(self.b, batch.pixels, self.W).split(batch.counts)
        for d, own in enumerate(inputs):
            rows = batch.lookup[d]
            states = F.embedding(rows, torch.cat([h, zeros])).view(-1, 2 * n)
            cells = F.embedding(rows, torch.cat([c, zeros])).view(-1, 2 * n)
            u, rest = torch.addmm(own, states, self.U).split([n, 4 * n], 1)
            i, o, forget = torch.sigmoid(rest).split([n, n, 2 * n], 1)
            left, above = (forget * cells).split(n, 1)
            c = torch.addcmul(left + above, i, torch.tanh(u))
            h = o * torch.tanh(c)
            if d in batch.ends:
                found.append(h[batch.ends[d]])
        logits = torch.addmm(self.bias, torch.cat(found), self.weight)
        return F.cross_entropy(logits, batch.labels)


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return the pass over all batches."""
    network = Network(values)
    batches = [prepare_batch(batch) for batch in given["batches"]]
    return torch_pass(network, batches, given)


def main() -> None:
    serve(prepare)
