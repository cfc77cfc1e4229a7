"""Types of vertices in the structures of samples: values, batches without a type, and errors."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.compiler.pipeline import Passes
from cavs.errors import FeatureError, GraphError, TraceError
from tests.oracle import agrees, drawn, reference

OFF = Passes(**dict.fromkeys(vars(Passes()), False))


class Plan(cavs.VertexFunction):
    """Scans read the columns that they are linked to, joins their children."""

    def __init__(self, size=3):
        self.state = cavs.State(h=size)
        self.scan, self.join = nn.Linear(size + 2, size), nn.Linear(2 * size, size)
        self.key = nn.Embedding(4, size)

    @cavs.vertex("scan")
    def scan_vertex(self, v):
        columns = v.link("columns")
        read = (ops.tanh(columns.h) * ops.reshape(columns.share, (1,))).sum()
        self.finish(v, self.scan(ops.concat([read, v.pull("table")])))

    @cavs.vertex("join")
    def join_vertex(self, v):
        below = ops.concat([v.gather(0).h, v.gather(1).h])
        of_columns = v.link("columns").h.mean()
        self.finish(v, self.join(below) + self.key(v.pull("key")) * of_columns)

    def finish(self, v, value):
        h = ops.tanh(value)
        v.scatter(h=h)
        v.push(h)


class Texts(cavs.VertexFunction):
    """A chain with a function for vertices of each of two types, by one name as those of plans."""

    def __init__(self, size=3):
        self.state, self.W = cavs.State(h=size), cavs.Parameter((size, size))
        self.word, self.other = nn.Embedding(6, size), cavs.Parameter(size, init="uniform")

    @cavs.vertex("scan")
    def word_vertex(self, v):
        self.finish(v, self.word(v.pull("word")))

    @cavs.vertex("other")
    def other_vertex(self, v):
        self.finish(v, self.other)

    def finish(self, v, x):
        h = ops.tanh(v.gather().h.sum() @ self.W + x)
        v.scatter(h=h)
        v.push(h)


class PlanCost(cavs.Model):
    """The cost of plans over columns, whose names are read as chains with types."""

    def __init__(self):
        self.plan, self.text, self.output = Plan(), Texts(), nn.Linear(3, 1)

    def forward(self, batch):
        columns, plan, link = batch.graphs["columns"], batch.graphs["plan"], batch.link("reads")
        named = self.text(columns, scan=columns["scan"])
        of = ops.linked(link, h=named, share=link["share"])
        h = self.plan(plan, scan=plan["scan"], join=plan["join"], columns=of)
        whole = self.output(ops.sum_roots(h)) + ops.mean_graph(named).sum(-1, keepdims=True)
        return {"cost": whole, "h": h}

    def loss(self, batch):
        found, table = self.forward(batch), batch.graphs["plan"]["scan"]["table"]
        return (
            ops.mean_squared_error(found["cost"], 0.5)
            + ops.mean_rows(ops.square(table * found["h"].mean(-1, keepdims=True)).sum(-1))
            + ops.cross_entropy(found["h"], batch.graphs["plan"]["join"]["label"])
        )


def sample(children, types, rng, of_names=("scan", "other", "scan"), absent=()):
    """Return a sample of a plan over columns; ``absent`` types have no features."""
    scans, joins, names = types.count("scan"), types.count("join"), len(of_names)
    of = {
        "scan": {"table": rng.normal(size=(scans, 2))},
        "join": {"key": rng.integers(-1, 4, joins), "label": rng.integers(-1, 3, joins)},
    }
    words = {"scan": {"word": rng.integers(-1, 6, of_names.count("scan"))}}
    rows = [rng.integers(0, names, rng.integers(0, 4)) for _ in types]
    share = rng.normal(size=sum(map(len, rows)))
    return cavs.Sample(
        plan=cavs.Graph(children, {t: x for t, x in of.items() if t not in absent}, types=types),
        columns=cavs.Graph(
            [[v - 1] if v else [] for v in range(names)], words, types=list(of_names)
        ),
        links={"reads": cavs.Link("plan", "columns", rows, {"share": share})},
    )


def samples(seed=0):
    rng = np.random.default_rng(seed)
    return [
        sample([[], [], [0, 1], [], [2, 3]], ["scan", "scan", "join", "scan", "join"], rng),
        sample([[]], ["scan"], rng, ("other",)),
        sample([[1, 2], [], []], ["join", "scan", "scan"], rng, ("scan",)),
    ]


@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize("passes", [Passes(), OFF], ids=["passes", "no passes"])
def test_types_in_samples_equal_the_oracle(passes, serial):
    model, batch = drawn(PlanCost(), 0.5), cavs.batch(samples())
    session, _ = agrees(model, batch, 1e-9, passes=passes)
    session.set_serial(serial)
    _, expected = reference(model, batch, training=False)
    for name, rows in session.predict(batch).items():
        np.testing.assert_allclose(rows, expected[name], rtol=1e-9, atol=1e-9)
    assert batch.type_names == ("columns.other", "columns.scan", "plan.join", "plan.scan")
    assert samples()[1].type_names == ("columns.other", "plan.scan")
    assert batch["plan.scan.table"].shape == (6, 2)
    assert batch.feature_schema()["columns.scan.word"].type == "columns.scan"
    kinds = str(cavs.explain(model, batch)).splitlines()
    assert any(line.endswith(": plan: join with children") for line in kinds)
    assert any(line.endswith(": columns: scan without children") for line in kinds)
    assert set(batch.typed_features) == {"columns.scan", "plan.join", "plan.scan"}


def test_a_batch_may_lack_types_that_earlier_ones_had():
    rng = np.random.default_rng(2)
    model = drawn(PlanCost(), 0.5)
    session = cavs.Session(model, dtype=np.float64)
    session.evaluate(cavs.batch(samples()))
    lacking = [sample([[]], ["scan"], rng, ("other",), absent=["join"]) for _ in range(2)]
    with pytest.raises(FeatureError, match="structure 'plan' has no feature 'join'"):
        cavs.Session(PlanCost()).evaluate(cavs.batch(lacking))
    graphs = dict(lacking[0].graphs)
    graphs["plan"] = graphs["plan"].with_features(
        {"join": {"key": np.zeros(0, np.int32), "label": np.zeros(0, np.int32)}}
    )
    explicit = [cavs.Sample(links=lacking[0].links, **graphs), lacking[1]]
    batch = cavs.batch(explicit)
    _, expected = reference(model, batch, training=False)
    for other in (session, cavs.Session(pickle.loads(pickle.dumps(model)), dtype=np.float64)):
        found = other.predict(cavs.batch(lacking))
        np.testing.assert_allclose(found["cost"], expected["cost"], rtol=1e-9, atol=1e-12)
    assert np.isfinite(session.evaluate(cavs.batch(lacking)).loss)


def test_a_loader_gives_batches_the_types_of_its_data_set():
    rng = np.random.default_rng(3)
    lacking = [sample([[]], ["scan"], rng, ("other",), absent=["join"]) for _ in range(2)]
    loader = cavs.DataLoader([*lacking, *samples()], batch_size=2)
    first = next(iter(loader))
    assert first["plan.join.label"].shape == (0,) or (first["plan.join.label"] == -1).all()
    trainer = cavs.Trainer(PlanCost(), cavs.optim.Adam(lr=0.05), seed=0)
    before = trainer.evaluate(loader)["loss"]
    trainer.fit(loader, epochs=20, progress=False)
    assert trainer.evaluate(loader)["loss"] < 0.7 * before


def test_a_structure_alone_computes_as_a_graph_does():
    """The same typed cell over graphs, and over a structure next to one without types."""

    class Alone(cavs.Model):
        def __init__(self, named):
            self.text, self.named = Texts(), named

        def forward(self, batch):
            graph = batch.graphs["words"] if self.named else batch.graph
            return self.text(graph, scan=graph["scan"])

        def loss(self, batch):
            graph = batch.graphs["words"] if self.named else batch.graph
            return ops.cross_entropy(self.forward(batch), graph["label"])

    rng = np.random.default_rng(4)
    graphs = []
    for n in (3, 1, 4):
        types = rng.choice(["scan", "other"], n).tolist()
        words = {"word": rng.integers(-1, 6, types.count("scan"))}
        children = [[v - 1] if v else [] for v in range(n)]
        label = rng.integers(-1, 3, n)
        graphs.append(cavs.Graph(children, {"label": label, "scan": words}, types=types))
    named = [cavs.Sample(words=g, other=cavs.Graph.chain(2)) for g in graphs]
    results = []
    for batch, several in ((cavs.batch(graphs), False), (cavs.batch(named), True)):
        session = cavs.Session(drawn(Alone(several), 0.5), passes=Passes(merge_vertices=False))
        results.append((session.predict(batch)["output"], session.gradients(batch)[1]))
    assert np.array_equal(results[0][0], results[1][0])
    for name, rows in results[0][1].items():
        assert np.array_equal(rows, results[1][1][name]), name


def test_types_of_samples_are_checked():
    class Wrong(PlanCost):
        def loss(self, batch):
            columns = batch.graphs["columns"]
            return ops.sum_rows(columns["scan"]["word"].sum(-1))

    rng = np.random.default_rng(5)
    unknown = sample([[], []], ["scan", "sort"], rng)
    found = 'vertex 1 of "plan" of sample 1 has the type "sort"; Plan has vertex functions for'
    with pytest.raises(GraphError, match=re.escape(found)) as error:
        cavs.Session(PlanCost()).predict(cavs.batch([samples()[0], unknown]))
    assert error.value.vertex == 1
    plain = samples()[0]
    graphs = {**plain.graphs, "columns": cavs.Graph.chain(3)}
    untyped = cavs.Sample(links=plain.links, **graphs)
    with pytest.raises(FeatureError, match='"columns" of sample 0 has types of vertices'):
        cavs.batch([plain, untyped])
    with pytest.raises(TraceError, match="cannot be combined"):

        class Mixed(PlanCost):
            def loss(self, batch):
                plan = batch.graphs["plan"]
                table = plan["scan"]["table"].sum(-1)
                words = self.plan.key(plan["join"]["key"]).sum(-1)
                return ops.sum_rows(table + words)

        cavs.Session(Mixed()).evaluate(cavs.batch(samples()))


class Untyped(cavs.Model):
    """A cell without types over a structure with types."""

    def __init__(self):
        self.embedding, self.words = nn.Embedding(3, 2), nn.ChildSumTreeLSTM(2, 2)

    def forward(self, batch):
        x = ops.tanh(batch.graphs["plan"]["x"])
        return self.words(batch.graphs["plan"], x=x)


def test_a_structure_with_types_needs_a_cell_with_functions_for_them():
    graph = cavs.Graph([[], [0]], {"x": np.ones((2, 2))}, types=["scan", "join"])
    batch = cavs.batch([cavs.Sample(plan=graph, columns=cavs.Graph.chain(1))])
    found = "has vertex functions for no types, but one for all vertices"
    with pytest.raises(GraphError, match=found):
        cavs.Session(Untyped()).predict(batch)
