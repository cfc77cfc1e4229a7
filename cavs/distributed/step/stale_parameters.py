"""Stale parameters in the training of a rank: served, fetched before a step, settled."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from cavs.distributed.step.context import StepContext
from cavs.distributed.step.run import Update
from cavs.distributed.sync.part import values_of
from cavs.distributed.sync.stale_server import StaleServers, layout_of
from cavs.errors import CommunicationError, ConfigError

Array = NDArray[Any]


class StaleParameters:
    """The servers of a training, from its first step on, if it has stale parameters."""

    def __init__(self, context: StepContext) -> None:
        self.context = context
        self._written = True  # from outside: servers must take the parameters as they are
        self._updates: int | None = None  # count for each parameter, by a checkpoint

    def fetch(self, update: Update, step: int) -> float:
        """Fetch values as fresh as a step needs them; return the seconds it took."""
        begun, strategy = time.perf_counter(), self.context.strategy
        if strategy is None or not strategy.has_stale:
            return 0.0
        servers = self.serve(update.hyper, update.states, step)
        self._renew(servers)
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
        if self._written:
            self._renew(context.servers)
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
        """Wait for all ranks; after it all gradients are applied and parameters are equal."""
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

    def resume(self, updates: int | None) -> None:
        """Continue from the number of updates of a checkpoint."""
        self._updates = updates

    def restart(self, updates: int | None) -> None:
        """Continue from a checkpoint whose parameters were loaded, too."""
        self._updates, self._written = updates, True

    def leave(self) -> None:
        """Stop serving at once, because a rank has died."""
        if self.context.servers is not None:
            self.context.servers.leave()

    def move(self) -> None:
        """Let other ranks own the parameters from now on."""
        self.context.servers, self._written = None, True
