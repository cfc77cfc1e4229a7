"""Tables on stale servers: whole gradients, rows of them, and both in one training."""

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.distributed import Trainer
from cavs.distributed.comm import run_threads

RNG = np.random.default_rng(1)
GRAPHS = [
    cavs.Graph.chain(n, {"token": RNG.integers(0, 7, n), "label": RNG.integers(0, 3, n)})
    for n in (2, 3, 1, 4, 2, 5)
]


class Tagger(cavs.Model):
    """Labels words by a table. decays: the loss reads all of it; sparse: as declared."""

    def __init__(self, decays, sparse):
        self.table, self.output = nn.Embedding(7, 4, sparse=sparse), nn.Linear(4, 3)
        self.decays = decays
        rng = np.random.default_rng(0)
        for p in self.parameters().values():
            p.value[...] = rng.normal(size=p.shape)

    def loss(self, batch):
        found = ops.cross_entropy(self.output(self.table(batch["token"])), batch["label"])
        if self.decays:
            found = found + 0.3 * ops.mean_squared_error(self.table.weight, 0.0)
        return found


def steps(trainer):
    """Make steps, after each of which all gradients are applied; return the parameters."""
    for _ in range(4):
        trainer.advance(cavs.batch(GRAPHS))
        if isinstance(trainer, Trainer):
            trainer.settle()
    return {name: p.value.copy() for name, p in trainer.parameters.items()}


@pytest.mark.parametrize("strategy", ["PSLoadBalancing(staleness=1)", "PartitionedPS(sync=False)"])
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("decays", [True, False])
def test_tables_are_trained_as_on_one_process(decays, sparse, strategy):
    """Each owner gets its rows, also of a gradient that the program computes as a whole."""
    optimizer = cavs.optim.SGD(lr=0.1)
    session = cavs.Session(Tagger(decays, sparse), dtype=np.float64)
    expected = steps(cavs.Trainer(session.model, optimizer, session=session))

    def work(c):
        options = {"communicator": c, "strategy": strategy, "dtype": np.float64}
        with Trainer(Tagger(decays, sparse), optimizer, **options) as trainer:
            return steps(trainer)

    for found in run_threads(3, work):
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-13, err_msg=name)
