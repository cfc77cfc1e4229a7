"""The tagger of `models.char_tagger` in DyNet, in a process of its own whose Python has DyNet.

Its batches are lists of sentences as (words, tags, characters of each word). DyNet batches equal
operations itself. The output layer and the loss run once over the words of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.rivals.dynet_pass import DyNetPass, dy, mean_cross_entropy
from benchmarks.rivals.program import Given, Values, serve


def lstm(model: Any, values: Any, name: str) -> Any:
    """Return a builder with the parameters of a cell; both have gates in the order i, f, o, u."""
    w, u, b = (values[f"{name}.{key}"] for key in "WUb")
    builder = dy.VanillaLSTMBuilder(1, len(w), len(u), model, forget_bias=0.0)
    for parameter, value in zip(builder.get_parameters()[0], (w.T, u.T, b), strict=True):
        parameter.set_value(value)
    return builder


class Tagger:
    """The model, and its loss of a batch."""

    def __init__(self, values: Any) -> None:
        model = self.collection = dy.ParameterCollection()
        self.word = model.lookup_parameters_from_numpy(values["word.weight"])
        self.char = model.lookup_parameters_from_numpy(values["char.weight"])
        self.cells = [lstm(model, values, n) for n in ("forth", "back", "tag.forth", "tag.back")]
        self.weight = model.parameters_from_numpy(values["output.weight"].T)
        self.bias = model.parameters_from_numpy(values["output.bias"])

    def states(self, words: list[int], chars: list[list[int]]) -> list[Any]:
        """Return the states of both directions at each word of a sentence."""
        forth, back, first, second = (cell.initial_state() for cell in self.cells)
        inputs = []
        for word, spelt in zip(words, chars, strict=True):
            c = [self.char[i] for i in spelt]
            ends = forth.transduce(c)[-1], back.transduce(c[::-1])[-1]
            inputs.append(dy.concatenate([self.word[word], *ends]))
        up, down = first.transduce(inputs), second.transduce(inputs[::-1])[::-1]
        return [dy.concatenate(list(pair)) for pair in zip(up, down, strict=True)]

    def loss(self, batch: list[Any]) -> Any:
        """Return the mean cross entropy over the words of a batch that have a tag."""
        found, tags = [], []
        for words, of_words, chars in batch:
            states = self.states(words, chars)
            found += [s for s, tag in zip(states, of_words, strict=True) if tag >= 0]
            tags += [tag for tag in of_words if tag >= 0]
        logits = dy.affine_transform([self.bias, self.weight, dy.concatenate_to_batch(found)])
        return mean_cross_entropy(logits, tags)


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return a pass over all batches."""
    tagger = Tagger(values)
    return DyNetPass(tagger.collection, tagger.loss, given)


def main() -> None:
    serve(prepare)
