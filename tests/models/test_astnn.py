"""The network of statement trees under a chain equals one in NumPy that runs vertex by vertex."""

from __future__ import annotations

import argparse

import numpy as np
import pytest

import cavs
from cavs.cli import main, registry
from cavs.data import Vocabulary, function_graphs
from cavs.data.readers.python_functions import functions_of
from cavs.errors import DataError
from models.astnn import StatementChain, statements
from tests.models.against_numpy import check, cross_entropy, epoch_losses, sigmoid
from tests.models.test_models import CODE

SIZE = 3
SOURCE = """
def get_a(x):
    if x:
        y = f(x, x)
        for z in y:
            return z
    else:
        y = 1
    return y

def set_a(): pass
"""


def samples(source=SOURCE, classes=("get", "set")):
    functions = list(functions_of(source, "m", sizes=(1, 100)))
    types = Vocabulary.build(t for f in functions for t in f.types)
    names = Vocabulary.build(v for f in functions for v in f.values if v)
    graphs = function_graphs(functions, types, names, tuple(classes))
    return [statements(graph, types) for graph in graphs], types, names


def gru(p, name, rows):
    """Return h of a GRU at every row."""
    w, u, n, b = (p[f"{name}.{key}"] for key in ("W", "U", "U_n", "b"))
    h, found = np.zeros(len(n)), []
    for x in rows:
        xr, xz, xn = np.split(x @ w + b, 3)
        hr, hz = np.split(h @ u, 2)
        z = sigmoid(xz + hz)
        h = z * h + (1 - z) * np.tanh(xn + (sigmoid(xr + hr) * h) @ n)
        found.append(h)
    return found


def scores_of(p, sample):
    """Return the scores of a sample."""
    trees = sample.graphs["trees"]
    h = []
    for v in range(trees.num_vertices):
        kind, name = trees.features["type"][v], trees.features["name"][v]
        x = p["type.weight"][kind] + (p["name.weight"][name] if name >= 0 else 0)
        below = sum((h[c] for c in trees.children(v)), np.zeros(SIZE))
        h.append(np.tanh(x @ p["tree.linear.weight"] + p["tree.linear.bias"] + below))

    def members(v):
        return [v, *(m for c in trees.children(v) for m in members(c))]

    rows = [np.max([h[m] for m in members(v)], axis=0) for v in sample.links["tree"].vertices]
    up, down = gru(p, "chain.forth", rows), gru(p, "chain.back", rows[::-1])[::-1]
    chain = [np.concatenate(both) for both in zip(up, down, strict=True)]
    return np.max(chain, axis=0) @ p["output.weight"] + p["output.bias"]


@pytest.mark.parametrize("copies", [1, 10])  # 10: a batch whose equal vertices are merged
def test_loss_scores_and_gradients_equal_the_reference(copies):
    found, types, names = samples()
    one = {name: np.array([0], np.int32) for name in ("type", "name")}
    tiny = cavs.Sample(
        trees=cavs.Graph([[]], one),
        statements=cavs.Graph.chain(1, graph_features={"label": -1}),
        links={"tree": cavs.Link("statements", "trees", [0])},
    )
    found.append(tiny)
    labels = [0, 1, -1]

    def reference(p):
        scores = [scores_of(p, sample) for sample in found]
        losses = [cross_entropy(s, at) for s, at in zip(scores, labels, strict=True) if at >= 0]
        return np.mean(losses), np.tile(scores, (copies, 1))

    model = StatementChain(len(types), len(names), 2, SIZE, 0.0)
    check(model, cavs.batch(found * copies), reference)


def test_statements_are_cut_in_the_order_of_the_source():
    (sample, other), types, _ = samples()
    trees = sample.graphs["trees"]
    kinds = types.decode(trees.features["type"])
    heads = [kinds[v] for v in sample.links["tree"].vertices]
    assert heads == ["FunctionDef", "If", "Assign", "For", "Return", "Assign", "Return"]
    assert sorted(sample.links["tree"].vertices) == list(trees.roots)
    assert trees.num_vertices - trees.num_edges == len(heads)
    assert types.decode(other.graphs["trees"].features["type"]).count("Pass") == 1
    assert other.graphs["statements"].num_vertices == 2


def test_the_loss_of_a_training_falls(tmp_path, capsys):
    for i in range(20):
        (tmp_path / f"m{i}.py").write_text(CODE.format("abcdefghij"[i % 10] * (i // 10 + 1)))
    out = tmp_path / "run"
    words = ["--size=6", "--dropout=0", "--classes=3", "--lr=0.02", "--epochs=10", "--quiet"]
    words += ["--batch-size=8"]
    assert main(["train", "astnn", *words, "--data", str(tmp_path), "--out", str(out)]) == 0
    losses = epoch_losses(out)
    assert losses[-1] < 0.7 * losses[0]
    capsys.readouterr()
    (tmp_path / "new").write_text(CODE.format("unseen"))
    assert main(["predict", str(out / "checkpoint.best.safetensors"), str(tmp_path / "new")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_text_that_is_no_python_is_refused():
    task = registry.find("astnn").build(
        argparse.Namespace(data=None, seed=0, size=4, dropout=0.0),
        {"types": ["<unk>"], "names": ["<unk>"], "classes": ["get"]},
    )
    with pytest.raises(DataError, match="<text>:2: "):
        task.read("import os\ndef f(:\n")
