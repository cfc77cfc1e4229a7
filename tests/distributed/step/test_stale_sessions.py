"""Stale parameters with other sessions of the model, and checkpoints after a load."""

import numpy as np
import pytest

import cavs
from cavs.distributed import Trainer
from cavs.distributed.comm import run_threads
from cavs.train.checkpoint import read_checkpoint
from tests.distributed.step.test_stale_parameters import STALE, assert_same_bits, trainer, values_of
from tests.distributed.test_trainer import BATCHES, Tree


def test_a_session_of_another_dtype_between_two_steps_changes_nothing():
    """It replaces the arrays of parameters: owners' values go to the new ones."""

    def work(c, disturbed):
        t = Trainer(Tree(), cavs.optim.SGD(lr=0.1), communicator=c, strategy=STALE[0])
        for graphs in BATCHES[:6]:
            t.advance(cavs.batch(graphs))
            t.settle()
            if disturbed:
                cavs.Session(t.model, dtype=np.float64).gradients(cavs.batch(graphs))
        return values_of(t)

    found = [run_threads(1, lambda c, on=on: work(c, on))[0] for on in (False, True)]
    assert_same_bits([{n: v.astype(np.float32) for n, v in values.items()} for values in found])


def test_other_sessions_see_values_of_owners():
    def work(c):
        t = trainer(c, strategy=STALE[0])
        other, batch = cavs.Session(t.model, dtype=np.float64), cavs.batch(BATCHES[0])
        for graphs in BATCHES[:3]:
            t.advance(cavs.batch(graphs))
            t.settle()
            fresh = cavs.Session(t.model, dtype=np.float64).evaluate(batch).loss
            assert other.evaluate(batch).loss == pytest.approx(fresh, rel=1e-14)

    run_threads(2, work)


def test_states_of_owners_are_saved_after_a_load_too(tmp_path):
    begin, loaded, on = (tmp_path / name for name in "abc")

    def work(c, between):
        t = trainer(c, strategy=STALE[1], optimizer=cavs.optim.Adam(lr=0.01))
        t.save(begin)
        for graphs in BATCHES[:5]:
            t.advance(cavs.batch(graphs))
        t.settle()
        t.load(begin)  # the parameters alone
        if between:
            t.save(loaded)
            return
        t.advance(cavs.batch(BATCHES[5][:2]))
        t.settle()
        t.save(on)

    for between in (True, False):
        run_threads(2, lambda c, between=between: work(c, between))
    first, second = (read_checkpoint(path).states for path in (loaded, on))
    for name, arrays in first.items():
        for a, b in zip(arrays, second[name], strict=True):
            rows = np.flatnonzero(np.abs(a).reshape(len(a), -1).max(axis=1))
            assert rows.size > 0, name
            assert np.abs(b.reshape(len(b), -1)[rows]).max(axis=1).min() > 0, name
