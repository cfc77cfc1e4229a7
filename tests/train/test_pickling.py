"""Objects that cannot leave their process refuse to be pickled; parts of a trainer can be."""

import copy
import pickle

import pytest

import cavs
from cavs import distributed, optim
from cavs.distributed.comm import run_threads
from cavs.errors import CavsError, PicklingError
from cavs.train import metrics
from tests.distributed.test_trainer import Tree, trees

HINT = "models, graphs and batches can be pickled and copied"


def trainer():
    return cavs.Trainer(Tree(), optim.SGD(0.1))


def rank():
    return distributed.Trainer(Tree(), optim.SGD(0.1))


PROCESS_LOCAL = {
    "Trainer": (trainer, f"{HINT}: build a trainer from them; save\\(path\\) and resume\\(path\\)"),
    "Trainer of a rank": (rank, "save\\(path\\) and resume\\(path\\) continue its run"),
    "Session": (lambda: cavs.Session(Tree()), f"{HINT}: build another one from them"),
    "DistributedSession": (lambda: rank().session, HINT),
    "SingleCommunicator": (lambda: rank().communicator, "start ranks with cavs launch"),
}


@pytest.mark.parametrize("name", PROCESS_LOCAL)
@pytest.mark.parametrize("leave", [pickle.dumps, copy.copy, copy.deepcopy])
def test_process_local_objects_refuse_to_be_pickled_and_copied(name, leave):
    make, hint = PROCESS_LOCAL[name]
    local = make()
    kind = type(local).__name__
    for found in (local, {"inside": [local]}) if leave is not copy.copy else (local,):
        with pytest.raises(
            PicklingError, match=f"a {kind} cannot be pickled or copied: it holds(.|\n)*{hint}"
        ) as caught:
            leave(found)
        for base in (CavsError, pickle.PicklingError, TypeError):
            assert isinstance(caught.value, base)
        assert "test_pickling.py" in caught.value.where


def test_communicators_of_threads_refuse_to_be_pickled():
    def work(c):
        with pytest.raises(PicklingError, match="a ThreadCommunicator cannot be pickled"):
            pickle.dumps(c)

    run_threads(2, work)


def test_a_trainer_works_after_a_refusal():
    used, data = trainer(), cavs.batch(trees(4, 0))
    with pytest.raises(PicklingError):
        pickle.dumps(used)
    assert used.step(data) == trainer().step(data)


METRICS = [metrics.accuracy("logits"), metrics.root_accuracy("logits"), metrics.perplexity()]


class Predicting(Tree):
    def forward(self, batch):
        return {"logits": self.output(self.cell(batch.graph, x=self.embedding(batch["token"])))}


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_parts_of_a_trainer_can_be_pickled(metric):
    model, graphs = Predicting(), trees(8, 0)
    loader = cavs.DataLoader(graphs, 4)
    trained = cavs.Trainer(model, optim.Adam(0.1))
    trained.fit(loader, epochs=1, progress=False)
    expected = trained.evaluate(loader, [metric])
    sent = (model, loader, cavs.batch(graphs), metric, optim.Adam(0.1))
    for other in (pickle.loads(pickle.dumps(sent)), copy.deepcopy(sent)):
        model, loader, batch, metric, optimizer = other
        found = cavs.Trainer(model, optimizer)
        assert found.evaluate(loader, [metric]) == expected
        assert found.step(batch) > 0
