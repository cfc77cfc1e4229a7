"""State that the steps of a training share on one rank: roles, parts of batches, exchanges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

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
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.compression import is_alike, share_of
from cavs.distributed.step.executors import DeviceReplica
from cavs.distributed.strategy import Strategy
from cavs.distributed.strategy.roles import Roles
from cavs.distributed.sync import DeviceGroup, Exchange, Runtime, exchanges_of
from cavs.distributed.sync.lowering import served_by
from cavs.distributed.sync.stale_server import StalePush, StaleServers
from cavs.runtime import Session
from cavs.runtime.edge_types import EdgeTypes

Array = NDArray[Any]


class StepContext:
    """State of a training on one rank.

    session: compiles and runs programs here. strategy: None reduces all gradients to all ranks, in
    buckets, as they become ready. split: which rank takes which graphs of a batch. wait_free: False
    starts to communicate after backward; for comparison. collectives: see `devices.join_devices`.
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
        self.agreement = Agreement(communicator)
        self.group: DeviceGroup | None = None  # devices that sum among themselves
        self.servers: StaleServers | None = None  # stale parameters, from the first step on
        self.exchanges: list[Exchange] = []  # for the program that ran last
        self.exchanging: Any = None  # the executor in that program
        self.int_features: list[str] = []  # in that program
        self.kept_memory: dict[str, Array] = {}  # state of compressors that a checkpoint had
        self.wants_stop = self.stopping = False  # the wish of this rank; the decision of all
        self._roles: Roles | None = None

    # ---- ranks ---------------------------------------------------------------------------------

    @property
    def asynchronous(self) -> bool:
        """True if all parameters are stale: then a step waits for no other rank."""
        return self.strategy is not None and self.strategy.is_asynchronous

    @property
    def average(self) -> bool:
        """True if the gradients of the ranks are averaged, False if they are added."""
        return self.strategy is None or self.strategy.graph.gradients == "mean"

    @property
    def roles(self) -> Roles:
        """The roles of the ranks; the first use of a step is collective, unless they were taken."""
        if self._roles is None:
            self.take_roles()
        assert self._roles is not None
        return self._roles

    def take_roles(self) -> None:
        """Take the roles of the strategy; all ranks call it together."""
        self._roles = Roles(self.communicator, self.strategy)

    @property
    def position(self) -> tuple[int, int]:
        """This rank, and the number of replicas; ranks from that number on compute nothing."""
        count = self.communicator.size
        if self._roles is not None:
            count = self._roles.count
        elif self.strategy is not None:
            count = len(self.strategy.graph.replicas)
        return self.communicator.rank, count

    @property
    def team_agreement(self) -> Agreement:
        """The agreement of the ranks that step together: all, or the replicas of this host."""
        return Agreement(self.roles.local) if self.asynchronous else self.agreement

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent so far."""
        groups = self.communicator if self._roles is None else self._roles
        nccl = None if self.group is None else self.group.nccl
        return groups.sent_bytes + sum(x.sent_bytes for x in (self.servers, nccl) if x is not None)

    # ---- this rank's part of a batch -----------------------------------------------------------

    def shard(self, batch: GraphBatch | ShardedBatch | WholeBatch) -> ShardedBatch:
        """Return this rank's part of a global batch."""
        # A part that was cut for other ranks, or by another split, is cut again.
        if not (isinstance(batch, ShardedBatch) and batch.divided_by(self.split, self.position)):
            batch = shard(batch.graphs, batch.ids, *self.position, self.split, make_of(batch))
        EdgeTypes(self.session.model).learn(batch.edge_features)  # this rank may have no edge
        return batch

    def ready(self, part: ShardedBatch) -> tuple[Any, Any, Compiled]:
        """Return `Session.ready`, with an executor that exchanges work with on any device."""
        executor, inputs, compiled = self.session.ready(part.local)
        if self.session.overlaps:
            known = self.exchanging
            if not isinstance(known, DeviceReplica) or known.executor is not executor:
                known = DeviceReplica(executor, self.session.parameters, self.served)
            executor = known
        return executor, inputs, compiled

    # ---- exchanges -----------------------------------------------------------------------------

    def exchanges_for(
        self, executor: Any, layouts: Mapping[str, str], int_features: list[str]
    ) -> None:
        """Make the exchanges of a program; the earlier ones hand over their state.

        layouts: see `exchanges_of`. int_features: features of the program that are indices.
        """
        if executor is self.exchanging:
            return
        self.int_features = int_features
        parameters, group = self.session.parameters, self.group
        runtime = Runtime(self.strategy, executor, parameters, self.roles, self.servers, group)
        fresh = exchanges_of(runtime, layouts)
        for exchange in fresh:
            self.restore_memory(exchange)
            exchange.inherit(self.exchanges)
        self.exchanges, self.exchanging = fresh, executor

    def restore_memory(self, exchange: Exchange) -> None:
        """Give an exchange this rank's share of the kept state of its parameters."""
        names = list(self.session.parameters)
        for parameter in exchange.parameters:
            prefix = f"{names[parameter]}."
            exchange.remember(
                {
                    name.removeprefix(prefix): share_of(
                        every, *self.position, average=self.average, alike=is_alike(name)
                    )
                    for name, every in self.kept_memory.items()
                    if name.startswith(prefix)
                }
            )

    @property
    def served(self) -> list[int]:
        """Numbers of the parameters that servers own, wholly or in part."""
        return served_by(self.strategy, self.session.parameters)

    @property
    def owns(self) -> bool:
        """True if some ranks hold optimiser states that others do not."""
        return bool(self.served)

    def own_pieces(self) -> list[Any]:
        """Return this rank's gradients of stale parameters in the step that ran."""
        pushed = (e for e in self.exchanges if isinstance(e, StalePush))
        return [piece.as_tuple() for exchange in pushed for piece in exchange.own]
