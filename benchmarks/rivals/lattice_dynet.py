"""The lattice LSTM of `models.lattice_lstm` in DyNet, in a process of its own.

Its batches are lists of lattices as (characters, tags, words). The output layer and the loss run
once over the characters of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.rivals.dynet_pass import DyNetPass, dy, lstm_arrays, mean_cross_entropy
from benchmarks.rivals.program import Given, Values, serve


class Tagger:
    """The model, and its loss of a batch."""

    def __init__(self, values: Values) -> None:
        model = self.collection = dy.ParameterCollection()
        self.size = len(values["cell.char.U"])
        self.tables, self.cells = {}, {}
        for name in ("char", "word"):
            self.tables[name] = model.lookup_parameters_from_numpy(values[f"{name}.weight"])
            found = lstm_arrays(values, f"cell.{name}").values()
            arrays = [np.ascontiguousarray(x.T) for x in found]
            self.cells[name] = [model.parameters_from_numpy(x) for x in arrays]
        weight = np.ascontiguousarray(values["output.weight"].T)
        self.weight = model.parameters_from_numpy(weight)
        self.bias = model.parameters_from_numpy(values["output.bias"])

    def step(self, name: str, number: int, before: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return h and c of an LSTM."""
        h, c = before
        gates = dy.vanilla_lstm_gates(self.tables[name][number], h, *self.cells[name])
        c = dy.vanilla_lstm_c(c, gates)
        return dy.vanilla_lstm_h(c, gates), c

    def states(self, chars: list[int], words: list[list[int]], zero: Any) -> list[Any]:
        """Return h after each character."""
        ending: dict[int, list[tuple[int, int]]] = {}
        for before, last, number in words:
            ending.setdefault(last, []).append((before, number))
        found = [(zero, zero)]
        for k, char in enumerate(chars):
            all_states = [self.step("char", char, found[k])]
            all_states += [self.step("word", n, found[b + 1]) for b, n in ending.get(k, ())]
            h, c = (list(x) for x in zip(*all_states, strict=True))
            found.append((dy.esum(h), dy.esum(c)) if len(h) > 1 else (h[0], c[0]))
        return [h for h, _ in found[1:]]

    def loss(self, batch: list[Any]) -> Any:
        """Return the mean cross entropy of the tags."""
        zero = dy.zeros(self.size)
        rows = [h for chars, _, words in batch for h in self.states(chars, words, zero)]
        tags = [tag for _, of_lattice, _ in batch for tag in of_lattice]
        logits = dy.affine_transform([self.bias, self.weight, dy.concatenate_to_batch(rows)])
        return mean_cross_entropy(logits, tags)


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return a pass over all batches."""
    tagger = Tagger(values)
    return DyNetPass(tagger.collection, tagger.loss, given)


def main() -> None:
    serve(prepare)
