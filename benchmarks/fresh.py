"""Training on batches that are built during training, against the same samples batched before.

Both launch a step before they read the loss of the previous one. The difference of their times is
the part of collation, scheduling and copies that the device does not hide.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.ratios import summary
from benchmarks.runner import make_runner
from benchmarks.runners_cavs import CavsRunner
from benchmarks.workloads import Case, load
from cavs.train.loader import DataLoader

EPOCHS = 2  # per pass: nothing hides the preparation of the first batch


def fresh(case: Case, rounds: int) -> dict[str, Any]:
    """Return seconds per step of ``ready`` and ``fresh`` batches, and to ``prepare`` one.

    exposed: of each round, by what share of a ready step a fresh one is longer; summarised. Batches
    that come again run as no CUDA graph, which fresh ones do not either.
    """
    workload = load(case)
    runner = make_runner("cavs" if case.device == "cpu" else "cavs-without-graphs", workload)
    assert isinstance(runner, CavsRunner)
    graphs = [runner.graphs[id(sample)] for batch in workload.batches for sample in batch]
    plans = [runner.prepare(batch) for batch in workload.batches]
    steps = len(plans) * EPOCHS

    def ready() -> float:
        start = time.perf_counter()
        for _ in range(EPOCHS):
            runner.train_all(plans)
        runner.synchronize()
        return (time.perf_counter() - start) / steps

    def new_batches(seed: int) -> float:
        loader = DataLoader(graphs, case.batch_size, shuffle=True, seed=seed)
        start = time.perf_counter()
        runner.trainer.fit(loader, epochs=EPOCHS, progress=False)
        runner.synchronize()
        return (time.perf_counter() - start) / steps

    def alone() -> float:
        start = time.perf_counter()
        for batch in workload.batches:
            runner.prepare(batch)
        return (time.perf_counter() - start) / len(plans)

    ready(), new_batches(0)  # allocate memory, compile programs
    rows = [(ready(), new_batches(1 + i), alone()) for i in range(rounds)]
    names = ("ready", "fresh", "prepare")
    found: dict[str, Any] = {
        name: summary(list(times))
        for name, times in zip(names, zip(*rows, strict=True), strict=True)
    }
    found["exposed"] = summary([fresh / ready - 1 for ready, fresh, _ in rows])
    return found | {"batch_size": case.batch_size, "title": case.title}
