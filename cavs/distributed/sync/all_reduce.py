"""All-reduce: every replica gets every gradient and applies it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm.common_memory import address_of
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.comm.nccl.communicator import NCCLCommunicator
from cavs.distributed.compression import flatten, parse, run, unflatten, weighed
from cavs.distributed.strategy import NodeConfig, Strategy, Variable, register
from cavs.distributed.strategy.expression import Problem, check_whole
from cavs.distributed.sync.operation import Operation, Pricing
from cavs.distributed.sync.part import (
    Array,
    Gradients,
    Local,
    Member,
    Piece,
    buckets,
    joined_ranges,
    pack,
    size_of,
    unpacked,
    wait_parts,
)
from cavs.distributed.sync.synchroniser import (
    Exchange,
    Facts,
    Runtime,
    Synchroniser,
    Transfer,
)
from cavs.errors import CommunicationError, ConfigError, DeviceError

_GLANCE = 1.0  # seconds between two looks at what NCCL has met
SPECS = ("auto", "ring", "nccl")


@register
@dataclass(frozen=True, kw_only=True)
class AllReduce(Synchroniser):
    """Every replica keeps the parameter; gradients are reduced to all of them.

    Dense gradients by all-reduce, sparse ones by all-gather of indices and rows, all of a table
    together however it is cut. spec: who reduces: "nccl" asks for NCCL, and is refused where the
    gradient is not summed by it; "ring" and "auto" leave it to ``collectives`` of the trainer, and
    a large sum goes around a ring in any case. group: dense nodes of one group travel in one
    buffer; those of group None in buckets of up to `BUCKET` bytes, which the run fills in the order
    in which gradients are done, the last one alone. A node with a compressor travels alone in any.
    """

    type: ClassVar[str] = "all_reduce"
    takes_compressor: ClassVar[bool] = True
    spec: str = "auto"
    group: int | None = 0

    def __post_init__(self) -> None:
        if self.spec not in SPECS:
            raise ConfigError(f"AllReduce: spec is {self.spec!r}", hint=f"use {', '.join(SPECS)}")
        if self.group is not None:
            check_whole("AllReduce", "group", self.group)

    def summary(self, compressor: str) -> str:
        if compressor != "none":  # it travels alone, whatever its group
            return f"all-reduce, {compressor}"
        return "all-reduce, " + ("in buckets" if self.group is None else f"group {self.group}")

    def problems(
        self, strategy: Strategy, leaf: NodeConfig, variable: Variable, cluster: ResourceSpec | None
    ) -> Iterator[Problem]:
        yield from super().problems(strategy, leaf, variable, cluster)
        if self.spec == "nccl" and (variable.sparse or leaf.compressor != "none"):
            what = "a sparse gradient" if variable.sparse else f"compressor {leaf.compressor}"
            yield Problem(
                f"{leaf.name}: spec 'nccl' of {what}, which travels between the hosts",
                "give it spec 'auto', or leave the compressor out",
            )

    @classmethod
    def problems_together(
        cls, strategy: Strategy, variables: Mapping[str, Variable]
    ) -> Iterator[Problem]:
        """See `Synchroniser`. Dense nodes of one group share a buffer."""
        first: dict[int | None, tuple[str, tuple[str, str, str]]] = {}
        nodes = [node for node in strategy.nodes if node.name in variables]
        for variable, leaf in [(variables[n.name], leaf) for n in nodes for leaf in n.leaves]:
            sync = leaf.sync
            if variable.sparse or not isinstance(sync, AllReduce):
                continue
            form = (variable.dtype, sync.spec, leaf.compressor)
            name, other = first.setdefault(sync.group, (leaf.name, form))
            if other != form:
                group = "what is in no group" if sync.group is None else f"group {sync.group}"
                yield Problem(
                    f"{group} of {sync.type} mixes {name} ({', '.join(other)}) and {leaf.name} "
                    f"({', '.join(form)})",
                    "give what differs in dtype, spec or compressor groups of its own",
                )

    @classmethod
    def lower(cls, members: Sequence[Member], facts: Facts) -> list[Transfer]:
        """See `Synchroniser`. Large gradients travel in slabs, as these become final."""
        found: list[Transfer] = []
        groups: dict[int | None, list[Member]] = {}
        for member in members:
            sync = member.leaf.sync
            assert isinstance(sync, AllReduce)
            if member.leaf.compressor != "none":
                found.append(Transfer(CompressedAllReduce, (member,)))
            else:
                groups.setdefault(sync.group, []).append(member)
        for group, own in groups.items():
            slabs = [slab for member in own for slab in member.slabs(facts.slab(member))]
            if group is None:
                sums = buckets(slabs)
                # The last gradient comes when the run ends: the others need not wait for it.
                sums[-1:] = filter(None, [sums[-1][:-1], sums[-1][-1:]])
            else:
                together = tuple(sorted(own, key=lambda m: (m.parameter, m.shard.start)))
                sums = [together] if len(own) > 1 else [(slab,) for slab in slabs]
            nccl = [m.leaf.name for m in own if getattr(m.leaf.sync, "spec", "") == "nccl"]
            found += [Transfer(DenseAllReduce, parts, *nccl[:1]) for parts in sums]
        return found


class DenseAllReduce(Exchange):
    """A group of dense parts in one all-reduce.

    It takes place in the engine's memory if they are consecutive there, otherwise in a copy.
    """

    @classmethod
    def operations(cls, members: Sequence[Member], pricing: Pricing) -> tuple[Operation, ...]:
        nbytes = float(sum(member.nbytes for member in members))
        in_place = all(member.shard.axis == 0 for member in members)
        return pricing.everywhere("all_reduce", nbytes, in_place)

    def __init__(self, members: Sequence[Member], runtime: Runtime) -> None:
        super().__init__(members, runtime)
        self.memory = {p: runtime.executor.gradient_view(p)[1] for p in self.parameters}
        block = runtime.executor.gradient_block()
        starts = {p: address_of(gradient) for p, gradient in self.memory.items()}
        sizes = {p: gradient.size for p, gradient in self.memory.items()}
        size = block.itemsize
        self.parts.sort(key=lambda part: starts[part.parameter] + part.offset * size)
        ranges = joined_ranges(self.parts, starts, sizes, size)
        self.in_place = len(ranges) == 1 and all(part.rows == 1 for part in self.parts)
        if self.in_place:
            begin, count = (ranges[0][0] - address_of(block)) // size, ranges[0][1]
            self.buffer = block[begin : begin + count]
            gradients = [part.view(self.memory[part.parameter]) for part in self.parts]
        else:
            self.buffer = np.empty(size_of(self.parts), block.dtype)
            gradients = [values for _, values in unpacked(self.parts, self.buffer)]
        self.pieces = [p.piece(values) for p, values in zip(self.parts, gradients, strict=True)]

    def wait(self, gradients: Gradients) -> bool:
        return wait_parts(self.parts, gradients)

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        if not self.in_place:
            pack(self.parts, self.memory, self.buffer.dtype, self.buffer)
        c.all_reduce(self.buffer)
        return self.pieces


class CompressedAllReduce(Exchange):
    """One dense part through a compressor, which may have a residual."""

    @classmethod
    def operations(cls, members: Sequence[Member], pricing: Pricing) -> tuple[Operation, ...]:
        (member,) = members
        shape, itemsize = member.shard.shape, member.variable.itemsize
        compressor, ranks = parse(member.leaf.compressor), len(pricing.replicas)
        rounds = compressor.rounds(shape, itemsize, ranks, pricing.step)
        found = [pricing.everywhere(r.collective, float(r.nbytes)) for r in rounds]
        return tuple(chain.from_iterable(found))

    def __init__(self, members: Sequence[Member], runtime: Runtime) -> None:
        super().__init__(members, runtime)
        (member,), (self.part,) = members, self.parts
        self.compressor = parse(member.leaf.compressor)
        assert runtime.strategy is not None
        if runtime.strategy.graph.gradients == "mean":  # the mean is taken with the update
            self.compressor = self.compressor.averaged(runtime.roles.count)
        self.memory = runtime.executor.gradient_view(member.parameter)[1]
        self.state = self.coming = self.compressor.start(
            self.part.shape, self.memory.dtype, seed=member.parameter
        )

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        gradient = self.part.view(self.memory).reshape(self.part.shape)
        result = run(self.compressor, gradient, self.state, c)
        self.coming = result.state
        return [self.part.piece(np.ascontiguousarray(result.total))]

    def commit(self) -> None:
        self.state = self.coming

    def memory_of(self) -> dict[str, Array]:
        return {f"{self.part.offset}.{k}": a for k, a in flatten(self.state).items()}

    def remember(self, arrays: Mapping[str, Array]) -> None:
        prefix = f"{self.part.offset}."
        mine = {k.removeprefix(prefix): a for k, a in arrays.items() if k.startswith(prefix)}
        known = flatten(self.state)
        if {k: a.shape for k, a in mine.items()} == {k: a.shape for k, a in known.items()}:
            self.state = self.coming = unflatten(self.state, mine)

    def weigh(self, by: float) -> None:
        self.state, self.coming = weighed(self.state, by), weighed(self.coming, by)

    def inherit(self, old: Sequence[Exchange]) -> None:
        for other in old:
            if isinstance(other, CompressedAllReduce) and other.part == self.part:
                self.state, self.coming = other.state, other.coming


@dataclass(frozen=True)
class DevicePiece(Piece):
    """`count` values of a gradient that stayed on the device."""

    count: int = 0

    def as_tuple(self) -> tuple[int, Array | int, Array | None, int | None, int]:
        return self.parameter, self.count, None, 1, self.offset

    def share(self, rank: int, ranks: int) -> Piece:
        begin, end = (self.count * r // ranks for r in (rank, rank + 1))
        return replace(self, offset=self.offset + begin, count=end - begin)


class DeviceGroup:
    """The devices of the ranks of `control`, from one program to the next.

    None of them is left waiting: all ranks agree that all sums of a step have been started before
    one waits for them, and give the group up together if not.
    """

    def __init__(self, nccl: NCCLCommunicator, control: Communicator) -> None:
        self.nccl, self.control = nccl, control
        self.lost = False  # given up: a new one is to be made

    def finish(self, executor: Any, failed: Exception | None) -> None:
        """Wait for the sums of a step; all ranks call it. failed: the error that stops this one.

        CommunicationError if they do not end in time, which says where the other ranks are;
        DeviceError if NCCL says why. The group is given up then; `failed` is left to the caller.
        """
        control, missing = self.control, np.array([float(failed is not None)])
        try:
            control.all_reduce(missing)
            if missing[0]:
                self.abort()
                return
            end = time.monotonic() + control.timeout
            with control.waiting("sums by NCCL") as waiting:
                while not executor.wait_collectives(min(_GLANCE, control.timeout)):
                    self.nccl.check()
                    waiting.look()
                    if time.monotonic() > end:
                        raise waiting.hung(control.timeout, "for NCCL")
        except (CommunicationError, DeviceError):
            self.abort()
            raise

    def abort(self) -> None:
        """End the sums under way and give the group up."""
        self.lost = True
        self.nccl.abort()

    def close(self) -> None:
        """Free the group."""
        self.lost = True
        self.nccl.close()


class DeviceAllReduce(Exchange):
    """Dense parts, each of consecutive elements, of gradients that stay on the device."""

    def __init__(self, members: Sequence[Member], runtime: Runtime) -> None:
        super().__init__(members, runtime)
        self.executor = runtime.executor
        self.group: DeviceGroup = runtime.group
        dtype = self.values[0].dtype
        starts = {p: self.executor.keep_gradient(p) for p in self.parameters}
        sizes = {p: self.values[p].size for p in self.parameters}
        self.dtype = str(dtype)
        self.ranges = joined_ranges(self.parts, starts, sizes, dtype.itemsize)
        self.pieces: list[Piece] = [
            DevicePiece(p.parameter, np.empty(0), None, 1, p.offset, count=p.size)
            for p in self.parts
        ]

    def wait(self, gradients: Gradients) -> bool:
        """See `Exchange`. Gradients are launched then, not done: the stream waits for that."""
        return all([self.executor.follow_gradient(p) for p in self.parameters])

    def local(self, gradients: Gradients) -> Iterator[Local]:
        """See `Exchange`. Raises `DeviceError`: the gradients never leave the device."""
        raise DeviceError(
            "monitors read the gradients of each rank, but NCCL sums them on the devices",
            hint="pass collectives='mpi', or no monitor of gradients",
        )

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        """See `Exchange`; started, not done, when it returns."""
        if self.group.lost:
            raise DeviceError("this step's sums were given up: one of them could not be started")
        self.executor.open_collective()
        try:
            self.group.nccl.sum_ranges(self.ranges, self.dtype, self.executor.collective_stream)
        except DeviceError:
            self.group.lost = True
            raise
        self.executor.close_collective()
        return self.pieces
