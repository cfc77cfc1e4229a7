"""Types of the arguments and results of a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy.typing as npt

from cavs import _cuda, _engine

Array = npt.NDArray[Any]
Executor = _engine.Executor | _cuda.Executor
Inputs = tuple[_engine.Schedule, list[Array], list[Array]]  # with float and integer features


class BatchLike(Protocol):
    """The parts of a batch that a session uses; cavs.data.GraphBatch implements it."""

    @property
    def num_graphs(self) -> int:
        """Number of graphs in the batch."""
        ...

    @property
    def type_names(self) -> tuple[str, ...] | None:
        """The types of vertices that occur; None in a batch without types."""
        ...

    @property
    def structures(self) -> tuple[str, ...] | None:
        """The names of the structures of samples; None in a batch of graphs."""
        ...

    @property
    def links(self) -> Mapping[str, Any]:
        """The links between structures by name, see cavs.data.sample_batch.LinkType."""
        ...

    @property
    def topology(self) -> _engine.GraphBatch:
        """The engine's graphs; ``vertex_offsets`` and ``edge_offsets`` say where each starts."""
        ...

    def graph_label(self, index: int) -> str:
        """Return the name of a graph for error messages."""
        ...

    def has_edges(self, name: str) -> bool:
        """True if a graph that has the feature ``name`` has an edge."""
        ...

    def has_vertices(self, name: str) -> bool:
        """True if the graphs that a feature ``name`` belongs to have a vertex."""
        ...

    def has_pairs(self, name: str) -> bool:
        """True if a link that has the feature ``name`` has a pair."""
        ...

    def feature_schema(self) -> Mapping[str, Any]:
        """Return the type of every feature by name."""
        ...

    def schedule(
        self,
        optional: tuple[str, ...] = (),
        by_number: bool = True,
        types: tuple[str, ...] = (),
        *,
        policy: _engine.SchedulingPolicy | None = None,
    ) -> _engine.Schedule:
        """Return the engine's schedule for the features that may be absent."""
        ...

    def merged(self, names: Any, child_numbers: int = 0) -> Any:
        """Return the vertices that are distinct in the features ``names``, see cavs.data.merge.

        Samples of several structures take a `cavs.data.merge_samples.MergedStructure` for each in
        which equal vertices are merged.
        """
        ...

    def __getitem__(self, name: str) -> Array: ...


@dataclass(frozen=True)
class StepResult:
    """The loss of a batch before the update; grad_norm: global L2 norm before clipping.

    aux: values that ``Model.loss`` returned with the loss, by name, with rows in the order of the
    batch.
    """

    loss: float
    grad_norm: float
    aux: Mapping[str, Array] = field(default_factory=dict)


class PendingStep:
    """A step that may still run on a device: reading a result waits for it, not for later steps.

    Reading raises DeviceError if the device has failed meanwhile. aux: see `StepResult`; a step
    that has any ends before ``launch`` returns, because the next one reuses their memory.
    """

    def __init__(self, step: _cuda.Step, aux: Mapping[str, Array] | None = None) -> None:
        self.step, self.aux = step, aux or {}

    @cached_property
    def _outcome(self) -> tuple[float, float, bool]:
        return self.step.wait()

    @property
    def loss(self) -> float:
        """The loss of the batch before the update."""
        return self._outcome[0]

    @property
    def grad_norm(self) -> float:
        """The global L2 norm of the gradient before clipping."""
        return self._outcome[1]

    @property
    def applied(self) -> bool:
        """True if parameters were updated: loss and norm are finite, here and in earlier steps."""
        return self._outcome[2]


@dataclass(frozen=True)
class EvalResult:
    """The loss (NaN without one) and outputs by name, with rows in the order of the batch.

    weight: the weight of this loss in a mean over batches. It is the number of terms (ignored
    labels are none) of a loss that is a mean over terms, as the losses of cavs.ops are unless
    reduced otherwise, and the number of graphs for any other loss. aux: values that ``Model.loss``
    returned with the loss.
    """

    loss: float
    outputs: dict[str, Array]
    weight: float
    aux: dict[str, Array] = field(default_factory=dict)
