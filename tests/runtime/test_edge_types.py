"""Types of edge features of graphs without edges, which other batches show."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import FeatureError


class Labelled(cavs.VertexFunction):
    def __init__(self, size):
        self.state = cavs.State(h=size)
        self.U = cavs.Parameter((size, size))

    def vertex(self, v):
        child = v.gather().h * v.edge("gate") + v.edge("weight").sum(-1)
        h = ops.tanh(v.pull("x") + child.sum() @ self.U)
        v.scatter(h=h)
        v.push(h)


class Relations(cavs.Model):
    def __init__(self):
        self.word, self.relation = nn.Embedding(9, 3), nn.Embedding(4, 3)
        self.tree = Labelled(3)

    def forward(self, batch):
        gate = ops.sigmoid(self.relation(batch["relation"]))
        x = self.word(batch["word"])
        return self.tree(batch.graph, x=x, gate=gate, weight=batch["weight"])

    def loss(self, batch):
        return ops.cross_entropy(self.forward(batch), batch["label"])


TREE = cavs.Graph(
    [[1, 2], [], []],
    {"word": [4, 7, 8], "label": [1, 0, 2]},
    {"relation": [3, 0], "weight": [[0.5, 1.0], [2.0, 0.1]]},
)
WORD = {"word": [4], "label": [2]}
TYPED = {"relation": np.zeros(0, np.int32), "weight": np.zeros((0, 2), np.float32)}
ALONE = cavs.Graph([[]], WORD, TYPED)
WAYS = [{}, {"relation": [], "weight": []}, {"weight": []}, TYPED]


@pytest.mark.parametrize("edge_features", WAYS)
@pytest.mark.parametrize("copies", [1, 400])  # many equal vertices are merged
def test_after_a_batch_with_edges(edge_features, copies):
    model = Relations()
    session = cavs.Session(model)
    session.gradients(cavs.batch([TREE]))
    found = cavs.batch([cavs.Graph([[]], WORD, edge_features)] * copies)
    expected = cavs.Session(model)
    same = cavs.batch([ALONE] * copies)
    assert session.gradients(found)[0] == expected.gradients(same)[0]
    ours, theirs = session.predict(found)["output"], expected.predict(same)["output"]
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("edge_features", WAYS)
def test_together_with_a_graph_with_edges(edge_features):
    session = cavs.Session(Relations())
    mixed = cavs.batch([cavs.Graph([[]], WORD, edge_features), TREE])
    assert session.gradients(mixed)[0] == session.gradients(cavs.batch([ALONE, TREE]))[0]


def test_before_any_batch_with_edges():
    """The contents of an empty list are a guess, which the first edge corrects."""

    class Words(Relations):
        def forward(self, batch):
            return self.word(batch["word"])

    session = cavs.Session(Words())
    empty = cavs.Graph([[]], WORD, {"relation": [], "weight": []})
    session.gradients(cavs.batch([empty]))
    session.gradients(cavs.batch([TREE]))
    session.gradients(cavs.batch([empty]))


def test_a_graph_with_edges_needs_its_features():
    bare = cavs.Graph([[1], []], {"word": [1, 2], "label": [0, 0]})
    with pytest.raises(FeatureError, match='"relation" is in graph 0, but not in graph 1'):
        cavs.batch([TREE, bare])
    session = cavs.Session(Relations())
    session.gradients(cavs.batch([TREE]))
    with pytest.raises(FeatureError, match="no feature 'relation'"):
        session.gradients(cavs.batch([bare]))


NEVER = [{}, {"relation": [], "weight": []}]
KNOWN = cavs.batch([cavs.Graph([[]], WORD)])


def test_a_session_without_known_types_names_the_cure():
    for edge_features in NEVER:
        batch = cavs.batch([cavs.Graph([[]], WORD, edge_features)])
        with pytest.raises(FeatureError, match="no feature 'relation' in the data") as caught:
            cavs.Session(Relations()).predict(batch)
        assert "edge_features={'relation': np.zeros(0, np.int32)}" in caught.value.hint
    ours = cavs.Session(Relations()).predict(cavs.batch([ALONE]))["output"]
    assert ours.shape == (1, 3)


def test_an_empty_list_has_no_type():
    graph = cavs.Graph([[]], WORD, {"relation": [], "weight": ()})
    assert not graph.edge_features
    assert set(cavs.Graph([[]], WORD, TYPED).edge_features) == set(TYPED)
    assert not cavs.Graph.from_edges(1, [], edge_features={"relation": []}).edge_features
    assert cavs.batch([graph, ALONE])["relation"].dtype == np.int32
    with pytest.raises(FeatureError, match='"relation" has 0 rows, but the graph has 1 edges'):
        cavs.Graph([[1], []], edge_features={"relation": []})


def test_a_fresh_session_of_a_model_that_has_seen_edges():
    model = Relations()
    cavs.Session(model).gradients(cavs.batch([TREE]))
    expected = cavs.Session(model).predict(cavs.batch([ALONE]))["output"]
    for same in (model, pickle.loads(pickle.dumps(model))):
        found = cavs.Session(same).predict(KNOWN)["output"]
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("way", ["load", "best", "resume", "load_parameters"])
def test_checkpoints_store_the_types(way, tmp_path):
    def trainer():
        return cavs.Trainer(Relations(), cavs.optim.Adam(lr=0.1))

    trained = trainer()
    trained.step(cavs.batch([TREE]))
    path = tmp_path / "model.safetensors"
    trained.save(path, states=way != "best")
    fresh = trainer()
    if way == "load_parameters":
        cavs.train.load_parameters(fresh.model, path)
    elif way == "resume":
        fresh.resume(path)
    else:
        fresh.load(path)
    expected = trained.session.predict(KNOWN)["output"]
    assert np.array_equal(fresh.session.predict(KNOWN)["output"], expected)


@pytest.mark.parametrize("collate", [None, cavs.batch])
def test_a_loader_knows_the_types_of_its_data_set(collate):
    graphs = [cavs.Graph([[]], WORD, edge_features) for edge_features in NEVER]
    loader = cavs.DataLoader([*graphs, TREE], batch_size=1, collate=collate)
    assert [b["relation"].dtype for b in loader] == [np.int32] * 3
    trainer = cavs.Trainer(Relations(), cavs.optim.Adam(lr=0.1))
    trainer.fit(loader, epochs=1, dev=cavs.DataLoader(graphs, 1), progress=False)
    assert trainer.steps == 3


def test_a_vertex_feature_with_the_name_of_an_edge_feature():
    class Named(cavs.Model):
        def __init__(self):
            self.word = nn.Embedding(9, 3)

        def forward(self, batch):
            return self.word(batch["word"])

    model = Named()
    word = {"word": np.array([4], np.int32)}
    edge = cavs.Session(model).predict(cavs.batch([cavs.Graph([[1], []], edge_features=word)]))
    vertex = cavs.Session(model).predict(cavs.batch([cavs.Graph([[]], word)]))
    assert np.array_equal(edge["output"], vertex["output"])
