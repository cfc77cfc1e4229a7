"""What a session takes and gives, and the ways in which it has compiled its model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy.typing as npt

from cavs import _cuda, _engine
from cavs.compiler.memory import Shape
from cavs.compiler.pipeline import Compiled, Passes
from cavs.frontend.batch import Feature
from cavs.ir import Graph

Array = npt.NDArray[Any]
Executor = _engine.Executor | _cuda.Executor


class BatchLike(Protocol):
    """What the session needs of a batch; cavs.data.GraphBatch has it."""

    @property
    def num_graphs(self) -> int:
        """Graphs in the batch."""
        ...

    @property
    def topology(self) -> _engine.GraphBatch:
        """The engine's graphs; ``vertex_offsets`` and ``edge_offsets`` say where each starts."""
        ...

    def graph_label(self, index: int) -> str:
        """How errors call a graph of the batch."""
        ...

    def feature_schema(self) -> Mapping[str, Any]:
        """Type of every feature by name."""
        ...

    def schedule(self, optional: tuple[str, ...] = (), by_number: bool = True) -> _engine.Schedule:
        """The engine's schedule for the features that may be absent."""
        ...

    def merged(self, names: tuple[str, ...], child_numbers: int = 0) -> Any:
        """The distinct vertices as far as the features ``names`` tell, see cavs.data.merge."""
        ...

    def __getitem__(self, name: str) -> Array: ...


@dataclass(frozen=True)
class StepResult:
    """loss of the batch before the update; grad_norm: global L2 norm before clipping."""

    loss: float
    grad_norm: float


class PendingStep:
    """A step that a device may still be at: what is read waits for it, not for steps after it.

    DeviceError, when it is read, if the device has failed meanwhile.
    """

    def __init__(self, step: _cuda.Step) -> None:
        self.step = step

    @cached_property
    def _come_to(self) -> tuple[float, float, bool]:
        return self.step.wait()

    @property
    def loss(self) -> float:
        """Of the batch, before the update."""
        return self._come_to[0]

    @property
    def grad_norm(self) -> float:
        """Global L2 norm, before clipping."""
        return self._come_to[1]

    @property
    def applied(self) -> bool:
        """Whether it has updated parameters: loss and norm are finite, as of the step before."""
        return self._come_to[2]


@dataclass(frozen=True)
class EvalResult:
    """loss (NaN without one); outputs by name, rows in the order of the batch.

    weight: what the loss counts in a mean over batches. A loss that is a mean over terms, as those
    of cavs.ops are unless reduced otherwise, counts its terms (ignored labels are none); any other
    loss counts the graphs of its batch.
    """

    loss: float
    outputs: dict[str, Array]
    weight: float


@dataclass
class Variant:
    """One way the model is compiled: for training or for inference, with or without its loss, for
    batches as they are or for their distinct vertices (``merging``), with LSTMs over chains as a
    whole (``recurrent``)."""

    training: bool
    with_loss: bool
    merging: bool
    recurrent: bool = False
    schema: dict[str, Feature] = field(default_factory=dict)
    last_schema: Mapping[str, Any] = field(default_factory=dict)  # of the last batch that fitted
    without_edges: bool = False  # traced for a batch that had none: types of theirs are a guess
    traced: Graph | None = None
    optional: tuple[str, ...] = ()
    distinguishing: tuple[str, ...] | None = None  # by which vertices differ; None: not merged
    child_numbers: int | None = None  # products at the first so many children; None: not decided
    kinds: tuple[int, ...] = ()
    shared: bool | None = None  # edges outnumber vertices, in the first batch; None before it
    shape: Shape | None = None  # of the graphs of the first batch with edges
    absent: frozenset[str] = frozenset()  # features known to be absent somewhere, before any batch
    merged_features: frozenset[str] = frozenset()  # features whose absence makes no kind of vertex
    recompiles: int = 0  # how often new kinds came after it was compiled
    pending_kinds: tuple[int, ...] = ()  # kinds of load_state_dict, until the first batch
    compiled: Compiled | None = None
    executor: Executor | None = None
    frozen: frozenset[str] = frozenset()  # parameters that it is compiled without gradients of
    inherited: bool = False  # from another session, whose batches it may not meet for long

    @property
    def is_known(self) -> bool:
        """Whether a batch has decided anything, here or where it comes from."""
        return self.traced is not None or self.inherited

    def to_json(self) -> dict[str, Any]:
        """For what it is compiled, as JSON values."""
        return {
            "training": self.training,
            "with_loss": self.with_loss,
            "merging": self.merging,
            "recurrent": self.recurrent,
            "child_numbers": self.child_numbers,
            "absent": sorted(self.absent | {n for n, f in self.schema.items() if f.optional}),
            "merged_features": sorted(self.merged_features),
            "recompiles": self.recompiles,
            "kinds": [int(k) for k in self.kinds or self.pending_kinds],
            "shared": self.shared,
            "shape": self.shape,
        }

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> Variant:
        """One that compiles for the same; KeyError, TypeError or ValueError for anything else."""
        numbers = entry["child_numbers"]
        return Variant(
            bool(entry["training"]),
            bool(entry["with_loss"]),
            bool(entry["merging"]),
            bool(entry.get("recurrent", False)),
            child_numbers=None if numbers is None else int(numbers),
            absent=frozenset(str(n) for n in entry["absent"]),
            merged_features=frozenset(str(n) for n in entry.get("merged_features", ())),
            recompiles=int(entry.get("recompiles", 0)),
            pending_kinds=tuple(sorted(int(k) for k in entry["kinds"])),
            shared=entry.get("shared"),
            shape=None if (shape := entry.get("shape")) is None else Shape(*map(float, shape)),
            inherited=True,
        )

    @staticmethod
    def all_from_json(
        entries: Iterable[Mapping[str, Any]], passes: Passes
    ) -> dict[tuple[bool, bool, bool, bool], Variant]:
        """Those of a session, as it keeps them.

        What a pass has decided that is off here is left out: such a variant is traced anew.
        """
        shares = passes.hoist_products_to_leaves and passes.specialise
        found = [v for v in map(Variant.from_json, entries) if shares or not v.child_numbers]
        return {(v.training, v.with_loss, v.merging, v.recurrent): v for v in found}
