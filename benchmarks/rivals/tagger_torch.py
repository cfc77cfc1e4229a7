"""The tagger of `benchmarks.tagger` in PyTorch, batched by hand: packed words, packed sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence


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


def plan(sentences: Sequence[Any]) -> Plan:
    """Return a batch of sentences."""
    spelt = [torch.from_numpy(c).long() for s in sentences for c in s.chars]
    lengths = torch.tensor([len(s.words) for s in sentences])
    return Plan(
        pad_sequence(spelt),
        torch.tensor([len(c) for c in spelt]),
        torch.from_numpy(np.concatenate([s.words for s in sentences])).long(),
        torch.from_numpy(np.concatenate([s.tags for s in sentences])).long(),
        lengths.tolist(),
        lengths,
        torch.arange(int(lengths.max()))[None] < lengths[:, None],
    )


class Packed(torch.nn.Module):
    """The tagger with the parameters of the one of cavs; only touched rows of tables are updated.

    values: parameters by name.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__()
        of = {name: torch.from_numpy(value.copy()) for name, value in values.items()}
        rows = {"freeze": False, "sparse": True}
        self.word = torch.nn.Embedding.from_pretrained(of["word.weight"], **rows)
        self.char = torch.nn.Embedding.from_pretrained(of["char.weight"], **rows)
        self.spell = _lstm(of, "forth", "back")
        self.tag = _lstm(of, "tag.forth", "tag.back")
        self.output = torch.nn.Linear(*of["output.weight"].shape)
        with torch.no_grad():
            self.output.weight.copy_(of["output.weight"].T)
            self.output.bias.copy_(of["output.bias"])

    def forward(self, batch: Plan) -> torch.Tensor:
        """Return the mean cross entropy of the tags."""
        chars = pack_padded_sequence(self.char(batch.chars), batch.spelt, enforce_sorted=False)
        ends = self.spell(chars)[1][0]  # [directions, words, hidden]
        x = torch.cat([self.word(batch.words), ends[0], ends[1]], 1)
        rows = pad_sequence(list(x.split(batch.lengths)))
        packed = pack_padded_sequence(rows, batch.sizes, enforce_sorted=False)
        states = pad_packed_sequence(self.tag(packed)[0], batch_first=True)[0][batch.mask]
        return F.cross_entropy(self.output(states), batch.tags, ignore_index=-1)


def _lstm(of: Mapping[str, torch.Tensor], *cells: str) -> torch.nn.LSTM:
    """Return an LSTM of two directions with the parameters of two cells of cavs."""
    width, gates = of[f"{cells[0]}.W"].shape
    lstm = torch.nn.LSTM(width, gates // 4, bidirectional=True)
    with torch.no_grad():
        for name, end in zip(cells, ("", "_reverse"), strict=True):
            for key, target in (("W", "weight_ih"), ("U", "weight_hh"), ("b", "bias_ih")):
                i, f, o, u = (
                    of[f"{name}.{key}"].movedim(-1, 0).chunk(4)
                )  # PyTorch has the order i, f, u, o
                getattr(lstm, f"{target}_l0{end}").copy_(torch.cat([i, f, u, o]))
            getattr(lstm, f"bias_hh_l0{end}").zero_().requires_grad_(False)
    return lstm


def training(
    model: Any, batches: Sequence[Sequence[Any]], threads: int, lr: float
) -> tuple[Callable[[Plan], float], list[Plan]]:
    """Return a function that takes a step on a batch and returns its loss, and the batches."""
    torch.set_num_threads(threads)
    packed = Packed({name: p.value for name, p in model.parameters().items()})
    optimizer = torch.optim.SGD([p for p in packed.parameters() if p.requires_grad], lr=lr)

    def step(batch: Plan) -> float:
        optimizer.zero_grad()
        loss = packed(batch)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [plan(sentences) for sentences in batches]
