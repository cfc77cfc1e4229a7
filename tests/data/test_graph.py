import pickle
from decimal import Decimal
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given

import cavs
from cavs import nn, ops
from cavs.data import AST_TYPES, Graph, batch
from cavs.errors import FeatureError, GraphError, ShapeError
from tests.data.dags import child_lists, naive_levels


def lists(graph):
    return [graph.children(v).tolist() for v in range(graph.num_vertices)]


@given(child_lists())
def test_levels_and_structure_survive(children):
    graph = Graph(children)
    assert lists(graph) == children
    assert graph.topology.level.tolist() == naive_levels(children)
    assert graph.depth == max(naive_levels(children)) + 1
    assert graph.arity == max(len(kids) for kids in children)
    is_child = {c for kids in children for c in kids}
    assert graph.roots.tolist() == [v for v in range(len(children)) if v not in is_child]


@given(child_lists())
def test_reversed_turns_every_edge_and_its_feature(children):
    num_edges = sum(map(len, children))
    graph = Graph(children, {"x": np.arange(len(children))}, {"e": np.arange(num_edges)})
    turned = graph.reversed()
    edges = [(v, c) for v, kids in enumerate(children) for c in kids]
    wanted = sorted(((c, v, e) for e, (v, c) in enumerate(edges)), key=lambda t: (t[0], t[2]))
    found = [(v, int(c)) for v in range(turned.num_vertices) for c in turned.children(v)]
    assert found == [(c, v) for c, v, _ in wanted]
    assert turned.edge_features["e"].tolist() == [e for *_, e in wanted]
    assert turned.features["x"].tolist() == graph.features["x"].tolist()


@given(child_lists())
def test_csr_and_edges_build_the_same_graph(children):
    graph = Graph(children)
    again = Graph((graph.topology.offsets, graph.topology.children))
    pairs = [(c, v) for v, kids in enumerate(children) for c in kids]
    from_pairs = Graph.from_edges(len(children), pairs)
    index = np.array(pairs, np.int64).reshape(-1, 2).T
    assert lists(again) == lists(from_pairs) == children
    assert lists(Graph.from_edge_index(len(children), index)) == children
    assert lists(pickle.loads(pickle.dumps(graph))) == children


def test_edge_features_follow_edges_given_in_any_order():
    graph = Graph.from_edges(3, [(0, 2), (0, 1), (1, 2)], edge_features={"w": [0.5, 1.5, 2.5]})
    assert lists(graph) == [[], [0], [0, 1]]
    assert graph.edge_features["w"].tolist() == [1.5, 0.5, 2.5]


def test_from_parents_orders_siblings():
    graph = Graph.from_parents([3, 3, 0, -1, -1], name="forest")
    assert lists(graph) == [[2], [], [], [0, 1], []]
    assert graph.roots.tolist() == [3, 4]


def test_chain():
    assert lists(Graph.chain(3)) == [[], [0], [1]]
    assert Graph.chain(1).num_edges == 0
    assert Graph.chain(5000).depth == 5000
    with pytest.raises(GraphError, match="at least one vertex, found 0"):
        Graph.chain(0)


def test_from_networkx_takes_attributes():
    g = nx.DiGraph()
    g.add_node("a", token=4)
    g.add_node("b", token=5)
    g.add_node("top")
    g.add_edge("b", "top", relation=1)
    g.add_edge("a", "top", relation=2)
    graph = Graph.from_networkx(g, features=["token"], edge_features=["relation"])
    assert lists(graph) == [[], [], [1, 0]]
    assert graph.features["token"].tolist() == [4, 5, -1]
    assert graph.edge_features["relation"].tolist() == [1, 2]
    with pytest.raises(FeatureError, match='vertex 2 has no attribute "x"'):
        nx.set_node_attributes(g, {"a": 0.5, "b": 0.5}, "x")
        Graph.from_networkx(g, features=["x"])
    g.add_edge("top", "a")
    with pytest.raises(GraphError, match="cycle") as info:
        Graph.from_networkx(g)
    assert "is node" in info.value.__notes__[0]
    with pytest.raises(GraphError, match="undirected"):
        Graph.from_networkx(nx.Graph())
    with pytest.raises(FeatureError, match=r"not the text 'token'(.|\n)*\['token'\]"):
        Graph.from_networkx(g, features="token")
    with pytest.raises(FeatureError, match='no vertex has an attribute "tokn"; they have'):
        Graph.from_networkx(g, features=["tokn"])


def test_from_networkx_takes_attributes_of_the_graph():
    g = nx.DiGraph([(0, 1)], label=3, scores=[0.5, 1.5])
    graph = Graph.from_networkx(g, graph_features=["label", "scores"])
    assert graph.graph_features["label"] == 3
    assert graph.graph_features["scores"].tolist() == [0.5, 1.5]
    with pytest.raises(FeatureError, match='no graph has an attribute "y"; they have label, sc'):
        Graph.from_networkx(g, graph_features=["y"])


def test_from_networkx_whose_edges_go_to_children():
    g = nx.DiGraph()
    g.add_edge("top", "b", relation=1)
    g.add_edge("top", "a", relation=2)
    graph = Graph.from_networkx(g, edge_features=["relation"], to_children=True)
    assert lists(graph) == [[1, 2], [], []]
    assert graph.edge_features["relation"].tolist() == [1, 2]
    assert lists(Graph.from_networkx(g).reversed()) == lists(graph)


def test_features_are_added_and_replaced():
    graph = Graph([[1], []], {"x": [1, 2]}, {"r": [0.5]}, graph_features={"y": 1}, name="g")
    more = graph.with_features({"z": [0.5, 1]}, {"r": [7]}, {"w": 2})
    assert {k: v.tolist() for k, v in more.features.items()} == {"x": [1, 2], "z": [0.5, 1]}
    assert more.edge_features["r"].tolist() == [7] and more.edge_features["r"].dtype == np.int32
    assert {k: int(v) for k, v in more.graph_features.items()} == {"y": 1, "w": 2}
    assert more.name == "g" and lists(more) == lists(graph)
    assert "z" not in graph.features and graph.edge_features["r"].tolist() == [0.5]
    assert graph.with_features(graph_features={"y": 5}).graph_features["y"] == 5
    with pytest.raises(FeatureError, match=r'graph "g": .*"z" has 3 rows'):
        graph.with_features({"z": [1, 2, 3]})
    with pytest.raises(FeatureError, match="names two features, of vertices, edges or the graph"):
        graph.with_features(edge_features={"x": [1]})


def test_from_ast_is_children_first():
    graph = Graph.from_ast("def f(x):\n    return x + 1")
    names = [AST_TYPES[i] for i in graph.features["type"]]
    assert names == [
        "arg", "arguments", "Name", "Add", "Constant", "BinOp", "Return", "FunctionDef", "Module",
    ]  # fmt: skip
    assert lists(graph)[5] == [2, 3, 4]
    assert Graph.from_ast("x", graph_features={"label": 1}).graph_features["label"] == 1
    deep = Graph.from_ast("x = " + "(" * 40 + "1" + ")" * 40 + "+1" * 300)
    assert deep.depth > 300
    with pytest.raises(GraphError, match="not Python"):
        Graph.from_ast("def")


@pytest.mark.parametrize(
    ("children", "message", "vertex"),
    [
        ([[0]], "cycle through vertex 0(.|\n)*leave out an edge of the cycle", 0),
        ([[], [3], [1], [2], [3]], "cycle through vertex", None),
        ([[1]], r"vertex 0 has child 1, but vertices are 0\.\.0", 0),
        ([[], [-2]], r"vertex 1 has child -2(.|\n)*-1 leaves a position without a child", 1),
        ((np.array([], np.int32), np.array([], np.int32)), "must start at 0, found none", -1),
        ((np.array([0, 2, 1]), np.array([0])), "must not decrease", 1),
        ((np.array([0, 0, 2]), np.array([0])), "offsets end at 2 but there are 1", -1),
        ((np.array([1, 1]), np.array([], np.int32)), "must start at 0", 0),
    ],
)
def test_bad_structure_names_graph_and_vertex(children, message, vertex):
    with pytest.raises(GraphError, match=message) as info:
        Graph(children, name="bad.txt:7")
    assert 'graph "bad.txt:7"' in str(info.value)
    if vertex is not None:
        assert info.value.vertex == vertex
    else:
        assert info.value.vertex in (1, 2, 3)  # on the cycle, not vertex 4 above it


@pytest.mark.parametrize("children", [[0.5], [["a"]], 3, [[2**40]], [[1.5], []], [[[1, 2], [3]]]])
def test_children_must_be_indices(children):
    with pytest.raises(GraphError):
        Graph(children)


def test_bad_parents_and_edges():
    with pytest.raises(GraphError, match=r"vertex 1 has parent 5, but vertices are 0\.\.1"):
        Graph.from_parents([-1, 5])
    with pytest.raises(GraphError, match="vertex 0 has parent -2"):
        Graph.from_parents([-2])
    with pytest.raises(GraphError, match="edge 1 goes from vertex 0 to 9"):
        Graph.from_edges(2, [(0, 1), (0, 9)])
    with pytest.raises(GraphError, match="from_edge_index"):
        Graph.from_edges(4, np.zeros((2, 3), np.int32))
    with pytest.raises(GraphError, match="at least one vertex, found -3"):
        Graph.from_edges(-3, [])


def test_features_are_converted_and_read_only():
    given_values = np.array([1.0, 2.0])
    graph = Graph(
        [[], [0]],
        {"i": np.array([-1, 7], np.int64), "f": given_values, "b": [True, False]},
        graph_features={"y": 3, "z": [1.0, 2.0]},
    )
    assert {k: v.dtype for k, v in graph.features.items()} == {
        "i": np.int32, "f": np.float32, "b": np.int32,
    }  # fmt: skip
    assert graph.graph_features["y"].shape == () and graph.graph_features["z"].shape == (2,)
    given_values[0] = 9.0
    assert graph.features["f"][0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        graph.features["f"][0] = 0.0
    with pytest.raises(ValueError, match="read-only"):
        graph.topology.children[0] = 1
    with pytest.raises(TypeError):
        graph.features["new"] = given_values
    with pytest.raises(AttributeError):
        graph.name = "other"


@pytest.mark.parametrize(
    "values",
    [
        np.arange(6.0).reshape(2, 3).T,
        np.asfortranarray(np.arange(6).reshape(3, 2)),
        np.broadcast_to(np.float32([1, 2]), (3, 2)),
        np.arange(24.0).reshape(3, 4, 2).swapaxes(1, 2),
        np.arange(9)[::-3],
        np.zeros((3, 0)),
    ],
)
def test_features_in_any_memory_layout(values):
    graph = Graph([[], [0], [0, 1]], {"v": values}, {"e": values}, graph_features={"g": values})
    assert batch([graph, graph])["v"].tolist() == [*values.tolist()] * 2
    for name in ("e", "g"):
        assert batch([graph])[name].reshape(values.shape).tolist() == values.tolist()
    assert batch([graph, graph])["g"].tolist() == [values.tolist()] * 2


def test_a_graph_cannot_be_changed():
    graph = Graph([[], [0]], {"a": [1, 2]})
    with pytest.raises(GraphError, match="cannot be changed"):
        graph.__init__([[]], {"b": [1.5]})
    assert graph.features["a"].tolist() == [1, 2] and graph.num_vertices == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 2, 3], "has 3 rows, but the graph has 2 vertices"),
        (5, "has a single number, but the graph has 2 vertices"),
        ([0.0, np.nan], "holds nan at vertex 1"),
        (np.ma.array([1, 2], mask=[0, 1]), r"is masked at vertex 1(.|\n)*values.filled\(-1\)"),
        (np.ma.masked, "is masked at vertex 0"),
        ([[0.0, 0.0], [0.0, np.inf]], "holds inf at vertex 1"),
        ([0.0, 1e300], r"holds 1e\+300 at vertex 1"),
        ([0, -2], "holds -2 at vertex 1; (.|\n)*-1 stands for no value"),
        ([0, 2**31], "holds 2147483648 at vertex 1"),
        (["a", "b"], "needs integers, booleans or floats"),
        ([[1], [1, 2]], "rows of unequal length"),
        ([1j, 0], "found dtype complex128"),
    ],
)
def test_bad_features_name_graph_feature_and_vertex(values, message):
    with pytest.raises(FeatureError, match=message) as info:
        Graph([[], [0]], {"token": values}, name="g")
    assert 'graph "g"' in str(info.value) and '"token"' in str(info.value)


@pytest.mark.parametrize(
    ("values", "cure"),
    [
        ([1, None], "-1 stands for an integer that is absent"),
        ([None, None], "-1 stands for an integer that is absent"),
        ([0.5, None], "a float cannot be absent: give 0, and mark absence by -1"),
        (["a", "b"], "cavs.data.Vocabulary turns strings into indices"),
        (["a", None], "cavs.data.Vocabulary turns strings into indices"),
        ([b"a", b"b"], "cavs.data.Vocabulary turns strings into indices"),
        ([2**70, 1], "give numbers that are no indices as floats"),
        ([Decimal(1), Fraction(1)], "give ints or floats for every Decimal, Fraction"),
        ([1j, 0], "give real and imaginary part as two columns"),
        (np.array(["2026-01-01", "2026-01-02"], "M8[D]"), "give times as floats"),
        (np.array([1, 2], "m8[s]"), "give durations as floats"),
        (np.zeros(2, [("a", "i4"), ("b", "f4")]), "give each field as a feature"),
    ],
)
def test_the_cure_fits_the_type_of_values_that_are_no_numbers(values, cure):
    with pytest.raises(FeatureError, match="needs integers, booleans or floats") as info:
        Graph([[], [0]], {"token": values})
    assert info.value.hint.startswith(cure) or cure in info.value.hint.split("; ")


def test_a_masked_array_without_a_masked_value_is_an_array():
    graph = Graph([[], [0]], {"token": np.ma.array([1, 2], mask=[0, 0]), "x": np.ma.array([1, 2])})
    assert graph.features["token"].tolist() == graph.features["x"].tolist() == [1, 2]


def test_edge_and_graph_features_are_checked_too():
    with pytest.raises(FeatureError, match="has 2 rows, but the graph has 1 edges"):
        Graph([[], [0]], edge_features={"w": [1, 2]})
    with pytest.raises(FeatureError, match="holds -3 at edge 0"):
        Graph([[], [0]], edge_features={"w": [-3]})
    with pytest.raises(FeatureError, match="holds nan"):
        Graph([[]], graph_features={"y": float("nan")})
    with pytest.raises(
        FeatureError, match='"x" names two features, of vertices, edges or the graph'
    ):
        Graph([[]], {"x": [1]}, graph_features={"x": 1})


def test_repr_and_missing_vertex():
    assert repr(Graph.chain(2, name="c")) == 'Graph("c", 2 vertices, 1 edges, depth 2)'
    with pytest.raises(GraphError, match="no vertex 2"):
        Graph.chain(2).children(2)


def test_labels_of_several_columns_are_refused_in_use_with_a_cure():
    graph = Graph([[1], []], {"sub": [[1, 2, -1], [3, -1, -1]], "x": np.ones((2, 4))})

    class Labels(cavs.Model):
        def __init__(self):
            self.output = nn.Linear(4, 5)

        def loss(self, batch):
            return ops.cross_entropy(self.output(batch["x"]), batch["sub"])

    with pytest.raises(ShapeError, match=r"one integer per row[\s\S]*each column as a feature"):
        cavs.Session(Labels()).gradients(cavs.batch([graph]))
