"""Resource specifications as YAML: every error names the line and what it says.

The document is composed, not constructed: the nodes of the parser know their lines, and nothing in
a file can create objects.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from cavs.data.source import refuse_device
from cavs.distributed.cluster.resources import GIGABIT, Network, Node, ResourceSpec
from cavs.errors import ConfigError

_NODE = ("address", "chief", "cpus", "gpus", "bandwidth")
_BANDWIDTHS = [f"{prefix}bandwidth" for prefix in ("", "flow_", "local_", "reduce_", "common_")]
_LATENCIES = ["latency", "local_latency", "memcpy_latency"]
# Units of numbers in a file, and their factors to those of a `Network`.
_UNITS = dict.fromkeys(_BANDWIDTHS, ("Gbit/s", GIGABIT))
_UNITS |= dict.fromkeys(_LATENCIES, ("microseconds", 1e-6))
_MAX_DEVICES = 4096
_OCTAL = re.compile(r"[-+]?0[0-9_]+$")
_TAG = "tag:yaml.org,2002:"


def parse_resources(text: str, source: str = "resources") -> ResourceSpec:
    """Return the specification in YAML text; `source` names it in errors. Raises `ConfigError`."""
    try:
        import yaml
    except ImportError:
        raise ConfigError(
            f"reading {source} needs PyYAML", hint='pip install "cavs[cluster]"'
        ) from None
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise ConfigError(f"{source} uses aliases (*name)", hint="write the values out")
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is no YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{source} is nested too deeply") from None
    return _Reader(source).spec(root)


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
    """Turns composed YAML into a specification."""

    def __init__(self, source: str) -> None:
        self.source = source

    def spec(self, root: Any) -> ResourceSpec:
        if root is None:
            raise ConfigError(f"{self.source} is empty", hint="it needs nodes:")
        fields = self.mapping(root, ("nodes", "network"))
        if "nodes" not in fields:
            self.refuse(root, "has no nodes", "list them below nodes:")
        listed = fields["nodes"]
        if not listed.tag.endswith(":seq"):
            self.refuse(listed, f"{self.shown(listed)} is no list", "begin every item with a dash")
        nodes = tuple(self.node(item) for item in listed.value)
        if not nodes:
            self.refuse(listed, "nodes is empty", "name at least one node")
        network = self.network(fields["network"]) if "network" in fields else Network()
        try:
            return ResourceSpec(nodes=nodes, network=network)
        except ConfigError as error:
            self.refuse(listed, error.what, error.hint)

    def node(self, item: Any) -> Node:
        fields = self.mapping(item, _NODE)
        if "address" not in fields:
            self.refuse(item, "a node has no address", "write address: HOST")
        address = self.scalar(fields["address"], str, "an address")
        if not address or any(c.isspace() or c == "/" for c in address):
            self.refuse(fields["address"], f"address is {address!r}", "write a host name")
        bandwidth = fields.get("bandwidth")
        gpus = self.devices(fields["gpus"], "gpus") if "gpus" in fields else ()
        cpus = self.devices(fields["cpus"], "cpus") if "cpus" in fields else (0,)
        if not cpus and not gpus:
            self.refuse(item, f"node {address} has neither cpus nor gpus", "give it a device")
        return Node(
            address=address,
            cpus=cpus,
            gpus=gpus,
            bandwidth=bandwidth and self.number(bandwidth, "bandwidth"),
            chief="chief" in fields and self.scalar(fields["chief"], bool, "true or false"),
        )

    def network(self, item: Any) -> Network:
        fields = self.mapping(item, tuple(_UNITS))
        return Network(**{name: self.number(value, name) for name, value in fields.items()})

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

    def number(self, item: Any, name: str) -> float:
        value, (unit, factor) = self.scalar(item, float, "a number"), _UNITS[name]
        if not math.isfinite(value) or value < 0 or (value == 0 and name in _BANDWIDTHS):
            self.refuse(item, f"{name} is {item.value}", f"give a positive number of {unit}")
        return float(value * factor)

    def mapping(self, item: Any, known: tuple[str, ...]) -> dict[str, Any]:
        if not item.tag.endswith(":map"):
            self.refuse(item, f"{self.shown(item)} is no mapping", f"write {known[0]}: ...")
        fields: dict[str, Any] = {}
        for key, value in item.value:
            if key.value not in known:
                hint = f"fields are {', '.join(known)}"
                self.refuse(key, f"unknown field {self.shown(key)}", hint)
            if key.value in fields:
                self.refuse(key, f"{key.value} stands twice", "keep one of them")
            fields[key.value] = value
        return fields

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
        if isinstance(item.value, str):
            return repr(item.value)
        types = {_TAG + "seq": "a list", _TAG + "map": "a mapping"}
        return types.get(item.tag, f"what is tagged {item.tag.replace(_TAG, '!!')}")

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
