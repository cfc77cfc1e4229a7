"""Ranks train in one order of tasks, which all of them take from one of their batches."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from benchmarks.word_lattices import lattices
from cavs.distributed import Trainer
from cavs.distributed.comm import run_threads
from cavs.errors import ConfigError
from cavs.runtime.scheduling import SCHEDULING
from cavs.runtime.variant import Decisions
from tests.runtime.test_scheduling import Lattice, TypedLattice, counts

RANKS = 3
BATCHES = [lattices(9, seed) for seed in range(3)]
CHAINS = [
    cavs.Graph.chain(n, features={"char": [1] * n, "word": [-1] * n, "label": [0] * n})
    for n in (3, 2, 4, 3, 2, 5)
]


def trainer_of(c, model=Lattice, **options):
    optimizer = cavs.optim.SGD(lr=0.3)
    return Trainer(model(), optimizer, communicator=c, dtype=np.float64, threads=1, **options)


def decisions(trainer) -> Decisions:
    return trainer.session.session.latest().decisions


def values(trainer):
    return {n: p.value.copy() for n, p in trainer.parameters.items()}


def alone(batches, scheduling="level", model=Lattice):
    session = cavs.Session(model(), dtype=np.float64, scheduling=scheduling)
    trainer = cavs.Trainer(session.model, cavs.optim.SGD(lr=0.3), session=session)
    for graphs in batches:
        trainer.step(cavs.batch(graphs))
    return values(trainer)


def assert_equal(found, expected):
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("strategy", [None, "PS"])
@pytest.mark.parametrize("scheduling", SCHEDULING)
def test_all_ranks_take_one_policy_and_train_like_one_process(scheduling, strategy):
    def work(c):
        trainer = trainer_of(c, scheduling=scheduling, strategy=strategy)
        for graphs in BATCHES:
            trainer.step(cavs.batch(graphs))
        chosen = decisions(trainer).scheduling
        batch = cavs.batch(BATCHES[0])
        tasks = counts(trainer.session.session, batch)
        return chosen and chosen.to_json(), tasks, values(trainer)

    found = run_threads(RANKS, work)
    (first, fewer, own), level = found[0], cavs.Session(Lattice(), scheduling="level")
    if scheduling in ("level", "auto"):
        assert first is None and fewer == counts(level, cavs.batch(BATCHES[0]))
    else:
        assert first["name"] in {"agenda", "learned"} and scheduling in (first["name"], "fewest")
        assert fewer < counts(level, cavs.batch(BATCHES[0]))
    for chosen, tasks, other in found:
        assert (chosen, tasks) == (first, fewer)
        assert all(other[name].tobytes() == value.tobytes() for name, value in own.items())
    assert_equal(own, alone(BATCHES))


def typed(graphs):
    return [
        cavs.Graph(
            graph.topology.child_lists,
            dict(graph.features),
            types=["char" if c >= 0 else "word" for c in graph.features["char"]],
        )
        for graph in graphs
    ]


def test_vertices_of_several_types_run_in_the_order_with_the_fewest_tasks():
    batches = [typed(graphs) for graphs in BATCHES[:2]]

    def work(c):
        trainer = trainer_of(c, TypedLattice)
        for graphs in batches:
            trainer.step(cavs.batch(graphs))
        return decisions(trainer).scheduling.to_json(), values(trainer)

    found = run_threads(2, work)
    assert found[0][0] == found[1][0] and found[0][0]["name"] != "level"
    assert_equal(found[1][1], alone(batches, model=TypedLattice))


def test_the_first_part_of_several_kinds_decides_for_all_ranks():
    """Batches of chains have one kind; then one rank gets a lattice, and the others chains."""
    mixed = [BATCHES[0][0], *CHAINS[1:3]]

    def work(c):
        trainer, found = trainer_of(c, scheduling="agenda"), []
        for graphs in (CHAINS, mixed, CHAINS, BATCHES[1]):
            trainer.step(cavs.batch(graphs))
            chosen = decisions(trainer).scheduling
            found.append(None if chosen is None else chosen.to_json())
        return found, values(trainer)

    results = run_threads(RANKS, work)
    (none, *others), own = results[0]
    assert none is None and others[0]["name"] == "agenda" and others == [others[0]] * 3
    assert all(found == results[0][0] for found, _ in results)
    assert_equal(own, alone([CHAINS, mixed, CHAINS, BATCHES[1]]))


def test_parts_of_one_kind_each_decide_once_a_part_has_both():
    """The union of the ranks has two kinds from the first step on, but nothing to learn from."""
    absent = {"char": [-1] * 3, "word": [1] * 3, "label": [0] * 3}
    words = cavs.Graph.chain(3, features=absent)
    batches = [[CHAINS[0], words], BATCHES[0], BATCHES[1]]

    def work(c):
        trainer, found, programs = trainer_of(c, scheduling="learned"), [], []
        for graphs in batches:
            trainer.step(cavs.batch(graphs))
            found.append(decisions(trainer).scheduling)
            programs.append(trainer.session.session.latest().build)
        assert programs[0] is not programs[1] and programs[1] is programs[2]
        return [None if x is None else x.to_json() for x in found]

    first, second = run_threads(2, work)
    assert first == second and first[0] is None and first[1] == first[2] is not None


def test_a_checkpoint_keeps_the_policy_of_the_ranks(tmp_path):
    path = tmp_path / "ranks.safetensors"

    def whole(c):
        trainer = trainer_of(c, scheduling="learned")
        for graphs in BATCHES[:2]:
            trainer.step(cavs.batch(graphs))
        trainer.save(path)
        chosen = decisions(trainer).scheduling.to_json()
        trainer.step(cavs.batch(BATCHES[2]))
        return chosen, values(trainer)

    def resumed(c):
        trainer = trainer_of(c, scheduling="learned")
        trainer.resume(path)
        trainer.step(cavs.batch(BATCHES[2]))
        return decisions(trainer).scheduling.to_json(), values(trainer)

    for (chosen, own), (again, other) in zip(
        run_threads(2, whole), run_threads(2, resumed), strict=True
    ):
        assert again == chosen
        assert all(other[name].tobytes() == value.tobytes() for name, value in own.items())


def test_an_unknown_order_is_refused():
    def work(c):
        with pytest.raises(ConfigError, match="scheduling is 'best', but must be one of 'auto'"):
            trainer_of(c, scheduling="best")

    run_threads(2, work)
