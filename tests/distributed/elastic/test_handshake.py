"""Ranks that would train different things learn of the differences before their first step."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import cavs
from cavs import ops
from cavs.compiler.pipeline import Passes
from cavs.distributed import Trainer
from cavs.distributed.balance.shards import WholeBatch
from cavs.distributed.cluster.resources import Network
from cavs.distributed.comm import run_threads
from cavs.distributed.comm.agreement import Agreement
from cavs.distributed.planning.builders import build
from cavs.distributed.step.program import facts, same_program
from cavs.distributed.strategy import variables_of
from cavs.errors import ConfigError
from cavs.runtime import Session
from cavs.train.schedules import Cosine, Plateau, StepDecay, WarmUp
from cavs.train.stepping import TrainingState
from tests.distributed.mpirun import needs_mpi, run_ranks
from tests.distributed.step.test_consensus import loader, outcomes, trainer
from tests.distributed.step.test_stale_parameters import assert_same_bits, values_of
from tests.distributed.strategy.test_roles import hosts
from tests.distributed.test_trainer import BATCHES, Tree, trees
from tests.train.own_rules import HeavyBall


def model_of(weight):
    """Return models of one name and of the same shapes, whatever the loss."""

    class Same(Tree):
        def loss(self, batch):
            h = self.cell(batch.graph, x=self.embedding(batch["token"]))
            found = ops.cross_entropy(self.output(h), batch["label"])
            return found + weight * ops.mean_squared_error(self.value(h), 0.3)

    return Same()


def trains(c, weight, **options):
    optimizer = cavs.optim.SGD(lr=0.1)
    t = Trainer(model_of(weight), optimizer, communicator=c, dtype=np.float64, **options)
    with t:
        return [t.advance(cavs.batch(graphs)).loss for graphs in BATCHES]


STRATEGIES = [None, "Parallax", "PartitionedPS(servers=1)", "PSLoadBalancing(staleness=2)"]


@pytest.mark.parametrize("strategy", [*STRATEGIES, "PSLoadBalancing(servers=1, sync=False)"])
def test_another_loss_of_the_same_name_is_refused_on_every_rank(strategy):
    weights = (0.5, 0.25, 0.5) if strategy and "servers" in strategy else (0.5, 0.25)
    found = outcomes(len(weights), lambda c: trains(c, weights[c.rank], strategy=strategy))
    (text,) = {str(error) for error in found}
    assert all(isinstance(error, ConfigError) and error.agreed for error in found)
    assert "the ranks do not train the same" in text and "trace of the model: rank" in text
    (line,) = [line for line in text.splitlines() if " 0.25" in line or "=0.25" in line]
    assert "rank 1 has %" in line and "0.5" in line


def test_a_single_different_rank_is_named():
    first, *others = outcomes(4, lambda c: trains(c, [0.5, 0.5, 0.1, 0.5][c.rank]))
    assert "trace of the model: ranks 0, 1 and 3 have" in str(first) and ", rank 2 has" in str(
        first
    )
    assert {str(error) for error in others} == {str(first)}


def test_replicas_of_a_host_compare_their_programs():
    """They agree at first: the model of a rank changes between two compilations."""

    def work(c):
        options = {"strategy": "PSLoadBalancing(staleness=1, two_level=True)"}
        with trainer(c, resources=hosts(2, 2), **options) as t:
            if c.rank == 3:
                t.session.session = Session(model_of(0.25), dtype=np.float64, replicated=True)
            t.advance(cavs.batch(BATCHES[0]))

    texts = [str(error) for error in outcomes(4, work)]
    for text in texts[2:]:
        assert "trace of the model: rank 2 has" in text and ", rank 3 has" in text
    for text in texts[:2]:  # a rank alone learns of it at its next step
        assert "rank 2" in text or "rank 3" in text


def test_another_loss_is_refused_before_anything_was_updated():
    def work(c):
        model = model_of(0.5 + c.rank)
        t = Trainer(model, cavs.optim.SGD(lr=0.1), communicator=c, dtype=np.float64)
        t.begin()
        before = {name: p.value.copy() for name, p in t.parameters.items()}
        with pytest.raises(ConfigError, match="do not train the same"):
            t.advance(cavs.batch(BATCHES[0]))
        return all((t.parameters[name].value == value).all() for name, value in before.items())

    assert all(run_threads(2, work))


@pytest.mark.parametrize("strategy", [None, "PSLoadBalancing(staleness=2)"])
def test_different_kinds_in_shards_are_accepted(strategy):
    """One rank has edges and absent features, the other single vertices with all features."""
    lone = [cavs.Graph([[]], {"token": [i], "label": [1]}) for i in range(3)]
    several = [*trees(3, 2), *lone]

    def work(c):
        with trainer(c, strategy=strategy) as t:
            return [t.advance(cavs.batch(part)).loss for part in (several, several[::-1])]

    assert np.isfinite(run_threads(2, work)).all()


def test_the_order_of_gradients_is_compared():
    model = Tree()
    compiled = cavs.Session(model, dtype=np.float64).compiled(cavs.batch(BATCHES[0]))
    names = list(model.parameters())

    def work(c):
        order = list(range(len(names)))
        same_program(Agreement(c), compiled if c.rank < 2 else None, order)  # all equal
        same_program(Agreement(c), compiled if c.rank < 2 else None, order[:: 1 - 2 * c.rank])

    for error in outcomes(3, work):
        assert f"order of gradients: rank 0 has {', '.join(names)}, rank 1 has" in str(error)
        assert "trace" not in str(error)


STEPS = StepDecay(0.1, every=50)
RULES_OF_RANKS = [
    lambda self, value, gradient, state, rate, step: (value - rate * gradient, {"previous": value}),
    lambda self, value, gradient, state, rate, step: (value, {"previous": value}),
]
FACTS = {
    "optimizer": [
        lambda c: trainer(c, optimizer=cavs.optim.SGD(lr=[0.1, STEPS][c.rank])),
        lambda c: trainer(
            c, optimizer=cavs.optim.SGD(lr=[WarmUp(0.1, 5), WarmUp(STEPS, 5)][c.rank])
        ),
        lambda c: trainer(c, optimizer=cavs.optim.SGD(lr=Plateau(0.1, patience=c.rank))),
        lambda c: trainer(c, optimizer=cavs.optim.SGD(lr=lambda step: 0.1 / (1 + c.rank * step))),
        lambda c: trainer(c, optimizer=cavs.optim.Adagrad(lr=0.1, initial=0.1 * c.rank)),
        lambda c: trainer(c, optimizer=cavs.optim.Adam(lr=0.1, beta2=0.9 + c.rank / 100)),
        lambda c: trainer(
            c, optimizer=type("HeavyBall", (HeavyBall,), {"rule": RULES_OF_RANKS[c.rank]})(0.1)
        ),
    ],
    "passes": [lambda c: trainer(c, passes=Passes(trim_products=bool(c.rank)))],
    "elastic": [lambda c: trainer(c, elastic=bool(c.rank))],
}


SLOWER = dataclasses.replace(hosts(2), network=Network(latency=1e-3))
RESOURCES = [(None, hosts(2)), (hosts(2), None), (hosts(2), SLOWER)]


@pytest.mark.parametrize("resources", RESOURCES)
@pytest.mark.parametrize("strategy", [None, "auto", "PartitionedPS", "given"])
def test_resources_are_compared(resources, strategy):
    if strategy == "given":
        cluster = next(spec for spec in resources if spec is not None)
        strategy = build("AllReduce", variables_of(Tree()), cluster)

    def work(c):
        t = trainer(c, strategy=strategy, resources=resources[c.rank])
        t.advance(cavs.batch(BATCHES[0]))

    found = outcomes(2, work)
    (text,) = {str(error) for error in found}
    assert all(isinstance(error, ConfigError) and error.agreed for error in found)
    assert "resources: rank 0 has " in text and "1 node (" in text and ", rank 1 has " in text


@pytest.mark.parametrize(("size", "gradients"), [(2, "mean"), (2, "sum"), (3, "mean")])
def test_different_splits_of_equal_sizes_are_refused(size, gradients):
    """Two ranks take the same half of a batch; a third only owns parameters."""
    halves = [range(4), range(4, 8)]
    options = {"strategy": "PSLoadBalancing(servers=1)"}
    if size == 2:
        made = build("AllReduce", variables_of(Tree()), hosts(2))
        graph = dataclasses.replace(made.graph, gradients=gradients)
        options = {"strategy": dataclasses.replace(made, graph=graph), "resources": hosts(2)}

    def work(c):
        t = trainer(c, split=lambda graphs, ranks: halves[:: 1 - 2 * (c.rank == 1)], **options)
        before = values_of(t)
        try:
            t.advance(cavs.batch(trees(8, 1)))
        finally:
            assert_same_bits([before, values_of(t)])

    for error in outcomes(size, work):
        assert "the ranks split a batch in 2 ways: rank 0 in one, rank 1 in another" in str(error)
        assert "they computed 8 graphs of a batch of 8" in str(error)


@pytest.mark.parametrize("known", [True, False])
def test_different_batches_of_equal_sizes_are_refused(known):
    """Compare positions in the data where they are known, otherwise sizes of graphs."""

    def work(c):
        ids = range(4 * c.rank, 4 * c.rank + 4) if known else None
        trainer(c).advance(cavs.batch(trees(4, c.rank), ids))

    for error in outcomes(2, work):
        assert isinstance(error, ConfigError) and "give all ranks the same batches" in str(error)


@pytest.mark.parametrize("strategy", ["auto", "PartitionedPS"])
def test_a_first_batch_that_one_rank_cannot_collate_is_an_error_on_all(strategy):
    def work(c):
        def make(graphs, ids):
            if c.rank == 1:
                raise ConfigError("no room")
            return cavs.batch(graphs, ids)

        trainer(c, strategy=strategy).advance(WholeBatch(tuple(BATCHES[0]), None, make))

    first, second = outcomes(2, work)
    assert isinstance(second, ConfigError) and "rank 1: ConfigError: no room" in str(first)


@pytest.mark.parametrize(
    ("name", "which"), [(n, i) for n, some in FACTS.items() for i in range(len(some))]
)
def test_options_of_the_training_are_compared(name, which):
    found = outcomes(2, lambda c: FACTS[name][which](c).advance(cavs.batch(BATCHES[0])))
    (text,) = {str(error) for error in found}
    lines = [line.strip() for line in text.splitlines() if "rank 0 has" in line]
    assert [line.partition(":")[0] for line in lines] == [name]


def test_precision_is_compared_and_ended_schedules_are_accepted():
    def rate(step):
        return [0.1, 0.2][step]

    model = Tree()
    known = facts(TrainingState(model, cavs.optim.SGD(lr=rate)), "", precision="tf32")
    assert known["precision"] == "tf32"
    assert "0.1 after 0, 0.2 after 1, IndexError after 10" in known["optimizer"]
    cosine = facts(TrainingState(model, cavs.optim.SGD(lr=Cosine(0.1, 500))), "")
    assert "0.1 after 0" in cosine["optimizer"] and "0.0 after 1000" in cosine["optimizer"]


@pytest.mark.parametrize("strategy", [None, "PartitionedPS", "PSLoadBalancing(staleness=2)"])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("option", ["batch_size", "seed", "shuffle", "graphs", "labels", "edges"])
def test_loaders_with_different_batches_are_refused(strategy, begun, option):
    def work(c):
        t = trainer(c, strategy=strategy)
        if begun:
            t.fit(loader(), epochs=1, progress=False)
        options = {"batch_size": 8, "seed": 3, "shuffle": True}
        graphs = [g for b in BATCHES for g in b]
        if option == "graphs":
            graphs = graphs[c.rank :]
        elif option == "labels" and c.rank:
            graphs[9] = graphs[9].with_features({"label": graphs[9].features["label"] + 1})
        elif option == "edges" and c.rank:  # as many, but others
            graphs[9] = graphs[9].reversed()
        elif option in ("labels", "edges"):
            pass
        else:
            options[option] += c.rank
            options["shuffle"] = options["shuffle"] == 1
        t.fit(cavs.DataLoader(graphs, **options), epochs=2, progress=False)

    for error in outcomes(2, work):
        assert "loader: rank 0 has {" in str(error), error


DEVS = {
    "other labels": lambda rank: cavs.DataLoader(
        [t.with_features({"label": [rank] * t.num_vertices}) for t in trees(6, 1)], 3
    ),
    "other sizes": lambda rank: cavs.DataLoader(trees(6, 1), 3 + rank),
    "none": lambda rank: [cavs.DataLoader(trees(6, 1), 3), None][rank],
    "more": lambda rank: [cavs.batch(trees(6, 1))] * (1 + rank),
}


@pytest.mark.parametrize("strategy", [None, "PSLoadBalancing(staleness=2)"])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("data", DEVS)
def test_different_data_of_evaluation_are_refused(data, begun, strategy):
    def work(c):
        t = trainer(c, strategy=strategy)
        if begun:
            t.fit(loader(), epochs=1, progress=False)
        t.fit(loader(), dev=DEVS[data](c.rank), epochs=1, progress=False)

    for error in outcomes(2, work):
        assert isinstance(error, ConfigError) and "dev: rank 0 has " in str(error), error


@pytest.mark.parametrize("strategy", [None, "PSLoadBalancing(staleness=2)"])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("option", ["epochs", "patience"])
def test_different_ends_of_training_are_refused(strategy, begun, option):
    def work(c):
        t = trainer(c, strategy=strategy)
        if begun:
            t.fit(loader(), epochs=1, progress=False)
        options = {"epochs": 2, "patience": 2}
        options[option] += c.rank
        t.fit(loader(), dev=loader(), progress=False, **options)

    for error in outcomes(2, work):
        assert f"{option}: rank 0 has 2, rank 1 has 3" in str(error), error
        assert isinstance(error, ConfigError)


def over_mpi(c):
    """Return the error of each rank with different losses; none with the same ones."""
    with pytest.raises(ConfigError) as caught:
        trains(c, [0.5, 0.25][c.rank])
    texts = c.share(str(caught.value))
    trains(c, 0.5)
    return texts


@pytest.mark.mpi
class TestProcesses:
    pytestmark = needs_mpi

    def test_processes_compare_their_models(self):
        texts = run_ranks(2, __name__, "over_mpi")
        assert len(texts) == 2 and len(set(texts)) == 1
        assert "trace of the model: rank 0 has" in texts[0]


# Words are numbered in the order of a set, which differs between processes.
@pytest.mark.parametrize("strategy", [None, "PSLoadBalancing(servers=1)"])
@pytest.mark.parametrize("feature", ["token", "label"])
@pytest.mark.parametrize("step", [0, 2])
def test_different_integers_are_refused(strategy, feature, step):
    def work(c):
        t = trainer(c, strategy=strategy)
        graphs = trees(4, 1)
        for i in range(3):
            if i == step and c.rank == 1:
                graphs = [g.with_features({feature: (g.features[feature] + 1) % 3}) for g in graphs]
            t.advance(cavs.batch(graphs))

    size = 2 if strategy is None else 3
    for error in outcomes(size, work):
        assert isinstance(error, ConfigError) and error.agreed
        text = f"got different batches in step {step + 1}\n  feature '{feature}': rank"
        assert text in str(error) and "sorted(set(...))" in error.hint


def test_different_integers_in_the_first_asynchronous_step_are_refused():
    def work(c):
        graphs = [g.with_features({"label": np.full(g.num_vertices, c.rank)}) for g in trees(4, 1)]
        trainer(c, strategy="PSLoadBalancing(staleness=2)").advance(cavs.batch(graphs))

    for error in outcomes(2, work):
        assert "got different batches in step 1\n  feature 'label': rank 0 has crc32" in str(error)


class Lazy:
    """A data set whose graphs are built on access."""

    def __init__(self, graphs, shift):
        self.graphs, self.shift = graphs, shift

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, i):
        graph = self.graphs[i]
        return graph.with_features({"label": (graph.features["label"] + self.shift) % 3})


def test_different_integers_of_graphs_built_on_access_are_refused():
    def work(c):
        loader = cavs.DataLoader(Lazy(trees(8, 1), c.rank), 4)
        trainer(c).fit(loader, epochs=1, progress=False)

    for error in outcomes(2, work):
        assert "got different batches in step 1\n  feature 'label': rank" in str(error)


def test_floats_may_differ():
    def work(c):
        graphs = [
            g.with_features({"noise": np.full(g.num_vertices, c.rank, "f4")}) for g in trees(4, 1)
        ]
        return trainer(c).advance(cavs.batch(graphs)).loss

    assert len(set(run_threads(2, work))) == 1
