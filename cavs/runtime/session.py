"""A model, compiled for the batches it meets, on the CPU engine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cavs import _engine
from cavs.compiler.pipeline import Compiled, Passes, compile_graph
from cavs.errors import CheckpointError
from cavs.frontend.batch import Feature
from cavs.frontend.model import Model, trace_model
from cavs.ir import Graph, origin
from cavs.passes.merge_vertices import COPIES, PRESENT, distinguishing
from cavs.passes.specialise import optional_features
from cavs.runtime.check import check_arity, check_schema, explain_range
from cavs.runtime.encode import encode

Array = npt.NDArray[Any]
MERGED_FROM = 256  # vertices of a batch: below, looking for copies costs what they save


class BatchLike(Protocol):
    """What the session needs of a batch; cavs.data.GraphBatch has it."""

    @property
    def num_graphs(self) -> int:
        """Graphs in the batch."""
        ...

    @property
    def topology(self) -> Any:
        """The engine's graphs; ``vertex_offsets`` and ``edge_offsets`` say where each starts."""
        ...

    def graph_label(self, index: int) -> str:
        """How errors call a graph of the batch."""
        ...

    def feature_schema(self) -> Mapping[str, Any]:
        """Type of every feature by name."""
        ...

    def schedule(self, optional: tuple[str, ...] = ()) -> Any:
        """The engine's schedule for the features that may be absent."""
        ...

    def merged(self, names: tuple[str, ...]) -> Any:
        """The distinct vertices as far as the features ``names`` tell, see cavs.data.merge."""
        ...

    def __getitem__(self, name: str) -> Array: ...


@dataclass(frozen=True)
class StepResult:
    """loss of the batch before the update; grad_norm: global L2 norm before clipping."""

    loss: float
    grad_norm: float


@dataclass(frozen=True)
class EvalResult:
    """loss (NaN without one); outputs by name, rows in the order of the batch; weight: graphs."""

    loss: float
    outputs: dict[str, Array]
    weight: float


@dataclass
class _Variant:
    """One way the model is compiled: for training or for inference, with or without its loss."""

    training: bool
    with_loss: bool
    schema: dict[str, Feature] = field(default_factory=dict)
    traced: Graph | None = None
    optional: tuple[str, ...] = ()
    distinguishing: tuple[str, ...] | None = None  # by which vertices differ; None: not merged
    kinds: tuple[int, ...] = ()
    absent: frozenset[str] = frozenset()  # features known to be absent somewhere, before any batch
    restored: tuple[int, ...] = ()  # kinds of load_state_dict, until the first batch
    compiled: Compiled | None = None
    executor: Any = None


@contextmanager
def _readable_errors(variant: _Variant, batch: BatchLike) -> Iterator[None]:
    """The engine knows features by number; a refused one is named with its graph and vertex."""
    try:
        yield
    except (IndexError, ValueError) as error:
        assert variant.traced is not None
        known = explain_range(variant.traced, batch)
        if known is None:
            raise
        raise known from error


class Session:
    """Compiles ``model`` on first use and runs it.

    dtype: np.float32, or np.float64 for checks; it must be that of the parameters. passes: switches
    of the compiler. threads: of the engine, process-wide; None leaves them.
    """

    def __init__(
        self,
        model: Model,
        *,
        threads: int | None = None,
        dtype: npt.DTypeLike = np.float32,
        passes: Passes | None = None,
    ) -> None:
        self.model, self.passes, self.dtype = model, passes or Passes(), np.dtype(dtype)
        self.parameters = model.parameters()
        for p in self.parameters.values():
            if p.value.dtype != self.dtype:
                p.convert(self.dtype)
        if threads is not None:
            _engine.set_num_threads(threads)
        self._variants: dict[tuple[bool, bool], _Variant] = {}
        self._profiling = False
        self._serial = False

    # ---- running -------------------------------------------------------------------------------

    def step(
        self,
        batch: BatchLike,
        hyper: dict[str, Any],
        states: Sequence[Sequence[Array]],
        *,
        seed: int = 0,
        step: int = 0,
        max_norm: float | None = None,
    ) -> StepResult:
        """Forward, backward and update in one call of the engine.

        hyper: dict(kind=..., lr=..., ...) of the optimiser; states: its arrays for each parameter.
        If the loss or the gradient norm is not finite nothing is updated.
        """
        variant, _, inputs = self._prepare(batch, training=True, with_loss=True)
        trainable = [p.trainable for p in self.parameters.values()]
        with _readable_errors(variant, batch):
            loss, norm = variant.executor.step(
                *inputs, seed, step, hyper, [list(s) for s in states], trainable, max_norm
            )
        for other in self._variants.values():
            if other is not variant and other.executor is not None:
                other.executor.invalidate_parameters()
        return StepResult(loss, norm)

    def evaluate(self, batch: BatchLike) -> EvalResult:
        """Forward only: loss and predictions; nothing is dropped out."""
        return self._forward(batch, with_loss=True)

    def predict(self, batch: BatchLike) -> dict[str, Array]:
        """Predictions by name, without a loss: the batch needs no labels."""
        return self._forward(batch, with_loss=False).outputs

    def gradients(
        self, batch: BatchLike, *, seed: int = 0, step: int = 0
    ) -> tuple[float, dict[str, Array]]:
        """Loss and dense gradients of all trainable parameters, without an update."""
        variant, _, inputs = self._prepare(batch, training=True, with_loss=True)
        with _readable_errors(variant, batch):
            loss = variant.executor.run(*inputs, seed, step)
        assert variant.compiled is not None
        found = variant.compiled.program.gradients
        names = list(self.parameters)
        return loss, {
            name: variant.executor.gradient(names.index(name))
            if found.get(name, "none") != "none"
            else np.zeros(self.parameters[name].shape, self.dtype)
            for name in names
            if self.parameters[name].trainable
        }

    def _forward(self, batch: BatchLike, with_loss: bool) -> EvalResult:
        variant, source, inputs = self._prepare(batch, training=False, with_loss=with_loss)
        with _readable_errors(variant, batch):
            loss = variant.executor.run(*inputs, 0, 0)
        assert variant.compiled is not None and variant.traced is not None
        outputs = {}
        for name, buffer in variant.compiled.program.outputs.items():
            if name == "loss":
                continue
            rows = variant.executor.output(buffer)
            t = variant.traced.outputs[name].type
            if source is not batch and t.domain.base == "vertex":
                rows = rows[source.distinct]
            outputs[name] = rows.reshape(rows.shape[0], *t.shape)
        return EvalResult(loss if with_loss else math.nan, outputs, float(batch.num_graphs))

    # ---- compiling -----------------------------------------------------------------------------

    def _prepare(
        self, batch: BatchLike, training: bool, with_loss: bool
    ) -> tuple[_Variant, Any, Any]:
        """The variant compiled for what ``batch`` has, whose rows run, and the engine's inputs."""
        key = (training, with_loss)
        variant = self._variants.get(key)
        if variant is None:
            variant = self._variants[key] = _Variant(training, with_loss)
        self._trace(variant, batch)
        assert variant.traced is not None
        source = self._source(variant, batch)
        schedule = source.schedule(variant.optional)
        check_arity(variant.traced, schedule.max_arity, batch)
        found = {k for k, _, _ in schedule.kinds}
        if variant.executor is None or not found <= set(variant.kinds):
            self._compile(variant, found)
        assert variant.compiled is not None
        program = variant.compiled.program
        ints = [self._feature(source, name, np.dtype(np.int32)) for name in program.int_features]
        floats = [self._feature(source, name, self.dtype) for name in program.float_features]
        rows = [x.reshape(len(x), math.prod(x.shape[1:])) for x in floats]
        return variant, source, (schedule, rows, ints)

    def _source(self, variant: _Variant, batch: BatchLike) -> Any:
        """What the engine runs: the distinct vertices of ``batch``, or ``batch`` itself."""
        names = variant.distinguishing
        if names is None or batch.topology.num_vertices < MERGED_FROM:
            return batch
        return batch.merged(names)

    def _feature(self, source: Any, name: str, dtype: np.dtype[Any]) -> Array:
        if name.startswith((COPIES, PRESENT)):
            count = source.topology.num_vertices
            copies: Array = getattr(source, "copies", np.ones(count, np.int32))
            if name != COPIES:
                copies = copies * (source[name.removeprefix(PRESENT)] >= 0)
            return copies.astype(dtype)
        return np.ascontiguousarray(source[name], dtype=dtype)

    def _trace(self, variant: _Variant, batch: BatchLike) -> None:
        """Traces the model, anew where a feature turns out to be absent at some vertex."""
        schema = batch.feature_schema()
        if variant.traced is not None:
            check_schema(variant.traced, variant.schema, schema)
            if all(
                not s.has_absent or variant.schema[n].optional
                for n, s in schema.items()
                if n in variant.schema
            ):
                return
        old = variant.schema
        variant.schema = {
            n: Feature(
                s.kind,
                s.dtype,
                tuple(s.shape),
                bool(s.has_absent or n in variant.absent or (n in old and old[n].optional)),
            )
            for n, s in schema.items()
        }
        variant.traced = trace_model(
            self.model, variant.schema, training=variant.training, with_loss=variant.with_loss
        )
        if self.passes.merge_vertices:
            variant.distinguishing = distinguishing(variant.traced)
        optional = optional_features(variant.traced)
        if optional != variant.optional:
            variant.optional, variant.kinds = optional, ()
        if variant.restored:
            variant.kinds, variant.restored = variant.restored, ()
        variant.executor = None

    def _compile(self, variant: _Variant, found: set[int], record: bool = False) -> None:
        assert variant.traced is not None
        variant.kinds = tuple(sorted(set(variant.kinds) | found))
        with origin(""):
            variant.compiled = compile_graph(
                variant.traced,
                variant.kinds,
                list(self.parameters),
                training=variant.training,
                merging=variant.distinguishing is not None,
                passes=self.passes,
                record=record,
            )
        # The engine takes its precision from the parameters; a model may have none.
        values = [p.value for p in self.parameters.values()] or [np.zeros(1, self.dtype)]
        variant.executor = _engine.Executor(encode(variant.compiled.program), values)
        variant.executor.set_profiling(self._profiling)
        variant.executor.set_serial(self._serial)

    # ---- resuming ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """For which features and kinds of vertices the model is compiled, as JSON values.

        A session that continues from it runs the same programs, hence the same bits.
        """
        return {
            "variants": [
                {
                    "training": v.training,
                    "with_loss": v.with_loss,
                    "absent": sorted(n for n, f in v.schema.items() if f.optional),
                    "kinds": [int(k) for k in v.kinds],
                }
                for v in self._variants.values()
                if v.traced is not None
            ]
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict``; CheckpointError, changing nothing, on anything else."""
        variants: dict[tuple[bool, bool], _Variant] = {}
        try:
            for entry in state["variants"]:
                key = (bool(entry["training"]), bool(entry["with_loss"]))
                variants[key] = _Variant(
                    *key,
                    absent=frozenset(str(n) for n in entry["absent"]),
                    restored=tuple(sorted(int(k) for k in entry["kinds"])),
                )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the state of the session is {state!r}") from error
        self._variants = variants

    # ---- looking inside ------------------------------------------------------------------------

    @property
    def optional_features(self) -> tuple[str, ...]:
        """What schedules are made for; empty before the first batch."""
        for variant in self._variants.values():
            if variant.traced is not None:
                return variant.optional
        return ()

    def prepare(self, batch: BatchLike) -> None:
        """Makes the schedule of a coming batch; safe in a background thread."""
        for variant in list(self._variants.values()):
            if variant.traced is not None:
                self._source(variant, batch).schedule(variant.optional)

    def invalidate(self) -> None:
        """Tells the engine that parameters were written from Python."""
        for variant in self._variants.values():
            if variant.executor is not None:
                variant.executor.invalidate_parameters()

    def set_profiling(self, on: bool) -> None:
        """Times every stage and instruction of later runs; see report()."""
        self._profiling = on
        for variant in self._variants.values():
            if variant.executor is not None:
                variant.executor.set_profiling(on)

    def set_serial(self, on: bool) -> None:
        """One vertex at a time on one thread: the engine's own oracle."""
        self._serial = on
        for variant in self._variants.values():
            if variant.executor is not None:
                variant.executor.set_serial(on)

    def compiled(self, batch: BatchLike, *, training: bool = True, record: bool = True) -> Compiled:
        """The compiled program for batches like ``batch``, with the text of every stage."""
        variant, _, _ = self._prepare(batch, training, True)
        if variant.compiled is None or not variant.compiled.stages:
            self._compile(variant, set(), record=record)
        assert variant.compiled is not None
        return variant.compiled

    def schedule(self, batch: BatchLike, *, training: bool = True) -> Any:
        """The schedule that runs for ``batch``; of distinct vertices where copies are merged."""
        _, _, (schedule, *_) = self._prepare(batch, training, True)
        return schedule

    def report(self, training: bool = True) -> dict[str, Any]:
        """What the engine counted: memory, tasks, times, bytes; empty before a run."""
        for (is_training, _), variant in self._variants.items():
            if is_training is training and variant.executor is not None:
                return dict(variant.executor.report())
        return {}
