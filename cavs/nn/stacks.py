"""Cells on top of each other, and cells of both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cavs import ops
from cavs.errors import TraceError, user_line
from cavs.frontend.batch import SymbolicGraph
from cavs.frontend.parameter import Module
from cavs.frontend.values import Values
from cavs.frontend.vertex import VertexFunction
from cavs.ir import Node
from cavs.ops.random import check_rate

Layer = VertexFunction | Module


class Bidirectional(Module):
    """Two cells side by side: ``forth`` runs from the leaves up, ``back`` from the roots down.

    Both read the same inputs; a call returns what they push, concatenated, first that of ``forth``.
    Initial and final states are pairs in that order.
    """

    def __init__(self, forth: VertexFunction, back: VertexFunction) -> None:
        self.forth, self.back = forth, back

    def __call__(
        self, graph: SymbolicGraph, /, *, initial: Sequence[Any] | None = None, **inputs: Any
    ) -> Node:
        """Return rows of both cells side by side, one per vertex."""
        both = zip(self._directions(graph), _each(initial, 2, self), strict=True)
        return ops.concat([cell(g, initial=start, **inputs) for (cell, g), start in both])

    def final(
        self, graph: SymbolicGraph, /, *, initial: Sequence[Any] | None = None, **inputs: Any
    ) -> list[Any]:
        """Return the states with which the cells end, one row per graph, of each cell."""
        both = zip(self._directions(graph), _each(initial, 2, self), strict=True)
        return [cell.final(g, initial=start, **inputs) for (cell, g), start in both]

    def _directions(self, graph: SymbolicGraph) -> list[tuple[VertexFunction, SymbolicGraph]]:
        return [(self.forth, graph), (self.back, graph.reversed())]


class Stacked(Module):
    """Cells, or `Bidirectional` pairs, on top of each other: ``x`` of each is the output below.

    dropout: rate of dropout between two layers. Other inputs than ``x`` go to all of them. Initial
    and final states are lists, one entry per layer.
    """

    def __init__(self, layers: Sequence[Layer], *, dropout: float = 0.0) -> None:
        check_rate(dropout)
        if not isinstance(layers, list | tuple) or not layers:
            raise TraceError(
                f"a stack of {layers!r:.60}",
                where=user_line(),
                hint="give a list of cells: nn.Stacked([nn.LSTM(50, 100), nn.LSTM(100, 100)])",
            )
        self.layers, self.dropout = list(layers), dropout

    def __call__(
        self,
        graph: SymbolicGraph,
        /,
        x: Any,
        *,
        initial: Sequence[Any] | None = None,
        **inputs: Any,
    ) -> Node:
        """Return what the highest layer pushes, one row per vertex."""
        for i, (layer, start) in enumerate(self._with_initial(initial)):
            x = layer(graph, x=self._dropped(i, x), initial=start, **inputs)
        return _one_value(x, self)

    def final(
        self,
        graph: SymbolicGraph,
        /,
        x: Any,
        *,
        initial: Sequence[Any] | None = None,
        **inputs: Any,
    ) -> list[Any]:
        """Return the states with which each layer ends, one row per graph."""
        found = []
        for i, (layer, start) in enumerate(self._with_initial(initial)):
            x = self._dropped(i, x)
            found.append(layer.final(graph, x=x, initial=start, **inputs))
            x = layer(graph, x=x, initial=start, **inputs)
        return found

    def _with_initial(self, initial: Sequence[Any] | None) -> list[tuple[Any, Any]]:
        return list(zip(self.layers, _each(initial, len(self.layers), self), strict=True))

    def _dropped(self, number: int, x: Any) -> Any:
        return ops.dropout(_one_value(x, self), self.dropout) if number else x


def _each(initial: Sequence[Any] | None, count: int, of: Module) -> list[Any]:
    """Return an initial state for each of ``count`` cells; TraceError for another number."""
    if initial is None:
        return [None] * count
    if not isinstance(initial, list | tuple) or len(initial) != count:
        name = type(of).__name__
        found = f"{len(initial)}" if isinstance(initial, list | tuple) else f"{initial!r:.60}"
        raise TraceError(
            f"{name} has {count} cells, but initial states of {found}",
            where=user_line(),
            hint=f"give a list of {count}, such as {name}.final returns; None stands for zeros",
        )
    return list(initial)


def _one_value(pushed: Any, of: Module) -> Any:
    if isinstance(pushed, Values):
        raise TraceError(
            f"a layer of {type(of).__name__} pushes several values, and the next reads one, x",
            where=user_line(),
            hint="let the cell push one value, v.push(h); its states are read by final()",
        )
    return pushed
