"""The lattice LSTM of `models.lattice_lstm` in DyNet, in a process of its own.

Its batches are lists of lattices as (characters, tags, words). The output layer and the loss run
once over the characters of a batch.
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


class Tagger:
    """The model, and its loss of a batch."""

    def __init__(self, values: Values, lr: float) -> None:
        model = self.collection = dy.ParameterCollection()
        self.size = len(values["cell.char.U"])
        self.tables, self.cells = {}, {}
        for name in ("char", "word"):
            self.tables[name] = model.lookup_parameters_from_numpy(values[f"{name}.weight"])
            w, u, b = (values[f"cell.{name}.{key}"] for key in "WUb")
            # DyNet adds 1 to the gate f, the second one.
            b = b - np.repeat(np.array([0, 1, 0, 0], np.float32), self.size)
            arrays = [np.ascontiguousarray(x.T) for x in (w, u, b)]
            self.cells[name] = [model.parameters_from_numpy(x) for x in arrays]
        weight = np.ascontiguousarray(values["output.weight"].T)
        self.weight = model.parameters_from_numpy(weight)
        self.bias = model.parameters_from_numpy(values["output.bias"])
        self.trainer = dy.SimpleSGDTrainer(model, learning_rate=lr)
        self.trainer.set_clip_threshold(-1)  # the others clip no gradients

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
        dy.renew_cg()
        zero = dy.zeros(self.size)
        rows = [h for chars, _, words in batch for h in self.states(chars, words, zero)]
        tags = [tag for _, of_lattice, _ in batch for tag in of_lattice]
        logits = dy.affine_transform([self.bias, self.weight, dy.concatenate_to_batch(rows)])
        return dy.sum_batches(dy.pickneglogsoftmax_batch(logits, tags)) * (1 / len(tags))

    def train(self, batch: list[Any]) -> float:
        """Take a step on a batch; return its loss."""
        loss = self.loss(batch)
        value = float(loss.value())
        loss.backward()
        self.trainer.update()
        return value


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return a pass over all batches."""
    tagger, batches = Tagger(values, given["lr"]), given["batches"]
    if given["training"]:
        return lambda: [tagger.train(batch) for batch in batches][-1]
    return lambda: [float(tagger.loss(batch).value()) for batch in batches][-1]


def main() -> None:
    serve(prepare)
