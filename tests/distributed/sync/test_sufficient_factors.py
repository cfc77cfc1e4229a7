"""Sufficient factors: gradients that monitors see, failures, and parameters without factors."""

import numpy as np

import cavs
from cavs.distributed.comm import run_threads
from cavs.errors import CavsError, CommunicationError, FeatureError
from cavs.train import Monitor
from tests.distributed.step.test_consensus import trainer
from tests.distributed.step.test_stale_parameters import assert_same_bits, values_of
from tests.distributed.sync.test_merged_replicas import loader, trainer_of
from tests.distributed.test_trainer import BATCHES, trees


class Own(Monitor):
    """Keeps the gradients of a rank in the first step."""

    name, wants = "own", ("local",)

    def __init__(self):
        self.seen = {}

    def observe(self, parameter, local, reduced):
        if isinstance(local, np.ndarray):
            self.seen.setdefault(parameter, local.copy())


def own_gradients(c, strategy):
    made, monitor = trainer_of(c, strategy), Own()
    made.coordinator.watch([monitor])
    made.advance(next(iter(loader())))
    names = [type(exchange).__name__ for exchange in made.session.exchanges]
    made.close()
    return monitor.seen, names


def test_monitors_see_the_product_of_a_ranks_own_factors():
    expected = run_threads(2, lambda c: own_gradients(c, "AllReduce"))
    found = run_threads(2, lambda c: own_gradients(c, "Poseidon(batch_size=1)"))
    assert "FactorBroadcast" in found[0][1]
    for (seen, _), (others, _) in zip(found, expected, strict=True):
        assert seen.keys() == others.keys()
        for name, gradient in others.items():
            np.testing.assert_allclose(seen[name], gradient, rtol=1e-9, atol=1e-12, err_msg=name)
    assert not np.allclose(found[0][0]["output.weight"], found[1][0]["output.weight"])


def test_a_rank_that_cannot_compute_sends_no_factors():
    """No rank updates anything, and all train on as if the batch had not been there."""
    bad = [*trees(2, 3), cavs.Graph([[]], {"token": [99], "label": [0]})]
    given = "Poseidon(batch_size=1)"

    def work(c, batches):
        made, errors = trainer(c, strategy=given), []
        for graphs in batches:
            try:
                made.advance(cavs.batch(graphs))
            except CavsError as error:
                errors.append(error)
        kinds = {type(exchange).__name__ for exchange in made.session.exchanges}
        return values_of(made), errors, kinds

    expected = run_threads(2, lambda c: work(c, BATCHES[:2]))
    found = run_threads(2, lambda c: work(c, [BATCHES[0], bad, BATCHES[1]]))
    assert "FactorBroadcast" in found[0][2]
    assert_same_bits([values for values, _, _ in [*expected, *found]])
    (first,), (second,) = (errors for _, errors, _ in found)
    assert isinstance(first, CommunicationError) and isinstance(second, FeatureError)
    assert "'token' is 99" in str(first) and "'token' is 99" in str(second)
