"""Metrics of whole data sets on many ranks."""

import numpy as np
import pytest

import cavs
from cavs.distributed import Trainer
from cavs.distributed.comm import run_threads
from cavs.errors import CavsError
from cavs.train import metrics
from tests.distributed.elastic.test_survivors import Killed, mortal
from tests.distributed.test_loaders import DEV, GRAPHS
from tests.distributed.test_trainer import Tree
from tests.patience import patience


class Tagger(Tree):
    """A tree with an output to measure."""

    def forward(self, batch):
        h = self.cell(batch.graph, x=self.embedding(batch["token"]))
        return {"output": self.output(h), "score": self.value(h)}


def order(rows):
    """A metric that depends on the order of the rows."""
    return float(np.dot(rows[:, 0], np.arange(len(rows))))


USED = {
    "pearson": metrics.pearson("score"),
    "spearman": metrics.spearman("score"),
    "f1": metrics.f1(),
    "accuracy": metrics.accuracy(),
    "order": metrics.DataSetMetric("order", lambda o, b: o["score"], order),
}


@pytest.mark.parametrize("strategy", [None, "PartitionedPS(servers=1)"])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_value_on_ranks_has_the_bits_of_one_process(size, strategy):
    """Also where ranks have different numbers of batches, or none."""
    dev = cavs.DataLoader(DEV, 3)  # four batches
    session = cavs.Session(Tagger(), dtype=np.float64)
    expected = cavs.Trainer(session.model, cavs.optim.SGD(0.1), session=session).evaluate(dev, USED)
    if strategy and size == 1:
        return

    def work(c):
        options = {"communicator": c, "strategy": strategy, "dtype": np.float64}
        t = Trainer(Tagger(), cavs.optim.SGD(lr=0.1), **options)
        return t.evaluate(cavs.DataLoader(DEV, 3), USED)

    for found in run_threads(size, work):
        assert list(found) == ["loss", *USED]
        for name in ("pearson", "spearman", "f1", "order"):
            assert found[name] == expected[name], name
        assert found == pytest.approx(expected, rel=1e-12)


def test_a_fit_on_ranks_chooses_the_best_epoch_by_it():
    def work(c):
        t = Trainer(Tagger(), cavs.optim.SGD(lr=0.1), communicator=c, dtype=np.float64)
        result = t.fit(
            cavs.DataLoader(GRAPHS, 4), epochs=3, dev=cavs.DataLoader(DEV, 3), metrics=USED,
            monitor="spearman", progress=False,
        )  # fmt: skip
        return [e["dev_spearman"] for e in result.epochs], result.best_epoch

    first, second = run_threads(2, work)
    assert first == second and first[1] == 1 + int(np.argmax(first[0]))


def test_an_error_in_a_metric_is_an_error_on_all_ranks():
    def wrong_rows(outputs, batch):
        return "x" if batch.ids[0] == 3 else outputs["score"]

    for own, message in [
        (metrics.DataSetMetric("own", wrong_rows, order), "metric 'own' collected 'x'"),
        (metrics.DataSetMetric("own", lambda o, b: o["score"], lambda rows: "y"), "computed 'y'"),
    ]:

        def work(c, own=own):
            t = Trainer(Tagger(), cavs.optim.SGD(lr=0.1), communicator=c, dtype=np.float64)
            try:
                t.evaluate(cavs.DataLoader(DEV, 3), [own])
            except CavsError as error:
                return str(error)

        assert all(message in found for found in run_threads(2, work))


@pytest.mark.parametrize("dead", [0, 2])
def test_ranks_that_survive_find_the_same_value(dead):
    """The others repeat the evaluation in which a rank has died, also in the gathering of rows."""
    session = cavs.Session(Tagger(), dtype=np.float64)
    one = cavs.Trainer(session.model, cavs.optim.SGD(0.1), session=session)
    expected = one.evaluate(cavs.DataLoader(DEV, 3), USED)
    deaths = 0
    for messages in range(0, 90, 9):

        def work(c, messages=messages):
            options = {"communicator": c, "elastic": True, "dtype": np.float64}
            t = Trainer(Tagger(), cavs.optim.SGD(lr=0.1), **options)
            mortal(c, dead, messages)
            try:
                return t.evaluate(cavs.DataLoader(DEV, 3), USED)
            except Killed:
                return None

        found = run_threads(3, work, timeout=patience(20))
        deaths += found[dead] is None
        for rank, values in enumerate(found):
            assert values is not None or rank == dead
            for name in ("pearson", "spearman", "f1", "order") if values else ():
                assert values[name] == expected[name], (messages, rank, name)
    assert deaths >= 3
