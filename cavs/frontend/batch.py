"""The symbolic batch that Model.loss is called with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from cavs.data.vertex_types import feature_name
from cavs.errors import FeatureError, NoAttributeError, TraceError, user_line
from cavs.frontend.typed import TypeFeatures
from cavs.ir import EDGE, FLOAT, GRAPH, INT, VERTEX, Node
from cavs.ops.leaves import feature

_DOMAIN = {"vertex": VERTEX, "edge": EDGE, "graph": GRAPH}


@dataclass(frozen=True)
class Feature:
    """Declared type of a feature.

    where: "vertex", "edge" or "graph"; dtype: "int" or "float"; shape: of one row; optional: an
    integer feature that may be -1, absent; type: of the vertices that have it, "" for all.
    """

    where: str
    dtype: str
    shape: tuple[int, ...] = ()
    optional: bool = False
    type: str = ""


Schema = Mapping[str, Feature]


def _lacks(what: str, name: str, hint: str) -> NoReturn:
    """Raise AttributeError, with the cure where a user may have written ``name``."""
    if name.startswith("_"):
        raise AttributeError(name)
    raise NoAttributeError(
        f"{what} has no {name!r} in a model, which is traced once for all batches",
        where=user_line(),
        hint=hint,
    )


class _Uncounted:
    """Base of objects without a length: a trace holds for batches of any size."""

    _called = ""

    def _refused(self) -> NoReturn:
        raise TraceError(
            f"{self._called} has no length and cannot be iterated in a model, which is traced once "
            "for all batches",
            where=user_line(),
            hint="ops.mean_rows and ops.mean_graph divide by the number of rows; batch[name] is "
            "the feature of every vertex, edge or graph at once",
        )

    __len__ = __iter__ = _refused

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class SymbolicGraph(_Uncounted):
    """Stands for the input graphs of a batch."""

    _called = "batch.graph"

    batch: SymbolicBatch
    top_down: bool = False

    def reversed(self) -> SymbolicGraph:
        """Return the graphs with every edge reversed.

        A cell that is called with them gathers from the parents, and runs from the roots down.
        """
        return self.batch.graph if self.top_down else self.batch.reversed_graph

    def __getattr__(self, name: str) -> Any:
        _lacks(
            "batch.graph",
            name,
            "batch.graph.reversed() runs a cell top-down, ops.sum_roots(h) reads the roots; give "
            "everything else that the model must know of the graphs as features",
        )


class SymbolicBatch(_Uncounted):
    """Stands for a batch: ``batch["token"]`` is a feature, ``batch.graph`` the structure.

    edges: True if the batch that it is traced for has any.
    """

    _called = "batch"

    def __init__(self, schema: Schema, edges: bool = True) -> None:
        self.schema, self.edges = schema, edges
        self._of_types: dict[str, dict[str, str]] = {}
        for flat, declared in schema.items():
            if declared.type:
                name = flat.removeprefix(feature_name(declared.type, ""))
                self._of_types.setdefault(declared.type, {})[name] = flat
        self.graph = SymbolicGraph(self)
        self.reversed_graph = SymbolicGraph(self, top_down=True)

    def __getattr__(self, name: str) -> Any:
        _lacks(
            "batch",
            name,
            'it has batch.graph and features such as batch["token"]; ops.mean_rows and '
            "ops.mean_graph divide by the number of rows",
        )

    def __getitem__(self, name: str) -> Any:
        if name in self._of_types:
            nodes = {
                key: partial(self._feature, flat) for key, flat in self._of_types[name].items()
            }
            return TypeFeatures(name, nodes)
        return self._feature(name)

    def _feature(self, name: str) -> Node:
        declared = self.schema.get(name)
        if declared is None:
            known = ", ".join(sorted(self.schema)) or "none"
            raise FeatureError(
                f"no feature {name!r} in the data; there are {known}",
                where=user_line(),
                hint="correct the name, or give it to cavs.Graph by features=, edge_features= or "
                "graph_features="
                if self.edges
                else "correct the name, or give it to cavs.Graph; this batch has no edge, so a "
                f"feature of edges needs a type: edge_features={{{name!r}: np.zeros(0, np.int32)}}",
            )
        if 0 in declared.shape:
            raise FeatureError(
                f"feature {name!r} has rows of shape {list(declared.shape)}: they are empty",
                where=user_line(),
                hint="give it at least one number per row, or leave it out of the model",
            )
        dtype = INT if declared.dtype == "int" else FLOAT
        domain = _DOMAIN[declared.where].of_type(declared.type or None)
        return feature(name, domain, dtype, declared.shape, declared.optional)
