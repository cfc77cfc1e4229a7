"""Persistent kernels: equal results, and barriers exactly where they are needed."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given

import cavs
from cavs import nn
from cavs.codegen.persistent import Slices, slices_of
from cavs.cuda import persistent
from cavs.cuda.device import Device
from cavs.cuda.persistent import ABOVE, BELOW, OWN, Access, barriers
from cavs.errors import ConfigError, DeviceError
from tests import random_programs
from tests.compiler.test_equality import FLOAT32, FLOAT64
from tests.compiler.test_random_programs import with_parameters
from tests.cuda.covering_models import MODELS
from tests.cuda.executor.test_engine import RANDOM, classifier, compare
from tests.cuda.executor.test_models import (
    BOUNDS,
    CELLS,
    cell_and_batches,
    model_and_batches,
)
from tests.cuda.executor.test_models import compare as compare_training
from tests.cuda.twin import TwinCompiler
from tests.draws import examples
from tests.random_cells import batches, models, traced_parameters
from tests.random_programs import programs
from tests.runtime.test_edge_cases import STRUCTURES
from tests.runtime.trees import Classifier, binary, graph, treebank


@pytest.fixture
def walking(device):
    """The twin and the machine's GPU, with persistent kernels for all tasks."""
    return replace(device, persistent="always")


@pytest.fixture
def on_twin(twin_device):
    """For tests that read the log of the device."""
    return replace(twin_device, persistent="always")


def walks(twin):
    """Return the number of launches of each persistent kernel."""
    return Counter(o.name for o in twin.operations() if o.cooperative)


@examples(5, RANDOM, most=50)
@given(models(), batches())
def test_float64_equals_the_oracle_in_any_order(walking, shuffle, model, batch):
    batch = traced_parameters(model, batch)
    compare(model, batch, walking, FLOAT64, shuffle=shuffle)


@examples(3, RANDOM, most=50)
@given(models(smooth=True), batches())
def test_float32_equals_the_oracle(walking, model, batch):
    batch = traced_parameters(model, batch)
    compare(model, batch, walking, FLOAT32, np.float32)


@examples(3, RANDOM, most=50)
@given(programs(), random_programs.batches())
def test_operators_in_any_order_equal_the_oracle(walking, shuffle, model, batch):
    assume(with_parameters(model, batch))
    compare(model, batch, walking, FLOAT64, shuffle=shuffle)


@pytest.mark.parametrize("name", CELLS)
def test_cells(walking, name):
    compare_training(*cell_and_batches(name), walking)


@pytest.mark.parametrize("name", MODELS)
def test_models(walking, name, tmp_path):
    compare_training(*model_and_batches(name, tmp_path), walking)


@pytest.mark.parametrize("narrow", [1, 16, 40])
@pytest.mark.parametrize("name", STRUCTURES)
def test_structures(walking, name, narrow):
    """Including structures of which only some tasks are narrow."""
    rng = np.random.default_rng(0)
    batch = cavs.batch([graph(children, rng) for children in STRUCTURES[name]])
    compare(classifier(), batch, replace(walking, narrow_rows=narrow), 1e-11)


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize(
    ("cell", "hidden"),
    [(nn.BinaryTreeLSTM, 7), (nn.TreeGRU, 33), (nn.ChildSumTreeLSTM, 64)],
)
def test_precisions(walking, cell, hidden, precision):
    """Slices of odd columns, of columns that do not divide the width, and of whole words."""
    model = Classifier(cell(8, hidden))
    model.initialize(1, np.float32)
    batch = treebank(12)
    loss, wanted = cavs.Session(copy.deepcopy(model), dtype=np.float64).gradients(batch)
    session = cavs.Session(model, device=walking, precision=precision)
    found, gradients = session.gradients(batch)
    assert found == pytest.approx(loss, rel=BOUNDS[precision])
    for name, g in gradients.items():
        off = np.linalg.norm(g - wanted[name])
        assert off <= 2 * BOUNDS[precision] * np.linalg.norm(wanted[name]), name
    again = session.gradients(batch)
    assert all(np.array_equal(again[1][k], g) for k, g in gradients.items())


def test_one_launch_for_all_tasks_of_a_loop(twin, on_twin):
    rng = np.random.default_rng(0)
    chain = graph([[], *([i] for i in range(399))], rng)
    model = classifier()
    session = cavs.Session(model, dtype=np.float64, device=on_twin)
    host = cavs.Session(model, dtype=np.float64)
    for batch, times in ((cavs.batch([chain]), 1), (cavs.batch([graph([[]], rng)]), 0)):
        twin.reset()
        loss, gradients = session.gradients(batch)
        assert sorted(walks(twin).values()) == [times] * 2 * times
        expected, wanted = host.gradients(batch)
        assert loss == pytest.approx(expected, rel=1e-11)
        for name, g in gradients.items():
            np.testing.assert_allclose(g, wanted[name], rtol=1e-9, atol=1e-11)


def test_wide_tasks_are_launched_one_by_one(twin, on_twin):
    batch = treebank(40)
    session = cavs.Session(classifier(), dtype=np.float64, device=replace(on_twin, narrow_rows=9))
    session.gradients(batch)
    found = walks(twin)
    assert len(found) == 2
    names = Counter(o.name for o in twin.operations())
    assert names["matmul_16"] + names["matmul"] > 6


def test_a_single_narrow_task_is_launched(twin, on_twin):
    """A persistent kernel would save no launch; leaves have no part in the loop."""
    rng = np.random.default_rng(0)
    session = cavs.Session(classifier(), dtype=np.float64, device=on_twin)
    session.gradients(cavs.batch([graph([[], [], [0, 1]], rng)]))
    assert not walks(twin)
    session.gradients(cavs.batch([graph([[], [], [0, 1], [2]], rng)]))
    assert len(walks(twin)) == 2


@pytest.mark.parametrize("value", [3.402e38, -3.402e38, 1e30])
def test_float32_at_the_ends_of_its_range(walking, value):
    """Numbers are split in two there: no part may overflow if the number does not."""
    model = Classifier(nn.BinaryTreeLSTM(8, 16))
    model.initialize(1, np.float32)
    model.tree.U.value[3] = value  # gates saturate; it is multiplied by zeros as well
    batch = treebank(5)
    outputs = [
        cavs.Session(model, device=where).predict(batch)["output"] for where in ("cpu", walking)
    ]
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-5)


def test_guard_bytes_of_scratch_are_intact(on_twin):
    batch = treebank(8)
    model = Classifier(nn.TreeAttention(8, 6))
    model.initialize(1, np.float64)
    expected = cavs.Session(model, dtype=np.float64).gradients(batch)[0]
    guarded = replace(on_twin, guards=True)
    assert cavs.Session(model, dtype=np.float64, device=guarded).gradients(batch)[
        0
    ] == pytest.approx(expected, rel=1e-12)


def test_steps_are_captured_and_replayed(twin, on_twin):
    """Repeated batches are graphs that contain persistent kernels."""
    model = classifier(dtype=np.float32)
    batch = treebank(8)
    session = cavs.Session(model, device=replace(on_twin, replay="always"))
    losses = [session.evaluate(batch).loss for _ in range(8)]
    assert losses == [losses[0]] * 8
    assert session.report(False)["replay"]["replays"] >= 2
    assert twin.fault() == ""


def checked(twin):
    """A device whose kernels detect races between blocks."""
    return Device(twin.library, 0, "sm_90", TwinCompiler(True), None, persistent="always")


@pytest.mark.parametrize("hidden", [4, 16])  # on two blocks, and on four
@pytest.mark.parametrize("cell", [nn.BinaryTreeLSTM, nn.TreeAttention, nn.TreeGRU])
def test_blocks_do_not_race(twin, cell, hidden):
    model = Classifier(cell(8, hidden))
    model.initialize(1, np.float32)
    twin.adversarial(3)
    rng = np.random.default_rng(0)
    batch = cavs.batch([binary(int(n), rng) for n in rng.integers(1, 7, 20)])
    cavs.Session(model, device=checked(twin)).gradients(batch)
    assert twin.fault() == ""
    assert len(walks(twin)) == 2


class ChecksWalks(TwinCompiler):
    """A compiler that checks persistent kernels only, so that random models run fast."""

    def compile(self, name, *arguments):
        return TwinCompiler(name == "persistent.cu").compile(name, *arguments)


@examples(3, RANDOM, most=50)
@given(models(), batches())
def test_random_models_have_no_race(twin, model, batch):
    twin.set("multiprocessors", 32)
    twin.adversarial(batch.num_vertices)
    device = Device(twin.library, 0, "sm_90", ChecksWalks(), None, persistent="always")
    compare(model, traced_parameters(model, batch), device, FLOAT64)
    assert twin.fault() == ""
    twin.reset()


@pytest.mark.parametrize("number", range(2))
def test_every_barrier_is_needed(twin, monkeypatch, number):
    """Without one of them a kernel has a race, forward and backward."""
    given, dropped = persistent.barriers, []

    def without(*arguments):
        waits = given(*arguments)
        for body in waits:
            for at in [i for i, wait in enumerate(body) if wait]:
                if len(dropped) == number:
                    body[at] = False
                dropped.append(at)
        return waits

    monkeypatch.setattr(persistent, "barriers", without)
    model = Classifier(nn.BinaryTreeLSTM(8, 4))
    model.initialize(1, np.float32)
    session = cavs.Session(model, device=checked(twin))
    rng = np.random.default_rng(0)
    with pytest.raises(DeviceError):
        session.gradients(cavs.batch([binary(4, rng) for _ in range(20)]))
    assert len(dropped) == 2
    assert "a race" in twin.fault() and "persistent_" in twin.fault()
    twin.reset()


CUT = Slices(8, 2)


def access(buffer, rows, write=False, columns=(0, 8), slices=CUT):
    return Access(buffer, *columns, write, rows, slices)


PRODUCT = [access(0, BELOW, slices=None), access(1, OWN, True)]
MAP = [access(1, OWN), access(0, OWN, True)]


def test_a_loop_waits_once_per_task():
    """Before the product, which reads all columns that earlier tasks have written."""
    assert barriers([[PRODUCT, MAP]], {1}, False) == [[True, False]]


def test_columnwise_instructions_never_wait():
    own = [access(0, BELOW), access(0, OWN, True)]
    assert barriers([[own]], set(), False) == [[False]]
    assert barriers([[own]], set(), True) == [[False]]


def test_instructions_with_different_slices_wait():
    other = [access(1, OWN, slices=Slices(4, 1)), access(0, OWN, True)]
    assert barriers([[PRODUCT, other]], {1}, False) == [[True, True]]


def test_disjoint_columns_do_not_wait():
    first, second = [access(0, OWN, True)], [access(0, BELOW, columns=(8, 16), slices=None)]
    assert barriers([[first, second]], set(), False) == [[False, False]]


def test_rows_of_later_tasks_are_read_before_they_are_written():
    """Above in a loop upwards, below in one downwards; in scratch, which tasks share, always."""
    reads, writes = [access(0, ABOVE, slices=None)], [access(0, OWN, True, slices=None)]
    assert barriers([[reads, writes]], set(), False) == [[False, True]]
    assert barriers([[reads, writes]], set(), True) == [[True, False]]
    assert barriers([[writes, writes]], set(), False) == [[False, True]]


def test_accesses_carry_over_between_kinds_of_tasks():
    makes, reads = [access(0, OWN, True)], [access(0, BELOW, slices=None)]
    assert barriers([[makes], [reads]], set(), False) == [[False], [True]]


@pytest.mark.parametrize("period", [1, 2, 7, 10, 16, 36, 150, 256, 512, 1000])
@pytest.mark.parametrize("most", [1, 4, 108, 132])
def test_slices_cover_a_period(period, most):
    of = slices_of(period, most)
    assert of.unit * most >= period
    assert period % 2 or of.unit % 2 == 0


def test_a_device_that_cannot_run_all_blocks_at_once(twin, on_twin):
    twin.cooperative(0)
    batch = treebank(5)
    model = classifier()
    loss, _ = cavs.Session(model, dtype=np.float64, device=on_twin).gradients(batch)
    assert loss == pytest.approx(cavs.Session(model, dtype=np.float64).gradients(batch)[0])
    assert not walks(twin)


@pytest.mark.parametrize("precision", [None, "bfloat16"])  # None: float64
def test_weights_that_do_not_fit_are_read_from_memory(twin, on_twin, monkeypatch, precision):
    """With room for all, for some, for none, and not even for the sums of products."""
    given, resident = persistent.persistent_loops, []

    def noted(*arguments):
        loops = given(*arguments)
        resident.append({len(loop.resident) for loop in loops})
        return loops

    monkeypatch.setattr("cavs.cuda.engine.persistent_loops", noted)
    dtype = np.float64 if precision is None else np.float32
    how = {} if precision is None else {"precision": precision}
    model = Classifier(nn.TreeGRU(8, 32))
    model.initialize(1, dtype)
    batch = treebank(5)
    loss, wanted = cavs.Session(copy.deepcopy(model), dtype=np.float64).gradients(batch)
    bound = 1e-9 if precision is None else 2 * BOUNDS[precision]
    value = np.dtype(dtype).itemsize
    sums = 128 * 10 * value  # bytes
    weight = 2 * 32 * 4 * (2 if precision == "bfloat16" else value)  # per product
    for room in (3 * weight, weight, 0, -1):
        twin.reset()
        twin.set("shared_optin", sums + room)
        session = cavs.Session(model, device=replace(on_twin), dtype=dtype, **how)
        found, gradients = session.gradients(batch)
        assert found == pytest.approx(loss, rel=bound)
        for name, g in gradients.items():
            assert np.linalg.norm(g - wanted[name]) <= bound * np.linalg.norm(wanted[name]), name
        assert len(walks(twin)) == (2 if room >= 0 else 0)
    assert resident == [{3}, {1}, {0}, {0}]


def test_a_refused_launch_is_an_error(twin, on_twin):
    twin.fail_call("cuLaunchCooperativeKernel", 720)
    with pytest.raises(DeviceError, match="persistent_") as error:
        cavs.Session(classifier(), dtype=np.float64, device=on_twin).gradients(treebank(5))
    assert "persistent='never'" in error.value.hint


def test_an_invalid_option_is_refused(twin):
    with pytest.raises(ConfigError, match="persistent"):
        Device(twin.library, 0, "sm_90", twin.compiler, None, persistent="sometimes")


def test_explain_lists_persistent_kernels(on_twin):
    model, batch = classifier(dtype=np.float32), treebank(5)
    text = str(cavs.explain(model, batch, device=on_twin, run=False))
    assert "== persistent\npersistent='always': tasks of up to 128 rows are walked by" in text
    assert "3 blocks, " in text
    assert "weights on the chip of 2 of 2 products" in text
    text = str(cavs.explain(model, batch, device=replace(on_twin, persistent="never"), run=False))
    assert "rows are launched one by one" in text
    assert "== persistent" not in str(cavs.explain(model, batch, run=False))


class Largest(cavs.VertexFunction):
    """A maximum over the values of each child, next to a product: rows of edges in scratch."""

    def __init__(self):
        self.state = cavs.State(h=6)
        self.W = cavs.Parameter((8, 6))
        self.U = cavs.Parameter((6, 6))

    def vertex(self, v):
        children = v.gather()
        most = (children.h * children.h).max()
        h = cavs.ops.tanh(v.pull("x") @ self.W + children.h.sum() @ self.U + most)
        v.scatter(h=h)
        v.push(h)


def test_operands_read_by_segments_stay_in_memory(walking):
    model = Classifier(Largest())
    model.initialize(1, np.float64)
    compare(model, treebank(6), walking, FLOAT64)
