"""`Trainer`: the training loop of `cavs.Trainer` on many ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from cavs.compiler.pipeline import Passes
from cavs.config import require, require_flag
from cavs.cuda.device import Device
from cavs.distributed.balance.shards import Split, contiguous
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm.agreement import Agreement
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.comm.mpi.communicator import check_survivable
from cavs.distributed.comm.own_ranks import ranks_of
from cavs.distributed.coordinator import RankCoordinator
from cavs.distributed.elastic.training import RankTraining
from cavs.distributed.planning.choice import number_of_replicas, possible_variables
from cavs.distributed.step.devices import device_of_rank
from cavs.distributed.step.report import StepReport
from cavs.distributed.step.session import DistributedSession
from cavs.distributed.strategy import Strategy
from cavs.distributed.strategy.ranks import fits
from cavs.distributed.strategy.verify import verify, verify_optimizer
from cavs.errors import CommunicationError, renamed
from cavs.frontend.model import Model
from cavs.runtime import Session
from cavs.train import Trainer as LocalTrainer
from cavs.train.fit_options import Metrics
from cavs.train.optimizer import Optimizer
from cavs.train.stepping import TrainingState

_OF_TRAINING = ("begun", "deterministic", "elastic", "precision", "resources")


@renamed(
    {"asked": "requested_strategy"}
    | {name: f"coordinator.training.{name}" for name in _OF_TRAINING}
)
class Trainer(LocalTrainer):
    """Trains `model` on all ranks of `communicator`: every rank runs the same program.

    Batches given to `step` and `fit` are global: the same on every rank, which computes its shard.
    With a synchronous strategy the parameters are those of one process on the same batches, up to
    rounding; with stale ones see ``docs/distributed.md``, and `settle`. Dropout masks differ by
    rank.

    Args:
        model: A `cavs.Model`; rank 0's parameters are sent to all before anything is computed.
        optimizer: As for `cavs.Trainer`.
        strategy: How gradients are synchronised: a `Strategy`; the name of a builder such as
            ``"PartitionedPS"``, a file, or ``"auto"``, from which rank 0 builds one at the first
            step; or None: all-reduce, in buckets as they become ready. The i-th of its devices is
            on the host of rank i.
        communicator: The ranks, with their own timeout; by default those that mpirun started.
        resources: For builders: the cluster; by default the hosts of the ranks.
        split: Assigns the graphs of a batch to ranks; by default equal numbers, in order. A method
            ``update`` gets the seconds that every rank computed in a step, as of a `Balancer`.
        timeout: Seconds that a rank of mpirun waits for another, before it names it; 300 if None.
        elastic: Go on with the surviving ranks when one dies; needs ``cavs launch --elastic``, and
            is refused where the MPI would end all ranks.
        wait_free: Send gradients while backward still runs.
        dtype: np.float32, or np.float64 for checks.
        device: "cpu"; "cuda", one of the GPUs of each host for each of its replicas; "cuda:1", or
            a cavs.cuda Device. All replicas compute on the CPU, or all on GPUs.
        precision, deterministic, passes, scheduling: As for `cavs.Session`. The ranks of a step
            train in one order of tasks.
        save_replicas: Checkpoints hold every replica besides their mean, if the strategy lets them
            differ; as many ranks then resume with the same bits.
        collectives: How dense gradients of devices are summed: "nccl" in their memory, "mpi" on the
            hosts, "auto" by NCCL where CuPy has it and no two ranks share a device.
        threads, seed, max_norm, config: As for `cavs.Trainer`.

    Rank 0 writes checkpoints and logs and shows progress; call `save`, `load` and `resume` on all
    ranks. An error on one rank is raised on all. Same program, seed and number of ranks: same bits.
    """

    session: DistributedSession
    coordinator: RankCoordinator

    def __init__(
        self,
        model: Model,
        optimizer: Optimizer,
        *,
        strategy: Strategy | str | None = None,
        communicator: Communicator | None = None,
        resources: ResourceSpec | None = None,
        split: Split = contiguous,
        timeout: float | None = None,
        elastic: bool = False,
        wait_free: bool = True,
        dtype: Any = np.float32,
        device: str | Device = "cpu",
        precision: str = "float32",
        deterministic: bool = False,
        save_replicas: bool = False,
        collectives: str = "auto",
        passes: Passes | None = None,
        scheduling: str = "auto",
        cudnn: str = "never",
        threads: int | None = None,
        seed: int = 0,
        max_norm: float | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        require(cudnn == "never", "cudnn", cudnn, "'never' on many ranks")
        c = ranks_of(communicator, timeout)
        own = device_of_rank(
            device,
            c,
            collectives,
            lambda: number_of_replicas(strategy, model, c, resources),
            lambda: check_survivable(c) if elastic else None,
        )
        only_owns = own == "cpu" and device != "cpu"
        local = Session(
            model,
            threads=threads,
            dtype=dtype,
            passes=passes,
            replicated=True,
            device=own,
            precision="float32" if only_owns else precision,
            deterministic=deterministic,
            scheduling=scheduling,
        )
        chosen = None if isinstance(strategy, str) else strategy
        if chosen is not None:
            known = possible_variables(model, str(local.dtype))
            verify(chosen, known, resources)
            verify_optimizer(chosen, optimizer)
            if c.pool is None or c.pool.is_member:
                fits(chosen, c.size)
        session = DistributedSession(
            local, c, chosen, split=split, wait_free=wait_free, collectives=collectives
        )
        require_flag("save_replicas", save_replicas)
        session.replicas.saves = save_replicas
        state = TrainingState(model, optimizer, seed=seed, max_norm=max_norm, config=config)
        training = RankTraining(
            state, session, strategy, resources, elastic, precision, deterministic, scheduling
        )
        self.requested_strategy = strategy
        self._compose(state, session, RankCoordinator(training))

    @property
    def strategy(self) -> Strategy | None:
        """The strategy that runs; one requested by name is None before the first step."""
        return self.session.strategy

    @property
    def communicator(self) -> Communicator:
        """The present ranks."""
        return self.session.communicator

    @property
    def agreement(self) -> Agreement:
        """Consensus of the present ranks."""
        return self.session.agreement

    def advance(self, batch: Any) -> StepReport:
        """Make one update on the global `batch`; see `cavs.Trainer.advance`."""
        return self.coordinator.run_step(self._stepper.advance, batch)

    def begin(self, batch: Any = None) -> None:
        """Check that all ranks train the same and send them rank 0's parameters; done once.

        The first step does it otherwise. batch: The first global batch; strategies built by name
        take the sizes of gradients from it.
        """
        self.coordinator.begin(batch)

    def evaluate_replicas(
        self, loader: Iterable[Any], metrics: Metrics = ()
    ) -> list[dict[str, float]]:
        """Return `evaluate` of the replica of every rank, by rank; all ranks call it.

        They differ if the strategy lets them; `evaluate` is of their mean. loader: Batches that can
        be iterated several times.
        """
        replicas, found = self.session.replicas, list[dict[str, float]]()
        if not replicas.differ:
            return [self.evaluate(loader, metrics)] * self.session.position[1]
        while len(found) < self.session.position[1]:  # a rank may die
            replicas.evaluated = len(found)
            try:
                found.append(self.evaluate(loader, metrics))
            finally:
                replicas.evaluated = None
        return found

    def settle(self) -> None:
        """Wait for all ranks; then every gradient is applied and all hold the same parameters.

        For programs of your own with stale parameters, before they read them; nothing otherwise.
        """
        self.coordinator.settle()

    def close(self) -> None:
        """Wait until all ranks close their trainer, then end the communication."""
        self.coordinator.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, error_type: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        elif not isinstance(error, CommunicationError):
            self.coordinator.training.report_error("end", error)
