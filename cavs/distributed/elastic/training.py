"""`RankTraining`: the training of one rank, which handshake, snapshots and recovery share."""

from __future__ import annotations

import math
from typing import Any

from cavs.distributed.balance.shards import Collate, LoaderSplit
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm.agreement import Agreement
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.step.session import DistributedSession
from cavs.distributed.strategy import Strategy
from cavs.train.state import TrainingState


class RankTraining:
    """State and session of one rank, and the settings that all ranks must have alike.

    Args:
        state: Model, optimiser and progress.
        session: The engine.
        requested: The strategy that the user asked for, or its name.
        resources: Cluster for which a strategy is built.
        elastic: True if survivors go on after a death.
        precision, deterministic: As for `cavs.Session`.
    """

    def __init__(
        self,
        state: TrainingState,
        session: DistributedSession,
        *,
        requested: Strategy | str | None,
        resources: ResourceSpec | None,
        elastic: bool,
        precision: str,
        deterministic: bool,
    ) -> None:
        self.state, self.session = state, session
        self.requested, self.resources, self.elastic = requested, resources, elastic
        self.precision, self.deterministic = precision, deterministic
        self.first_rank = session.communicator.rank
        self.first_size = session.communicator.size
        self.begun = False  # True after the handshake
        self.loader_facts: dict[str, Any] = {}  # about the loader of a `fit`
        self.fit_facts: dict[str, Any] = {}  # about its other arguments
        self.collate: Collate | None = None  # the one of that loader

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
