"""Strategy builders, found by name or in a file of the user; those that decide by parameter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, TypeVar

from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.compression import parse
from cavs.distributed.planning.compute import Compute
from cavs.distributed.strategy import GraphConfig, NodeConfig, Strategy, Synchroniser, Variable
from cavs.distributed.strategy.expression import check_whole, refuse
from cavs.distributed.strategy.partition import partition_of
from cavs.distributed.strategy.verify import verify
from cavs.distributed.sync.operation import Load
from cavs.errors import ConfigError
from cavs.train.named_types import NamedTypes, own_line

MAX_SHARDS = 1024


class Builder(ABC):
    """Makes a strategy for any model and cluster by a rule; options are constructor arguments.

    A builder of your own is a subclass in a Python file, named ``FILE.py:CLASS`` or
    ``FILE.py:CLASS(option=value)`` wherever a builder is named.
    """

    measures: ClassVar[bool] = False  # True if it decides by measurements of the machines
    diverges: ClassVar[bool] = False  # True if replicas may hold different values

    def informed(self, compute: Compute, load: Load) -> Builder:
        """Return the builder that knows the computation and load of a step."""
        return self

    @abstractmethod
    def build(self, variables: Sequence[Variable], resources: ResourceSpec) -> Strategy:
        """Return a strategy that has one node for each of `variables`, in order."""

    def __str__(self) -> str:
        known: Sequence[Field[Any]] = fields(self) if is_dataclass(self) else ()
        changed = [x.name for x in known if getattr(self, x.name) != x.default]
        options = ", ".join(f"{name}={getattr(self, name)!r}" for name in changed)
        return type(self).__name__ + (f"({options})" if options else "")


REGISTRY: dict[str, type[Builder]] = {}
B = TypeVar("B", bound=type[Builder])


def register(builder: B, name: str = "") -> B:
    """Class decorator: the builder is found by the name of its class, or another one."""
    name = name or builder.__name__
    if name in REGISTRY:
        raise ConfigError(f"there is already a builder {name}", hint="rename one")
    REGISTRY[name] = builder
    return builder


#: Builders by name; a file of a user may have more.
BUILDERS = NamedTypes[Builder](Builder, "strategy builder", "builder", REGISTRY)  # type: ignore[type-abstract]


def builders_of_equal_replicas() -> list[str]:
    """Return the names of the builders whose result is that of one process, or near it."""
    return [name for name, builder in REGISTRY.items() if not builder.diverges]


def find(text: str) -> Builder:
    """Return the builder of ``PS``, ``AllReduce(chunk=64)``, ``my.py:Mine(x=1)``; ConfigError."""
    return BUILDERS.find(text)


def build(
    builder: Builder | str, variables: Sequence[Variable], resources: ResourceSpec
) -> Strategy:
    """Return the strategy of a builder, verified, with the builder's name in it."""
    chosen = find(builder) if isinstance(builder, str) else builder
    if not variables:
        raise ConfigError("the model has no trainable parameter", hint="there is nothing to share")
    with own_line(f"builder {chosen}", type(chosen).__module__, "fix its method build"):
        strategy = chosen.build(variables, resources)
    if not isinstance(strategy, Strategy):
        what = f"builder {chosen} returned {type(strategy).__name__}"
        raise ConfigError(what, hint="return a Strategy")
    verify(strategy, variables, resources)
    # One that measures took a strategy of another builder, whose name stays.
    return strategy if chosen.measures else replace(strategy, builder=str(chosen))


class Loads:
    """The graph of a strategy, the devices that own its parameters, and how many bytes of them."""

    def __init__(self, graph: GraphConfig, servers: Sequence[str] = ()) -> None:
        self.graph = graph
        self.bytes = dict.fromkeys(servers, 0.0)

    def assign(self, nbytes: float, shards: int) -> list[str]:
        """Return a server for each shard: in order of load, again from the first after the last."""
        order = sorted(self.bytes, key=lambda name: self.bytes[name])
        chosen = [order[i % len(order)] for i in range(shards)]
        for server in chosen:
            self.bytes[server] += nbytes / shards
        return chosen


def option(default: Any, *, least: int | None = None, values: Sequence[object] = ()) -> Any:
    """Return a field of a `RuleBuilder`: a whole number of at least `least`, or one of `values`."""
    return field(default=default, metadata={"least": least, "values": values})


@dataclass(frozen=True, kw_only=True)
class RuleBuilder(Builder):
    """Decides for one parameter after another; its options are fields that it checks.

    An option called compressor is of dense parameters: sparse ones are never compressed.
    """

    def __post_init__(self) -> None:
        owner = type(self).__name__
        for known in fields(self):
            value, values = getattr(self, known.name), known.metadata.get("values")
            if known.name == "compressor":
                parse(value)
            if known.metadata.get("least") is not None:
                check_whole(owner, known.name, value, known.metadata["least"])
            if values and not any(type(value) is type(v) and value == v for v in values):
                refuse(owner, known.name, value, f"give {' or '.join(map(repr, values))}")

    def build(self, variables: Sequence[Variable], resources: ResourceSpec) -> Strategy:
        loads = self.loads(resources)
        return Strategy(graph=loads.graph, nodes=tuple(self.nodes(variables, loads)))

    def loads(self, resources: ResourceSpec) -> Loads:
        """Return the graph, by default a replica wherever one can run, and the servers."""
        return Loads(GraphConfig(replicas=resources.replicas))

    @abstractmethod
    def nodes(self, variables: Sequence[Variable], loads: Loads) -> Iterable[NodeConfig]:
        """Return the node of every variable, in order."""


def smallest_divisor(size: int) -> int:
    """Return the smallest divisor from 2 on, `size` itself if it is prime; 1 for sizes below 2."""
    return next((i for i in range(2, size) if size % i == 0), max(size, 1))


def smallest_non_divisor(size: int) -> int:
    """Return the smallest number from 2 on that does not divide `size`; `size` itself up to 2."""
    return next((i for i in range(2, size) if size % i), max(size, 1))


def equal_shards(size: int, most: int) -> int:
    """Return the smallest divisor of `size`, or 1 if it is above `most`: shards cost messages."""
    parts = smallest_divisor(size)
    return parts if parts <= most else 1


def axis_size(variable: Variable, axis: int = 0) -> int:
    """Return the size of an axis; 1 of a scalar."""
    return variable.shape[axis] if variable.shape else 1


def cut(
    variable: Variable, axis: int, synchronisers: Sequence[Synchroniser], compressor: str = "none"
) -> NodeConfig:
    """Return the node of a parameter cut along `axis`, a part for each of `synchronisers`.

    One part is the parameter itself. Sparse parameters are never compressed.
    """
    name, parts = variable.name, len(synchronisers)
    leaves = tuple(
        NodeConfig(
            name=f"{name}/part_{i}" if parts > 1 else name,
            synchroniser=synchroniser,
            compressor="none" if variable.sparse else compressor,
        )
        for i, synchroniser in enumerate(synchronisers)
    )
    if parts == 1:
        return leaves[0]
    return NodeConfig(name=name, partition=partition_of(variable.shape, axis, parts), shards=leaves)


def whole(variable: Variable, synchroniser: Synchroniser, compressor: str = "none") -> NodeConfig:
    """Return the node of a parameter that stays whole."""
    return cut(variable, 0, [synchroniser], compressor)
