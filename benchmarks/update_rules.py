"""The engine's kernels of optimisers against their rules traced: time of an update on the CPU.

Both update the same parameters by turns. Printed are the median times of an element in
nanoseconds, and the median of the ratios of neighbouring rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import cavs
from benchmarks.harness import markdown
from benchmarks.options import OptionParser, at_least
from cavs import optim
from cavs.distributed.sync.stale_server.owner import optimiser

WIDTH = 128  # columns of a table


@dataclass(frozen=True)
class Traced:
    """An optimiser whose rule is traced although the engine has a kernel for it."""

    optimizer: optim.Optimizer

    def hyper(self, step: int) -> dict[str, Any]:
        """Return the numbers of an update."""
        return self.optimizer.hyper(step) | {"program": self.optimizer.program}


def update(rule: Any, states: int, elements: int, rows: bool) -> Callable[[], float]:
    """Return a function that makes one update of float32 and returns its seconds."""
    rng = np.random.default_rng(0)
    shape = (4 * elements // WIDTH, WIDTH) if rows else (elements,)
    values = rng.normal(size=shape).astype("f4")
    kept = [np.full_like(values, 0.1) for _ in range(states)]
    grad = rng.normal(size=elements).astype("f4")
    piece: tuple[Any, ...] = (0, grad, None, None, 0)
    if rows:
        chosen = rng.permutation(len(values))[: elements // WIDTH].astype(np.int32)
        piece = (0, grad.reshape(-1, WIDTH), chosen, None, 0)
    executor, hyper = optimiser([values]), rule.hyper(9)
    executor.set_serial(False)

    def run() -> float:
        begin = time.perf_counter()
        executor.apply([piece], hyper, [kept], [True], 0.5)
        return time.perf_counter() - begin

    return run


def main(arguments: list[str] | None = None) -> int:
    parser = OptionParser("benchmarks.update_rules", __doc__ or "")
    parser.add_argument("--threads", type=at_least(1), default=1)
    parser.add_argument("--rounds", type=at_least(1), default=41)
    args = parser.parse_args(arguments)
    cavs.set_num_threads(args.threads)
    rules = {
        "sgd": optim.SGD(1e-4),
        "momentum": optim.SGD(1e-4, momentum=0.9),
        "adagrad": optim.Adagrad(1e-4),
        "adam": optim.Adam(1e-4),
        "adamw": optim.AdamW(1e-4),
    }
    places = {"in cache": (1 << 14, False), "in memory": (1 << 23, False), "rows": (1 << 17, True)}
    table = []
    for name, optimizer in rules.items():
        for place, (elements, rows) in places.items():
            states = optimizer.num_states()
            both = [update(x, states, elements, rows) for x in (optimizer, Traced(optimizer))]
            times = [[run() for run in both] for _ in range(args.rounds + 2)][2:]
            kernel, traced = (
                statistics.median(t[i] for t in times) / elements * 1e9 for i in (0, 1)
            )
            ratio = statistics.median(b / a for a, b in times)
            table.append([name, place, f"{kernel:.3f}", f"{traced:.3f}", f"{ratio:.2f}"])
    print(markdown(["rule", "values", "kernel, ns", "traced, ns", "ratio"], table))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
