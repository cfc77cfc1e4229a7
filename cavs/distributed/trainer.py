"""`Trainer`: the training loop of `cavs.Trainer` on many ranks."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cavs.config import require
from cavs.cuda.device import Device
from cavs.distributed.balance.shards import Collate, Division, Split, collate_of, contiguous
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm.agreement import Agreement, agreed, is_agreed, may_save
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.comm.launcher_pipe import report
from cavs.distributed.comm.mpi.fault_tolerance import check_survivable
from cavs.distributed.comm.world import ranks_of
from cavs.distributed.elastic.handshake import alike, compared, same_loader, start
from cavs.distributed.elastic.survivors import Survivors
from cavs.distributed.planning.choice import number_of_replicas, possible_variables
from cavs.distributed.step.devices import device_of_rank
from cavs.distributed.step.run import StepReport
from cavs.distributed.step.session import DistributedSession
from cavs.distributed.strategy import Strategy
from cavs.distributed.strategy.hosts import fits
from cavs.distributed.strategy.verify import verify, verify_optimizer
from cavs.errors import CommunicationError, ConfigError, NumericsError
from cavs.frontend.model import Model
from cavs.runtime import Session
from cavs.train import Trainer as LocalTrainer
from cavs.train.checkpoint import Checkpoint
from cavs.train.fit import FitResult
from cavs.train.loader import DataLoader
from cavs.train.optim import Optimizer
from cavs.train.trainer import Metrics

Array = NDArray[Any]
T = TypeVar("T")
_FAREWELL = 30.0  # seconds that a failing rank waits for the others to hear of it
_BRIEF = 3.0  # the same where they may have heard of it by letter


class Trainer(LocalTrainer):
    """Trains `model` on all ranks of `communicator`: every rank runs the same program.

    Batches given to `step` and `fit` are global: the same on every rank, which computes its part.
    With a synchronous strategy the parameters are those of one process on the same batches, but for
    rounding; with stale ones see ``docs/distributed.md``, and `settle`. Dropout masks differ from
    rank to rank, hence from those of one process.

    Args:
        model: A `cavs.Model`; rank 0's parameters are sent to all before anything is computed.
        optimizer: As for `cavs.Trainer`.
        strategy: What is done with each gradient: a `Strategy`; the name of a builder such as
            ``"PartitionedPS"``, a file, or ``"auto"``, from which rank 0 makes one at the first
            step; or None: all-reduce, in buckets as they become ready. It names devices that the
            ranks have, the i-th on the host of rank i.
        communicator: The ranks, with their own timeout; those that mpirun started unless given.
        resources: For builders: the cluster; the hosts of the ranks unless given.
        split: Which rank takes which graphs of a batch; equal numbers, in order, unless given. If
            it has a method ``update``, that is told the seconds every rank computed, after each
            step: a `cavs.distributed.balance.Balancer`.
        timeout: Seconds that a rank of mpirun waits for another, before it names it; 300 if None.
        elastic: Go on with the ranks that are left when one dies; needs ``cavs launch --elastic``,
            and is refused where the MPI would end all ranks.
        wait_free: Send gradients while backward still runs.
        dtype: np.float32, or np.float64 for checks.
        device: "cpu"; "cuda", one of the GPUs of each host for each of its ranks that compute;
            "cuda:1", or a cavs.cuda Device. The same kind on all ranks that compute.
        precision, deterministic: As for `cavs.Session`.
        collectives: How dense gradients of devices are summed: "nccl" in their memory, "mpi" on the
            hosts, "auto" by NCCL where CuPy has it and no two ranks share a device.
        more: As for `cavs.Trainer`.

    An error on one rank is raised on all. Same program, seed and number of ranks: same bits.
    """

    session: DistributedSession

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
        collectives: str = "auto",
        passes: Any = None,
        threads: int | None = None,
        **more: Any,
    ) -> None:
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
        )
        chosen = None if isinstance(strategy, str) else strategy
        if chosen is not None:
            known = possible_variables(model, str(local.dtype))
            verify(chosen, known, resources)
            verify_optimizer(chosen, optimizer)
            fits(chosen, c.size)
        session = DistributedSession(
            local, c, chosen, split=split, wait_free=wait_free, collectives=collectives
        )
        super().__init__(model, optimizer, session=session, **more)
        self.elastic, self.resources = elastic, resources
        self.precision, self.deterministic = precision, deterministic
        self.first_place = c.rank, c.size
        self.loader: dict[str, Any] = {}  # what `fit` goes through, as its state says
        self.ends: dict[str, Any] = {}  # those of its options that say when it ends, and with what
        self.asked = strategy
        self.begun, self._said = False, 0
        self._collate: Collate | None = None  # of the loader that `fit` goes through
        self._survivors = Survivors(self)

    # ---- steps ---------------------------------------------------------------------------------

    @property
    def strategy(self) -> Strategy | None:
        """What runs; where it was asked for by name, from the first step on."""
        return self.session.strategy

    def begin(self, batch: Any = None) -> None:
        """Checks that all ranks train the same, and sends them rank 0's parameters; done once.

        batch: the first global batch; strategies made by name take the sizes of gradients from it.
        """
        if self.begun:
            return
        start(self, batch)
        self.place()
        self.begun = True

    def place(self) -> None:
        """The loader makes this rank's part among those that compute; not all may, or still do."""
        if self._collate is not None:
            before, split = self._collate.division, self.session.split
            # A split that comes in the middle is asked by steps alone: loaders are not in step.
            ahead = before.ahead if before.split is split else math.inf
            self._collate.division = Division(self.session.place, split, ahead)

    def restart(self) -> None:
        """`begin` is to be done again: not all ranks had come to its end."""
        self.begun = False
        if isinstance(self.asked, str):
            self.session.strategy = None
            self.strategy_made()

    def strategy_made(self) -> None:
        """The strategy, or its absence, is one of the present ranks."""
        self._survivors.made()

    def advance(self, batch: Any) -> StepReport:
        """One update on the global `batch`; see `cavs.Trainer.advance`."""
        return self._survivors.go(lambda: self.advance_once(batch), step=True)

    def advance_once(self, batch: Any) -> StepReport:
        """`advance`, which ends when a rank does."""
        self.begin(batch)
        if self.elastic and self.session.owns:
            self._survivors.snapshots.before(batch)
        try:
            outcome = super().advance(batch)
        except Exception:
            self._forget_splits()  # its times will not come
            raise
        assert isinstance(outcome, StepReport)
        update = getattr(self.session.split, "update", None)
        if update is not None and self.session.roles.computes:
            # Freely running ranks do not know each other's times.
            reports = (outcome.rank_reports,) if outcome.rank_reports else ()
            update(outcome.rank_seconds or None, *reports)
            self._say(getattr(self.session.split, "warnings", ()))
        return outcome

    def _say(self, warnings: Sequence[str]) -> None:
        """What a split warns of, once; rank 0 alone."""
        for text in warnings[self._said :] if self.communicator.rank == 0 else ():
            print(f"cavs: {text}", file=sys.stderr, flush=True)
        self._said = len(warnings)

    def _forget_splits(self) -> None:
        """Of batches that are not going to be run."""
        reset = getattr(self.session.split, "reset", None)
        if reset is not None:
            reset()

    def _not_finite(self, batch: Any, outcome: Any) -> NumericsError:
        error = super()._not_finite(batch, outcome)
        if self.session.free:
            assert self.session.servers is not None
            self.session.servers.fail(error)
        else:
            agreed(error, ("step", "stale"))  # all ranks have this loss and norm
        return error

    @property
    def _writes(self) -> bool:
        return self.communicator.rank == 0

    def _saves_after(self, error: Exception, evaluating: bool) -> bool:
        # All ranks write together: after what all know of, and what they may write after.
        where = "evaluation" if evaluating else "stale" if self.session.stale.serves else "step"
        return may_save(error, where) and not self.session.free

    def _arriving(self, batches: Iterable[Any]) -> Iterator[Any]:
        try:
            yield from batches
        except Exception as error:  # the others are about to make the step
            if not isinstance(error, CommunicationError):
                self._tell("batch", error)
            self._forget_splits()  # nor will the times of what was made ahead come
            raise

    def stops(self, requested: bool) -> bool:
        """Whether any rank was asked to stop, as all ranks know it since their last step."""
        self.session.wants_stop |= requested
        if self.session.stopping or not self.session.free or self.session.servers is None:
            return self.session.stopping
        self.session.stopping = self._survivors.go(lambda: self._stops_freely(requested), step=True)
        return self.session.stopping

    def stops_at_end(self, requested: bool) -> bool:
        """Whether any rank was asked to stop: no step follows, so they meet for it."""
        self.session.wants_stop |= requested

        def work() -> None:
            self.session.stale.settle()
            meeting = self.agreement.meet("fit", stop=self.session.wants_stop)
            self.session.stopping |= meeting.stop

        if self.begun:
            self._survivors.go(work)
        return self.session.stopping

    def _stops_freely(self, requested: bool) -> bool:
        return self.session.servers is not None and self.session.servers.stops(requested)

    def settle(self) -> None:
        """Waits for all ranks; then every gradient is applied and all hold the same parameters.

        For programs of your own with stale parameters, before they read them; nothing otherwise.
        """
        if self.session.stale.serves:
            self._survivors.go(self.session.stale.settle)

    def _whole(self, loss_sum: float) -> float:
        """The sum of losses so far, which ranks know of their own parts if they run freely."""
        if not self.session.free:
            return loss_sum

        def work() -> float:
            self.session.stale.settle()
            rank, count = self.session.place
            total = np.array([loss_sum if rank < count else 0.0])
            self.communicator.all_reduce(total)
            return float(total[0]) / count

        return self._survivors.go(work)

    def _divide(self, train: DataLoader) -> None:
        require(isinstance(train, DataLoader), "train", train, "a cavs.DataLoader")
        self.loader = train.state_dict() | {"structure and integers": train.digest()}
        if self.begun:
            self._survivors.go(lambda: same_loader(self))
        elif isinstance(self.asked, str):
            # Who computes is known before the loader cuts the first batch.
            self._survivors.go(lambda: self.begin(train.peek()))
        split, ranks = self.session.split, self.session.place[1]
        smallest = min(train.batch_size, len(train.graphs))
        if hasattr(split, "update") and smallest < ranks:
            raise ConfigError(
                f"{type(split).__name__} balances batches of {smallest} graphs over {ranks} ranks",
                hint="every rank needs one: use a larger batch or fewer ranks",
            )
        # A batch that is kept has to be divided anew whenever it comes.
        ahead = math.inf if train.caches else train.prefetch + 1
        division = Division(self.session.place, split, ahead)
        self._collate = train.collate = collate_of(train.undivided, division, self._collate)
        self._forget_splits()

    # ---- evaluation ----------------------------------------------------------------------------

    def evaluate(
        self, loader: Iterable[Any], metrics: Metrics = (), **more: Any
    ) -> dict[str, float]:
        """As `cavs.Trainer.evaluate`; every rank takes some of the batches.

        Where it is done again if a rank dies, all batches of an iterator are in memory at once.
        """
        asked = more.pop("stop", lambda: False)
        more["stop"] = lambda: self._survivors.leaves(asked)

        def work() -> dict[str, float]:
            self.session.stale.settle()
            if not self.begun:
                alike(self)
            return super(Trainer, self).evaluate(loader, metrics, **more)

        def evaluated() -> dict[str, float]:
            nonlocal loader
            if isinstance(loader, Iterator) and self._survivors.repeats:
                loader = list(loader)
            return self._survivors.go(work)

        return self._together("evaluation", evaluated)

    def _mine(self, batches: Iterable[Any]) -> Iterator[Any]:
        rank, count = self.session.place
        return islice(batches, rank, None, count) if rank < count else iter(())

    def _combined(self, sums: Array) -> Array:
        meeting = self.agreement.meet("evaluation", stop=self.session.wants_stop)
        self.session.stopping |= meeting.stop
        self.communicator.all_reduce(sums)
        return sums

    # ---- runs and checkpoints ------------------------------------------------------------------

    def fit(self, train: DataLoader, **options: Any) -> FitResult:
        """As `cavs.Trainer.fit`; rank 0 writes the log and the checkpoints and shows progress.

        If a rank dies and ranks can outlive one another, but are not ``elastic``, the others end
        the step at hand without it, write the checkpoint, and raise `LostPeerError`.
        """
        if self.communicator.rank != 0:
            options |= {"log": None, "progress": False}
        self._go_on()
        survivors = self._survivors
        survivors.saves, survivors.gone = options.get("checkpoint") is not None, []

        def work() -> FitResult:
            self.ends = compared(options)
            return super(Trainer, self).fit(train, **options)

        try:
            return self._together("fit", work)
        except BaseException as error:
            self._forget_splits()  # made ahead, by each rank as far as it was
            if not (isinstance(error, KeyboardInterrupt) and survivors.ends):
                raise
            raise survivors.bereft(error) from None
        finally:
            survivors.saves = False
            if isinstance(getattr(train, "collate", None), Collate):
                train.collate = train.undivided  # for who goes through the loader himself

    def _go_on(self) -> None:
        """What stopped the `fit` before is over."""
        session = self.session
        session.wants_stop = session.stopping = False
        if session.servers is not None and session.servers.is_stopping:
            servers = session.servers

            def work() -> None:
                session.stale.settle()
                servers.go_on()
                session.agreement.meet("settle")  # before one asks to stop again

            self._survivors.go(work)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        progress: Mapping[str, Any] | None = None,
        states: bool = True,
    ) -> None:
        """As `cavs.Trainer.save`: rank 0 writes; call it on all ranks."""
        self._survivors.go(lambda: self._save(path, progress, states))
        self.last_checkpoint = Path(path)

    def _tell_saved(self, path: str | os.PathLike[str]) -> None:
        if self.communicator.rank == 0:
            report("saved", str(path), self.steps)

    def _save(
        self, path: str | os.PathLike[str], progress: Mapping[str, Any] | None, states: bool
    ) -> None:
        self.session.stale.settle()
        self.session.collect(self.states)
        if states and self.session.place[0] < self.session.place[1]:
            self._extra = self.session.memory()
        failed: Exception | None = None
        if self.communicator.rank == 0:
            try:
                super().save(path, progress=progress, states=states)
                if states:  # now: the launcher may have to say where it is if the others die
                    self._tell_saved(path)
            except Exception as error:  # the other ranks must learn of it, whatever it is
                failed = error
        self.agreement.meet("save", failed)

    def load(self, path: str | os.PathLike[str], *, strict: bool = True) -> list[str]:
        """As `cavs.Trainer.load`; call it on all ranks."""
        self.settle()
        return super().load(path, strict=strict)

    def resume(self, path: str | os.PathLike[str], *, strict: bool = True) -> Checkpoint:
        """As `cavs.Trainer.resume`; every rank reads the file, which any number of ranks wrote."""
        self.settle()

        def work() -> Checkpoint:
            stored = super(Trainer, self).resume(path, strict=strict)
            self._tell_saved(path)
            self.session.take_memory(stored.extra)
            return stored

        return self._together("fit", work)

    @property
    def agreement(self) -> Agreement:
        """Where the present ranks meet."""
        return self.session.agreement

    @property
    def communicator(self) -> Communicator:
        """The present ranks."""
        return self.session.communicator

    def _together(self, place: str, work: Callable[[], T]) -> T:
        """`work()`; what fails on this rank alone is made known to the others."""
        try:
            return work()
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt) and self.session.stopping
            if not (stopped or isinstance(error, CommunicationError)):
                self._tell(place, error)
            raise

    def _tell(self, place: str, error: BaseException) -> None:
        if is_agreed(error) or getattr(error, "told", False):
            return
        error.told = True  # type: ignore[attr-defined]  # whether anybody comes or not
        servers, patience = self.session.servers, _FAREWELL
        if self.session.free and servers is not None:
            servers.fail(error)  # the others may be in any step, and come to no meeting
            if not servers.settled:
                return
            patience = _BRIEF
        # Before they have begun, the others are about to.
        begun = self.begun or place == "evaluation"
        self.agreement.tell(place if begun else None, error, patience)

    def close(self) -> None:
        """Waits for the other ranks to come here, then ends the communication."""

        def work() -> None:
            self.session.stale.settle()
            self.agreement.meet("end")

        self._survivors.go(work)
        self.session.close()
        self.communicator.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif not isinstance(error, CommunicationError):
            self._tell("end", error)
