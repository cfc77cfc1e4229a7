"""The ways in which a session compiles its model, and how far each of them has come.

A variant is new, then traced, then built. Batches decide about it on the way: `Decisions` outlive
a trace and a build, and are stored in checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakSet

from cavs.compiler.memory import Shape
from cavs.compiler.pipeline import Compiled, Passes
from cavs.frontend.batch import Feature
from cavs.ir import Graph, Structures
from cavs.passes.deduplicate_lookups import RepeatedIndex
from cavs.passes.merge_vertices import Distinguishing
from cavs.runtime.interface import BatchLike, Executor
from cavs.runtime.scheduling import Scheduling


class VariantKey(NamedTuple):
    """The options that a variant is compiled for.

    training: with gradients. with_loss: the loss is computed. merging: equal vertices of a batch
    run once. recurrent: LSTMs over chains run as a whole. inputs: with cotangents of features.
    outside: the loss is computed elsewhere. dropout: values are dropped.
    """

    training: bool
    with_loss: bool
    merging: bool
    recurrent: bool = False
    inputs: bool = False
    outside: bool = False
    dropout: bool = True


_FEW = 1 / 64  # share of copies among the vertices of a batch, below which they are not merged
_TRIED = 4  # number of batches in succession with few copies, after which the search pauses
_PAUSE = 63  # number of batches that run without a search then


@dataclass(eq=False)
class Search:
    """Decides which batches are searched for equal vertices, by the batches that ran before.

    After batches in succession with few copies, the next ones are not searched; then one is
    searched again. few: searched batches with few copies, in succession. pause: batches that are
    not searched from now on.
    """

    few: int = 0
    pause: int = 0

    def __post_init__(self) -> None:
        if self.few < 0 or self.pause < 0:
            raise ValueError(
                f"the search for equal vertices has run {self.few}, {self.pause} times"
            )

    @staticmethod
    def finds_few(vertices: int, distinct: int) -> bool:
        """True if a batch with ``distinct`` ones among its vertices has few copies."""
        return vertices - distinct < _FEW * vertices

    def count(self, merged: bool) -> None:
        """Count a batch that has run; merged: its equal vertices were merged."""
        if self.pause:
            self.pause -= 1
            return
        self.few = 0 if merged else min(self.few + 1, _TRIED)
        if self.few == _TRIED:
            self.pause = _PAUSE


@dataclass(eq=False)
class Decisions:
    """The decisions that batches have caused for a variant.

    absent: features known to be absent somewhere, before any batch shows it. merged_features:
    features whose absence makes no kind of vertex. child_numbers: products of so many first
    children are computed at the child; None: undecided. kinds: of vertices, by schedule key. types:
    of vertices, which number the kinds; None: not known. recompiles: how often new kinds came after
    compilation. shared: edges outnumber vertices; None: undecided. shape: of the first graphs with
    edges. scheduling: the order of tasks of several kinds; None: undecided, that of levels.
    search: for equal vertices. repeated: index features with many lookups for each distinct value;
    None: undecided.
    """

    absent: frozenset[str] = frozenset()
    merged_features: frozenset[str] = frozenset()
    child_numbers: int | None = None
    kinds: tuple[int, ...] = ()
    types: tuple[str, ...] | None = None
    recompiles: int = 0
    shared: bool | None = None
    shape: Shape | None = None
    scheduling: Scheduling | None = None
    search: Search = field(default_factory=Search)
    repeated: tuple[RepeatedIndex, ...] | None = None

    def traced_like(self, other: Decisions) -> bool:
        """True if a model is traced in the same way for both."""
        own, others = ((d.absent, d.merged_features, d.child_numbers or 0) for d in (self, other))
        return own == others

    def forget_kinds(self) -> None:
        """Let kinds be numbered in another way."""
        self.kinds, self.scheduling, self.repeated = (), None, None

    def merge_features(self, names: Iterable[str]) -> None:
        """Let absence of the features ``names`` make no kinds: vertices read rows of zeros."""
        self.merged_features |= set(names)
        self.forget_kinds()


@dataclass(eq=False)
class Trace:
    """A traced model.

    schema: declared type of every feature. optional: features whose absence makes kinds. types: of
    vertices, in the order in which they number kinds; empty where one function runs at all.
    distinguishing: features in which vertices that are not merged differ, of samples for each
    structure in which equal ones are merged; None: merging does not apply. merged_features: those
    decided when it was traced. without_edges: its batch had no edges, so that types of edge
    features are a guess. structures: of the samples, if they have several. guessed_links: links of
    which no batch has had rows, so that their type is a guess. last_schema: of the last batch that
    fitted. fits: the number of children that vertices of any batch may have. fitting: batches whose
    vertices have no more children, or parents, than their vertex functions read.
    """

    graph: Graph
    schema: dict[str, Feature]
    optional: tuple[str, ...]
    distinguishing: Distinguishing | None
    merged_features: frozenset[str]
    without_edges: bool
    types: tuple[str, ...] = ()
    structures: Structures | None = None
    guessed_links: frozenset[str] = frozenset()
    last_schema: Mapping[str, Any] = field(default_factory=dict)
    fits: int = -1
    fitting: WeakSet[BatchLike] = field(default_factory=WeakSet)


class Build(NamedTuple):
    """A compiled program and its executor.

    frozen: parameters without gradients in it. aux: the loss comes with other values.
    """

    compiled: Compiled
    executor: Executor
    frozen: frozenset[str]
    aux: bool


@dataclass(eq=False)
class Variant:
    """One way in which a model is compiled; inherited: from another session, by a checkpoint."""

    key: VariantKey
    decisions: Decisions = field(default_factory=Decisions)
    inherited: bool = False
    trace: Trace | None = None
    build: Build | None = None

    @property
    def traced(self) -> Trace:
        """The trace, which must exist."""
        assert self.trace is not None, self.key
        return self.trace

    @property
    def merged_structures(self) -> tuple[str, ...]:
        """The structures in which equal vertices are merged; "" stands for graphs."""
        traced = self.traced
        if traced.distinguishing is None:
            return ()
        if traced.structures is None:
            return ("",)
        return tuple(x.structure for x in traced.distinguishing if not isinstance(x, str))

    @property
    def built(self) -> Build:
        """The build, which must exist."""
        assert self.build is not None, self.key
        return self.build

    def expect_absent(self, features: frozenset[str]) -> None:
        """Take note that ``features`` are absent in batches of others."""
        if not features <= self.decisions.absent:
            self.decisions.absent |= features
            if self.trace is not None:
                self.trace.last_schema = {}  # a batch that fitted may no longer do so

    def absent_features(self) -> set[str]:
        """Return the features that are absent somewhere, as far as this variant knows."""
        schema = {} if self.trace is None else self.trace.schema
        return {n for n, f in schema.items() if f.optional} | self.decisions.absent

    def to_json(self) -> dict[str, Any]:
        """Return what it is compiled for, as JSON values."""
        d = self.decisions
        return {
            **self.key._asdict(),
            "child_numbers": d.child_numbers,
            "absent": sorted(self.absent_features()),
            "merged_features": sorted(d.merged_features),
            "recompiles": d.recompiles,
            "kinds": [int(k) for k in d.kinds],
            "types": None if d.types is None else list(d.types),
            "shared": d.shared,
            "shape": d.shape,
            "scheduling": None if d.scheduling is None else d.scheduling.to_json(),
            "search": [d.search.few, d.search.pause],
            "repeated": None if d.repeated is None else [x.to_json() for x in d.repeated],
        }

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> Variant:
        """Return a variant that compiles for the same as the one that gave ``entry``.

        Raises KeyError, TypeError or ValueError on anything else.
        """
        numbers, shape = entry["child_numbers"], entry.get("shape")
        types = entry.get("types")
        scheduling, repeated = entry.get("scheduling"), entry.get("repeated")
        entry = {"merged_features": entry.get("lumped", ()), **entry}  # former names
        entry = {"recompiles": entry.get("grown", 0), **entry}  # former names
        return Variant(
            VariantKey(
                bool(entry["training"]),
                bool(entry["with_loss"]),
                bool(entry["merging"]),
                bool(entry.get("recurrent", False)),
                bool(entry.get("inputs", False)),
                bool(entry.get("outside", False)),
                bool(entry.get("dropout", True)),
            ),
            Decisions(
                absent=frozenset(str(n) for n in entry["absent"]),
                merged_features=frozenset(str(n) for n in entry["merged_features"]),
                child_numbers=None if numbers is None else int(numbers),
                kinds=tuple(sorted(int(k) for k in entry["kinds"])),
                types=None if types is None else tuple(map(str, types)),
                recompiles=int(entry["recompiles"]),
                shared=entry.get("shared"),
                shape=None if shape is None else Shape(*map(float, shape)),
                scheduling=None if scheduling is None else Scheduling.from_json(scheduling),
                search=Search(*map(int, entry.get("search", ()))),
                repeated=None
                if repeated is None
                else tuple(map(RepeatedIndex.from_json, repeated)),
            ),
            inherited=True,
        )


class Variants(dict[VariantKey, Variant]):
    """All variants of a session."""

    def executors(self) -> Iterator[Executor]:
        """Iterate over the executors that exist."""
        return (v.build.executor for v in self.values() if v.build is not None)

    def drop_builds(self) -> None:
        """Forget all programs; what batches decided about them stays."""
        for variant in self.values():
            variant.build = None

    def to_json(self) -> list[dict[str, Any]]:
        """Return the state of every variant that a batch has decided about."""
        return [v.to_json() for v in self.values() if v.trace is not None or v.inherited]

    @staticmethod
    def from_json(entries: Iterable[Mapping[str, Any]], passes: Passes) -> Variants:
        """Return the variants that gave ``entries`` but for those that need a pass that is off."""
        hoists = passes.hoist_products_to_leaves and passes.specialise
        found = (Variant.from_json(entry) for entry in entries)
        return Variants({v.key: v for v in found if hoists or not v.decisions.child_numbers})
