"""Checkpoints contain residuals of compressors: a resumed run equals an uninterrupted one."""

import dataclasses

import numpy as np
import pytest

import cavs
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm import run_threads
from cavs.distributed.compression import flatten, parse, share_of, unflatten
from cavs.distributed.planning.builders import build
from cavs.distributed.step.program import compile_together
from cavs.distributed.strategy import variables_of
from cavs.distributed.sync import CompressedAllReduce
from cavs.errors import CheckpointError
from cavs.train.checkpoint import read_checkpoint, save_checkpoint
from tests.distributed.step.test_consensus import loader
from tests.distributed.step.test_stale_parameters import assert_same_bits, trainer, values_of
from tests.distributed.test_trainer import Tree

COMPRESSORS = ["error_feedback(float16)", "onebit", "powersgd(rank=1)"]
COMPRESSORS += ["topk(ratio=0.1, momentum=0.9, warm_up=9)"]


def fitted(c, path, compressor, epochs, resume=False):
    """Return parameters after `epochs`, and residuals of compressors, by parameter."""
    strategy = f"AllReduce(compressor={compressor!r})"
    t = trainer(c, strategy=strategy, optimizer=cavs.optim.SGD(lr=0.05))
    if resume:
        t.resume(path)
    t.fit(loader(), epochs=epochs, checkpoint=path, progress=False)
    held = {
        f"{e.parameters[0]}.{name}": array.copy()
        for e in t.session.exchanges
        if isinstance(e, CompressedAllReduce)
        for name, array in e.memory_of().items()
    }
    return values_of(t), held


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(compressor, tmp_path):
    path = tmp_path / "c.safetensors"
    straight = run_threads(3, lambda c: fitted(c, path, compressor, 3))
    run_threads(3, lambda c: fitted(c, path, compressor, 1))
    resumed = run_threads(3, lambda c: fitted(c, path, compressor, 3, resume=True))
    for (values, held), (again, kept) in zip(straight, resumed, strict=True):
        assert_same_bits([values, again])
        assert_same_bits([held, kept])
        assert any(array.any() for array in held.values())


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_other_numbers_of_ranks_lose_no_residual(compressor, size, tmp_path):
    path = tmp_path / "c.safetensors"
    before = [held for _, held in run_threads(3, lambda c: fitted(c, path, compressor, 1))]

    def counted(c):
        strategy = f"AllReduce(compressor={compressor!r})"
        t = trainer(c, strategy=strategy, optimizer=cavs.optim.SGD(lr=0.1))
        t.resume(path, strict=False)  # with another rate
        t.begin(cavs.batch(loader().graphs))
        session = t.session
        compile_together(session, session.shard(cavs.batch(loader().graphs)))
        return {
            f"{e.parameters[0]}.{name}": array
            for e in session.exchanges
            if isinstance(e, CompressedAllReduce)
            for name, array in e.memory_of().items()
        }

    after = run_threads(size, counted)
    for name in before[0]:
        if name.endswith(("step", "right")):
            for held in after:
                np.testing.assert_array_equal(held[name], before[0][name])
        else:  # the next steps will add the mean over ranks
            found = sum(held[name] for held in after) / size
            expected = sum(held[name] for held in before) / 3
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("gradients", ["mean", "sum"])
def test_numbers_of_ranks_may_change_twice_without_a_step(compressor, gradients, tmp_path):
    """Two ranks with equal residuals, their shares of those of four, keep the same total."""
    path = tmp_path / "c.safetensors"

    def work(c, fits):
        name = f"AllReduce(compressor={compressor!r})"
        made = build(name, variables_of(Tree()), ResourceSpec.local(c.size))
        graph = dataclasses.replace(made.graph, gradients=gradients)
        strategy = dataclasses.replace(made, graph=graph)
        t = trainer(c, strategy=strategy, optimizer=cavs.optim.SGD(lr=0.02))
        if fits:
            t.fit(loader(), epochs=1, checkpoint=path, progress=False)
        else:
            t.resume(path)
            t.begin(cavs.batch(loader().graphs))
            compile_together(t.session, t.session.shard(cavs.batch(loader().graphs)))
            t.save(path)
        return t.session.memory()

    weigh = {"mean": lambda held: held.mean(axis=0), "sum": lambda held: held.sum(axis=0)}
    before = run_threads(4, lambda c: work(c, fits=True))[0]
    assert any(array.any() for array in before.values())
    for size in (2, 3, 1):
        after = run_threads(size, lambda c: work(c, fits=False))[0]
        for name, held in before.items():
            if name.endswith(("step", "right")):
                np.testing.assert_array_equal(after[name], np.stack([held[0]] * size))
            else:
                found, expected = weigh[gradients](after[name]), weigh[gradients](held)
                np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


def test_another_compressor_starts_without_residuals(tmp_path):
    path = tmp_path / "c.safetensors"
    run_threads(2, lambda c: fitted(c, path, "onebit", 1))
    for values, _ in run_threads(2, lambda c: fitted(c, path, "powersgd(rank=1)", 2, resume=True)):
        assert all(np.isfinite(value).all() for value in values.values())


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_a_state_is_read_as_it_was_written(compressor):
    made = parse(compressor)
    state = made.start((4, 5), np.float64, seed=3)
    rng = np.random.default_rng(0)
    written = {
        name: np.asarray(7, np.int64) if array.dtype == np.int64 else rng.normal(size=array.shape)
        for name, array in flatten(state).items()
    }
    again = flatten(unflatten(state, written))
    assert list(again) == list(written)
    for name, array in written.items():
        np.testing.assert_array_equal(again[name], array)
    every = np.stack([np.full(3, r) for r in range(4)])
    np.testing.assert_array_equal(share_of(every, 2, 4, average=True), [2, 2, 2])
    np.testing.assert_array_equal(share_of(every, 1, 2, average=True), [1.5] * 3)
    np.testing.assert_array_equal(share_of(every, 1, 2, average=False), [3] * 3)
    same = np.ones((4, 3))
    np.testing.assert_array_equal(share_of(same, 1, 2, average=False), [2] * 3)
    np.testing.assert_array_equal(share_of(same, 1, 2, average=False, alike=True), [1] * 3)


def test_a_parameter_with_the_name_of_a_state_is_refused(tmp_path):
    class Clash(cavs.Model):
        def __init__(self):
            self.session = cavs.nn.Linear(2, 2)

    model = Clash()
    name = next(iter(model.parameters())).removeprefix("session.")
    with pytest.raises(CheckpointError, match="another name than 'session'"):
        save_checkpoint(tmp_path / "c", model, extra={name: np.zeros(2)})
    save_checkpoint(tmp_path / "c", model, extra={"held": np.zeros(2)})
    stored = read_checkpoint(tmp_path / "c")
    assert set(stored.parameters) == set(model.parameters()) and list(stored.extra) == ["held"]
