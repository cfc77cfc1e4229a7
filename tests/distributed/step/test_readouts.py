"""Models of whole graphs on several ranks: each graph is on one rank, complete."""

import numpy as np
import pytest

import cavs
from cavs.distributed import Trainer, by_counts
from cavs.distributed.comm import run_threads
from cavs.runtime.program_cache import MIN_MERGED
from tests.runtime.test_readouts import WHOLE, OfGraphs, graphs_of


def model_of(whole):
    model = OfGraphs(whole)
    model.initialize(4, np.float64)
    return model


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("strategy", ["AllReduce()", "Poseidon()"])
@pytest.mark.parametrize("copies", [1, 120], ids=["few", "merged"])
def test_equals_one_process(whole, strategy, copies):
    optimizer = cavs.optim.SGD(lr=0.1)
    batch = cavs.batch(graphs_of(copies=copies, words=6))
    assert (batch.num_vertices > 2 * MIN_MERGED) == (copies > 1)
    model = model_of(whole)
    session = cavs.Session(model, dtype=np.float64)
    alone = cavs.Trainer(model, optimizer, session=session)
    losses = [alone.advance(batch).loss for _ in range(3)]

    def work(c):
        own = model_of(whole)
        options = {"communicator": c, "dtype": np.float64, "strategy": strategy}
        trainer = Trainer(own, optimizer, split=by_counts([1, 2]), **options)
        found = [trainer.advance(batch).loss for _ in range(3)]
        return found, {n: p.value.copy() for n, p in own.parameters().items()}

    for found, values in run_threads(2, work):
        assert found == pytest.approx(losses, rel=1e-11)
        for name, p in model.parameters().items():
            np.testing.assert_allclose(values[name], p.value, rtol=1e-10, atol=1e-12)
