"""Whether a strategy fits a model and a cluster, before anything runs.

An expression can be well-formed and still not train the model: name devices that do not exist, cut
a parameter in more parts than it has rows, or keep values where no gradient arrives. Every such
fault is found here, all at once, each with its cure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.compression import Compressor, TopK, parse
from cavs.distributed.strategy.expression import (
    AllReduce,
    NodeConfig,
    ParameterServer,
    Strategy,
    SufficientFactors,
    is_stale,
)
from cavs.distributed.strategy.partition import shards_of
from cavs.distributed.strategy.variable import Variable
from cavs.errors import ConfigError
from cavs.train.optim import SGD, Optimizer


@dataclass(frozen=True)
class Problem:
    """What is wrong, and the cure."""

    what: str
    hint: str


def verify(
    strategy: Strategy, variables: Sequence[Variable], resources: ResourceSpec | None = None
) -> None:
    """Raises `ConfigError` with the first of `problems`, saying how many more there are."""
    found = problems(strategy, variables, resources)
    if found:
        more = f" ({len(found) - 1} more problems)" if len(found) > 1 else ""
        raise ConfigError(found[0].what + more, hint=found[0].hint)


def problems(
    strategy: Strategy, variables: Sequence[Variable], resources: ResourceSpec | None = None
) -> list[Problem]:
    """Everything that is wrong with `strategy` for these parameters.

    resources: the cluster; None leaves out what only it can say (which devices exist).
    """
    return list(_problems(strategy, variables, resources))


def verify_optimizer(strategy: Strategy, optimizer: Optimizer) -> None:
    """Raises `ConfigError` if gradients would get momentum from a compressor and once more."""
    plain = isinstance(optimizer, SGD) and not optimizer.momentum
    for leaf in () if plain else strategy.leaves:
        compressor = parse(leaf.compressor)
        if isinstance(compressor, TopK) and compressor.momentum:
            raise ConfigError(
                f"{leaf.name}: {compressor} with {optimizer}: what it sends has momentum already",
                hint="use cavs.optim.SGD without momentum, or topk(momentum=0)",
            )


def _problems(
    strategy: Strategy, variables: Sequence[Variable], resources: ResourceSpec | None
) -> Iterator[Problem]:
    known = {variable.name: variable for variable in variables}
    yield from _names(strategy, known)
    if resources is not None:
        for device in strategy.graph.ranks:
            if device not in resources.devices:
                yield _absent(f"rank {strategy.graph.ranks.index(device)}", device, resources)
    for node in strategy.nodes:
        if node.name in known:
            yield from _node(strategy, node, known[node.name], resources)
    yield from _groups(strategy, known)
    yield from _teams(strategy)
    yield from _idle_servers(strategy)


def _names(strategy: Strategy, known: dict[str, Variable]) -> Iterator[Problem]:
    names = {node.name for node in strategy.nodes}
    for name in known:
        if name not in names:
            yield Problem(f"the strategy says nothing about parameter {name}", "add a node for it")
    for name in names - set(known):
        yield Problem(
            f"the strategy names parameter {name}, which the model does not train",
            f"its parameters are {', '.join(known) or 'none'}",
        )


def _absent(what: str, device: str, resources: ResourceSpec) -> Problem:
    some = sorted(resources.devices)
    shown = ", ".join(some[:8]) + (", ..." if len(some) > 8 else "")
    return Problem(f"{what}: there is no device {device}", f"the devices are {shown}")


def _node(
    strategy: Strategy, node: NodeConfig, variable: Variable, resources: ResourceSpec | None
) -> Iterator[Problem]:
    try:
        shards_of(node, variable.shape)
    except ConfigError as error:
        yield Problem(error.what, error.hint)
    if variable.sparse and any(parts > 1 for parts in node.partition[1:]):
        yield Problem(
            f"{node.name}: partition {list(node.partition)} of a sparse parameter",
            "cut its axis 0: its gradient is rows",
        )
    if variable.sparse:
        yield from _table(node)
    if variable.sparse and len({is_stale(leaf.sync) for leaf in node.leaves}) > 1:
        yield Problem(
            f"{node.name}: of a sparse parameter some shards are synchronous, others are not",
            "give all shards staleness 0 and sync=True, or none",
        )
    for leaf in node.leaves:
        yield from _compressor(leaf, variable)
        match leaf.sync:
            case ParameterServer() as server:
                yield from _server(strategy, leaf, server, variable, resources)
            case AllReduce() as reduced:
                yield from _everywhere(strategy, leaf)
                yield from _spec(leaf, reduced, variable)
            case SufficientFactors():
                yield from _everywhere(strategy, leaf)
                yield from _factors(leaf, node, variable)


def _table(node: NodeConfig) -> Iterator[Problem]:
    """The rows of a table that a batch touches are sent off together, whichever shard has them."""
    kinds = list(dict.fromkeys(leaf.sync.type for leaf in node.leaves))
    if len(kinds) > 1:
        yield Problem(
            f"{node.name}: shards of a sparse parameter go by {' and by '.join(kinds)}",
            "give all its shards parameter servers, or all of them all-reduce",
        )
    levels = {x.sync.two_level for x in node.leaves if isinstance(x.sync, ParameterServer)}
    if len(levels) > 1:
        yield Problem(
            f"{node.name}: of a sparse parameter some shards have two_level=True, others not",
            "give all its shards the same two_level",
        )


def _everywhere(strategy: Strategy, leaf: NodeConfig) -> Iterator[Problem]:
    if leaf.placement and set(leaf.placement) != set(strategy.graph.replicas):
        lacking = [d for d in strategy.graph.replicas if d not in leaf.placement]
        stray = [d for d in leaf.placement if d not in strategy.graph.replicas]
        what = f"{lacking[0]} does not keep it" if lacking else f"{stray[0]} runs no replica"
        yield Problem(
            f"{leaf.name}: {leaf.sync.type} needs the value on every replica, but {what}",
            "leave placement empty, or name all replicas",
        )


def _spec(leaf: NodeConfig, reduced: AllReduce, variable: Variable) -> Iterator[Problem]:
    if reduced.spec == "nccl" and (variable.sparse or leaf.compressor != "none"):
        what = "a sparse gradient" if variable.sparse else f"compressor {leaf.compressor}"
        yield Problem(
            f"{leaf.name}: spec 'nccl' of {what}, which travels between the hosts",
            "give it spec 'auto', or leave the compressor out",
        )


def _server(
    strategy: Strategy,
    leaf: NodeConfig,
    server: ParameterServer,
    variable: Variable,
    resources: ResourceSpec | None,
) -> Iterator[Problem]:
    if leaf.placement and leaf.placement != (server.destination,):
        yield Problem(
            f"{leaf.name}: its gradients go to {server.destination}, its value is kept on "
            f"{', '.join(leaf.placement)}: they would never meet",
            "leave placement empty, or name the destination alone",
        )
    if resources is not None and server.destination not in resources.devices:
        yield _absent(f"{leaf.name}: destination", server.destination, resources)
    else:
        try:
            strategy.graph.rank_of(server.destination)
        except ConfigError as error:
            yield Problem(f"{leaf.name}: {error.what}", error.hint)
    lockstep = server.sync and server.staleness == 0
    if server.local_replication and not lockstep:
        yield Problem(
            f"{leaf.name}: local_replication with "
            + (f"staleness {server.staleness}" if server.sync else "sync=False"),
            "an owner answers each replica when it may go on: set local_replication=False, or "
            "sync=True and staleness=0",
        )
    if server.local_replication and variable.sparse:
        yield Problem(
            f"{leaf.name}: local_replication of a sparse parameter",
            "set local_replication=False: replicas fetch the rows they touch",
        )


def _factors(leaf: NodeConfig, node: NodeConfig, variable: Variable) -> Iterator[Problem]:
    if variable.sparse or len(variable.shape) != 2 or variable.factors is None:
        kind = "sparse" if variable.sparse else f"of shape {list(variable.shape)}"
        yield Problem(
            f"{leaf.name}: sufficient factors of a parameter {kind}"
            + (", whose gradient is no matrix product" if variable.factors is None else ""),
            "use AllReduce or ParameterServer for it",
        )
    if node.shards:
        yield Problem(
            f"{leaf.name}: sufficient factors of a shard",
            "leave the parameter whole: every replica rebuilds all of it",
        )


def _compressor(leaf: NodeConfig, variable: Variable) -> Iterator[Problem]:
    try:
        compressor: Compressor = parse(leaf.compressor)
    except ConfigError as error:
        yield Problem(f"{leaf.name}: {error.what}", error.hint)
        return
    if compressor.name == "none":
        return
    if not isinstance(leaf.sync, AllReduce):
        yield Problem(
            f"{leaf.name}: compressor {compressor} with {leaf.sync.type}",
            "only all_reduce takes a compressor: use none",
        )
    elif variable.sparse:
        yield Problem(
            f"{leaf.name}: compressor {compressor} of a sparse gradient",
            "use none: only the touched rows travel",
        )


def _groups(strategy: Strategy, known: dict[str, Variable]) -> Iterator[Problem]:
    """Dense nodes of one all-reduce group share a buffer, so they must be of one kind."""
    first: dict[int | None, tuple[str, tuple[str, str, str]]] = {}
    for node in strategy.nodes:
        variable = known.get(node.name)
        if variable is None or variable.sparse:
            continue
        for leaf in node.leaves:
            if not isinstance(leaf.sync, AllReduce):
                continue
            kind = (variable.dtype, leaf.sync.spec, leaf.compressor)
            name, there = first.setdefault(leaf.sync.group, (leaf.name, kind))
            if there != kind:
                group = leaf.sync.group
                yield Problem(
                    ("what is in no group" if group is None else f"group {group}")
                    + f" of {leaf.sync.type} mixes {name} "
                    f"({', '.join(there)}) and {leaf.name} ({', '.join(kind)})",
                    "give what differs in dtype, spec or compressor groups of its own",
                )


def _teams(strategy: Strategy) -> Iterator[Problem]:
    """Replicas of a node either go through stale steps together or each alone."""
    stale = [x for x in strategy.leaves if isinstance(x.sync, ParameterServer) and is_stale(x.sync)]
    levels = {getattr(leaf.sync, "two_level", False): leaf.name for leaf in stale}
    if len(levels) > 1:
        yield Problem(
            f"{levels[True]} is stale with two_level=True, {levels[False]} with two_level=False",
            "give all stale parameters the same: replicas of a node are at one step or at several",
        )


def _idle_servers(strategy: Strategy) -> Iterator[Problem]:
    used = {
        leaf.sync.destination for leaf in strategy.leaves if isinstance(leaf.sync, ParameterServer)
    }
    for device in strategy.graph.servers:
        if device not in used:
            yield Problem(f"server {device} owns no parameter", "remove it from servers, or use it")
