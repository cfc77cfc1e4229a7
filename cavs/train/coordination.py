"""`Coordinator`: how a training loop agrees with the other processes of the same training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from cavs.errors import (
    CavsError,
    CheckpointError,
    CommunicationError,
    DeviceError,
    NumericsError,
)
from cavs.train.batches import Loader
from cavs.train.carry import Carry
from cavs.train.checkpoint import Checkpoint
from cavs.train.engine import StepOutcome
from cavs.train.fit_options import FitOptions
from cavs.train.monitors import Monitor, StepFacts
from cavs.train.optimizer import TrainableParameter
from cavs.train.ranks import OneRank, RankGroup

Array = NDArray[Any]
T = TypeVar("T")
#: Writes a checkpoint, with these arrays of the engine.
Write = Callable[[Mapping[str, Array]], None]
#: Returns the states that batches carry, of all graphs.
Carried = Callable[[], Mapping[str, Array]]


BEST = "best."  # prefix of the best parameters among the arrays for ranks that join


class Detached(BaseException):
    """Unwinds the loop of a rank that waits while others go on training."""


class Coordinator(Protocol):
    """Interface through which a training loop agrees with the other processes.

    All processes run the same loop and call the same methods in the same order. `SingleProcess`
    is the coordinator of a training on one process.
    """

    # ---- steps

    @property
    def group(self) -> RankGroup:
        """The ranks of the training, for policies."""
        ...

    def run_step(self, advance: Callable[[Any], StepOutcome], batch: Any) -> StepOutcome:
        """Return ``advance(batch)``, one step that all processes make together."""
        ...

    def share_step_error(self, error: NumericsError) -> None:
        """Let the other processes know of a step whose loss or gradient is not finite."""
        ...

    def should_stop(self, requested: bool) -> bool:
        """True if any process was asked to stop. requested: True if this one was."""
        ...

    def should_stop_at_end(self, requested: bool) -> bool:
        """`should_stop` after the last epoch, when no step follows."""
        ...

    # ---- fit

    @property
    def writes_files(self) -> bool:
        """True if this process writes checkpoints and logs and shows progress."""
        ...

    def fitting(self, train: object, options: FitOptions) -> AbstractContextManager[None]:
        """Return the context in which a `fit` runs."""
        ...

    def shard_loader(self, train: Loader) -> None:
        """Let the loader of a training collate only what this process computes of each batch."""
        ...

    def carry(self, options: FitOptions) -> Carry:
        """Return what carries states of this process from batch to batch in a `fit`."""
        ...

    def guard_batches(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Yield the batches of an epoch; report an error in producing one to other processes."""
        ...

    def guard_policies(self) -> AbstractContextManager[None]:
        """Return the context in which hooks of policies run; it reports an error in them."""
        ...

    def watch(self, monitors: Sequence[Monitor]) -> None:
        """Let `monitors` observe the gradients of the next step."""
        ...

    def restart_clock(self) -> None:
        """Let the seconds of the next step count from its own begin."""
        ...

    def step_facts(self, batch: Any, outcome: StepOutcome, seconds: float) -> StepFacts:
        """Return the facts of a step for monitors; seconds: since the step before."""
        ...

    def batch_size_changed(self) -> None:
        """Forget how batches were divided that the loader had made ahead."""
        ...

    def agreed_size(self) -> int:
        """Return the number of ranks, which all of them learn at the same point of the loop.

        After a death, that is the end of the next work that they do together.
        """
        ...

    def detached(self) -> bool:
        """True if this process waits while others train."""
        ...

    def wants_regroup(self) -> bool:
        """True if policies want another number of ranks."""
        ...

    def regroup_may_fail(self) -> bool:
        """True if bringing that about may end all processes, so that they save first."""
        ...

    def regroup(
        self,
        train: Loader,
        progress: Callable[[], Mapping[str, Any]],
        arrays: Mapping[str, Array],
    ) -> None:
        """Bring about the number of ranks that policies want, between two steps.

        progress: returns the progress of the `fit`, for ranks that join. arrays: further ones for
        them. Raises `Detached` on a rank that leaves.
        """
        ...

    def join(self, train: Loader, stopped: Callable[[], bool]) -> Checkpoint | None:
        """Wait until this process trains; return the state of the training, or None at its end."""
        ...

    def release(self) -> None:
        """Tell waiting processes that the `fit` has ended."""
        ...

    def sum_losses(self, loss_sum: float) -> float:
        """Return the sum of the losses of the epoch so far over all processes."""
        ...

    # ---- evaluation

    def run_evaluation(self, evaluate: Callable[[Iterable[Any]], T], batches: Iterable[Any]) -> T:
        """Return ``evaluate(batches)``, which all processes compute together."""
        ...

    def local_batches(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Return the batches of an evaluation that this process computes."""
        ...

    def should_end_evaluation(self, requested: bool, *, in_fit: bool) -> bool:
        """True if an evaluation is to end early. in_fit: True if it is part of a `fit`."""
        ...

    def reduce_metrics(self, sums: Array) -> Array:
        """Return the sums of an evaluation over all processes."""
        ...

    def whole_value(
        self, parts: Sequence[Array], value: Callable[[Sequence[Array]], float]
    ) -> float:
        """Return ``value(parts)`` of all batches of an evaluation, in order, on all processes.

        parts: float64 rows of each batch that this process computed.
        """
        ...

    # ---- checkpoints

    def may_save(self, error: Exception, *, evaluating: bool, in_policy: bool = False) -> bool:
        """True if a checkpoint may be written after `error` has ended a `fit`.

        in_policy: True if a hook of a policy raised it in this process.
        """
        ...

    def save(
        self, path: str | os.PathLike[str], write: Write, *, states: bool, carried: Carried
    ) -> None:
        """Bring the state of all processes together and have one of them `write` it to `path`.

        states: True if optimiser states and the states that batches carry are written too; carried:
        returns the latter, for which all processes call it.
        """
        ...

    def merged_values(self, parameters: Mapping[str, TrainableParameter]) -> dict[str, Array]:
        """Return copies of the values that a checkpoint would have."""
        ...

    def load(self, read: Callable[[], T]) -> T:
        """Return ``read()``, which reads parameters from a checkpoint on every process."""
        ...

    def resume(self, path: str | os.PathLike[str], read: Callable[[], Checkpoint]) -> Checkpoint:
        """Return ``read()``, which reads the checkpoint at `path` on every process."""
        ...


class SingleProcess(Coordinator):
    """Coordinator of a training on one process: there is no other to agree with."""

    writes_files = True

    def __init__(self) -> None:
        self._group = OneRank()

    @property
    def group(self) -> RankGroup:
        return self._group

    def run_step(self, advance: Callable[[Any], StepOutcome], batch: Any) -> StepOutcome:
        return advance(batch)

    def share_step_error(self, error: NumericsError) -> None:
        """See `Coordinator`."""

    def should_stop(self, requested: bool) -> bool:
        return requested

    def should_stop_at_end(self, requested: bool) -> bool:
        return requested

    def fitting(self, train: object, options: FitOptions) -> AbstractContextManager[None]:
        return nullcontext()

    def shard_loader(self, train: Loader) -> None:
        """See `Coordinator`."""

    def carry(self, options: FitOptions) -> Carry:
        return Carry(options.carry)

    def guard_batches(self, batches: Iterable[Any]) -> Iterable[Any]:
        return batches

    def guard_policies(self) -> AbstractContextManager[None]:
        return nullcontext()

    def watch(self, monitors: Sequence[Monitor]) -> None:
        """See `Coordinator`. The gradient of one process is that of the whole batch."""

    def restart_clock(self) -> None:
        """See `Coordinator`. The caller of `step_facts` has the only clock."""

    def step_facts(self, batch: Any, outcome: StepOutcome, seconds: float) -> StepFacts:
        graphs = batch.num_graphs
        return StepFacts(seconds, graphs, outcome.grad_norm, (graphs,), (seconds,))

    def batch_size_changed(self) -> None:
        """See `Coordinator`."""

    def agreed_size(self) -> int:
        return 1

    def detached(self) -> bool:
        return False

    def wants_regroup(self) -> bool:
        return False

    def regroup_may_fail(self) -> bool:
        return False

    def regroup(
        self,
        train: Loader,
        progress: Callable[[], Mapping[str, Any]],
        arrays: Mapping[str, Array],
    ) -> None:
        """See `Coordinator`."""

    def join(self, train: Loader, stopped: Callable[[], bool]) -> Checkpoint | None:
        return None

    def release(self) -> None:
        """See `Coordinator`."""

    def sum_losses(self, loss_sum: float) -> float:
        return loss_sum

    def run_evaluation(self, evaluate: Callable[[Iterable[Any]], T], batches: Iterable[Any]) -> T:
        return evaluate(batches)

    def local_batches(self, batches: Iterable[Any]) -> Iterable[Any]:
        return batches

    def should_end_evaluation(self, requested: bool, *, in_fit: bool) -> bool:
        return requested

    def reduce_metrics(self, sums: Array) -> Array:
        return sums

    def whole_value(
        self, parts: Sequence[Array], value: Callable[[Sequence[Array]], float]
    ) -> float:
        return value(parts)

    def may_save(self, error: Exception, *, evaluating: bool, in_policy: bool = False) -> bool:
        return leaves_state_valid(error, evaluating=evaluating or in_policy)

    def save(
        self, path: str | os.PathLike[str], write: Write, *, states: bool, carried: Carried
    ) -> None:
        write(carried() if states else {})

    def merged_values(self, parameters: Mapping[str, TrainableParameter]) -> dict[str, Array]:
        return {name: p.current().copy() for name, p in parameters.items()}

    def load(self, read: Callable[[], T]) -> T:
        return read()

    def resume(self, path: str | os.PathLike[str], read: Callable[[], Checkpoint]) -> Checkpoint:
        return read()


def leaves_state_valid(error: BaseException, *, evaluating: bool) -> bool:
    """True if a checkpoint can be written after `error`.

    After an error in an evaluation that is so unless a device, another rank or a checkpoint
    failed. After an error in a step it is so for errors of data and numerics only.
    """
    lost = isinstance(error, DeviceError | CommunicationError | CheckpointError)
    return not lost and (evaluating or isinstance(error, CavsError))
