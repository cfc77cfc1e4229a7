"""One unit of communication: some parts of parameters, whose gradients travel together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.strategy.partition import Shard
from cavs.distributed.sync.member import Member, Pricing, Runtime, row_bytes
from cavs.distributed.sync.operation import Chain, Operation
from cavs.distributed.sync.part import Array, Gradients, Piece, sum_rows, touched


class Exchange(ABC):
    """Reduces the gradients of some parts; `build` makes it for a run, `chains` prices it.

    parameters: numbers of those whose gradients are final when `reduce` is called. values: memory
    of all parameters, flat, by number. everyone: True if servers take part, too.
    """

    everyone: ClassVar[bool] = False

    def __init__(self, parameters: Sequence[int], values: Sequence[Array]) -> None:
        self.parameters = tuple(dict.fromkeys(parameters))
        self.values = values

    @classmethod
    @abstractmethod
    def build(cls, members: Sequence[Member], runtime: Runtime) -> Exchange:
        """Return the exchange of `members` in a run."""

    @classmethod
    def operations(cls, members: Sequence[Member], pricing: Pricing) -> tuple[Operation, ...]:
        """Return the operations of a step on `members`, one after the other."""
        raise NotImplementedError(f"{cls.__name__} has no price")

    @classmethod
    def chains(cls, members: Sequence[Member], pricing: Pricing) -> list[tuple[int, Chain]]:
        """Return chains of operations on `members`, with the turns in which they begin."""
        names = tuple(member.leaf.name for member in members)
        turn = max(member.turn for member in members)
        return [(turn, Chain(names, cls.operations(members, pricing)))]

    def wait(self, gradients: Gradients) -> bool:
        """Wait until the gradients of all parts are final; return False if the run failed."""
        return all([gradients.wait_gradient(p) for p in self.parameters])

    @abstractmethod
    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        """Return the sums over ranks that this rank is to apply.

        usable: True if the run that computed the gradients succeeded. If it failed, this rank still
        takes part, with any values, so that the others are not left waiting.
        """

    def distribute(self, c: Communicator) -> None:  # noqa: B027  (a no-op for most)
        """Bring new values to ranks that did not apply the update."""

    def collect(self, states: Sequence[Sequence[Array]], c: Communicator) -> None:  # noqa: B027
        """Bring the optimiser states of owners to all ranks."""

    def commit(self) -> None:  # noqa: B027
        """Keep the state of the step that was applied."""

    def memory_of(self) -> dict[str, Array]:
        """Return the state of this rank from step to step, for a checkpoint."""
        return {}

    def remember(self, arrays: Mapping[str, Array]) -> None:  # noqa: B027
        """Restore a result of `memory_of`; a state of another form is ignored."""

    def weigh(self, by: float) -> None:  # noqa: B027
        """Scale the residual, as gradients are means over another number of ranks."""

    def inherit(self, old: Sequence[Exchange]) -> None:  # noqa: B027
        """Take over the state of the exchanges of an earlier program."""


class SparseAllGather(Exchange):
    """The touched rows of a table, from all ranks to all, however the table is cut."""

    @classmethod
    def build(cls, members: Sequence[Member], runtime: Runtime) -> SparseAllGather:
        return cls([members[0].parameter], runtime.values)

    @classmethod
    def operations(cls, members: Sequence[Member], pricing: Pricing) -> tuple[Operation, ...]:
        variable = members[0].variable
        rows, _ = pricing.rows(variable, Shard.whole(variable.shape), pricing.replicas)
        return pricing.everywhere("all_gather", tuple((rows * row_bytes(variable)).tolist()))

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        (parameter,) = self.parameters
        rows, values = touched(gradients, parameter, usable)
        found, total = sum_rows(c.all_gather(rows), c.all_gather(values))
        return [Piece(parameter, total, found)]
