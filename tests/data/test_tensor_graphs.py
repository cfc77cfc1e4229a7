"""Graphs of PyTorch Geometric and DGL: with stand-ins, and with the packages where they are."""

from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cavs
from cavs import Graph
from cavs.data import dgl_graphs, from_dgl, from_pyg, pyg_graphs, to_dgl, to_networkx, to_pyg
from cavs.errors import ConfigError, FeatureError, GraphError


class Data(dict):
    """Attributes of a Data of PyTorch Geometric that graphs are read from."""

    def __init__(self, edge_index, num_nodes, ptr=None, **attributes):
        super().__init__(attributes)
        self.edge_index, self.num_nodes, self.ptr = edge_index, num_nodes, ptr


class Dgl:
    """Attributes of a DGLGraph that graphs are read from."""

    ntypes, canonical_etypes = ["_N"], [("_N", "_E", "_N")]

    def __init__(self, edges, counts, ndata=None, edata=None):
        self.pairs, self.counts = np.asarray(edges).reshape(2, -1), np.asarray(counts)
        self.ndata, self.edata = ndata or {}, edata or {}

    def edges(self, order):
        assert order == "eid"
        return tuple(self.pairs)

    def batch_num_nodes(self):
        return self.counts


def children(graph):
    return [list(graph.children(v)) for v in range(graph.num_vertices)]


TREE = np.array([[1, 0, 2], [2, 2, 3]])


def test_a_data_becomes_a_graph():
    weights = np.array([0.5, 1.5, 2.5])
    data = Data(TREE, 4, x=np.eye(4), token=np.arange(4), w=weights, y=np.array([7]))
    graph = Graph.from_pyg(
        data, features=["x", "token"], edge_features=["w"], graph_features=["y"], name="g"
    )
    assert children(graph) == [[], [], [1, 0], [2]] and graph.name == "g"
    assert graph.features["x"].dtype == np.float32 and graph.features["token"].dtype == np.int32
    np.testing.assert_array_equal(graph.features["x"], np.eye(4))
    assert graph.edge_features["w"].tolist() == [0.5, 1.5, 2.5]
    assert int(graph.graph_features["y"]) == 7
    assert children(from_pyg(data, to_children=True)) == [[2], [2], [3], []]


def test_a_graph_of_dgl_becomes_a_graph():
    made = Dgl(TREE, [4], {"x": np.eye(4)}, {"w": np.array([0.5, 1.5, 2.5])})
    graph = Graph.from_dgl(
        made, features=["x"], edge_features=["w"], graph_features={"y": 3, "v": [0.5, 1.0]}
    )
    assert children(graph) == [[], [], [1, 0], [2]]
    assert graph.edge_features["w"].tolist() == [0.5, 1.5, 2.5]
    assert int(graph.graph_features["y"]) == 3
    assert graph.graph_features["v"].tolist() == [0.5, 1.0]


@st.composite
def random_graphs(draw):
    """Graphs with features, among them ones without edges, and children that occur twice."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    graphs = []
    for _ in range(draw(st.integers(1, 4))):
        count = int(rng.integers(1, 7))
        lists = [rng.integers(0, v, rng.integers(0, 4)).tolist() if v else [] for v in range(count)]
        edges = sum(map(len, lists))
        graphs.append(
            Graph(
                lists,
                {"x": rng.normal(size=(count, 2)), "token": rng.integers(-1, 5, count)},
                {"w": rng.normal(size=edges)},
                graph_features={"y": int(rng.integers(5))},
            )
        )
    return graphs, rng


def joined(graphs, rng):
    """Return the edges of all graphs in a random order that keeps those of a vertex, and values."""
    starts = np.cumsum([0, *(g.num_vertices for g in graphs)])
    pairs = [
        (c + start, v + start)
        for g, start in zip(graphs, starts, strict=False)
        for v in range(g.num_vertices)
        for c in g.children(v)
    ]
    edges = np.array(pairs, np.int64).reshape(-1, 2).T
    order = np.argsort(rng.permutation(starts[-1])[edges[1]], kind="stable")
    w = np.concatenate([g.edge_features["w"] for g in graphs])[order]
    of = {name: np.concatenate([g.features[name] for g in graphs]) for name in ("x", "token")}
    y = np.array([int(g.graph_features["y"]) for g in graphs])
    return edges[:, order], starts, {**of, "w": w, "y": y}


def assert_equal(found, expected):
    assert children(found) == children(expected)
    for group in ("features", "edge_features", "graph_features"):
        one, other = getattr(found, group), getattr(expected, group)
        assert set(one) == set(other)
        for name, values in one.items():
            assert values.dtype == other[name].dtype
            np.testing.assert_array_equal(values, other[name])


@settings(max_examples=40)
@given(random_graphs())
def test_batches_become_their_graphs(drawn):
    graphs, rng = drawn
    edges, starts, values = joined(graphs, rng)
    batch = Data(edges, int(starts[-1]), starts, **values)
    named = {"features": ["x", "token"], "edge_features": ["w"]}
    for found, expected in zip(
        pyg_graphs(batch, **named, graph_features=["y"]), graphs, strict=True
    ):
        assert_equal(found, expected)
    fields = {name: values[name] for name in ("x", "token")}
    made = Dgl(edges, np.diff(starts), fields, {"w": values["w"]})
    for found, expected in zip(
        dgl_graphs(made, **named, graph_features={"y": values["y"]}), graphs, strict=True
    ):
        assert_equal(found, expected)


def test_graphs_of_a_batch_are_numbered():
    batch = Data(np.zeros((2, 0), np.int64), 3, np.array([0, 1, 3]))
    assert [g.name for g in pyg_graphs(batch, name="part")] == ["part 0", "part 1"]
    assert [g.name for g in pyg_graphs(batch)] == ["", ""]


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: from_pyg(3), GraphError, "edge_index is needed, not 3"),
        (
            lambda: from_pyg(Data(TREE, 4, np.array([0, 3, 4]))),
            GraphError,
            r"a batch of 2 graphs(.|\n)*pyg_graphs",
        ),
        (
            lambda: pyg_graphs(Data(TREE, 4, np.array([0, 3, 4]))),
            GraphError,
            "an edge leads from node 2 of graph 0 to node 3 of graph 1",
        ),
        (
            lambda: from_pyg(Data(TREE, 4, x=np.eye(4)), features=["y"]),
            FeatureError,
            'no attribute "y"; it has x',
        ),
        (
            lambda: from_pyg(Data(TREE, 4, x=np.eye(4)), edge_features=["x"]),
            FeatureError,
            r'"x" has shape \(4, 4\), where 3 rows are needed',
        ),
        (
            lambda: from_pyg(Data(np.array([[0, 1], [1, 0]]), 2, np.array([0, 2])), name="g"),
            GraphError,
            r'graph "g"(.|\n)*cycle',
        ),
        (
            lambda: from_pyg(SimpleNamespace(node_types=["a", "b"])),
            GraphError,
            r"several types of nodes(.|\n)*to_homogeneous",
        ),
        (
            lambda: from_pyg(Data(TREE, 4, x=np.eye(4)), features="x"),
            FeatureError,
            r"names of features are a list, not 'x'(.|\n)*\[\"x\"\]",
        ),
        (lambda: from_dgl(3), GraphError, "a graph of DGL is needed, not 3"),
        (
            lambda: from_dgl(
                SimpleNamespace(ntypes=["a", "b"], canonical_etypes=[("a", "r", "b")])
            ),
            GraphError,
            r"types of nodes a, b and of edges(.|\n)*to_homogeneous",
        ),
        (
            lambda: from_dgl(Dgl(TREE, [4]), features=["x"]),
            FeatureError,
            'ndata has no field "x"; it has none',
        ),
        (
            lambda: from_dgl(Dgl(TREE, [3, 1])),
            GraphError,
            r"a batch of 2 graphs(.|\n)*dgl_graphs",
        ),
    ],
)
def test_bad_graphs_are_refused(make, error, said):
    with pytest.raises(error, match=said):
        make()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    monkeypatch.setitem(__import__("sys").modules, "networkx", None)
    for write, package in ((to_pyg, "torch"), (to_dgl, "torch"), (to_networkx, "networkx")):
        with pytest.raises(ConfigError, match=f"needs {package}(.|\n)*pip install"):
            write(Graph([[]]))


@pytest.mark.parametrize("write", [to_pyg, to_dgl])
def test_what_edges_cannot_express_is_refused(write):
    pytest.importorskip("torch")
    pytest.importorskip({to_pyg: "torch_geometric", to_dgl: "dgl"}[write])
    with pytest.raises(GraphError, match="no place for an empty position of vertex 0"):
        write(Graph([[-1, 1], []]))
    with pytest.raises(GraphError, match="no place for the types"):
        write(Graph([[], []], types=["a", "b"]))


@settings(max_examples=20)
@given(random_graphs())
def test_pytorch_geometric_returns_the_graph(drawn):
    pytest.importorskip("torch_geometric")
    from torch_geometric.data import Batch

    graphs, _ = drawn
    named = {"features": ["x", "token"], "edge_features": ["w"], "graph_features": ["y"]}
    made = [to_pyg(graph) for graph in graphs]
    for data, expected in zip(made, graphs, strict=True):
        assert_equal(from_pyg(data, **named), expected)
    found = pyg_graphs(Batch.from_data_list(made), **named)
    for graph, expected in zip(found, graphs, strict=True):
        assert_equal(graph, expected)


def test_dgl_returns_the_graph():
    dgl = pytest.importorskip("dgl")
    graph = Graph([[], [], [1, 0], [2]], {"x": np.eye(4)}, {"w": [0.5, 1.5, 2.5]})
    named = {"features": ["x"], "edge_features": ["w"]}
    assert_equal(from_dgl(to_dgl(graph), **named), graph)
    for found in dgl_graphs(dgl.batch([to_dgl(graph)] * 2), **named):
        assert_equal(found, graph)


def test_networkx_returns_the_graph():
    graph = Graph(
        [[], [], [1, 0], [2]],
        {"x": np.eye(4), "token": [3, -1, 2, -1]},
        {"r": [1, -1, 0]},
        graph_features={"y": 2},
        name="g",
    )
    made = to_networkx(graph)
    assert isinstance(made, nx.DiGraph) and made.name == "g" and "token" not in made.nodes[1]
    named = {"features": ["x", "token"], "edge_features": ["r"], "graph_features": ["y"]}
    assert_equal(Graph.from_networkx(made, **named), graph)


def test_networkx_returns_types():
    graph = Graph(
        [[], [], [0, 1]],
        types=["scan", "filter", "scan"],
        features={"scan": {"rows": [3.0, 4.0]}, "filter": {"op": [5]}},
    )
    made = to_networkx(graph)
    assert made.nodes[2] == {"type": "scan", "rows": 4.0}
    found = Graph.from_networkx(
        made, types="type", type_features={"scan": ["rows"], "filter": ["op"]}
    )
    assert found.types == graph.types
    assert found.typed_features["scan"]["rows"].tolist() == [3.0, 4.0]
    assert found.typed_features["filter"]["op"].tolist() == [5]


def test_networkx_is_refused_what_it_cannot_express():
    with pytest.raises(GraphError, match="vertex 1 has child 0 twice"):
        to_networkx(Graph([[], [0, 0]]))
    with pytest.raises(GraphError, match="vertex 0 has an empty position"):
        to_networkx(Graph([[-1, 1], []]))


def test_graphs_of_tensors_run():
    data = Data(TREE, 4, x=np.ones((4, 3)))
    batch = cavs.batch([from_pyg(data, features=["x"])])
    assert batch.num_vertices == 4 and batch["x"].shape == (4, 3)
