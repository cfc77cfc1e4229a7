"""Going on when a rank dies: the ranks that are left agree on where they are, and continue.

What a training does together (a step, an evaluation, a checkpoint) is either finished everywhere
or, when a rank dies in it, finished on some ranks and not on others. Where every rank holds all
parameters and optimiser states, nothing is lost: those that finished it give the others their
parameters, states and result; if nobody did, all do it again with the batch divided anew. Where
ranks own parameters, all go back to a snapshot, share what the dead owned, and do the steps since
again: up to where one of them was or, where they run freely, each its own.

Without ``elastic`` a `fit` that writes checkpoints ends so, too: what was under way is finished by
those that are left, and then they stop and save. Where ranks own parameters there is no snapshot to
go back to, and the last checkpoint is what remains.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from cavs.distributed.balance.shards import left
from cavs.distributed.comm.agreement import agreed
from cavs.distributed.comm.exit_hooks import attend, closed, torn
from cavs.distributed.comm.interfaces import Communicator, LostPeerError
from cavs.distributed.comm.launcher_pipe import report
from cavs.distributed.elastic.snapshot import Snapshots
from cavs.distributed.step.run import StepReport
from cavs.distributed.strategy.lost_ranks import without
from cavs.errors import DeviceError

if TYPE_CHECKING:
    from cavs.distributed.trainer import Trainer

T = TypeVar("T")


class Survivors:
    """What the ranks of `trainer` do together, with or without those that die.

    Ranks are told apart by the number that they had when the strategy was made, and the strategy
    of those that are left is always derived from that one: then it does not matter which rank
    knows of which death first.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.snapshots = Snapshots(trainer)
        self.done = 0  # things finished together
        self.last: Any = None  # the result of the last of them
        self.saves = False  # whether a `fit` that writes checkpoints goes on
        self.gone: list[int] = []  # of the ranks that there were
        self.first = trainer.communicator.names  # by the numbers that the user gave them
        attend(trainer.communicator)
        self.made()

    def made(self) -> None:
        """The strategy is one of the present ranks."""
        c = self.trainer.communicator
        self.number, self.ranks, self.strategy = c.rank, c.size, self.trainer.strategy
        self.names = c.names

    @property
    def ends(self) -> bool:
        """Whether a `fit` is to end because a rank has died."""
        return self.saves and bool(self.gone) and not self.trainer.elastic

    def leaves(self, asked: Callable[[], bool]) -> bool:
        """Whether an evaluation is to end; what is asked of a `fit` here all learn behind it."""
        session, run = self.trainer.session, self.trainer._run
        if run is None or not run.judging:  # who asks means this evaluation alone
            return asked() or self.ends
        session.wants_stop |= asked()
        return session.wants_stop or self.ends

    @property
    def repeats(self) -> bool:
        """Whether those that are left do again what a death interrupts."""
        return self.trainer.elastic or (self.saves and not self.trainer.session.owns)

    def go(self, work: Callable[[], T], *, step: bool = False) -> T:
        """`work()`, which all ranks do together; again, or its result from others, if one dies.

        step: of a training; ranks that run freely each do theirs alone.
        """
        while True:
            try:
                result = work()
            except LostPeerError as error:
                if not self.repeats:
                    self._part()
                    raise
                if self._recover(error, step):
                    return self.last  # type: ignore[no-any-return]
            except (SystemExit, KeyboardInterrupt):
                if step:
                    torn(self.trainer.communicator)
                raise
            else:
                if not (step and self.trainer.session.free):
                    self.done += 1
                    self.last = result
                    # Not before: some may just have learned how what came before it ended.
                    self.trainer.session.stopping |= self.ends
                return result

    def bereft(self, stopped: KeyboardInterrupt) -> LostPeerError:
        """What a `fit` raises that has saved what there was; `stopped` says what and where."""
        report("parted")
        error = LostPeerError(
            f"ranks {[self.names[r] for r in self.gone]} of {self.ranks} are gone; {stopped}",
            hint="resume from it; with --elastic the others would have gone on",
        )
        return agreed(error)  # all that are left know

    def _part(self) -> None:
        """Ends what others wait for, so that they find out, too."""
        report("parted")
        self.trainer.session.leave()
        with suppress(DeviceError):  # this MPI ends them itself
            self.trainer.communicator.leave()

    def _recover(self, error: LostPeerError, step: bool) -> bool:
        """Meets the ranks that are left; whether others had finished what this rank was at."""
        trainer = self.trainer
        c, reached, done = trainer.communicator, trainer.steps, self.done
        before = c.size
        while True:
            trainer.session.leave()
            closed(c)
            c = c.shrink()
            try:
                self._meet(c, reached, step)
            except LostPeerError:  # another one, while we met
                continue
            break
        if c.rank == 0 and trainer.elastic:
            print(
                f"cavs: {before - c.size} of {before} ranks lost at step {trainer.steps + 1}, "
                f"going on with {c.size} ({error})",
                file=sys.stderr,
                flush=True,
            )
        return self.done > done

    def _meet(self, c: Communicator, reached: int, step: bool) -> None:
        """All of `c` at the same place, with as much done, and the result of the last of it.

        reached: this rank's steps when it learned of the death. step: whether it was in one.
        """
        trainer, session = self.trainer, self.trainer.session
        own = self.snapshots.known() if trainer.begun and session.owns else []
        mine = [self.number, self.done, reached, trainer.begun, own, _encode(self.last)]
        numbers, dones, steps, begun, kept, lasts = zip(*c.share(mine), strict=True)
        self.gone = sorted(set(range(self.ranks)) - set(numbers))
        source = dones.index(max(dones))
        if not all(begun):
            trainer.restart()
        strategy = self.strategy
        if strategy is not None:
            shapes = {name: p.current().shape for name, p in trainer.parameters.items()}
            strategy = without(strategy, set(self.gone), shapes)
        session.move_to(c, strategy)
        attend(c, begun=all(begun), free=session.free)
        session.split = left(session.split, [self.first.index(name) for name in c.names])
        trainer.place()
        if all(begun) and session.owns:
            self.snapshots.restore(set(kept[0]).intersection(*kept))
            self._equal(c, 0)  # it computes: who only owns has no values of others
            if strategy is not None and strategy.has_stale:
                hyper = trainer._terms(trainer.steps)["hyper"]
                session.stale.serve(hyper, trainer.states, trainer.steps)
            self.snapshots.again(reached if session.free else max(steps))
        else:
            self._equal(c, source)
            trainer.steps = steps[source]
            if step and self.done < dones[source]:
                session.finish()
        self.done, self.last = dones[source], _decode(lasts[source])

    def _equal(self, c: Communicator, source: int) -> None:
        """The parameters and states of rank `source` here, too; none, if one more rank dies now.

        Else this rank would hold some of after a step and some of before, and make that step again.
        """
        trainer = self.trainer
        every = zip(trainer.parameters.values(), trainer.states, strict=True)
        own = [array for p, states in every for array in (p.value, *states)]
        come = own if c.rank == source else [np.empty_like(array) for array in own]
        for array in come:
            c.broadcast(array, source)
        if c.rank != source:
            for array, new in zip(own, come, strict=True):
                array[...] = new
        trainer.session.session.invalidate()


def _encode(result: Any) -> Any:
    return {"report": asdict(result)} if isinstance(result, StepReport) else {"value": result}


def _decode(stored: Any) -> Any:
    return StepReport(**stored["report"]) if "report" in stored else stored["value"]
