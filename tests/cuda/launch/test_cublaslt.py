"""Requests to cuBLASLt: algorithms shared by similar sizes, and a fixed order of sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs import nn
from cavs.errors import ConfigError, DeviceError
from tests.oracle import assert_close
from tests.runtime.trees import Classifier, treebank

ANY, IN_FLOAT32, NONE = 7, 2, 0  # schemes of cublasLt.h


@pytest.fixture
def where(twin, twin_device):
    return replace(twin_device, cublas_lt=twin.cublaslt)


def session(device, dtype=np.float64, size=36, **options):
    model = Classifier(nn.ChildSumTreeLSTM(size, 33), input_size=size)
    model.initialize(1, dtype)
    return cavs.Session(model, dtype=dtype, device=device, **options)


def products(twin):
    """Return (m, n, k) of every product since the last reset, and the allowed schemes."""
    found = [o.arguments for o in twin.operations() if o.kind == "product"]
    return [tuple(a[:3]) for a in found], {a[3] for a in found}


def compare(found, wanted):
    assert found[0] == pytest.approx(wanted[0], rel=1e-11)
    for k, g in found[1].items():
        assert_close(g, wanted[1][k], 1e-10, k)


@pytest.mark.parametrize("exact", [False, True], ids=["shared", "exact"])
def test_new_numbers_of_rows_share_an_algorithm(twin, where, exact):
    """Any number of shapes; the heuristic is asked for a shape only if it cannot share."""
    ours, host = session(where), session("cpu")
    twin.exact_algorithms(exact)
    asked, made = [], []
    for seed in range(12):
        batch = treebank(40, seed)
        wanted = host.gradients(batch)
        twin.reset()
        twin.exact_algorithms(exact)
        before = twin.heuristics()
        found = ours.gradients(batch)
        asked.append(twin.heuristics() - before)
        made.append(set(products(twin)[0]))
        compare(found, wanted)
    new = [len(made[i] - set().union(*made[:i])) for i in range(12)]
    assert sum(new[6:]) > 10, "the batches are to bring new shapes to the end"
    if exact:
        assert sum(asked[6:]) >= sum(new[6:])
    else:
        assert sum(asked[6:]) < sum(new[6:]) / 3
    before = twin.heuristics()
    ours.gradients(batch)
    assert twin.heuristics() == before, "what has been asked for is known"


@pytest.mark.parametrize("status", [7, 15])
def test_our_own_kernels_compute_refused_products(twin, where, status):
    twin.refuse_odd_strides(status)
    ours, host, batch = session(where), session("cpu"), treebank(40)
    compare(ours.gradients(batch), host.gradients(batch))
    refused = set(products(twin)[0])
    twin.refuse_odd_strides(0)
    twin.reset()
    session(where).gradients(batch)
    assert refused < set(products(twin)[0]), "of these products some are of odd sizes, some not"


@pytest.mark.parametrize("status", [7, 15])
@pytest.mark.parametrize("replay", ["never", "always"])
def test_an_algorithm_refused_after_its_check_is_replaced(twin, where, status, replay):
    ours, host = session(replace(where, replay=replay)), session("cpu")
    twin.refuse_other_sizes(status)
    batches = [treebank(40, seed) for seed in range(3)] * 3
    for i, batch in enumerate(batches):
        before = twin.heuristics()
        compare(ours.gradients(batch), host.gradients(batch))
        assert (twin.heuristics() > before) is (i < 3), "asked once for every shape"


def test_a_product_that_fails_otherwise_is_an_error(twin, where):
    twin.refuse_other_sizes(14)
    with pytest.raises(DeviceError, match="cublasLtMatmul: status 14"):
        session(where).gradients(treebank(40))


def test_results_do_not_depend_on_earlier_batches(twin, where):
    batches = [treebank(24 + seed, seed) for seed in range(3)]

    def run(order):
        ours = session(where, np.float32)
        return {i: ours.gradients(batches[i]) for i in order}

    first, second = run([0, 1, 2]), run([2, 0, 1])
    for i, (loss, gradients) in first.items():
        assert second[i][0] == loss
        for k, g in gradients.items():
            np.testing.assert_array_equal(second[i][1][k], g)


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_split_sums(twin, where, precision, deterministic):
    ours = session(where, np.float32, size=40, precision=precision, deterministic=deterministic)
    loss, gradients = ours.gradients(treebank(24))
    assert ours.deterministic is deterministic
    assert ours._cuda.deterministic is ours._cuda._parameters.deterministic is deterministic
    sizes, schemes = products(twin)
    assert len(sizes) > 5
    if deterministic:
        assert schemes == {NONE}
    elif precision == "bfloat16":
        assert schemes == {ANY, IN_FLOAT32}, "parts of a result in bfloat16 would be rounded to it"
    else:
        assert schemes == {ANY}
    exact = session("cpu").gradients(treebank(24))[0]
    assert loss == pytest.approx(exact, rel=2e-2)
    assert all(np.isfinite(g).all() for g in gradients.values())


def test_the_option_deterministic_of_sessions_and_trainers(where):
    model = Classifier(nn.ChildSumTreeLSTM(36, 33), input_size=36)
    trainer = cavs.Trainer(model, cavs.optim.SGD(0.1), device=where, deterministic=True)
    assert trainer.session.deterministic
    batch = treebank(4)
    host = cavs.Trainer(Classifier(nn.ChildSumTreeLSTM(36, 33), input_size=36), cavs.optim.SGD(0.1))
    on_cpu = cavs.Session(host.model, deterministic=True)
    assert trainer.step(batch) == pytest.approx(on_cpu.evaluate(batch).loss, rel=1e-5)
    with pytest.raises(ConfigError, match="deterministic is 'yes', but must be True or False"):
        cavs.Session(model, deterministic="yes")


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_gathered_operands_are_one_product(twin, where, precision):
    """States of left and right children: each product reads and writes the result."""
    model = Classifier(nn.BinaryTreeLSTM(40, 33), input_size=40)
    model.initialize(1, np.float32)
    batch = treebank(60, longest=40)
    wanted = cavs.Session(model, dtype=np.float64).gradients(batch)
    ours = cavs.Session(model, device=replace(where, blas_rows=16), precision=precision)
    twin.reset()
    ours.predict(batch)
    gates = [k for m, _, k in products(twin)[0] if m == 5 * 33]
    assert 66 in gates, "where both children have states"
    assert set(gates) <= {66, 33}
    loss, gradients = ours.gradients(batch)
    assert loss == pytest.approx(wanted[0], rel=1e-3)
    for k, g in gradients.items():
        assert np.linalg.norm(g - wanted[1][k]) <= 1e-2 * np.linalg.norm(wanted[1][k]), k
