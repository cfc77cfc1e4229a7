"""The lattice LSTM of `benchmarks.lattice_lstm` in PyTorch, batched by hand for each character.

It has a process of its own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F


class Lattice(NamedTuple):
    """Characters, their tags, and words, as `benchmarks.lattice_lstm.Lattice` has them."""

    chars: list[int]
    tags: list[int]
    words: list[tuple[int, int, int]]


@dataclass(frozen=True)
class Step:
    """The k-th characters of the lattices of a batch, and the words that begin after them.

    State 0 is zeros, and state 1 + c is that after character c. chars: the characters, from begin
    to end. before: the first of the states before them. words: begin and end of the words, in their
    order. begins, ends: the states that they are read from and added to.
    """

    chars: tuple[int, int]
    before: int
    words: tuple[int, int]
    begins: torch.Tensor
    ends: torch.Tensor


@dataclass(frozen=True)
class Plan:
    """A batch, prepared before it is run: lattices by length, characters and words by step."""

    chars: torch.Tensor
    tags: torch.Tensor
    words: torch.Tensor
    steps: list[Step]


def plan(lattices: Sequence[Lattice]) -> Plan:
    """Return a batch of lattices."""
    ordered = sorted(lattices, key=lambda lattice: -len(lattice.chars))
    lengths = np.array([len(lattice.chars) for lattice in ordered])
    counts = [int((lengths > k).sum()) for k in range(lengths[0])]
    first = np.concatenate([[0], np.cumsum(counts)]).tolist()

    def state(lattice: int, k: int) -> int:
        return 1 + int(first[k]) + lattice if k >= 0 else 0

    by_step: dict[int, list[tuple[int, int, int]]] = {}
    for i, lattice in enumerate(ordered):
        for before, last, number in lattice.words:
            by_step.setdefault(before, []).append((state(i, before), state(i, last), number))
    numbers, steps = list[int](), list[Step]()
    # Words that begin with the sentence, then those after each character.
    for k in range(-1, len(counts)):
        words = by_step.get(k, [])
        begins, ends = (torch.tensor([w[j] for w in words], dtype=torch.long) for j in (0, 1))
        span = len(numbers), len(numbers) + len(words)
        numbers += [number for _, _, number in words]
        chars = (first[k], first[k + 1]) if k >= 0 else (0, 0)
        steps.append(Step(chars, 1 + first[k - 1] if k > 0 else 0, span, begins, ends))
    chars = [lattice.chars[k] for k in range(len(counts)) for lattice in ordered[: counts[k]]]
    tags = [lattice.tags[k] for k in range(len(counts)) for lattice in ordered[: counts[k]]]
    arrays = (torch.tensor(np.array(x), dtype=torch.long) for x in (chars, tags, numbers))
    return Plan(*arrays, steps)


class Grouped:
    """The loss, with the parameters of the model of cavs by name."""

    def __init__(self, of: Mapping[str, torch.Tensor]) -> None:
        self.of = of

    def gates(self, name: str, numbers: torch.Tensor) -> torch.Tensor:
        """Return the gates of characters or words from their embeddings alone, in one product."""
        of = self.of
        rows = F.embedding(numbers, of[f"{name}.weight"])
        return torch.addmm(of[f"cell.{name}.b"], rows, of[f"cell.{name}.W"])

    def loss(self, batch: Plan) -> float:
        """Return the mean cross entropy of the tags."""
        of = self.of
        chars, words = self.gates("char", batch.chars), self.gates("word", batch.words)
        size = of["cell.char.U"].shape[0]
        states = torch.zeros(1 + len(batch.chars), 2 * size)  # c and h
        zeros = torch.zeros(int(batch.steps[1].chars[1]), 2 * size)

        def lstm(name: str, x: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
            c, h = before.split(size, 1)
            i, f, o, u = torch.addmm(x, h, of[f"cell.{name}.U"]).chunk(4, 1)
            c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f) * c
            return torch.cat([c, torch.sigmoid(o) * torch.tanh(c)], 1)

        for step in batch.steps:
            begin, end = step.chars
            if end > begin:
                count = end - begin
                before = states[step.before : step.before + count] if step.before else zeros
                states[1 + begin : 1 + end] += lstm("char", chars[begin:end], before)
            begin, end = step.words
            if end > begin:
                found = lstm("word", words[begin:end], states[step.begins])
                states.index_add_(0, step.ends, found)
        logits = torch.addmm(of["output.bias"], states[1:, size:], of["output.weight"])
        return float(F.cross_entropy(logits, batch.tags))


def main() -> None:
    """Compute the losses of all batches for each line of standard input.

    The first argument names a folder that holds ``parameters.npz`` and ``batches.json``, with
    ``threads`` and lists of lattices as (characters, tags, words). Prints the seconds and the last
    loss.
    """
    folder = Path(sys.argv[1])
    given = json.loads((folder / "batches.json").read_text())
    torch.set_num_threads(given["threads"])
    values = np.load(folder / "parameters.npz")
    network = Grouped({name: torch.from_numpy(values[name]) for name in values})
    plans = [plan([Lattice(*lattice) for lattice in batch]) for batch in given["batches"]]
    for _ in sys.stdin:
        begin = time.perf_counter()
        with torch.inference_mode():
            losses = [network.loss(each) for each in plans]
        print(f"DONE {time.perf_counter() - begin} {losses[-1]}", flush=True)
