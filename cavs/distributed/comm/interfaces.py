"""Interfaces of communicators: operations on arrays, and the services of the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from cavs.distributed.comm.hang_detection import Known, Peers, PendingWait
from cavs.distributed.comm.mailbox import Mailbox
from cavs.distributed.comm.named import NamedCollectives
from cavs.distributed.comm.parts import Arrival, Parts
from cavs.distributed.comm.rates import Rates
from cavs.distributed.comm.store import Store
from cavs.distributed.comm.topology import Topology, Tree
from cavs.distributed.comm.traffic import Traffic
from cavs.errors import CommunicationError

Array = NDArray[Any]
A = TypeVar("A")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class LostPeerError(CommunicationError):
    """A rank has died; `Communicator.shrink` lets the others go on."""


class Handle(Protocol[T_co]):
    """An operation that runs in the background."""

    @property
    def done(self) -> bool:
        """True if `wait` would return at once."""

    def wait(self) -> T_co:
        """Return the result; raise what the operation raised."""


class Operations(Protocol[A]):
    """A group of ranks, numbered from 0, that call the same operations in the same order.

    Arrays are C-contiguous and are passed without a copy: NumPy's on the host, on devices whatever
    has `__cuda_array_interface__`. Operations block; `start` runs any of them in the background.
    Every rank ends with the same bits. n is the size of an array in bytes, N the number of ranks.

    Operations raise `CommunicationError` if a peer fails or does not come within `timeout` seconds.

    Attributes:
        rank: Number of this process, in [0, size).
        size: Number of ranks.
        sent_bytes: Bytes of arrays sent to other ranks so far.
        overlaps: True if `start` runs while the caller goes on; otherwise it runs in `Handle.wait`.
    """

    timeout: float
    rank: int
    size: int
    sent_bytes: int
    overlaps: bool

    def all_reduce(self, array: A, op: str = "sum") -> None:
        """Reduce over the ranks, in place. A rank sends 2 (N - 1) / N n (small arrays: a tree).

        op: "sum", "min", "max", or "mean" of arrays of floats. On the host NaN stays NaN.
        """

    def reduce(self, array: A, root: int) -> None:
        """Sum, in place at `root`; on the host in the order of ranks. Others send n."""

    def reduce_scatter(self, array: A, counts: Sequence[int]) -> A:
        """Return a view of part `rank` of the sum, in place; `counts` elements each.

        Sends (N - 1) / N n. The other parts of `array` hold nothing useful afterwards.
        """

    def all_gather_into(self, array: A, counts: Sequence[int]) -> None:
        """Send every rank's part of `array` to all, in place: (N - 1) / N n for equal parts."""

    def all_gather(self, array: A) -> Sequence[A]:
        """Return every rank's array, by rank, of which this rank's may be `array` itself.

        First axes may differ. Sends (N - 1) n for equal ones.
        """

    def all_to_all(self, parts: Sequence[A]) -> Sequence[A]:
        """Return the parts that all ranks have for this one, by rank; `parts` are for all ranks.

        First axes may differ. Sends all parts but its own.
        """

    def broadcast(self, array: A, root: int) -> None:
        """Send the array of `root` to all, in place, down a tree: together (N - 1) n."""

    def send(self, array: A, to: int) -> None:
        """Send to one rank, which calls `receive` with an array of that size and dtype."""

    def receive(self, array: A, source: int) -> None:
        """Receive from one rank, into `array`."""

    def exchange(self, sends: Sequence[tuple[A, int]], receives: Sequence[tuple[A, int]]) -> None:
        """`send` and `receive` several arrays at once, each to or from a rank.

        In a row, the operations would wait for each other. Between two ranks, arrays arrive in the
        order in which they are sent.
        """

    def barrier(self) -> None:
        """Return when all ranks have come here."""

    def start(self, operation: Callable[..., T], *arguments: Any) -> Handle[T]:
        """Run `operation(*arguments)` in the background, after everything started before it.

        Operations called while others run in the background wait for their turn.
        """

    def split(self, color: int, key: int = 0) -> Operations[A]:
        """Return the group of ranks with the same `color`, ordered by `key`, then by rank."""

    def close(self) -> None:
        """End the background thread; the communicator is not used again."""


class Communicator(Operations[Array], Protocol):
    """`Operations` on the host, and services that only it has.

    names: number of every rank in the world, by rank, as errors give it; parts of the world and
    survivors renumber their ranks, but keep these names. traffic: counters of bytes by rank. pool:
    the `Pool` of processes of the launch that these ranks belong to; None if there is none. tree:
    the parent of each rank, for sums of large arrays; None for a ring, or common memory on a host.
    All ranks set the same.
    """

    names: Sequence[int]
    traffic: Traffic
    pool: Any
    tree: Tree | None

    def share(self, value: Any) -> list[Any]:
        """Return every rank's JSON value, by rank."""

    def split(self, color: int, key: int = 0) -> Communicator: ...

    def subgroup(self, ranks: Sequence[int], number: int, mailbox: Mailbox) -> Communicator:
        """Return the group of `ranks`, in that order; those ranks alone call it.

        Other ranks may have died. number: The same on all of `ranks`, and another one at each call.
        mailbox: one of this communicator that outlives deaths, read by no other thread. Raises
        `LostPeerError` on all if one of `ranks` has died or dies.
        """

    def common_memory(self, nbytes: int) -> Array | None:
        """Return memory of this rank, bytes, that the other ranks see too; all ranks call it.

        `all_reduce` of an array stored there reduces in memory inside each host; arrays travel
        between the first ranks of hosts alone. None where each rank has a host of its own, or ranks
        cannot see each other's memory on their host.
        """

    def mailbox(self) -> Mailbox:
        """Return a mailbox for another thread, besides the collectives; all ranks call it."""

    @property
    def topology(self) -> Topology:
        """The hosts of the ranks and routes between them; at first, all ranks read it together."""

    def named(self) -> NamedCollectives:
        """Return asynchronous collectives by name; the first call is one of all ranks."""

    def store(self) -> Store:
        """Return the arrays that ranks keep for each other; the first call is one of all ranks."""

    @property
    def service_bytes(self) -> int:
        """Bytes that the services of this rank have sent so far; `sent_bytes` has none of them."""

    def rates(self) -> Rates:
        """Return rates and latencies between ranks; the first call is one of all ranks."""

    def waiting(
        self, operation: str, peers: Peers | None = None, known: Known = ...
    ) -> PendingWait:
        """Return a wait outside of the operations: a context in which ranks that ask learn of it.

        operation: its name. peers: returns the ranks that it waits for by then; all others unless
        given. known: returns what is known of a rank of the world that is behind, or nothing.
        """

    def agree(self, flag: bool) -> bool:
        """Return True on all ranks if all have passed True and none has died, else False on all.

        Also after `leave`, and if a rank dies meanwhile.
        """

    def send_parts(
        self, sends: Parts, sources: Sequence[int], like: Sequence[Array]
    ) -> tuple[list[list[Array]], list[list[Arrival]]]:
        """Send lists of arrays to some ranks, receive one from each of `sources`; return these.

        like: arrays of the dtypes and shapes of those that come, whose first axes may differ. The
        arrays leave before others come: a rank without `sources` waits for none. Also returns, for
        each message of each of `sources`, when this rank looked for it and when it was there, in
        seconds of `time.perf_counter`: the same if it had come before.
        """

    def leave(self) -> None:
        """End what others wait for in this group with `LostPeerError`; one rank calls it."""

    def shrink(self) -> Communicator:
        """Return the group of the ranks that are left, in their order; all of them call it.

        Pending operations end with `LostPeerError`. Raises `DeviceError` where ranks cannot survive
        another.
        """

    def abort(self, message: str) -> None:
        """Say `message` and end all ranks; for errors that no agreement can handle."""
