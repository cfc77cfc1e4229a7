"""Parts of programs that compare training loops of other frameworks with `cavs.Trainer`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.options import THREADS, OptionParser, at_least
from benchmarks.ratios import quartiles, take_turns, timed

CLASSES = 5
Steps = dict[str, Callable[[], float]]  # a training step by the name of the program


def drawn_trees(count: int, longest: int, width: int, rng: np.random.Generator) -> list[Any]:
    """Return binary trees of 1 to ``longest`` leaves, with a row and a label for each vertex."""
    import cavs

    graphs = []
    for leaves in rng.integers(1, longest + 1, count):
        children: list[list[int]] = [[] for _ in range(leaves)]
        free = list(range(leaves))
        while len(free) > 1:
            at = int(rng.integers(len(free) - 1))
            children.append(free[at : at + 2])
            free[at : at + 2] = [len(children) - 1]
        n = len(children)
        features = {"x": rng.normal(size=(n, width)), "label": rng.integers(0, CLASSES, n)}
        graphs.append(cavs.Graph(children, features))
    return graphs


def classifier(width: int, hidden: int) -> Any:
    """Return a model that classifies the vertices of trees by a binary Tree-LSTM over rows."""
    import cavs
    from cavs import nn, ops

    class Classifier(cavs.Model):
        def __init__(self) -> None:
            self.cell, self.out = nn.BinaryTreeLSTM(width, hidden), nn.Linear(hidden, CLASSES)

        def forward(self, batch: Any) -> Any:
            return self.out(self.cell(batch.graph, x=batch["x"]))

        def loss(self, batch: Any) -> Any:
            return ops.cross_entropy(self.forward(batch), batch["label"])

    return Classifier()


def trainer_step(batch: Any, width: int, hidden: int) -> Callable[[], float]:
    """Return a step of `cavs.Trainer` for the `classifier`, by plain SGD."""
    import cavs

    trainer = cavs.Trainer(classifier(width, hidden), cavs.optim.SGD(lr=0.01))
    return lambda: float(trainer.step(batch))


def options_of(name: str, about: str | None) -> OptionParser:
    """Return a parser of the options of a program."""
    parser = OptionParser(f"benchmarks.{name}", about or "")
    parser.add_argument("--hidden", type=at_least(1), default=150, help="state size")
    parser.add_argument("--width", type=at_least(1), default=300, help="size of a row of inputs")
    parser.add_argument("--batch-size", type=at_least(1), default=64, help="trees of a batch")
    parser.add_argument("--threads", type=THREADS, default=1, help="threads of both")
    parser.add_argument("--rounds", type=at_least(1), default=40, help="steps of each")
    return parser


def compare(given: argparse.Namespace, steps: Callable[[Any, int, int, int], Steps]) -> None:
    """Let the programs take turns, and print their times and ratios to that of the trainer."""
    import cavs

    trees = drawn_trees(given.batch_size, 40, given.width, np.random.default_rng(0))
    runs = steps(cavs.batch(trees), given.width, given.hidden, given.threads)
    found = take_turns({name: timed(step) for name, step in runs.items()}, given.rounds, None)
    for name, seconds in found["seconds"].items():
        ratio = quartiles(found["ratios"][name], "{:.3f}")
        print(f"{name:8} {quartiles(seconds, '{:.2f} ms', lambda s: 1e3 * s)}, {ratio} of trainer")
