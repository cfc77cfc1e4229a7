"""precision="bfloat16" is close to float64 for every cell and model, long chains and deep trees."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn
from cavs.cli import registry
from tests.cuda.executor.test_bfloat16 import BOUND, assert_near, exact
from tests.cuda.executor.test_engine import device, gpu, twin_device  # noqa: F401
from tests.models.test_models import OPTIONS, build
from tests.runtime.trees import Classifier, graph, treebank

CELLS = ("BinaryTreeLSTM", "ChildSumTreeLSTM", "TreeGRU", "TreeAttention", "TreeFC", "RNTN")
SIZES = {  # widths of states, where they differ from those in models/
    "ast-naming": {"size": 128},
    "mv-rnn": {"hidden_size": 25},
    "tree-fc": {"hidden_size": 64, "leaves": 32, "trees": 8},
    "tree-lstm": {"embedding_size": 64, "hidden_size": 150},
}
# Where the sum over all vertices nearly cancels, as in the bias of trees in `test_trees`.
CANCELLING = {"typed-trees": ["tree.phrase.bias"]}
# Rounding moves maxima and signs of ReLU (astnn, plan-cost, jets), and in deep graphs gradients of
# single vertices nearly cancel (circuit-rnn, grid-lstm): only all gradients together are bounded.
KINKED = ("astnn", "plan-cost", "jets")
DEEP = ("circuit-rnn", "grid-lstm")
LOOSE = 0.1  # relative norm of the difference of all their gradients, which is 0.01 to 0.07


def compare(model, batch, device, cancelling=(), loose=False):  # noqa: F811
    """Compare loss, outputs and gradients; those of ``cancelling`` within twice the bound.

    loose: all gradients together are compared, within `LOOSE`.
    """
    session = cavs.Session(model, device=device, precision="bfloat16")
    loss, gradients = session.gradients(batch)
    outputs = session.evaluate(batch).outputs
    plain = cavs.Session(model).evaluate(batch).outputs
    expected, of = exact(model, batch)
    assert loss == pytest.approx(expected, rel=BOUND)
    for name, rows in plain.items():
        assert_near(outputs[name], rows, BOUND, name)
    for name, wanted in ({} if loose else of).items():
        assert_near(gradients[name], wanted, BOUND * (1 + (name in cancelling)), name)
    together = [np.concatenate([g[name].reshape(-1) for name in of]) for g in (gradients, of)]
    assert_near(*together, LOOSE if loose else BOUND, "all gradients")


def chain(length, rng):
    return graph([[], *([i] for i in range(length - 1))], rng, absent=lambda kids: False)


def wide(count, rng):
    """A tree whose vertices have any number of children, and one word each."""
    children = [[] for _ in range(count)]
    for v in range(count - 1):
        children[int(rng.integers(v + 1, min(count, v + 6)))].append(v)
    return graph(children, rng, absent=lambda kids: False)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.ChildSumTreeLSTM, nn.TreeGRU])
@pytest.mark.parametrize(("chains", "size"), [(1, 64), (8, 64), (2, 128)])
def test_chains(device, cell, chains, size):  # noqa: F811
    rng = np.random.default_rng(0)
    model = Classifier(cell(size, size), input_size=size)
    model.initialize(1, np.float32)
    compare(model, cavs.batch([chain(64, rng) for _ in range(chains)]), device)


@pytest.mark.parametrize("cell", CELLS)
def test_trees(device, cell):  # noqa: F811
    size = 24 if cell == "RNTN" else 96
    made = getattr(nn, cell)(*([size] if cell in ("TreeFC", "RNTN") else [size, size]))
    model = Classifier(made, input_size=size)
    model.initialize(1, np.float32)
    # With random labels the sum over all vertices nearly cancels in a bias.
    compare(model, treebank(12, longest=40), device, ["tree.b"])
    if cell in ("ChildSumTreeLSTM", "TreeGRU", "TreeAttention"):
        rng = np.random.default_rng(0)
        compare(model, cavs.batch([wide(30, rng) for _ in range(6)]), device)


@pytest.mark.parametrize("name", OPTIONS)
def test_models(device, name, tmp_path):  # noqa: F811
    sizes = SIZES.get(name, {"embedding_size": 100, "hidden_size": 100})
    task = build(registry.find(name), tmp_path, **sizes)
    task.model.initialize(1)
    batch = cavs.batch(task.required("train")[:20])
    loose = name in (*KINKED, *DEEP)
    compare(task.model, batch, device, CANCELLING.get(name, ()), loose)
