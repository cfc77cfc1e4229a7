"""The translator of `benchmarks.translator` in PyTorch, batched by hand: padded, with masks."""

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

    source: torch.Tensor  # [longest, sentences]
    lengths: torch.Tensor  # [sentences], words of each source
    absent: torch.Tensor  # [sentences, longest], True beyond the end of a source
    before: torch.Tensor  # [longest, sentences], 0 before the first word of a target
    first: torch.Tensor  # [longest, sentences, 1], 0 at the first word of a target, else 1
    there: torch.Tensor  # [longest, sentences], True within a target
    words: torch.Tensor  # [words of all targets], a word for each True of `there`


def plan(pairs: Sequence[Any]) -> Plan:
    """Return a batch of pairs of sentences."""
    lengths = torch.tensor([len(pair.source) for pair in pairs])
    targets = torch.tensor([len(pair.target) for pair in pairs])
    before = pad_sequence([torch.from_numpy(pair.before).long() for pair in pairs])
    target = pad_sequence([torch.from_numpy(pair.target).long() for pair in pairs])
    there = torch.arange(int(targets.max()))[:, None] < targets[None]
    return Plan(
        pad_sequence([torch.from_numpy(pair.source).long() for pair in pairs]),
        lengths,
        torch.arange(int(lengths.max()))[None] >= lengths[:, None],
        before.clamp_min(0),
        (before >= 0).unsqueeze(-1).float(),
        there,
        target[there],
    )


class Padded(torch.nn.Module):
    """The translator with the parameters of the one of cavs; only touched rows of tables change.

    values: parameters by name.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__()
        of = {name: torch.from_numpy(value.copy()) for name, value in values.items()}
        rows = {"freeze": False, "sparse": True}
        self.word = torch.nn.Embedding.from_pretrained(of["word.weight"], **rows)
        self.after = torch.nn.Embedding.from_pretrained(of["after.weight"], **rows)
        width, gates = of["encode.W"].shape
        self.encode = torch.nn.LSTM(width, gates // 4)
        with torch.no_grad():
            for key, target in (("W", "weight_ih"), ("U", "weight_hh"), ("b", "bias_ih")):
                i, f, o, u = of[f"encode.{key}"].movedim(-1, 0).chunk(4)
                # PyTorch has the order i, f, u, o.
                getattr(self.encode, f"{target}_l0").copy_(torch.cat([i, f, u, o]))
            self.encode.bias_hh_l0.zero_().requires_grad_(False)
        for name in ("W", "b"):
            self.register_parameter(name, torch.nn.Parameter(of[f"decode.{name}"]))
        both = np.concatenate([values["decode.R"], values["decode.U"]])
        self.RU = torch.nn.Parameter(torch.from_numpy(both))
        self.output = torch.nn.Linear(*of["output.weight"].shape)
        with torch.no_grad():
            self.output.weight.copy_(of["output.weight"].T)
            self.output.bias.copy_(of["output.bias"])

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
    model: Any, batches: Sequence[Sequence[Any]], threads: int, lr: float
) -> tuple[Callable[[Plan], float], list[Plan]]:
    """Return a function that takes a step on a batch and returns its loss, and the batches."""
    torch.set_num_threads(threads)
    padded = Padded({name: p.value for name, p in model.parameters().items()})
    optimizer = torch.optim.SGD([p for p in padded.parameters() if p.requires_grad], lr=lr)

    def step(batch: Plan) -> float:
        optimizer.zero_grad()
        loss = padded(batch)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [plan(pairs) for pairs in batches]
