"""`TrainingState`: everything that the steps of a training read and update."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from cavs.config import require, require_number, require_seed
from cavs.errors import ConfigError
from cavs.train.checkpoint import ParameterizedModel, require_json
from cavs.train.engine import Engine
from cavs.train.optim import Optimizer

Array = NDArray[Any]


class TrainingState:
    """Model, optimiser and progress of a training on one process.

    Attributes:
        model: The model; its parameters are written in place.
        parameters: Its parameters by name.
        optimizer: The optimiser, with a `Plateau` schedule of its own.
        states: State arrays of the optimiser for each parameter; see `init_states`.
        steps: Number of updates so far.
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
        self.parameters = model.parameters()
        if not any(p.trainable for p in self.parameters.values()):
            raise ConfigError("the model has no trainable parameter", hint="add a cavs.Parameter")
        self._scales = optimizer.scales(self.parameters)
        self.states: list[list[Array]] = []
        self.steps = 0
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
        return {
            "hyper": self.optimizer.hyper(step) | self._scales,
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
