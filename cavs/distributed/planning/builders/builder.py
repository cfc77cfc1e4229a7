"""Strategy builders, found by name or in a file of the user; those that decide by parameter."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.compression import parse
from cavs.distributed.planning.compute import Compute
from cavs.distributed.strategy import GraphConfig, NodeConfig, Strategy, Synchroniser, Variable
from cavs.distributed.strategy.expression import check_whole, refuse
from cavs.distributed.strategy.partition import partition_of
from cavs.distributed.strategy.verify import verify
from cavs.distributed.sync.operation import Load
from cavs.errors import CavsError, ConfigError, raised_at

MAX_SHARDS = 1024


class Builder(ABC):
    """Makes a strategy for any model and cluster by a rule; options are constructor arguments.

    A builder of your own is a subclass in a Python file, named ``FILE.py:CLASS`` or
    ``FILE.py:CLASS(option=value)`` wherever a builder is named.
    """

    measures: ClassVar[bool] = False  # True if it decides by measurements of the machines

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


def find(text: str) -> Builder:
    """Return the builder of ``PS``, ``AllReduce(chunk=64)``, ``my.py:Mine(x=1)``; ConfigError."""
    where, _, call = text.rpartition(".py:")
    name, options = _call(call, text)
    cls = _from_file(Path(where + ".py"), name) if where else REGISTRY.get(name)
    if cls is None:
        raise ConfigError(
            f"no strategy builder is called {name!r}",
            hint=f"there are {', '.join(REGISTRY)}, or FILE.py:CLASS",
        )
    signature = inspect.signature(cls)
    hint = f"it is {cls.__name__}{str(signature).partition(' ->')[0]}"
    try:
        signature.bind(**options)
    except TypeError as error:
        raise ConfigError(f"builder {text}: {error}", hint=hint) from None
    if missing := ", ".join(sorted(cls.__abstractmethods__)):
        raise ConfigError(f"builder {text} has no method {missing}", hint=f"add it to {name}")
    with _own_line(f"builder {text}", cls.__module__, hint):
        return cls(**options)


def _call(call: str, text: str) -> tuple[str, dict[str, Any]]:
    """Return name and options of ``NAME`` or ``NAME(option=literal, ...)``."""
    try:
        match ast.parse(call.strip(), mode="eval").body:
            case ast.Name(id=name):
                return name, {}
            case ast.Call(func=ast.Name(id=name), args=[], keywords=given):
                options = {k.arg: ast.literal_eval(k.value) for k in given if k.arg}
                if len(options) == len(given):
                    return name, options
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
        pass
    raise ConfigError(
        f"{text!r} names no strategy builder", hint="write NAME, NAME(option=value) or FILE.py:NAME"
    )


def _from_file(path: Path, name: str) -> type[Builder]:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", hint="check the path")
    spec = importlib.util.spec_from_file_location(f"cavs_strategy_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    with _own_line(f"{path} cannot be loaded", spec.name, "fix the file"):
        spec.loader.exec_module(module)
    cls = getattr(module, name, None)
    if not (isinstance(cls, type) and issubclass(cls, Builder)):
        raise ConfigError(
            f"{path} has no class {name} that is a Builder",
            hint="subclass cavs.distributed.planning.builders.Builder",
        )
    return cls


@contextmanager
def _own_line(what: str, module: str, hint: str) -> Iterator[None]:
    """Turn errors of the user's `module` into a `ConfigError` that names its line there."""
    try:
        yield
    except Exception as error:
        # The user cannot fix an error of cavs.
        if isinstance(error, CavsError) or module.partition(".")[0] == "cavs":
            raise
        said, where = str(error), raised_at(error)
        if isinstance(error, SyntaxError) and error.filename:
            said, where = error.msg, f"{os.path.basename(error.filename)}:{error.lineno}"
        said = f"{what}: {type(error).__name__}: {said}"
        raise ConfigError(said, where=where, hint=hint) from error


def build(
    builder: Builder | str, variables: Sequence[Variable], resources: ResourceSpec
) -> Strategy:
    """Return the strategy of a builder, verified, with the builder's name in it."""
    chosen = find(builder) if isinstance(builder, str) else builder
    if not variables:
        raise ConfigError("the model has no trainable parameter", hint="there is nothing to share")
    with _own_line(f"builder {chosen}", type(chosen).__module__, "fix its method build"):
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
