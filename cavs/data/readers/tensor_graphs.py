"""Graphs of PyTorch Geometric and of DGL, in and out.

Nothing here imports PyTorch unless a graph is written: values are read by way of NumPy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavs.data.features import Array
from cavs.data.graph import Graph
from cavs.data.structure import graph_error, graph_label
from cavs.errors import ConfigError, FeatureError, GraphError, user_line

_PYG, _DGL = "torch_geometric", "dgl"


class _Tensors(NamedTuple):
    """A graph of another library, or several, one after the other.

    edges: [2, edges], sources and targets. vertex, edge, whole: features of vertices, edges and
    graphs, by name. vertices: the number of vertices of each graph.
    """

    edges: NDArray[np.int64]
    vertex: dict[str, Array]
    edge: dict[str, Array]
    whole: dict[str, Array]
    vertices: NDArray[np.int64]


def from_pyg(
    data: Any,
    *,
    features: Sequence[str] = (),
    edge_features: Sequence[str] = (),
    graph_features: Sequence[str] = (),
    to_children: bool = False,
    name: str = "",
) -> Graph:
    """Return the graph of a ``torch_geometric.data.Data``, a vertex for each node.

    The source of an edge is the child, its target the parent, as messages flow;
    ``to_children=True`` takes edges from parent to child. The children of a vertex keep the order
    of their edges. ``features`` names attributes with a row for each node, such as ``["x"]``,
    ``edge_features`` those with a row for each edge, ``graph_features`` those with one row, such as
    ``["y"]``. Values are copied to the host. FeatureError for an attribute that is missing or has
    other rows, GraphError for a ``Batch``, a ``HeteroData`` and cycles.
    """
    found = _read_pyg(data, features, edge_features, graph_features, name)
    return _only(found, "pyg_graphs", to_children, name)


def pyg_graphs(
    batch: Any,
    *,
    features: Sequence[str] = (),
    edge_features: Sequence[str] = (),
    graph_features: Sequence[str] = (),
    to_children: bool = False,
    name: str = "",
) -> list[Graph]:
    """Return a graph for each of a ``torch_geometric.data.Batch``; see `from_pyg`.

    Attributes of graphs have a row for each. ``name``: to which the number of a graph is added.
    """
    found = _read_pyg(batch, features, edge_features, graph_features, name)
    return list(_split(found, to_children, name))


def from_dgl(
    graph: Any,
    *,
    features: Sequence[str] = (),
    edge_features: Sequence[str] = (),
    graph_features: Mapping[str, Any] | None = None,
    to_children: bool = False,
    name: str = "",
) -> Graph:
    """Return the graph of a ``dgl.DGLGraph``, a vertex for each node.

    Edges and children are as `from_pyg` takes them, in the order of the ids of edges. ``features``
    names fields of ``graph.ndata``, ``edge_features`` fields of ``graph.edata``; DGL keeps no
    values of graphs, so ``graph_features`` has values by name. FeatureError for a field that is
    missing, GraphError for a batch, several types of nodes or edges, and cycles.
    """
    whole = {key: np.asarray(_array(x, key))[None] for key, x in (graph_features or {}).items()}
    found = _read_dgl(graph, features, edge_features, whole, name)
    return _only(found, "dgl_graphs", to_children, name)


def dgl_graphs(
    batch: Any,
    *,
    features: Sequence[str] = (),
    edge_features: Sequence[str] = (),
    graph_features: Mapping[str, Any] | None = None,
    to_children: bool = False,
    name: str = "",
) -> list[Graph]:
    """Return a graph for each of a batch that ``dgl.batch`` made; see `from_dgl`.

    ``graph_features``: arrays with a row for each graph, by name. ``name``: to which the number of
    a graph is added.
    """
    whole = {key: _array(x, key) for key, x in (graph_features or {}).items()}
    return list(_split(_read_dgl(batch, features, edge_features, whole, name), to_children, name))


def to_pyg(graph: Graph) -> Any:
    """Return a ``torch_geometric.data.Data`` of a graph: `from_pyg` reads it.

    Features become attributes of their names, with the edges sorted by parent; those of the graph
    get one row. ConfigError without PyTorch Geometric, GraphError for types of vertices and empty
    positions, which it cannot express.
    """
    torch, pyg = _imported("torch", "to_pyg"), _imported(_PYG + ".data", "to_pyg")
    edges = torch.from_numpy(_edges_of(graph, "to_pyg"))
    data = pyg.Data(edge_index=edges, num_nodes=graph.num_vertices)
    for rows in (graph.features, graph.edge_features):
        for key, x in rows.items():
            data[key] = torch.from_numpy(_written(x))
    for key, x in graph.graph_features.items():
        data[key] = torch.from_numpy(_written(np.asarray(x)[None]))
    return data


def to_dgl(graph: Graph) -> Any:
    """Return a ``dgl.DGLGraph`` of a graph: `from_dgl` reads it.

    Features become fields of ``ndata`` and ``edata``, with the edges sorted by parent; DGL has no
    place for those of the graph. Errors are those of `to_pyg`.
    """
    torch, dgl = _imported("torch", "to_dgl"), _imported(_DGL, "to_dgl")
    children, parents = torch.from_numpy(_edges_of(graph, "to_dgl"))
    made = dgl.graph((children, parents), num_nodes=graph.num_vertices)
    for fields, rows in ((made.ndata, graph.features), (made.edata, graph.edge_features)):
        fields.update({key: torch.from_numpy(_written(x)) for key, x in rows.items()})
    return made


def _written(values: Array) -> Array:
    """Return a copy that PyTorch may own; indices as int64, which it takes for indices."""
    return np.array(values, np.int64 if values.dtype.kind == "i" else values.dtype)


def _imported(module: str, caller: str) -> Any:
    """Import a module; ConfigError without it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ConfigError(
            f"{caller} needs {package}: {error}",
            where=user_line(),
            hint=f"pip install {package.replace('_', '-')}",
        ) from None


def _edges_of(graph: Graph, caller: str) -> NDArray[np.int64]:
    """Return children and parents, int64 [2, edges]; GraphError where edges are not enough."""
    if graph.types is not None:
        raise graph_error(graph.name, f"{caller} has no place for the types of its vertices")
    children = [(v, child) for v in range(graph.num_vertices) for child in graph.children(v)]
    for v, child in children:
        if child < 0:
            raise graph_error(
                graph.name, f"{caller} has no place for an empty position of vertex {v}", v
            )
    pairs = np.array(children, np.int64).reshape(-1, 2)
    return pairs.T[::-1].copy()


def _array(value: Any, name: str) -> Array:
    """Return a tensor as an array of NumPy; FeatureError if that is impossible."""
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu().numpy()
        found = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FeatureError(
            f'"{name}" has no form in NumPy: {error}',
            where=user_line(),
            hint="tensors of float16, float32, float64 and integers have one",
        ) from None
    return found


def _chosen(values: Any, names: Iterable[str], lacks: str) -> dict[str, Array]:
    """Return values by name as arrays; FeatureError for one that is missing, or no list of names.

    lacks: the words before a missing name.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise FeatureError(
            f"names of features are a list, not {names!r:.80}",
            where=user_line(),
            hint='features=["x"] takes one value of every node',
        )
    found = {}
    for key in names:
        if key not in values:
            raise FeatureError(
                f'{lacks} "{key}"; it has {", ".join(sorted(values.keys())) or "none"}',
                where=user_line(),
                hint="features, edge_features and graph_features are lists of names: those of "
                "values of nodes, edges and graphs",
            )
        found[key] = _array(values[key], key)
    return found


def _read_pyg(
    data: Any,
    features: Iterable[str],
    edge_features: Iterable[str],
    graph_features: Iterable[str],
    name: str,
) -> _Tensors:
    if hasattr(data, "node_types"):
        raise graph_error(
            name,
            f"{type(data).__name__} has several types of nodes",
            hint="data.to_homogeneous() has one; Graph(children, types=...) takes their types",
        )
    if getattr(data, "edge_index", None) is None:
        raise graph_error(
            name,
            f"a Data of PyTorch Geometric with edge_index is needed, not {data!r:.80}",
            hint="Graph.from_edge_index(num_vertices, edge_index) takes the tensor alone",
        )
    ptr = getattr(data, "ptr", None)
    vertices = np.array([data.num_nodes]) if ptr is None else np.diff(_array(ptr, "ptr"))

    edges = _array(data.edge_index, "edge_index")
    lacks = f"{graph_label(name)} has no attribute"
    groups = (features, edge_features, graph_features)
    of_vertices, of_edges, whole = (_chosen(data, names, lacks) for names in groups)
    return _Tensors(edges, of_vertices, of_edges, whole, vertices)


def _read_dgl(
    graph: Any,
    features: Iterable[str],
    edge_features: Iterable[str],
    whole: dict[str, Array],
    name: str,
) -> _Tensors:
    if not hasattr(graph, "canonical_etypes"):
        raise graph_error(
            name,
            f"a graph of DGL is needed, not {graph!r:.80}",
            hint="Graph(children) takes lists, Graph.from_edges pairs",
        )
    if len(graph.canonical_etypes) != 1 or len(graph.ntypes) != 1:
        raise graph_error(
            name,
            f"types of nodes {', '.join(graph.ntypes)} and of edges "
            f"{', '.join(map(str, graph.canonical_etypes))}; one of each is needed",
            hint="dgl.to_homogeneous(graph) has one; Graph(children, types=...) takes types of "
            "vertices",
        )

    edges = np.stack([_array(ends, "edges") for ends in graph.edges(order="eid")])
    label = graph_label(name)
    of_vertices = _chosen(graph.ndata, features, f"{label}: ndata has no field")
    of_edges = _chosen(graph.edata, edge_features, f"{label}: edata has no field")
    return _Tensors(edges, of_vertices, of_edges, whole, _array(graph.batch_num_nodes(), "nodes"))


def _only(found: _Tensors, several: str, to_children: bool, name: str) -> Graph:
    """Return the only graph; GraphError for a batch of several."""
    if len(found.vertices) != 1:
        raise graph_error(
            name,
            f"a batch of {len(found.vertices)} graphs",
            hint=f"cavs.data.{several}(batch) returns a graph for each",
        )
    (graph,) = _split(found, to_children, name, numbered=False)
    return graph


def _split(
    found: _Tensors, to_children: bool, name: str, *, numbered: bool = True
) -> Iterator[Graph]:
    """Iterate over the graphs; FeatureError for other numbers of rows."""
    count, edges = len(found.vertices), found.edges
    starts = np.concatenate([[0], np.cumsum(found.vertices)])
    of_edge = np.searchsorted(starts, edges, "right") - 1 if edges.size else edges
    crossing = np.flatnonzero(of_edge[0] != of_edge[1])
    if len(crossing):
        source, target = edges[:, crossing[0]]
        raise GraphError(
            f"{graph_label(name)}: an edge leads from node {source} of graph "
            f"{of_edge[0, crossing[0]]} to node {target} of graph {of_edge[1, crossing[0]]}",
            hint="edges stay inside one graph of a batch",
        )
    for group, rows in (
        (found.vertex, starts[-1]),
        (found.edge, edges.shape[1]),
        (found.whole, count),
    ):
        for key, x in group.items():
            if x.ndim == 0 or len(x) != rows:
                raise FeatureError(
                    f'{graph_label(name)}: "{key}" has shape {x.shape}, where {rows} rows are '
                    "needed",
                    where=user_line(),
                    hint="features have a row for each node, edge_features for each edge, "
                    "graph_features for each graph",
                )
    order = np.argsort(of_edge[0], kind="stable")
    ends = np.searchsorted(of_edge[0][order], np.arange(count + 1))
    for i in range(count):
        vertices, own = slice(starts[i], starts[i + 1]), order[ends[i] : ends[i + 1]]
        pairs = edges[:, own] - starts[i]
        yield Graph.from_edge_index(
            int(found.vertices[i]),
            pairs[::-1] if to_children else pairs,
            features={key: x[vertices] for key, x in found.vertex.items()},
            edge_features={key: x[own] for key, x in found.edge.items()},
            graph_features={key: x[i] for key, x in found.whole.items()},
            name=f"{name} {i}".strip() if numbered and name else name,
        )
