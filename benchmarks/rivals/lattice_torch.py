"""The lattice LSTM of `benchmarks.lattice_lstm` in PyTorch, batched by hand for each character."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.rivals.hand_batched import tensors


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


def plan(lattices: Sequence[Any]) -> Plan:
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
    """The loss, with the parameters of the model of cavs."""

    def __init__(self, model: Any) -> None:
        self.of = tensors(model)

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


def inference(
    model: Any, batches: Sequence[Sequence[Any]], threads: int
) -> tuple[Callable[[Plan], float], list[Plan]]:
    """Return a function that returns the loss of a batch, and the batches."""
    torch.set_num_threads(threads)
    network = Grouped(model)

    def loss(batch: Plan) -> float:
        with torch.inference_mode():
            return network.loss(batch)

    return loss, [plan(lattices) for lattices in batches]
