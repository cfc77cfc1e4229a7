"""The tagger of `models.char_tagger` in PyTorch, batched by hand: packed words and sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from benchmarks.rivals.hand_batched import (
    Tensors,
    linear,
    lstm,
    of_values,
    sgd,
    table,
    tensors,
)
from benchmarks.rivals.program import Given, Values, serve
from benchmarks.rivals.torch_pass import torch_pass

Sentence = tuple[list[int], list[int], list[list[int]]]  # words, tags, characters of each word


@dataclass(frozen=True)
class Plan:
    """A batch, prepared before the steps."""

    chars: torch.Tensor  # [longest word, words]
    spelt: torch.Tensor  # length of each word
    words: torch.Tensor  # words of all sentences, in order
    tags: torch.Tensor
    lengths: list[int]  # numbers of words
    sizes: torch.Tensor  # the same as a tensor
    mask: torch.Tensor  # [sentences, longest]


def plan(sentences: Sequence[Sentence]) -> Plan:
    """Return a batch of sentences."""
    spelt = [torch.tensor(c) for _, _, chars in sentences for c in chars]
    lengths = torch.tensor([len(words) for words, _, _ in sentences])
    return Plan(
        pad_sequence(spelt),
        torch.tensor([len(c) for c in spelt]),
        torch.tensor([number for words, _, _ in sentences for number in words]),
        torch.tensor([tag for _, tags, _ in sentences for tag in tags]),
        lengths.tolist(),
        lengths,
        torch.arange(int(lengths.max()))[None] < lengths[:, None],
    )


class Packed(torch.nn.Module):
    """The tagger with the parameters of the one of cavs, by name."""

    def __init__(self, of: Tensors) -> None:
        super().__init__()
        self.word, self.char = table(of, "word"), table(of, "char")
        self.spell = lstm(of, "forth", "back")
        self.tag = lstm(of, "tag.forth", "tag.back")
        self.output = linear(of, "output")

    def forward(self, batch: Plan) -> torch.Tensor:
        """Return the mean cross entropy of the tags."""
        chars = pack_padded_sequence(self.char(batch.chars), batch.spelt, enforce_sorted=False)
        ends = self.spell(chars)[1][0]  # [directions, words, hidden]
        x = torch.cat([self.word(batch.words), ends[0], ends[1]], 1)
        rows = pad_sequence(list(x.split(batch.lengths)))
        packed = pack_padded_sequence(rows, batch.sizes, enforce_sorted=False)
        states = pad_packed_sequence(self.tag(packed)[0], batch_first=True)[0][batch.mask]
        return F.cross_entropy(self.output(states), batch.tags, ignore_index=-1)


def training(
    model: Any, batches: Sequence[Sequence[Sentence]], threads: int, lr: float
) -> tuple[Callable[[Plan], float], list[Plan]]:
    """Return a function that takes a step on a batch and returns its loss, and the batches."""
    torch.set_num_threads(threads)
    return sgd(Packed(tensors(model)), lr), [plan(sentences) for sentences in batches]


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return a pass over all batches."""
    plans = [plan(sentences) for sentences in given["batches"]]
    return torch_pass(Packed(of_values(values)), plans, given)


def main() -> None:
    serve(prepare)
