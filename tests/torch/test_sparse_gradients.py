"""Sparse gradients of tables: ``cavs.torch.Module(model, sparse=True)``."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn
from cavs.errors import ConfigError
from tests.runtime.test_input_gradients import CHAIN, ROOTS, SHARED

torch = pytest.importorskip("torch", reason="cavs.torch needs the package torch")

from cavs.torch import Module  # noqa: E402

FORMS = (CHAIN, [[]], SHARED, ROOTS)


class Words(cavs.Model):
    """Two tables, of which a product reads the second one, too."""

    def __init__(self):
        self.read, self.tied = nn.Embedding(7, 3), nn.Embedding(7, 3)
        self.cell = nn.ChildSumTreeLSTM(3, 3)

    def forward(self, batch):
        x = self.read(batch["word"]) + self.tied(batch["word"])
        return self.cell(batch.graph, x=x) @ self.tied.weight.T


def test_sparse_gradients_of_tables_equal_dense_ones():
    rng = np.random.default_rng(3)
    graphs = [
        cavs.Graph(children, {"word": rng.integers(-1, 5, len(children))}) for children in FORMS
    ]
    batch = cavs.batch(graphs)
    found = []
    for sparse in (False, True):
        model = Words()
        model.initialize(1)
        module = Module(model, sparse=sparse)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            module(batch).square().sum().backward()
            optimizer.step()
        found.append(dict(module.named_parameters()))
    dense, rows = found
    assert rows["read.weight"].grad.is_sparse and not rows["tied.weight"].grad.is_sparse
    read = {word for graph in graphs for word in graph.features["word"].tolist() if word >= 0}
    assert rows["read.weight"].grad.coalesce().indices()[0].tolist() == sorted(read)
    for name, parameter in dense.items():
        grad = rows[name].grad
        grad = grad.to_dense() if grad.is_sparse else grad
        torch.testing.assert_close(grad, parameter.grad, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(rows[name], parameter, rtol=1e-6, atol=1e-7)


def test_sparse_gradients_train_by_sparse_adam_and_accumulate():
    model = Words()
    module = Module(model, sparse=True)
    batch = cavs.batch([cavs.Graph([[], [0]], {"word": [2, 4]})])
    table = dict(module.named_parameters())["read.weight"]
    optimizer = torch.optim.SparseAdam([table], lr=0.1)
    before = table.detach().clone()
    for _ in range(2):
        module(batch).sum().backward()
    once = table.grad.to_dense().clone()
    optimizer.zero_grad()
    module(batch).sum().backward()
    torch.testing.assert_close(once, 2 * table.grad.to_dense())
    optimizer.step()
    moved = (table.detach() != before).any(1)
    assert moved.nonzero().flatten().tolist() == [2, 4]


def test_sparse_is_a_flag():
    with pytest.raises(ConfigError, match="sparse"):
        Module(Words(), sparse="read")
