"""Named collectives: asynchronous, launched in any order by any thread, without a coordinator.

Ranks recognise a collective by its name, as KungFu does (Mai et al., OSDI 2020, section 4.3). Each
chunk of an array travels along a route: a rank adds the sums of the ranks below it, in a fixed
order, to its own values and sends the result to the rank above it; the root sends the total down
again. Whichever comes first creates the state of a collective: the launch or a letter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from cavs.distributed.comm.collective_state import CONTROL, AllGather, AllReduce, Broadcast, Key
from cavs.distributed.comm.collective_table import CollectiveTable
from cavs.distributed.comm.mailbox import Array
from cavs.distributed.comm.messages import as_row, check_rank
from cavs.distributed.comm.reductions import check_op
from cavs.distributed.comm.service import Future, Ranks
from cavs.errors import ConfigError


class NamedCollectives(CollectiveTable):
    """Collectives that ranks recognise by name. All ranks create it together.

    version: of the cluster; letters of other versions are not mixed up. topology: see
    `Topology.routes`; `set_tree` changes it. Attributes: step, the number of the current step.

    Calls may come from any thread, in another order on each rank, and return a `Future` at once.
    Arrays are NumPy's, C-contiguous, and are the collective's until its future is done. A name is
    used once a step. Sums have an order that the routes alone determine: the same bits in every
    run and on all ranks. After an error the object is given up: everything under way raises on all
    ranks, and so does every later call. LostPeerError if a rank dies.
    """

    def __init__(self, ranks: Ranks, topology: str | Sequence[int] = "AUTO", version: int = 0):
        self._topology = ranks.topology
        super().__init__(ranks, self._topology.routes(topology), version)

    # ---- collectives ---------------------------------------------------------------------------

    def all_reduce(self, name: str, array: Array, op: str = "sum") -> Future[Array]:
        """Reduce an array of any shape and dtype over the ranks, in place; `wait` returns it.

        op: "sum", "min", "max" or "mean". A rank sends n bytes to each neighbour on the routes.
        """
        return self._all_reduce(self._key(name), array, op)

    def broadcast(self, name: str, array: Array, root: int) -> Future[Array]:
        """Send the array of `root` to all, in place; `wait` returns it."""
        check_rank(root, self.size)
        return self.launch(Broadcast(self, self._key(name), array, root=root))

    def all_gather(self, name: str, array: Array) -> Future[list[Array]]:
        """Return every rank's array, by rank; first axes may differ. It travels as one chunk."""
        as_row(array)
        if not array.ndim:
            raise ConfigError("an array without axes has no rows to gather", hint="reshape it")
        return self.launch(AllGather(self, self._key(name), array))

    def _key(self, name: str) -> Key:
        return Key(self.version, self.step, name)

    def _all_reduce(self, key: Key, array: Array, op: str) -> Future[Array]:
        number = check_op(op, as_row(array).dtype.name)
        return self.launch(AllReduce(self, key, array, op=number))

    # ---- steps ---------------------------------------------------------------------------------

    def end_step(self) -> None:
        """Wait for all collectives of this step, and begin the next one.

        CommunicationError if another rank launched one in this step that this rank did not.
        """
        with self._lock:
            futures = [f for key, f in self._futures.items() if key.step == self.step]
        for future in futures:
            future.wait()
        self.next_step()

    @contextmanager
    def one_step(self) -> Iterator[NamedCollectives]:
        """Run a block, then `end_step`; an error of the block is raised as it is."""
        yield self
        self.end_step()

    # ---- routes --------------------------------------------------------------------------------

    def set_tree(self, tree: str | Sequence[int]) -> bool:
        """Send along another topology from now on; all ranks call it between two collectives.

        tree: see `Topology.routes`. Return False on all ranks, and change nothing, unless all give
        the same one (OSDI 2020, algorithm 1). ConfigError on the ranks whose tree is none, or whose
        collectives are not done; the others return False. Letters carry the version of the routes,
        so that no rank has to wait until all have changed theirs.
        """
        failed, routes = None, self.routes
        try:
            if under_way := [key for key in tuple(self._running) if key.step != CONTROL]:
                raise ConfigError(
                    f"the routes cannot change while {under_way[0]} is under way",
                    hint="call end_step() first",
                )
            routes = self._topology.routes(tree)
        except ConfigError as error:  # the others must learn of it
            failed = error
        agreed = self.agree(f"rank {self.rank}".encode() if failed else routes.text.encode())
        if failed is not None:
            raise failed
        if agreed:
            with self._lock:
                self.routes = routes
                self.version += 1
        return agreed

    def agree(self, data: bytes) -> bool:
        """Return True on all ranks if they call it with the same bytes, else False on all.

        One reduction compares digests. All ranks call `agree`, `barrier` and `set_tree` in the same
        order.
        """
        own = np.frombuffer(hashlib.sha256(data).digest(), np.uint8)
        both = np.concatenate([own, 255 - own])  # the smallest of all ranks, and the largest
        self._control(both, "min")
        return bool((both[: own.size] == 255 - both[own.size :]).all())

    def barrier(self) -> None:
        """Return when all ranks have come here."""
        self._control(np.zeros(1, np.uint8), "min")

    def _control(self, array: Array, op: str) -> None:
        with self._lock:
            key = Key(self.version, CONTROL, str(self._controls))
            self._controls += 1
        self._all_reduce(key, array, op).wait()
