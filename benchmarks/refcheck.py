"""All runners of a workload against the naive one: loss, logits, gradients, two updates."""

from __future__ import annotations

import argparse
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from benchmarks.runner import RUNNERS, Runner, make_runner
from benchmarks.workloads import WORKLOADS, Case, load

TOLERANCE = 1e-4


def relative_error(
    a: npt.NDArray[np.float32], b: npt.NDArray[np.float32], rounding: float = 0.0
) -> float:
    """Largest difference beyond `rounding`, as a share of the largest value of `b`."""
    if a.shape != b.shape:
        raise AssertionError(f"shapes differ: {a.shape} and {b.shape}")
    difference = max(float(np.abs(a - b).max(initial=0.0)) - rounding, 0.0)
    return difference / max(float(np.abs(b).max(initial=0.0)), 1e-12)


def check(case: Case, names: SequenceOf[str], reference: str = "naive") -> list[str]:
    """The disagreements beyond 1e-4, as sentences; empty if all runners agree."""
    case = replace(case, batches=2, batch_size=min(case.batch_size, 8), threads=1)
    workload = load(case)
    results = {}
    for name in dict.fromkeys([reference, *names]):
        runner = make_runner(name, workload)
        if not isinstance(runner, Runner):
            raise ValueError(f"{name} computes no results to compare")
        plans = [runner.prepare(batch) for batch in workload.batches]
        values: dict[str, npt.NDArray[np.float32]] = {"logits": runner.logits(plans[0])}
        loss, gradients = runner.gradients(plans[0])
        values["loss"] = np.array([loss], np.float32)
        values |= {f"gradient of {key}": value for key, value in gradients.items()}
        before = runner.parameters()
        losses = [runner.train(plan) for plan in plans]
        values["losses of two steps"] = np.array(losses, np.float32)
        after = runner.parameters()
        values |= {f"update of {key}": after[key] - before[key] for key in after}
        results[name] = values
    wrong = []
    for name, values in results.items():
        missing = results[reference].keys() ^ values.keys()
        if missing:
            wrong.append(f"{case.title}: {name} lacks or adds {', '.join(sorted(missing))}")
        for key in results[reference].keys() & values.keys():
            # An update is read off two values of the parameter, each rounded.
            rounding = 4 * np.finfo(np.float32).eps if "update" in key else 0.0
            error = relative_error(values[key], results[reference][key], rounding)
            # Adagrad divides by the gradient's size: where a gradient is nearly zero, rounding
            # decides the step, so an update may differ where the gradient agrees.
            allowed = TOLERANCE if case.optimizer == "sgd" or "update" not in key else 1e-2
            if not error <= allowed:
                wrong.append(f"{case.title}: {name}: {key} is off by {error:.1e}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.refcheck", description=__doc__)
    parser.add_argument("--workload", choices=WORKLOADS, nargs="+", default=list(WORKLOADS))
    parser.add_argument("--runners", nargs="+", default=None, help="default: all rivals")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--data", default="", help="data folder; default: $CAVS_DATA")
    given = parser.parse_args()
    wrong: list[str] = []
    for workload in given.workload:
        names = given.runners or [
            name
            for name in RUNNERS[workload]
            if not name.startswith("cavs") and "floor" not in name
        ]
        for optimizer in ("sgd", "adagrad"):
            case = Case(
                workload,
                given.hidden,
                8,
                embedding=24,
                leaves=16,
                length=12,
                vocabulary=500,
                optimizer=optimizer,
                data=given.data,
                lr=0.1,
            )
            found = check(case, names)
            wrong += found
            print(f"{workload}, {optimizer}: {', '.join(names)}: {'agree' if not found else ''}")
            for line in found:
                print(f"  {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
