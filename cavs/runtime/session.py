"""A model, compiled for the batches that it is given, on the CPU or on a device."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from cavs.compiler.pipeline import Compiled, Passes, default_passes
from cavs.config import require, require_flag, require_seed, set_num_threads
from cavs.cuda.device import Device, open_device
from cavs.cuda.engine import CudaEngine
from cavs.errors import CheckpointError, ConfigError, ProcessLocal, renamed
from cavs.frontend.model import AUX, Model
from cavs.runtime.check import EngineErrors, check_loss, check_prediction
from cavs.runtime.forward_run import ForwardRun
from cavs.runtime.interface import (
    Array,
    BatchLike,
    EvalResult,
    Inputs,
    PendingStep,
    StepResult,
)
from cavs.runtime.parameter_sync import ParameterSync, keep_dtype, update_of
from cavs.runtime.precision import products_of, require_precision
from cavs.runtime.profiler import Profiler, Span
from cavs.runtime.program_cache import ProgramCache
from cavs.runtime.recurrence import CUDNN, Lstms
from cavs.runtime.results import input_gradients, outputs_of, parameter_gradients
from cavs.runtime.scheduling import SCHEDULING, Scheduling
from cavs.runtime.space_rows import BatchRows, batch_rows
from cavs.runtime.variant import Variant, VariantKey, Variants

_LISTED = ", ".join(map(repr, SCHEDULING))
_DTYPES = ("float32", "float64", np.float32, np.float64, np.dtype("f4"), np.dtype("f8"))


@renamed({"present": "batch_rows"})
class Session(ProcessLocal):
    """Compiles ``model`` on first use and runs it.

    dtype: np.float32, or np.float64 for checks; parameters are converted to it, and back by the
    session of another dtype that next runs. passes: switches of the compiler; None: all, but on
    devices equal vertices are not merged. threads: of the engine, process-wide; None leaves them.
    replicated: batches are parts of global ones, see cavs.passes.scale_for_replicas. device: "cpu",
    "cuda", "cuda:1", or a cavs.cuda Device; there, arrays are brought up to date when read.
    precision: of products, "float32"; on a CPU with AVX-512 VNNI also "int16", with AMX
    "bfloat16x3" and "bfloat16", with AVX-512 BF16 the latter, which are "float32" on others; on a
    device "tf32" or "bfloat16", which stores packed weights and most values in it, too. cudnn:
    when cuDNN runs LSTMs over chains on a device: "never", "auto" where it measures faster, or
    "always".
    deterministic: libraries of a device add in one order too, see docs/cuda.md; everything else
    gives the same bits in every run anyway, on the CPU for one number of threads.
    scheduling: the order of tasks where vertices are of several kinds: "level", "agenda",
    "learned", whichever needs the "fewest" for the first batch, or "auto", see docs/scheduling.md.
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
        scheduling: str = "auto",
    ) -> None:
        require(isinstance(model, Model), "model", model, "a cavs.Model")
        require(isinstance(passes, Passes | None), "passes", passes, "a cavs.compiler Passes")
        require(dtype in _DTYPES, "dtype", dtype, "np.float32 or np.float64")
        self.model, self.dtype = model, np.dtype(dtype)
        self.passes = passes or default_passes(device)
        self.parameters = model.parameters()
        keep_dtype(self.parameters.values(), self.dtype)
        if threads is not None:
            set_num_threads(threads)
        self.replicated = replicated
        require(cudnn in CUDNN, "cudnn", cudnn, f"one of {', '.join(CUDNN)}")
        require(cudnn != "always" or device != "cpu", "cudnn", cudnn, "'never' on the CPU")
        require(isinstance(deterministic, bool), "deterministic", deterministic, "True or False")
        self.deterministic = deterministic
        require(scheduling in SCHEDULING, "scheduling", scheduling, f"one of {_LISTED}")
        require_precision(precision, device == "cpu", self.dtype)
        self._cuda = cuda = self._open(device, precision)
        self._variants = Variants()
        self._lstms = Lstms(cuda, "never" if replicated else cudnn)
        self._sync = ParameterSync(self.parameters, self.dtype, cuda, self._variants)
        self._profiler = Profiler(cuda is not None, self._variants)
        self._programs = ProgramCache(
            model,
            self.parameters,
            dtype=self.dtype,
            passes=self.passes,
            replicated=replicated,
            cuda=cuda,
            products=products_of(precision),
            scheduling=scheduling,
            variants=self._variants,
            lstms=self._lstms,
            sync=self._sync,
            profiler=self._profiler,
        )
        self._lock = threading.RLock()  # a thread takes its results before another one runs

    def _open(self, device: str | Device, precision: str) -> CudaEngine | None:
        if device == "cpu":
            return None
        target = open_device(device) if isinstance(device, str) else device
        values = self.parameters.values()
        return CudaEngine(target, self, values, precision, self.deterministic)

    @property
    def device(self) -> Device | None:
        """The device that it runs on; None: on the CPU."""
        return None if self._cuda is None else self._cuda.device

    @property
    def overlaps(self) -> bool:
        """True if a step may go on while the host prepares the next one: on a device."""
        return self._cuda is not None

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
        """Run forward, backward and update in one call of the engine.

        hyper: dict(kind=..., lr=..., ...) of the optimiser; states: its arrays for each parameter.
        If the loss or the gradient norm is not finite nothing is updated.
        """
        found, aux = self._step(batch, hyper, states, seed, step, max_norm)
        loss, norm = found.wait()[:2] if self.overlaps else found
        return StepResult(loss, norm, aux)

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
        """Start a ``step`` that goes on when the call returns; on a device alone.

        The batch may be dropped or changed at once. after: an earlier step; if that updates
        nothing, neither does this one. Whatever reads parameters waits for the steps before it.
        ConfigError on the CPU.
        """
        if not self.overlaps:
            raise ConfigError("launch() on the CPU", hint="step(), or device='cuda'")
        before = None if after is None else after.step
        return PendingStep(*self._step(batch, hyper, states, seed, step, max_norm, before))

    def _step(
        self,
        batch: BatchLike,
        hyper: dict[str, Any],
        states: Sequence[Sequence[Array]],
        seed: int,
        step: int,
        *options: Any,
    ) -> tuple[Any, dict[str, Array]]:
        """Return what the engine's call returns, and the values besides the loss."""
        require_seed(seed)
        with self._lock:
            executor, inputs, _ = self.ready(batch)
            run = executor.launch if self.overlaps else executor.step
            update = update_of(self.parameters.values(), states)
            with self.readable_errors(batch):
                found = run(*inputs, seed, step, hyper, *update, *options)
            self.moved(executor)
            return found, self.aux(batch)

    def evaluate(self, batch: BatchLike, *, seed: int = 0, step: int = 0) -> EvalResult:
        """Run forward without dropout; NumericsError on a loss that is not finite or a NaN.

        seed, step: of random numbers such as those of ``ops.normal``.
        """
        require_seed(seed)
        with self._lock:
            return self._forward(batch, True, seed, step)

    def predict(self, batch: BatchLike, *, seed: int = 0, step: int = 0) -> dict[str, Array]:
        """Return predictions by name; the batch needs no labels. NumericsError for NaN.

        seed, step: of random numbers such as those of ``ops.normal``.
        """
        require_seed(seed)
        with self._lock:
            return self._forward(batch, False, seed, step).outputs

    @overload
    def gradients(
        self, batch: BatchLike, *, inputs: Literal[False] = False, seed: int = 0, step: int = 0
    ) -> tuple[float, dict[str, Array]]: ...

    @overload
    def gradients(
        self, batch: BatchLike, *, inputs: Literal[True], seed: int = 0, step: int = 0
    ) -> tuple[float, dict[str, Array], dict[str, Array]]: ...

    def gradients(
        self, batch: BatchLike, *, inputs: bool = False, seed: int = 0, step: int = 0
    ) -> tuple[Any, ...]:
        """Return the loss and dense gradients of trainable parameters, without an update.

        inputs: also return the gradient of every float feature that the model reads, by its name in
        ``batch.feature_schema()`` and in the shape of its rows there. Equal vertices are computed
        separately then. Values that are not finite are returned as they are.
        """
        require_seed(seed)
        require_flag("inputs", inputs)
        key = VariantKey(True, True, merging=False, inputs=True) if inputs else None
        with self._lock:
            prepared = self._programs.prepare(batch, training=True, with_loss=True, key=key)
            with EngineErrors(prepared.variant.traced.graph, batch):
                loss = prepared.executor.run(*prepared.inputs, seed, step)
            found = parameter_gradients(prepared.variant.built, self.parameters, self.dtype)
            if not inputs:
                return loss, found
            variant = prepared.variant
            return loss, found, input_gradients(variant.built, variant.traced.graph, batch)

    def forward(
        self,
        batch: BatchLike,
        *,
        inputs: bool = False,
        dropout: bool = True,
        seed: int = 0,
        step: int = 0,
    ) -> ForwardRun:
        """Run forward alone, for a loss that is computed outside of the model.

        The result has ``outputs``, those of ``Model.forward`` by name, and ``backward``, which
        takes the gradients of the loss by them, once, and computes nothing of forward again. Any
        number of results may be outstanding. inputs: backward also returns gradients by the float
        features; equal vertices are computed separately then. dropout: as in training. ConfigError
        on a device and for replicas.
        """
        require_seed(seed)
        require_flag("inputs", inputs)
        require_flag("dropout", dropout)
        if self._cuda is not None or self.replicated:
            raise ConfigError(
                "a forward run for a loss of the caller is for the CPU, and a session without "
                "replicas",
                hint="make a cavs.Session(model) without device= and replicated=, or give the "
                "model a loss",
            )
        merging = not inputs and self._programs.merges(batch, training=True)
        key = VariantKey(
            True, False, merging=merging, inputs=bool(inputs), outside=True, dropout=bool(dropout)
        )
        with self._lock:
            prepared = self._programs.prepare(batch, training=True, with_loss=False, key=key)
            shared = self.parameters, self._sync, self._lock, self.dtype
            return ForwardRun(prepared, batch, *shared, (seed, step))

    def _forward(self, batch: BatchLike, with_loss: bool, seed: int, step: int) -> EvalResult:
        variant, rows, inputs = self._programs.prepare(batch, False, with_loss)
        graph, built = variant.traced.graph, variant.built
        with EngineErrors(graph, batch):
            loss = built.executor.run(*inputs, seed, step)
        if with_loss:
            check_loss(loss, batch, self.parameters)
        outputs = outputs_of(built, graph, rows, batch)
        weight = float(outputs.pop("weight")[0]) if "weight" in outputs else float(batch.num_graphs)
        for name, rows in outputs.items():
            domain = graph.outputs[name].type.domain
            check_prediction(name.removeprefix(AUX), rows, domain, batch, self.parameters)
        aux = {n.removeprefix(AUX): outputs.pop(n) for n in list(outputs) if n.startswith(AUX)}
        return EvalResult(loss if with_loss else math.nan, outputs, weight, aux)

    def aux(self, batch: BatchLike) -> dict[str, Array]:
        """Return the values that ``Model.loss`` returned with the loss in the last training run.

        batch: that of the run.
        """
        variant = self._programs.latest[True]
        if not variant.built.aux:
            return {}
        rows = self._programs.rows_of(variant, batch)
        outputs = outputs_of(variant.built, variant.traced.graph, rows, batch, AUX)
        return {name.removeprefix(AUX): values for name, values in outputs.items()}

    def prepare(self, batch: BatchLike, training: bool = True) -> None:
        """Make the schedule of a batch to be trained on (or not); safe in a background thread."""
        self._programs.prepare_known(batch, training)

    # ---- steps in parts, for training on many ranks --------------------------------------------

    def is_new(self, batch: BatchLike) -> bool:
        """True if a step on ``batch`` would compile the model, or choose its order of tasks."""
        return self._programs.is_new(batch)

    def compile_for(
        self, batch: BatchLike, union: Callable[[Sequence[Any]], Sequence[Any]]
    ) -> None:
        """Compile training for ``batch`` and whatever else ``union`` adds to what it has.

        union: called twice, with names of features that are absent somewhere, and with kinds of
        vertices and a policy of batching; returns them with those of the other ranks, in order, so
        that all run one program by one policy.
        """
        self._programs.compile_for(batch, union)

    def ready(self, batch: BatchLike, training: bool = True) -> tuple[Any, Inputs, Compiled]:
        """Return executor, inputs and program of a training step, or evaluation, on ``batch``."""
        prepared = self._programs.prepare(batch, training, with_loss=True)
        return prepared.executor, prepared.inputs, prepared.compiled

    def readable_errors(self, batch: BatchLike) -> AbstractContextManager[None]:
        """Raise what the engine refuses in a training run on ``batch`` as errors of cavs."""
        return EngineErrors(self._programs.latest[True].traced.graph, batch)

    def moved(self, executor: Any) -> None:
        """Tell other executors and sessions that ``executor`` has updated parameters."""
        self._sync.updated_by(executor)

    # ---- parameters ----------------------------------------------------------------------------

    def keep_dtype(self) -> None:
        """Convert parameters to the session's dtype again, if another session has changed it."""
        self._sync.keep_dtype()

    def invalidate(self) -> None:
        """Tell the engine that arrays of parameters were written that it has seen before.

        Not needed where ``Parameter.value`` was read or set since the last run.
        """
        self._sync.invalidate()

    def pack_again(self) -> None:
        """Read parameters again in the next run: code that cavs does not see may have written them.

        Unlike after `invalidate`, backward may still follow forward runs, which the caller answers
        for.
        """
        with self._lock:
            self._sync.pack_again()

    def write(self, parameters: Sequence[int], rows: Mapping[int, Array] | None = None) -> None:
        """`invalidate` for the values of some, by number, which only the caller updates.

        rows: of further parameters, those that were written.
        """
        self._sync.write(parameters, rows or {})

    def download(self) -> None:
        """Bring arrays of the host up to date: of parameters, and of states on the device.

        DeviceError if the device has failed and steps are lost with it: the arrays stay behind.
        """
        self._sync.download()

    def lost_steps(self) -> int:
        """`download` without a warning; return how many steps a failed device has lost.

        Counted since the last call: parameters, and the states given to ``step``, are those of so
        many steps before the last one that was waited for.
        """
        return self._sync.lost_steps()

    # ---- resuming ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return for which features and kinds the model is compiled, as JSON values.

        A session that continues from it runs the same programs, hence the same bits.
        """
        return {"variants": self._variants.to_json(), "cudnn": self._lstms.to_json()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict``; CheckpointError, changing nothing, on anything else."""
        try:
            variants = Variants.from_json(state["variants"], self.passes)
            self._lstms.restore(state.get("cudnn", ()))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the state of the session is {state!r:.200}", hint="take an older checkpoint"
            ) from error
        self._variants.clear()
        self._variants.update(variants)

    # ---- inspection ----------------------------------------------------------------------------

    def compiled(
        self,
        batch: BatchLike,
        *,
        training: bool = True,
        with_loss: bool = True,
        record: bool = True,
    ) -> Compiled:
        """Return the program for batches like ``batch``; record: with the text of every pass."""
        if record:
            return self._programs.recorded(batch, training, with_loss)
        return self._programs.prepare(batch, training, with_loss).compiled

    def schedule(self, batch: BatchLike, *, training: bool = True, with_loss: bool = True) -> Any:
        """Return the schedule that runs for ``batch``; of distinct vertices where they merge."""
        return self._programs.prepare(batch, training, with_loss).inputs[0]

    def compare_scheduling(
        self, batch: BatchLike, *, training: bool = True, with_loss: bool = True
    ) -> Scheduling:
        """Return the policy that orders the tasks of ``batch``, and how many tasks each needs.

        Counted are tasks of vertices with children; without counts if these are of one kind.
        """
        return self._programs.compare_scheduling(batch, training, with_loss)

    def batch_rows(
        self, batch: BatchLike, *, training: bool = True, with_loss: bool = True
    ) -> BatchRows:
        """Return the schedule, and in how many of the rows that run each integer feature is
        present, and with how many distinct values.
        """
        prepared = self._programs.prepare(batch, training, with_loss)
        return batch_rows(prepared.compiled.program, prepared.inputs)

    @property
    def optional_features(self) -> tuple[str, ...]:
        """The features that schedules are made for; empty before the first batch."""
        traces = (v.trace for v in self._variants.values())
        return next((t.optional for t in traces if t is not None), ())

    def latest(self, training: bool = True) -> Variant | None:
        """Return the variant that a batch was last prepared for."""
        return self._programs.latest.get(training)

    def set_profiling(self, on: bool) -> None:
        """Time every stage and instruction of later runs; see report()."""
        self._profiler.set_profiling(on)

    def set_serial(self, on: bool) -> None:
        """Run one vertex at a time on one thread: the engine's own oracle, on the CPU alone."""
        self._profiler.set_serial(on)

    def set_tracing(self, on: bool) -> None:
        """Record a timeline of later runs on a device, or stop recording; see trace()."""
        self._profiler.set_tracing(on)

    def trace(self, training: bool = True) -> list[Span]:
        """Return the timeline of the programs that had run when recording began.

        (name, lane, begin, end), in seconds of ``time.perf_counter``. Lanes 0 and 1 run the stages,
        2 is for what goes up, -1 is the host. Steps are not waited for as they are in profiling.
        """
        return self._profiler.timeline(self.latest(training))

    def report(self, training: bool = True) -> dict[str, Any]:
        """Return what the engine counted: memory, tasks, times, bytes; empty before a run.

        On a device ``memory`` names all that the session has there, in bytes by what it holds;
        "programs" are those for other batches and for inference, or training. ``replay`` says what
        became of CUDA graphs: "runs" that might be replayed, while nothing is profiled or traced;
        "replays" among them; "graphs", a dict for each batch that came again (how many "commands",
        seconds they took one by one and as a graph, 0 where that was not measured, whether it is
        "decided" and whether they are "replayed"); "trouble": why there are none although there
        should be. ``cudnn``: what was decided of LSTMs.
        """
        found = self._profiler.report(self.latest(training))
        return found | self._lstms.report() if found else found
