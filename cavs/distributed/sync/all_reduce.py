"""All-reduce: every replica gets every gradient and applies it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm.common_memory import address_of
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.compression import Compressor, flatten, parse, run, unflatten, weighed
from cavs.distributed.strategy import NodeConfig, Strategy, Variable, register
from cavs.distributed.strategy.expression import Problem, check_whole
from cavs.distributed.sync.exchange import Exchange, SparseAllGather
from cavs.distributed.sync.member import Facts, Member, Pricing, Runtime, buckets, tables
from cavs.distributed.sync.operation import Operation
from cavs.distributed.sync.part import GAP, Array, Gradients, Part, Piece, pack, wait_parts
from cavs.distributed.sync.synchroniser import Synchroniser, Transfer
from cavs.errors import ConfigError

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
        self,
        strategy: Strategy,
        leaf: NodeConfig,
        variable: Variable,
        resources: ResourceSpec | None,
    ) -> Iterator[Problem]:
        yield from super().problems(strategy, leaf, variable, resources)
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
        for node in strategy.nodes:
            variable = variables.get(node.name)
            if variable is None or variable.sparse:
                continue
            for leaf in node.leaves:
                sync = leaf.sync
                if not isinstance(sync, AllReduce):
                    continue
                form = (variable.dtype, sync.spec, leaf.compressor)
                name, there = first.setdefault(sync.group, (leaf.name, form))
                if there != form:
                    group = "what is in no group" if sync.group is None else f"group {sync.group}"
                    yield Problem(
                        f"{group} of {sync.type} mixes {name} ({', '.join(there)}) and {leaf.name} "
                        f"({', '.join(form)})",
                        "give what differs in dtype, spec or compressor groups of its own",
                    )

    @classmethod
    def lower(cls, members: Sequence[Member], facts: Facts) -> list[Transfer]:
        """See `Synchroniser`. Large gradients travel in slabs, as these become final."""
        rows, dense = tables(members)
        found = [Transfer(SparseAllGather, table) for table in rows]
        groups: dict[int | None, list[Member]] = {}
        for member in dense:
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
            asking = (m.leaf.name for m in own if getattr(m.leaf.sync, "spec", "") == "nccl")
            nccl = next(asking, "")
            found += [Transfer(DenseAllReduce, parts, nccl) for parts in sums]
        return found


class DenseAllReduce(Exchange):
    """A group of dense parts in one all-reduce.

    It takes place in the engine's memory if they are consecutive there, otherwise in a copy.
    """

    @classmethod
    def build(cls, members: Sequence[Member], runtime: Runtime) -> Exchange:
        return cls([m.part for m in members], runtime.values, runtime.executor)

    @classmethod
    def operations(cls, members: Sequence[Member], pricing: Pricing) -> tuple[Operation, ...]:
        in_place = all(member.shard.axis == 0 for member in members)
        return pricing.everywhere("all_reduce", float(sum(m.nbytes for m in members)), in_place)

    def __init__(
        self, parts: Sequence[Part], values: Sequence[Array], gradients: Gradients
    ) -> None:
        super().__init__([p.parameter for p in parts], values)
        self.memory = {p: gradients.gradient_view(p)[1] for p in self.parameters}
        block = gradients.gradient_block()
        start = address_of(block)

        def begin(part: Part) -> int:
            at = address_of(self.memory[part.parameter]) - start
            return at // block.itemsize + part.offset

        self.parts = sorted(parts, key=begin)
        begins = [begin(part) for part in self.parts]
        ends = [b + p.size for b, p in zip(begins, self.parts, strict=True)]
        # A gap between gradients is unused; within one, other exchanges reduce the rest.
        near = all(
            b == e
            or (
                left.end == self.memory[left.parameter].size
                and right.offset == 0
                and 0 <= (b - e) * block.itemsize < GAP
            )
            for e, b, (left, right) in zip(ends, begins[1:], pairwise(self.parts), strict=False)
        )
        self.in_place = near and all(part.rows == 1 for part in self.parts)
        if self.in_place:
            self.buffer = block[begins[0] : ends[-1]]
            starts = [b - begins[0] for b in begins]
        else:
            sizes = [part.size for part in self.parts]
            self.buffer = np.empty(sum(sizes), block.dtype)
            starts = [0, *np.cumsum(sizes)[:-1].tolist()]
        self.pieces = [
            part.piece(self.buffer[at : at + part.size])
            for part, at in zip(self.parts, starts, strict=True)
        ]

    def wait(self, gradients: Gradients) -> bool:
        return wait_parts(self.parts, gradients)

    def reduce(self, gradients: Gradients, usable: bool, c: Communicator) -> list[Piece]:
        if not self.in_place:
            pack(self.parts, self.memory, self.buffer)
        c.all_reduce(self.buffer)
        return self.pieces


class CompressedAllReduce(Exchange):
    """One dense part through a compressor, which may have a residual."""

    @classmethod
    def build(cls, members: Sequence[Member], runtime: Runtime) -> Exchange:
        (member,) = members
        compressor = parse(member.leaf.compressor)
        assert runtime.strategy is not None
        if runtime.strategy.graph.gradients == "mean":  # the mean is taken with the update
            compressor = compressor.averaged(runtime.roles.count)
        seed = member.parameter
        return cls(member.part, runtime.values, runtime.executor, compressor, seed=seed)

    @classmethod
    def operations(cls, members: Sequence[Member], pricing: Pricing) -> tuple[Operation, ...]:
        (member,) = members
        sizes: dict[tuple[int, str], float] = {}
        rounds = parse(member.leaf.compressor).rounds(
            member.shard.shape,
            member.variable.itemsize,
            len(pricing.replicas),
            pricing.step,
        )
        for i, part in enumerate(rounds):
            key = i, part.collective
            sizes[key] = sizes.get(key, 0.0) + part.nbytes
        found = [pricing.everywhere(name, sizes[i, name]) for i, name in sorted(sizes)]
        return tuple(operation for operations in found for operation in operations)

    def __init__(
        self,
        part: Part,
        values: Sequence[Array],
        gradients: Gradients,
        compressor: Compressor,
        seed: int,
    ) -> None:
        super().__init__([part.parameter], values)
        self.part, self.compressor = part, compressor
        self.memory = gradients.gradient_view(part.parameter)[1]
        self.state = compressor.start(part.shape, self.memory.dtype, seed=seed)
        self.coming = self.state

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
