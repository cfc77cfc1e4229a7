"""Netlists of logic gates: drawn ones, a reader of the BENCH format, and their simulation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import numpy as np

from cavs.errors import DataError

INVERTED = {"not": "and", "nand": "and", "nor": "or", "xnor": "xor"}  # not is a nand of one
FUNCTIONS = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
GATES = ("input", "and", "nand", "nor", "not", "or", "xnor", "xor")
_LINE = re.compile(r"(\S+)\s*=\s*(\w+)\s*\(([^()]*)\)|(INPUT|OUTPUT)\s*\(([^()]+)\)", re.IGNORECASE)


@dataclass(frozen=True)
class Netlist:
    """A circuit. gates: the type of each gate. sources: the gates that each reads."""

    gates: list[str]
    sources: list[list[int]]


def draw_netlist(rng: np.random.Generator, most: int) -> Netlist:
    """Return a netlist of at most `most` gates, a quarter to a half of which are inputs."""
    total = int(rng.integers(min(8, most), most + 1))
    inputs = int(rng.integers(total // 4, total // 2 + 1)) or 1
    gates, sources = ["input"] * inputs, [list[int]() for _ in range(inputs)]
    while len(gates) < total:
        gate = GATES[int(rng.integers(1, len(GATES)))]
        arity = 1 if gate == "not" else 2 + int(rng.integers(4) == 0)
        # Later gates are likelier sources, so that circuits become deep; none is read twice.
        chosen = (len(gates) * rng.random(arity) ** 0.25).astype(np.int64)
        gates.append(gate)
        sources.append(list(dict.fromkeys(chosen.tolist())))
    return Netlist(gates, sources)


def probabilities(netlist: Netlist, rng: np.random.Generator, patterns: int) -> np.ndarray:
    """Return the share of random patterns of the inputs for which each gate gives one.

    Gates come after those that they read, as in drawn netlists.
    """
    values = np.empty((len(netlist.gates), patterns), np.bool_)
    for number, (gate, sources) in enumerate(zip(netlist.gates, netlist.sources, strict=True)):
        if gate == "input":
            values[number] = rng.integers(0, 2, patterns)
        else:
            found = FUNCTIONS[INVERTED.get(gate, gate)].reduce(values[sources], axis=0)
            values[number] = ~found if gate in INVERTED else found
    return values.mean(axis=1)


def parse_bench(text: str) -> Netlist:
    """Return the netlist of a text in the BENCH format, its gates in the order of their lines.

    A line is ``INPUT(a)``, ``OUTPUT(c)`` or ``c = NAND(a, b)``, in any order; # begins a comment.
    """
    lines: dict[str, tuple[int, str, list[str]]] = {}
    read: list[tuple[int, str]] = []
    for number, whole in enumerate(text.split("\n"), 1):
        if not (line := whole.partition("#")[0].strip()):
            continue
        if (found := _LINE.fullmatch(line)) is None:
            raise _error(number, f"{line!r:.40} is no line of BENCH", "write c = NAND(a, b)")
        name, gate, given, port, of_port = found.groups()
        sources = [source.strip() for source in (given or "").split(",") if source.strip()]
        if port is None:
            gate = gate.lower()
            if gate not in GATES[1:]:
                known = ", ".join(GATES[1:])
                raise _error(number, f"no gate is called {gate!r}", f"there are {known}")
            if len(sources) != 1 if gate == "not" else not sources:
                hint = f"write {name} = {gate.upper()}({'a' if gate == 'not' else 'c, d'})"
                raise _error(number, f"{gate} has {len(sources)} inputs", hint)
        elif port.upper() == "OUTPUT":
            read.append((number, of_port.strip()))
            continue
        else:
            name, gate = of_port.strip(), "input"
        if name in lines:
            raise _error(number, f"{name} is defined again", f"see line {lines[name][0]}")
        lines[name] = number, gate, sources
        read += [(number, source) for source in sources]
    for number, name in read:
        if name not in lines:
            raise _error(number, f"{name} is not defined", f"add INPUT({name})")
    if not lines:
        raise _error(1, "there is no gate", "write INPUT(a) and c = NOT(a)")
    try:
        TopologicalSorter({name: of[2] for name, of in lines.items()}).prepare()
    except CycleError as error:
        cycle = error.args[1]
        told = f"{' -> '.join(cycle)} is a cycle"
        raise _error(lines[cycle[0]][0], told, "cut it at a register") from None
    numbers = {name: i for i, name in enumerate(lines)}
    sources_of = [[numbers[source] for source in sources] for _, _, sources in lines.values()]
    return Netlist([gate for _, gate, _ in lines.values()], sources_of)


def _error(number: int, found: str, hint: str) -> DataError:
    return DataError(f"<text>:{number}: {found}", hint=hint)
