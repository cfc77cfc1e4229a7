import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cavs.data import FeatureSpec, Graph, batch
from cavs.data.structure import shared
from cavs.errors import CavsError, FeatureError, GraphError
from tests.data.dags import child_lists


def featured(children, seed):
    rng = np.random.default_rng(seed)
    n, m = len(children), sum(map(len, children))
    return Graph(
        children,
        {"token": rng.integers(-1, 5, n), "x": rng.normal(size=(n, 3))},
        {"w": rng.normal(size=m)},
        graph_features={"y": seed},
        name=f"g{seed}",
    )


@given(st.lists(child_lists(max_vertices=8), min_size=1, max_size=5))
def test_collation_equals_the_naive_one(many):
    graphs = [featured(children, i) for i, children in enumerate(many)]
    b = batch(graphs)
    sizes = [g.num_vertices for g in graphs]
    assert b.topology.vertex_offsets.tolist() == np.cumsum([0, *sizes]).tolist()
    edges = [g.num_edges for g in graphs]
    assert b.topology.edge_offsets.tolist() == np.cumsum([0, *edges]).tolist()
    for name in ("token", "x"):
        assert np.array_equal(b[name], np.concatenate([g.features[name] for g in graphs]))
    assert np.array_equal(b["w"], np.concatenate([g.edge_features["w"] for g in graphs]))
    assert b["y"].tolist() == list(range(len(graphs)))
    assert (b.num_graphs, b.num_vertices, b.num_edges) == (len(graphs), sum(sizes), sum(edges))
    owner = [b.graph_of_vertex(v) for v in range(b.num_vertices)]
    assert owner == np.repeat(np.arange(len(graphs)), sizes).tolist()


def test_presence_bits_and_schedule_cache():
    graph = Graph([[], [], [0, 1]], {"a": [3, -1, -1], "b": [-1, 0, 0]})
    b = batch([graph, graph])
    s = b.schedule(("a", "b"))
    # Kinds with children come first.
    assert [key for key, *_ in s.kinds] == [2 * 0b10 + 1, 2 * 0b01, 2 * 0b10]
    assert s is b.schedule(("a", "b")) and s is not b.schedule(("b", "a"))
    assert [key for key, *_ in b.schedule().kinds] == [1, 0]


def test_schema():
    b = batch([featured([[], [0]], 1)])
    schema = b.feature_schema()
    assert schema["x"] == FeatureSpec("vertex", "float", (3,), False)
    assert schema["x"].domain == "vertex"
    with pytest.raises(CavsError, match=r"FeatureSpec.kind was renamed\n(.|\n)*use domain"):
        schema["x"].kind  # noqa: B018
    assert schema["w"] == FeatureSpec("edge", "float", (), False)
    assert schema["y"] == FeatureSpec("graph", "int", (), False)
    assert batch([Graph([[]], {"t": [-1]})]).feature_schema()["t"].has_absent
    assert not batch([Graph([[]], {"t": [0]})]).feature_schema()["t"].has_absent


def test_ids_and_labels():
    graphs = [Graph([[]], name="a"), Graph([[]])]
    b = batch(graphs, ids=[17, 4])
    assert b.ids == (17, 4) and b.names == ("a", "")
    assert b.graph_label(0) == 'graph 17 "a"' and b.graph_label(1) == "graph 4"
    with pytest.raises(FeatureError, match="1 ids for 2 graphs"):
        batch(graphs, ids=[1])
    for wrong in ([0.5, 1], np.array([0.0, 1.0]), 3):
        with pytest.raises(FeatureError, match="ids are whole numbers"):
            batch(graphs, ids=wrong)


def test_ids_may_be_an_array():
    b = batch([Graph([[]]), Graph([[]])], ids=np.array([17, 4]))
    assert b.ids == (17, 4) and all(type(i) is int for i in b.ids)


def test_edge_features_without_edges_take_the_dtype_of_the_others():
    lone = Graph([[]], edge_features={"w": []})
    pair = Graph([[], [0]], edge_features={"w": [2.5]})
    for graphs in ([lone, pair], [pair, lone]):
        b = batch(graphs)
        assert b["w"].dtype == np.float32 and b["w"].tolist() == [2.5]
    whole = Graph([[], [0]], edge_features={"w": [[1, 2]]})
    assert batch([lone, whole])["w"].tolist() == [[1, 2]]


def test_a_graph_without_vertices_is_refused():
    for features in ({}, {"token": []}):
        graphs = [Graph([[]], {"token": [1]}), Graph([], features, name="none")]
        with pytest.raises(
            GraphError,
            match=r'graph 1 "none" has no vertex; it needs at least one(.|\n)*Graph\(\[\[\]\]\)',
        ):
            batch(graphs)
        with pytest.raises(GraphError, match='graph 7 "none" has no vertex'):
            batch(graphs, ids=[3, 7])


def test_order_of_features_does_not_matter():
    b = batch([Graph([[]], {"a": [1], "b": [2]}), Graph([[]], {"b": [4], "a": [3]})])
    assert b["a"].tolist() == [1, 3] and b["b"].tolist() == [2, 4]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"y": [1]}, 'feature "token" is in graph 0 "first", but not in graph 1 "second"'),
        ({"token": [1], "y": [1]}, 'feature "y" is in graph 1 "second", but not in graph 0'),
        ({"token": [0.5]}, r"int32 vertex rows of shape \(\) in graph 0.*float32.*in graph 1"),
        ({"token": [[1, 2]]}, r"shape \(\) in graph 0.*shape \(2,\) in graph 1"),
    ],
)
def test_features_that_disagree_name_both_graphs(other, message):
    with pytest.raises(FeatureError, match=message) as caught:
        batch([Graph([[]], {"token": [1]}, name="first"), Graph([[]], other, name="second")])
    assert "graphs" in caught.value.hint


def test_a_feature_of_vertices_and_of_graphs():
    with pytest.raises(FeatureError, match=r"int32 vertex rows.*int32 graph rows"):
        batch([Graph([[]], {"y": [1]}), Graph([[]], graph_features={"y": 1})])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("features", ["features", "graph_features"])
def test_a_feature_of_edges_in_a_graph_without_any(features, turned):
    empty = Graph([[]], edge_features={"x": np.zeros(0, np.int32)})
    other = Graph([[], [0], [0], [1, 2]], **{features: {"x": [10, 11, 12, 13]}})
    graphs = [other, empty] if turned else [empty, other]
    with pytest.raises(FeatureError, match=r'feature "x" differs: int32 \w+ rows.*int32 edge rows'):
        batch(graphs)


def test_schemas_that_are_equal_but_not_the_same():
    one = Graph([[], [0]], {"a": [1, 2], "b": [[1.0], [2.0]]})
    shared.cache_clear()
    other = Graph([[]], {"b": [[3.0]], "a": [-1]})
    assert one.schema == other.schema and one.schema is not other.schema
    both = batch([one, other])
    assert both["a"].tolist() == [1, 2, -1] and both["b"].tolist() == [[1], [2], [3]]
    assert both.feature_schema()["a"].has_absent and not both["b"].flags.writeable


def test_unknown_features():
    with pytest.raises(FeatureError, match="empty batch"):
        batch([])
    b = batch([featured([[], [0]], 0)])
    assert "token" in b and "tokn" not in b
    with pytest.raises(FeatureError, match=r'no feature "tokn".*"token" \(vertex\)'):
        b["tokn"]
    with pytest.raises(FeatureError, match='no vertex feature "w"'):
        b.schedule(("w",))
    with pytest.raises(FeatureError, match='"x" cannot be absent: it is float32'):
        b.schedule(("x",))
    with pytest.raises(FeatureError, match="33 features may be absent; at most 32"):
        b.schedule(("token",) * 33)
    with pytest.raises(ValueError, match="read-only"):
        b["token"][0] = 1


def test_a_batch_survives_pickling():
    graphs = [featured([[], [0]], 1), featured([[]], 2)]
    again = pickle.loads(pickle.dumps(batch(graphs, ids=[4, 7])))
    assert again.ids == (4, 7) and again.names == ("g1", "g2")
    for name in ("token", "x", "w", "y"):
        assert np.array_equal(again[name], batch(graphs)[name])


def test_which_batches_are_chains():
    chain, forest = Graph.chain(3), Graph([[], [2], [], [0]])
    tree, fork = Graph([[], [], [0, 1]]), Graph([[], [0], [0]])
    turned = Graph([[1], [2], []])
    for graphs, chains in (
        ([chain], True),
        ([chain, forest, turned, Graph([[]])], True),
        ([chain, tree], False),
        ([fork, chain], False),
        ([tree.reversed()], False),
    ):
        assert batch(graphs).topology.chains is chains


def test_graphs_of_a_class_made_from_graph_batch_too():
    class Sentence(Graph):
        """A class of a user."""

    graphs = [Sentence([[]], {"token": [i]}) for i in range(2)]
    assert batch(graphs)["token"].tolist() == [0, 1]


def test_graph_features_may_be_replaced():
    graphs = [Graph([[]], {"x": [0]}, graph_features={"h": [0.0, 0.0], "y": i}) for i in range(3)]
    before = batch(graphs, ids=[4, 5, 6])
    schedule = before.schedule()
    rows = np.arange(6, dtype=np.float64).reshape(3, 2)
    after = before.with_graph_features({"h": rows})
    assert after["h"] is rows and not before["h"].any() and after["y"].tolist() == [0, 1, 2]
    assert after.schedule() is schedule and after.ids == before.ids
    assert after.feature_schema() == before.feature_schema()
    assert after.with_graph_features({})["h"] is rows
    for copy in (pickle.loads(pickle.dumps(after)), after.select([0, 1, 2])):
        assert np.array_equal(copy["h"], rows) and copy["h"].dtype == np.float64
    assert after.select([2, 0])["h"].tolist() == [[4, 5], [0, 1]]
    for values, message in (
        ({"z": rows}, "no feature \"z\" of graphs in the batch; it has 'h', 'y'"),
        ({"x": rows}, 'no feature "x" of graphs'),
        ({"h": rows[:2]}, r'"h" are float64\[2, 2\], those of the batch float32\[3, 2\]'),
        ({"h": rows.astype(int)}, r'"h" are int64\[3, 2\]'),
        ({"y": rows[:, 0]}, r'"y" are float64\[3\], those of the batch int32\[3\]'),
        ({"h": np.where(rows == 3, np.inf, rows)}, '"h" hold inf at graph 5'),
        ({"h": [[0, 0]] * 3}, r'"h" are int64\[3, 2\]'),
    ):
        with pytest.raises(FeatureError, match=message):
            before.with_graph_features(values)
