"""Base of the batches that the engine runs: their schedules, each made once."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from cavs import _engine
from cavs.data.structure import Indices

_NO_LINKS: Mapping[str, Any] = MappingProxyType({})
_NUMBERS = itertools.count(2)  # compilers of programs treat 0 and 1 as constants
_BATCHES: dict[int, _Reference] = {}  # lighter than a WeakValueDictionary, for batches of one graph


class _Reference(ref["EngineBatch"]):
    """A weak reference to the batch with a number."""

    __slots__ = ("number",)
    number: int


def _forget(reference: _Reference) -> None:
    _BATCHES.pop(reference.number, None)


def batch_of(number: int) -> EngineBatch | None:
    """Return the batch with ``number``; None if there is none any more."""
    found = _BATCHES.get(number)
    return None if found is None else found()


class EngineBatch(ABC):
    """Vertices that run together, with a schedule for each way to run them.

    topology: of these vertices. merged_from: the batch whose distinct vertices they are, and for
    each of its vertices the one that represents it; None if they are those of a batch. number: of
    the batch in this process, see `batch_of`. sizes: numbers of vertices, edges and graphs.
    """

    topology: _engine.GraphBatch
    number: int
    sizes: tuple[int, int, int]

    def __init__(
        self,
        topology: _engine.GraphBatch,
        merged_from: tuple[_engine.GraphBatch, Indices] | None = None,
    ) -> None:
        self.topology, self._merged_from = topology, merged_from
        self._schedules: dict[Any, _engine.Schedule] = {}
        self.sizes = topology.num_vertices, topology.num_edges, topology.num_graphs
        self._enumerate()

    def _enumerate(self) -> None:
        self.number = number = next(_NUMBERS)
        _BATCHES[number] = reference = _Reference(self, _forget)
        reference.number = number

    @property
    def structures(self) -> tuple[str, ...] | None:
        """The names of the structures of samples; None in a batch of graphs."""
        return None

    @property
    def links(self) -> Mapping[str, Any]:
        """The links between the structures of samples, by name."""
        return _NO_LINKS

    def has_edges(self, name: str) -> bool:
        """True if a graph that has the feature ``name`` has an edge."""
        return int(self.topology.num_edges) > 0

    def has_vertices(self, name: str) -> bool:
        """True if the graphs that a feature ``name`` belongs to have a vertex."""
        return True

    def has_pairs(self, name: str) -> bool:
        """True if a link that has the feature ``name`` has a pair."""
        return False

    @abstractmethod
    def presence(
        self, optional: tuple[str, ...], types: tuple[str, ...] = ()
    ) -> NDArray[np.uint32] | None:
        """Return uint32 [vertices], the presence mask of each, see `schedule`; None for one kind.

        FeatureError for a name that is no int feature of vertices, or for too many of them;
        GraphError for a vertex of another type.
        """

    def schedule(
        self,
        optional: tuple[str, ...] = (),
        by_number: bool = True,
        types: tuple[str, ...] = (),
        *,
        policy: _engine.SchedulingPolicy | None = None,
    ) -> _engine.Schedule:
        """Return the engine's schedule, cached for the next call with the same arguments.

        ``optional``: int vertex features that may be absent; bit i of a vertex's presence mask is
        set where ``optional[i]`` is present (>= 0). by_number: order the vertices of a task by
        their number among the children of their parent, as the CPU engine reads them; otherwise
        siblings are neighbours. types: of vertices; the number of the type of a vertex among them
        comes before the presence bits. policy: chooses the kind of each task; None: level by level.
        FeatureError and GraphError as for `presence`.
        """
        key = optional, by_number, types, policy
        found = self._schedules.get(key)
        if found is None:
            masks = self.presence(optional, types)
            found = _engine.make_schedule(
                self.topology, masks, self._merged_from, by_number, policy=policy
            )
            self._schedules[key] = found
        return found
