"""Models are pickled, as spawned processes and tools that copy them do."""

import pickle

import numpy as np
import pytest

import cavs
from cavs import nn, ops


class Classifier(cavs.Model):
    def __init__(self, cell):
        self.embedding = nn.Embedding(5, 4)
        self.cell = cell
        self.norm = nn.LayerNorm(4)
        self.output = nn.Linear(4, 2)

    def forward(self, batch):
        h = self.cell(batch.graph, x=self.embedding(batch["token"]))
        return self.output(self.norm(h))

    def loss(self, batch):
        return ops.cross_entropy(self.forward(batch), batch["label"])


CELLS = [nn.LSTM, nn.GRU, nn.BinaryTreeLSTM, nn.ChildSumTreeLSTM, nn.TreeGRU, nn.TreeAttention]


@pytest.mark.parametrize("make", [*CELLS, lambda i, h: nn.TreeFC(h), lambda i, h: nn.RNTN(h)])
def test_a_trained_model_survives_pickling(make):
    batch = cavs.batch([cavs.Graph.chain(3, features={"token": [1, -1, 4], "label": [0, 1, -1]})])
    model = Classifier(make(4, 4))
    cavs.Trainer(model, cavs.optim.SGD(0.1)).step(batch)
    again = pickle.loads(pickle.dumps(model))
    assert list(again.parameters()) == list(model.parameters())
    ours, theirs = (cavs.Session(m).predict(batch)["output"] for m in (again, model))
    assert np.array_equal(ours, theirs)
    again.initialize(3)
    model.initialize(3)
    for name, parameter in model.parameters().items():
        assert np.array_equal(again.parameters()[name].value, parameter.value)
