"""The lattice LSTM of `models.lattice_lstm` in PyTorch, batched by hand for each character.

It has a process of its own. Without gradients it writes states in place; a training adds words to
the states where they end, since autograd needs the states before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.rivals.hand_batched import Tensors, of_values
from benchmarks.rivals.program import Given, Values, serve
from benchmarks.rivals.torch_pass import torch_pass


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
    order, by their ends. begins, ends: the states that they are read from and added to. counts: the
    steps at which words end, and how many.
    """

    chars: tuple[int, int]
    before: int
    words: tuple[int, int]
    begins: torch.Tensor
    ends: torch.Tensor
    counts: dict[int, int]


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
    sizes = [int((lengths > k).sum()) for k in range(lengths[0])]
    first = np.concatenate([[0], np.cumsum(sizes)]).tolist()

    def state(lattice: int, k: int) -> int:
        return 1 + int(first[k]) + lattice if k >= 0 else 0

    by_step: dict[int, list[tuple[int, int, int, int]]] = {}
    for i, lattice in enumerate(ordered):
        for before, last, number in lattice.words:
            word = last, state(i, before), state(i, last), number
            by_step.setdefault(before, []).append(word)
    numbers, steps = list[int](), list[Step]()
    # Words that begin with the sentence, then those after each character.
    for k in range(-1, len(sizes)):
        words = sorted(by_step.get(k, []))
        begins, ends = (torch.tensor([w[j] for w in words], dtype=torch.long) for j in (1, 2))
        span = len(numbers), len(numbers) + len(words)
        numbers += [number for _, _, _, number in words]
        chars = (first[k], first[k + 1]) if k >= 0 else (0, 0)
        counts = Counter(last for last, _, _, _ in words)
        steps.append(Step(chars, 1 + first[k - 1] if k > 0 else 0, span, begins, ends, counts))
    chars = [lattice.chars[k] for k in range(len(sizes)) for lattice in ordered[: sizes[k]]]
    tags = [lattice.tags[k] for k in range(len(sizes)) for lattice in ordered[: sizes[k]]]
    arrays = (torch.tensor(np.array(x), dtype=torch.long) for x in (chars, tags, numbers))
    return Plan(*arrays, steps)


class Grouped(torch.nn.Module):
    """The loss, with the parameters of the model of cavs."""

    def __init__(self, of: Tensors) -> None:
        super().__init__()
        self.of = torch.nn.ParameterDict({name.replace(".", "_"): x for name, x in of.items()})
        self.size = of["cell.char.U"].shape[0]

    def gates(self, name: str, numbers: torch.Tensor) -> torch.Tensor:
        """Return the gates of characters or words from their embeddings alone, in one product."""
        of = self.of
        rows = F.embedding(numbers, of[f"{name}_weight"])
        return torch.addmm(of[f"cell_{name}_b"], rows, of[f"cell_{name}_W"])

    def lstm(self, name: str, x: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """Return c and h of an LSTM."""
        c, h = before.split(self.size, 1)
        i, f, o, u = torch.addmm(x, h, self.of[f"cell_{name}_U"]).chunk(4, 1)
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f) * c
        return torch.cat([c, torch.sigmoid(o) * torch.tanh(c)], 1)

    def forward(self, batch: Plan) -> torch.Tensor:
        """Return the mean cross entropy of the tags."""
        chars, words = self.gates("char", batch.chars), self.gates("word", batch.words)
        of = self.states_of_training if torch.is_grad_enabled() else self.states_in_place
        h = of(batch, chars, words)[:, self.size :]
        logits = torch.addmm(self.of["output_bias"], h, self.of["output_weight"])
        return F.cross_entropy(logits, batch.tags)

    def states_in_place(
        self, batch: Plan, chars: torch.Tensor, words: torch.Tensor
    ) -> torch.Tensor:
        """Return c and h after each character, without gradients."""
        states = torch.zeros(1 + len(batch.chars), 2 * self.size)
        zeros = torch.zeros(int(batch.steps[1].chars[1]), 2 * self.size)
        for step in batch.steps:
            begin, end = step.chars
            if end > begin:
                count = end - begin
                before = states[step.before : step.before + count] if step.before else zeros
                states[1 + begin : 1 + end] += self.lstm("char", chars[begin:end], before)
            begin, end = step.words
            if end > begin:
                found = self.lstm("word", words[begin:end], states[step.begins])
                states.index_add_(0, step.ends, found)
        return states[1:]

    def states_of_training(
        self, batch: Plan, chars: torch.Tensor, words: torch.Tensor
    ) -> torch.Tensor:
        """Return c and h after each character."""
        # Parts of one split: the gradient of a slice would have the rows of all characters.
        of_chars = chars.split([step.chars[1] - step.chars[0] for step in batch.steps])
        of_words = words.split([step.words[1] - step.words[0] for step in batch.steps])
        now = torch.zeros(int(batch.steps[1].chars[1]), 2 * self.size)
        ending: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        found = []
        for k, step in enumerate(batch.steps, -1):
            begin, end = step.chars
            if end > begin:
                now = self.lstm("char", of_chars[k + 1], now[: end - begin])
                if k in ending:
                    ends, rows = zip(*ending.pop(k), strict=True)
                    now = now.index_add(0, torch.cat(ends) - (1 + begin), torch.cat(rows))
                found.append(now)
            if step.counts:
                before = now[step.begins - (1 + begin)] if k >= 0 else now[: len(step.begins)]
                rows = self.lstm("word", of_words[k + 1], before)
                sizes = list(step.counts.values())
                parts = zip(step.counts, step.ends.split(sizes), rows.split(sizes), strict=True)
                for last, ends, part in parts:
                    ending.setdefault(last, []).append((ends, part))
        return torch.cat(found)


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return a pass over all batches."""
    plans = [plan([Lattice(*lattice) for lattice in batch]) for batch in given["batches"]]
    return torch_pass(Grouped(of_values(values)), plans, given)


def main() -> None:
    serve(prepare)
