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
    import jax
    import jax.numpy as jnp

    import cavs
    import cavs.jax
    from cavs import nn

    cavs.set_num_threads(threads)

    labels, x = jnp.asarray(batch["label"]), jnp.asarray(batch["x"])
    whole = cavs.jax.Function(classifier(width, hidden))
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
        "trainer": trainer_step(batch, width, hidden),
        "function": compiled(lambda p: cross_entropy(whole.apply(p, batch)), whole.init(0)),
        "layer": compiled(of_layer, {"cell": cell.init(0), **layer}),
        "loop": loop(),
    }


def main(arguments: list[str] | None = None) -> int:
    options = options_of("jax_module", __doc__).parse_args(arguments)
    if options.threads == 1:
        flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
    compare(options, steps)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
