"""The translator of `models.translator` in DyNet, in a process of its own whose Python has DyNet.

Its batches are lists of pairs (words of a source, words of a target). DyNet batches equal
operations itself; the output layer and the loss run once over the words of all targets of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.rivals.program import Given, Values, serve

try:
    import dynet_config

    dynet_config.set(autobatch=1, random_seed=1)  # has an effect only before dynet is imported
    import dynet as dy
except ImportError as error:
    raise SystemExit(f"{error}: pip install numpy dyNET38 (Python 3.11)") from error


class Translator:
    """The model, and its training on a batch."""

    def __init__(self, values: Values, lr: float) -> None:
        model = self.collection = dy.ParameterCollection()
        self.size = len(values["encode.U"])
        self.word = model.lookup_parameters_from_numpy(values["word.weight"])
        self.after = model.lookup_parameters_from_numpy(values["after.weight"])
        decoder_inputs = np.concatenate([values["decode.W"], values["decode.R"]])
        self.cells = {
            "encode": self.cell(*(values[f"encode.{key}"] for key in "WUb")),
            "decode": self.cell(decoder_inputs, values["decode.U"], values["decode.b"]),
        }
        weight = np.ascontiguousarray(values["output.weight"].T)
        self.weight = model.parameters_from_numpy(weight)
        self.bias = model.parameters_from_numpy(values["output.bias"])
        self.trainer = dy.SimpleSGDTrainer(model, learning_rate=lr)
        self.trainer.set_clip_threshold(-1)  # the others clip no gradients

    def cell(self, w: Any, u: Any, b: Any) -> list[Any]:
        """Return the parameters of a cell; both have gates in the order i, f, o, u."""
        # DyNet adds 1 to the gate f, the second one.
        b = b - np.repeat(np.array([0, 1, 0, 0], np.float32), self.size)
        arrays = [np.ascontiguousarray(x.T) for x in (w, u, b)]
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
        dy.renew_cg()
        zero = dy.zeros(self.size)
        rows = [row for source, target in batch for row in self.states(source, target, zero)]
        words = [word for _, target in batch for word in target]
        logits = dy.affine_transform([self.bias, self.weight, dy.concatenate_to_batch(rows)])
        return dy.sum_batches(dy.pickneglogsoftmax_batch(logits, words)) * (1 / len(words))

    def step(self, batch: list[Any]) -> float:
        """Train on a batch; return its loss."""
        loss = self.loss(batch)
        value = float(loss.value())
        loss.backward()
        self.trainer.update()
        return value


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return a pass over all batches."""
    translator, batches = Translator(values, given["lr"]), given["batches"]
    if given["training"]:
        return lambda: [translator.step(batch) for batch in batches][-1]
    return lambda: [float(translator.loss(batch).value()) for batch in batches][-1]


def main() -> None:
    serve(prepare)
