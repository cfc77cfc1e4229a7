"""`RankTraining`: the training of one rank, which handshake, snapshots and recovery share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cavs.distributed.balance.shards import Collate, LoaderSplit
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm.agreement import Agreement, is_agreed
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.step.session import DistributedSession
from cavs.distributed.strategy import Strategy
from cavs.errors import CommunicationError
from cavs.train.stepping import TrainingState

_PATIENCE = 30.0  # seconds that a failing rank waits for the others to hear of its error
_SHORT_PATIENCE = 3.0  # the same if it has also sent them a message


@dataclass(eq=False)
class RankTraining:
    """State and session of one rank, and the settings that all ranks must have alike.

    Attributes:
        state: Model, optimiser and progress.
        session: The engine.
        requested: The strategy that the user asked for, or its name.
        resources: Cluster for which a strategy is built.
        elastic: True if survivors go on after a death.
        precision, deterministic: As for `cavs.Session`.
        begun: True after the handshake.
        loader_facts, fit_facts: About the loader of a `fit`, and about its other arguments.
        collate: The one of that loader.
    """

    state: TrainingState
    session: DistributedSession
    requested: Strategy | str | None
    resources: ResourceSpec | None
    elastic: bool
    precision: str
    deterministic: bool
    begun: bool = False
    loader_facts: dict[str, Any] = field(default_factory=dict)
    fit_facts: dict[str, Any] = field(default_factory=dict)
    collate: Collate | None = None

    def __post_init__(self) -> None:
        c = self.session.communicator
        self.first_rank, self.first_size = c.rank, c.size

    @property
    def communicator(self) -> Communicator:
        """The present ranks."""
        return self.session.communicator

    @property
    def agreement(self) -> Agreement:
        """Consensus of the present ranks."""
        return self.session.agreement

    def reshard_loader(self) -> None:
        """Let the loader shard its next batches over the present replicas."""
        if self.collate is not None:
            before, split = self.collate.division, self.session.split
            # A new split is asked by steps only: the loaders of the ranks are at different batches.
            ahead = before.ahead if before.split is split else math.inf
            self.collate.division = LoaderSplit(self.session.position, split, ahead)

    @contextmanager
    def guard(self, phase: str) -> Iterator[None]:
        """Report an error in the block to the other ranks, which are in `phase`."""
        try:
            yield
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt) and self.session.stopping
            if not (stopped or isinstance(error, CommunicationError)):
                self.report_error(phase, error)
            raise

    def report_error(self, phase: str, error: BaseException) -> None:
        """Report `error` to the other ranks, which are in `phase`; once, and if they lack it."""
        if is_agreed(error) or getattr(error, "reported", False):
            return
        error.reported = True  # type: ignore[attr-defined]  # even if no rank listens
        session, patience = self.session, _PATIENCE
        if session.asynchronous and session.servers is not None:
            session.servers.fail(error)  # ranks may be in any step, where none awaits a consensus
            if not session.servers.settled:
                return
            patience = _SHORT_PATIENCE
        # Ranks that have not begun are about to compare what they train.
        begun = self.begun or phase == "evaluation"
        self.agreement.announce(phase if begun else None, error, patience)
