"""Recovery from the death of a rank: the survivors agree on their progress and go on.

Ranks do work together: a step, an evaluation, a checkpoint. If a rank dies meanwhile, some
survivors have finished that work and others have not.

- If every rank holds all parameters and optimiser states, a rank that has finished sends them and
  its result to the others; if none has, all repeat the work, with the batch sharded again.
- If ranks own parameters, all restore a snapshot, share what the dead rank owned, and repeat the
  steps since: up to the furthest rank or, if they are asynchronous, each up to its own. Only the
  owner of a parameter has its optimiser states: every few steps all ranks send each other theirs,
  and keep a copy in memory, together with the batches since.

Without ``elastic``, a `fit` that writes checkpoints also finishes the current work on the
survivors, then saves and ends; not if ranks own parameters, since there is no snapshot then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.balance.shards import left
from cavs.distributed.comm.agreement import agreed, attend, closed, mark_aborted
from cavs.distributed.comm.interfaces import Communicator, LostPeerError
from cavs.distributed.comm.launcher_pipe import report
from cavs.distributed.elastic.training import RankTraining
from cavs.distributed.step.report import StepReport
from cavs.distributed.strategy.ranks import without
from cavs.errors import ConfigError, DeviceError

T = TypeVar("T")
EVERY = 16  # steps between snapshots, hence the most that are repeated


class Survivors:
    """Runs the common work of the ranks, and recovers if one dies.

    Ranks are identified by their numbers at the time the strategy was built, and the strategy of
    the survivors is always derived from that one, so that the order in which ranks learn of deaths
    does not matter. saves: True during a `fit` that writes checkpoints. gone: the ranks that died.
    agreed_size: number of ranks that did the last work that all have finished. Ranks may learn of a
    death in different works, but of another value of this one after the same work.
    """

    def __init__(self, training: RankTraining) -> None:
        self.training, self.session, self.state = training, training.session, training.state
        self.snapshots = Snapshots(training)
        self.saves = False
        self.gone = list[int]()
        self._transfer: Callable[[], None] | None = None  # see `receive`; until a work has ended
        self._lacks_state = False
        self._done = 0  # number of works that all ranks have finished
        self.agreed_size = self.session.communicator.size
        self._last: Any = None  # result of the last one
        self._first_names = self.session.communicator.names
        attend(self.session.communicator)
        self.rebase()

    def restart(self) -> None:
        """Begin with another group of ranks, all of which are at the same progress."""
        self._transfer, self._lacks_state = None, False
        self.snapshots, self.gone = Snapshots(self.training), []
        self._done, self._last = 0, None
        self.agreed_size = self.session.communicator.size
        self._first_names = self.session.communicator.names
        self.rebase()

    def rebase(self) -> None:
        """Identify ranks by their present numbers; called when the strategy has been built."""
        c = self.session.communicator
        self._number, self._size, self._names = c.rank, c.size, c.names
        self._strategy = self.session.strategy

    @property
    def ends_fit(self) -> bool:
        """True if a `fit` is to end because a rank has died."""
        return self.saves and bool(self.gone) and not self.training.elastic

    @property
    def repeats(self) -> bool:
        """True if survivors repeat work that a death interrupts."""
        return self.training.elastic or (self.saves and not self.session.owns)

    def run_resilient(self, work: Callable[[], T], *, step: bool = False) -> T:
        """Return ``work()``, which all ranks do together; recover if one dies.

        After a recovery the result is that of a rank that had finished; if there was none, the work
        is repeated. step: True for a step, which asynchronous ranks do on their own.
        """
        while True:
            try:
                result = work()
            except LostPeerError as error:
                if not self.repeats:
                    self._abort_peers()
                    raise
                if self._recover(error, step):
                    return self._last  # type: ignore[no-any-return]
            except (SystemExit, KeyboardInterrupt):
                if step:
                    mark_aborted(self.session.communicator)
                raise
            else:
                if not (step and self.session.asynchronous):
                    self._done += 1
                    self._transfer = None  # all ranks had the state when they began this work
                    self._last, self.agreed_size = result, self.session.communicator.size
                    # Set only now: some ranks may just have learned how the previous work ended.
                    self.session.stopping |= self.ends_fit
                return result

    def run_once(self, work: Callable[[], T]) -> T | None:
        """Return ``work()`` if all ranks finish it; None on all, after a recovery, if one dies.

        The ranks agree on that, so that none acts on a result that another one lacks.
        """
        c = self.session.communicator
        try:
            result = work()
            if not self.repeats:
                c.barrier()
                return result
        except LostPeerError as error:
            self._recover_or_raise(error)
        else:
            if c.agree(True):
                return result
            self._recover_or_raise(LostPeerError("a rank has died"), agreed_on=True)
        return None

    def receive(self, transfer: Callable[[], None], *, lacks_state: bool) -> None:
        """Run `transfer`, which sends ranks that join the state of a training.

        If a rank dies, the others do it again if one of them lacks the state. lacks_state: True on
        a rank that joins.
        """
        self._transfer, self._lacks_state = transfer, lacks_state
        try:
            transfer()
            self._lacks_state = False
        except LostPeerError as error:
            self._recover_or_raise(error)

    def _recover_or_raise(self, error: LostPeerError, *, agreed_on: bool = False) -> None:
        if not self.repeats:
            self._abort_peers()
            raise error
        self._recover(error, step=False, agreed_on=agreed_on)

    def run_settled(self, work: Callable[[], T]) -> T:
        """`run_resilient`, with all stale parameters settled before the work."""

        def settle_and_work() -> T:
            self.session.stale.settle()
            return work()

        return self.run_resilient(settle_and_work)

    def lost_peers(self, stopped: KeyboardInterrupt) -> LostPeerError:
        """Return the error of a `fit` that has saved its state; `stopped` says where."""
        report("parted")
        error = LostPeerError(
            f"ranks {[self._names[r] for r in self.gone]} of {self._size} are gone; {stopped}",
            hint="resume from it; with --elastic the others would have gone on",
        )
        return agreed(error)  # all survivors raise it

    def _abort_peers(self) -> None:
        """End everything that other ranks wait for, so that they learn of the death too."""
        report("parted")
        self.session.leave()
        with suppress(DeviceError):  # an MPI without fault tolerance ends the ranks itself
            self.session.communicator.leave()

    def _recover(self, error: LostPeerError, step: bool, *, agreed_on: bool = False) -> bool:
        """Regroup with the survivors. Returns True if one had finished the interrupted work.

        agreed_on: True if the ranks have agreed that one has died, as they do first: others may be
        in `run_once`.
        """
        c, reached, done = self.session.communicator, self.state.steps, self._done
        before = c.size
        while True:
            self.session.leave()
            if not agreed_on:
                c.leave()
                c.agree(False)
            agreed_on = False
            closed(c)
            c = c.shrink()
            with suppress(LostPeerError):  # another rank died meanwhile
                self._regroup(c, reached, step)
                break
        if c.rank == 0 and self.training.elastic:
            print(
                f"cavs: {before - c.size} of {before} ranks lost at step {self.state.steps + 1}, "
                f"going on with {c.size} ({error})",
                file=sys.stderr,
                flush=True,
            )
        return self._done > done

    def _regroup(self, c: Communicator, reached: int, step: bool) -> None:
        """Bring all ranks of `c` to the same progress, with the result of the last work.

        reached: Steps of this rank when it learned of the death. step: True if it was in a step.
        """
        training, session = self.training, self.session
        own = self.snapshots.known() if training.begun and session.owns else []
        last = [self.agreed_size, _encode(self._last)]
        lacks = self._lacks_state
        mine = [self._number, self._done, reached, training.begun, own, last, lacks]
        numbers, dones, steps, begun, kept, lasts, lack = zip(*c.share(mine), strict=True)
        self.gone = sorted(set(range(self._size)) - set(numbers))
        source = dones.index(max(dones))
        if not all(begun):  # the next step begins with the handshake
            training.begun = False
            if isinstance(training.requested, str):
                session.strategy = None
                self.rebase()
        strategy = self._strategy
        if strategy is not None:
            shapes = {name: p.current().shape for name, p in self.state.parameters.items()}
            strategy = without(strategy, set(self.gone), shapes)
        session.move_to(c, strategy)
        attend(c, begun=all(begun), asynchronous=session.asynchronous)
        session.split = left(session.split, [self._first_names.index(name) for name in c.names])
        training.reshard_loader()
        if all(begun) and session.owns:
            self.snapshots.restore(set(kept[0]).intersection(*kept))
            self._copy_state(c, 0)  # a replica; other owners lack the values of parameters
            if strategy is not None and strategy.has_stale:
                hyper = self.state.step_arguments(session, self.state.steps)["hyper"]
                session.stale.serve(hyper, self.state.states, self.state.steps)
            self.snapshots.repeat(reached if session.asynchronous else max(steps))
        elif any(lack) and self._transfer is not None:
            self._transfer()
            self._lacks_state = False
        else:
            if not (session.is_divergent and all(begun)) or session.replicas.merging:
                self._copy_state(c, source)  # else each goes on with its own replica
            self.state.steps = steps[source]
            if step and self._done < dones[source]:
                session.finish()
        self._done, (self.agreed_size, result) = dones[source], lasts[source]
        self._last = _decode(result)

    def _copy_state(self, c: Communicator, source: int) -> None:
        """Copy the parameters and optimiser states of rank `source`, or nothing if it dies now.

        A rank with some arrays of before a step and some of after it could not repeat that step.
        """
        pairs = zip(self.state.parameters.values(), self.state.states, strict=True)
        own = [array for p, states in pairs for array in (p.value, *states)]
        received = own if c.rank == source else [np.empty_like(array) for array in own]
        for array in received:
            c.broadcast(array, source)
        for array, new in zip(own, received, strict=True):
            array[...] = new
        self.session.session.invalidate()


def _encode(result: Any) -> Any:
    """Return a result as JSON values."""
    if isinstance(result, StepReport):
        return {"report": asdict(replace(result, aux={}))}  # each rank has values of its own part
    if isinstance(result, np.ndarray):
        return {"array": result.tolist(), "dtype": result.dtype.name}
    if isinstance(result, list):
        return {"list": [_encode(item) for item in result]}
    return {"value": result}


def _decode(stored: Any) -> Any:
    if "report" in stored:
        return StepReport(**stored["report"])
    if "array" in stored:
        return np.array(stored["array"], stored["dtype"])
    return [_decode(x) for x in stored["list"]] if "list" in stored else stored["value"]


class Snapshot(NamedTuple):
    """Copy of a training between two steps."""

    steps: int  # steps done
    writes: int  # number of writes to parameters from outside
    arrays: Sequence[NDArray[Any]]  # parameters and their optimiser states
    memory: dict[str, NDArray[Any]]  # residuals of the compressors of all ranks
    updates: int | None  # updates of stale parameters


class Snapshots:
    """The last two snapshots: if a rank dies during the newest one, some ranks do not have it."""

    def __init__(self, training: RankTraining) -> None:
        self.state, self.session = training.state, training.session
        self.kept: list[Snapshot] = []
        self.steps: dict[int, Callable[[], None]] = {}  # since the first of them, by number

    def before(self, step: Callable[[], object]) -> None:
        """Note a `step` that is about to be made; all ranks call it, and may exchange states."""
        state = self.state
        if self._is_outdated:
            self.kept, self.steps = [], {}
        if not self.kept or state.steps >= self.kept[-1].steps + EVERY:
            self.kept = [*self.kept[-1:], self._take()]
            first = self.kept[0].steps
            self.steps = {number: known for number, known in self.steps.items() if number >= first}
        self.steps[state.steps] = self._repeatable(step)

    def repeat(self, reached: int) -> None:
        """Repeat the steps from the restored snapshot up to `reached`, as they were made."""
        restore = self._repeatable(lambda: None)
        try:
            while self.state.steps < reached:
                self.steps[self.state.steps]()
        finally:
            restore()

    def _repeatable(self, step: Callable[[], object]) -> Callable[[], None]:
        """Return `step` with the present settings of the optimiser and of parameters."""
        optimizer, state = self.state.optimizer, self.state.optimizer.state_dict()
        parameters = self.session.session.parameters
        trainable = {name: p.trainable for name, p in parameters.items()}

        def run() -> None:
            optimizer.load_state_dict(state)
            for name, p in parameters.items():
                p.trainable = trainable[name]
            step()

        return run

    @property
    def _is_outdated(self) -> bool:
        return bool(self.kept) and self.kept[-1].writes != self.session.writes

    def _take(self) -> Snapshot:
        session, stale = self.session, self.session.stale.serves
        if stale:
            session.stale.settle()
        session.collect(self.state.states, "snapshot")
        taken = self._copy(session.memory() if session.roles.computes else {})
        if stale:  # no rank may go on while another one reads states
            session.agreement.consensus("snapshot")
        return taken

    def _copy(self, memory: dict[str, NDArray[Any]]) -> Snapshot:
        session, arrays = self.session, [array.copy() for array in self._arrays()]
        return Snapshot(self.state.steps, session.writes, arrays, memory, session.stale.updates)

    def _arrays(self) -> list[NDArray[Any]]:
        pairs = zip(self.state.parameters.values(), self.state.states, strict=True)
        return [array for p, states in pairs for array in (p.current(), *states)]

    def known(self) -> list[int]:
        """Return the steps of the snapshots that this rank has when another one has died.

        A rank without any, or whose parameters were written since, has made no step since then: it
        takes the snapshot here that others may have taken before they went on.
        """
        if not self.kept or self._is_outdated:
            self.kept, self.steps = [self._copy(self.session.kept_memory)], {}
        return [snapshot.steps for snapshot in self.kept]

    def restore(self, common: Collection[int]) -> None:
        """Restore the last snapshot in `common`, those that all ranks have.

        Raises `ConfigError` if there is none.
        """
        self.kept = [snapshot for snapshot in self.kept if snapshot.steps in common]
        if not self.kept:
            raise ConfigError(
                "a rank has died that owned parameters, and their optimiser states are lost",
                hint="resume from the last checkpoint",
            )
        last = self.kept[-1]
        for array, copy in zip(self._arrays(), last.arrays, strict=True):
            np.copyto(array, copy)
        self.session.take_memory(last.memory, last.updates)
        self.state.steps = last.steps
