"""What cuBLASLt is asked for: once for sizes near each other, and for fixed orders of sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs import nn
from cavs.errors import ConfigError
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
    """(m, n, k) of every product since the last reset, and the schemes that were allowed."""
    found = [o.arguments for o in twin.operations() if o.kind == "product"]
    return [tuple(a[:3]) for a in found], {a[3] for a in found}


@pytest.mark.parametrize("exact", [False, True], ids=["shared", "exact"])
def test_new_numbers_of_rows_share_an_algorithm(twin, where, exact):
    """As many shapes as one likes; the heuristic is asked for each only if it cannot be shared."""
    ours, host = session(where), session("cpu")
    twin.exact_algorithms(exact)
    asked, made = [], []
    for seed in range(12):
        batch = treebank(40, seed)
        loss, wanted = host.gradients(batch)
        twin.reset()
        twin.exact_algorithms(exact)
        before = twin.heuristics()
        found, gradients = ours.gradients(batch)
        asked.append(twin.heuristics() - before)
        made.append(set(products(twin)[0]))
        assert found == pytest.approx(loss, rel=1e-11)
        for k, g in gradients.items():
            assert_close(g, wanted[k], 1e-10, k)
    new = [len(made[i] - set().union(*made[:i])) for i in range(12)]
    assert sum(new[6:]) > 10, "the batches are to bring new shapes to the end"
    if exact:
        assert sum(asked[6:]) >= sum(new[6:])
    else:
        assert sum(asked[6:]) < sum(new[6:]) / 3
    before = twin.heuristics()
    ours.gradients(batch)
    assert twin.heuristics() == before, "what has been asked for is known"


def test_what_ran_before_does_not_matter(twin, where):
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
def test_sums_that_may_be_split(twin, where, precision, deterministic):
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


def test_the_switch_is_one_of_sessions_and_trainers(where):
    model = Classifier(nn.ChildSumTreeLSTM(36, 33), input_size=36)
    trainer = cavs.Trainer(model, cavs.optim.SGD(0.1), device=where, deterministic=True)
    assert trainer.session.deterministic
    batch = treebank(4)
    host = cavs.Trainer(Classifier(nn.ChildSumTreeLSTM(36, 33), input_size=36), cavs.optim.SGD(0.1))
    on_cpu = cavs.Session(host.model, deterministic=True)
    assert trainer.step(batch) == pytest.approx(on_cpu.evaluate(batch).loss, rel=1e-5)
    with pytest.raises(ConfigError, match="deterministic is 'yes', but must be True or False"):
        cavs.Session(model, deterministic="yes")
