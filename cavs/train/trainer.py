"""`Trainer`: a model, an optimiser and the engine that runs both."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from cavs.compiler.pipeline import Passes
from cavs.config import require, require_threads
from cavs.cuda.device import Device
from cavs.errors import DeviceError, DeviceWarning, ProcessLocal, renamed
from cavs.frontend.model import Model
from cavs.runtime import Session
from cavs.train import saving
from cavs.train.batches import Loader, Prepare
from cavs.train.carry import carried
from cavs.train.checkpoint import Checkpoint, ParameterizedModel
from cavs.train.checkpoint_lock import CheckpointLock
from cavs.train.coordination import Array, Coordinator, SingleProcess
from cavs.train.engine import Engine, StepOutcome
from cavs.train.evaluation import Evaluator
from cavs.train.fit import Fit
from cavs.train.fit_options import FitOptions, FitResult, Metrics, OnEvent
from cavs.train.metrics import as_metrics
from cavs.train.monitors import Monitor
from cavs.train.optimizer import Optimizer, TrainableParameter
from cavs.train.policy import Policy
from cavs.train.run_state import ResumePoint, fit_progress
from cavs.train.stepping import Step, Stepper, TrainingState, lose_steps
from cavs.train.stream import Source, as_loader

T = TypeVar("T")


class _OfState(Generic[T]):
    """Attribute of a trainer that its `TrainingState` holds."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, trainer: None, owner: type) -> _OfState[T]: ...
    @overload
    def __get__(self, trainer: Trainer, owner: type) -> T: ...
    def __get__(self, trainer: Trainer | None, owner: type) -> Any:
        """Return the attribute of the state."""
        return self if trainer is None else getattr(trainer.state, self.name)

    def __set__(self, trainer: Trainer, value: T) -> None:
        """Set the attribute of the state."""
        setattr(trainer.state, self.name, value)


@renamed(
    {
        "claim": "checkpoint_lock",
        "stops": "coordinator.should_stop",
        "stops_at_end": "coordinator.should_stop_at_end",
    }
)
class Trainer(ProcessLocal):
    """Trains `model` with `optimizer`.

    Args:
        model: A `cavs.Model`; its parameters are written in place.
        optimizer: Such as `cavs.optim.Adagrad(lr=0.05)`. A trainer has a copy of a `Plateau`
            schedule in it, which has observed nothing; see `Trainer.optimizer`.
        device: ``"cpu"``, or ``"cuda"``, ``"cuda:1"`` for an NVIDIA GPU: the same results.
        precision: Precision of products. ``"float32"`` is exact to float32. On a CPU, ``"int16"``
            needs AVX-512 VNNI and stays within about 8e-5 of the norm, more where rows have
            outliers; ``"bfloat16"`` keeps 8 bits of each operand and needs AMX or AVX-512 BF16;
            ``"bfloat16x3"`` keeps 16 bits and needs AMX; each is ``"float32"`` on other CPUs. On a
            GPU, ``"tf32"`` keeps 11 bits, and ``"bfloat16"`` also stores packed weights and
            activations in bfloat16, in half the memory. Sums of products, parameters, gradients
            and states are always float32.
        cudnn: Use of cuDNN for LSTMs over chains on a GPU: ``"never"``, ``"always"``, or
            ``"auto"``, where it measures faster.
        deterministic: Make libraries of a GPU sum in one order too, which costs time; everything
            else gives the same bits in every run anyway.
        seed: Seed of everything random inside a step (dropout).
        max_norm: Clip the gradient to this global norm.
        threads: Threads of the engine; by default what the affinity mask and the quota allow.
        passes: Switches of the compiler's passes, as for `cavs.Session`.
        scheduling: Order of tasks, as for `cavs.Session`.
        session: An engine to use instead of a new `cavs.Session`; it has its own device,
            precision, cudnn, passes and scheduling.
        config: A JSON object stored in every checkpoint, such as the options of the model.

    Same seed and thread count: bit-identical parameters, unless ``cudnn="auto"``, which depends on
    measured times.
    """

    _pickling_hint = (
        "models, graphs and batches can be pickled and copied: build a trainer from them; "
        "save(path) and resume(path) continue its run"
    )

    model = _OfState[ParameterizedModel]()
    optimizer = _OfState[Optimizer]()
    parameters = _OfState[Mapping[str, TrainableParameter]]()
    states = _OfState[list[list[Array]]]()
    steps = _OfState[int]()
    seed = _OfState[int]()
    max_norm = _OfState[float | None]()
    config = _OfState[dict[str, Any]]()
    last_checkpoint = _OfState[Path | None]()

    def __init__(
        self,
        model: ParameterizedModel,
        optimizer: Optimizer,
        *,
        device: str | Device = "cpu",
        precision: str = "float32",
        cudnn: str = "never",
        deterministic: bool = False,
        seed: int = 0,
        max_norm: float | None = None,
        threads: int | None = None,
        passes: Passes | None = None,
        scheduling: str = "auto",
        session: Engine | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        if session is not None:
            engine = "cavs.Session, or an engine derived from cavs.train.engine.Engine"
            require(hasattr(session, "overlaps"), "session", session, engine)
            _check_session_options(device, precision, cudnn, deterministic, threads, passes)
            need = "'auto' with a session, which has one of its own"
            require(scheduling == "auto", "scheduling", scheduling, need)
        if threads is not None:
            require_threads(threads)
        state = TrainingState(model, optimizer, seed=seed, max_norm=max_norm, config=config)
        if session is None:
            session = _new_session(
                model,
                threads=threads,
                device=device,
                precision=precision,
                cudnn=cudnn,
                deterministic=deterministic,
                passes=passes,
                scheduling=scheduling,
            )
        self._compose(state, session, SingleProcess())

    def _compose(self, state: TrainingState, session: Engine, coordinator: Coordinator) -> None:
        """Build the trainer from its parts."""
        self.state, self.session, self.coordinator = state, session, coordinator
        state.init_states(session)
        self._stepper = Stepper(state, session, coordinator)
        self._evaluator = Evaluator(state, session, coordinator)
        self.checkpoint_lock: CheckpointLock | None = None  # held by the caller of `fit`
        self._resume_point: ResumePoint | None = None
        self._fit: Fit | None = None  # the running one
        self._progress: dict[str, Any] = {}  # at the end of the last `fit`
        self._carried: Callable[[], Mapping[str, Array]] = dict  # rows at the end of it

    # ---- steps ---------------------------------------------------------------------------------

    def step(self, batch: Any) -> float:
        """Make one update on `batch` and return the loss before it.

        Raises `NumericsError`, with nothing updated, if the loss or the gradient is not finite.
        """
        return self.advance(batch).loss

    def advance(self, batch: Any) -> StepOutcome:
        """Make a `step` and return the norm of the gradient too."""
        # On one process, run_step calls the stepper and nothing else.
        return self.coordinator.run_step(self._stepper.advance, batch)

    def launch(self, batch: Any) -> list[Step]:
        """Start an update on `batch` and return the steps that have ended meanwhile.

        On the CPU that is this step. A device runs it while the host prepares the next one; the
        previous step has ended. `land` waits for the last one.

        Raises `NumericsError` for a step that is not finite; the next one is not applied either.
        """
        if not self.session.overlaps:
            return [Step(batch, self.advance(batch))]
        return self._stepper.launch(batch)

    def land(self) -> list[Step]:
        """Wait for the steps that `launch` has started and return those not returned yet."""
        return self._stepper.land()

    # ---- evaluation ----------------------------------------------------------------------------

    @property
    def prepare_evaluation(self) -> Prepare:
        """Builds the schedule of a batch to be evaluated; safe in a background thread."""
        return self._evaluator.prepare

    def evaluate(
        self,
        loader: Iterable[Any],
        metrics: Metrics = (),
        *,
        progress: bool = False,
        stop: Callable[[], bool] = lambda: False,
        carry: Mapping[str, str] | None = None,
    ) -> dict[str, float]:
        """Return ``"loss"`` and every metric over the batches of `loader`.

        A loss that is a mean over terms (such as `cavs.ops.cross_entropy`, where a term is a row
        with a label) is the mean over all terms of the data, for any batch size. Any other loss is
        the mean of the batches' losses, weighted by their numbers of graphs; a sum thus grows with
        the batch. Without terms the loss is NaN.

        Ends early, with the result so far, once `stop` returns True. carry: as for `fit`, on one
        process. Raises `NumericsError` if the loss of a batch is not finite.
        """
        self.land()
        in_fit = self._fit is not None and self._fit.evaluating
        return self._evaluator.evaluate(
            loader, metrics, progress=progress, stop=stop, in_fit=in_fit, carry=carry
        )

    # ---- runs ----------------------------------------------------------------------------------

    def fit(
        self,
        train: Loader | Source,
        *,
        epochs: int,
        dev: Iterable[Any] | None = None,
        metrics: Metrics = (),
        monitor: str | None = None,
        patience: int | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int | None = None,
        restore_best: bool = False,
        log: str | os.PathLike[str] | None = None,
        progress: bool = True,
        on_event: OnEvent | None = None,
        policies: Sequence[Policy] = (),
        monitors: Sequence[Monitor] = (),
        carry: Mapping[str, str] | None = None,
    ) -> FitResult:
        """Train for `epochs` epochs (counted from the start of a resumed run).

        Args:
            train: The training batches: a `cavs.DataLoader`, a `StreamLoader` of graphs, or an
                iterable of batches or a function of the epoch that returns one; see `BatchStream`.
            epochs: Passes over `train`.
            dev: Evaluated after every epoch.
            metrics: Metrics of that evaluation, besides the loss.
            monitor: Name of the metric that tells the best epoch: by default the first metric,
                else ``"loss"``.
            patience: Number of epochs in a row without improvement on `dev` after which one more
                ends the run; 0 ends it at the first.
            checkpoint: Written after every epoch, and when Ctrl-C, a loss that is not finite, a bad
                graph or an error in the evaluation ends the run. The best parameters go to
                ``NAME.best.safetensors`` next to it. Refused if another running training writes
                there, or if the file is of another model.
            checkpoint_every: Number of steps between further checkpoints inside an epoch.
            restore_best: End with the parameters of the best epoch. For a resumed run they are read
                first, from the file next to the one that it was resumed from; `CheckpointError` if
                they are not there.
            log: JSON-lines file to append to, which ``cavs report`` draws. It has a record
                ``"checkpoint"`` of every checkpoint, and those of `on_event` and `monitors`.
            progress: Show a progress bar on stderr. With policies or monitors, it has batch size,
                ranks and gradient noise scale, too.
            on_event: Called with records of the log, as ``on_event("epoch", record)``; events
                are "start", "epoch", "end", "interrupt", "numerics" and "error". An exception in
                it ends the run; at an "epoch" the checkpoint of that has been written.
            policies: Adapt the training while it runs; see `cavs.train.Policy`. Their states are
                stored in checkpoints.
            monitors: Further monitors than those of the policies; see `cavs.train.monitors`. With
                policies or monitors, the log has a record ``"step"`` of every step, and
                ``"change"`` of every change of a setting.
            carry: For truncated backpropagation: the name of a value that ``Model.loss`` returns
                with the loss, by the feature of graphs in which the next batch gets it. Graph i
                continues graph i of the batch before; the first batch of an epoch has what its
                graphs bring, and so has the first of `dev`. See ``docs/states.md``.

        Ctrl-C lets the running step end, writes the checkpoint and raises `KeyboardInterrupt`.
        """
        options = FitOptions(
            epochs=epochs,
            dev=dev,
            metrics=metrics,
            monitor=monitor,
            patience=patience,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            restore_best=restore_best,
            log=log,
            progress=progress,
            on_event=on_event,
            policies=policies,
            monitors=monitors,
            carry=carry,
        )
        with self.coordinator.fitting(train, options):
            options = replace(options, metrics=as_metrics(metrics))
            loader = as_loader(train)
            self.land()
            if loader.prepare in (None, self.prepare_evaluation):
                loader.prepare = self.session.prepare
            self.coordinator.shard_loader(loader)
            fit = Fit(
                self,
                self.state,
                self.session,
                self.coordinator,
                loader,
                options,
                lock=self.checkpoint_lock,
                resume_point=self._resume_point,
            )
            self._resume_point = None  # kept until now, since a refused call may be repeated
            self._fit, self._carried = fit, fit.carry.arrays
            try:
                return fit.go()
            finally:
                self._progress, self._fit = fit.progress(), None

    # ---- checkpoints ---------------------------------------------------------------------------

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        progress: Mapping[str, Any] | None = None,
        states: bool = True,
    ) -> None:
        """Write a checkpoint, atomically: parameters, optimiser states, step, seed, `progress`.

        During a `fit` and after one it also holds the progress of that, from which `resume`
        continues.
        Raises `CheckpointError` if it cannot be written, `ConfigError` if another training writes
        to it, `NumericsError` if a parameter is not finite, and `DeviceError` if a device has
        failed and `progress` belongs to steps lost with it; an existing file is left as it is.
        Without `progress`, a `DeviceWarning` says which step is written.
        """
        self.land()
        reached = self._progress if self._fit is None else self._fit.progress()
        lost = lose_steps(self.state, self.session)
        if reached and reached["fit"].get("step", 0) > self.steps:
            reached = {}  # some of its steps are lost with a device
        if lost:
            if progress is not None:
                raise DeviceError(f"the GPU has failed\n  {lost}", hint="save() writes that step")
            warnings.warn(DeviceWarning(f"the GPU has failed\n  {lost}"), stacklevel=2)

        def write(extra: Mapping[str, Array]) -> None:
            saving.save(
                path,
                self.state,
                self.session,
                progress=reached,
                overrides=progress,
                states=states,
                extra=extra,
                held=(self.checkpoint_lock, None if self._fit is None else self._fit.lock),
            )

        self.coordinator.save(path, write, states=states, carried=self._carried)
        self.last_checkpoint = Path(path)

    def load(self, path: str | os.PathLike[str], *, strict: bool = True) -> list[str]:
        """Copy the parameters in `path` into the model, in place, and nothing else.

        See `cavs.train.load_parameters`. Raises `CheckpointError`, with the model untouched, if the
        file does not fit.
        """
        self.land()
        return saving.load(path, self.state, self.session, self.coordinator, strict=strict)

    def resume(self, path: str | os.PathLike[str], *, strict: bool = True) -> Checkpoint:
        """Continue the run that wrote `path`: the next `fit` starts from its progress.

        Parameters and optimiser states are written in place; step and seed are the run's. A file
        saved before any `fit` has no epochs: the next one begins with the first.

        strict: Require the optimiser's arguments, a schedule's too, and max_norm to be those of the
            run; if False, the training continues with those of this trainer.

        Raises `CheckpointError`, with everything untouched, if the file does not fit.
        """
        self.land()

        def read() -> Checkpoint:
            stored = saving.restore(path, self.state, self.session, strict=strict)
            self._progress = fit_progress(stored.progress)
            self.last_checkpoint = Path(path)
            arrays = carried(stored.extra)
            self._resume_point = ResumePoint(self.last_checkpoint, self._progress, arrays)
            self._carried = lambda: arrays
            return stored

        return self.coordinator.resume(path, read)


def _check_session_options(
    device: str | Device,
    precision: str,
    cudnn: str,
    deterministic: bool,
    threads: int | None,
    passes: Passes | None,
) -> None:
    """Refuse options that a given session has chosen already."""
    if device != "cpu":
        raise DeviceError(
            f"device is {device!r}, but the session given has one of its own",
            hint="cavs.Session(model, device=...)",
        )
    require(
        cudnn == "never", "cudnn", cudnn, "'never' with a session, which has a choice of its own"
    )
    need = "'float32' with a session, which has one of its own"
    require(precision == "float32", "precision", precision, need)
    need = "False with a session, which has a choice of its own"
    require(not deterministic, "deterministic", deterministic, need)
    require(threads is None, "threads", threads, "None with a session, which has its own threads")
    require(passes is None, "passes", passes, "None with a session, which has passes of its own")


def _new_session(model: ParameterizedModel, **options: Any) -> Engine:
    require(isinstance(model, Model), "model", model, "a cavs.Model")
    return Session(model, **options)  # type: ignore[arg-type]
