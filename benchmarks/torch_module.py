"""A training step of cavs.torch.Module in a loop of PyTorch, against one of cavs.Trainer.

Both train the same classifier of the vertices of drawn binary trees, a binary Tree-LSTM over given
rows, by plain SGD. "module" has the whole model in the module and the loss in torch; "layer" has
the classifier in torch, too. Needs the package torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.options import THREADS, OptionParser, at_least
from benchmarks.ratios import quartiles, take_turns, timed

CLASSES = 5


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


def steps(batch: Any, width: int, hidden: int, threads: int) -> dict[str, Callable[[], float]]:
    """Return a training step on ``batch`` by name."""
    import torch

    import cavs
    import cavs.torch
    from cavs import nn, ops

    torch.set_num_threads(threads)
    cavs.set_num_threads(threads)

    class Classifier(cavs.Model):
        def __init__(self) -> None:
            self.cell, self.out = nn.BinaryTreeLSTM(width, hidden), nn.Linear(hidden, CLASSES)

        def forward(self, batch: Any) -> Any:
            return self.out(self.cell(batch.graph, x=batch["x"]))

        def loss(self, batch: Any) -> Any:
            return ops.cross_entropy(self.forward(batch), batch["label"])

    trainer = cavs.Trainer(Classifier(), cavs.optim.SGD(lr=0.01))
    labels = torch.tensor(batch["label"], dtype=torch.long)
    x = torch.tensor(batch["x"])
    whole = cavs.torch.Module(Classifier())
    cell = cavs.torch.Module(nn.BinaryTreeLSTM(width, hidden))
    readout = torch.nn.Linear(hidden, CLASSES)

    def in_torch(logits: Callable[[], Any], *modules: Any) -> Callable[[], float]:
        parameters = [p for module in modules for p in module.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.01)

        def step() -> float:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(logits(), labels)
            loss.backward()
            optimizer.step()
            return float(loss.item())

        return step

    return {
        "trainer": lambda: trainer.step(batch),
        "module": in_torch(lambda: whole(batch), whole),
        "layer": in_torch(lambda: readout(cell(batch, x=x)), cell, readout),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = OptionParser("benchmarks.torch_module", __doc__ or "")
    parser.add_argument("--hidden", type=at_least(1), default=150, help="state size")
    parser.add_argument("--width", type=at_least(1), default=300, help="size of a row of inputs")
    parser.add_argument("--batch-size", type=at_least(1), default=64, help="trees of a batch")
    parser.add_argument("--threads", type=THREADS, default=1, help="threads of both")
    parser.add_argument("--rounds", type=at_least(1), default=40, help="steps of each")
    options = parser.parse_args(arguments)
    import cavs

    trees = drawn_trees(options.batch_size, 40, options.width, np.random.default_rng(0))
    batch = cavs.batch(trees)
    runs = steps(batch, options.width, options.hidden, options.threads)
    found = take_turns({name: timed(step) for name, step in runs.items()}, options.rounds, None)
    for name, seconds in found["seconds"].items():
        ratio = quartiles(found["ratios"][name], "{:.3f}")
        print(f"{name:8} {quartiles(seconds, '{:.2f} ms', lambda s: 1e3 * s)}, {ratio} of trainer")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
