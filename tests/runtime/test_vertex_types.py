"""Types of vertices in batches that change, deep graphs, loaders, checkpoints and explanations."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pytest

import cavs
from cavs import _engine, nn, ops
from cavs.compiler.text import space_name
from cavs.errors import FeatureError, GraphError
from cavs.runtime import program_cache
from cavs.train import load_parameters
from tests.oracle import agrees, assert_close, drawn
from tests.runtime.plans import PlanCost, plan, plans

RNG = np.random.default_rng(0)
TREE = plan([[], [], [0], [2, 1]], ["scan", "scan", "filter", "join"], RNG)


def alone(absent=("filter",)):
    """A graph of one vertex, without the features of the ``absent`` types."""
    return plan([[]], ["scan"], RNG, absent)


def test_absent_types_do_no_work():
    session = cavs.Session(PlanCost())
    compiled = session.compiled(cavs.batch([alone(())]), record=False)
    products = [i for i in compiled.program.instructions if i.type in ("matmul", "matmul_tn")]
    assert products and not any("filter" in i.label or "join" in i.label for i in products)
    before = compiled.program.kinds
    session.gradients(cavs.batch([TREE]))
    after = session.compiled(cavs.batch([TREE]), record=False).program.kinds
    assert set(before) < set(after)


def test_types_that_earlier_batches_had():
    model = drawn(PlanCost(), 0.5)
    session = cavs.Session(model, dtype=np.float64)
    lacking, whole = cavs.batch([alone()]), cavs.batch([alone(())])
    with pytest.raises(FeatureError, match=r"no feature 'filter' in the data"):
        cavs.Session(PlanCost()).predict(lacking)
    session.predict(cavs.batch([TREE]))
    scan, output = model.plan.scan, model.output
    table = lacking["scan"]["table"].astype(np.float64)
    h = np.tanh(table @ scan.weight.value + scan.bias.value)
    expected = h @ output.weight.value + output.bias.value
    for other in (session, cavs.Session(pickle.loads(pickle.dumps(model)), dtype=np.float64)):
        np.testing.assert_allclose(other.predict(lacking)["output"], expected, rtol=1e-12)
    assert whole["filter"]["less"].shape == (0, 1)


class Indexed(cavs.VertexFunction):
    """Looks words of leaves up, and scales joins by a number."""

    def __init__(self):
        self.state = cavs.State(h=2)
        self.words, self.scale = nn.Embedding(4, 2), nn.Linear(1, 2)

    @cavs.vertex("leaf")
    def leaf(self, v):
        self.finish(v, self.words(v.pull("word")))

    @cavs.vertex("join")
    def join(self, v):
        self.finish(v, v.gather().h.sum() * self.scale(v.pull("number")))

    def finish(self, v, value):
        h = ops.tanh(value)
        v.scatter(h=h)
        v.push(h)


class SumOfWords(cavs.Model):
    def __init__(self):
        self.cell = Indexed()

    def forward(self, batch):
        return self.cell(batch.graph, leaf=batch["leaf"], join=batch["join"])

    def loss(self, batch):
        return ops.mean_squared_error(self.forward(batch), 0.5)


@pytest.mark.parametrize("merging", [False, True])
def test_batches_without_a_type_that_earlier_ones_had(merging, monkeypatch):
    monkeypatch.setattr(program_cache, "MIN_MERGED", 1 if merging else 1000)
    leaf = {"leaf": {"word": [1]}}
    whole = cavs.Graph(
        [[], [], [0, 1]],
        {"leaf": {"word": [1, -1]}, "join": {"number": [[0.5]]}},
        types=["leaf", "leaf", "join"],
    )
    model = drawn(SumOfWords(), 0.5)
    session = cavs.Session(model, dtype=np.float64)
    session.predict(cavs.batch([whole]))
    explicit = cavs.Graph([[]], {**leaf, "join": {"number": np.zeros((0, 1))}}, types=["leaf"])
    lacking = cavs.Graph([[]], leaf, types=["leaf"])
    expected = cavs.Session(model, dtype=np.float64).predict(cavs.batch([explicit, explicit]))
    found = session.predict(cavs.batch([lacking, lacking]))
    np.testing.assert_array_equal(found["output"], expected["output"])
    joins = cavs.Graph([[]], {"join": {"number": [[2.0]]}}, types=["join"])
    assert session.predict(cavs.batch([joins, joins]))["output"].tolist() == [[0.0, 0.0]] * 2
    assert np.isfinite(session.evaluate(cavs.batch([joins, joins])).loss)


def test_a_loader_gives_batches_the_types_of_its_data_set():
    graphs = [alone(), alone(), TREE]
    loader = cavs.DataLoader(graphs, batch_size=1)
    first = next(iter(loader))
    assert first["filter"]["less"].shape == (0, 1)
    trainer = cavs.Trainer(PlanCost(), cavs.optim.SGD(lr=0.1))
    trainer.fit(cavs.DataLoader(graphs, batch_size=1), epochs=1, progress=False)


def test_checkpoints_keep_the_features_of_types(tmp_path):
    trainer = cavs.Trainer(drawn(PlanCost(), 0.5), cavs.optim.Adam(lr=0.1))
    rng = np.random.default_rng(2)
    loader = cavs.DataLoader([*plans(12, rng), TREE], batch_size=4, seed=1)
    path = tmp_path / "plans.safetensors"
    trainer.fit(loader, epochs=2, progress=False, checkpoint=path)
    other = PlanCost()
    load_parameters(other, path)
    lacking = cavs.batch([alone()])
    np.testing.assert_array_equal(
        cavs.Session(other).predict(lacking)["output"],
        trainer.session.predict(lacking)["output"],
    )
    resumed = cavs.Trainer(PlanCost(), cavs.optim.Adam(lr=0.1))
    resumed.resume(path)
    for one in (resumed, trainer):
        one.step(cavs.batch(plans(5, np.random.default_rng(4))))
    for name, p in trainer.model.parameters().items():
        np.testing.assert_array_equal(p.value, resumed.model.parameters()[name].value)


def test_a_chain_of_5000_vertices_equals_its_recursion():
    class Machine(cavs.VertexFunction):
        def __init__(self):
            self.state = cavs.State(h=3)
            self.a, self.b = cavs.Parameter((3, 3)), cavs.Parameter((3, 3))

        @cavs.vertex("add")
        def add(self, v):
            self.finish(v, ops.tanh(v.gather(0).h @ self.a + v.pull("x")))

        @cavs.vertex("turn")
        def turn(self, v):
            self.finish(v, ops.sin(v.gather(0).h @ self.b))

        def finish(self, v, h):
            v.scatter(h=h)
            v.push(h)

    class Last(cavs.Model):
        def __init__(self):
            self.machine = Machine()

        def loss(self, batch):
            h = self.machine(batch.graph, add=batch["add"])
            return ops.sum_rows(ops.sum_roots(h).sum(-1))

    rng = np.random.default_rng(0)
    types = rng.choice(["add", "turn"], 5000).tolist()
    x = rng.normal(size=(types.count("add"), 3))
    model = drawn(Last(), 0.5)
    graph = cavs.Graph.chain(5000, types=types, features={"add": {"x": x}})
    a, b = model.machine.a.value, model.machine.b.value
    h, rows = np.zeros(3), iter(graph.typed_features["add"]["x"].astype(np.float64))
    for name in types:
        h = np.tanh(h @ a + next(rows)) if name == "add" else np.sin(h @ b)
    loss, gradients = cavs.Session(model, dtype=np.float64).gradients(cavs.batch([graph]))
    assert loss == pytest.approx(h.sum(), rel=1e-12)
    short = cavs.Graph.chain(
        40, types=types[-40:], features={"add": {"x": x[-types[-40:].count("add") :]}}
    )
    agrees(model, cavs.batch([short]))
    assert all(np.isfinite(g).all() and g.any() for g in gradients.values())


def test_kinds_of_vertices_without_types_have_keys_of_children_and_features():
    """The lowest bit of a key says that there are children, the next one that a feature is."""
    batch = cavs.batch([cavs.Graph([[], [0]], {"t": [0, -1]})])
    assert [key for key, *_ in batch.schedule(("t",)).kinds] == [1, 2]


def test_explanations_name_types():
    found = cavs.explain(PlanCost(), cavs.batch([TREE, *plans(10, np.random.default_rng(3))]))
    text = str(found)
    assert "join with children" in text and "scan without children" in text


def test_stars_of_50_children_and_graphs_of_one_vertex():
    class Gate(cavs.VertexFunction):
        def __init__(self):
            self.state = cavs.State(h=2)
            self.w = cavs.Parameter((2, 2))

        @cavs.vertex("leaf")
        def leaf(self, v):
            self.finish(v, ops.tanh(v.pull("x")))

        @cavs.vertex("max")
        def greatest(self, v):
            self.finish(v, v.gather().h.max() @ self.w)

        @cavs.vertex("last")
        def last(self, v):
            self.finish(v, ops.tanh(v.gather(49).h @ self.w))

        def finish(self, v, h):
            v.scatter(h=h)
            v.push(h)

    class Sum(cavs.Model):
        def __init__(self):
            self.gate = Gate()

        def loss(self, batch):
            return ops.sum_rows(ops.tanh(self.gate(batch.graph, leaf=batch["leaf"])).sum(-1))

    def star(top, leaves):
        x = np.random.default_rng(leaves).normal(size=(leaves, 2))
        types, children = ["leaf"] * leaves + [top], [[] for _ in range(leaves)]
        children.append(list(range(leaves)))
        return cavs.Graph(children, {"leaf": {"x": x}}, types=types)

    graphs = [star("max", 50), star("last", 50), star("last", 3), star("max", 0), star("last", 0)]
    agrees(drawn(Sum(), 0.5), cavs.batch(graphs))


def test_losses_of_labels_of_a_type_run_at_their_rows():
    class Labelled(PlanCost):
        def loss(self, batch):
            h = self.plan(batch.graph, scan=batch["scan"], filter=batch["filter"])
            return ops.cross_entropy(h, batch["join"]["label"])

    graphs = [
        g.with_features({"join": {"label": np.arange(g.types.count("join")) % 4 - 1}})
        for g in [TREE, *plans(20, np.random.default_rng(5))]
    ]
    session, _ = agrees(drawn(Labelled(), 0.5), cavs.batch(graphs))
    program = session.compiled(cavs.batch(graphs), record=False).program
    assert "space present.join.label" in "".join(
        f"space {space_name(program, i.space)} " for i in program.instructions
    )


def test_both_directions_of_a_cell_with_types():
    class Netlist(cavs.VertexFunction):
        def __init__(self):
            self.state = cavs.State(h=3)
            self.w = {t: cavs.Parameter((5, 3)) for t in ("and", "not")}

        @cavs.vertex("and", "not")
        def gate(self, v):
            below = v.gather().h.sum() if v.type == "and" else v.gather(0).h
            h = ops.tanh(ops.concat([below, v.pull("x")]) @ self.w[v.type])
            v.scatter(h=h)
            v.push(h)

    class Circuit(cavs.Model):
        def __init__(self):
            self.both = nn.Bidirectional(Netlist(), Netlist())

        def loss(self, batch):
            return ops.sum_rows(ops.tanh(self.both(batch.graph, x=batch["x"])).sum(-1))

    rng = np.random.default_rng(0)
    children = [[], [], [0, 1], [2], [3]]
    graph = cavs.Graph(
        children, {"x": rng.normal(size=(5, 2))}, types=["and", "and", "and", "not", "not"]
    )
    agrees(drawn(Circuit(), 0.5), cavs.batch([graph, graph]))
    with pytest.raises(GraphError, match=r'2 parents; Netlist reads 1 .* of type "not"'):
        shared = cavs.Graph(
            [[], [0], [0]], {"x": rng.normal(size=(3, 2))}, types=["not", "and", "and"]
        )
        cavs.Session(Circuit()).gradients(cavs.batch([shared]))


def test_equal_vertices_of_one_type_run_once():
    class Words(cavs.Model):
        def __init__(self):
            self.word, self.cell = nn.Embedding(5, 2), TwoTypes()

        def loss(self, batch):
            x = self.word(batch["word"]["token"])
            return ops.sum_rows(self.cell(batch.graph, word={"x": x}).sum(-1))

    class TwoTypes(cavs.VertexFunction):
        def __init__(self):
            self.state = cavs.State(h=2)
            self.w = cavs.Parameter((4, 2))

        @cavs.vertex("word")
        def word(self, v):
            v.scatter(h=v.pull("x"))
            v.push(v.pull("x"))

        @cavs.vertex("phrase")
        def phrase(self, v):
            h = ops.tanh(ops.concat([v.gather(0).h, v.gather(1).h]) @ self.w)
            v.scatter(h=h)
            v.push(h)

    rng = np.random.default_rng(0)
    graphs = [
        cavs.Graph(
            [[], [], [0, 1]],
            {"word": {"token": rng.integers(0, 5, 2)}},
            types=["word", "word", "phrase"],
        )
        for _ in range(100)
    ]
    batch, model = cavs.batch(graphs), drawn(Words(), 0.5)
    session, _ = agrees(model, batch)
    # Words differ by their number as a child, where their products are computed at the leaves.
    assert session.schedule(batch).batch.num_vertices <= 3 * 5 + 5 * 5 < batch.num_vertices


def test_children_are_counted_once_for_each_batch(monkeypatch):
    """Without another schedule, although types read different numbers of children."""
    schedules, counted = [], []
    make, check = _engine.make_schedule, program_cache.check_arity
    monkeypatch.setattr(
        _engine, "make_schedule", lambda *a, **k: schedules.append(1) or make(*a, **k)
    )
    monkeypatch.setattr(program_cache, "check_arity", lambda *a: counted.append(1) or check(*a))
    session = cavs.Session(drawn(PlanCost(), 0.5), scheduling="level")
    rng = np.random.default_rng(0)
    batches = [cavs.batch(plans(n, rng)) for n in (3, 5)]
    losses = [session.gradients(batch)[0] for batch in batches * 3]
    assert losses[:2] == losses[2:4] == losses[4:]
    assert len(schedules) == len(counted) == len(batches)
    assert len(session.latest().traced.fitting) == len(batches)
    batches.clear()
    gc.collect()
    assert not session.latest().traced.fitting


def test_a_state_of_a_model_with_fewer_types():
    """A type was added since the state was saved: kinds of vertices are numbered by type."""

    class Cell(cavs.VertexFunction):
        def __init__(self):
            self.state, self.W = cavs.State(h=2), cavs.Parameter((2, 2))

        def give(self, v, x):
            h = ops.tanh((x + v.gather().h.sum()) @ self.W)
            v.scatter(h=h)
            v.push(h)

    class Before(Cell):
        @cavs.vertex("leaf")
        def leaf(self, v):
            self.give(v, v.pull("x"))

        @cavs.vertex("root")
        def root(self, v):
            self.give(v, 1.0)

    class After(Before):
        @cavs.vertex("between")
        def between(self, v):
            self.give(v, -1.0)

    class Model(cavs.Model):
        def __init__(self, cell):
            self.cell = cell

        def forward(self, batch):
            return self.cell(batch.graph, leaf=batch["leaf"])

        def loss(self, batch):
            return ops.sum_rows(ops.tanh(self.forward(batch)).sum(-1))

    def batch(children, types):
        x = np.ones((types.count("leaf"), 2))
        return cavs.batch([cavs.Graph(children, {"leaf": {"x": x}}, types=types)])

    old = cavs.Session(drawn(Model(Before()), 0.5), dtype=np.float64)
    small = batch([[], [], [0, 1]], ["leaf", "leaf", "root"])
    old.gradients(small)
    models = [drawn(Model(After()), 0.5) for _ in range(2)]
    resumed, fresh = (cavs.Session(model, dtype=np.float64) for model in models)
    resumed.load_state_dict(old.state_dict())
    large = batch([[], [0], [], [1, 2]], ["leaf", "between", "leaf", "root"])
    for each in (small, large):
        loss, gradients = resumed.gradients(each)
        expected, others = fresh.gradients(each)
        assert_close(loss, expected, 1e-12, "loss")
        for name, g in gradients.items():
            assert_close(g, others[name], 1e-12, name)
