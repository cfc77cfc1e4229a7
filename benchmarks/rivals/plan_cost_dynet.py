"""The network of query plans in DyNet, which batches equal operations itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.rivals.dynet_pass import DyNetPass, dy, parameters
from benchmarks.rivals.program import Given, Values, serve


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return the pass over all batches of recorded plans."""
    collection, p = parameters(values)
    names, summed = given["batches"]["operators"], set(given["batches"]["summed"])
    numbers = {name: i for i, name in enumerate(names)}
    hidden = len(values["units.outer.0.bias"])

    def layer(name: str, x: Any) -> Any:
        return dy.rectify(dy.affine_transform([p[f"{name}.bias"], p[f"{name}.weight"], x]))

    def errors(operators: Any, children: Any, rows: Any, costs: Any, ran: Any) -> list[Any]:
        h, found = list[Any](), list[Any]()
        for name, below, row, cost, known in zip(
            operators, children, rows, costs, ran, strict=True
        ):
            read = [h[c] for c in below]
            if name in summed:
                read = [dy.esum(read) if read else dy.zeros(hidden)]
            x = dy.concatenate([dy.inputVector(row), *read])
            number = numbers[name]
            h.append(layer(f"units.outer.{number}", layer(f"units.inner.{number}", x)))
            if known:
                found.append(dy.square(dy.pick(h[-1], 0) - cost))
        return found

    def loss(plans: list[Any]) -> Any:
        each = [error for plan in plans for error in errors(*plan)]
        return dy.esum(each) * (1 / sum(len(plan[0]) for plan in plans))

    return DyNetPass(collection, loss, {**given, "batches": given["batches"]["plans"]})


def main() -> None:
    serve(prepare)
