"""Ranks whose programs change during training: parameters are frozen or thawed, edges appear
late.
"""

import numpy as np
import pytest

import cavs
from cavs.distributed import Trainer
from cavs.distributed.comm import run_threads
from cavs.distributed.planning.builders import builders_of_equal_replicas
from cavs.errors import ConfigError
from tests.distributed.test_trainer import Tree, trees
from tests.runtime.test_edge_types import ALONE, TREE, Relations

BATCHES = [cavs.batch(trees(8, seed)) for seed in range(5)]
CHANGE = 2  # the step before which parameters are frozen or thawed


def seeded(model):
    rng = np.random.default_rng(0)
    for p in model.parameters().values():
        p.value[...] = rng.normal(size=p.shape) * 0.3
    return model


def train(model, c, batches, change=(), **options):
    """Return loss and norm of every step, and the final parameters. change: parameters that
    flip.
    """
    optimizer = cavs.optim.SGD(lr=0.1, momentum=0.9)
    if c is None:
        session = cavs.Session(model, dtype=np.float64)
        trainer = cavs.Trainer(model, optimizer, session=session)
    else:
        trainer = Trainer(model, optimizer, communicator=c, dtype=np.float64, **options)
    steps = []
    for i, batch in enumerate(batches):
        for name in change if i == CHANGE else ():
            trainer.parameters[name].trainable ^= True
        found = trainer.advance(batch)
        steps.append([found.loss, found.grad_norm])
    return steps, {name: p.value.copy() for name, p in trainer.parameters.items()}


def tree(frozen=()):
    model = Tree()
    for name in frozen:
        model.parameters()[name].trainable = False
    return model


def equal(alone, ranks):
    for found in ranks:
        np.testing.assert_allclose(found[0], alone[0], rtol=1e-12)
        for name, value in alone[1].items():
            np.testing.assert_allclose(found[1][name], value, rtol=1e-12, atol=1e-15, err_msg=name)


@pytest.mark.parametrize("name", ["cell.U", "embedding.weight"])
@pytest.mark.parametrize("strategy", [None, *builders_of_equal_replicas()])
def test_frozen_from_the_beginning(strategy, name):
    alone = train(tree([name]), None, BATCHES)
    ranks = run_threads(2, lambda c: train(tree([name]), c, BATCHES, strategy=strategy))
    equal(alone, ranks)


@pytest.mark.parametrize("name", ["cell.U", "embedding.weight"])
@pytest.mark.parametrize("strategy", [None, "AllReduce", "Parallax", "PSLoadBalancing", "Poseidon"])
def test_frozen_in_mid_training(strategy, name):
    alone = train(tree(), None, BATCHES, [name])
    ranks = run_threads(2, lambda c: train(tree(), c, BATCHES, [name], strategy=strategy))
    equal(alone, ranks)


@pytest.mark.parametrize("change", [["cell.U"], ["embedding.weight", "output.bias", "cell.U"]])
def test_thawed_in_mid_training(change):
    alone = train(tree(["cell.U"]), None, BATCHES, change)
    ranks = run_threads(2, lambda c: train(tree(["cell.U"]), c, BATCHES, change))
    equal(alone, ranks)


@pytest.mark.parametrize("strategy", ["AllReduce", "PSLoadBalancing", "PS(staleness=1)"])
def test_a_parameter_outside_the_strategy_cannot_be_thawed(strategy):
    def work(c):
        with pytest.raises(Exception, match=r"says nothing about parameter cell\.U") as found:
            train(tree(["cell.U"]), c, BATCHES, ["cell.U"], strategy=strategy)
        return isinstance(found.value, ConfigError)

    assert any(run_threads(2, work))


def test_frozen_on_one_rank_alone():
    def work(c):
        with pytest.raises(ConfigError, match="the ranks do not train the same"):
            train(tree(), c, BATCHES, ["cell.U"] if c.rank == 0 else [])

    run_threads(2, work)


@pytest.mark.parametrize("strategy", [None, "AllReduce", "PSLoadBalancing"])
def test_a_shard_without_edges_before_one_with_edges(strategy):
    """The second rank first guesses the types of edge features."""
    parts = [(TREE, TREE, ALONE, ALONE), (TREE, ALONE, TREE, TREE), (TREE, TREE, TREE, ALONE)]
    batches = [cavs.batch(list(graphs)) for graphs in parts]
    alone = train(seeded(Relations()), None, batches)
    ranks = run_threads(2, lambda c: train(seeded(Relations()), c, batches, strategy=strategy))
    equal(alone, ranks)


def narrowed(graphs, ids):
    """Return a batch whose edges have two of the three weights of the data."""
    return cavs.batch(
        [
            cavs.Graph(
                [g.children(v).tolist() for v in range(g.num_vertices)],
                g.features,
                {**g.edge_features, "weight": g.edge_features["weight"][:, :2]},
            )
            for g in graphs
        ],
        ids,
    )


def widened(graph):
    """Return the graph before `narrowed`."""
    weight = np.full((graph.num_edges, 3), 9, np.float32)
    weight[:, :2] = graph.edge_features["weight"]
    children = [graph.children(v).tolist() for v in range(graph.num_vertices)]
    return cavs.Graph(children, graph.features, {**graph.edge_features, "weight": weight})


@pytest.mark.parametrize("strategy", [None, "AllReduce"])
def test_edge_features_changed_by_the_loader(strategy):
    """Features of raw graphs do not describe the batches; some shards have no edges."""
    graphs = [widened(g) for g in (TREE, TREE, ALONE, ALONE, TREE, ALONE, TREE, TREE)]

    def train(c):
        loader = cavs.DataLoader(graphs, batch_size=4, collate=narrowed)
        model, optimizer = seeded(Relations()), cavs.optim.SGD(lr=0.1, momentum=0.9)
        if c is None:
            session = cavs.Session(model, dtype=np.float64)
            trainer = cavs.Trainer(model, optimizer, session=session)
        else:
            options = {"communicator": c, "strategy": strategy}
            trainer = Trainer(model, optimizer, dtype=np.float64, **options)
        trainer.fit(loader, epochs=2, progress=False)
        return {name: p.value.copy() for name, p in trainer.parameters.items()}

    alone = train(None)
    for found in run_threads(2, train):
        for name, value in alone.items():
            assert np.allclose(found[name], value, rtol=1e-12, atol=1e-14), name
