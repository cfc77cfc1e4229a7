"""The translator of `models.translator` in PyTorch, batched by hand: padded, with masks."""

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

Pair = tuple[list[int], list[int]]  # words of a source and of a target


@dataclass(frozen=True)
class Plan:
    """A batch, prepared before the steps."""

    source: torch.Tensor  # [longest, sentences]
    lengths: torch.Tensor  # [sentences], words of each source
    absent: torch.Tensor  # [sentences, longest], True beyond the end of a source
    before: torch.Tensor  # [longest, sentences], 0 before the first word of a target
    first: torch.Tensor  # [longest, sentences, 1], 0 at the first word of a target, else 1
    there: torch.Tensor  # [longest, sentences], True within a target
    words: torch.Tensor  # [words of all targets], a word for each True of `there`


def plan(pairs: Sequence[Pair]) -> Plan:
    """Return a batch of pairs of sentences."""
    sources = [torch.tensor(source) for source, _ in pairs]
    targets = [torch.tensor(target) for _, target in pairs]
    lengths = torch.tensor([len(source) for source in sources])
    before = pad_sequence([F.pad(target[:-1], (1, 0), value=-1) for target in targets])
    of_targets = torch.tensor([len(target) for target in targets])
    there = torch.arange(len(before))[:, None] < of_targets[None]
    return Plan(
        pad_sequence(sources),
        lengths,
        torch.arange(int(lengths.max()))[None] >= lengths[:, None],
        before.clamp_min(0),
        (before >= 0).unsqueeze(-1).float(),
        there,
        pad_sequence(targets)[there],
    )


class Padded(torch.nn.Module):
    """The translator with the parameters of the one of cavs, by name."""

    def __init__(self, of: Tensors) -> None:
        super().__init__()
        self.word, self.after = table(of, "word"), table(of, "after")
        self.encode = lstm(of, "encode")
        self.W, self.b = (torch.nn.Parameter(of[f"decode.{name}"]) for name in ("W", "b"))
        self.RU = torch.nn.Parameter(torch.cat([of["decode.R"], of["decode.U"]]))
        self.output = linear(of, "output")

    def forward(self, batch: Plan) -> torch.Tensor:
        """Return the mean cross entropy of the words of the targets."""
        packed = pack_padded_sequence(self.word(batch.source), batch.lengths, enforce_sorted=False)
        states, (h, c) = self.encode(packed)
        read = pad_packed_sequence(states, batch_first=True)[0]  # [sentences, longest, hidden]
        h, c = h[0], c[0]
        inputs = (self.after(batch.before) * batch.first) @ self.W + self.b
        rows = []
        for x in inputs:
            score = torch.bmm(read, h.unsqueeze(2)).squeeze(2)
            weight = score.masked_fill(batch.absent, float("-inf")).softmax(1)
            found = torch.bmm(weight.unsqueeze(1), read).squeeze(1)
            i, f, o, u = torch.addmm(x, torch.cat([found, h], 1), self.RU).chunk(4, 1)
            c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f) * c
            h = torch.sigmoid(o) * torch.tanh(c)
            rows.append(torch.cat([h, found], 1))
        return F.cross_entropy(self.output(torch.stack(rows)[batch.there]), batch.words)


def training(
    model: Any, batches: Sequence[Sequence[Pair]], threads: int, lr: float
) -> tuple[Callable[[Plan], float], list[Plan]]:
    """Return a function that takes a step on a batch and returns its loss, and the batches."""
    torch.set_num_threads(threads)
    return sgd(Padded(tensors(model)), lr), [plan(pairs) for pairs in batches]


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return a pass over all batches."""
    plans = [plan(pairs) for pairs in given["batches"]]
    return torch_pass(Padded(of_values(values)), plans, given)


def main() -> None:
    serve(prepare)
