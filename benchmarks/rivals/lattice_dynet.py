"""The lattice LSTM of `benchmarks.lattice_lstm` in DyNet, in a process of its own.

The first argument names a folder that holds ``batches.json``, with lists of lattices as
(characters, tags, words), and ``parameters.npz``, named as those of cavs. For each line of standard
input it computes the losses of all batches and prints the seconds and the last loss. The output
layer and the loss run once over the characters of a batch.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

try:
    import dynet_config

    dynet_config.set(autobatch=1, random_seed=1)  # has an effect only before dynet is imported
    import dynet as dy
except ImportError as error:
    raise SystemExit(f"{error}: pip install numpy dyNET38 (Python 3.11)") from error


class Tagger:
    """The model, and its loss of a batch."""

    def __init__(self, values: Any) -> None:
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

    def loss(self, batch: list[Any]) -> float:
        """Return the mean cross entropy of the tags."""
        dy.renew_cg()
        zero = dy.zeros(self.size)
        rows = [h for chars, _, words in batch for h in self.states(chars, words, zero)]
        tags = [tag for _, of_lattice, _ in batch for tag in of_lattice]
        logits = dy.affine_transform([self.bias, self.weight, dy.concatenate_to_batch(rows)])
        loss = dy.sum_batches(dy.pickneglogsoftmax_batch(logits, tags)) * (1 / len(tags))
        return float(loss.value())


def main() -> None:
    folder = Path(sys.argv[1])
    batches = json.loads((folder / "batches.json").read_text())["batches"]
    tagger = Tagger(np.load(folder / "parameters.npz"))
    for _ in sys.stdin:
        begin = time.perf_counter()
        losses = [tagger.loss(batch) for batch in batches]
        print(f"DONE {time.perf_counter() - begin} {losses[-1]}", flush=True)
