"""The owner's side: applies gradients as steps end and tells workers new values when they may run.

Workers and owners write each other letters, whose first word is one of `Word`. The second is the
phase, which increases when all parameters are written (a checkpoint is loaded), so that no earlier
letter is applied after it. The values that workers compute with are copies on every rank, this one
included: those of the owner may change at any time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from cavs import _engine
from cavs.distributed.comm.mailbox import Letter, Mailbox
from cavs.distributed.strategy import Strategy, shards_of
from cavs.distributed.sync.part import Array, Part, Piece, pack, part_of
from cavs.errors import ConfigError


@dataclass(frozen=True)
class Unit:
    """A shard with one owner. rows: of a table, the rows [begin, end) that it is; else None."""

    number: int
    part: Part
    rows: tuple[int, int] | None
    group: int
    owner: int

    @property
    def width(self) -> int:
        """Elements of a row of a table."""
        assert self.rows is not None
        return self.part.size // max(self.rows[1] - self.rows[0], 1)


@dataclass(frozen=True)
class Group:
    """Units of one owner and one staleness (None: no bound): their clocks are the same."""

    number: int
    owner: int
    staleness: int | None
    units: tuple[Unit, ...]

    @property
    def dense(self) -> list[Part]:
        """The parts that are no tables."""
        return [unit.part for unit in self.units if unit.rows is None]

    @property
    def tables(self) -> list[Unit]:
        """The units whose gradients are rows."""
        return [unit for unit in self.units if unit.rows is not None]


@dataclass(frozen=True)
class Layout:
    """All units and groups, the same on every rank."""

    units: tuple[Unit, ...]
    groups: tuple[Group, ...]

    @property
    def owners(self) -> list[int]:
        """The ranks that own something, ascending."""
        return sorted({group.owner for group in self.groups})


def layout_of(strategy: Strategy, parameters: Mapping[str, Any]) -> Layout:
    """Return the layout of the stale ones of `parameters`, by name and in order."""
    units: list[Unit] = []
    groups: dict[tuple[int, int | None], int] = {}  # numbers, by owner and staleness
    for number, (name, parameter) in enumerate(parameters.items()):
        if not parameter.trainable:
            continue
        node, shape = strategy.node(name), parameter.shape
        stale = [leaf.sync.is_stale for leaf in node.leaves]
        if parameter.sparse and any(stale) and not all(stale):
            raise ConfigError(
                f"{name}: some shards of a sparse parameter are stale, others are synchronous",
                hint="give all shards staleness 0 and sync=True, or none",
            )
        for leaf, shard in zip(node.leaves, shards_of(node, shape), strict=True):
            if leaf.sync.owner is None or not leaf.sync.is_stale:
                continue
            if parameter.sparse and shard.axis != 0:
                raise ConfigError(
                    f"{leaf.name}: rows of a sparse gradient cannot be cut along axis {shard.axis}",
                    hint="cut axis 0",
                )
            if math.prod(shard.shape):
                owner = strategy.graph.rank_of(leaf.sync.owner)
                group = groups.setdefault((owner, leaf.sync.lag), len(groups))
                rows = (shard.start, shard.stop) if parameter.sparse else None
                part = part_of(number, shape, shard)
                units.append(Unit(len(units), part, rows, group, owner))
    return Layout(
        tuple(units),
        tuple(
            Group(number, owner, staleness, tuple(u for u in units if u.group == number))
            for (owner, staleness), number in groups.items()
        ),
    )


class Word(IntEnum):
    """First word of a letter; then the phase, and what is listed here: words; arrays."""

    PUSH = 1  # attempt, unit numbers; values of each, of tables row numbers and values
    COMMIT = 2  # attempt, clock; [scale, learning rate]. The step is whole: apply what was pushed
    VALUES = 3  # clock, group; dense values one after the other, then rows and values of each table
    SETTLE = 4  # clock. This worker makes no more steps until all have settled
    FINAL = 5  # clock, group, round, updates; as VALUES, after all was applied; nothing if known
    # The words below are valid in any phase.
    ASK = 6  # how far are your workers?
    ANSWER = 7  # for each worker its clock, or -1 if no rank waits for it
    FAIL = 8  # the text of an error
    STOP = 9  # the number of steps that the sender has promised to make
    WAKE = 10  # to oneself: a new phase has begun


class Clocks:
    """Clocks of the workers, which say which worker may begin a step.

    A worker's clock is the number of steps whose gradients its server has applied. Under staleness
    s (stale synchronous parallel, Ho et al. 2013; Zhang 2020, section 2.4.1) a worker may begin
    step c, counted from 0, once every other one has finished step c - s - 1. s = 0 is
    bulk-synchronous; without a bound (None) training is asynchronous.
    """

    def __init__(self, workers: Iterable[int]) -> None:
        self.of = dict.fromkeys(workers, 0)
        self.away: set[int] = set()  # have settled; no rank waits for them

    def may_begin(self, step: int, staleness: int | None) -> bool:
        """True if a worker may begin `step`."""
        awaited = [clock for worker, clock in self.of.items() if worker not in self.away]
        return staleness is None or all(clock >= step - staleness for clock in awaited)

    def synchronise(self) -> int:
        """Let all go on from the clock of the furthest, and return it, after all have settled."""
        furthest = max(self.of.values())
        self.of, self.away = dict.fromkeys(self.of, furthest), set()
        return furthest


@dataclass(eq=False)
class Owner:
    """The part of a `layout` that the rank of `box` owns, in one phase.

    The thread of `StaleServers` that reads the box calls it, and no other.
    workers: the ranks that write to this one, and those each writes for, which all get the answer.
    values, states: all parameters, flat, and all optimiser states. The parts owned here are copied
    from the values and updated in the states themselves. hyper: of the optimiser; workers say the
    learning rate of their step. reduction: factor of gradients, and with them weight decay:
    1 / replicas for the mean. updates: number that the states have seen. before: the owner of the
    phase that ends.
    """

    layout: Layout
    box: Mailbox
    phase: int
    workers: Mapping[int, Sequence[int]]
    values: Sequence[Array]
    states: Sequence[Sequence[Array]]
    hyper: Mapping[str, Any]
    reduction: float
    updates: int
    before: InitVar[Owner | None]

    def __post_init__(self, before: Owner | None) -> None:
        self.groups = [group for group in self.layout.groups if group.owner == self.box.rank]
        tables = [unit for group in self.groups for unit in group.tables]
        mine = {unit.part.parameter for group in self.groups for unit in group.units}
        self.values = [v.copy() if i in mine else v for i, v in enumerate(self.values)]
        self.states = [list(s) for s in self.states]
        self.trainable = [i in mine for i in range(len(self.values))]
        self.executor = optimiser(self.values)
        decay = float(self.hyper["weight_decay"]) * self.reduction
        self.hyper = {**self.hyper, "weight_decay": decay}
        self.clocks = Clocks(self.workers)
        self.wanted: dict[tuple[int, int], int] = {}  # next steps, by group and worker
        self.staged: dict[int, list[Letter]] = {w: [] for w in self.workers}
        self.settled_at = updates = self.updates  # as known by all since the last meeting
        # Per table: the update in which each row changed last, and up to which each rank has it.
        self.changed = {u.number: np.zeros(u.part.size // u.width, np.int64) for u in tables}
        self.sent = {(u.number, r): updates for u in tables for r in range(self.box.size)}
        # Rows that changed in phases before: states of theirs are nowhere else either.
        self.earlier = {u.number: before.ever(u) for u in tables if before is not None}
        self.rounds = 0

    def hold(self, letter: Letter) -> None:
        """Keep gradients until their step has ended well."""
        self.staged[letter.source].append(letter)

    def commit(self, letter: Letter) -> None:
        """Apply one step of a worker; drop what was staged of a step that failed."""
        worker, (attempt, clock) = letter.source, letter.words[2:]
        scale, lr = letter.arrays[0].tolist()
        staged, self.staged[worker] = self.staged[worker], []
        self.updates += 1
        # Moments decay with every update: they are corrected for as many as were made.
        hyper = {
            **self.hyper,
            "lr": lr,
            "step": float(self.updates),
            "bias1": 1.0 - float(self.hyper["beta1"]) ** self.updates,
            "bias2": 1.0 - float(self.hyper["beta2"]) ** self.updates,
        }
        whole = [push for push in staged if push.words[2] == attempt]
        pieces = [piece.as_tuple() for push in whole for piece in self._pieces(push)]
        self.executor.apply(pieces, hyper, self.states, self.trainable, scale * self.reduction)
        self.clocks.of[worker] += 1
        self.wanted |= {(group.number, worker): clock + 1 for group in self.groups}
        self._answer()

    def _pieces(self, push: Letter) -> Iterator[Piece]:
        """Yield the gradients of a letter; note the rows that they change."""
        arrays = iter(push.arrays)
        for number in push.words[3:]:
            unit = self.layout.units[number]
            if unit.rows is None:
                yield unit.part.piece(next(arrays))
                continue
            rows = next(arrays)
            self.changed[number][rows - unit.rows[0]] = self.updates
            yield Piece(unit.part.parameter, next(arrays).reshape(len(rows), unit.width), rows)

    def settle(self, worker: int) -> None:
        """Note that `worker` has settled; when all have, every rank gets the final values."""
        self.clocks.away.add(worker)
        self.wanted = {key: step for key, step in self.wanted.items() if key[1] != worker}
        self._answer()
        if len(self.clocks.away) < len(self.workers):
            return
        self.rounds += 1
        has_news, clock = self.updates > self.settled_at, self.clocks.synchronise()
        for group in self.groups:
            words = [Word.FINAL, self.phase, clock, group.number, self.rounds, self.updates]
            for rank in range(self.box.size):
                self.box.post(rank, words, self._content(group, rank) if has_news else [])
        self.settled_at = self.updates

    def _answer(self) -> None:
        """Send values to the workers that may begin the steps they want to."""
        for (number, worker), step in list(self.wanted.items()):
            group = self.layout.groups[number]
            if self.clocks.may_begin(step, group.staleness):
                del self.wanted[number, worker]
                for r in self.workers[worker]:
                    words = [Word.VALUES, self.phase, step, number]
                    self.box.post(r, words, self._content(group, r))

    def _content(self, group: Group, rank: int) -> list[Array]:
        """Return the values of a group; of its tables, rows that `rank` has not as they are."""
        arrays = [pack(group.dense, self.values, self.values[0].dtype)]
        for unit in group.tables:
            rows = self._changed_after(unit, self.sent[unit.number, rank])
            self.sent[unit.number, rank] = self.updates
            table = self.values[unit.part.parameter].reshape(-1, unit.width)
            arrays += [rows, table[rows].reshape(-1)]
        return arrays

    def _changed_after(self, unit: Unit, update: int) -> Array:
        assert unit.rows is not None
        rows = np.flatnonzero(self.changed[unit.number] > update)
        return (rows + unit.rows[0]).astype(np.int32)

    def ever(self, unit: Unit) -> Array:
        """Return the rows of a table that have changed here; none of a table owned elsewhere."""
        if unit.number not in self.changed:
            return np.empty(0, np.int32)
        rows = self._changed_after(unit, 0)
        return np.union1d(rows, self.earlier.get(unit.number, rows))

    @property
    def furthest(self) -> int:
        """Largest number of steps that a worker has made."""
        return max(self.clocks.of.values())

    def progress(self) -> list[int]:
        """Return the clock of every worker, -1 if no rank waits for it."""
        away = self.clocks.away
        return [-1 if worker in away else clock for worker, clock in self.clocks.of.items()]


def optimiser(values: Sequence[Array]) -> Any:
    """Return an executor without a program, which updates `values` on the calling thread."""
    program = _engine.Program()
    program.kinds = []
    program.finish()
    executor = _engine.Executor(program, list(values))
    executor.set_serial(True)
    return executor
