"""Graphs joined under one root: structure, features, a model of pairs."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import FeatureError, GraphError
from tests.oracle import assert_close, reference


def part(children, seed=0, edges=True):
    rng = np.random.default_rng(seed)
    n, m = len(children), sum(map(len, children))
    of_edges = {"r": rng.integers(0, 3, m), "w": rng.normal(size=(m, 2))} if edges else {}
    features = {"token": rng.integers(0, 9, n), "x": rng.normal(size=(n, 2))}
    return cavs.Graph(children, features, of_edges, graph_features={"gone": 1})


TREE, DAG, ONE = part([[], [], [1, 0]]), part([[], [0], [0], []], 1), part([[]], 2, edges=False)


def test_structure_and_features():
    whole = cavs.Graph.join(
        [TREE, ONE, DAG],
        {"token": 7},
        {"w": np.arange(10.0).reshape(5, 2)},
        graph_features={"score": 0.5},
        name="pair",
    )
    assert [whole.children(v).tolist() for v in range(9)] == [
        *([], [], [1, 0]),
        [],
        *([], [4], [4], []),
        [2, 3, 5, 6, 7],
    ]
    assert whole.roots.tolist() == [8] and whole.name == "pair"
    parts = (TREE, ONE, DAG)
    token = np.concatenate([*(p.features["token"] for p in parts), [7]])
    np.testing.assert_array_equal(whole.features["token"], token)
    x = np.concatenate([*(p.features["x"] for p in parts), np.zeros((1, 2))])
    np.testing.assert_array_equal(whole.features["x"], x.astype(np.float32))
    relation = np.concatenate([TREE.edge_features["r"], DAG.edge_features["r"], [-1] * 5])
    np.testing.assert_array_equal(whole.edge_features["r"], relation)
    np.testing.assert_array_equal(whole.edge_features["w"][-5:], np.arange(10.0).reshape(5, 2))
    assert dict(whole.graph_features) == {"score": np.float32(0.5)}


def test_a_joined_graph_is_joined_again():
    inner = cavs.Graph.join([TREE, DAG])
    outer = cavs.Graph.join([inner, inner], {"x": [[1.0, 2.0]]})
    assert outer.children(outer.num_vertices - 1).tolist() == [7, 15]
    assert outer.features["x"][-1].tolist() == [1.0, 2.0]
    assert outer.depth == inner.depth + 1


def test_without_edges():
    whole = cavs.Graph.join([ONE, ONE])
    assert whole.num_edges == 2 and not whole.edge_features


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (([],), GraphError, "graphs to join are needed"),
        (([TREE, None],), GraphError, "graphs to join are needed"),
        (([TREE, part([[], [0]], edges=False)],), FeatureError, r"\[\], another \['r', 'w'\]"),
        (([TREE], {"word": 1}), FeatureError, r"'word' is given, but .*\['token', 'x'\]"),
        (([TREE], {"x": 1.0}), FeatureError, r"shape \(\), the 1 new row needs \(1, 2\)"),
        (([DAG], {}, {"r": [1]}), FeatureError, r"shape \(1,\), the 3 new rows need \(3,\)"),
        (([TREE], {"x": [[1.0], [1, 2]]}), FeatureError, "'x' has rows of unequal length"),
        (([TREE], {"token": "a"}), FeatureError, "'token' needs integers, booleans or floats"),
        (([TREE], {"token": 7.0}), FeatureError, "'token' holds integers, and is given float64"),
        (([TREE], {"token": -2}), FeatureError, 'vertex feature "token" holds -2 at vertex 3'),
    ],
)
def test_graphs_and_features_that_do_not_fit(arguments, error, text):
    with pytest.raises(error, match=text):
        cavs.Graph.join(*arguments)


def test_rows_of_another_shape_are_named():
    wide = cavs.Graph([[]], {"x": [[1.0, 2.0, 3.0]]})
    with pytest.raises(FeatureError, match=r'"pair": vertex feature \'x\': .*dimension') as caught:
        cavs.Graph.join([cavs.Graph([[]], {"x": [[1.0, 2.0]]}), wide], name="pair")
    assert caught.value.hint == "rows of a feature have one shape in all parts"


def test_only_the_new_vertex_may_have_its_type():
    scan = cavs.Graph([[]], types=["scan"], features={"scan": {"rows": [2.5]}})
    features = {"join": {"x": [[1.5, 0.5]]}}
    whole = cavs.Graph.join([scan, scan], features, type="join")
    assert whole.types == ("scan", "scan", "join")
    assert set(whole.typed_features) == {"scan", "join"}
    assert whole.typed_features["scan"]["rows"].tolist() == [2.5, 2.5]
    assert whole.typed_features["join"]["x"].tolist() == [[1.5, 0.5]]


class Pair(cavs.VertexFunction):
    """A binary cell that pushes the states of its children: at the new root, of both trees."""

    def __init__(self, size):
        self.state = cavs.State(h=size)
        self.U = cavs.Parameter((2 * size, size))

    def vertex(self, v):
        left, right = v.gather(0).h, v.gather(1).h
        h = ops.tanh(v.pull("x") + ops.concat([left, right]) @ self.U)
        v.scatter(h=h)
        v.push(left=left, right=right)


class Related(cavs.Model):
    """Predict the similarity of two trees (Tai et al. 2015)."""

    def __init__(self, size=4):
        self.word, self.tree = nn.Embedding(9, size), Pair(size)
        self.output = nn.Linear(2 * size, 1)

    def forward(self, batch):
        both = self.tree(batch.graph, x=self.word(batch["token"]))
        left, right = ops.sum_roots(both.left), ops.sum_roots(both.right)
        return self.output(ops.concat([left * right, ops.absolute(left - right)]))

    def loss(self, batch):
        return ops.mean_squared_error(self.forward(batch), batch["score"])


@pytest.mark.parametrize("copies", [1, 50])
def test_a_model_of_pairs(copies):
    trees = [cavs.Graph(c, {"token": np.arange(len(c))}) for c in ([[]], [[], [], [0, 1]])]
    pairs = [
        cavs.Graph.join([a, b], graph_features={"score": float(i + 2 * j)})
        for i, a in enumerate(trees)
        for j, b in enumerate(trees)
    ]
    model, batch = Related(), cavs.batch(pairs * copies)
    model.initialize(1, np.float64)
    session = cavs.Session(model, dtype=np.float64)
    loss, gradients = session.gradients(batch)
    _, expected = reference(model, batch)
    assert_close(loss, expected["loss"], 1e-12, "loss")
    for name, g in gradients.items():
        assert_close(g, expected[f"grad:{name}"], 1e-12, name)
    assert session.predict(batch)["output"].shape == (len(pairs) * copies, 1)


def test_a_feature_is_of_integers_or_of_floats_in_all_parts():
    whole, real = cavs.Graph([[]], {"x": [3]}), cavs.Graph([[]], {"x": [0.5]})
    for parts in ([whole, real], [real, whole]):
        with pytest.raises(
            FeatureError, match=r"'x' is (int32|float32) in one part, (int32|float32)"
        ):
            cavs.Graph.join(parts)
    joined = cavs.Graph.join([whole, whole], {"x": np.array([7], np.uint64)})
    assert joined.features["x"].dtype == np.int32 and joined.features["x"].tolist() == [3, 3, 7]
    with pytest.raises(FeatureError, match="is given 2147483648"):
        cavs.Graph.join([whole, whole], {"x": np.array([2**31], np.uint64)})
