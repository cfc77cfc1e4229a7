"""The translator of `models.translator` in DyNet, in a process of its own whose Python has DyNet.

Its batches are lists of pairs (words of a source, words of a target). DyNet batches equal
operations itself; the output layer and the loss run once over the words of all targets of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.rivals.dynet_pass import DyNetPass, dy, lstm_arrays, mean_cross_entropy
from benchmarks.rivals.program import Given, Values, serve


class Translator:
    """The model, and its loss of a batch."""

    def __init__(self, values: Values) -> None:
        model = self.collection = dy.ParameterCollection()
        self.size = len(values["encode.U"])
        self.word = model.lookup_parameters_from_numpy(values["word.weight"])
        self.after = model.lookup_parameters_from_numpy(values["after.weight"])
        inputs = np.concatenate([values["decode.W"], values["decode.R"]])
        cells = values | {"decode.W": inputs}
        self.cells = {name: self.cell(cells, name) for name in ("encode", "decode")}
        weight = np.ascontiguousarray(values["output.weight"].T)
        self.weight = model.parameters_from_numpy(weight)
        self.bias = model.parameters_from_numpy(values["output.bias"])

    def cell(self, values: Values, name: str) -> list[Any]:
        """Return the parameters of a cell."""
        arrays = [np.ascontiguousarray(x.T) for x in lstm_arrays(values, name).values()]
        return [self.collection.parameters_from_numpy(x) for x in arrays]

    def step_cell(self, name: str, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
        """Return h and c of an LSTM."""
        gates = dy.vanilla_lstm_gates(x, h, *self.cells[name])
        c = dy.vanilla_lstm_c(c, gates)
        return dy.vanilla_lstm_h(c, gates), c

    def states(self, source: list[int], target: list[int], zero: Any) -> list[Any]:
        """Return the state and the answer of the attention at each word of a target."""
        h = c = zero
        read = []
        for word in source:
            h, c = self.step_cell("encode", self.word[word], h, c)
            read.append(h)
        keys = dy.concatenate_cols(read)
        transposed = dy.transpose(keys)
        found = []
        for before in [-1, *target[:-1]]:
            x = self.after[before] if before >= 0 else zero
            answer = keys * dy.softmax(transposed * h)
            h, c = self.step_cell("decode", dy.concatenate([x, answer]), h, c)
            found.append(dy.concatenate([h, answer]))
        return found

    def loss(self, batch: list[Any]) -> Any:
        """Return the mean cross entropy of the words of the targets."""
        zero = dy.zeros(self.size)
        rows = [row for source, target in batch for row in self.states(source, target, zero)]
        words = [word for _, target in batch for word in target]
        logits = dy.affine_transform([self.bias, self.weight, dy.concatenate_to_batch(rows)])
        return mean_cross_entropy(logits, words)


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return a pass over all batches."""
    translator = Translator(values)
    return DyNetPass(translator.collection, translator.loss, given)


def main() -> None:
    serve(prepare)
