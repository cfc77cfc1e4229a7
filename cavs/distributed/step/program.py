"""One program on all ranks: the facts that they compare, and the exchanges that it makes."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import cavs._cuda
import cavs._engine
from cavs._engine import Executor, isa
from cavs.compiler.pipeline import Compiled
from cavs.compiler.program import Program
from cavs.data import GraphBatch, SampleBatch
from cavs.distributed.balance.shards import ShardedBatch, num_row_counts
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm.agreement import Agreement
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.step.context import StepContext
from cavs.distributed.step.devices import join_devices
from cavs.distributed.strategy import NodeConfig, Variable, shards_of
from cavs.distributed.sync import (
    AllReduce,
    DenseAllReduce,
    DeviceAllReduce,
    Member,
    Runtime,
    Transfer,
    lower,
)
from cavs.distributed.sync.part import values_of
from cavs.distributed.sync.stale_server.owner import optimiser
from cavs.errors import CommunicationError, ConfigError
from cavs.ir import Graph
from cavs.ir.printer import number, print_node
from cavs.train.checkpoint import model_name
from cavs.train.stepping import TrainingState
from cavs.train.version import version

_STEPS = (0, 1, 10, 100, 1000, 10_000, 100_000)  # at which learning rates are compared


class FailedPeerError(Exception):
    """Another rank cannot compile for its part of a batch."""


@contextmanager
def kinds_union(group: Communicator) -> Iterator[Callable[[Sequence[Any]], list[Any]]]:
    """Yield the union over a group of ranks; `Session.compile_for` calls it twice.

    A rank that fails to compile in the block tells the others, which end the block and wait for its
    error at their next consensus.
    """
    calls = 0

    def union(values: Sequence[Any]) -> list[Any]:
        nonlocal calls
        calls += 1
        shared = group.share(list(values))
        if None in shared:
            raise FailedPeerError
        every = (v for other in shared for v in other)
        return sorted({tuple(v) if isinstance(v, list) else v for v in every})  # shared as JSON

    try:
        yield union
    except FailedPeerError:
        return
    except Exception as error:
        waited_for = calls == 0 or calls % 2 == 1  # others may wait for the next values
        if waited_for and not isinstance(error, CommunicationError):
            group.share(None)
        raise


def prepare_together(
    context: StepContext, batch: Any, failed: Exception | None = None
) -> tuple[ShardedBatch, Any, Any]:
    """Return this rank's part, the executor that the ranks of a step have alike, and its inputs.

    failed: an error of this rank, which all raise instead.
    """
    part: ShardedBatch | None = None
    with context.team_agreement.guard("step") as found:
        found.new, found.stop = True, context.wants_stop and not context.asynchronous
        if failed is not None:
            raise failed
        part = context.shard(batch)
        lost = context.group is not None and context.group.lost
        if not (lost or context.exchanging is None or context.session.is_new(part.local)):
            executor, inputs, _ = context.ready(part)
            found.new = executor is not context.exchanging  # the exchanges send its memory
    context.stopping |= found.stop
    assert part is not None
    if found.new:
        executor, inputs = compile_together(context, part)
    return part, executor, inputs


def compile_together(context: StepContext, part: ShardedBatch) -> tuple[Any, Any]:
    """Compile one program on all ranks of a step, and make its exchanges."""
    roles, agreement = context.roles, context.team_agreement
    if not context.asynchronous and (context.group is None or context.group.lost):
        device = context.session.device
        context.group = join_devices(context.collectives, device, roles.replicas, context.group)
        context.exchanging = None
    group = roles.local if context.asynchronous else roles.replicas
    with agreement.guard("step", known=CommunicationError), kinds_union(group) as union:
        context.session.compile_for(part.local, union)
        executor, inputs, compiled = context.ready(part)
    program = compiled.program
    _share_gradients(context, executor)
    with agreement.guard("exchanges", known=CommunicationError):
        context.compiled = compiled
        context.check_backup(context.backup)
        make_exchanges(context, executor, ProgramFacts.of(program))
    order = executor.gradient_order()
    same_program(agreement, None if guesses(part.local) else compiled, order)
    if not context.asynchronous and roles.replicas is not context.communicator:  # to the servers
        context.communicator.share([order, *ProgramFacts.of(program)])
    return executor, inputs


class ProgramFacts(NamedTuple):
    """The part of a program that exchanges are made for, which servers get from a replica.

    layouts: "dense", "sparse" or "none" for the gradient of every parameter. int_features: features
    that are indices. structures: number of the structures of samples.
    """

    layouts: Mapping[str, str]
    int_features: list[str]
    structures: int

    @classmethod
    def of(cls, program: Program) -> ProgramFacts:
        """Return the facts about a program."""
        return cls(program.gradients, program.int_features, len(program.structures.names))


def make_exchanges(context: StepContext, executor: Any, program: ProgramFacts) -> None:
    """Make the exchanges of a program, in the order of all ranks; earlier ones hand over state."""
    if executor is context.exchanging:
        return
    context.int_features = program.int_features
    context.num_counts = num_row_counts(program.structures) + len(program.int_features)
    parameters, group = context.session.parameters, context.group
    runtime = Runtime(
        context.strategy,
        executor,
        parameters,
        context.roles,
        context.servers,
        group,
        delays=hasattr(context.split, "update"),
    )
    transfers = lower(_members(runtime, program.layouts), runtime)
    there = _sums_on_device(transfers, runtime, context.on_host)
    fresh = [(DeviceAllReduce if t in there else t.exchange)(t.members, runtime) for t in transfers]
    for exchange in fresh:
        context.restore_memory(exchange)
        exchange.inherit(context.exchanges)
    context.exchanges, context.exchanging = fresh, executor


def _members(runtime: Runtime, layouts: Mapping[str, str]) -> list[Member]:
    """Return the members that this rank exchanges; without a strategy all-reduced in buckets."""
    strategy, parameters, names = runtime.strategy, runtime.parameters, list(runtime.parameters)
    members: list[Member] = []
    order = [i for i in runtime.executor.gradient_order() if parameters[names[i]].trainable]
    for turn, i in enumerate(order):
        name, shape, dtype = names[i], parameters[names[i]].shape, str(runtime.values[i].dtype)
        variable = Variable(name=name, shape=shape, dtype=dtype, sparse=layouts[name] == "sparse")
        node = NodeConfig(name=name, synchroniser=AllReduce(group=None))
        node = node if strategy is None else strategy.node(name)
        for leaf, shard in zip(node.leaves, shards_of(node, shape), strict=True):
            # Servers take part where they own something; in a push replicas alone do.
            if runtime.roles.computes or (leaf.sync.owner is not None and not leaf.sync.is_stale):
                members.append(Member.of(i, turn, leaf, shard, variable))
    return members


def _sums_on_device(
    transfers: Sequence[Transfer], runtime: Runtime, served: Collection[int]
) -> list[Transfer]:
    """Return the sums over gradients that nothing else needs on the host.

    ConfigError if one that asks for NCCL is not among them.
    """
    sums = [t for t in transfers if t.exchange is DenseAllReduce]
    there = (
        []
        if runtime.group is None
        else [t for t in sums if all(m.part.rows == 1 for m in t.members)]
    )
    on_host = {m.parameter for t in transfers if t not in there for m in t.members}.union(served)
    while mixed := [t for t in there if any(m.parameter in on_host for m in t.members)]:
        there = [t for t in there if t not in mixed]
        on_host.update(m.parameter for t in mixed for m in t.members)
    for transfer in sums:
        if transfer.nccl and transfer not in there:
            reason = "parts of its group are not consecutive in memory, or are needed on the host"
            if runtime.group is None:
                reason = "NCCL sums nothing here: see collectives of the trainer"
            raise ConfigError(
                f"{transfer.nccl}: its all-reduce has spec 'nccl', but {reason}",
                hint="give it spec 'auto'",
            )
    return there


class ServerExecutor:
    """An executor of `parameters`, by name, without a program: it computes norms and updates.

    order: of the gradients on the replicas, by parameter.
    """

    def __init__(self, parameters: Mapping[str, Any], order: Sequence[int]) -> None:
        host = optimiser(values_of(parameters))
        self.squared_norm, self.apply = host.squared_norm, host.apply
        self.gradient_order = lambda: list(order)


def receive_program(context: StepContext) -> None:
    """Take part in `compile_together` on a rank that only owns parameters."""
    for phase in ("step", "exchanges"):
        context.agreement.consensus(phase)
    same_program(context.agreement, None, ())
    order, *program = context.communicator.share(None)[0]
    executor = ServerExecutor(context.session.parameters, order)
    make_exchanges(context, executor, ProgramFacts(*program))


def _share_gradients(context: StepContext, executor: Any) -> None:
    """Move gradients to memory that all replicas map, if they can; the same on all of them."""
    replicas = context.roles.replicas
    if context.asynchronous or replicas.size == 1 or not isinstance(executor, Executor):
        return
    block = executor.gradient_block()
    every = replicas.share([block.nbytes, executor is context.exchanging])
    if all(known for _, known in every) or len({size for size, _ in every}) > 1:
        return
    memory = replicas.common_memory(block.nbytes) if block.nbytes else None
    if memory is not None:
        executor.set_gradient_block(memory.view(block.dtype))
    context.exchanging = None


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Return a digest of every Python file of the package and of the engines."""
    root = Path(__file__).resolve().parents[2]
    engines = [Path(str(module.__file__)) for module in (cavs._engine, cavs._cuda)]
    files = [*sorted(root.rglob("*.py")), *engines]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def facts(state: TrainingState, strategy: str, **more: Any) -> dict[str, str]:
    """Return the facts that ranks compare, by the names by which errors quote them."""
    shapes = {
        name: [str(p.current().dtype), list(p.current().shape), bool(p.trainable)]
        for name, p in state.parameters.items()
    }
    return {
        "version of cavs": f"{version()} ({code_digest()})",
        "model": model_name(state.model),
        "parameters": _short(shapes),
        "optimizer": _rule(state.optimizer),
        "seed": str(state.seed),
        "strategy": strategy,
        # All ranks apply the same updates, which are to come out in the same bits.
        "instructions": "base, which round it twice (as all ranks do with CAVS_ISA=base)"
        if isa() == "base"
        else "those that round a sum of products once",
        "steps": str(state.steps),
        "max_norm": str(state.max_norm),
        "options": str({k: v for k, v in state.config.items() if k != "data"}),
        **{name: str(value) for name, value in more.items()},
    }


def cluster(resources: ResourceSpec | None) -> str:
    """Return the facts about a resource specification that ranks compare."""
    if resources is None:
        return "none"
    addresses = [node.address for node in resources.nodes]
    shown = ", ".join(addresses[:4]) + ", ..." * (len(addresses) > 4)
    nodes = f"{len(addresses)} node{'s' * (len(addresses) > 1)}"
    return f"{nodes} ({shown}), digest {_digest(resources)}"


def guesses(batch: GraphBatch | SampleBatch) -> bool:
    """True if a trace for `batch` guesses types: of features without rows, of links without."""
    if isinstance(batch, SampleBatch):
        empty = any(not graphs.num_vertices for graphs in batch.graphs.values())
        if empty or any(link.single is None for link in batch.links.values()):
            return True
    pairs = (name for name, spec in batch.feature_schema().items() if spec.domain == "pair")
    without_edges = any(not batch.has_edges(name) for name in batch.edge_features)
    return without_edges or any(not batch.has_pairs(name) for name in pairs)


def same_trace(agreement: Agreement, trace: Graph | None, error: Exception | None) -> None:
    """Raise ConfigError on all ranks unless they traced the same model, or `error` of this rank.

    trace: None on a rank that has none.
    """
    agreement.same(None if trace is None else _facts_of(_lines(trace)), error)


def same_program(agreement: Agreement, compiled: Compiled | None, order: Sequence[int]) -> None:
    """Raise ConfigError on all ranks unless they run the same program; it says how they differ.

    compiled: None on ranks that compute nothing, or that had to guess. order: of the gradients, by
    parameter.
    """
    facts, lines = None, list[str]()
    if compiled is not None:
        program, lines = compiled.program, _lines(compiled.traced)
        facts = {
            "kinds of gradients": f"{program.gradients}",
            "order of gradients": ", ".join(program.parameters[i] for i in order),
            "compiled program": f"digest {_digest(program)}",
        }
    digests = agreement.communicator.share(facts and _digest([facts, lines]))
    if len({digest for digest in digests if digest is not None}) > 1:
        agreement.same(facts and {**facts, **_facts_of(lines)})  # the lines only now


def _facts_of(lines: Sequence[str]) -> dict[str, str]:
    each = {f"line {i} of the trace": line for i, line in enumerate(lines)}
    return {"trace of the model": f"{len(lines)} lines, digest {_digest(lines)}", **each}


def _lines(trace: Graph) -> list[str]:
    """Return a traced model as text, without positions in files, which hosts may have elsewhere."""
    names = number(trace)
    lines = [print_node(node, names) for node in trace.nodes() if node.op.name != "parameter"]
    lines += [f"slot {name} <- {names[node]}" for name, node in trace.slots.items()]
    return lines + [f"return {key} = {names[node]}" for key, node in trace.outputs.items()]


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _rule(optimizer: Any) -> str:
    """Return an optimiser as text: its numbers, and the rates of its schedule."""
    hyper = {name: value for name, value in optimizer.hyper(0).items() if name != "lr"}
    if dataclasses.is_dataclass(optimizer):  # there are more, such as what states begin with
        fields = [f.name for f in dataclasses.fields(optimizer) if f.name != "lr"]
        hyper = {name: getattr(optimizer, name) for name in fields}
    rates = ", ".join(f"{_rate(optimizer, step)} after {step}" for step in _STEPS)
    adapts, traced = optimizer.plateau(), not optimizer.kernel
    text = f"{type(optimizer).__name__} {hyper}, lr {rates} steps" + (f", {adapts}" * bool(adapts))
    return text + (f", rule of digest {_digest(optimizer.program.text)}" if traced else "")


def _rate(optimizer: Any, step: int) -> str:
    """Return the rate in 12 digits: on another rank a cosine may have another last bit."""
    try:
        return repr(float(f"{optimizer.rate(step):.12g}"))
    except Exception as error:  # a schedule of the user that ends before
        return type(error).__name__


def _short(shapes: Mapping[str, Any]) -> str:
    text = "; ".join(f"{name} {kind}{shape}" for name, (kind, shape, _) in shapes.items())
    text = text if len(text) < 400 else f"{text[:400]} ..."
    return f"{len(shapes)} ({text}), digest {_digest(shapes)}"
