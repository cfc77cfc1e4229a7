"""How far a device's results lie from float64 ones, and its losses from the CPU's, step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.runner import make_runner
from benchmarks.runners_cavs import CavsRunner
from benchmarks.workloads import Case, Workload, load
from cavs.runtime import Session

WINDOW = 50  # steps of a mean of losses


def _runner(workload: Workload, case: Case) -> CavsRunner:
    made = make_runner("cavs", replace(workload, case=case))
    assert isinstance(made, CavsRunner)
    return made


def errors(case: Case) -> dict[str, float]:
    """Return relative norms of the difference to float64: loss, outputs, worst gradient."""
    workload = load(replace(case, batches=1))
    ours = _runner(workload, case)
    exact = _runner(workload, replace(case, device="cpu", precision="fp32"))
    oracle = Session(exact.model, dtype=np.float64)
    plan = ours.prepare(workload.batches[0])

    def distance(a: Any, b: Any) -> float:
        difference = np.asarray(a, np.float64) - np.asarray(b, np.float64)
        return float(np.linalg.norm(difference) / max(float(np.linalg.norm(b)), 1e-300))

    loss, gradients = ours.session.gradients(plan)
    exact_loss, exact_gradients = oracle.gradients(plan)
    worst = max(
        distance(np.asarray(gradients[name]), np.asarray(value))
        for name, value in exact_gradients.items()
    )
    outputs = distance(ours.session.predict(plan)["output"], oracle.predict(plan)["output"])
    return {"loss": distance(loss, exact_loss), "outputs": outputs, "gradients": worst}


def curve(case: Case, steps: int) -> dict[str, float]:
    """Return the largest relative difference of losses to the CPU in ``steps`` of training.

    Losses are means over ``WINDOW`` steps, or over half of them where they are few: a single one
    may be near zero. Batches come again when all have been seen.
    """
    workload = load(case)
    window = min(max(steps // 2, 1), WINDOW)
    losses = []
    for here in (case, replace(case, device="cpu", precision="fp32")):
        runner = _runner(workload, here)
        plans = [runner.prepare(batch) for batch in workload.batches]
        found = [runner.train(plans[n % len(plans)]) for n in range(steps)]
        losses.append(np.array(found[: steps // window * window]).reshape(-1, window).mean(1))
    device, cpu = losses
    worst = float(np.max(np.abs(device - cpu) / cpu))
    return {"steps": steps, "worst": worst, "first": float(cpu[0]), "last": float(cpu[-1])}
