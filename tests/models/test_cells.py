"""Every cell of cavs.nn, values and gradients, against the interpreter in float64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import ConfigError, GraphError
from cavs.frontend.batch import Feature
from cavs.frontend.model import trace_model
from cavs.ir.interpret import Inputs, interpret
from cavs.passes.differentiate import differentiate

SIZE, WORDS, CLASSES = 4, 7, 3
CELLS = {
    "lstm": lambda: nn.LSTM(SIZE, SIZE + 1),
    "gru": lambda: nn.GRU(SIZE, SIZE + 1),
    "binary-tree-lstm": lambda: nn.BinaryTreeLSTM(SIZE, SIZE + 1),
    "forget-reads-input": lambda: nn.BinaryTreeLSTM(SIZE, SIZE + 1, forget_reads_input=True),
    "child-sum-tree-lstm": lambda: nn.ChildSumTreeLSTM(SIZE, SIZE + 1),
    "tree-gru": lambda: nn.TreeGRU(SIZE, SIZE + 1),
    "tree-fc": lambda: nn.TreeFC(SIZE),
    "tree-attention": lambda: nn.TreeAttention(SIZE, SIZE + 1),
    "rntn": lambda: nn.RNTN(SIZE),
}
# Chains, binary trees, many children, a shared child, several roots, one vertex.
STRUCTURES = {
    "chain": [[], [0], [1], [2]],
    "binary": [[], [], [0, 1], [], [2, 3]],
    "wide": [[], [], [], [], [0, 1, 2], [3, 4]],
    "shared": [[], [0], [0, 1], [1, 2, 0]],
    "diamond": [[], [0], [0], [1, 2]],
    "forest": [[], [0], [], [2]],
    "single": [[]],
}

ARITY = {"LSTM": 1, "GRU": 1, "BinaryTreeLSTM": 2, "TreeFC": 2, "RNTN": 2}  # others take any


class Classifier(cavs.Model):
    """Classify vertices by an embedding, a cell and a linear layer."""

    def __init__(self, cell: cavs.VertexFunction) -> None:
        self.embedding = nn.Embedding(WORDS, SIZE, init="xavier")
        self.cell = cell
        self.output = nn.Linear(cell.state.shapes["h"][0], CLASSES)

    def forward(self, batch: Any) -> Any:
        return self.output(self.cell(batch.graph, x=self.embedding(batch["token"])))

    def loss(self, batch: Any) -> Any:
        return ops.cross_entropy(self.forward(batch), batch["label"])


def graphs(structures: list[list[list[int]]], seed: int = 0) -> list[cavs.Graph]:
    """Return graphs with a word at all vertices but one, and without some labels."""
    random = np.random.default_rng(seed)
    made = []
    for children in structures:
        n = len(children)
        token, label = random.integers(0, WORDS, n), random.integers(0, CLASSES, n)
        token[n // 2] = token[n // 2] if n < 3 else -1
        label[1:2] = -1
        made.append(cavs.Graph(children, {"token": token, "label": label}))
    return made


def inputs(made: list[cavs.Graph]) -> Inputs:
    """Return graphs in the form of the interpreter."""
    firsts = [0, *itertools.accumulate(g.num_vertices for g in made)]
    offsets, children, owner = [0], [], []
    for i, (graph, first) in enumerate(zip(made, firsts, strict=False)):
        for v in range(graph.num_vertices):
            children += [int(c) + first for c in graph.children(v)]
            offsets.append(len(children))
            owner.append(i)
    features = {k: np.concatenate([g.features[k] for g in made]) for k in ("token", "label")}
    return Inputs(offsets, children, owner, features)


def taken(model: Classifier, names: Any = STRUCTURES) -> list[list[list[int]]]:
    """Return the structures with no more children per vertex than the cell gathers."""
    limit = ARITY.get(type(model.cell).__name__, 99)
    return [STRUCTURES[n] for n in names if max(map(len, STRUCTURES[n])) <= limit]


@pytest.fixture(params=CELLS)
def model(request: pytest.FixtureRequest) -> Classifier:
    made = Classifier(CELLS[request.param]())
    made.initialize(3, np.float64)
    random = np.random.default_rng(4)
    for parameter in made.parameters().values():  # zero biases would hide their use
        parameter.value += random.normal(0, 0.3, parameter.shape)
    return made


def test_equals_the_oracle(model: Classifier) -> None:
    made = graphs(taken(model))
    session = cavs.Session(model, dtype=np.float64)
    loss, gradients = session.gradients(cavs.batch(made))
    schema = {"token": Feature("vertex", "int", (), True), "label": Feature("vertex", "int")}
    traced = trace_model(model, schema, training=True)
    expected = interpret(differentiate(traced), inputs(made))
    assert loss == pytest.approx(float(expected["loss"]), rel=1e-12)
    for name in model.parameters():
        want = expected[f"grad:{name}"]
        assert np.abs(want).max() > 0
        np.testing.assert_allclose(
            gradients[name], want, rtol=1e-9, atol=1e-12 * np.abs(want).max(), err_msg=name
        )


def test_predictions_equal_the_oracle(model: Classifier) -> None:
    made = graphs(taken(model))
    session = cavs.Session(model, dtype=np.float64)
    got = session.predict(cavs.batch(made))["output"]
    schema = {"token": Feature("vertex", "int", (), True), "label": Feature("vertex", "int")}
    traced = trace_model(model, schema, training=False)
    np.testing.assert_allclose(got, interpret(traced, inputs(made))["output"], rtol=1e-9)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_graph_alone_equals_the_graph_in_a_batch(model: Classifier, structure: str) -> None:
    made = graphs([STRUCTURES[structure]] * 3)
    session = cavs.Session(model, dtype=np.float64)
    if not taken(model, [structure]):
        with pytest.raises(GraphError, match=r"children; .* by gather\(k\)"):
            session.predict(cavs.batch(made))
        return
    together = session.predict(cavs.batch(made))["output"]
    alone = [session.predict(cavs.batch([graph]))["output"] for graph in made]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-9)


def test_gradient_follows_the_loss(model: Classifier) -> None:
    """The gradient is the slope of the loss along a random direction."""
    batch = cavs.batch(graphs(taken(model, ["binary", "chain"])))
    session = cavs.Session(model, dtype=np.float64)
    _, gradients = session.gradients(batch)
    random, step = np.random.default_rng(5), 1e-6
    directions = {n: random.normal(size=p.shape) for n, p in model.parameters().items()}
    slope = sum(float((gradients[n] * d).sum()) for n, d in directions.items())
    ends = []
    for sign in (1, -1):
        for name, parameter in model.parameters().items():
            parameter.value += sign * step * directions[name]
        session.invalidate()
        ends.append(session.evaluate(batch).loss)
        for name, parameter in model.parameters().items():
            parameter.value -= sign * step * directions[name]
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-6)


def test_forget_gates_read_the_input_only_if_asked_for() -> None:
    """With ``W_f`` zero, the cell is the default one, which has no such parameter."""
    plain, full = nn.BinaryTreeLSTM(3, 4), nn.BinaryTreeLSTM(3, 4, forget_reads_input=True)
    assert set(full.parameters()) - set(plain.parameters()) == {"W_f"}
    tree = cavs.Graph([[], [], [0, 1]], {"token": [1, 2, 3]})
    models = [
        Classifier(nn.BinaryTreeLSTM(SIZE, SIZE)),
        Classifier(nn.BinaryTreeLSTM(SIZE, SIZE, forget_reads_input=True)),
    ]
    for model in models:
        model.initialize(0)
    models[1].cell.W_f.value[...] = 0.0
    outputs = [cavs.Session(model).predict(cavs.batch([tree]))["output"] for model in models]
    np.testing.assert_allclose(*outputs, rtol=1e-6)
    with pytest.raises(ConfigError, match="forget_reads_input is 'yes', but must be True or False"):
        nn.BinaryTreeLSTM(3, 4, forget_reads_input="yes")
