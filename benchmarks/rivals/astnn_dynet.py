"""Statement trees under a chain in DyNet, which batches equal operations itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.rivals.dynet_pass import DyNetPass, dy, mean_cross_entropy, parameters
from benchmarks.rivals.program import Given, Values, serve


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return the pass over all batches."""
    tables = "type.weight", "name.weight"
    collection, p = parameters(values, tables)
    kind, word = (p[name] for name in tables)
    hidden = len(values["chain.forth.U_n"])

    def pooled(function: Any) -> list[Any]:
        """Return the maximum over each tree."""
        h, members = list[Any](), list[list[Any]]()
        layer = p["tree.linear.bias"], p["tree.linear.weight"]
        rows = zip(function["children"], function["type"], function["name"], strict=True)
        for below, number, name in rows:
            x = kind[number] + word[name] if name >= 0 else kind[number]
            own = dy.affine_transform([*layer, x])
            h.append(dy.tanh(dy.esum([own, *(h[c] for c in below)])))
            members.append([h[-1], *(state for c in below for state in members[c])])
        return [dy.emax(members[root]) for root in function["roots"]]

    def chain(way: str, rows: list[Any]) -> list[Any]:
        w, u, n, b = (p[f"chain.{way}.{key}"] for key in ("W", "U", "U_n", "b"))
        h, found = dy.zeros(hidden), []
        for x in rows:
            own, before = dy.affine_transform([b, w, x]), u * h
            gates = dy.logistic(dy.pick_range(own, 0, 2 * hidden) + before)
            r, z = dy.pick_range(gates, 0, hidden), dy.pick_range(gates, hidden, 2 * hidden)
            new = dy.pick_range(own, 2 * hidden, 3 * hidden)
            new = dy.tanh(dy.affine_transform([new, n, dy.cmult(r, h)]))
            h = new + dy.cmult(z, h - new)
            found.append(h)
        return found

    def loss(functions: list[Any]) -> Any:
        found = []
        for function in functions:
            rows = pooled(function)
            ways = chain("forth", rows), chain("back", rows[::-1])
            found.append(dy.concatenate([dy.emax(states) for states in ways]))
        rows = dy.concatenate_to_batch(found)
        logits = dy.affine_transform([p["output.bias"], p["output.weight"], rows])
        return mean_cross_entropy(logits, [function["label"] for function in functions])

    return DyNetPass(collection, loss, given)


def main() -> None:
    serve(prepare)
