"""`Policy`: adapts a training while it runs, by hooks around it, its epochs and its steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cavs.config import require, require_count, require_number
from cavs.errors import CheckpointError, ConfigError
from cavs.train.batches import Loader
from cavs.train.monitors import Monitor, Monitors
from cavs.train.optimizer import Optimizer
from cavs.train.ranks import REDUCTIONS, RankGroup
from cavs.train.run_state import RunState
from cavs.train.run_table import RunTable, Setting

Array = NDArray[Any]
Hook = Literal[
    "before_train",
    "after_train",
    "before_epoch",
    "after_epoch",
    "before_step",
    "after_step",
    "on_resize",
]


class PolicyState(Protocol):
    """The part of a `TrainingState` that a `TrainingRun` reads and changes."""

    steps: int
    lr_scale: float
    optimizer: Optimizer


class TrainingRun:
    """A running `Trainer.fit`, as its policies see it and change it.

    Methods that communicate or change something are called on all ranks in the same order, as the
    hooks are. A change takes effect with the next step.

    Attributes:
        loss: Loss of the global batch of the last step; NaN before the first.
        grad_norm: Global norm of its gradient before clipping.
        optimizer: The optimiser.
        loader: The training batches.
        table: All settings that may change; see `RunTable`.
        stopping: True after `stop`.
    """

    def __init__(
        self,
        state: PolicyState,
        loader: Loader,
        run: RunState,
        group: RankGroup,
        table: RunTable,
        monitors: Monitors,
    ) -> None:
        self._state, self._run, self._group, self._monitors = state, run, group, monitors
        self.loader, self.optimizer, self.table = loader, state.optimizer, table
        self.loss = self.grad_norm = float("nan")
        self.stopping = False
        self.on_change: Callable[[str, Any], None] = lambda name, value: None
        for name, setting in group.settings().items():
            table.declare(name, setting)
        table.declare("batch_size", Setting(self._batch_size, self._write_size, self._check_size))
        table.declare("lr_scale", Setting(lambda: state.lr_scale, self._write_scale, _check_scale))

    # ---- facts ---------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """Number of this process, in [0, size)."""
        return self._group.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._group.size

    @property
    def step(self) -> int:
        """Number of updates so far."""
        return self._state.steps

    @property
    def epoch(self) -> int:
        """Number of the running epoch, from 1."""
        return self._run.epoch + 1

    @property
    def batch_size(self) -> int:
        """Graphs of a global batch, from the next step on."""
        return self.loader.batch_size

    @property
    def lr(self) -> float:
        """Learning rate of the next update."""
        return self.optimizer.rate(self.step) * self._state.lr_scale

    @property
    def lr_scale(self) -> float:
        """The number that multiplies the rates of the optimiser's schedule."""
        return self._state.lr_scale

    @property
    def measures(self) -> Mapping[str, float]:
        """Last value of every monitor by name; NaN until there is one."""
        return self._monitors.values()

    @property
    def noise_scale(self) -> float:
        """Gradient noise scale in graphs; NaN until `monitors.NoiseScale` has a value."""
        return self.measures.get("noise_scale", float("nan"))

    @property
    def gradient_variance(self) -> float:
        """Trace of the covariance of the gradients of the ranks; NaN until it is known."""
        return self.measures.get("gradient_variance", float("nan"))

    @property
    def throughput(self) -> float:
        """Graphs per second of all ranks together, over the last steps."""
        return self.measures.get("throughput", float("nan"))

    @property
    def max_size(self) -> int:
        """Largest number of ranks that `resize` can give: those that train and those that wait."""
        return self._group.most

    @property
    def detached(self) -> bool:
        """True if the training goes on without this rank; it then makes no further call."""
        return self._group.detached

    # ---- communication -------------------------------------------------------------------------

    def all_reduce(self, value: ArrayLike, op: str = "sum") -> Any:
        """Return the reduction of `value` over the ranks: a float for a number, else an array.

        op: ``"sum"``, ``"min"``, ``"max"`` or ``"mean"``; of numbers in float64, of arrays in their
        dtype.
        """
        require(op in REDUCTIONS, "op", op, f"one of {', '.join(REDUCTIONS)}")
        return _like(value, self._group.all_reduce(_array(value), op))

    def broadcast(self, value: ArrayLike, root: int = 0) -> Any:
        """Return the `value` of rank `root`, on all ranks."""
        return _like(value, self._group.broadcast(_array(value), root))

    def all_gather(self, value: ArrayLike) -> list[Any]:
        """Return the values of all ranks, by rank."""
        return [_like(value, array) for array in self._group.all_gather(_array(value))]

    def keep(self, tag: str, value: ArrayLike) -> None:
        """Keep a copy of `value` for requests of other ranks; it replaces the one before.

        The first `keep` or `request` of a group of ranks is made on all of them.
        """
        self._group.keep(tag, _array(value))

    def request(self, rank: int, tag: str) -> Any:
        """Return the array that `rank` keeps last under `tag`, whatever it does meanwhile.

        Waits for the first one. Raises `CommunicationError` after the timeout.
        """
        return self._group.request(rank, tag)

    # ---- changes -------------------------------------------------------------------------------

    def adapt(self, name: str, value: Any) -> bool:
        """Change a setting of the `table` on all ranks; see `RunTable.adapt`."""
        before = self.table.version
        done = self.table.adapt(name, value)
        if self.table.version != before:
            self.on_change(name, value)
        return done

    def set_batch_size(self, size: int) -> bool:
        """Let global batches have `size` graphs from the next step on.

        Returns False, with nothing changed, if the ranks ask for different sizes. The learning rate
        stays: see `set_lr_scale`.
        """
        return self.adapt("batch_size", size)

    def set_lr_scale(self, scale: float) -> bool:
        """Multiply the rates of the optimiser's schedule by `scale`, not by earlier scales too.

        Returns False, with nothing changed, if the ranks ask for different scales.
        """
        return self.adapt("lr_scale", scale)

    def resize(self, size: int) -> bool:
        """Go on with `size` ranks from the next step on: fewer, or more from the spares.

        Global batches keep their size. Returns False, with nothing changed, if the ranks ask for
        different sizes. Raises `ConfigError` on all ranks for a size below 1, or above the number
        of ranks and spares.
        """
        return self.adapt("size", size)

    def set_tree(self, tree: Sequence[int]) -> bool:
        """Reduce along another tree from the next step on.

        tree: The parent of each rank; the root is its own parent. Returns False, with nothing
        changed, if the ranks ask for different trees. Raises `ConfigError` on all ranks if it is no
        tree.
        """
        return self.adapt("tree", [int(parent) for parent in tree])

    def set_strategy(self, strategy: str | None) -> bool:
        """Go on with another strategy of synchronisation from the next step on.

        strategy: The name of a builder, as for `cavs.distributed.Trainer`; None for all-reduce.
        Replicas that differ are averaged before. Returns False, with nothing changed, if the ranks
        ask for different ones. On one process it changes nothing.
        """
        return self.adapt("strategy", strategy)

    def set_exchange_budget(self, budget: float) -> bool:
        """Exchange the part `budget`, in (0, 1], of all gradients in a step, from the next step on.

        The strategy becomes, or stays, `PartialExchange`. Returns False, with nothing changed, if
        the ranks ask for different values. On one process it changes nothing.
        """
        return self.adapt("exchange_budget", budget)

    def latency_tree(self, nbytes: int = 0) -> list[int]:
        """Return the minimum spanning tree of the latencies between ranks, measured now.

        nbytes: size of the messages whose time is taken; large ones show how fast a link is.
        """
        require(type(nbytes) is int and nbytes >= 0, "nbytes", nbytes, "a number of bytes, or 0")
        return self._group.latency_tree(nbytes)

    def stop(self) -> bool:
        """End the `fit` after this step, with a checkpoint; returns False if ranks disagree.

        All ranks call it after the same step.
        """
        self.stopping = self._group.same(b"stop") or self.stopping
        return self.stopping

    def _batch_size(self) -> int:
        return self.loader.batch_size

    def _write_size(self, size: int) -> None:
        self.loader.batch_size = size

    def _check_size(self, size: Any) -> None:
        require_count("batch_size", size)

    def _write_scale(self, scale: float) -> None:
        self._state.lr_scale = float(scale)


class Policy:
    """Base class of policies: override the hooks that adapt a training.

    ``fit(policies=[...])`` calls ``before_*`` and ``on_resize`` in the order of the list and
    ``after_*`` in reverse, on every rank. Hooks read and change the training through a
    `TrainingRun`. An exception in a hook ends the run on all ranks. See ``docs/policies.md`` and
    Mai et al., KungFu, OSDI 2020, section 3.

    monitors: The monitors that the policy reads; `fit` runs them.
    """

    monitors: Sequence[Monitor] = ()
    name: ClassVar[str] = "Policy"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.name = cls.__name__

    def before_train(self, run: TrainingRun) -> None:
        """Called before the first step of a `fit`."""

    def after_train(self, run: TrainingRun) -> None:
        """Called after the last step of a `fit`, unless an error or Ctrl-C ends it."""

    def before_epoch(self, run: TrainingRun) -> None:
        """Called before the first step of an epoch."""

    def after_epoch(self, run: TrainingRun) -> None:
        """Called after the evaluation of an epoch, before its checkpoint is written."""

    def before_step(self, run: TrainingRun) -> None:
        """Called before a step, when its batch is ready."""

    def after_step(self, run: TrainingRun) -> None:
        """Called after a step that updated the parameters."""

    def on_resize(self, run: TrainingRun, old: int, new: int) -> None:
        """Called before the first step of `new` ranks, on all of them; `old` made the step before.

        The number of ranks changes by `TrainingRun.resize`, and when a rank dies in an elastic
        training. A rank that joins has the state of the others. Another resize that the hook asks
        for comes about after the next step.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what the policy has learned, as JSON values; checkpoints store it."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a result of `state_dict`."""


class Policies:
    """The policies of a `fit`, called together."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        for i, policy in enumerate(policies):
            require(isinstance(policy, Policy), f"policies[{i}]", policy, "a cavs.train.Policy")
        self.policies = tuple(policies)

    def __bool__(self) -> bool:
        return bool(self.policies)

    def call(self, hook: Hook, run: TrainingRun, *facts: int) -> None:
        """Call one hook of all policies: ``after_*`` in reverse, others in order."""
        in_order = reversed(self.policies) if hook.startswith("after") else self.policies
        for policy in in_order:
            getattr(policy, hook)(run, *facts)

    def state_dict(self) -> list[list[Any]]:
        """Return name and state of every policy, as JSON values."""
        found = []
        for policy in self.policies:
            state = policy.state_dict()
            try:
                found.append([policy.name, json.loads(json.dumps(state))])
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"{policy.name}.state_dict returns {state!r:.80}, which is no JSON object",
                    hint="return numbers, texts, lists and dicts of these",
                ) from error
        return found

    def load_state_dict(self, stored: Any) -> None:
        """Give every policy the state of the first one of its name that is left in `stored`."""
        try:
            left = [(str(name), dict(state)) for name, state in stored]
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint has an invalid state of policies: {stored!r:.80}",
                hint="take an older checkpoint",
            ) from error
        for policy in self.policies:
            known = next((entry for entry in left if entry[0] == policy.name), None)
            if known is not None:
                left.remove(known)
                policy.load_state_dict(known[1])


def _array(value: ArrayLike) -> Array:
    array = np.asarray(value)
    return np.array([array], np.float64) if array.ndim == 0 else np.ascontiguousarray(array)


def _like(value: ArrayLike, array: Array) -> Any:
    return float(array[0]) if np.ndim(value) == 0 else array


def _check_scale(scale: Any) -> None:
    require_number("lr_scale", scale, "a number above 0", lambda x: x > 0)
