"""The LSTM on grids in DyNet, which batches equal operations itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.rivals.dynet_pass import DyNetPass, dy, mean_cross_entropy, parameters
from benchmarks.rivals.program import Given, Values, serve

Images = list[tuple[list[list[float]], int]]


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return the pass over all batches."""
    collection, p = parameters(values)
    W, U, b = (p[f"grid.{name}"] for name in "WUb")
    n = values["grid.U"].shape[0] // 2
    affine, logistic, times, add = dy.affine_transform, dy.logistic, dy.cmult, dy.esum

    def last_state(image: list[list[float]]) -> Any:
        zero = dy.zeros(n)
        none = (zero, zero)
        above = [none] * len(image[0])
        for row in image:
            left = none
            for column, pixel in enumerate(row):
                (h_left, c_left), (h_above, c_above) = left, above[column]
                states = dy.concatenate([h_left, h_above])
                gates = affine([b, W, dy.scalarInput(pixel), U, states])
                rest = logistic(dy.pick_range(gates, 0, 2 * n))
                forget = logistic(dy.pick_range(gates, 3 * n, 5 * n))
                i, o = dy.pick_range(rest, 0, n), dy.pick_range(rest, n, 2 * n)
                u = dy.tanh(dy.pick_range(gates, 2 * n, 3 * n))
                kept = dy.pick_range(forget, 0, n), dy.pick_range(forget, n, 2 * n)
                c = add([times(i, u), times(kept[0], c_left), times(kept[1], c_above)])
                left = above[column] = times(o, dy.tanh(c)), c
        return left[0]

    def loss(images: Images) -> Any:
        ends = dy.concatenate_to_batch([last_state(image) for image, _ in images])
        logits = affine([p["output.bias"], p["output.weight"], ends])
        return mean_cross_entropy(logits, [label for _, label in images])

    return DyNetPass(collection, loss, given)


def main() -> None:
    serve(prepare)
