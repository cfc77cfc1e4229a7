"""Cells on top of each other, and cells of both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from cavs import ops
from cavs.config import require
from cavs.errors import TraceError, user_line
from cavs.frontend.batch import SymbolicGraph
from cavs.frontend.parameter import Module
from cavs.frontend.values import Values
from cavs.frontend.vertex import VertexFunction
from cavs.ops.random import check_rate


class Layer(Protocol):
    """A cell, or a module of cells."""

    def with_final(self, graph: SymbolicGraph, /, **inputs: Any) -> tuple[Any, Any]:
        """See `VertexFunction`."""


class _Composed(Module):
    """Base of modules of cells."""

    def __call__(
        self, graph: SymbolicGraph, /, *, initial: Sequence[Any] | None = None, **inputs: Any
    ) -> Any:
        """Return what `with_final` returns, without the final states."""
        return self.with_final(graph, initial=initial, **inputs)[0]

    def with_final(
        self, graph: SymbolicGraph, /, *, initial: Sequence[Any] | None = None, **inputs: Any
    ) -> tuple[Any, list[Any]]:
        """Return one row per vertex, and the final states of each cell, one row per graph.

        initial: states that each begins from, a list as that of final states; None for zeros.
        """
        raise NotImplementedError


class Bidirectional(_Composed):
    """Two cells side by side: ``forth`` runs from the leaves up, ``back`` from the roots down.

    Both read the same inputs; a call returns what they push, concatenated, first that of ``forth``.
    """

    def __init__(self, forth: VertexFunction, back: VertexFunction) -> None:
        self.forth, self.back = forth, back

    def with_final(
        self, graph: SymbolicGraph, /, *, initial: Sequence[Any] | None = None, **inputs: Any
    ) -> tuple[Any, list[Any]]:
        first, second = _each(initial, 2, self)
        up, end = self.forth.with_final(graph, initial=first, **inputs)
        down, other_end = self.back.with_final(graph.reversed(), initial=second, **inputs)
        return ops.concat([_one(up, self), _one(down, self)]), [end, other_end]


class Stacked(_Composed):
    """Layers on top of each other, cells or `Bidirectional` pairs: each reads the one below as x.

    dropout: rate of dropout between two layers. Inputs other than ``x`` go to all layers.
    """

    def __init__(self, layers: Sequence[Layer], *, dropout: float = 0.0) -> None:
        check_rate(dropout)
        is_list = isinstance(layers, list | tuple) and len(layers) > 0
        require(is_list, "layers", layers, "a list of cells, one at least")
        self.layers, self.dropout = list(layers), dropout

    def with_final(
        self, graph: SymbolicGraph, /, *, initial: Sequence[Any] | None = None, **inputs: Any
    ) -> tuple[Any, list[Any]]:
        ends: list[Any] = []
        pushed: Any = None
        starts = _each(initial, len(self.layers), self)
        for layer, start in zip(self.layers, starts, strict=True):
            if ends:
                inputs["x"] = ops.dropout(_one(pushed, self), self.dropout)
            pushed, end = layer.with_final(graph, initial=start, **inputs)
            ends.append(end)
        return pushed, ends


def _each(initial: Sequence[Any] | None, count: int, of: Module) -> list[Any]:
    """Return an initial state for each of ``count`` cells; TraceError for another number."""
    if initial is None:
        return [None] * count
    if isinstance(initial, list | tuple) and len(initial) == count:
        return list(initial)
    name = type(of).__name__
    found = f"a list of {len(initial)}" if isinstance(initial, list | tuple) else f"{initial!r:.60}"
    raise TraceError(
        f"{name} has {count} cells, the initial states are {found}",
        where=user_line(),
        hint=f"give a list of {count}, such as {name}.with_final returns; None stands for zeros",
    )


def _one(pushed: Any, of: Module) -> Any:
    if isinstance(pushed, Values):
        names = ", ".join(name for name, _ in pushed._items())
        raise TraceError(
            f"a cell of {type(of).__name__} pushes {names}, which are several values",
            where=user_line(),
            hint="let it push one value, v.push(h); with_final() returns its states",
        )
    return pushed
