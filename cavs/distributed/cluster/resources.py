"""The resource specification: the machines of a cluster, and the network between them.

It is read from YAML (the extra ``cluster`` brings PyYAML; fields and units are listed in
docs/strategies.md), or made by `ResourceSpec.local`. Devices are called ``ADDRESS:CPU:I`` and
``ADDRESS:GPU:I``.

The YAML is composed, not constructed: every error names a line, and nothing can create objects.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from cavs.data.source import refuse_device
from cavs.errors import ConfigError

GIGABIT = 1e9 / 8  # bytes
_NODE = ("address", "chief", "cpus", "gpus", "bandwidth")
_BANDWIDTHS = [f"{prefix}bandwidth" for prefix in ("", "flow_", "local_", "reduce_", "common_")]
_LATENCIES = ["latency", "local_latency", "memcpy_latency"]
# Units of numbers in a file, and their factors to those of a `Network`.
_UNITS = dict.fromkeys(_BANDWIDTHS, ("Gbit/s", GIGABIT))
_UNITS |= dict.fromkeys(_LATENCIES, ("microseconds", 1e-6))
_MAX_DEVICES = 4096
_OCTAL = re.compile(r"[-+]?0[0-9_]+$")
_TAG = "tag:yaml.org,2002:"


def node_of(device: str) -> str:
    """The address in a device name."""
    return device.rsplit(":", 2)[0]


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine. bandwidth: of its network card in bytes a second, each way.

    chief: for the reader, as in AutoDist: rank 0 makes the strategy, wherever it runs.
    """

    address: str
    cpus: tuple[int, ...] = (0,)
    gpus: tuple[int, ...] = ()
    bandwidth: float | None = None
    chief: bool = False

    @property
    def cpu_devices(self) -> tuple[str, ...]:
        """Names of its CPU devices."""
        return tuple(f"{self.address}:CPU:{i}" for i in self.cpus)

    @property
    def gpu_devices(self) -> tuple[str, ...]:
        """Names of its GPUs."""
        return tuple(f"{self.address}:GPU:{i}" for i in self.gpus)


@dataclass(frozen=True, kw_only=True)
class Network:
    """Costs of messages: bandwidths in bytes a second, latencies in seconds.

    flow_bandwidth: the most one connection between two nodes reaches. reduce_bandwidth: at which a
    process sums what it receives. common_bandwidth: at which the processes of one node sum dense
    gradients in memory that all of them see; 0 where there is none. memcpy_latency: to start a copy
    or kernel on a device (delta of the cost model).
    """

    bandwidth: float = 10 * GIGABIT
    latency: float = 50 * 1e-6
    flow_bandwidth: float = math.inf
    local_bandwidth: float = 40 * GIGABIT
    local_latency: float = 10 * 1e-6
    reduce_bandwidth: float = math.inf
    common_bandwidth: float = 0.0
    memcpy_latency: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ResourceSpec:
    """The nodes, in order, and the network between them.

    ranks: the devices that run replicas, in the order of ranks; () takes them node by node.
    """

    nodes: tuple[Node, ...]
    network: Network = Network()
    ranks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ConfigError("a resource specification without nodes", hint="name at least one")
        for address, count in Counter(node.address for node in self.nodes).items():
            if count > 1:
                what = f"address {address} stands twice in the resource specification"
                raise ConfigError(what, hint="write one node with all its devices")
        chiefs = [node.address for node in self.nodes if node.chief]
        if not chiefs and len(self.nodes) == 1:
            object.__setattr__(self, "nodes", (dataclasses.replace(self.nodes[0], chief=True),))
        elif len(chiefs) != 1:
            raise ConfigError(
                f"{len(chiefs)} of {len(self.nodes)} nodes are chief: {', '.join(chiefs) or '-'}",
                hint="set chief: true at exactly one node",
            )
        if self.ranks and sorted(self.ranks) != sorted(self._by_node):
            raise ConfigError(
                f"ranks on {', '.join(self.ranks)}, but replicas run on {', '.join(self._by_node)}",
                hint="name each of these once, in the order of ranks",
            )

    @staticmethod
    def local(workers: int, network: Network | None = None) -> ResourceSpec:
        """Return `workers` processes on this machine."""
        if workers < 1:
            raise ConfigError(f"{workers} workers", hint="give at least 1")
        node = Node(address="localhost", cpus=tuple(range(workers)), chief=True)
        return ResourceSpec(nodes=(node,), network=network or Network())

    @property
    def chief(self) -> Node:
        """The chief node, for the reader; work of a single rank is done by rank 0."""
        return next(node for node in self.nodes if node.chief)

    @cached_property
    def devices(self) -> frozenset[str]:
        """The names of all devices."""
        return frozenset(d for node in self.nodes for d in (*node.cpu_devices, *node.gpu_devices))

    @property
    def replicas(self) -> tuple[str, ...]:
        """Where a replica can run: every GPU, and the CPUs of nodes without GPUs."""
        return self.ranks or self._by_node

    @property
    def _by_node(self) -> tuple[str, ...]:
        return tuple(d for node in self.nodes for d in (node.gpu_devices or node.cpu_devices))

    @property
    def cpu_devices(self) -> tuple[str, ...]:
        """The CPU devices of all nodes: where parameter servers can be."""
        return tuple(d for node in self.nodes for d in node.cpu_devices)

    @cached_property
    def _by_address(self) -> dict[str, Node]:
        return {node.address: node for node in self.nodes}

    def node(self, address: str) -> Node:
        """Return the node at `address`. Raises `ConfigError` if there is none."""
        if node := self._by_address.get(address):
            return node
        hint = f"the resource specification has {', '.join(self._by_address)}"
        raise ConfigError(f"there is no node {address}", hint=hint)

    def bandwidth(self, address: str) -> float:
        """Bytes a second of the node's network card, each way."""
        own = self.node(address).bandwidth
        return self.network.bandwidth if own is None else own

    def link(self, a: str, b: str) -> tuple[float, float]:
        """Bytes a second and seconds a message between two devices."""
        first, second = node_of(a), node_of(b)
        if first == second:
            return self.network.local_bandwidth, self.network.local_latency
        limit = min(self.bandwidth(first), self.bandwidth(second), self.network.flow_bandwidth)
        return limit, self.network.latency


def parse_resources(text: str, source: str = "resources") -> ResourceSpec:
    """Return the specification in YAML text; `source` names it in errors. Raises `ConfigError`."""
    try:
        import yaml
    except ImportError:
        hint = 'pip install "cavs[cluster]"'
        raise ConfigError(f"reading {source} needs PyYAML", hint=hint) from None
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise ConfigError(f"{source} uses aliases (*name)", hint="write the values out")
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is no YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{source} is nested too deeply") from None
    if root is None:
        raise ConfigError(f"{source} is empty", hint="it needs nodes:")
    return ResourceSpec(**_Reader(source).mapping(root, ("nodes", "network"), "a specification"))


def text_of(spec: ResourceSpec) -> str:
    """Return YAML text that `parse_resources` reads: four digits of a number, no order of ranks.

    Values that were not measured, so that they are those of `Network()`, are left out, as are
    infinite bandwidths.
    """
    lines = ["nodes:"]
    for node in spec.nodes:
        lines.append(f"  - address: {json.dumps(node.address)}")
        lines += ["    chief: true"] * node.chief
        lines.append(f"    cpus: {_devices(node.cpus)}")
        lines += [f"    gpus: {_devices(node.gpus)}"] * bool(node.gpus)
        if node.bandwidth is not None:
            lines.append(f"    bandwidth: {_number(node.bandwidth / GIGABIT)}")
    network: list[str] = []
    for name, (unit, factor) in _UNITS.items():
        value = getattr(spec.network, name)
        if value != getattr(Network, name) and math.isfinite(value):
            network.append(f"  {name}: {_number(value * (1 / factor))}  # {unit}")
    return "\n".join([*lines, *["network:"] * bool(network), *network, ""])


def _devices(numbers: tuple[int, ...]) -> str:
    return str(len(numbers) if numbers == tuple(range(len(numbers))) else list(numbers))


def _number(value: float) -> str:
    """Return `value` in digits alone: YAML takes 1e-09 for a word."""
    return np.format_float_positional(value, 4, unique=False, fractional=False, trim="-")


class _Reader:
    """Turns composed YAML into the fields of a specification."""

    def __init__(self, source: str) -> None:
        self.source = source

    def mapping(self, item: Any, known: tuple[str, ...], owner: str = "") -> dict[str, Any]:
        """Return the values of the `known` fields that are given; `owner` needs the first one."""
        if not item.tag.endswith(":map"):
            self.refuse(item, f"{self.shown(item)} is no mapping", f"write {known[0]}: ...")
        fields: dict[str, Any] = {}
        for key, value in item.value:
            if key.value not in known:
                hint = f"fields are {', '.join(known)}"
                self.refuse(key, f"unknown field {self.shown(key)}", hint)
            if key.value in fields:
                self.refuse(key, f"{key.value} stands twice", "keep one of them")
            fields[key.value] = self.value(value, key.value)
        if owner and known[0] not in fields:
            self.refuse(item, f"{owner} has no {known[0]}", f"write {known[0]}: ...")
        return fields

    def value(self, item: Any, name: str) -> Any:
        match name:
            case "nodes":
                return self.nodes(item)
            case "network":
                return Network(**self.mapping(item, tuple(_UNITS)))
            case "address":
                address = self.scalar(item, str, "an address")
                if not address or any(c.isspace() or c == "/" for c in address):
                    self.refuse(item, f"address is {address!r}", "write a host name")
                return address
            case "chief":
                return self.scalar(item, bool, "true or false")
            case "cpus" | "gpus":
                return self.devices(item, name)
        value, (unit, factor) = self.scalar(item, float, "a number"), _UNITS[name]
        if not math.isfinite(value) or value < 0 or (value == 0 and name in _BANDWIDTHS):
            self.refuse(item, f"{name} is {item.value}", f"give a positive number of {unit}")
        return value * factor

    def nodes(self, item: Any) -> tuple[Node, ...]:
        if not item.tag.endswith(":seq"):
            self.refuse(item, f"{self.shown(item)} is no list", "begin every item with a dash")
        if not item.value:
            self.refuse(item, "nodes is empty", "name at least one node")
        nodes = tuple(map(self.node, item.value))
        try:
            return ResourceSpec(nodes=nodes).nodes
        except ConfigError as error:
            self.refuse(item, error.what, error.hint)

    def node(self, item: Any) -> Node:
        node = Node(**self.mapping(item, _NODE, "a node"))
        if not node.cpus and not node.gpus:
            self.refuse(item, f"node {node.address} has neither cpus nor gpus", "give it a device")
        return node

    def devices(self, item: Any, name: str) -> tuple[int, ...]:
        if item.tag.endswith(":seq"):
            numbers = [self.scalar(i, int, "a device number") for i in item.value]
            for child, number in zip(item.value, numbers, strict=True):
                if number < 0 or numbers.count(number) > 1:
                    self.refuse(child, f"{name} has {number}", "give different numbers, 0 or more")
            return tuple(numbers)
        count = self.scalar(item, int, "a number of devices or a list of them")
        if not 0 <= count <= _MAX_DEVICES:
            self.refuse(item, f"{name} is {count}", f"give 0 to {_MAX_DEVICES}")
        return tuple(range(count))

    def scalar(self, item: Any, cls: Callable[[Any], Any], wanted: str) -> Any:
        types = {"str": str, "int": int, "float": float, "bool": bool}
        found = types.get(item.tag.rpartition(":")[2])
        if not (found is cls or (cls is float and found is int) or (cls is str and found)):
            self.refuse(item, f"{self.shown(item)} is not {wanted}", f"write {wanted}")
        if found is int and cls is not str and _OCTAL.match(item.value):
            hint = "write it in decimal digits, without a zero before them"
            self.refuse(item, f"{self.shown(item)} is not {wanted}: to YAML it is octal", hint)
        if cls is bool:
            return item.value.lower() in ("true", "yes", "on")
        try:
            return cls(item.value)
        except ValueError:  # YAML 1.1 also knows 0x10, 1_000, 1:30 and .inf
            self.refuse(item, f"{self.shown(item)} is not {wanted}", "write it in decimal digits")

    @staticmethod
    def shown(item: Any) -> str:
        types = {_TAG + "seq": "a list", _TAG + "map": "a mapping"}
        tagged = types.get(item.tag, f"what is tagged {item.tag.replace(_TAG, '!!')}")
        return repr(item.value) if isinstance(item.value, str) else tagged

    def refuse(self, item: Any, what: str, hint: str) -> NoReturn:
        raise ConfigError(f"{self.source}, line {item.start_mark.line + 1}: {what}", hint=hint)


def load_resources(path: str | os.PathLike[str]) -> ResourceSpec:
    """Read a resource specification from a YAML file. Raises `ConfigError`, naming the line."""
    return parse_resources(read_text(path), str(path))


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a file. Raises `ConfigError` if it cannot be read."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            refuse_device(file)
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", hint="check the path") from None
