"""Values that every rank computes must be equal on processors that differ."""

import os
import subprocess
import sys
import threading
import zlib

import numpy as np
import pytest

import cavs
from cavs.distributed.balance import PREDICTORS, CostModel, SpeedBalancer, whole_shares
from cavs.distributed.comm import run_threads
from cavs.distributed.compression.fewer_numbers import orthonormal, product
from cavs.distributed.step import program
from cavs.errors import ConfigError, DataError
from tests.distributed.balance.test_speed_balancer import DATA, balancer, loader, slowed
from tests.distributed.balance.test_structure_balancer import trained
from tests.distributed.step.test_consensus import outcomes, trainer
from tests.distributed.step.test_stale_parameters import assert_same_bits, values_of
from tests.distributed.test_trainer import BATCHES


def checksums():
    """Return checksums of splits and of gradients that a compressor combines."""
    rng = np.random.default_rng(0)
    splits = [[np.array(part).tolist() for part in parts] for parts in trained(3, 3, steps=20)]
    shares = [whole_shares(97, rng.lognormal(size=n).tolist()) for n in range(2, 40)]
    model = CostModel(4)
    for _ in range(50):
        model.update(rng.random((4, 6)) * [1, 50, 100, 30, 1000, 900], rng.random(4))
    arrays = [model.coefficients, model.slowness]
    for dtype in (np.float32, np.float64):
        left, right = (rng.standard_normal((n, 4)).astype(dtype) for n in (300, 500))
        arrays += [orthonormal(left), product(left, right)]
    sums = [zlib.crc32(array.tobytes()) for array in arrays]
    return [zlib.crc32(repr((splits, shares)).encode()), *sums]


def test_splits_and_low_rank_gradients_do_not_depend_on_instructions():
    """Compare NumPy and its BLAS with few instructions against this process with all of them."""
    features = " ".join(np._core._multiarray_umath.__cpu_dispatch__)
    plain = {"NPY_DISABLE_CPU_FEATURES": features, "OPENBLAS_CORETYPE": "Nehalem"}
    path = os.pathsep.join(sys.path)
    code = f"from {__name__} import checksums; print(checksums())"
    env = {**os.environ, **plain, "PYTHONPATH": path}
    told = subprocess.check_output([sys.executable, "-c", code], env=env, text=True, timeout=120)
    assert told.strip() == str(checksums())


def test_a_product_of_narrow_matrices():
    rng = np.random.default_rng(0)
    for rows, columns, rank in ((1, 1, 1), (3, 70_000, 2), (70_000, 3, 3), (400, 300, 5)):
        left, right = (rng.standard_normal((n, rank)) for n in (rows, columns))
        found = product(left, right)
        assert found.flags["C_CONTIGUOUS"]
        np.testing.assert_allclose(found, left @ right.T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lag", [0, 3])
def test_predictions_come_from_one_rank(lag):
    """Rank 1 would predict itself twice as fast; rank 0 predicts equal speeds."""

    class Opinion(PREDICTORS["memoryless"]):
        factor = 1

        def predict(self, cpu=0.0, memory=0.0):
            return super().predict() * self.factor

    def work(c):
        made = []

        def predictor():
            made.append(Opinion())
            made[-1].factor = len(made) if c.rank else 1
            return made[-1]

        split = balancer(SpeedBalancer, predictor=predictor, lag=lag)
        with trainer(c, split=split) as t:
            slowed(t, lambda rank, graphs: 0.01 * graphs)
            t.fit(loader(), epochs=4, progress=False)
        return split.asked, split.speeds

    (asked, speeds), other = run_threads(2, work)
    assert other == (asked, speeds)
    assert speeds == pytest.approx([100, 200])  # for each rank, its own prediction
    assert [len(part) for part in asked[-1]] == [13, 27]


def test_a_predictor_that_fails_on_one_rank_is_an_error_on_all():
    class Broken(PREDICTORS["memoryless"]):
        def predict(self, cpu=0.0, memory=0.0):
            if cpu:
                raise DataError("no such speed")
            return super().predict()

    def work(c):
        split = SpeedBalancer(predictor=Broken, usage=lambda: (0.5 * c.rank, 0.0))
        trainer(c, split=split).advance(cavs.batch(DATA[:8]))

    first, second = outcomes(2, work)
    assert isinstance(second, DataError) and "rank 1: DataError: no such speed" in str(first)


@pytest.mark.parametrize("strategy", [None, "PSLoadBalancing(servers=1)"])
def test_learning_rates_come_from_rank_0(strategy):
    def work(c):
        optimizer = cavs.optim.SGD(lr=lambda step: 0.1 * (1 + c.rank * 1e-14))
        with trainer(c, optimizer=optimizer, strategy=strategy) as t:
            for graphs in BATCHES:
                t.advance(cavs.batch(graphs))
            t.session.collect(t.states)
        return values_of(t)

    size = 2 if strategy is None else 3
    assert_same_bits(run_threads(size, work)[:2])


def test_different_rounding_of_updates_is_refused(monkeypatch):
    here = threading.local()
    monkeypatch.setattr(program, "isa", lambda: here.isa)

    def work(c, *names):
        here.isa = names[c.rank]
        trainer(c).advance(cavs.batch(BATCHES[0]))

    for error in outcomes(2, lambda c: work(c, "avx512", "base")):
        assert isinstance(error, ConfigError) and "CAVS_ISA=base" in str(error)
        assert "instructions: rank 0 has those that round a sum of products once" in str(error)
    assert outcomes(2, lambda c: work(c, "avx512", "avx2")) == [None, None]
