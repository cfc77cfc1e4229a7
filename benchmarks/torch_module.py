"""A training step of cavs.torch.Module in a loop of PyTorch, against one of cavs.Trainer.

Both train the same classifier of the vertices of drawn binary trees, a binary Tree-LSTM over given
rows, by plain SGD. "module" has the whole model in the module and the loss in torch; "layer" has
the classifier in torch, too. Needs the package torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.framework_steps import (
    CLASSES,
    Steps,
    classifier,
    compare,
    options_of,
    trainer_step,
)


def steps(batch: Any, width: int, hidden: int, threads: int) -> Steps:
    """Return a training step on ``batch`` by name."""
    import torch

    import cavs
    import cavs.torch
    from cavs import nn

    torch.set_num_threads(threads)
    cavs.set_num_threads(threads)

    labels = torch.tensor(batch["label"], dtype=torch.long)
    x = torch.tensor(batch["x"])
    whole = cavs.torch.Module(classifier(width, hidden))
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
        "trainer": trainer_step(batch, width, hidden),
        "module": in_torch(lambda: whole(batch), whole),
        "layer": in_torch(lambda: readout(cell(batch, x=x)), cell, readout),
    }


def main(arguments: list[str] | None = None) -> int:
    compare(options_of("torch_module", __doc__).parse_args(arguments), steps)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
