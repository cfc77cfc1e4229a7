"""A model, compiled for the batches it meets, on the CPU or on a device."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from cavs import _engine
from cavs.compiler.pipeline import Compiled, Passes, compile_graph, default_passes
from cavs.config import require, require_seed, set_num_threads
from cavs.cuda.device import Device, open_device
from cavs.cuda.engine import CudaEngine
from cavs.data.features import MAX_OPTIONAL
from cavs.errors import FAULT, CheckpointError, CompileError, ConfigError, DeviceError
from cavs.frontend.model import Model, require_same_parameters
from cavs.ir import origin
from cavs.passes.hoist_products_to_leaves import multiplied_children
from cavs.passes.specialise import optional_features
from cavs.runtime import check, tracing
from cavs.runtime.check import check_arity, check_batch, readable_errors
from cavs.runtime.edge_types import EdgeTypes
from cavs.runtime.encode import encode
from cavs.runtime.inputs import features, schedule_of, update_of
from cavs.runtime.parameter_sync import Following
from cavs.runtime.precision import products_of, require_precision
from cavs.runtime.profiler import Inspected, report_of
from cavs.runtime.recurrence import CUDNN, Lstms
from cavs.runtime.variant import BatchLike, EvalResult, Executor, PendingStep, StepResult, Variant

Array = npt.NDArray[Any]
_DTYPES = ("float32", "float64", np.float32, np.float64, np.dtype("f4"), np.dtype("f8"))
_Inputs = tuple[_engine.Schedule, list[Array], list[Array]]  # with float and integer features
MERGED_FROM = 256  # vertices of a batch: below, looking for copies costs what they save
MOST_NUMBERS = 4  # children by number: each doubles the kinds of vertices there can be
SHARED_FROM = 1.15  # readers a product from which those of leaves are done at the leaves


class Session(Inspected, Following):
    """Compiles ``model`` on first use and runs it.

    dtype: np.float32, or np.float64 for checks; parameters are converted to it, and back by the
    session of another dtype that next runs. passes: switches of the compiler; None: all, but on
    devices equal vertices are not merged. threads: of the engine, process-wide; None leaves them.
    replicated: batches are parts of global ones, see cavs.passes.scale_for_replicas. device: "cpu",
    "cuda", "cuda:1", or a cavs.cuda Device; there, arrays are brought up to date when read.
    precision: of products, "float32"; on a CPU with AVX-512 VNNI also "int16", with AMX
    "bfloat16x3" and "bfloat16", with AVX-512 BF16 the latter, which are "float32" on others; on a
    device "tf32" or "bfloat16", which stores packed weights and most values in it, too. cudnn:
    whether cuDNN runs LSTMs over chains on a device, "never", "auto" where it measures faster, or
    "always".
    deterministic: what libraries of a device compute has one order of sums too, see docs/cuda.md;
    all else gives the same bits in every run anyway, on the CPU for one number of threads.
    Raises ConfigError for other threads than 1 to 256, DeviceError for a device out of use.
    """

    def __init__(
        self,
        model: Model,
        *,
        threads: int | None = None,
        dtype: npt.DTypeLike = np.float32,
        passes: Passes | None = None,
        replicated: bool = False,
        device: str | Device = "cpu",
        precision: str = "float32",
        cudnn: str = "never",
        deterministic: bool = False,
    ) -> None:
        require(isinstance(model, Model), "model", model, "a cavs.Model")
        require(isinstance(passes, Passes | None), "passes", passes, "a cavs.compiler Passes")
        require(dtype in _DTYPES, "dtype", dtype, "np.float32 or np.float64")
        self.model, self.dtype = model, np.dtype(dtype)
        self.passes = passes or default_passes(device)
        self.parameters = model.parameters()
        for p in self.parameters.values():
            if p.current().dtype != self.dtype:
                p.convert(self.dtype)
        if threads is not None:
            set_num_threads(threads)
        self.replicated = replicated
        require(cudnn in CUDNN, "cudnn", cudnn, f"one of {', '.join(CUDNN)}")
        require(cudnn != "always" or device != "cpu", "cudnn", cudnn, "'never' on the CPU")
        require(isinstance(deterministic, bool), "deterministic", deterministic, "True or False")
        self.deterministic = deterministic
        self._cuda = self._on_device(device, precision)
        self._lstms = Lstms(self._cuda, "never" if replicated else cudnn)
        self._variants: dict[tuple[bool, bool, bool, bool], Variant] = {}
        self._latest: dict[bool, Variant] = {}
        self._edge_types = EdgeTypes(model)
        self._versions = 0
        self._arrays: list[Array] = []
        self._profiling = self._serial = False
        self._turn = threading.RLock()  # a thread takes its results before another one runs

    def _on_device(self, device: str | Device, precision: str) -> CudaEngine | None:
        require_precision(precision, device == "cpu", self.dtype)
        self._products = products_of(precision)
        if device == "cpu":
            return None
        target = open_device(device) if isinstance(device, str) else device
        values = self.parameters.values()
        return CudaEngine(target, self, values, precision, self.deterministic)

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
        found = self._step(batch, hyper, states, seed, step, max_norm)
        loss, norm = found.wait()[:2] if self.overlaps else found
        return StepResult(loss, norm)

    @property
    def device(self) -> Device | None:
        """Where it runs; None: on the CPU."""
        return None if self._cuda is None else self._cuda.device

    @property
    def overlaps(self) -> bool:
        """Whether a step may go on while the host prepares the next one: on a device."""
        return self._cuda is not None

    def launch(
        self,
        batch: BatchLike,
        hyper: dict[str, Any],
        states: Sequence[Sequence[Array]],
        *,
        seed: int = 0,
        step: int = 0,
        max_norm: float | None = None,
        after: PendingStep | None = None,
    ) -> PendingStep:
        """A ``step`` that goes on when the call returns; on a device alone.

        The batch may be dropped or changed at once. after: an earlier step; if that updates
        nothing, neither does this one. Whatever reads parameters waits for the steps before it.
        ConfigError on the CPU.
        """
        if not self.overlaps:
            raise ConfigError("launch() on the CPU", hint="step(), or device='cuda'")
        before = None if after is None else after.step
        return PendingStep(self._step(batch, hyper, states, seed, step, max_norm, before))

    def _step(
        self,
        batch: BatchLike,
        hyper: dict[str, Any],
        states: Sequence[Sequence[Array]],
        seed: int,
        step: int,
        *options: Any,
    ) -> Any:
        """A step of the engine: what its call returns."""
        require_seed(seed)
        with self._turn:
            executor, inputs, _ = self.ready(batch)
            run = executor.launch if self.overlaps else executor.step
            update = update_of(self.parameters.values(), states)
            with self.readable_errors(batch):
                found = run(*inputs, seed, step, hyper, *update, *options)
            self.moved(executor)
        return found

    def evaluate(self, batch: BatchLike) -> EvalResult:
        """Forward only, nothing dropped out. NumericsError: a loss not finite, a NaN predicted."""
        with self._turn:
            return self._forward(batch, with_loss=True)

    def predict(self, batch: BatchLike) -> dict[str, Array]:
        """Predictions by name, without a loss: the batch needs no labels. NumericsError for NaN."""
        with self._turn:
            return self._forward(batch, with_loss=False).outputs

    def gradients(
        self, batch: BatchLike, *, seed: int = 0, step: int = 0
    ) -> tuple[float, dict[str, Array]]:
        """Loss and dense gradients of what is trained; to look at: no update, and NaN as it is."""
        require_seed(seed)
        with self._turn:
            variant, executor, _, inputs = self._prepare(batch, training=True, with_loss=True)
            with readable_errors(variant.traced, batch):
                loss = executor.run(*inputs, seed, step)
            assert variant.compiled is not None
            found = variant.compiled.program.gradients
            names = list(self.parameters)
            return loss, {
                name: executor.gradient(names.index(name))
                if found.get(name, "none") != "none"
                else np.zeros(self.parameters[name].shape, self.dtype)
                for name in names
                if self.parameters[name].trainable
            }

    def _forward(self, batch: BatchLike, with_loss: bool) -> EvalResult:
        variant, executor, source, inputs = self._prepare(batch, False, with_loss)
        with readable_errors(variant.traced, batch):
            loss = executor.run(*inputs, 0, 0)
        assert variant.compiled is not None and variant.traced is not None
        if with_loss:
            check.check_loss(loss, batch, self.parameters)
        outputs, weight = {}, float(batch.num_graphs)
        for name, buffer in variant.compiled.program.outputs.items():
            if name == "loss":
                continue
            rows = executor.output(buffer)
            if name == "weight":
                weight = float(rows[0, 0])
                continue
            t = variant.traced.outputs[name].type
            if source is not batch and t.domain.base == "vertex":
                rows = rows[source.distinct]
            check.check_prediction(name, rows, t.domain.base, batch, self.parameters)
            outputs[name] = rows.reshape(rows.shape[0], *t.shape)
        return EvalResult(loss if with_loss else math.nan, outputs, weight)

    # ---- for training with others --------------------------------------------------------------

    def is_new(self, batch: BatchLike) -> bool:
        """Whether a step on `batch` would compile the model anew."""
        variant = self._known(batch, True, True)
        if variant is None or variant.executor is None or not tracing.fits(variant, batch):
            return True
        kinds = schedule_of(variant, self._source(variant, batch), self.overlaps).kinds
        return self._other_gradients(variant) or not {k for k, *_ in kinds} <= set(variant.kinds)

    def compile_for(
        self, batch: BatchLike, union: Callable[[Sequence[Any]], Sequence[Any]]
    ) -> None:
        """Compiles training for `batch` and whatever else `union` adds to what it has.

        union: called twice, with names of features that are absent somewhere and with kinds of
        vertices; returns them with those of the other ranks, so that all run one program.
        """
        absent = {n for n, s in batch.feature_schema().items() if s.has_absent}
        for v in self._variants.values():
            absent |= {n for n, f in v.schema.items() if f.optional} | v.absent
        everywhere = frozenset(union(sorted(absent)))
        variant = self._variant(batch, True, True, self._merges(batch, True), everywhere)
        if variant.merging and variant.distinguishing is None:
            variant = self._variant(batch, True, True, False, everywhere)
        schedule = schedule_of(variant, self._source(variant, batch), self.overlaps)
        found = {int(k) for k, _, _ in schedule.kinds}
        kinds = set(union(sorted(found | set(variant.kinds))))
        if tracing.must_merge_features(variant, kinds):
            tracing.merge_features(variant)
            self.compile_for(batch, union)
        else:
            self._compile(variant, kinds)

    def ready(self, batch: BatchLike, training: bool = True) -> tuple[Any, Any, Compiled]:
        """Executor, its inputs and the program of a training step, or evaluation, on `batch`."""
        variant, executor, _, inputs = self._prepare(batch, training, with_loss=True)
        assert variant.compiled is not None
        return executor, inputs, variant.compiled

    @contextmanager
    def readable_errors(self, batch: BatchLike) -> Iterator[None]:
        """What the engine refuses in a training run on `batch` is raised in words."""
        with readable_errors(self._latest[True].traced, batch):
            yield

    # ---- compiling -----------------------------------------------------------------------------

    def _prepare(
        self, batch: BatchLike, training: bool, with_loss: bool, record: bool = False
    ) -> tuple[Variant, Executor, Any, _Inputs]:
        """The variant compiled for what ``batch`` has, its executor, whose rows run, and inputs."""
        check_batch(batch)
        self._follow_others()
        variant = self._variant(batch, training, with_loss, self._merges(batch, training))
        if variant.merging and variant.distinguishing is None:
            variant = self._variant(batch, training, with_loss, False)
        if self._lstms.take(variant, batch):
            variant = self._variant(batch, training, with_loss, False, recurrent=True)
        assert variant.traced is not None
        source = self._source(variant, batch)
        schedule = schedule_of(variant, source, self.overlaps)
        check_arity(variant.traced, schedule.max_arity, batch)
        found = {k for k, _, _ in schedule.kinds}
        if tracing.must_merge_features(variant, found):
            tracing.merge_features(variant)
            return self._prepare(batch, training, with_loss, record)
        tracing.decide_shape(variant, schedule, self._agreed(training))
        others = training and self._other_gradients(variant)
        if variant.executor is None or others or not found <= set(variant.kinds):
            try:
                self._compile(variant, found, record)
            except DeviceError as error:
                if not (variant.recurrent and self._lstms.give_up(error)):
                    raise
                return self._prepare(batch, training, with_loss, record)
        assert variant.compiled is not None and variant.executor is not None
        self._lstms.clock(variant.executor)
        self._latest[training] = variant
        return variant, variant.executor, source, self._inputs(variant, source, batch)

    def _inputs(self, variant: Variant, source: Any, batch: BatchLike) -> _Inputs:
        assert variant.compiled is not None
        how = source is not batch, self.dtype, self._edge_types.rows
        schedule = schedule_of(variant, source, self.overlaps)
        return schedule, *features(variant.compiled.program, source, *how)

    def _known(self, batch: BatchLike, training: bool, with_loss: bool) -> Variant | None:
        """The variant that runs batches like ``batch``, if it has been traced."""
        variant = self._variants.get((training, with_loss, self._merges(batch, training), False))
        if variant is not None and variant.merging and variant.distinguishing is None:
            variant = self._variants.get((training, with_loss, False, False))
        if variant is not None and self._lstms.settled(variant, batch):
            variant = self._variants.get((training, with_loss, False, True))
        return variant

    def _agreed(self, training: bool) -> bool:
        """Whether other replicas must run the same program, whatever their batches look like."""
        return self.replicated and training

    def _frozen(self) -> frozenset[str]:
        return frozenset(n for n, p in self.parameters.items() if not p.trainable)

    def _other_gradients(self, variant: Variant) -> bool:
        """Whether the program lacks gradients; or has some that replicas would exchange in vain."""
        frozen = self._frozen()
        return variant.frozen != frozen if self.replicated else not variant.frozen <= frozen

    def _merges(self, batch: BatchLike, training: bool) -> bool:
        large = bool(batch.topology.num_vertices >= MERGED_FROM)
        return self.passes.merge_vertices and (large or self._agreed(training))

    def _variant(
        self,
        batch: BatchLike,
        training: bool,
        with_loss: bool,
        merging: bool,
        absent: frozenset[str] = frozenset(),
        recurrent: bool = False,
    ) -> Variant:
        """The variant, traced for what ``batch`` has and for features ``absent`` elsewhere."""
        key = training, with_loss, merging, recurrent
        variant = self._variants.setdefault(key, Variant(*key))
        if not absent <= variant.absent:
            variant.absent |= absent
            variant.last_schema = {}  # a batch that fitted may not any more
        tracing.trace(variant, self.model, self._edge_types.schema(batch), batch)
        return variant

    def _source(self, variant: Variant, batch: BatchLike) -> Any:
        """What the engine runs: the distinct vertices of ``batch``, or ``batch`` itself."""
        names = variant.distinguishing
        if names is None:
            return batch
        if variant.child_numbers is None:
            self._decide_products(variant, batch)
        return batch.merged(names, variant.child_numbers or 0)

    def _decide_products(self, variant: Variant, batch: BatchLike) -> None:
        """Whether leaves have enough parents, judged by the first batch, once and for all."""
        assert variant.traced is not None and variant.distinguishing is not None
        wanted = self.passes.hoist_products_to_leaves and self.passes.specialise
        wanted &= not self._agreed(variant.training)
        numbers = multiplied_children(variant.traced) if wanted else 0
        room = min(MOST_NUMBERS, MAX_OPTIONAL - len(optional_features(variant.traced)))
        if 0 < numbers <= room:
            merged = batch.merged(variant.distinguishing, numbers)
            numbers = numbers if merged.reads_per_product >= SHARED_FROM else 0
        tracing.set_child_numbers(variant, numbers if numbers <= room else 0)

    def _compile(self, variant: Variant, found: set[int], record: bool = False) -> None:
        assert variant.traced is not None
        require_same_parameters(self.model, self.parameters)
        kinds = tuple(sorted(set(variant.kinds) | found))
        with origin(""):
            compiled = compile_graph(
                variant.traced,
                kinds,
                list(self.parameters),
                training=variant.training,
                merging=variant.distinguishing is not None,
                shared=bool(variant.shared),
                nth_shared=bool(variant.child_numbers),
                passes=self.passes,
                record=record,
                replicated=self.replicated,
                recurrent=variant.recurrent,
                beside=self._cuda is not None,
                shape=variant.shape,
            )
        program = compiled.program
        if program.optional != variant.optional:
            raise CompileError(
                f"kinds of vertices are numbered by {variant.optional}, "
                f"the program reads them by {program.optional}",
                hint=FAULT,
            )
        # The engine takes its precision from the parameters; a model may have none.
        self._arrays = [p.current() for p in self.parameters.values()]
        values = self._arrays or [np.zeros(1, self.dtype)]
        executor: Executor
        if self._cuda is None:
            executor = _engine.Executor(encode(program), values, self._products)
            executor.set_serial(self._serial)
        else:
            executor = self._cuda.executor(program, encode(program), values)
        executor.set_profiling(self._profiling)
        # Whatever broke this off, the variant is as it was, or has no executor.
        variant.recompiles += variant.executor is not None and len(kinds) > len(variant.kinds)
        variant.executor = None
        variant.kinds, variant.frozen, variant.compiled = kinds, self._frozen(), compiled
        variant.executor = executor

    # ---- resuming ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """For which features and kinds of vertices the model is compiled, as JSON values.

        A session that continues from it runs the same programs, hence the same bits.
        """
        variants = [v.to_json() for v in self._variants.values() if v.is_known]
        return {"variants": variants, "cudnn": self._lstms.to_json()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict``; CheckpointError, changing nothing, on anything else."""
        try:
            variants = Variant.all_from_json(state["variants"], self.passes)
            self._lstms.restore(state.get("cudnn", ()))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the state of the session is {state!r:.200}", hint="take an older checkpoint"
            ) from error
        self._variants = variants

    # ---- looking inside ------------------------------------------------------------------------

    def prepare(self, batch: BatchLike, training: bool = True) -> None:
        """Makes the schedule of a batch to be trained on (or not); safe in a background thread."""
        for with_loss in (True, False):
            variant = self._known(batch, training, with_loss)
            if variant is not None and variant.executor is not None:
                self._inputs(variant, self._source(variant, batch), batch)

    def compiled(
        self,
        batch: BatchLike,
        *,
        training: bool = True,
        with_loss: bool = True,
        record: bool = True,
    ) -> Compiled:
        """The compiled program for batches like ``batch``; with ``record`` the text of stages."""
        variant, *_ = self._prepare(batch, training, with_loss, record)
        if record and not (variant.compiled and variant.compiled.stages):
            self._compile(variant, set(), record)
        assert variant.compiled is not None
        return variant.compiled

    def schedule(self, batch: BatchLike, *, training: bool = True, with_loss: bool = True) -> Any:
        """The schedule that runs for ``batch``; of distinct vertices where copies are merged."""
        _, _, _, (schedule, *_) = self._prepare(batch, training, with_loss)
        return schedule

    def present(
        self, batch: BatchLike, *, training: bool = True, with_loss: bool = True
    ) -> dict[str, int]:
        """In how many of the rows that run for ``batch`` each integer feature is present."""
        variant, _, _, (_, _, ints) = self._prepare(batch, training, with_loss)
        assert variant.compiled is not None
        names = variant.compiled.program.int_features
        return {n: int((x >= 0).sum()) for n, x in zip(names, ints, strict=True)}

    def report(self, training: bool = True) -> dict[str, Any]:
        """What the engine counted: memory, tasks, times, bytes; empty before a run.

        On a device ``memory`` names all that the session has there, in bytes by what it holds;
        "programs" are those for other batches and for inference, or training. ``replay`` says what
        became of CUDA graphs: "runs" that might be replayed, while nothing is profiled or traced;
        "replays" among them; "graphs", a dict for each batch that came again (how many "commands",
        seconds they took one by one and as a graph, 0 where that was not measured, whether it is
        "decided" and whether they are "replayed"); "trouble": why there are none although there
        should be. ``cudnn``: what was decided of LSTMs.
        """
        found = report_of(self._latest.get(training), self._variants.values())
        return found | self._lstms.report() if found else found
