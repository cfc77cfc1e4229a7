"""Graphs and batches whose vertices have types, and features that belong to a type."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import cavs
from cavs.data import FeatureSpec
from cavs.data.vertex_types import row_feature
from cavs.errors import FeatureError, GraphError

CHILDREN, TYPES = [[], [], [0, 1], [2]], ["scan", "scan", "join", "sort"]
FEATURES = {
    "depth": [0, 0, 1, 2],
    "scan": {"x": [[0.5, 1.0], [2.0, 3.0]], "table": [4, -1]},
    "join": {"y": [7.0]},
}
GRAPH = cavs.Graph(CHILDREN, FEATURES, types=TYPES, name="plan")
OTHER = cavs.Graph(
    [[], [0]],
    {"depth": [0, 1], "scan": {"x": [[9.0, 9.0]], "table": [5]}},
    types=["scan", "sort"],
)


def same(graph, expected=GRAPH):
    assert graph.types == expected.types and graph.schema == expected.schema
    np.testing.assert_array_equal(graph.features["depth"], expected.features["depth"])
    for of, features in expected.typed_features.items():
        for name, rows in features.items():
            np.testing.assert_array_equal(graph.typed_features[of][name], rows)


def test_a_graph_has_types_and_their_features():
    assert GRAPH.types == tuple(TYPES) and GRAPH.type_names == ("join", "scan", "sort")
    assert set(GRAPH.features) == {"depth"} and set(GRAPH.typed_features) == {"scan", "join"}
    assert GRAPH.typed_features["scan"]["x"].shape == (2, 2)
    assert not GRAPH.typed_features["join"]["y"].flags.writeable
    assert "scan.x" in repr(GRAPH) and "#type" not in repr(GRAPH)
    assert cavs.Graph([[]]).types is None and cavs.Graph([[]]).typed_features == {}


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g)), lambda g: g.with_features()]
)
def test_copies_keep_types(copied):
    same(copied(GRAPH))


def test_reversed_graphs_keep_types():
    found = GRAPH.reversed()
    assert found.types == GRAPH.types and found.children(0).tolist() == [2]
    np.testing.assert_array_equal(found.typed_features["join"]["y"], [7.0])


def test_features_are_added_to_a_type():
    found = GRAPH.with_features({"join": {"z": [1.0]}, "sort": {"by": [3]}})
    assert set(found.typed_features["join"]) == {"y", "z"}
    assert found.typed_features["sort"]["by"].tolist() == [3]


def test_constructors_take_types():
    chain = cavs.Graph.chain(2, types=["a", "b"], features={"b": {"x": [1.0]}})
    assert chain.types == ("a", "b") and chain.typed_features["b"]["x"].tolist() == [1.0]
    edges = cavs.Graph.from_edges(2, [(0, 1)], types=["a", "b"])
    assert edges.types == ("a", "b")


@pytest.mark.parametrize("copies", [1, 2])
def test_a_batch_joins_the_features_of_a_type(copies):
    batch = cavs.batch([GRAPH] * copies)
    assert batch.types == tuple(TYPES) * copies and batch.type_names == ("join", "scan", "sort")
    np.testing.assert_array_equal(batch["scan"]["x"], [[0.5, 1.0], [2.0, 3.0]] * copies)
    assert batch["scan"]["table"].tolist() == [4, -1] * copies
    assert "scan" in batch and "join" in batch and "filter" not in batch
    schema = batch.feature_schema()
    assert schema["scan.x"] == FeatureSpec("vertex", "float", (2,), False, "scan")
    assert schema["scan.table"].has_absent and "#type" not in schema
    # As programs read them: indices for all vertices, and rows by type.
    assert batch["scan.table"].tolist() == [4, -1, -1, -1] * copies
    assert batch["#row join"].tolist()[:4] == [-1, -1, 0, -1]


def test_a_graph_without_vertices_of_a_type_may_leave_out_its_features():
    batch = cavs.batch([OTHER, GRAPH, OTHER])
    assert batch["join"]["y"].tolist() == [7.0]
    assert batch["scan"]["table"].tolist() == [5, 4, -1, 5]
    empty = OTHER.with_features({"join": {"y": np.zeros(0)}})
    same(cavs.batch([OTHER, empty, OTHER]).select([1]).graphs[0], empty)
    assert cavs.batch([OTHER, empty])["join"]["y"].shape == (0,)


def test_schedules_number_types_before_presence():
    batch = cavs.batch([GRAPH])
    kinds = batch.schedule(("scan.table",), types=("join", "scan", "sort")).kinds
    # inner + 2 * (type + 4 * presence)
    assert sorted(key for key, *_ in kinds) == sorted([1, 2 * (1 + 4), 2 * 1, 1 + 2 * 2])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"types": TYPES[:3]}, GraphError, r"3 types for 4 vertices"),
        ({"types": "scan"}, GraphError, r"types are a list .* found 'scan'"),
        ({"types": [*TYPES[:3], 7]}, GraphError, r"the type of vertex 3 is 7"),
        ({"types": [*TYPES[:3], ""]}, GraphError, r"the type of vertex 3 is ''"),
        (
            {"features": {"scan": {"x": [1.0]}}, "types": TYPES},
            FeatureError,
            r'graph "p": vertex feature "x" of type "scan" has 1 rows, but the graph has 2 '
            r'vertices of type "scan"',
        ),
        (
            {"features": {"jion": {"x": [1.0]}}, "types": TYPES},
            FeatureError,
            r'has 1 rows, but the graph has 0 vertices of type "jion"',
        ),
        (
            {"features": {"scan": {"x": [1.0, 2.0]}}},
            FeatureError,
            r"feature 'scan' is a dict, the features of a type of vertices, but the graph has no "
            r"types\n(.|\n)*types=\[",
        ),
        (
            {"features": {"scan": {"x": [1.0, np.nan]}}, "types": TYPES},
            FeatureError,
            r'"x" of type "scan" holds nan at row 1',
        ),
        (
            {
                "features": {"scan": {"x": [1.0, 2.0]}},
                "graph_features": {"scan": 1.0},
                "types": TYPES,
            },
            FeatureError,
            r'"scan" names two features',
        ),
        ({"features": {"#type": [1, 2, 3, 4]}}, FeatureError, r'"#type" names two features'),
    ],
)
def test_invalid_types_and_features(arguments, error, message):
    with pytest.raises(error, match=message):
        cavs.Graph(CHILDREN, name="p", **arguments)


def test_graphs_of_a_batch_disagree():
    with pytest.raises(FeatureError, match=r"graph 0 has types of vertices, graph 1 has none"):
        cavs.batch([cavs.Graph([[]], types=["a"]), cavs.Graph([[]])])
    lacks = cavs.Graph([[]], {"depth": [0]}, types=["join"], name="b")
    with pytest.raises(
        FeatureError, match=r'"join.y" is in graph 0 "plan", but not in graph 1 "b"'
    ):
        cavs.batch([GRAPH, lacks])
    wide = OTHER.with_features({"scan": {"x": [[1.0]]}})
    with pytest.raises(FeatureError, match=r'"scan.x" differs: float32 vertex of type "scan" rows'):
        cavs.batch([GRAPH, wide])


def test_joined_graphs_keep_types():
    part = cavs.Graph([[]], types=["a"], features={"a": {"x": [1.0]}})
    with pytest.raises(GraphError, match=r"types of the new vertex"):
        cavs.Graph.join([part, part])
    found = cavs.Graph.join([part, part], type="top")
    assert found.types == ("a", "a", "top")
    assert found.typed_features["a"]["x"].tolist() == [1.0, 1.0]


def test_trees_of_json_name_the_key_of_the_type():
    plan = {"op": "join", "children": [{"op": "scan", "rows": 3.0}, {"op": "scan", "rows": 4.0}]}
    found = cavs.Graph.from_json(plan, types="op", type_features={"scan": ["rows"]})
    assert found.types == ("scan", "scan", "join")
    assert found.typed_features["scan"]["rows"].tolist() == [3.0, 4.0]


def test_graphs_of_networkx_name_the_attribute_of_the_type():
    networkx = pytest.importorskip("networkx")
    graph = networkx.DiGraph([(0, 1)])
    graph.nodes[0].update(op="scan", rows=2.0)
    graph.nodes[1].update(op="sort", depth=3, scan=1)
    found = cavs.Graph.from_networkx(graph, types="op", type_features={"scan": ["rows"]})
    assert found.types == ("scan", "sort")
    assert found.typed_features["scan"]["rows"].tolist() == [2.0]
    with pytest.raises(FeatureError, match=r"but no attribute is the type"):
        cavs.Graph.from_networkx(graph, type_features={"scan": ["rows"]})
    with pytest.raises(FeatureError, match="'scan' is a type of vertices and a feature of all"):
        cavs.Graph.from_networkx(
            graph, features=["scan"], types="op", type_features={"scan": ["rows"]}
        )
    graph.nodes[0]["op"] = 2.0
    with pytest.raises(GraphError, match=r"the type of vertex 0 is 2.0"):
        cavs.Graph.from_networkx(graph, types="op")


def test_features_at_some_vertices():
    types = GRAPH.of_types
    chosen = types.at(np.array([3, 1, 2], np.int32))
    assert chosen.names == ("join", "scan", "sort") and "scan.x" in chosen
    assert [chosen.name_of(v) for v in range(3)] == ["sort", "scan", "join"]
    np.testing.assert_array_equal(chosen["scan.table"], [-1, -1, -1])
    np.testing.assert_array_equal(chosen["scan.x"], [[2.0, 3.0]])
    np.testing.assert_array_equal(chosen["join.y"], [7.0])
    np.testing.assert_array_equal(chosen[row_feature("scan")], [-1, 0, -1])
    both = types.at(np.array([1, 0], np.int32))
    np.testing.assert_array_equal(both["scan.table"], [-1, 4])
    np.testing.assert_array_equal(both["scan.x"], [[2.0, 3.0], [0.5, 1.0]])
    np.testing.assert_array_equal(both[row_feature("scan")], [0, 1])
    assert both["join.y"].shape == (0,) and both.names == ("scan",)
