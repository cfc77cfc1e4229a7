"""The network over circuits in DyNet, which batches equal operations itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.rivals.dynet_pass import DyNetPass, dy, parameters
from benchmarks.rivals.program import Given, Values, serve


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return the pass over all batches."""
    collection, p = parameters(values)
    size = len(values["hidden.bias"])
    embedding = collection.lookup_parameters_from_numpy(values["embedding.weight"])
    affine, part = dy.affine_transform, dy.pick_range

    def layer(name: str, x: Any) -> Any:
        return affine([p[f"{name}.bias"], p[f"{name}.weight"], x])

    def run(name: str, gates: list[int], gathers: list[list[int]], order: Any, x: Any) -> Any:
        zero, found = dy.zeros(size), list[Any]([None]) * len(gates)
        for i in order:
            below, gate = [found[s] for s in gathers[i]], gates[i]
            total = (dy.esum(below) if len(below) > 1 else below[0]) if below else zero
            rz = dy.logistic(layer(f"{name}.gate.{gate}", dy.concatenate([total, x[i]])))
            r, z = part(rz, 0, size), part(rz, size, 2 * size)
            both = dy.concatenate([total, dy.cmult(r, x[i])])
            new = dy.tanh(layer(f"{name}.candidate.{gate}", both))
            found[i] = new + dy.cmult(z, x[i] - new)
        return found

    def states(netlist: Any) -> list[Any]:
        gates, sources = netlist["gates"], netlist["sources"]
        readers: list[list[int]] = [[] for _ in gates]
        for gate, below in enumerate(sources):
            for source in below:
                readers[source].append(gate)
        order = range(len(gates))
        x = run("forth", gates, sources, order, [embedding[gate] for gate in gates])
        for _ in range(given["batches"]["rounds"] - 1):
            x = run("back", gates, readers, order[::-1], x)
            x = run("forth", gates, sources, order, x)
        return x

    def loss(netlists: list[Any]) -> Any:
        rows = dy.concatenate_to_batch([h for netlist in netlists for h in states(netlist)])
        found = dy.logistic(layer("output", dy.rectify(layer("hidden", rows))))
        labels = [p for netlist in netlists for p in netlist["label"]]
        errors = dy.abs(found - dy.reshape(dy.inputVector(labels), (1,), len(labels)))
        return dy.sum_batches(errors) * (1 / len(labels))

    return DyNetPass(collection, loss, {**given, "batches": given["batches"]["netlists"]})


def main() -> None:
    serve(prepare)
