"""The owner's side: applies gradients as steps end and tells workers new values when they may run.

One thread calls it (the service of `StaleServers`). The values that workers compute with are copies
on every rank, this one included: what the owner holds may change at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cavs import _engine
from cavs.distributed.comm.mailbox import Letter
from cavs.distributed.sync.part import Array, Piece, pack
from cavs.distributed.sync.stale_server.clocks import Clocks
from cavs.distributed.sync.stale_server.layout import Group, Layout, Unit
from cavs.distributed.sync.stale_server.letters import FINAL, VALUES, Post


class Owner:
    """Part of a `layout` that `rank` owns.

    workers: the ranks that write to this one, and whom each writes for: all that hear the answer.
    values, states: all parameters, flat, and all optimiser states. The parts owned here are copied
    from the values and updated in the states themselves. hyper: of the optimiser; workers say the
    learning rate of their step. reduction: what gradients, and with them weight decay, are
    multiplied with: 1 / replicas for the mean. updates: how many the states have seen.
    """

    def __init__(
        self,
        layout: Layout,
        rank: int,
        ranks: int,
        workers: Mapping[int, Sequence[int]],
        values: Sequence[Array],
        states: Sequence[Sequence[Array]],
        hyper: Mapping[str, Any],
        reduction: float,
        updates: int = 0,
        before: Owner | None = None,
    ) -> None:
        """before: of the phase that ends."""
        self.layout, self.ranks, self.workers = layout, range(ranks), workers
        self.groups = [group for group in layout.groups if group.owner == rank]
        units = [unit for group in self.groups for unit in group.units]
        mine = {unit.part.parameter for unit in units}
        self.values = [v.copy() if i in mine else v for i, v in enumerate(values)]
        self.states = [list(s) for s in states]
        self.trainable = [i in mine for i in range(len(values))]
        self.executor = optimiser(self.values)
        self.reduction = reduction
        decay = float(hyper["weight_decay"]) * reduction
        self.hyper = {**hyper, "weight_decay": decay}
        self.clocks = {g.number: Clocks(workers, g.staleness) for g in self.groups}
        self.wanted: dict[int, dict[int, int]] = {g.number: {} for g in self.groups}
        self.staged: dict[int, list[tuple[int, Unit, Piece]]] = {w: [] for w in workers}
        self.updates = self.settled_at = updates  # made, and known by all since the last meeting
        # Per table: the update in which each row changed last, and up to which each rank has it.
        self.changed = {
            u.number: np.zeros(u.rows[1] - u.rows[0], np.int64) for u in units if u.rows is not None
        }
        # Rows that changed in phases before: states of theirs are nowhere else either.
        self.earlier = {
            u.number: before.ever(u) for u in units if before is not None and u.rows is not None
        }
        self.told = {(number, r): updates for number in self.changed for r in self.ranks}
        self.rounds = 0

    def hold(self, letter: Letter) -> None:
        """Keeps gradients until the step that they are of has ended well."""
        worker, attempt = letter.source, letter.words[2]
        arrays = iter(letter.arrays)
        for number in letter.words[3:]:
            unit = self.layout.units[number]
            if unit.rows is None:
                piece = unit.part.piece(next(arrays))
            else:
                rows = next(arrays)
                piece = Piece(
                    unit.part.parameter, next(arrays).reshape(len(rows), unit.width), rows
                )
            self.staged[worker].append((attempt, unit, piece))

    def commit(self, letter: Letter, post: Post) -> None:
        """Applies one step of a worker; what was staged of a step that failed is dropped."""
        worker, (attempt, clock) = letter.source, letter.words[2:]
        scale, lr = letter.arrays[0].tolist()
        staged = [(unit, piece) for of, unit, piece in self.staged[worker] if of == attempt]
        self.staged[worker] = []
        self.updates += 1
        # Moments decay with every update: they are corrected for as many as were made.
        hyper = self.hyper | {
            "lr": lr,
            "bias1": 1.0 - float(self.hyper["beta1"]) ** self.updates,
            "bias2": 1.0 - float(self.hyper["beta2"]) ** self.updates,
        }
        self.executor.apply(
            [piece.as_tuple() for _, piece in staged],
            hyper,
            self.states,
            self.trainable,
            scale * self.reduction,
        )
        for unit, piece in staged:
            if unit.rows is not None and piece.rows is not None:
                self.changed[unit.number][piece.rows - unit.rows[0]] = self.updates
        for group in self.groups:
            self.clocks[group.number].finish(worker)
            self.wanted[group.number][worker] = clock + 1
        self._answer(post)

    def settle(self, worker: int, post: Post) -> None:
        """`worker` came to a meeting; when all have, everyone gets the final values."""
        for group in self.groups:
            self.clocks[group.number].leave(worker)
            self.wanted[group.number].pop(worker, None)
        self._answer(post)
        if not all(clocks.all_away for clocks in self.clocks.values()):
            return
        self.rounds += 1
        for group in self.groups:
            clock = self.clocks[group.number].synchronise()
            for rank in self.ranks:
                words = [FINAL, 0, clock, group.number, self.rounds, self.updates]
                news = self.updates > self.settled_at
                post(rank, words, self._content(group, rank) if news else [])
        self.settled_at = self.updates

    def _answer(self, post: Post) -> None:
        for group in self.groups:
            wanted = self.wanted[group.number]
            for worker, step in list(wanted.items()):
                if self.clocks[group.number].may_begin(step):
                    del wanted[worker]
                    for r in self.workers[worker]:
                        post(r, [VALUES, 0, step, group.number], self._content(group, r))

    def _content(self, group: Group, rank: int) -> list[Array]:
        """The values of a group; of its tables, rows that `rank` has not seen as they are."""
        parts = group.dense
        packed = np.empty(sum(part.size for part in parts), self.values[0].dtype)
        pack(parts, self.values, packed)
        arrays = [packed]
        for unit in group.tables:
            rows = self._news(unit, rank)
            arrays += [rows, self.values[unit.part.parameter].reshape(-1, unit.width)[rows]]
        return arrays

    def _news(self, unit: Unit, rank: int) -> Array:
        assert unit.rows is not None
        rows = np.flatnonzero(self.changed[unit.number] > self.told[unit.number, rank])
        self.told[unit.number, rank] = self.updates
        return (rows + unit.rows[0]).astype(np.int32)

    def ever(self, unit: Unit) -> Array:
        """Rows of a table that have changed here; none of a table owned elsewhere."""
        if unit.number not in self.changed or unit.rows is None:
            return np.empty(0, np.int32)
        rows = (np.flatnonzero(self.changed[unit.number]) + unit.rows[0]).astype(np.int32)
        return np.union1d(rows, self.earlier.get(unit.number, rows))

    @property
    def furthest(self) -> int:
        """The most steps that a worker has made."""
        return max((max(clocks.of.values()) for clocks in self.clocks.values()), default=0)

    def standing(self) -> list[int]:
        """Return the clock of every worker, -1 if no rank waits for it."""
        clocks = next(iter(self.clocks.values()))
        return [-1 if w in clocks.away else clock for w, clock in clocks.of.items()]


def optimiser(values: Sequence[Array]) -> Any:
    """An executor without a program: it applies updates to `values` on the calling thread."""
    program = _engine.Program()
    program.kinds = []
    program.finish()
    executor = _engine.Executor(program, list(values))
    executor.set_serial(True)
    return executor
