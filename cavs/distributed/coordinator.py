"""`RankCoordinator`: agrees with the other ranks on behalf of one rank's training loop."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, NoReturn, TypeVar

import numpy as np

from cavs.distributed.adaptation.group import TrainingRanks
from cavs.distributed.adaptation.monitors import check_monitors
from cavs.distributed.balance.shards import Collate, LoaderSplit
from cavs.distributed.balance.turns import local_turns, whole_value
from cavs.distributed.comm.agreement import Consensus, agreed, may_save
from cavs.distributed.comm.interrupt import INTERRUPT
from cavs.distributed.comm.launcher_pipe import report
from cavs.distributed.comm.mpi.communicator import MPICommunicator
from cavs.distributed.elastic.carry import RankCarry
from cavs.distributed.elastic.resize import Resizer
from cavs.distributed.elastic.survivors import Survivors
from cavs.distributed.elastic.training import RankTraining
from cavs.distributed.step.report import StepReport
from cavs.errors import CommunicationError, ConfigError, NumericsError
from cavs.train.batches import Loader
from cavs.train.checkpoint import Checkpoint
from cavs.train.coordination import Array, Carried, Coordinator, Write
from cavs.train.engine import StepOutcome
from cavs.train.fit_options import FitOptions
from cavs.train.monitors import Monitor, StepFacts
from cavs.train.optimizer import TrainableParameter

T = TypeVar("T")


class RankCoordinator(Coordinator):
    """Coordinator of one of many ranks.

    An error on one rank is raised on all. If a rank dies, the others finish or repeat what they
    were doing together, as far as `Survivors` can.
    """

    def __init__(self, training: RankTraining) -> None:
        self.training, self.session = training, training.session
        self.survivors = Survivors(training)
        self.resizer = Resizer(self.survivors)
        self._ranks = TrainingRanks(self.survivors, self.resizer)
        self._printed = 0  # number of warnings of the split
        self._fits = False  # True within a `fit`
        self._waited = False  # True once this process has waited to join one
        if (
            isinstance(self.session.communicator, MPICommunicator)
            and self.session.communicator.size > 1
        ):
            INTERRUPT.install()

    @property
    def group(self) -> TrainingRanks:
        return self._ranks

    # ---- steps ---------------------------------------------------------------------------------

    def begin(self, batch: Any = None) -> None:
        """Check that all ranks train the same and send them rank 0's parameters; done once.

        batch: The first global batch, from which a builder takes the sizes of gradients.
        """
        training = self.training
        if not training.begun:
            training.handshake(batch)
            if isinstance(training.requested, str):
                self.survivors.rebase()
            training.reshard_loader()
            training.begun = True
            INTERRUPT.trainings.add(self)

    def run_step(self, advance: Callable[[Any], StepOutcome], batch: Any) -> StepReport:
        def step() -> StepReport:
            self.begin(batch)
            if self.training.elastic and self.session.owns:
                self.survivors.snapshots.before(step)
            try:
                outcome = advance(batch)
            except Exception:
                self._reset_split()  # this step's times will not come
                raise
            assert isinstance(outcome, StepReport)
            self._update_split(outcome)
            return outcome

        self._check_trains("step")
        with INTERRUPT.deferred():
            if not self._fits and self.session.stopping:  # the `fit` before has stopped for it
                self._clear_stop()
            self.session.wants_stop |= INTERRUPT.requested
            outcome = self.survivors.run_resilient(step, step=True)
            if not self._fits and self._stops():
                self._stop()
            return outcome

    def _check_trains(self, call: str) -> None:
        """Raise `CommunicationError` if this process has left the training, or never took part.

        A spare may do before a `fit` all that needs no other rank.
        """
        begins = not (self.training.begun or self._waited)
        if self.resizer.detached and (call == "step" or not begins):
            raise CommunicationError(
                f"{call} on a process that others train without",
                hint='end the program where fit returns the status "detached"; spares join a fit',
            )

    def _stops(self) -> bool:
        """True if the ranks have agreed in this step to stop."""
        if self.session.asynchronous and INTERRUPT.installed:
            return self.should_stop(False)
        return self.session.stopping

    def _stop(self) -> NoReturn:
        """Raise `KeyboardInterrupt` on all ranks, which have agreed to stop outside of a `fit`."""
        INTERRUPT.clear()
        self._clear_stop()
        raise agreed(KeyboardInterrupt(f"stopped after step {self.training.state.steps}"))

    def _update_split(self, outcome: StepReport) -> None:
        """Let the split learn from the times of a step; rank 0 prints its new warnings."""
        split = self.session.split  # another one after ranks have died
        update = getattr(split, "update", None)
        if update is None or not self.session.roles.computes:
            return
        # Asynchronous ranks do not know each other's times; those that were dropped have none.
        reports = (outcome.rank_reports,) if outcome.rank_reports else ()
        update(None if outcome.dropped else outcome.rank_loads or None, *reports)
        warnings = getattr(split, "warnings", ())
        for text in warnings[self._printed :] if self.writes_files else ():
            print(f"cavs: {text}", file=sys.stderr, flush=True)
        self._printed = len(warnings)

    def _reset_split(self) -> None:
        """Let the split forget batches that were sharded ahead and will not run."""
        getattr(self.session.split, "reset", lambda: None)()

    def share_step_error(self, error: NumericsError) -> None:
        if self.session.asynchronous:
            assert self.session.servers is not None
            self.session.servers.fail(error)
        else:
            agreed(error, ("step", "stale"))  # all ranks have this loss and norm

    def should_stop(self, requested: bool) -> bool:
        """See `Coordinator`. Synchronous ranks have agreed on it in their last step."""
        session = self.session
        requested |= INTERRUPT.requested
        session.wants_stop |= requested
        if not session.stopping and session.asynchronous and session.servers is not None:
            session.stopping = self.survivors.run_resilient(
                lambda: session.servers is not None and session.servers.stops(requested), step=True
            )
        if session.stopping:
            INTERRUPT.clear()
        return session.stopping

    def should_stop_at_end(self, requested: bool) -> bool:
        """See `Coordinator`. All ranks agree on it, since no step follows."""
        session = self.session
        session.wants_stop |= requested or INTERRUPT.requested
        if self.training.begun:
            self.survivors.run_settled(lambda: self._agree_to_stop("fit"))
        if session.stopping:
            INTERRUPT.clear()
        return session.stopping

    def _agree_to_stop(self, phase: str) -> None:
        """Reach `phase`; the training stops on all ranks if any of them wants to."""
        found = Consensus(stop=self.session.wants_stop)
        self.session.stopping |= self.session.agreement.consensus(phase, found=found).stop

    # ---- fit -----------------------------------------------------------------------------------

    @property
    def writes_files(self) -> bool:
        return self.session.communicator.rank == 0

    @contextmanager
    def fitting(self, train: object, options: FitOptions) -> Iterator[None]:
        """See `Coordinator`.

        If a rank dies and ranks can survive one another, but are not ``elastic``, the others end
        the current step without it, write the checkpoint, and raise `LostPeerError`.
        """
        self._clear_stop()
        survivors = self.survivors
        survivors.saves, survivors.gone = options.checkpoint is not None, []
        self._fits = True
        try:
            with INTERRUPT.deferred(), self.training.guard("fit"):
                self.training.note_options(options)
                yield
                self._merge_replicas()
        except BaseException as error:
            self._reset_split()  # each rank's loader was ahead by another number of batches
            if not (isinstance(error, KeyboardInterrupt) and survivors.ends_fit):
                raise
            raise survivors.lost_peers(error) from None
        finally:
            survivors.saves = self._fits = False
            if isinstance(train, Loader) and isinstance(train.collate, Collate):
                train.collate = train.undivided  # global batches for any other user of the loader

    def _merge_replicas(self) -> None:
        """Let all ranks go on with the mean of replicas that differ, at the end of a `fit`."""
        session, states = self.session, self.training.state.states
        if session.is_divergent and self.training.begun and not self.resizer.detached:
            session.replicas.merging = True
            try:
                self.survivors.run_settled(lambda: bool(session.replicas.average(states)))
            finally:
                session.replicas.merging = False

    def _clear_stop(self) -> None:
        """Clear the request that stopped the previous `fit`."""
        session, servers = self.session, self.session.servers
        session.wants_stop = session.stopping = False
        if servers is None or not servers.is_stopping:
            return

        def clear() -> None:
            servers.go_on()
            session.agreement.consensus("settle")  # before any rank asks to stop again

        self.survivors.run_settled(clear)

    def shard_loader(self, train: Loader) -> None:
        training, session = self.training, self.session
        training.note_loader(train)
        if self.resizer.detached:
            return
        if not training.begun:
            train.collate = train.undivided  # ranks that join have never sharded its batches
        if training.begun:
            self.survivors.run_settled(training.compare_fits)
        elif isinstance(training.requested, str) or training.fit_facts["policies"]:
            # The replicas must be known before the loader shards its first batch.
            self.survivors.run_resilient(lambda: self.begin(train.peek()))
        split, ranks = session.split, session.position[1]
        if hasattr(split, "update") and (smallest := train.smallest_batch) < ranks:
            raise ConfigError(
                f"{type(split).__name__} balances batches of {smallest} graphs over {ranks} ranks",
                hint="every rank needs one: use a larger batch or fewer ranks",
            )
        # A cached batch is sharded again whenever it comes.
        ahead = math.inf if train.caches else train.ahead
        last = training.collate
        division = LoaderSplit(session.position, split, ahead)
        fresh = Collate(train.undivided, division, compared=train.digest() != 0)
        # The same function keeps the batches that a loader has cached.
        training.collate = train.collate = fresh if last is None or last != fresh else last
        self._reset_split()

    def carry(self, options: FitOptions) -> RankCarry:
        return RankCarry(options, self.survivors)

    def guard_batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        try:
            yield from batches
        except Exception as error:  # the other ranks are about to make the step
            if not isinstance(error, CommunicationError):
                self.training.report_error("batch", error)
            self._reset_split()  # the times of batches sharded ahead will not come either
            raise

    @contextmanager
    def guard_policies(self) -> Iterator[None]:
        with self.training.guard("policy"):
            yield

    def watch(self, monitors: Sequence[Monitor]) -> None:
        """See `Coordinator`. Raises `ConfigError` where ranks do not sum all gradients."""
        check_monitors(monitors, self.session.strategy)
        self.session.monitors = monitors

    def restart_clock(self) -> None:
        self.session.synchronous_step.ended = 0.0

    def step_facts(self, batch: Any, outcome: StepOutcome, seconds: float) -> StepFacts:
        assert isinstance(outcome, StepReport)
        session, replicas = self.session, len(outcome.rank_graphs)
        norm = outcome.reduced_norm if session.is_divergent else outcome.grad_norm
        if not session.average and replicas:  # gradients are added; monitors take their mean
            norm /= replicas
        return StepFacts(
            outcome.seconds or seconds,
            batch.num_graphs,
            norm,
            outcome.rank_graphs,
            outcome.rank_seconds[:replicas],
            outcome.rank_squares,
        )

    def batch_size_changed(self) -> None:
        self._reset_split()
        self.training.reshard_loader(in_steps=True)

    def agreed_size(self) -> int:
        return self.survivors.agreed_size

    def detached(self) -> bool:
        return self.resizer.detached

    def wants_regroup(self) -> bool:
        return self.resizer.wanted is not None or self.resizer.rebuilds

    def regroup_may_fail(self) -> bool:
        return self.resizer.spawns

    def regroup(
        self,
        train: Loader,
        progress: Callable[[], Mapping[str, Any]],
        arrays: Mapping[str, Array],
    ) -> None:
        if self.resizer.regroup(progress, arrays):
            self.shard_loader(train)

    def join(self, train: Loader, stopped: Callable[[], bool]) -> Checkpoint | None:
        self.training.note_loader(train)
        self._waited = True
        found = self.resizer.join(lambda: stopped() or INTERRUPT.requested)
        if found is None and INTERRUPT.requested:
            INTERRUPT.clear()
            raise agreed(KeyboardInterrupt("stopped while it waited to join"))
        return found

    def release(self) -> None:
        with suppress(CommunicationError):  # they have gone, or the ranks have
            self.resizer.release()

    def sum_losses(self, loss_sum: float) -> float:
        """See `Coordinator`. Synchronous ranks know the sum; asynchronous ones their own losses."""
        session = self.session
        if not session.asynchronous:
            return loss_sum

        def add() -> float:
            rank, count = session.position
            total = np.array([loss_sum if rank < count else 0.0])
            session.communicator.all_reduce(total)
            return float(total[0]) / count

        return self.survivors.run_settled(add)

    # ---- evaluation ----------------------------------------------------------------------------

    def run_evaluation(self, evaluate: Callable[[Iterable[Any]], T], batches: Iterable[Any]) -> T:
        """See `Coordinator`.

        If a death may make the ranks repeat it, all batches of an iterator are in memory at once.
        """

        def work() -> T:
            if self.training.begun:
                self.training.compare_parameters("evaluation")
            else:
                self.training.share_parameters()
            with self._merged():
                return evaluate(batches)

        self._check_trains("evaluate")
        with INTERRUPT.deferred(), self.training.guard("evaluation"):
            if isinstance(batches, Iterator) and self.survivors.repeats:
                batches = list(batches)
            result = self.survivors.run_settled(work)
            if not self._fits and self.session.stopping:
                self._stop()
            return result

    def local_batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """See `Coordinator`. Replicas take turns; a spare evaluates all, for itself."""
        if self.resizer.detached:
            return iter(batches)
        return local_turns(batches, self.session.position)

    def should_end_evaluation(self, requested: bool, *, in_fit: bool) -> bool:
        """See `Coordinator`. In a `fit`, all ranks learn of the request after the evaluation."""
        self.session.wants_stop |= INTERRUPT.requested or (in_fit and requested)
        if in_fit or INTERRUPT.requested:
            requested = self.session.wants_stop
        return requested or self.survivors.ends_fit

    def reduce_metrics(self, sums: Array) -> Array:
        self._agree_to_stop("evaluation")
        self.session.communicator.all_reduce(sums)
        return sums

    def whole_value(
        self, parts: Sequence[Array], value: Callable[[Sequence[Array]], float]
    ) -> float:
        """See `Coordinator`. Rank 0 computes it."""
        if self.resizer.detached:
            return value(parts)
        session = self.session
        replicas = session.position[1]
        return whole_value(session.communicator, session.agreement, replicas, parts, value)

    # ---- checkpoints ---------------------------------------------------------------------------

    def may_save(self, error: Exception, *, evaluating: bool, in_policy: bool = False) -> bool:
        """See `Coordinator`. All ranks save together, so all must know of the error."""
        where = "evaluation" if evaluating else "stale" if self.session.stale.serves else "step"
        return may_save(error, where) and not self.session.asynchronous

    def save(
        self, path: str | os.PathLike[str], write: Write, *, states: bool, carried: Carried
    ) -> None:
        """See `Coordinator`. Rank 0 writes."""
        session = self.session
        self._check_trains("save")

        def work() -> None:
            session.collect(self.training.state.states)
            if self.training.begun:
                self.training.compare_parameters("save")
            rank, count = session.position
            extra = dict(session.memory()) if states and rank < count else {}
            if states:
                extra |= session.replicas.gather(self.training.state.states)
                extra |= carried()
            with self._merged(self.training.state.states), session.agreement.guard("save"):
                if self.writes_files:
                    write(extra)
                    if states:  # reported first, in case the other ranks die
                        report("saved", str(path), self.training.state.steps)

        with INTERRUPT.deferred():
            self.survivors.run_settled(work)

    def merged_values(self, parameters: Mapping[str, TrainableParameter]) -> dict[str, Array]:
        """See `Coordinator`. A rank that misses the mean, as another one dies, has its own."""
        found: dict[str, Array] = {}

        def copy() -> None:
            with self._merged():
                found.update({name: p.current().copy() for name, p in parameters.items()})

        if self.session.is_divergent:
            self.survivors.run_settled(copy)
        return found or {name: p.current().copy() for name, p in parameters.items()}

    def _merged(self, states: Sequence[Sequence[Array]] = ()) -> AbstractContextManager[None]:
        """Return the context of the mean of replicas that differ, once the ranks have begun."""
        return self.session.replicas.mean(states) if self.training.begun else nullcontext()

    def settle(self) -> None:
        """Wait until the parameters of all ranks hold all updates, and no request is under way."""
        if self.session.stale.serves or self.session.is_divergent:
            with INTERRUPT.deferred():
                self.survivors.run_resilient(self.session.stale.settle)

    def load(self, read: Callable[[], T]) -> T:
        if not self.training.begun:  # the handshake sends all ranks the parameters of rank 0
            with self.training.guard("fit"):
                return read()
        self._check_trains("load")

        def work() -> T:
            with self.session.agreement.guard("load"):
                return read()

        with INTERRUPT.deferred():
            return self.survivors.run_settled(work)

    def resume(self, path: str | os.PathLike[str], read: Callable[[], Checkpoint]) -> Checkpoint:
        """See `Coordinator`. Any number of ranks may have written the file."""

        def work() -> Checkpoint:
            stored = read()
            if self.writes_files:
                report("saved", str(path), self.training.state.steps)
            self.session.replicas.forget()
            self.session.take_memory(stored.extra)
            if self.training.begun:
                self.session.replicas.restore(self.training.state.states)
            return stored

        return self.load(work)

    def close(self) -> None:
        """Wait until all ranks close, then end the communication; a detached rank just ends."""
        if self.resizer.detached:
            return
        with INTERRUPT.deferred():
            self.survivors.run_settled(lambda: self.session.agreement.consensus("end"))
            self.session.close()
            self.session.communicator.close()
            INTERRUPT.trainings.discard(self)
