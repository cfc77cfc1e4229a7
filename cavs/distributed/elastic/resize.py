"""Changes the number of ranks of a training, or its strategy, between two steps.

Ranks that leave wait in the pool of the launch, and ranks that join come from it. All ranks of the
new group, those that trained before and those that join, begin it by the same function: they take
the same checkpoint from memory, and the next step begins with the handshake.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from cavs.config import require_count
from cavs.distributed.balance.shards import Counts, contiguous
from cavs.distributed.comm.agreement import attend, closed
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.comm.pool import Pool
from cavs.distributed.elastic.spawn import Spawner
from cavs.distributed.elastic.survivors import Survivors
from cavs.distributed.elastic.transfer import Array, Memory, describe, transfer
from cavs.distributed.strategy import Strategy
from cavs.distributed.strategy.ranks import without
from cavs.errors import CommunicationError, ConfigError
from cavs.train.checkpoint import Checkpoint
from cavs.train.coordination import Detached
from cavs.train.run_table import Setting

_PATIENCE = 10.0  # seconds that the first rank waits for the answer of a waiting process
_LOADING = 120.0  # the same of one that has just been started, and reads its data


class Resizer:
    """Lets ranks of a training leave, and waiting processes join.

    wanted: number of ranks that the next `regroup` brings about; None if that stays. rebuilds: True
    if the next `regroup` is to begin with another strategy.
    """

    def __init__(self, survivors: Survivors) -> None:
        self.survivors, self.training = survivors, survivors.training
        self.session = survivors.session
        self.wanted: int | None = None
        self.rebuilds = False
        self._split = self.session.split  # the user's
        self._pool: Pool | None = getattr(self.session.communicator, "pool", None)
        self._spawner, self._patience = Spawner(), _PATIENCE

    @property
    def detached(self) -> bool:
        """True if this process waits, or is to wait, while others train."""
        return self._pool is not None and not self._pool.is_member

    @property
    def most(self) -> int:
        """Largest number of ranks: those that train, that wait, or that can be started."""
        c, pool = self.session.communicator, self._pool
        there = c.size
        if pool is not None:
            pool.keep_only(c.names)  # members may have died
            there += len(pool.waiting)
        return max(there, self._spawner.most(c))

    @property
    def spawns(self) -> bool:
        """True if the wanted number of ranks needs new processes, and none waits."""
        size = min(self.wanted or 0, self.most)
        waiting = [] if self._pool is None else self._pool.waiting
        return size > self.session.communicator.size and not waiting

    def setting(self) -> Setting:
        """Return the setting ``"size"`` of the run table."""

        def want(size: int) -> None:
            self.wanted = size

        def read() -> int:
            return self.wanted or self.session.communicator.size

        return Setting(read, want, self._check)

    def _check(self, size: Any) -> None:
        require_count("size", size)
        requested = self.training.requested
        strategy = self.session.strategy
        if size > self.most:
            raise ConfigError(
                f"resize to {size} ranks, but {self.session.communicator.size} train and "
                f"{self.most - self.session.communicator.size} wait",
                hint=f"ask for at most {self.most}, or start more with cavs launch --spares",
            )
        if strategy is not None and strategy.graph.servers:
            raise ConfigError(
                f"resize to {size} ranks with {len(strategy.graph.servers)} ranks that only own "
                "parameters",
                hint="use a strategy without servers besides the replicas",
            )
        if isinstance(requested, Strategy) and size > len(requested.graph.replicas):
            raise ConfigError(
                f"resize to {size} ranks, but the strategy has {len(requested.graph.replicas)} "
                "replicas",
                hint="pass the name of a builder, which builds one for any number",
            )

    # ---- ranks that train ----------------------------------------------------------------------

    def regroup(self, progress: Callable[[], Mapping[str, Any]], arrays: Memory) -> bool:
        """Bring about what is wanted; return True if the group or the strategy has changed.

        progress, arrays: of the `fit`, for ranks that join. Raises `Detached` on ranks that leave.
        If a rank dies meanwhile, the others begin again.
        """
        rebuilt = self.rebuilds
        while self.rebuilds:
            self.rebuilds = not self._rebuild()
        size, self.wanted = self.wanted, None
        while size is not None and min(size, self.most) != self.session.communicator.size:
            if self._pool is None:
                self._pool = self.survivors.run_once(self._first_pool)
                continue
            wanted = min(size, self.most)
            if wanted > self.session.communicator.size and not self._pool.waiting:
                self._spawn(wanted - self.session.communicator.size)
                continue
            change = self.survivors.run_once(partial(self._prepare, wanted, progress, arrays))
            changed = None if change is None else self._make(change)
            if changed is not None:
                return changed or rebuilt
        return rebuilt

    def _first_pool(self) -> Pool:
        c = self.session.communicator
        return Pool(c, range(c.size))

    def _spawn(self, count: int) -> None:
        """Let MPI start processes, which wait in a new pool with the ranks."""
        c = self.session.communicator
        if c.rank == 0:
            text = f"cavs: starting {count} in place of processes that have died"
            print(text, file=sys.stderr, flush=True)
        started = self.survivors.run_once(partial(self._spawner.spawn, c, count))
        if started is None:
            return
        everyone, reasons = started
        if everyone is None or reasons:
            self._spawner.failures += 1
            if c.rank == 0:
                print(f"cavs: {reasons[0]}", file=sys.stderr, flush=True)
            return
        self._spawner.failures += 1  # until one of them joins
        self.release()  # processes that did not answer
        self._patience = min(_LOADING, c.timeout / 2)
        self._pool = self.survivors.run_once(lambda: Pool(everyone, range(c.size)))

    def _prepare(
        self, size: int, progress: Callable[[], Mapping[str, Any]], arrays: Memory
    ) -> _Change:
        """Bring the state of all ranks together, and choose the members of the new group."""
        pool = self._pool
        assert pool is not None
        memory, updates = self._collect()
        extra = {**memory, **arrays}
        count = size - self.session.communicator.size
        if count < 0:
            return _Change(pool.members[:size], memory, updates, extra, None)
        own = {**progress(), "spawned": self._spawner.count}
        described = describe(self.training, own, extra)
        return _Change(self._invite(count), memory, updates, extra, described)

    def _collect(self) -> tuple[dict[str, Array], int | None]:
        """Bring all state to all ranks; return that of exchanges, and the count of updates."""
        session, states = self.session, self.training.state.states
        session.stale.settle()
        session.collect(states)
        session.replicas.average(states)
        memory = session.memory() if session.roles.computes else {}
        return memory, session.stale.updates

    def _rebuild(self) -> bool:
        """Begin with the requested strategy, another one than before; False if a rank has died."""
        collected = self.survivors.run_once(self._collect)
        if collected is None:
            return False
        self._close_exchanges()
        self._enter(self.session.communicator, None, {}, joining=False)
        self.session.take_memory(*collected)
        return True

    def _invite(self, count: int) -> tuple[int, ...]:
        """Return the present members and up to `count` processes that are ready to join."""
        c, pool = self.session.communicator, self._pool
        assert pool is not None
        ready, reasons = list[int](), list[str]()
        if c.rank == 0:
            patience = min(self._patience, c.timeout)
            ready, reasons = pool.invite(count, self.training.program_facts(), patience)
            for reason in reasons:
                print(f"cavs: {reason}", file=sys.stderr, flush=True)
            if len(ready) < count:
                print(
                    f"cavs: going on with {c.size + len(ready)} ranks, not {c.size + count}",
                    file=sys.stderr,
                    flush=True,
                )
        ready, pool.unfit = c.share([ready, pool.unfit])[0]
        return (*pool.members, *ready)

    def _make(self, change: _Change) -> bool | None:
        """Go on with the members of `change`; return True if the group has changed.

        False if it cannot be made, None if a rank has died meanwhile.
        """
        pool, members = self._pool, change.members
        assert pool is not None
        if members == pool.members:
            return False
        version = pool.version + 1
        if change.described is None:
            stays, c = pool.everyone.rank in members, self.session.communicator
            part = self.survivors.run_once(lambda: c.split(int(not stays), c.rank))
            if part is None:
                return None
            if not stays:
                part.close()
                self._close_group()
                pool.note(members, version)
                raise Detached
            made = part
        else:
            found = self._make_with_others(members, version)
            if found is None or isinstance(found, bool):
                return found
            made = found
        pool.note(members, version)
        if change.described is not None:
            self._spawner.failures = 0
        self._close_group()
        self._enter(made, change.described, change.extra, joining=False)
        self.session.take_memory(change.memory, change.updates)
        return True

    def _make_with_others(self, members: Sequence[int], version: int) -> Communicator | bool | None:
        """Return the group of `members`, some of which join; False or None as `_make` does.

        All ranks get the same verdict.
        """
        c, pool, made = self.session.communicator, self._pool, list[Communicator]()
        assert pool is not None

        def make() -> list[str]:
            reasons: list[str] = c.share(pool.announce(members, version) if c.rank == 0 else [])[0]
            if reasons:
                return reasons
            why = ""
            try:
                made.append(pool.make(members, version))
            except CommunicationError as error:
                why = error.what
            return [reason for reason in c.share(why) if reason]

        reasons = self.survivors.run_once(make)
        joining = [process for process in members if process not in pool.members]
        pool.begin(joining, version, trains=reasons == [])
        if reasons == []:
            return made[0]
        for group in made:
            group.close()
        pool.version = version
        if reasons is None:
            return None
        pool.unfit = [*pool.unfit, *joining]
        if c.rank == 0:
            text = f"cavs: going on with {c.size} ranks, others cannot join: {reasons[0]}"
            print(text, file=sys.stderr, flush=True)
        return False

    def _close_exchanges(self) -> None:
        """End the servers and the device groups of the present strategy."""
        if self.session.servers is not None:
            self.session.servers.close()
        if self.session.group is not None:
            self.session.group.close()

    def _close_group(self) -> None:
        """End what the ranks of the present group share."""
        session = self.session
        closed(session.communicator)
        self._close_exchanges()
        if self._pool is not None and session.communicator is not self._pool.everyone:
            session.communicator.close()

    # ---- waiting processes ---------------------------------------------------------------------

    def join(self, stopped: Callable[[], bool]) -> Checkpoint | None:
        """Wait until this process is to train; return the training's state, or None at its end."""
        pool, training = self._pool, self.training
        assert pool is not None
        while (invitation := pool.wait(training.program_facts, stopped)) is not None:
            try:
                c = pool.make(invitation.members, invitation.version)
            except CommunicationError:  # the ranks go on without this process
                continue
            if pool.begins(invitation):
                pool.note(invitation.members, invitation.version)
                return self._enter(c, None, {}, joining=True)
            c.close()
        return None

    def release(self) -> None:
        """Tell waiting processes that the training has ended; the first rank does."""
        if self._pool is not None and self.session.communicator.rank == 0 and not self.detached:
            self._pool.release()

    # ---- all of the new group ------------------------------------------------------------------

    def _enter(
        self, c: Communicator, described: dict[str, Any] | None, extra: Memory, *, joining: bool
    ) -> Checkpoint | None:
        """Begin to train with the ranks of `c`; return the state for a rank that joins.

        described, extra: if some ranks join, on those that have trained before: a result of
        `describe`, and its arrays. The next step begins with the handshake, which sends all ranks
        the parameters and builds the strategy.
        """
        training, session = self.training, self.session
        session.exchanges = []
        session.split = _split_for(self._split, c.size)
        session.move_to(c, None)  # ranks that join may know of another strategy
        training.begun, training.first_rank, training.first_size = False, c.rank, c.size
        self.survivors.restart()
        attend(c)
        received: Checkpoint | None = None

        def exchange() -> None:
            nonlocal received
            received = transfer(training, described, extra, joining=joining)

        if joining or described is not None:
            self.survivors.receive(exchange, lacks_state=joining)
        if received is not None:
            self._spawner.count, self._spawner.failures = received.progress["spawned"], 0
        requested, size = training.requested, session.communicator.size
        if isinstance(requested, Strategy):
            shapes = {name: p.value.shape for name, p in training.state.parameters.items()}
            gone = set(range(size, len(requested.graph.replicas)))
            session.strategy = without(requested, gone, shapes) if gone else requested
            session.take_roles()
            self.survivors.rebase()
        return received


class _Change(NamedTuple):
    """Members of a new group, by rank, and the state that they begin with.

    described: see `describe`; None if no rank joins.
    """

    members: tuple[int, ...]
    memory: dict[str, Array]
    updates: int | None
    extra: Memory
    described: dict[str, Any] | None


def _split_for(split: Any, size: int) -> Any:
    """Return the user's `split` for another number of ranks."""
    if hasattr(split, "update"):  # it has learned times of other ranks
        fresh = getattr(split, "fresh", None)
        return contiguous if fresh is None else fresh()
    if isinstance(split, Counts) and len(split.counts) != size:
        return split.of(range(size)) if size < len(split.counts) else contiguous
    return split
