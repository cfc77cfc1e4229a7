"""Every cell of cavs.nn and every model of models/ gives the CPU's results on a device."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs import nn
from tests.cuda.covering_models import COVERING, kinds, task_of
from tests.cuda.hardware import gpu
from tests.models.test_cells import CELLS, Classifier, graphs, taken
from tests.models.test_models import OPTIONS
from tests.oracle import assert_close
from tests.runtime import trees

CLOSE = 1e-10  # relative to the largest value, in float64
BOUNDS = {"float32": 1e-5, "tf32": 1e-3, "bfloat16": 1e-2}  # relative norms
LARGE = (nn.LSTM, nn.GRU, nn.BinaryTreeLSTM, nn.ChildSumTreeLSTM, nn.TreeGRU, nn.TreeAttention)


def compare(model, batches, device):
    """Compare loss, gradients and predictions, then three steps of training."""
    other = copy.deepcopy(model)
    host = cavs.Session(other, dtype=np.float64)
    there = cavs.Session(model, dtype=np.float64, device=device)
    first = batches[0]
    expected, wanted = host.gradients(first, seed=5, step=2)
    loss, gradients = there.gradients(first, seed=5, step=2)
    assert loss == pytest.approx(expected, rel=CLOSE)
    assert gradients.keys() == wanted.keys()
    for name, g in gradients.items():
        assert_close(g, wanted[name], CLOSE, name)
    outputs = host.predict(first)
    assert outputs
    for name, rows in there.predict(first).items():
        assert_close(rows, outputs[name], CLOSE, name)
    losses = []
    for of, session in ((model, there), (other, host)):
        trainer = cavs.Trainer(of, cavs.optim.Adagrad(lr=0.05), session=session, seed=3)
        losses.append([trainer.step(batches[i % len(batches)]) for i in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=CLOSE)
    for name, p in model.parameters().items():
        assert_close(p.value, other.parameters()[name].value, CLOSE, name)


def cell_and_batches(name):
    model = Classifier(CELLS[name]())
    model.initialize(3, np.float64)
    rng = np.random.default_rng(4)
    for p in model.parameters().values():  # biases of zero would hide errors
        p.value += rng.normal(0, 0.3, p.shape)
    structures = taken(model)
    return model, [cavs.batch(graphs(structures, seed)) for seed in range(2)]


def model_and_batches(name, tmp_path):
    task = task_of(name, tmp_path)
    task.model.initialize(1, np.float64)
    train = task.required("train")
    half = min(len(train) // 2, 9)
    return task.model, [cavs.batch(train[:half]), cavs.batch(train[half : 2 * half])]


@pytest.mark.parametrize("name", CELLS)
def test_cells(device, name):
    compare(*cell_and_batches(name), device)


class Normalised(cavs.VertexFunction):
    """A cell around `LayerNorm`."""

    def __init__(self, size):
        self.state = cavs.State(h=size)
        self.norm = nn.LayerNorm(size)
        self.W = cavs.Parameter((size, size))

    def vertex(self, v):
        h = self.norm(v.pull("x") @ self.W + v.gather().h.sum())
        v.scatter(h=h)
        v.push(h)


def test_layer_norm(device):
    model = Classifier(Normalised(4))
    model.initialize(3, np.float64)
    compare(model, [cavs.batch(graphs(taken(model)))], device)


@pytest.mark.parametrize("name", OPTIONS)
def test_models(device, name, tmp_path):
    compare(*model_and_batches(name, tmp_path), device)


@pytest.mark.parametrize("name", OPTIONS)
def test_models_in_float32(device, name, tmp_path):
    """In float32, as users run them, within the bound of the CPU's float64."""
    task, bound = task_of(name, tmp_path), BOUNDS["float32"]
    task.model.initialize(1, np.float64)
    batch = cavs.batch(task.required("train")[:9])
    other = copy.deepcopy(task.model)
    host, there = cavs.Session(other, dtype=np.float64), cavs.Session(task.model, device=device)
    expected, wanted = host.gradients(batch, seed=5, step=2)
    loss, gradients = there.gradients(batch, seed=5, step=2)
    assert loss == pytest.approx(expected, rel=bound)
    assert gradients.keys() == wanted.keys()
    for key, g in gradients.items():
        assert g.dtype == np.float32
        assert np.linalg.norm(g - wanted[key]) <= bound * np.linalg.norm(wanted[key]), key
    outputs = host.predict(batch)
    for key, rows in there.predict(batch).items():
        assert np.linalg.norm(rows - outputs[key]) <= bound * np.linalg.norm(outputs[key]), key
    losses = []
    for of, session in ((task.model, there), (other, host)):
        trainer = cavs.Trainer(of, cavs.optim.Adagrad(lr=0.05), session=session, seed=3)
        losses.append([trainer.step(batch) for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_covering_models_have_every_kind(twin_device, tmp_path):
    """A failure names a model to add to COVERING, and the kinds that it alone has."""
    found = {}
    for name in OPTIONS:
        (tmp_path / name).mkdir()
        task = task_of(name, tmp_path / name)
        task.model.initialize(1, np.float32)
        batch = cavs.batch(task.required("train")[:9])
        session = cavs.Session(task.model, device=twin_device)
        found[name] = kinds(session.compiled(batch, record=False).program)
    covered = set().union(*(found[name] for name in COVERING))
    assert len(covered) > 100
    assert {name: more for name, of in found.items() if (more := of - covered)} == {}


def chains(count):
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 30, count)
    return cavs.batch(
        [
            trees.graph([[], *([i] for i in range(int(n) - 1))], rng, lambda _: False)
            for n in lengths
        ]
    )


def check_products(cell, device, precision, batch, hidden):
    """At least 128 rows and 33 columns: forward, transposed, and summed over rows."""
    model = trees.Classifier(cell(40, hidden), input_size=40)
    model.initialize(1, np.float32)
    loss, wanted = cavs.Session(model, dtype=np.float64).gradients(batch)
    found, gradients = cavs.Session(model, device=device, precision=precision).gradients(batch)
    assert found == pytest.approx(loss, rel=BOUNDS[precision])
    assert gradients.keys() == wanted.keys()
    together = [np.concatenate([of[k].reshape(-1) for k in wanted]) for of in (gradients, wanted)]
    for name, ours, exact, bound in (
        ("all", *together, BOUNDS[precision]),
        # With random labels the sum over all vertices nearly cancels in a bias.
        *((name, g, wanted[name], 3 * BOUNDS[precision]) for name, g in gradients.items()),
    ):
        assert np.linalg.norm(ours - exact) <= bound * np.linalg.norm(exact), name


@pytest.mark.parametrize("precision", BOUNDS)
def test_large_products_go_to_cublas(twin, twin_device, precision):
    device = replace(twin_device, cublas_lt=twin.cublaslt)
    check_products(nn.BinaryTreeLSTM, device, precision, trees.treebank(40), 33)
    log = twin.operations()
    assert len([o for o in log if o.kind == "product"]) >= 8
    assert not [o.name for o in log if o.name in ("matmul", "matmul_tf32", "matmul_bf16")]


@pytest.mark.cuda
@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("hidden", [33, 136])
@pytest.mark.parametrize("cell", LARGE, ids=lambda c: c.__name__)
def test_large_products_by_cublas_on_the_gpu(cell, hidden, precision):
    device = gpu()
    assert device.cublas_lt, "cuBLASLt was not found"
    batch = chains(300) if cell in (nn.LSTM, nn.GRU) else trees.treebank(60)
    check_products(cell, device, precision, batch, hidden)
    without = replace(device, cublas_lt=None)
    check_products(cell, without, precision, batch, hidden)
