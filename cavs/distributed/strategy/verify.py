"""Verification of a strategy for a model and a cluster, before anything runs.

An expression can be well-formed and name devices that do not exist, cut a parameter in more parts
than it has rows, or keep values where no gradient arrives. All problems are found at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.compression import TopK, parse
from cavs.distributed.strategy.expression import (
    NodeConfig,
    Problem,
    Strategy,
    absent,
    synchronisers,
)
from cavs.distributed.strategy.partition import shards_of
from cavs.distributed.strategy.variable import Variable
from cavs.errors import ConfigError
from cavs.train.optimizer import Optimizer


def verify(
    strategy: Strategy, variables: Sequence[Variable], resources: ResourceSpec | None = None
) -> None:
    """Raise `ConfigError` with the first of `problems`, saying how many more there are."""
    found = problems(strategy, variables, resources)
    if found:
        more = f" ({len(found) - 1} more problems)" if len(found) > 1 else ""
        raise ConfigError(found[0].what + more, hint=found[0].hint)


def problems(
    strategy: Strategy, variables: Sequence[Variable], resources: ResourceSpec | None = None
) -> list[Problem]:
    """Return everything that is wrong with `strategy` for these parameters.

    resources: the cluster; None leaves out what only it can say (which devices exist).
    """
    return list(_problems(strategy, {variable.name: variable for variable in variables}, resources))


def _problems(
    strategy: Strategy, known: dict[str, Variable], resources: ResourceSpec | None
) -> Iterator[Problem]:
    names = {node.name for node in strategy.nodes}
    for name in known:
        if name not in names:
            yield Problem(f"the strategy says nothing about parameter {name}", "add a node for it")
    for name in names - set(known):
        yield Problem(
            f"the strategy names parameter {name}, which the model does not train",
            f"its parameters are {', '.join(known) or 'none'}",
        )
    for rank, device in enumerate(strategy.graph.ranks):
        if resources is not None and device not in resources.devices:
            yield absent(f"rank {rank}", device, resources.devices)
    for node in strategy.nodes:
        if variable := known.get(node.name):
            try:
                shards_of(node, variable.shape)
            except ConfigError as error:
                yield Problem(error.what, error.hint)
            if variable.sparse:
                yield from _table(node)
            for leaf in node.leaves:
                yield from _compressor(leaf, variable)
                yield from leaf.sync.problems(strategy, leaf, variable, resources)
    for cls in synchronisers().values():
        yield from cls.problems_together(strategy, known)
    yield from _divergence(strategy)
    used = {leaf.sync.owner for leaf in strategy.leaves}
    for device in strategy.graph.servers:
        if device not in used:
            yield Problem(f"server {device} owns no parameter", "remove it from servers, or use it")


def _divergence(strategy: Strategy) -> Iterator[Problem]:
    """Yield what does not go with replicas that differ."""
    local = next((leaf for leaf in strategy.leaves if leaf.sync.diverges), None)
    if local is None:
        return
    found = f"{local.name}: {local.sync.type} lets replicas differ"
    owned = next((leaf for leaf in strategy.leaves if leaf.sync.owner is not None), None)
    if owned is not None:
        yield Problem(
            f"{found}, but {owned.sync.owner} owns {owned.name}",
            "reduce the others by all-reduce, or keep all replicas equal",
        )
    if strategy.graph.gradients != "mean":
        yield Problem(
            f"{found}, but gradients is {strategy.graph.gradients!r}", 'take gradients "mean"'
        )


def verify_optimizer(strategy: Strategy, optimizer: Optimizer) -> None:
    """Raise `ConfigError` if gradients would get momentum from a compressor and once more."""
    for leaf in () if optimizer.kernel == "sgd" else strategy.leaves:
        compressor = parse(leaf.compressor)
        if isinstance(compressor, TopK) and compressor.momentum:
            raise ConfigError(
                f"{leaf.name}: {compressor} with {optimizer}: what it sends has momentum already",
                hint="use cavs.optim.SGD without momentum, or topk(momentum=0)",
            )


def _table(node: NodeConfig) -> Iterator[Problem]:
    """Yield problems of a sparse parameter, whose touched rows are sent together for all shards."""
    types = list(dict.fromkeys(leaf.sync.type for leaf in node.leaves))
    if any(parts > 1 for parts in node.partition[1:]):
        yield Problem(
            f"{node.name}: partition {list(node.partition)} of a sparse parameter",
            "cut its axis 0: its gradient is rows",
        )
    if len(types) > 1:
        yield Problem(
            f"{node.name}: shards of a sparse parameter go by {' and by '.join(types)}",
            "give all its shards parameter servers, or all of them all-reduce",
        )
    if len({x.sync.sums_on_hosts for x in node.leaves if x.sync.owner is not None}) > 1:
        yield Problem(
            f"{node.name}: of a sparse parameter some shards have two_level=True, others not",
            "give all its shards the same two_level",
        )
    if len({leaf.sync.is_stale for leaf in node.leaves}) > 1:
        yield Problem(
            f"{node.name}: of a sparse parameter some shards are synchronous, others are not",
            "give all shards staleness 0 and sync=True, or none",
        )


def _compressor(leaf: NodeConfig, variable: Variable) -> Iterator[Problem]:
    try:
        compressor = parse(leaf.compressor)
    except ConfigError as error:
        yield Problem(f"{leaf.name}: {error.what}", error.hint)
        return
    if compressor.name == "none":
        return
    if not leaf.sync.takes_compressor:
        able = " and ".join(cls.type for cls in synchronisers().values() if cls.takes_compressor)
        yield Problem(
            f"{leaf.name}: compressor {compressor} with {leaf.sync.type}",
            f"only {able} takes a compressor: use none",
        )
    elif variable.sparse:
        yield Problem(
            f"{leaf.name}: compressor {compressor} of a sparse gradient",
            "use none: only the touched rows travel",
        )
