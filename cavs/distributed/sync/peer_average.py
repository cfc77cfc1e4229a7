"""Averages with the models of peers: every rank keeps its model for the requests of the others.

Models travel through the store of the communicator while gradients are computed. A rank keeps its
model when a step begins. By then all ranks have agreed on the end of the step before, and none ends
this one before all requests are answered. So a peer has one model only that a synchronous request
can mean, that of the same step, and results depend on no time unless latencies select the peers.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.comm.service import Future
from cavs.distributed.comm.store import Reply, Store
from cavs.distributed.strategy import register
from cavs.distributed.strategy.expression import check_number, check_whole, refuse
from cavs.distributed.sync.model_average import ModelAverage, ValueExchange
from cavs.distributed.sync.operation import Chain, Operation, Pricing
from cavs.distributed.sync.part import Array, Member
from cavs.distributed.sync.peers import SELECTORS, PeerSelector
from cavs.distributed.sync.synchroniser import Exchange, Runtime
from cavs.errors import CommunicationError

MODES = ("sync", "async")


class PeerExchange(ValueExchange):
    """Base of exchanges of whole models between two ranks.

    store: of the ranks; None where there is one rank. tag: of their models in it; models of other
    parameters, in another program, have another one.
    """

    def __init__(self, members: Sequence[Member], runtime: Runtime) -> None:
        super().__init__(members, runtime)
        c = runtime.roles.replicas
        self.rank, self.size = c.rank, c.size
        self.store: Store | None = c.store() if c.size > 1 else None
        layout = [(p, self.values[p].size) for p in self.parameters]
        self.tag = f"{self.options.type} {zlib.crc32(repr(layout).encode()):08x}"
        self.step = 0

    def begin(self, step: int) -> None:
        self.step = step

    def exchange_values(self, c: Communicator) -> None:
        if self.store is not None:
            self.exchange_models(self.store, self.store.next_turn(self.tag))

    def exchange_models(self, store: Store, turn: int) -> None:
        """Exchange the models of this step, with two ranks or more.

        turn: number of steps with models of this tag, the same on all ranks.
        """
        raise NotImplementedError


class Flight(NamedTuple):
    """A request for the model of `peer` that is under way. begun: on the monotonic clock."""

    peer: int
    future: Future[Reply]
    begun: float


class ModelRequests:
    """Requests of a rank for the models of its peers, one at a time.

    timeout: seconds after which one is cancelled; 0: the timeout of the communicator is an error.
    model: that came last, complete; None before the first. since: the own model when it was asked
    for. fresh: it is in no average yet. count: number of requests so far.
    """

    def __init__(self, store: Store, selector: PeerSelector, timeout: float) -> None:
        self.store, self.selector, self.timeout = store, selector, timeout
        self.model: list[Array] | None = None
        self.since: list[Array] = []
        self.fresh = False
        self.flight: Flight | None = None
        self.count = 0
        self._lock = threading.Lock()  # guards the model, and what the selector knows

    def ask(self, number: int, tag: str, version: int = 1) -> None:
        """Request the model of the peer of this number; the own one is in the store."""
        with self._lock:
            peer = self.selector.peer(number)
        own = self.store.kept(tag)

        def take(reply: Reply) -> None:
            with self._lock:
                self.model, self.since, self.fresh = reply.value, own, True
                self.selector.took(peer, reply.seconds)

        self.count += 1
        future = self.store.request_async(peer, None, tag, take, version=version)
        self.flight = Flight(peer, future, time.monotonic())

    def latest(self) -> tuple[list[Array], list[Array]] | None:
        """Return the model that came last, and the own one when it was asked for.

        None if it has been in an average.
        """
        with self._lock:
            return (self.model, self.since) if self.model and self.fresh else None

    def used(self, model: list[Array]) -> None:
        """Note that ``model`` has been in an average."""
        with self._lock:
            if self.model is model:
                self.fresh = False

    @property
    def is_due(self) -> bool:
        """True if the request under way has an answer, or should have one by now."""
        if self.flight is None:
            return False
        late = 0 < self.timeout < time.monotonic() - self.flight.begun
        return late or self.flight.future.done

    def land(self) -> None:
        """Wait for the request under way; raise its error, unless it was cancelled as too late."""
        if self.flight is None:
            return
        peer, future, begun = self.flight
        self.flight = None
        if self.timeout:
            left = begun + self.timeout - time.monotonic()
            if not future.ends_within(max(left, 0.0)):
                self.store.cancel(future)
                with self._lock:
                    self.selector.missed(peer, self.timeout)
                return
        future.wait()

    def forget(self) -> None:
        """Drop the model, and the request under way."""
        if self.flight is not None:
            self.store.cancel(self.flight.future)
        with self._lock:
            self.flight = self.model = None
            self.fresh = False


class PeerModels(PeerExchange):
    """The mean of this rank's model and that of a peer, which this rank requests.

    requests: None where there is one rank.
    """

    def __init__(self, members: Sequence[Member], runtime: Runtime) -> None:
        super().__init__(members, runtime)
        options = self.options
        assert isinstance(options, PeerAverage)
        self._mixed: list[Array] = []  # model in the average of the step that is under way
        self.waits, self.requests = options.mode == "sync", None
        if self.store is not None:
            selector = SELECTORS[options.select](self.rank, self.size, options.seed)
            self.requests = ModelRequests(self.store, selector, options.timeout)

    @classmethod
    def operations(cls, members: Sequence[Member], pricing: Pricing) -> tuple[Operation, ...]:
        """See `Exchange`. With the mode "async" it is the most that is sent."""
        return pricing.everywhere("request", float(sum(member.nbytes for member in members)))

    @classmethod
    def chains(cls, members: Sequence[Member], pricing: Pricing) -> list[tuple[int, Chain]]:
        sync = members[0].leaf.sync
        assert isinstance(sync, PeerAverage)
        waits = sync.mode == "sync"
        return [(turn, replace(x, waits=waits)) for turn, x in super().chains(members, pricing)]

    def exchange_models(self, store: Store, turn: int) -> None:
        requests = self.requests
        assert requests is not None
        store.keep(self.own_values(), self.tag, turn)
        if self.waits:
            requests.forget()
            requests.ask(self.step, self.tag, turn)
            requests.land()
            return
        if requests.is_due:
            requests.land()
        first = requests.model is None  # a peer may still keep what it had before a load
        if requests.flight is None and not requests.fresh:
            requests.ask(requests.count, self.tag, turn if first else 1)
        if first:
            requests.land()

    def mix(self, lr: float) -> None:
        found = None if self.requests is None else self.requests.latest()
        self._mixed = found[0] if found else []
        if found is None:
            return
        for own, other, since in zip(self.own_values(), *found, strict=True):
            if self.waits:
                np.add(own, other, out=own)
                np.multiply(own, 0.5, out=own)
            else:  # updates since the request stay whole
                np.add(own, 0.5 * (other - since), out=own)

    def commit(self) -> None:
        if self.requests is not None and self._mixed:
            self.requests.used(self._mixed)

    def settle(self) -> None:
        if self.requests is not None and self.requests.flight is not None:
            with suppress(CommunicationError):  # the next step raises it
                self.requests.flight.future.wait()

    def forget(self) -> None:
        if self.requests is not None:
            self.requests.forget()

    def inherit(self, old: Sequence[Exchange]) -> None:
        """See `Exchange`. Nothing is taken over from other ranks, which have another store."""
        for other in (x for x in old if isinstance(x, PeerModels)):
            if other.requests and other.store is self.store and other.options == self.options:
                self.requests = other.requests
                if other.tag != self.tag:
                    self.requests.forget()


@register
@dataclass(frozen=True, kw_only=True)
class PeerAverage(ModelAverage):
    """Averages with one peer a step (the thesis before KungFu, sections 3.3 and 4.6.3).

    A rank with the model V requests the model PV of a peer, sets V to ``(V + PV) / 2`` and then
    applies its own gradient, computed before. The peer's model stays as it is.

    select: "random"; "round_robin"; or "latency", the peer that answers fastest, see
    `cavs.distributed.sync.peers`. mode: "sync" waits for the model of the peer in the same step;
    "async" goes on, and when the model comes, after whatever number of steps, adds
    ``(PV - V') / 2``, where V' is its own model when it asked; only the first step waits. seed: of
    random peers. timeout: seconds after which a step goes on without the model of a peer that does
    not answer; 0: the timeout of the communicator, after which that is an error.
    """

    exchange: ClassVar[type[Exchange]] = PeerModels
    type: ClassVar[str] = "peer_average"
    select: str = "random"
    mode: str = "sync"
    seed: int = 0
    timeout: float = 0.0

    def __post_init__(self) -> None:
        for option, allowed in (("select", tuple(SELECTORS)), ("mode", MODES)):
            if getattr(self, option) not in allowed:
                hint = f"give {', '.join(map(repr, allowed[:-1]))} or {allowed[-1]!r}"
                refuse("PeerAverage", option, getattr(self, option), hint)
        check_whole("PeerAverage", "seed", self.seed)
        check_number("PeerAverage", "timeout", self.timeout, least=0)

    def summary(self, compressor: str) -> str:
        return f"mean with a peer ({self.select}, {self.mode})"
