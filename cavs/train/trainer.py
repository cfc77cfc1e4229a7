"""`Trainer`: a model, an optimiser and the engine that runs both."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavs.config import require, require_flag, require_number, require_seed, require_threads
from cavs.cuda.device import Device
from cavs.errors import (
    ConfigError,
    DeviceError,
    DeviceWarning,
    NumericsError,
)
from cavs.frontend.model import Model, require_same_parameters
from cavs.runtime import Session, StepResult
from cavs.runtime.check import NOT_FINITE, named
from cavs.train import evaluation
from cavs.train.checkpoint import (
    Checkpoint,
    ParameterizedModel,
    load_parameters,
    recall_edge_types,
    require_json,
    save_checkpoint,
)
from cavs.train.claim import Claim, writing
from cavs.train.engine import Engine, StepOutcome
from cavs.train.fit import FitOptions, FitResult, OnEvent, Run, spares
from cavs.train.loader import DataLoader
from cavs.train.metrics import Measure, Metric, as_metrics
from cavs.train.optim import Optimizer
from cavs.train.settings import check_settings
from cavs.train.standing import Resumed, read_resumable, standing_in

Array = NDArray[Any]
Metrics = Iterable[Metric | Measure] | Mapping[str, Metric | Measure]


class Step(NamedTuple):
    """A step on `batch`, and what it has come to."""

    batch: Any
    outcome: StepOutcome


class Trainer:
    """Trains `model` with `optimizer`.

    Args:
        model: A `cavs.Model`; its parameters are written in place.
        optimizer: Such as `cavs.optim.Adagrad(lr=0.05)`. Of a `Plateau` in it a trainer has its own
            that starts anew, in `Trainer.optimizer`.
        device: ``"cpu"``, or ``"cuda"``, ``"cuda:1"`` for an NVIDIA GPU: the same results.
        precision: Of products: ``"float32"``; faster are ``"int16"``, within about 8e-5 of their
            norm, more where rows have outliers, on a CPU with AVX-512 VNNI, ``"bfloat16"``, 8 bits
            of each factor, on one with AMX or AVX-512 BF16, and ``"bfloat16x3"``, 16 bits, on one
            with AMX, all ``"float32"`` on others; on a GPU ``"tf32"``, 11 bits, and
            ``"bfloat16"``, which there stores packed weights and activations in it, too, in half
            the memory. Sums of products, parameters, gradients and states are float32 in any case.
        cudnn: Whether cuDNN runs LSTMs over chains on a GPU: ``"never"``, ``"always"``, or
            ``"auto"``, where it measures faster.
        deterministic: What libraries of a GPU compute has one order of sums too, at a price; all
            else gives the same bits in every run anyway.
        seed: Of everything random inside a step (dropout).
        max_norm: Clip the gradient to this global norm.
        threads: Of the engine; by default what the affinity mask and the quota allow.
        session: An engine to use instead of a new `cavs.runtime.Session`.
        config: A JSON object kept in every checkpoint, such as the options of the model.

    Same seed and thread count: bit-identical parameters (but for ``cudnn="auto"``, whose clocks
    decide).
    """

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
        session: Engine | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        require(isinstance(optimizer, Optimizer), "optimizer", optimizer, "a cavs.optim optimiser")
        if session is not None and device != "cpu":
            raise DeviceError(
                f"device is {device!r}, but the session given has one of its own",
                hint="cavs.Session(model, device=...)",
            )
        own = session is None or cudnn == "never"
        require(own, "cudnn", cudnn, "'never' with a session, which has a choice of its own")
        own = session is None or precision == "float32"
        require(own, "precision", precision, "'float32' with a session, which has one of its own")
        require_seed(seed)
        require(isinstance(config, Mapping | None), "config", config, "a dict")
        self.config = dict(config or {})
        require_json("config", self.config)
        if max_norm is not None:
            require_number("max_norm", max_norm, "None or a number above 0", lambda x: x > 0)
        if threads is not None:
            require_threads(threads)
        is_model = hasattr(model, "parameters") and not isinstance(model, type)
        require(is_model, "model", model, "a cavs.Model")
        self.model, self.seed, self.max_norm = model, seed, max_norm
        self.optimizer = optimizer.fresh()
        self.parameters = model.parameters()
        if not any(p.trainable for p in self.parameters.values()):
            raise ConfigError("the model has no trainable parameter", hint="add a cavs.Parameter")
        self.session: Engine = (
            session
            if session is not None
            else _new_session(model, threads, device, precision, cudnn, deterministic)
        )
        self._factors = optimizer.factors(self.parameters)
        self.session.keep_dtype()  # states have the parameters'
        self.states = optimizer.init_states(list(self.parameters.values()))
        self.steps = 0
        self._flying: list[tuple[Any, StepOutcome]] = []  # launched, not ended
        self._ended: list[Step] = []  # ended, not returned
        self.last_checkpoint: Path | None = None
        self.claim: Claim | None = None  # on the checkpoint of a `fit`, if held before it
        self._resumed: Resumed | None = None
        self._run: Run | None = None  # the `fit` that goes on
        self._stood: dict[str, Any] = {}  # where the last one stood in the end
        self._extra: dict[str, Array] = {}  # what checkpoints keep of the engine besides

    def step(self, batch: Any) -> float:
        """One update on `batch`; the loss before it.

        Raises `NumericsError`, with nothing updated, if the loss or the gradient is not finite.
        """
        return self.advance(batch).loss

    def advance(self, batch: Any) -> StepOutcome:
        """`step`, returning the gradient's norm too."""
        if self._overlapping() is not None:
            return [*self.launch(batch), *self.land()][-1].outcome
        return self._judged(batch, self.session.step(batch, **self._terms(self.steps)))

    def launch(self, batch: Any) -> list[Step]:
        """Starts an update on `batch`; the steps that have ended meanwhile.

        On the CPU that is this step. A device goes on with it while the host makes the next one
        ready, and the step before has ended. `land` ends the last.

        Raises `NumericsError` for the step that is not finite, with nothing of the next applied.
        """
        session = self._overlapping()
        if session is None:
            return [Step(batch, self.advance(batch))]
        number = self.steps + len(self._flying)
        after = self._flying[-1][1] if self._flying else None
        try:
            outcome = session.launch(batch, **self._terms(number), after=after)
        except BaseException as error:
            self._ended = self.land()  # the step before counts whatever becomes of this one
            self._go_back(error)
            raise
        self._flying.append((batch, outcome))
        return self._land(1)

    def land(self) -> list[Step]:
        """Waits for the steps that `launch` has started: those that have not been returned."""
        return self._land(0)

    def _land(self, left: int) -> list[Step]:
        while len(self._flying) > left:
            batch, outcome = self._flying[0]
            try:
                known = StepResult(outcome.loss, outcome.grad_norm)  # holds no memory of the device
                self._ended.append(Step(batch, self._judged(batch, known)))
            except Exception as error:
                self._flying.clear()  # those behind it have changed nothing
                self._go_back(error)
                raise
            del self._flying[0]
        ended, self._ended = self._ended, []
        return ended

    def _go_back(self, error: BaseException) -> None:
        """To the step that the host's parameters are of, if later ones are lost with a device.

        Raises `error` anew then, which says so.
        """
        lost = self._lost() if isinstance(error, DeviceError) else ""
        if isinstance(error, DeviceError) and lost:
            hint = f"{error.hint}\n  save() and resume() go on from step {self.steps}"
            raise DeviceError(f"{error.what}\n  {lost}", where=error.where, hint=hint) from error

    def _lost(self) -> str:
        """What is lost with a device that has failed, in words; `steps` goes back by it."""
        session = self._overlapping()
        lost = 0 if session is None else session.lost_steps()
        if not lost:
            return ""
        reached, self.steps = self.steps, max(0, self.steps - lost)
        of = f"of step {self.steps}" if self.steps else "those before the first step"
        return (
            f"{lost} of {reached} steps are lost with it: parameters and optimiser states on the "
            f"host are {of}"
        )

    def _overlapping(self) -> Engine | None:
        """The session, if a step may go on there while the next one is made ready."""
        return self.session if self.session.overlaps else None

    def _terms(self, number: int) -> dict[str, Any]:
        """What the engine is told of step `number`, counted from 0."""
        parameters = self.parameters.values()
        if self.optimizer.lacks_states(parameters, self.states):
            self.session.keep_dtype()  # which a session of another dtype may have changed
            self.optimizer.complete_states(parameters, self.states)
        return {
            "hyper": self.optimizer.hyper(number) | self._factors,
            "states": self.states,
            "seed": self.seed,
            "step": number,
            "max_norm": self.max_norm,
        }

    def _judged(self, batch: Any, outcome: StepOutcome) -> StepOutcome:
        """Counts the step, if it is finite."""
        if not (math.isfinite(outcome.loss) and math.isfinite(outcome.grad_norm)):
            raise self._not_finite(batch, outcome)
        self.steps += 1
        return outcome

    def _not_finite(self, batch: Any, outcome: StepOutcome) -> NumericsError:
        found = f"loss is {outcome.loss}, the norm of the gradient {outcome.grad_norm}"
        return NumericsError(
            f"step {self.steps + 1}: the {found}, on {named(batch)}; nothing was updated\n"
            f"  last good checkpoint: {self.last_checkpoint or 'none was written'}",
            hint=NOT_FINITE,
        )

    @property
    def _writes(self) -> bool:
        """Whether this process writes the files of a `fit`."""
        return True

    def _saves_after(self, error: Exception, evaluating: bool) -> bool:
        """Whether a `fit` that `error` ends writes a checkpoint first."""
        return spares(error, evaluating)

    def stops(self, requested: bool) -> bool:
        """Whether a run is to stop, given that this process was asked to; for who trains alone."""
        return requested

    def stops_at_end(self, requested: bool) -> bool:
        """`stops`, asked once, after the last epoch."""
        return requested

    def _whole(self, loss_sum: float) -> float:
        """The sum of the losses of a run so far, over all processes."""
        return loss_sum

    def _arriving(self, batches: Iterable[Any]) -> Iterable[Any]:
        """The batches of a training as they come; other processes learn of one that cannot."""
        return batches

    def _mine(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Of the batches of an evaluation, those that this process takes."""
        return batches

    def _combined(self, sums: Array) -> Array:
        """The sums of an evaluation over all processes."""
        return sums

    def _divide(self, train: DataLoader) -> None:
        """Lets the loader of a training make what this process computes of each batch."""

    def prepare_evaluation(self, batch: Any) -> None:
        """Makes the schedule of a batch to be evaluated; safe in a background thread."""
        self.session.prepare(batch, training=False)

    def _attach(self, loader: Iterable[Any], training: bool) -> None:
        if not isinstance(loader, DataLoader):
            return
        evaluates = self.prepare_evaluation
        if loader.prepare is None or (training and loader.prepare == evaluates):
            loader.prepare = self.session.prepare if training else evaluates

    def evaluate(
        self,
        loader: Iterable[Any],
        metrics: Metrics = (),
        *,
        progress: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> dict[str, float]:
        """``"loss"`` and every metric over the batches of `loader`.

        A loss that is a mean over terms (such as `cavs.ops.cross_entropy`, where a term is a row
        with a label) is the mean over all terms of the data, however they are cut into batches.
        Any other loss is the mean of the batches' losses, weighted by their graphs; a sum thus
        grows with the batch. Without terms the loss is NaN.

        Ends early, with what it has, once `stop` says so. Raises `NumericsError` if the loss of
        a batch is not finite.
        """
        self.land()
        used = as_metrics(metrics)
        require(isinstance(loader, Iterable), "loader", loader, "a cavs.DataLoader")
        self._attach(loader, training=False)
        return evaluation.evaluate(self, loader, used, progress, stop)

    def fit(
        self,
        train: DataLoader,
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
    ) -> FitResult:
        """Train for `epochs` epochs (counted from the start of a resumed run).

        Args:
            train: The training batches.
            epochs: Passes over `train`.
            dev: Evaluated after every epoch.
            metrics: Of that evaluation, besides the loss.
            monitor: What tells the best epoch: by default the first metric, else ``"loss"``.
            patience: So many epochs in a row without improvement on `dev` are let pass, the next
                one ends the run: with 0 the first.
            checkpoint: Written after every epoch, and when Ctrl-C, a loss that is not finite, a bad
                graph or an error in the evaluation ends the run. The best parameters go to
                ``NAME.best.safetensors`` beside it. Refused where another training that is still
                running writes there, or where the file is of another model.
            checkpoint_every: Steps between further checkpoints inside an epoch.
            restore_best: End with the parameters of the best epoch. Of a resumed run they are read
                first, from beside the file that it was resumed from; `CheckpointError` if they are
                not there.
            log: JSON-lines file, appended to.
            progress: Show a progress bar on stderr.
            on_event: Called with what goes to the log, as ``on_event("epoch", record)``; events are
                "start", "epoch", "end", "interrupt", "numerics" and "error". What it raises ends
                the run; at an "epoch" the checkpoint of that has been written.

        Ctrl-C lets the running step end, writes the checkpoint and raises `KeyboardInterrupt`.
        """
        used = as_metrics(metrics)
        rest = (checkpoint, checkpoint_every, restore_best, progress, on_event)
        options = FitOptions(epochs, used, monitor, patience, *rest)
        self.land()
        self._attach(train, training=True)
        self._divide(train)
        run = Run(self, train, dev, options, log=log, resumed=self._resumed)
        self._resumed = None  # only now: a call that was refused may be mended
        self._run = run
        try:
            with run.held:
                return run.go()
        finally:
            self._stood, self._run = run.progress(), None

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        progress: Mapping[str, Any] | None = None,
        states: bool = True,
    ) -> None:
        """Write a checkpoint, atomically: parameters, optimiser states, step, seed, `progress`.

        In a `fit` and after one it also holds where that stood, from which `resume` goes on.
        Raises `CheckpointError` if it cannot be written, `ConfigError` if another training writes
        to it, `NumericsError` if a parameter is not finite, and `DeviceError` if a device has
        failed and `progress` is that of steps lost with it; a file there before is untouched.
        Without `progress`, a `DeviceWarning` says which step is written.
        """
        self.land()
        stood = self._stood if self._run is None else self._run.progress()
        lost = self._lost()
        if stood and stood["fit"].get("step", 0) > self.steps:
            stood = {}  # steps of it are lost with a device
        if lost:
            if progress is not None:
                raise DeviceError(f"the GPU has failed\n  {lost}", hint="save() writes that step")
            warnings.warn(DeviceWarning(f"the GPU has failed\n  {lost}"), stacklevel=2)
        for name, parameter in self.parameters.items():
            if not np.isfinite(parameter.current()).all():
                raise NumericsError(
                    f"step {self.steps}: parameter {name!r} is not finite, no checkpoint written\n"
                    f"  last good checkpoint: {self.last_checkpoint or 'none was written'}",
                    hint="lower lr, or set max_norm",
                )
        own = {"step": self.steps, "seed": self.seed, **self._told()}
        own["session"] = self.session.state_dict()
        self.session.keep_dtype()
        require_same_parameters(self.model, self.parameters)
        with writing(path, self.claim, None if self._run is None else self._run.claim):
            save_checkpoint(
                path,
                self.model,
                states=self.states if states else (),
                config=self.config,
                progress={**stood, **own, **(progress or {})},
                extra=self._extra if states else {},
            )
        self.last_checkpoint = Path(path)

    def _told(self) -> dict[str, Any]:
        """What a checkpoint keeps of how steps are made."""
        norm = None if self.max_norm is None else float(self.max_norm)
        return {"max_norm": norm, "optimizer": self.optimizer.state_dict()}

    def load(self, path: str | os.PathLike[str], *, strict: bool = True) -> list[str]:
        """Copy the parameters in `path` into the model, in place, and nothing else.

        See `cavs.train.load_parameters`. Raises `CheckpointError`, with the model untouched, if the
        file does not fit.
        """
        self.land()
        self.session.keep_dtype()
        others = load_parameters(self.model, path, strict=strict)
        self.session.invalidate()
        return others

    def resume(self, path: str | os.PathLike[str], *, strict: bool = True) -> Checkpoint:
        """Continue the run that wrote `path`: the next `fit` goes on where it stood.

        Parameters and optimiser states are written in place; step and seed are the run's. A file
        that was saved without any `fit` before has no epochs: the next one begins with the first.
        strict: The optimiser's arguments, a schedule's too, and max_norm are those of the run; if
        False, the training goes on with those of this trainer.
        Raises `CheckpointError`, with everything untouched, if the file does not fit.
        """
        self.land()
        self.session.keep_dtype()
        kind = self.optimizer.state_dict()["kind"]
        require_flag("strict", strict)
        stored = read_resumable(path, self.model, self.states, kind)
        if strict:
            check_settings(path, stored.progress, self._told())
        own = {name: p.value for name, p in self.parameters.items()}
        for name, arrays in zip(own, self.states, strict=True):
            if not arrays:  # it was trained then, and is not now
                arrays.extend(np.empty_like(saved) for saved in stored.states[name])
        self.session.load_state_dict(stored.progress.get("session") or {})
        self.optimizer.load_state_dict(stored.progress["optimizer"])
        recall_edge_types(self.model, stored)
        for (name, array), arrays in zip(own.items(), self.states, strict=True):
            np.copyto(array, stored.parameters[name])
            if not stored.states[name]:
                arrays.clear()  # frozen then: where it is trained now, its next step makes them
            for state, saved in zip(arrays, stored.states[name], strict=True):
                np.copyto(state, saved)
        self.session.invalidate()
        self.steps, self.seed = stored.progress["step"], stored.progress["seed"]
        self._stood = standing_in(stored.progress)
        self.last_checkpoint = Path(path)
        self._resumed = Resumed(self.last_checkpoint, self._stood)
        return stored


def _new_session(
    model: ParameterizedModel,
    threads: int | None,
    device: str | Device,
    precision: str,
    cudnn: str,
    deterministic: bool,
) -> Engine:
    require(isinstance(model, Model), "model", model, "a cavs.Model")
    return Session(
        model,  # type: ignore[arg-type]
        threads=threads,
        device=device,
        precision=precision,
        cudnn=cudnn,
        deterministic=deterministic,
    )
