"""What every rank computes for itself, and all are to have alike, on processors that differ."""

import pytest

import cavs
from cavs.distributed.balance import PREDICTORS, SpeedBalancer
from cavs.distributed.communicator import run_threads
from cavs.errors import DataError
from tests.distributed.test_faults import outcomes, trainer
from tests.distributed.test_speed import DATA, balancer, loader, slowed


@pytest.mark.parametrize("lag", [0, 3])
def test_predictions_that_differ_by_processor_are_those_of_one_rank(lag):
    """Rank 1 would have its own graphs, as if twice as fast; rank 0 thinks them alike."""

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
    assert speeds == pytest.approx([100, 200])  # of each, what its own rank thinks
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
