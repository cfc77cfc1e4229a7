"""State that the steps of a training share on one rank: roles, exchanges, stale parameters."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from numpy.typing import NDArray

from cavs.compiler.pipeline import Compiled
from cavs.config import require
from cavs.distributed.balance.shards import (
    GlobalBatch,
    ShardedBatch,
    Split,
    contiguous,
    shard,
)
from cavs.distributed.comm.agreement import Agreement
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.compression import is_alike, share_of
from cavs.distributed.step.counted import CountedRanks, count_of_loss
from cavs.distributed.step.devices import DeviceReplica
from cavs.distributed.strategy import Strategy
from cavs.distributed.strategy.ranks import Roles
from cavs.distributed.sync import DeviceGroup, Exchange
from cavs.distributed.sync.part import values_of
from cavs.distributed.sync.stale_server import StalePush, StaleServers, layout_of
from cavs.errors import CommunicationError, ConfigError
from cavs.runtime import Session
from cavs.runtime.features import FeatureTypes
from cavs.train.monitors import Monitor

Array = NDArray[Any]


@dataclass(frozen=True)
class Update:
    """Arguments of a step: hyperparameters, optimiser states, the largest norm, and its number.

    seed: of dropout masks; rank 0 draws those of `Session`.
    """

    hyper: dict[str, Any]
    states: Sequence[Sequence[Array]]
    max_norm: float | None
    seed: int
    step: int

    def clip(self, norm: float) -> float:
        """Return the factor that clips a gradient of this norm."""
        return 1.0 if self.max_norm is None or norm <= self.max_norm else self.max_norm / norm


@dataclass(eq=False, repr=False)
class StepContext:
    """State of a training on one rank.

    session: compiles and runs programs here. strategy: None reduces all gradients to all ranks, in
    buckets, as they become ready. split: which rank takes which graphs of a batch. wait_free: False
    starts to communicate after backward; for comparison. collectives: see `devices.join_devices`.
    """

    session: Session
    communicator: Communicator
    strategy: Strategy | None = None
    _: KW_ONLY
    split: Split = contiguous
    wait_free: bool = True
    collectives: str = "auto"

    def __post_init__(self) -> None:
        self.agreement = Agreement(self.communicator)
        self.stale = StaleParameters(self)
        self.group: DeviceGroup | None = None  # devices that sum among themselves
        self.servers: StaleServers | None = None  # stale parameters, from the first step on
        self.exchanges: list[Exchange] = []  # for the program that ran last
        self.exchanging: Any = None  # the executor in that program
        self.int_features: list[str] = []  # in that program
        self.num_counts = 3  # the length of `ShardedBatch.counts` for it
        self.kept_memory: dict[str, Array] = {}  # state of compressors that a checkpoint had
        self.monitors: Sequence[Monitor] = ()  # observe the next step
        self.wants_stop = self.stopping = False  # the wish of this rank; the decision of all
        self.backup = 0  # ranks that a synchronous step does not wait for
        self.compiled: Compiled | None = None  # the program that ran last, on a replica
        self.count_of_loss: int | None = None  # in it, where there are backup ranks
        self._counting: CountedRanks | None = None
        self._roles: Roles | None = None

    # ---- ranks ---------------------------------------------------------------------------------

    @property
    def asynchronous(self) -> bool:
        """True if all parameters are stale: then a step waits for no other rank."""
        return self.strategy is not None and self.strategy.is_asynchronous

    @property
    def is_divergent(self) -> bool:
        """True if replicas may hold different values."""
        return self.strategy is not None and self.strategy.is_divergent

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
        c, strategy = self.communicator, self.strategy
        replicas = c.size if strategy is None else len(strategy.graph.replicas)
        return c.rank, replicas if self._roles is None else self._roles.count

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

    # ---- backup ranks --------------------------------------------------------------------------

    def check_backup(self, backup: int) -> None:
        """Raise `ConfigError` if steps cannot do without `backup` ranks; the same on all ranks."""
        if not backup:
            return
        replicas = self.position[1]
        require(
            backup < replicas, "backup", backup, f"fewer than the {replicas} ranks that compute"
        )
        what = "" if self.average else "gradients that are added"
        if self.is_divergent:
            what = "replicas that differ"
        if self.strategy is not None and self.strategy.has_stale:
            what = "stale parameters"
        if what:
            raise ConfigError(
                f"backup ranks with {what}",
                hint="use a synchronous strategy whose gradients are means, or no backup ranks",
            )
        if self.session.device is not None:
            raise ConfigError(
                f"backup ranks on {self.session.device}, whose runs cannot be abandoned",
                hint="use device='cpu', or no backup ranks",
            )
        if self.compiled is not None:
            self.count_of_loss = count_of_loss(self.compiled)

    def counting_ranks(self) -> CountedRanks | None:
        """Return what decides which ranks a step counts, None if all; at first, all ranks ask."""
        if self.backup and self._counting is None:
            self._counting = CountedRanks(self.communicator)
        return self._counting if self.backup else None

    def count_all(self) -> None:
        """Count all ranks from now on, without a word to the others."""
        self.backup, counting, self._counting = 0, self._counting, None
        if counting is not None:
            counting.close()

    # ---- this rank's part of a batch -----------------------------------------------------------

    def shard(self, batch: GlobalBatch) -> ShardedBatch:
        """Return this rank's part of a global batch."""
        # A part that was cut for other ranks, or by another split, is cut again.
        part = batch if isinstance(batch, ShardedBatch) else None
        if part is None or part.split is not self.split or part.position != self.position:
            part = shard(batch, self.position, self.split)
        # This rank may have no edge, no vertex of a type or structure, or no pair of a link.
        FeatureTypes(self.session.model).learn(part.batch_types)
        return part

    def ready(self, part: ShardedBatch) -> tuple[Any, Any, Compiled]:
        """Return `Session.ready`, with an executor that exchanges work with on any device."""
        executor, inputs, compiled = self.session.ready(part.local)
        if self.session.overlaps:
            known = self.exchanging
            if not isinstance(known, DeviceReplica) or known.executor is not executor:
                known = DeviceReplica(executor, self.session.parameters, self.on_host)
            executor = known
        return executor, inputs, compiled

    # ---- exchanges -----------------------------------------------------------------------------

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
        nodes = () if self.strategy is None else self.strategy.nodes
        served = {n.name for n in nodes if any(leaf.sync.owner is not None for leaf in n.leaves)}
        return [i for i, name in enumerate(self.session.parameters) if name in served]

    @property
    def on_host(self) -> list[int]:
        """Numbers of the parameters that ranks write on the host: owned ones, and mixed ones."""
        nodes = () if self.strategy is None else self.strategy.nodes
        mixed = {n.name for n in nodes if any(leaf.sync.mixes_values for leaf in n.leaves)}
        known = enumerate(self.session.parameters)
        return sorted({*self.served, *(i for i, name in known if name in mixed)})

    @property
    def owns(self) -> bool:
        """True if some ranks hold optimiser states that others do not."""
        return bool(self.served)

    def own_pieces(self) -> list[Any]:
        """Return this rank's gradients of stale parameters in the step that ran."""
        pushed = (e for e in self.exchanges if isinstance(e, StalePush))
        return [piece.as_tuple() for exchange in pushed for piece in exchange.own]


class StaleParameters:
    """The servers of a training, from its first step on, if it has stale parameters."""

    def __init__(self, context: StepContext) -> None:
        self.context = context
        self._written = True  # from outside: servers must take the parameters as they are
        self._updates: int | None = None  # count for each parameter, by a checkpoint

    def fetch(self, update: Update) -> float:
        """Fetch values as fresh as a step needs them; return the seconds it took."""
        begun, strategy = time.perf_counter(), self.context.strategy
        if strategy is None or not strategy.has_stale:
            return 0.0
        servers = self.serve(update.hyper, update.states, update.step)
        try:
            if servers.fetch():
                self.context.session.write(self.context.served)
        except CommunicationError as error:
            servers.fail(error)
            raise
        return time.perf_counter() - begun

    def serve(
        self, hyper: Mapping[str, Any], states: Sequence[Sequence[Array]], step: int
    ) -> StaleServers:
        """Let owners take values that were written from outside; all ranks call it."""
        context = self.context
        if context.servers is None:
            assert context.strategy is not None
            context.agreement.consensus("start")  # a rank may have no batch to step on
            parameters = context.session.parameters
            context.servers = StaleServers(
                context.communicator,
                layout_of(context.strategy, parameters),
                values_of(parameters),
                context.roles.teams,
                average=context.average,
            )
        self._renew(context.servers)
        if self._written:
            # One update a step, in a new training or one without stale parameters so far.
            updates = step if self._updates is None else self._updates
            context.servers.open(states, hyper, updates)
            self._written, self._updates = False, None
        return context.servers

    @property
    def serves(self) -> bool:
        """True if owners have values that other ranks do not have."""
        return self.context.servers is not None and not self._written

    @property
    def updates(self) -> int | None:
        """Number of updates of each stale parameter, unless it is known to be one a step."""
        servers = self.context.servers
        return self._updates if servers is None else servers.updates

    def settle(self) -> None:
        """Wait for all ranks; after it all gradients are applied and parameters are equal.

        Requests of exchanges have ended, too, so that no rank answers one after its last step.
        """
        for exchange in self.context.exchanges:
            exchange.settle()
        servers = self.context.servers
        if servers is None or self._written:
            return
        if not self.context.asynchronous:  # else servers tell of errors
            self.context.agreement.consensus("settle")
        self._renew(servers)
        if servers.settle():
            self.context.session.write(self.context.served)

    def _renew(self, servers: StaleServers) -> None:
        """Point `servers` to the parameters: a session of another dtype replaces their arrays."""
        session = self.context.session
        session.keep_dtype()
        servers.values[:] = values_of(session.parameters)

    def wrote(self) -> None:
        """Note that parameters were written from outside. ConfigError during an update."""
        servers = self.context.servers
        if servers is not None and not servers.settled:
            raise ConfigError(
                "parameters were written from outside between two steps",
                hint="call settle() of the trainer first, on all ranks",
            )
        if servers is not None and not self._written:
            self._updates = servers.updates
        self._written = True

    def applied(self) -> None:
        """Count an update without stale parameters, in a training that has had some."""
        if self.context.servers is None and self._updates is not None:
            self._updates += 1

    def resume(self, updates: int | None, *, written: bool = False) -> None:
        """Continue from the number of updates of a checkpoint; written: and its parameters."""
        self._updates, self._written = updates, self._written or written
