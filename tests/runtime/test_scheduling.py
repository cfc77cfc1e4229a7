"""Sessions that order tasks by a policy compute the same, report it, and keep it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cavs
from benchmarks.word_lattices import lattices
from cavs import nn, ops
from cavs.errors import CheckpointError, ConfigError
from cavs.runtime.scheduling import SCHEDULING, Scheduling
from tests.compiled_once import programs_shared
from tests.compiler.test_equality import FLOAT64, Case
from tests.compiler.test_structures import compare
from tests.draws import examples
from tests.random_cells import batches, models
from tests.random_structures import cases

F64 = np.dtype(np.float64)


class Lattice(cavs.Model):
    """A child-sum Tree-LSTM whose characters and words are kinds of their own."""

    def __init__(self, size=4):
        self.char, self.word = nn.Embedding(9, size), nn.Embedding(9, size)
        self.cell, self.output = nn.ChildSumTreeLSTM(size, size), nn.Linear(size, 3)
        rng = np.random.default_rng(0)
        for p in self.parameters().values():
            p.value[...] = rng.normal(size=p.shape) * 0.5

    def loss(self, batch):
        x = self.char(batch["char"]) + self.word(batch["word"])
        h = self.cell(batch.graph, x=x)
        return ops.cross_entropy(self.output(h), batch["label"])


@examples(6)
@given(models(smooth=True), batches(), st.sampled_from(["agenda", "learned"]))
def test_every_policy_equals_the_oracle(model, batch, scheduling):
    with programs_shared():
        Case(model, batch).compare(FLOAT64, scheduling=scheduling)


@examples(3)
@given(cases(smooth=True), st.sampled_from(["agenda", "learned"]))
def test_every_policy_equals_the_oracle_on_several_structures(case, scheduling):
    with programs_shared():
        compare(*case, FLOAT64, dtype=F64, scheduling=scheduling)


@pytest.fixture(params=[1, 2])
def threads(request):
    before = cavs.num_threads()
    yield request.param
    cavs.set_num_threads(before)


@pytest.mark.parametrize("top_down", [False, True])
def test_policies_agree_on_lattices(top_down, threads):
    class Model(Lattice):
        def loss(self, batch):
            graph = batch.graph.reversed() if top_down else batch.graph
            x = self.char(batch["char"]) + self.word(batch["word"])
            return ops.cross_entropy(self.output(self.cell(graph, x=x)), batch["label"])

    batch, model, found, tasks = cavs.batch(lattices(6, 1)), Model(), {}, {}
    for scheduling in SCHEDULING:
        session = cavs.Session(model, dtype=F64, scheduling=scheduling, threads=threads)
        found[scheduling] = session.gradients(batch), session.evaluate(batch).loss
        tasks[scheduling] = counts(session, batch)
    assert cavs.num_threads() == threads and tasks["learned"] < tasks["level"]
    (loss, gradients), value = found["level"]
    for (own, g), other in found.values():
        assert own == pytest.approx(loss, rel=1e-12) and other == pytest.approx(value, rel=1e-12)
        for name, expected in gradients.items():
            np.testing.assert_allclose(g[name], expected, rtol=1e-9, atol=1e-13, err_msg=name)


def counts(session, batch):
    schedule = session.schedule(batch)
    inner = {i for i, (key, _, _) in enumerate(schedule.kinds) if key & 1}
    return sum(kind in inner for kind, *_ in schedule.tasks)


def test_a_session_takes_the_order_with_the_fewest_tasks():
    batch = cavs.batch(lattices(12, 2))
    sessions = {s: cavs.Session(Lattice(), scheduling=s) for s in SCHEDULING}
    tasks = {s: counts(session, batch) for s, session in sessions.items()}
    assert tasks["auto"] == tasks["level"] > tasks["learned"]
    assert tasks["fewest"] == min(tasks["level"], tasks["agenda"], tasks["learned"])
    found = sessions["fewest"].compare_scheduling(batch)
    assert {n: tasks[n] for n in ("level", "agenda", "learned")} == found.tasks
    assert found.bound <= tasks["fewest"] == found.tasks[found.name]
    assert sessions["level"].compare_scheduling(batch).tasks["level"] == tasks["level"]


class TypedCell(cavs.VertexFunction):
    """Characters and words with functions of their own."""

    def __init__(self, size=3):
        self.state = cavs.State(h=size)
        self.char, self.word = nn.Linear(size, size), nn.Linear(size, size)

    def finish(self, v, linear):
        h = ops.tanh(linear(v.gather().h.sum()) + v.pull("x"))
        v.scatter(h=h)
        v.push(h)

    @cavs.vertex("char")
    def char_vertex(self, v):
        self.finish(v, self.char)

    @cavs.vertex("word")
    def word_vertex(self, v):
        self.finish(v, self.word)


class TypedLattice(Lattice):
    def __init__(self):
        super().__init__(3)
        self.typed = TypedCell()

    def loss(self, batch):
        x = self.char(batch["char"]) + self.word(batch["word"])
        return ops.cross_entropy(self.output(self.typed(batch.graph, x=x)), batch["label"])


def test_vertices_of_several_types_run_in_the_order_with_the_fewest_tasks():
    batch = cavs.batch(
        [
            cavs.Graph(
                graph.topology.child_lists,
                dict(graph.features),
                types=["char" if c >= 0 else "word" for c in graph.features["char"]],
            )
            for graph in lattices(8, 2)
        ]
    )
    model = TypedLattice()
    sessions = {s: cavs.Session(model, dtype=F64, scheduling=s) for s in SCHEDULING}
    found = {s: session.gradients(batch) for s, session in sessions.items()}
    tasks = {s: counts(session, batch) for s, session in sessions.items()}
    assert tasks["auto"] == tasks["fewest"] < tasks["level"]
    assert sessions["auto"].latest().decisions.scheduling.tasks["level"] == tasks["level"]
    for loss, gradients in found.values():
        assert loss == pytest.approx(found["level"][0], rel=1e-12)
        for name, expected in found["level"][1].items():
            np.testing.assert_allclose(gradients[name], expected, rtol=1e-9, atol=1e-13)
    replica = cavs.Session(model, dtype=F64, replicated=True)
    replica.gradients(batch)
    assert replica.latest().decisions.scheduling is None


def test_one_kind_runs_in_the_order_of_levels():
    rng = np.random.default_rng(0)
    graphs = [cavs.Graph.chain(5, features={"char": rng.integers(0, 9, 5)}) for _ in range(3)]

    class Chain(Lattice):
        def loss(self, batch):
            return ops.mean_rows(self.cell(batch.graph, x=self.char(batch["char"]))).sum()

    session = cavs.Session(Chain(), scheduling="fewest")
    batch = cavs.batch(graphs)
    assert session.schedule(batch) is cavs.Session(Chain()).schedule(batch)
    assert session.state_dict()["variants"][0]["scheduling"] is None
    found = session.compare_scheduling(batch)
    assert (found.name, found.tasks, found.bound) == ("level", {}, 0)


def test_the_first_batch_decides():
    first, other = cavs.batch(lattices(8, 2)), cavs.batch(lattices(8, 5))
    session = cavs.Session(Lattice(), scheduling="learned")
    session.gradients(first)
    chosen = session.latest().decisions.scheduling
    session.gradients(other)
    assert session.latest().decisions.scheduling is chosen
    assert session.schedule(other) is other.schedule(("char", "word"), policy=chosen.policy)


def test_a_resumed_session_has_the_same_order():
    batch, other = cavs.batch(lattices(8, 2)), cavs.batch(lattices(8, 5))
    session = cavs.Session(Lattice(), dtype=F64, scheduling="learned")
    session.gradients(batch)
    state = json.loads(json.dumps(session.state_dict()))
    again = cavs.Session(Lattice(), dtype=F64, scheduling="learned")
    again.load_state_dict(state)
    assert again.schedule(other).tasks == session.schedule(other).tasks
    assert again.gradients(other)[0] == session.gradients(other)[0]
    assert again.state_dict() == session.state_dict()
    level = cavs.Session(Lattice(), scheduling="level")
    level.load_state_dict(state)
    assert level.schedule(other).tasks == cavs.Session(Lattice()).schedule(other).tasks
    agenda = cavs.Session(Lattice(), scheduling="agenda")
    agenda.load_state_dict(state)
    fresh = cavs.Session(Lattice(), scheduling="agenda")
    assert agenda.schedule(other).tasks == fresh.schedule(other).tasks
    former = json.loads(json.dumps(state))
    for variant in former["variants"]:
        del variant["scheduling"]  # as in a version without policies
    again.load_state_dict(former)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "best"},
        {"name": "level"},
        {"table": None},
        {"table": {"kinds": [5], "choices": [[2, 0]]}},
        {"tasks": 3},
        {"bound": None},
    ],
)
def test_a_damaged_policy_is_refused(change):
    session = cavs.Session(Lattice(), scheduling="learned")
    session.gradients(cavs.batch(lattices(4, 2)))
    state = session.state_dict()
    before = session.state_dict()
    state["variants"][0]["scheduling"] = state["variants"][0]["scheduling"] | change
    with pytest.raises(CheckpointError, match="the state of the session is"):
        session.load_state_dict(state)
    assert session.state_dict() == before


def test_a_policy_survives_json():
    policy = cavs._engine.SchedulingPolicy([3, 5], {1: 0, 3: 1})
    before = Scheduling("learned", policy, {"level": 9, "learned": 7}, 6)
    after = Scheduling.from_json(json.loads(json.dumps(before.to_json())))
    assert after.to_json() == before.to_json()
    assert after.policy.kinds == [3, 5] and after.policy.choices == {1: 0, 3: 1}


def test_unknown_orders_are_refused():
    with pytest.raises(ConfigError, match=r"scheduling is 'best', but must be one of 'auto', 'lev"):
        cavs.Session(Lattice(), scheduling="best")
    adam = cavs.optim.Adam(lr=0.1)
    with pytest.raises(ConfigError, match="must be 'auto' with a session"):
        cavs.Trainer(Lattice(), adam, session=cavs.Session(Lattice()), scheduling="level")


def test_a_trainer_and_a_report_name_the_order(tmp_path):
    batch = cavs.batch(lattices(8, 2))
    adam = cavs.optim.Adam(lr=0.01)
    trainer = cavs.Trainer(Lattice(), adam, scheduling="learned")
    losses = [trainer.step(batch) for _ in range(3)]
    trainer.save(tmp_path / "m")
    resumed = cavs.Trainer(Lattice(), adam, scheduling="learned")
    resumed.resume(tmp_path / "m")
    assert resumed.step(batch) == trainer.step(batch) < losses[0]
    text = str(cavs.explain(Lattice(), batch, scheduling="learned"))
    (line,) = [x for x in text.splitlines() if x.startswith("by policy:")]
    found = trainer.session.compare_scheduling(batch)
    each = ", ".join(f"{n} {c}" for n, c in found.tasks.items())
    assert line == f"by policy: {each}; at least {found.bound}; the order is 'learned'"
    assert f"tasks {found.tasks['learned']} in 1 loop" in text
