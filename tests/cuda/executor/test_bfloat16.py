"""precision="bfloat16" stores weights and values between kernels in it, with sums in float32."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given

import cavs
from cavs import _cuda, nn, ops
from cavs.cuda import storage
from cavs.cuda.engine import fixed_kernels
from cavs.cuda.storage import half_buffers
from cavs.ir import FLOAT, interpret
from cavs.runtime import program_cache
from cavs.runtime.encode import encode
from tests.compiler.test_equality import ALL_ON
from tests.cuda.executor.test_engine import RANDOM, device, gpu, twin_device  # noqa: F401
from tests.draws import examples
from tests.oracle import reference
from tests.random_cells import batches, models, traced_parameters
from tests.runtime.trees import Classifier, graph, treebank

BOUND = 1e-2  # relative norm
STORED = 3  # largest error relative to rounding in the reference
CANCELLED = 25 * BOUND  # for sums that cancel
CELLS = (nn.ChildSumTreeLSTM, nn.BinaryTreeLSTM, nn.TreeGRU, nn.TreeAttention)


def assert_near(found, wanted, bound, what):
    error, size = np.linalg.norm(found - wanted), np.linalg.norm(wanted)
    assert error <= bound * size, f"{what}: {error / size:.3g} > {bound}"


def classifier(cell, size=24, hidden=40, seed=1):
    model = Classifier(cell(size, hidden), input_size=size)
    model.initialize(seed, np.float32)
    return model


def exact(model, batch):
    """Return loss and gradients in float64."""
    return cavs.Session(model, dtype=np.float64).gradients(batch)


@pytest.mark.parametrize("cell", CELLS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("rows", [1, 40])
def test_models(device, cell, rows):  # noqa: F811
    batch, model = treebank(rows), classifier(cell)
    session = cavs.Session(model, device=device, precision="bfloat16")
    assert half_buffers(session.compiled(batch).program)
    loss, gradients = session.gradients(batch)
    again, others = session.gradients(batch)
    assert loss == again
    assert all(np.array_equal(g, others[name]) for name, g in gradients.items())
    outputs = session.evaluate(batch).outputs
    wanted = cavs.Session(model).evaluate(batch).outputs
    expected, of = exact(model, batch)
    assert loss == pytest.approx(expected, rel=BOUND)
    for name, g in gradients.items():
        assert g.dtype == np.float32
        assert_near(g, of[name], BOUND, name)
    for name, rows_of in outputs.items():
        assert_near(rows_of, wanted[name], BOUND, name)


def test_large_products_go_to_cublas(twin, twin_device):  # noqa: F811
    batch, model = treebank(40), classifier(nn.ChildSumTreeLSTM, 40, 33)  # rows of odd width
    device = replace(twin_device, cublas_lt=twin.cublaslt)  # noqa: F811
    _, gradients = cavs.Session(model, device=device, precision="bfloat16").gradients(batch)
    assert len([o for o in twin.operations() if o.kind == "product"]) > 10
    _, expected = exact(model, batch)
    for name, g in gradients.items():
        assert_near(g, expected[name], BOUND, name)


def rounded(x, grid):
    """Round to 8 significant bits after scaling by ``grid``: another grid with the same spacing."""
    mantissa, exponent = np.frexp(np.asarray(x, np.float64) / grid)
    return np.ldexp(np.rint(mantissa * 256), exponent - 8) * grid


def intrinsic(model, batch, wanted, of):
    """Return how much ``of(values)`` changes when operands of products and rows are rounded.

    The largest change on several grids, because a single one may happen to suit a few numbers.
    """
    combine, errors = interpret._combine, []
    for grid in (1.0, 1.1, 1.2, 1.4, 1.6, 1.8):

        def combined(node, row, values, inputs, grid=grid):
            if node.op.name in ("matmul", "matmul_tn"):
                values = [rounded(x, grid) for x in values]
            value = combine(node, row, values, inputs)
            floats = node.type.domain.by_structure and node.type.dtype == FLOAT
            return rounded(value, grid) if floats else value

        with mock.patch.object(interpret, "_combine", combined):
            _, values = reference(model, batch, seed=5, step=2)
        errors.append(np.linalg.norm(of(values) - wanted))
    return max(errors)


@examples(11, RANDOM, most=100)
@given(models(smooth=True, directions=1), batches())
def test_random_cells_of_any_width(device, model, batch):  # noqa: F811
    batch = traced_parameters(model, batch)
    _, expected = reference(model, batch, seed=5, step=2)
    shared = 0.0 if batch.num_vertices % 2 else np.inf
    with (
        mock.patch.object(storage, "NARROWEST", 1),
        mock.patch.multiple(program_cache, MIN_MERGED=1, MIN_READERS=shared),
    ):
        session = cavs.Session(model, device=device, passes=ALL_ON, precision="bfloat16")
        loss, gradients = session.gradients(batch, seed=5, step=2)
    shapes = {name: p.shape for name, p in session.parameters.items()}

    def whole(values):
        found = [values.get(f"grad:{k}", np.zeros(shapes[k])) for k in gradients]
        return np.concatenate([x.reshape(-1) for x in found])

    found = {"loss": loss, **{f"grad:{k}": g for k, g in gradients.items()}}
    for of in (lambda values: np.asarray(values["loss"]), whole):
        wanted = of(expected)
        error, size = np.linalg.norm(of(found) - wanted), np.linalg.norm(wanted)
        if error > BOUND * size + 1e-6:  # sums that cancel: rounding to 8 bits has the same effect
            alone = intrinsic(model, batch, wanted, of)
            assert error <= min(STORED * alone, CANCELLED * size) + 1e-6, (error, alone, size)


class Highest(cavs.VertexFunction):
    """Children compete column by column, and so do the columns of a vertex."""

    def __init__(self, size):
        self.state = cavs.State(h=size)
        self.W = cavs.Parameter((size, size))
        self.U = cavs.Parameter((size, size))

    def vertex(self, v):
        x = ops.tanh(v.pull("x") @ self.W)
        best = ops.sigmoid(v.gather().h @ self.U + 0.5).max()
        h = ops.tanh(0.7 * x + best)
        weight = ops.softmax(ops.sigmoid(h) * 3.0)
        h = h * weight * 8.0
        v.scatter(h=h)
        v.push(h)


def test_the_maximum_gets_the_gradient(device):  # noqa: F811
    model = Classifier(Highest(16), input_size=16)
    model.initialize(2, np.float32)
    rng = np.random.default_rng(0)
    batch = cavs.batch([graph([[], [], [0, 1], [], [2, 3]], rng) for _ in range(3)])
    session = cavs.Session(model, device=device, precision="bfloat16")
    _, gradients = session.gradients(batch)
    _, expected = exact(model, batch)
    for name, g in gradients.items():
        assert_near(g, expected[name], 2 * BOUND, name)


def test_stored_values_take_half_the_memory(device):  # noqa: F811
    batch, reports = treebank(20), {}
    for precision in ("tf32", "bfloat16"):
        model = classifier(nn.ChildSumTreeLSTM, 64, 64)
        session = cavs.Session(model, device=device, precision=precision)
        session.gradients(batch)
        reports[precision] = session.report()
    for name, most in (("arena_bytes", 0.55), ("peak_bytes", 0.55), ("packed_bytes", 0.52)):
        assert reports["bfloat16"][name] <= most * reports["tf32"][name], name


def test_training_follows_float32(device):  # noqa: F811
    data, losses = [treebank(8, seed) for seed in range(3)], []
    for precision in ("float32", "bfloat16"):
        model = classifier(nn.BinaryTreeLSTM, 16, 16)
        optimizer = cavs.optim.Adagrad(lr=0.05)
        trainer = cavs.Trainer(model, optimizer, device=device, precision=precision)
        losses.append([trainer.step(batch) for _ in range(3) for batch in data])
        assert all(p.value.dtype == np.float32 for p in model.parameters().values())
    assert losses[1] == pytest.approx(losses[0], rel=BOUND)
    assert losses[1] != losses[0]
    assert losses[1][-1] < losses[1][0]


def test_logits_sums_and_results_stay_float32():
    model = classifier(nn.TreeAttention)
    program = cavs.Session(model).compiled(treebank(3)).program
    stored = half_buffers(program)
    assert stored
    assert program.loss not in stored
    for i in program.instructions:
        if i.type.startswith("cross_entropy"):
            assert i.inputs[0][0] not in stored
        if i.type in ("sum_rows", "matmul_tn"):
            assert i.out is not None
            assert i.out[0] not in stored
        assert all(mode == "write" for b, _, _, mode, _ in i.stores if b in stored)
    for b in stored:
        assert program.buffers[b].role in ("arena", "scratch")


def test_parameters_are_never_stored_in_bfloat16(twin_device):  # noqa: F811
    model = classifier(nn.TreeGRU)
    program = cavs.Session(model).compiled(treebank(3)).program
    images = fixed_kernels(twin_device, "float", "bfloat16")
    arrays = [p.value for p in model.parameters().values()]
    parameters = _cuda.Parameters(twin_device.native, images, arrays, "bfloat16")
    (wrong, *_) = [n for n, b in enumerate(program.buffers) if b.role == "param"]
    with pytest.raises(ValueError, match=f"buffer {wrong} .* cannot be stored in bfloat16"):
        _cuda.Executor(encode(program), parameters, b"", [], [wrong])
