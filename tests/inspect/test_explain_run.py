"""explain() of one run: tasks by loop, time of a step, bytes, memory, and work not batched."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.compiler.pipeline import Passes
from cavs.errors import ConfigError, TraceError
from tests.runtime import test_merged_features
from tests.runtime.trees import CLASSES, WORDS, Classifier, binary, treebank

WIDTH = 8


class Stacked(cavs.Model):
    """Cells on top of each other, in one direction or in both."""

    def __init__(self, cells, both_ways=False):
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.cells = [nn.LSTM(WIDTH, WIDTH) for _ in range(cells)]
        self.output = nn.Linear(WIDTH, CLASSES)
        self.both_ways = both_ways

    def loss(self, batch):
        x = self.embedding(batch["token"])
        for number, cell in enumerate(self.cells):
            turned = self.both_ways and number % 2
            x = cell(batch.graph.reversed() if turned else batch.graph, x=x)
        return ops.cross_entropy(self.output(x), batch["label"])


class Forward(cavs.Model):
    """A model without a loss."""

    def __init__(self):
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.cell = nn.LSTM(WIDTH, WIDTH)

    def forward(self, batch):
        return self.cell(batch.graph, x=self.embedding(batch["token"]))


class Flat(cavs.Model):
    """A model without a vertex function."""

    def __init__(self):
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.output = nn.Linear(WIDTH, CLASSES)

    def loss(self, batch):
        return ops.cross_entropy(self.output(self.embedding(batch["token"])), batch["label"])


def chains(count=4, length=10):
    rng = np.random.default_rng(0)
    features = [
        {"token": rng.integers(0, WORDS, length), "label": rng.integers(0, CLASSES, length)}
        for _ in range(count)
    ]
    return cavs.batch([cavs.Graph.chain(length, features=f) for f in features])


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("cells", [1, 2, 3])
def test_tasks_are_counted_by_loop(cells, both_ways):
    explained = cavs.explain(Stacked(cells, both_ways), chains())
    run = explained.run
    assert [loop.tasks for loop in run.loops] == [9] * 2 * cells
    assert run.tasks == run.task_bound == run.backward_tasks == run.backward_bound == 9 * cells
    assert run.widths == (4,) * 9 * cells
    assert f"tasks {9 * cells} in {cells} loop" in str(explained)
    assert f"backward {9 * cells} more, in reverse" in str(explained)


def test_a_run_of_training_is_a_whole_step():
    explained = cavs.explain(Classifier(), treebank(20))
    t, text = explained.run.times, str(explained)
    assert explained.run.updated
    assert t.packing > 0 and t.update > 0 and t.stages > 0  # weights are packed after an update
    assert t.collate > 0 and t.prepare > 0
    assert t.wall >= t.packing + t.stages + t.update + t.rest - 1e-9
    for part in ("packing", "stages", "update", "rest", "products", "maps", "other"):
        assert any(line.startswith(part + " ") for line in text.splitlines())
    assert "collation" in text and "copies and schedule" in text
    assert ("added up over" in text) == (t.threads > 1)


def test_work_of_several_threads_is_summed():
    before = cavs.config.num_threads()
    cavs.set_num_threads(2)
    try:
        large = cavs.explain(Classifier(nn.BinaryTreeLSTM(64, 64), input_size=64), treebank(60))
        small = cavs.explain(Classifier(), treebank(2))
    finally:
        cavs.set_num_threads(before)
    assert large.run.times.threads == 2
    assert "added up over 2 threads, which is not the time on the clock" in str(large)
    assert not any("one thread" in line for line in large.not_batched)
    assert small.run.times.threads == 1 and "added up" not in str(small)
    assert any(line.startswith("one thread of 2 runs all stages") for line in small.not_batched)


def test_a_step_without_an_update_says_so():
    model = Classifier()
    model.initialize(0)
    model.output.bias.value[0] = np.nan
    explained = cavs.explain(model, treebank(3))
    assert not explained.run.updated
    assert "no update: loss or gradient is not finite" in str(explained)


def trained(explained):
    model = Classifier(rate=0.3)
    model.initialize(3)
    trainer = cavs.Trainer(model, cavs.optim.Adam(0.01), seed=5)
    batch = treebank(12)
    trainer.step(batch)
    if explained:
        cavs.explain(model, batch, optimizer=trainer.optimizer)
    losses = [trainer.step(batch) for _ in range(3)]
    return losses, {n: p.value.tobytes() for n, p in model.parameters().items()}


def test_training_is_not_affected():
    assert trained(explained=True) == trained(explained=False)


def test_parameters_keep_their_bits():
    model = Classifier()
    model.initialize(0)
    for p in model.parameters().values():
        p.value[...] = np.where(p.value < 0, np.float32(-0.0), p.value)  # -0 - 0 * g may be +0
    model.output.bias.trainable = False
    before = {n: p.value.tobytes() for n, p in model.parameters().items()}
    for rule in (None, cavs.optim.AdamW(0.1), cavs.optim.SGD(0.1, momentum=0.9)):
        cavs.explain(model, treebank(5), optimizer=rule)
        assert {n: p.value.tobytes() for n, p in model.parameters().items()} == before


def test_only_optimisers_are_accepted():
    with pytest.raises(ConfigError, match=r"optimizer is 'adam', but must be a cavs\.optim"):
        cavs.explain(Classifier(), treebank(2), optimizer="adam")


def test_types_of_edge_features_are_not_stored():
    graph = cavs.Graph([[], [0]], {"token": [1, 2], "label": [0, 1]}, edge_features={"d": [0.5]})
    model = Classifier(nn.LSTM(8, 6))
    cavs.explain(model, cavs.batch([graph]))
    assert model._feature_types == {}


def test_gather_and_scatter_count_states_only():
    run = cavs.explain(Forward(), chains(), training=False).run
    states = 2 * WIDTH * 4  # c and h
    assert run.gather_bytes == 36 * states and run.scatter_bytes == 40 * states
    assert run.other_read_bytes == 40 * WIDTH * 4  # reads of the table
    flat = cavs.explain(Flat(), chains()).run
    assert flat.gather_bytes == flat.scatter_bytes == flat.tasks == 0
    assert flat.other_read_bytes > 0 and flat.other_write_bytes > 0


def test_terms_of_a_product_write_its_result_once():
    session = cavs.Session(model := Classifier())
    trainer = cavs.Trainer(model, cavs.optim.SGD(lr=0.1), session=session)
    trainer.step(treebank(30))
    lines = [i for i in session.report()["instructions"] if i["kind"] == "matmul_tn"]
    matrices = [p.current() for n, p in model.parameters().items() if "embedding" not in n]
    assert len(lines) > len(matrices)
    assert sum(i["write_bytes"] for i in lines) == sum(m.nbytes for m in matrices if m.ndim > 1)


def test_values_that_share_buffers_with_states_are_no_states():
    batch = treebank(30)
    planned, plain = (
        cavs.explain(Classifier(), batch, passes=Passes(plan_memory=switch)).run
        for switch in (True, False)
    )
    assert planned.scatter_bytes == plain.scatter_bytes > 0


def test_absent_children_are_not_read():
    class First(cavs.VertexFunction):
        def __init__(self):
            self.state = cavs.State(h=WIDTH)

        def vertex(self, v):
            h = ops.tanh(v.pull("x") + v.gather(0).h + v.gather(1).h)
            v.scatter(h=h)
            v.push(h)

    class Model(cavs.Model):
        def __init__(self):
            self.embedding, self.cell = nn.Embedding(WORDS, WIDTH), First()

        def forward(self, batch):
            return self.cell(batch.graph, x=self.embedding(batch["token"]))

    graph = cavs.Graph([[], [0], [0, 1]], {"token": [1, 2, 3]})
    off = Passes(specialise=False, hoist_products_to_child=False, merge_vertices=False)
    run = cavs.explain(Model(), cavs.batch([graph]), training=False, passes=off).run
    assert run.gather_bytes == 3 * WIDTH * 4  # edges


def test_reasons_for_which_equal_vertices_are_not_merged():
    rng = np.random.default_rng(0)
    twice = [binary(20, rng) for _ in range(8)] * 2

    def why(model=None, graphs=twice, **options):
        found = cavs.explain(model or Classifier(), cavs.batch(graphs), run=False, **options)
        return [line for line in found.not_batched if "the same features and children" in line]

    assert why() == []
    (dropout,) = why(Classifier(rate=0.2))
    assert int(dropout.split()[0]) >= 312 and "of 624 vertices" in dropout
    assert (
        "draws random numbers of its own (dropout or ops.normal in the cell or of what it pushes)"
        in dropout
    )
    assert why(Classifier(rate=0.2), training=False) == []
    (off,) = why(passes=Passes(merge_vertices=False))
    assert off.endswith("the pass merge_vertices is off")
    (small,) = why(graphs=[twice[0]] * 2)
    assert "fewer than 256 vertices" in small
    one_of_each = cavs.Graph([[], [], [0, 1]], {"token": [1, 2, -1], "label": [0, 1, 1]})
    assert why(graphs=[one_of_each]) == []


def test_features_without_kinds_are_named():
    model, batch = test_merged_features.Many(7), test_merged_features.chains(7, 20)
    found = cavs.explain(model, batch, run=False)
    (line,) = [x for x in found.not_batched if "makes no kinds any more" in x]
    assert "f0, f1" in line


def test_a_model_without_a_loss_is_explained_in_inference():
    explained = cavs.explain(Forward(), chains(), training=False)
    assert explained.run.tasks == 9 and explained.run.backward_tasks == 0
    assert not explained.run.updated and explained.run.times.update == 0
    assert "return output" in dict(explained.stages)["trace"]
    assert "loss" not in dict(explained.stages)["trace"]
    assert "backward" not in str(explained).partition("== one step")[2]
    with pytest.raises(TraceError, match="has no loss"):
        cavs.explain(Forward(), chains())


def test_sums_are_named_by_their_results():
    model = Classifier()
    explained = cavs.explain(model, treebank(6))
    made = [label for label, kind, _ in explained.run.stages if kind == "global"]
    assert "reduce loss" in made and not any("one" in label for label in made)
    for name in model.parameters():
        assert f"reduce gradient {name}" in made
    assert "global reduce gradient tree.U" in str(explained)


def test_memory_outside_of_the_arena():
    model = Classifier()
    run = cavs.explain(model, treebank(6), optimizer=cavs.optim.Adam(0.01)).run
    sizes = {n: p.value.nbytes for n, p in model.parameters().items()}
    table = sizes.pop("embedding.weight")
    assert run.gradient_bytes == sum(sizes.values())
    assert 0 < run.sparse_bytes <= table
    assert run.state_bytes == 2 * (table + run.gradient_bytes)
    assert run.packed_bytes > 0 and run.scratch_bytes > 0
    text = str(cavs.explain(model, treebank(6)))
    assert "the peak, of values in the arena alone, is" in text
    besides = next(line for line in text.splitlines() if line.startswith("besides: "))
    for part in ("scratch of a thread", "packed weights", "dense gradients", "rows of sparse"):
        assert part in besides
    assert "states" not in besides  # no optimiser is known


class Doubling(cavs.VertexFunction):
    """A cell without parameters."""

    def __init__(self):
        self.state = cavs.State(h=2)

    def vertex(self, v):
        h = v.pull("x") + 2.0 * v.gather().h.sum()
        v.scatter(h=h)
        v.push(h)


class Fixed(cavs.Model):
    """A model with a loss and without parameters."""

    def __init__(self):
        self.cell = Doubling()

    def forward(self, batch):
        return self.cell(batch.graph, x=batch["x"])

    def loss(self, batch):
        return ops.mean_rows(self.forward(batch).sum(-1))


@pytest.mark.parametrize("optimizer", [None, cavs.optim.Adam(0.1)])
@pytest.mark.parametrize("training", [True, False])
def test_a_model_without_parameters_is_explained_and_steps(training, optimizer):
    model = Fixed()
    batch = cavs.batch([cavs.Graph.chain(3, features={"x": np.ones((3, 2), np.float32)})])
    run = cavs.explain(model, batch, training=training, optimizer=optimizer).run
    assert run.updated == training and run.gradient_bytes == 0
    session = cavs.Session(model)
    result = session.step(batch, {"kind": "sgd", "lr": 0.1}, [])
    assert result.loss == pytest.approx(2 * (1 + 3 + 7) / 3) and result.grad_norm == 0
    with pytest.raises(ConfigError, match="states of 1 parameters, the model has 0"):
        session.step(batch, {"kind": "sgd", "lr": 0.1}, [[]])
