"""`TrainingState`, which steps read and update, `Stepper`, which makes the steps, and `Loop`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from cavs.config import require, require_number, require_seed
from cavs.errors import ConfigError, DeviceError, NumericsError
from cavs.runtime import StepResult
from cavs.runtime.check import NOT_FINITE, named
from cavs.train.checkpoint import ParameterizedModel, require_json
from cavs.train.coordination import Coordinator
from cavs.train.engine import Engine, StepOutcome
from cavs.train.fit_options import Metrics
from cavs.train.optimizer import Optimizer

Array = NDArray[Any]


class TrainingState:
    """Model, optimiser and progress of a training on one process.

    Attributes:
        model: The model; its parameters are written in place.
        parameters: Its parameters by name.
        optimizer: The optimiser, with a `Plateau` schedule of its own.
        states: State arrays of the optimiser for each parameter; see `init_states`.
        steps: Number of updates so far.
        lr_scale: Scale of the optimiser's rate, which policies change.
        seed: Seed of everything random inside a step.
        max_norm: Global norm to which gradients are clipped.
        config: JSON object that is stored in every checkpoint.
        last_checkpoint: Path of the checkpoint that was written or read last.
    """

    def __init__(
        self,
        model: ParameterizedModel,
        optimizer: Optimizer,
        *,
        seed: int = 0,
        max_norm: float | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        require(isinstance(optimizer, Optimizer), "optimizer", optimizer, "a cavs.optim optimiser")
        require_seed(seed)
        require(isinstance(config, Mapping | None), "config", config, "a dict")
        self.config = dict(config or {})
        require_json("config", self.config)
        if max_norm is not None:
            require_number("max_norm", max_norm, "None or a number above 0", lambda x: x > 0)
        is_model = hasattr(model, "parameters") and not isinstance(model, type)
        require(is_model, "model", model, "a cavs.Model")
        self.model, self.seed, self.max_norm = model, seed, max_norm
        self.optimizer = optimizer.fresh()
        _ = self.optimizer.kernel or self.optimizer.program  # errors of its rule are raised here
        self.parameters = model.parameters()
        if not any(p.trainable for p in self.parameters.values()):
            raise ConfigError("the model has no trainable parameter", hint="add a cavs.Parameter")
        self._scales = optimizer.scales(self.parameters)
        self.states: list[list[Array]] = []
        self.steps, self.lr_scale = 0, 1.0
        self.last_checkpoint: Path | None = None

    def init_states(self, engine: Engine) -> None:
        """Allocate the optimiser's arrays, in the dtype that `engine` gives the parameters."""
        engine.keep_dtype()
        self.states = self.optimizer.init_states(list(self.parameters.values()))

    def step_arguments(self, engine: Engine, step: int) -> dict[str, Any]:
        """Return the arguments of `Engine.step` for step number `step`, counted from 0.

        Adds states of parameters that were frozen before.
        """
        parameters = self.parameters.values()
        if self.optimizer.lacks_states(parameters, self.states):
            engine.keep_dtype()
            self.optimizer.complete_states(parameters, self.states)
        hyper = self.optimizer.hyper(step) | self._scales
        if self.lr_scale != 1.0:
            hyper["lr"] *= self.lr_scale
        return {
            "hyper": hyper,
            "states": self.states,
            "seed": self.seed,
            "step": step,
            "max_norm": self.max_norm,
        }

    def settings(self) -> dict[str, Any]:
        """Return the settings of the steps that a checkpoint stores and a resumed run compares."""
        norm = None if self.max_norm is None else float(self.max_norm)
        return {"max_norm": norm, "optimizer": self.optimizer.state_dict()}

    @property
    def last_checkpoint_line(self) -> str:
        """Line of an error message that names the last checkpoint."""
        return f"last good checkpoint: {self.last_checkpoint or 'none was written'}"


class Step(NamedTuple):
    """A step on `batch` and its outcome."""

    batch: Any
    outcome: StepOutcome


class Loop(Protocol):
    """Methods of a `Trainer` that a `fit` calls, which a subclass may extend."""

    def launch(self, batch: Any) -> list[Step]:
        """Start a step; return the steps that have ended meanwhile."""
        ...

    def land(self) -> list[Step]:
        """Wait for the steps in flight; return those not returned yet."""
        ...

    def evaluate(
        self,
        loader: Iterable[Any],
        metrics: Metrics = (),
        *,
        stop: Callable[[], bool],
        carry: Mapping[str, str] | None,
    ) -> dict[str, float]:
        """Return loss and metrics over the batches of `loader`."""
        ...

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        progress: Mapping[str, Any] | None = None,
        states: bool = True,
    ) -> None:
        """Write a checkpoint to `path`."""
        ...

    def load(self, path: str | os.PathLike[str]) -> list[str]:
        """Copy the parameters in `path` into the model."""
        ...


class Stepper:
    """Makes the steps of a training.

    An engine that overlaps runs a launched step while the host prepares the next one.
    """

    def __init__(self, state: TrainingState, engine: Engine, coordinator: Coordinator) -> None:
        self.state, self.engine, self.coordinator = state, engine, coordinator
        self._in_flight: list[Step] = []  # launched, not ended
        self._ended: list[Step] = []  # ended, not returned

    def advance(self, batch: Any) -> StepOutcome:
        """Make one step of this process.

        Raises `NumericsError`, with nothing updated, if it is not finite.
        """
        if self.engine.overlaps:
            return [*self.launch(batch), *self.land()][-1].outcome
        arguments = self.state.step_arguments(self.engine, self.state.steps)
        return self._check_finite(batch, self.engine.step(batch, **arguments))

    def launch(self, batch: Any) -> list[Step]:
        """Start a step on an engine that overlaps; return the steps that have ended meanwhile."""
        engine = self.engine
        number = self.state.steps + len(self._in_flight)
        after = self._in_flight[-1].outcome if self._in_flight else None
        try:
            arguments = self.state.step_arguments(engine, number)
            outcome = engine.launch(batch, **arguments, after=after)
        except BaseException as error:
            self._ended = self.land()  # the previous step counts even if this one fails
            roll_back(self.state, engine, error)
            raise
        self._in_flight.append(Step(batch, outcome))
        return self._land(1)

    def land(self) -> list[Step]:
        """Wait for the steps in flight; return those that have not been returned."""
        return self._land(0)

    def _land(self, left: int) -> list[Step]:
        while len(self._in_flight) > left:
            batch, outcome = self._in_flight[0]
            try:
                # This holds no memory of the device.
                ended = StepResult(outcome.loss, outcome.grad_norm, outcome.aux)
                self._ended.append(Step(batch, self._check_finite(batch, ended)))
            except Exception as error:
                self._in_flight.clear()  # the steps behind this one update nothing
                roll_back(self.state, self.engine, error)
                raise
            del self._in_flight[0]
        ended_steps, self._ended = self._ended, []
        return ended_steps

    def _check_finite(self, batch: Any, outcome: StepOutcome) -> StepOutcome:
        """Count the step, or raise `NumericsError` if it is not finite."""
        state = self.state
        if not (math.isfinite(outcome.loss) and math.isfinite(outcome.grad_norm)):
            error = NumericsError(
                f"step {state.steps + 1}: the loss is {outcome.loss}, the norm of the gradient "
                f"{outcome.grad_norm}, on {named(batch)}; nothing was updated\n"
                f"  {state.last_checkpoint_line}",
                hint=NOT_FINITE,
            )
            self.coordinator.share_step_error(error)
            raise error
        state.steps += 1
        return outcome


def roll_back(state: TrainingState, engine: Engine, error: BaseException) -> None:
    """If `error` is a failed device, set `steps` back to the step of the host's parameters.

    Raises `DeviceError` from `error` if steps were lost; else returns.
    """
    lost = lose_steps(state, engine) if isinstance(error, DeviceError) else ""
    if isinstance(error, DeviceError) and lost:
        hint = f"{error.hint}\n  save() and resume() go on from step {state.steps}"
        raise DeviceError(f"{error.what}\n  {lost}", where=error.where, hint=hint) from error


def lose_steps(state: TrainingState, engine: Engine) -> str:
    """Subtract the steps that were lost with a failed device from `steps`.

    Returns a sentence for an error message that says how many; empty if none was lost.
    """
    lost = engine.lost_steps() if engine.overlaps else 0
    if not lost:
        return ""
    reached, state.steps = state.steps, max(0, state.steps - lost)
    found = f"of step {state.steps}" if state.steps else "those before the first step"
    return (
        f"{lost} of {reached} steps are lost with it: parameters and optimiser states on the "
        f"host are {found}"
    )
