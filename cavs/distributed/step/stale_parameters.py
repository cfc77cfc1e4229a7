"""Stale parameters as a rank's training sees them: made, brought up to date, settled."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from cavs.distributed.sync.stale_server import StaleServers, layout_of
from cavs.errors import CommunicationError, ConfigError

if TYPE_CHECKING:
    from cavs.distributed.step.session import DistributedSession

Array = NDArray[Any]


class StaleSide:
    """Of one training; `servers` from the first step on, if it has stale parameters."""

    def __init__(self, training: DistributedSession) -> None:
        self.training = training
        self.servers: StaleServers | None = None
        self._written = True  # parameters were, from outside: servers must take them anew
        self._updates: int | None = None  # of a checkpoint: how many each stale parameter had

    def fetch(
        self, hyper: Mapping[str, Any], states: Sequence[Sequence[Array]], step: int
    ) -> float:
        """Before a step: values as fresh as they must be; the seconds it took."""
        begun, strategy = time.perf_counter(), self.training.strategy
        if strategy is None or not strategy.has_stale:
            return 0.0
        servers = self.serve(hyper, states, step)
        self._renew()
        try:
            if servers.fetch():
                self.training.wrote_served()
        except CommunicationError as error:
            servers.fail(error)
            raise
        return time.perf_counter() - begun

    def serve(
        self, hyper: Mapping[str, Any], states: Sequence[Sequence[Array]], step: int
    ) -> StaleServers:
        """Owners take what was written from outside; all ranks call it."""
        training = self.training
        if self.servers is None:
            training.agreement.meet("start")  # a rank may have no batch to step on
            parameters = training.session.parameters
            self.servers = StaleServers(
                training.communicator,
                layout_of(training.strategy, parameters),
                [p.current().reshape(-1) for p in parameters.values()],
                range(training.roles.count),
                average=training.average,
                teams=training.roles.teams,
            )
        if self._written:
            self._renew()
            # Of a training without stale parameters, or a new one: one update a step.
            updates = step if self._updates is None else self._updates
            self.servers.open(states, hyper, updates)
            self._written, self._updates = False, None
        return self.servers

    @property
    def serves(self) -> bool:
        """Whether owners hold what others do not have."""
        return self.servers is not None and not self._written

    @property
    def updates(self) -> int | None:
        """How many each stale parameter had, where it is known that they are not one a step."""
        return self._updates if self.servers is None else self.servers.updates

    def settle(self) -> None:
        """Waits for all ranks; all gradients are applied, and parameters are equal, after it."""
        if not self.serves:
            return
        assert self.servers is not None
        if not self.training.free:  # who fails on the way to it says so here
            self.training.agreement.meet("settle")
        self._renew()
        if self.servers.settle():
            self.training.wrote_served()

    def _renew(self) -> None:
        """Values go to where the parameters are now: a session of another dtype moves them."""
        assert self.servers is not None
        session = self.training.session
        session.keep_dtype()
        self.servers.values[:] = [p.current().reshape(-1) for p in session.parameters.values()]

    def wrote(self) -> None:
        """Parameters were written from outside. ConfigError while gradients are under way."""
        if self.servers is not None and not self.servers.settled:
            raise ConfigError(
                "parameters were written from outside between two steps",
                hint="call settle() of the trainer first, on all ranks",
            )
        if self.servers is not None and not self._written:
            self._updates = self.servers.updates
        self._written = True

    def resume(self, updates: int | None) -> None:
        """What a checkpoint says of the updates."""
        self._updates = updates

    def restart(self, updates: int | None) -> None:
        """`resume` of parameters that were read with it."""
        self._updates, self._written = updates, True

    def leave(self) -> None:
        """A rank is gone: nobody waits for what it would have written."""
        if self.servers is not None:
            self.servers.leave()

    def move(self) -> None:
        """Other ranks own the parameters from now on."""
        self.servers, self._written = None, True

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent, as worker and as owner."""
        return 0 if self.servers is None else self.servers.sent_bytes
