"""A training step of cavs.jax.Function in a loop of JAX, against one of cavs.Trainer.

Both train the same classifier of the vertices of drawn binary trees, a binary Tree-LSTM over given
rows, by plain SGD. "function" has the whole model in the function and the loss in JAX; "layer" has
the classifier in JAX, too; both are one program under jax.jit. "loop" is "function" with jax.jit
around the loss alone and around the update. Needs the package jax.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.options import THREADS, OptionParser, at_least
from benchmarks.ratios import quartiles, take_turns, timed
from benchmarks.torch_module import CLASSES, drawn_trees


def steps(batch: Any, width: int, hidden: int, threads: int) -> dict[str, Callable[[], float]]:
    """Return a training step on ``batch`` by name."""
    import jax
    import jax.numpy as jnp

    import cavs
    import cavs.jax
    from cavs import nn, ops

    cavs.set_num_threads(threads)

    class Classifier(cavs.Model):
        def __init__(self) -> None:
            self.cell, self.out = nn.BinaryTreeLSTM(width, hidden), nn.Linear(hidden, CLASSES)

        def forward(self, batch: Any) -> Any:
            return self.out(self.cell(batch.graph, x=batch["x"]))

        def loss(self, batch: Any) -> Any:
            return ops.cross_entropy(self.forward(batch), batch["label"])

    trainer = cavs.Trainer(Classifier(), cavs.optim.SGD(lr=0.01))
    labels, x = jnp.asarray(batch["label"]), jnp.asarray(batch["x"])
    whole = cavs.jax.Function(Classifier())
    cell = cavs.jax.Function(nn.BinaryTreeLSTM(width, hidden))

    def cross_entropy(logits: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()

    def of_layer(parameters: Any) -> Any:
        h = cell.apply(parameters["cell"], batch, x=x)
        return cross_entropy(h @ parameters["weight"] + parameters["bias"])

    def updated(parameters: Any, gradients: Any) -> Any:
        return jax.tree.map(lambda p, g: p - 0.01 * g, parameters, gradients)

    def compiled(loss: Callable[[Any], Any], parameters: Any) -> Callable[[], float]:
        @partial(jax.jit, donate_argnums=0)
        def both(parameters: Any) -> Any:
            found, gradients = jax.value_and_grad(loss)(parameters)
            return found, updated(parameters, gradients)

        def step() -> float:
            nonlocal parameters
            found, parameters = both(parameters)
            return float(found)

        return step

    def loop() -> Callable[[], float]:
        parameters = whole.init(0)
        loss, update = jax.jit(cross_entropy), jax.jit(updated)

        def step() -> float:
            nonlocal parameters
            found, gradients = jax.value_and_grad(lambda p: loss(whole.apply(p, batch)))(parameters)
            parameters = update(parameters, gradients)
            return float(found)

        return step

    layer = {"weight": jnp.zeros((hidden, CLASSES)), "bias": jnp.zeros(CLASSES)}
    return {
        "trainer": lambda: trainer.step(batch),
        "function": compiled(lambda p: cross_entropy(whole.apply(p, batch)), whole.init(0)),
        "layer": compiled(of_layer, {"cell": cell.init(0), **layer}),
        "loop": loop(),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = OptionParser("benchmarks.jax_module", __doc__ or "")
    parser.add_argument("--hidden", type=at_least(1), default=150, help="state size")
    parser.add_argument("--width", type=at_least(1), default=300, help="size of a row of inputs")
    parser.add_argument("--batch-size", type=at_least(1), default=64, help="trees of a batch")
    parser.add_argument("--threads", type=THREADS, default=1, help="threads of both")
    parser.add_argument("--rounds", type=at_least(1), default=40, help="steps of each")
    options = parser.parse_args(arguments)
    if options.threads == 1:
        flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
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
