"""The engine of a training on many ranks: a session whose steps reduce gradients on the way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs._engine import Executor
from cavs.compiler.pipeline import Compiled
from cavs.data import GraphBatch
from cavs.distributed.balance.shards import (
    ShardedBatch,
    Split,
    WholeBatch,
    contiguous,
    make_of,
    shard,
)
from cavs.distributed.comm.agreement import Agreement
from cavs.distributed.comm.exit_hooks import closed
from cavs.distributed.comm.interfaces import Communicator, LostPeerError
from cavs.distributed.step.asynchronous import free_step
from cavs.distributed.step.consensus import ends_of
from cavs.distributed.step.device_replica import DeviceReplica
from cavs.distributed.step.devices import join_devices
from cavs.distributed.step.digest import guesses, same_program
from cavs.distributed.step.run import Run, StepReport
from cavs.distributed.step.server_executor import idle_executor
from cavs.distributed.step.stale_parameters import StaleSide
from cavs.distributed.step.union_of_kinds import FailedElsewhereError, Union
from cavs.distributed.strategy import Strategy
from cavs.distributed.strategy.roles import Roles
from cavs.distributed.sync import DeviceGroup, Exchange, exchanges_of
from cavs.distributed.sync.compressor_state import HeldBack
from cavs.distributed.sync.parameter_server import SparseServers
from cavs.distributed.sync.plan import served_by
from cavs.distributed.sync.stale_server import StalePush, StaleServers
from cavs.errors import CommunicationError
from cavs.runtime import Session
from cavs.runtime.edge_types import EdgeTypes
from cavs.runtime.variant import EvalResult
from cavs.train.engine import Engine

Array = NDArray[Any]


class DistributedSession(Engine):
    """A `Session` of one rank, and the exchanges with the others; an engine of a `Trainer`.

    strategy: None reduces all gradients to all ranks, in buckets, as they become ready. split:
    which rank takes which graphs of a batch. wait_free: False starts to communicate after
    backward; for comparison. collectives: see `devices.join_devices`.
    """

    def __init__(
        self,
        session: Session,
        communicator: Communicator,
        strategy: Strategy | None = None,
        *,
        split: Split = contiguous,
        wait_free: bool = True,
        collectives: str = "auto",
    ) -> None:
        self.session, self.communicator, self.strategy = session, communicator, strategy
        self.split, self.wait_free, self.collectives = split, wait_free, collectives
        self.predicted = ""  # on rank 0: what `auto` predicts of a step
        self.group: DeviceGroup | None = None  # of devices that sum among themselves
        self.agreement = Agreement(communicator)
        self.int_features: list[str] = []  # of the program that runs
        self._exchanges: list[Exchange] = []
        self._exchanging: Any = None  # the executor that they are of
        self._held = HeldBack(list(session.parameters))
        self._roles: Roles | None = None
        self.wants_stop = self.stopping = False  # this rank's wish; what all know of
        self.stale = StaleSide(self)
        self.writes = 0  # from outside

    def step(
        self,
        batch: GraphBatch | ShardedBatch,
        hyper: dict[str, Any],
        states: Sequence[Sequence[Array]],
        *,
        seed: int = 0,
        step: int = 0,
        max_norm: float | None = None,
    ) -> StepReport:
        """As `Session.step`, on the global `batch`; raises on all ranks if one of them fails."""
        sent, computes = self.sent_bytes, self.roles.computes
        failed: CommunicationError | None = None
        waited = 0.0
        try:
            waited = self.stale.fetch(hyper, states, step)
        except LostPeerError:
            raise  # who makes this step with this rank finds that out as well
        except CommunicationError as unheard:
            if not (self.free and computes and self.roles.teamed):
                raise
            failed = unheard  # those who make this step with this rank may not have heard of it
        if self.free:
            assert self.servers is not None
            if not computes:
                return StepReport(0.0, 0.0, 0.0, 0.0, 0.0, self.servers.newly_sent())
            options = seed, step, max_norm
            return free_step(self, self.servers, batch, hyper, options, waited, failed)
        if not computes:
            return self._finish(self._serve(), None, 0.0, None, (hyper, states, max_norm), sent)
        part, executor, inputs = self.prepare_together(batch)
        totals = self._totals(part)
        scale = self.scale(part)
        run = Run(executor, self._exchanges, self.roles, self.wait_free, self.group)
        words = self.session.readable_errors(part.local)
        loss, error = run.go(words, (*inputs, self.own_seed(seed), step, scale, totals))
        run.expose(waited)
        return self._finish(run, part, loss, error, (hyper, states, max_norm), sent)

    def prepare_together(
        self, batch: GraphBatch | ShardedBatch, failed: Exception | None = None
    ) -> tuple[ShardedBatch, Any, Any]:
        """This rank's part, the executor that ranks of one step have alike, and its inputs.

        failed: what this rank brings to the others instead.
        """
        part: ShardedBatch | None = None
        new = True
        try:
            if failed is not None:
                raise failed
            part = self.shard(batch)
            lost = self.group is not None and self.group.lost
            new = lost or self._exchanging is None or self.session.is_new(part.local)
            if not new:
                executor, inputs, _ = self.ready(part)
                new = executor is not self._exchanging  # whose memory the exchanges send
        except Exception as error:  # the other ranks must learn of it, whatever it is
            failed = error
        stop = self.wants_stop and not self.free
        meeting = self.team_agreement.meet("step", failed, new=new, stop=stop)
        self.stopping |= meeting.stop
        assert part is not None
        if meeting.new:
            executor, inputs = self._compile(part)
        return part, executor, inputs

    def ready(self, part: ShardedBatch) -> tuple[Any, Any, Compiled]:
        """As `Session.ready`; the executor is one that exchanges work with, wherever it runs."""
        executor, inputs, compiled = self.session.ready(part.local)
        if self.session.overlaps:
            known = self._exchanging
            if not isinstance(known, DeviceReplica) or known.executor is not executor:
                known = DeviceReplica(executor, self.session.parameters, self.served)
            executor = known
        return executor, inputs, compiled

    def _compile(self, part: ShardedBatch) -> tuple[Any, Any]:
        """One program on all ranks, and its exchanges."""
        failed: Exception | None = None
        union = Union(self.roles.local if self.free else self.roles.replicas)
        if not self.free and (self.group is None or self.group.lost):
            device, replicas = self.session.device, self.roles.replicas
            self.group = join_devices(self.collectives, device, replicas, self.group)
            self._exchanging = None
        try:
            self.session.compile_for(part.local, union)
            executor, inputs, compiled = self.ready(part)
        except CommunicationError:
            raise
        except FailedElsewhereError:
            pass  # the error comes to the meeting
        except Exception as error:  # as above
            failed = error
            union.give_up()
        self.team_agreement.meet("step", failed)
        self._place_gradients(executor)
        try:
            kinds = compiled.program.gradients
            self.exchanges_for(executor, kinds)
            self.int_features = compiled.program.int_features
        except CommunicationError:
            raise
        except Exception as error:  # as above
            failed = error
        self.team_agreement.meet("exchanges", failed)
        known = None if guesses(part.local) else compiled
        same_program(self.team_agreement, known, executor.gradient_order())
        if self.free:
            return executor, inputs
        if self.roles.replicas is not self.communicator:  # for those who compile nothing
            self.communicator.share([executor.gradient_order(), kinds, self.int_features])
        return executor, inputs

    def _place_gradients(self, executor: Any) -> None:
        """Into memory that all replicas see, where they can; the same on all of them."""
        replicas = self.roles.replicas
        if self.free or replicas.size == 1 or not isinstance(executor, Executor):
            return
        block = executor.gradient_block()
        every = replicas.share([block.nbytes, executor is self._exchanging])
        if all(known for _, known in every) or len({size for size, _ in every}) > 1:
            return
        memory = replicas.common_memory(block.nbytes) if block.nbytes else None
        if memory is not None:
            executor.set_gradient_block(memory.view(block.dtype))
        self._exchanging = None

    def _serve(self) -> Run:
        """The step of a rank that only owns parameters, up to where all ranks meet again."""
        meeting = self.agreement.meet("step", stop=self.wants_stop)
        self.stopping |= meeting.stop
        if meeting.new:
            for place in ("step", "exchanges"):
                self.agreement.meet(place)
            same_program(self.agreement, None, ())
            order, kinds, self.int_features = self.communicator.share(None)[0]
            self.exchanges_for(idle_executor(self.session.parameters, order), kinds)
        if self.average:
            self.communicator.all_reduce(np.zeros(3 + len(self.int_features)))
        run = Run(self._exchanging, self._exchanges, self.roles, self.wait_free)
        run.serve()
        return run

    def _totals(self, part: ShardedBatch) -> list[float]:
        """Graphs, vertices, edges and present values of index features, of the global batch.

        Where gradients are added, not averaged: of this rank's part.
        """
        totals = part.counts(self.int_features)
        if self.average:
            totals *= not part.empty
            self.communicator.all_reduce(totals)
        result: list[float] = totals.tolist()
        return result

    def _finish(
        self,
        run: Run,
        part: ShardedBatch | None,
        loss: float,
        error: Exception | None,
        update: tuple[dict[str, Any], Sequence[Sequence[Array]], float | None],
        sent: int,
    ) -> StepReport:
        """Agree on loss and norm, then update: on all ranks or on none."""
        c, (hyper, states, max_norm) = self.communicator, update
        replicas = self.roles.count
        over = float(replicas if self.average else 1)  # gradients are sums over so many
        squares = 0.0
        if error is None:
            counted = [p for p in run.pieces if p.owned]
            if c.rank < replicas:  # who all have the others
                counted += [p.share(c.rank, replicas) for p in run.pieces if not p.owned]
            squares = run.executor.squared_norm([p.as_tuple() for p in counted])
            # Each is applied alone: one of them counts, as the mean of all.
            weight = over**2 / (replicas * len(self.roles.team)) if self.roles.computes else 0.0
            squares += run.executor.squared_norm(self.own_pieces()) * weight
        ends = ends_of(self, run, part, hyper, (loss, squares), error)
        hyper, loss, norm = ends.hyper, ends.loss / replicas, math.sqrt(ends.squares) / over
        if math.isfinite(loss) and math.isfinite(norm):
            clip = 1.0 if max_norm is None or norm <= max_norm else max_norm / norm
            lists = [list(s) for s in states]
            pieces = [p.as_tuple() for p in run.pieces]
            trainable = [p.trainable for p in self.session.parameters.values()]
            run.executor.apply(pieces, hyper, lists, trainable, clip / over)
            run.distribute(c)
            if self.servers is not None and self.roles.computes:
                self.servers.commit(clip, hyper["lr"])
            if self._serves:
                tables = [e for e in self._exchanges if isinstance(e, SparseServers)]
                rows = {e.parameter: e.written for e in tables}
                self.session.write([p for p in self.served if p not in rows], rows)
            self.session.moved(run.executor)
        return StepReport(
            float(loss),
            norm,
            run.compute_seconds,
            run.communication_seconds,
            run.exposed_seconds,
            self.sent_bytes - sent,
            ends.seconds,
            ends.reports,
        )

    # ---- stale parameters ----------------------------------------------------------------------

    @property
    def free(self) -> bool:
        """Whether all parameters are stale: then ranks meet in no step."""
        return self.strategy is not None and self.strategy.is_free

    @property
    def average(self) -> bool:
        """Whether the gradients of the ranks are averaged, or added."""
        return self.strategy is None or self.strategy.graph.gradients == "mean"

    @property
    def servers(self) -> StaleServers | None:
        """Of stale parameters, from the first step on."""
        return self.stale.servers

    def wrote_served(self) -> None:
        """New values of parameters that ranks own have come here."""
        self.session.write(self.served)

    @property
    def team_agreement(self) -> Agreement:
        """Where those meet who go through a step together: all, or the replicas of a host."""
        return Agreement(self.roles.local) if self.free else self.agreement

    @property
    def exchanges(self) -> list[Exchange]:
        """Those of the program that ran last."""
        return self._exchanges

    def own_pieces(self) -> list[Any]:
        """This rank's gradients of stale parameters in the step that ran."""
        pushed = (e for e in self._exchanges if isinstance(e, StalePush))
        return [piece.as_tuple() for exchange in pushed for piece in exchange.own]

    def exchanges_for(self, executor: Any, kinds: Mapping[str, str]) -> list[Exchange]:
        """The exchanges of a program; those before hand over what they remember."""
        if executor is not self._exchanging:
            parameters = self.session.parameters
            fresh = exchanges_of(
                self.strategy, executor, parameters, kinds, self.roles, self.servers, self.group
            )
            for exchange in fresh:
                self._held.give(exchange, *self.place, average=self.average)
                exchange.inherit(self._exchanges)
            self._exchanges, self._exchanging = fresh, executor
        return self._exchanges

    def memory(self) -> dict[str, Array]:
        """What the exchanges of all ranks remember, [ranks, ...] each; for a checkpoint."""
        if not self._exchanges:  # nothing has run, and nobody may know the roles yet
            return self._held.kept
        return self._held.gather(self._exchanges, self.roles.replicas)

    @property
    def kept_memory(self) -> dict[str, Array]:
        """What `take_memory` got last, of all ranks."""
        return self._held.kept

    def take_memory(self, kept: dict[str, Array], updates: int | None = None) -> None:
        """Continues from what `memory` and `updates` gave, on any number of ranks."""
        self._held.kept = kept
        if updates is not None:
            self.stale.resume(updates)
        for exchange in self._exchanges:
            self._held.give(exchange, *self.place, average=self.average)

    def scale(self, part: ShardedBatch) -> float:
        """What sums over rows are multiplied with, so that the mean over ranks is right."""
        return 0.0 if part.empty else float(self.roles.count if self.average else 1)

    def own_seed(self, seed: int) -> int:
        """Every rank draws its own dropout masks; one rank alone draws those of `Session`."""
        return (seed + (self.communicator.rank << 32)) % 2**64

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent so far."""
        groups = self.communicator if self._roles is None else self._roles
        among_devices = 0 if self.group is None else self.group.sent_bytes
        return groups.sent_bytes + self.stale.sent_bytes + among_devices

    @property
    def _serves(self) -> bool:
        """Whether values come from other ranks after an update."""
        return any(type(e).distribute is not Exchange.distribute for e in self._exchanges)

    @property
    def owns(self) -> bool:
        """Whether some ranks hold optimiser states that others do not."""
        return bool(self.served)

    @property
    def served(self) -> list[int]:
        """Parameters that are owned by ranks, or parts of which are; by number."""
        return served_by(self.strategy, self.session.parameters)

    def leave(self) -> None:
        """Ends what other ranks wait for, because one of them is gone."""
        self.stale.leave()
        if self._roles is not None:
            self._roles.leave()
        if self.group is not None:
            self.group.abort()

    def move_to(self, communicator: Communicator, strategy: Strategy | None) -> None:
        """Goes on with those ranks that are left, and what they do now.

        What compressors held back here stays, at the weight that it had; where ranks own parameters
        `take_memory` is to bring back what all held.
        """
        before = self._roles
        self.communicator, self.agreement = communicator, Agreement(communicator)
        self.strategy = strategy
        self._roles = Roles(communicator, strategy)
        self._exchanging = self.group = None  # owners may be others now
        self.stale.move()
        if self.owns:
            self._exchanges = []
        elif before is not None and self.average:
            for exchange in self._exchanges:
                exchange.weigh(self._roles.count / before.count)

    def close(self) -> None:
        """Ends what goes on beside the steps; all ranks have come to an end."""
        closed(self.communicator)
        if self.servers is not None:
            self.servers.close()
        if self.group is not None:
            self.group.close()

    def finish(self) -> None:
        """The step that this rank had no time to end is applied, elsewhere: so it is here."""
        for exchange in self._exchanges:
            exchange.commit()

    def shard(self, batch: GraphBatch | ShardedBatch | WholeBatch) -> ShardedBatch:
        """This rank's part of a global batch."""
        # Else ranks that are gone had a part of it, or not all have divided it alike.
        if not (isinstance(batch, ShardedBatch) and batch.divided_by(self.split, self.place)):
            batch = shard(batch.graphs, batch.ids, *self.place, self.split, make_of(batch))
        EdgeTypes(self.session.model).learn(batch.edge_features)  # this rank may have no edge
        return batch

    @property
    def roles(self) -> Roles:
        """Who does what; all ranks ask for it first in the same step, unless they took them."""
        if self._roles is None:
            self.take_roles()
        assert self._roles is not None
        return self._roles

    def take_roles(self) -> None:
        """All ranks call it together, once there is a strategy."""
        self._roles = Roles(self.communicator, self.strategy)

    @property
    def place(self) -> tuple[int, int]:
        """This rank, and among how many a batch is divided; ranks beyond them compute nothing."""
        count = self.communicator.size
        if self.strategy is not None and self._roles is None:
            count = len(self.strategy.graph.replicas)
        return self.communicator.rank, count if self._roles is None else self._roles.count

    def prepare(self, batch: GraphBatch | ShardedBatch | WholeBatch, training: bool = True) -> None:
        """See `Session.prepare`."""
        if not isinstance(batch, WholeBatch):
            local = batch.local if isinstance(batch, ShardedBatch) else batch
            self.session.prepare(local, training)

    def keep_dtype(self) -> None:
        """See `Session.keep_dtype`."""
        self.session.keep_dtype()

    def invalidate(self) -> None:
        """See `Session.invalidate`. ConfigError while gradients of stale ones are under way."""
        self.stale.wrote()
        self.writes += 1
        self.session.invalidate()

    def evaluate(self, batch: GraphBatch) -> EvalResult:
        """See `Session.evaluate`; this rank alone."""
        return self.session.evaluate(batch)

    def predict(self, batch: GraphBatch) -> dict[str, Array]:
        """See `Session.predict`; this rank alone."""
        return self.session.predict(batch)

    def state_dict(self) -> dict[str, Any]:
        """See `Session.state_dict`; the same on all ranks."""
        return {**self.session.state_dict(), "updates": self.stale.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Session.load_state_dict`."""
        self.session.load_state_dict(state)
        updates = state.get("updates")
        self.stale.restart(updates if isinstance(updates, int) else None)

    def collect(self, states: Sequence[Sequence[Array]], place: str = "save") -> None:
        """Brings all ranks every optimiser state, before a checkpoint; they meet at `place`."""
        failed: Exception | None = None
        try:
            self.session.download()
        except Exception as error:  # the other ranks must learn of it, whatever it is
            failed = error
        self.agreement.meet(place, failed)
        for exchange in self._exchanges:
            exchange.collect(states, self.communicator)
        if self.servers is not None and self.servers.phase:  # also what they held before a load
            self.servers.collect(states, self.communicator)
