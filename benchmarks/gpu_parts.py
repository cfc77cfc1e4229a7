"""What the GPU program finds beside the timed cases; each part may run in a process of its own."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from benchmarks.gpu_cases import groups, precisions
from benchmarks.harness import write_json
from benchmarks.refcheck import check
from benchmarks.runner import RUNNERS
from benchmarks.workloads import WORKLOADS, Case

Failures = list[tuple[str, str]]  # what failed, and why

# Programs whose results are compared before anything is timed.
CHECKED = ("cavs", "hand", "manual")


def _small(given: argparse.Namespace, workload: str) -> Case:
    """A case to check results on."""
    tiny = given.tiny
    return Case(
        workload,
        12 if tiny else 64,
        8,
        embedding=8 if tiny else 48,
        leaves=16,
        length=7 if tiny else 20,
        vocabulary=50 if tiny else 500,
        data=given.data,
        device=given.device,
        lr=0.1,
    )


def _main(given: argparse.Namespace) -> Case:
    return groups(given.device, given.data, False, given.tiny)[0].cases[0]


def ceilings(given: argparse.Namespace) -> tuple[Any, Failures]:
    """Of the device: bytes a second, and operations a second by precision; and its name."""
    from benchmarks.ceilings import ceilings as found
    from benchmarks.ceilings import device_name

    top = found(given.device, precisions(given.device), given.tiny)
    return {"device": device_name(given.device), **top}, []


def agreement(given: argparse.Namespace) -> tuple[Any, Failures]:
    """Disagreements between programs, which are failures too."""
    wrong = [
        line
        for workload in WORKLOADS
        for optimizer in ("sgd", "adagrad")
        for line in check(replace(_small(given, workload), optimizer=optimizer), CHECKED)
    ]
    return wrong, [("agreement", line) for line in wrong]


def cudnn(given: argparse.Namespace) -> tuple[Any, Failures]:
    """Disagreements between LSTMs by cuDNN and by our own kernels; none on the CPU."""
    if given.device == "cpu":
        return [], []
    lstms = [w for w in WORKLOADS if RUNNERS[w].get("cavs-cudnn")]
    wrong = [line for w in lstms for line in check(_small(given, w), ["cavs-cudnn"], "cavs")]
    return wrong, [("cudnn", line) for line in wrong]


def accuracy(given: argparse.Namespace) -> tuple[Any, Failures]:
    """Relative norms of the difference to float64, by precision and workload."""
    from benchmarks.accuracy import errors

    found: dict[str, Any] = {}
    failed: Failures = []
    for precision in precisions(given.device):
        for workload in WORKLOADS:
            case = replace(_small(given, workload), precision=precision)
            try:
                found.setdefault(precision, {})[workload] = errors(case)
            except Exception as error:  # another precision may work
                failed.append((f"accuracy {case.title}", str(error)))
    return found, failed


def curve(given: argparse.Namespace) -> tuple[Any, Failures]:
    """Losses of training against the CPU's."""
    from benchmarks.accuracy import curve as found

    case = replace(_small(given, "tree-lstm"), batches=10, lr=0.01)
    steps = given.steps or (20 if given.tiny else 1000 if given.full else 200)
    return found(case, steps), []


def first_step(given: argparse.Namespace) -> tuple[Any, Failures]:
    """Of two new processes, one after the other."""
    from benchmarks.first_step import in_new_process

    case = replace(_main(given), batch_size=min(_main(given).batch_size, 64), batches=1)
    names = ("first_process", "second_process")
    return {name: in_new_process(case, given.patience) for name in names}, []


def timeline(given: argparse.Namespace) -> tuple[Any, Failures]:
    """The report of a profiled step, without its long lists; the trace goes beside the JSON.

    Bytes are counted on the CPU, which runs the same instructions.
    """
    from benchmarks.timeline import chrome_trace, profiled

    case = _main(given)
    report = profiled(case)
    counted = profiled(replace(case, device="cpu", precision="fp32"))
    path = given.out.with_suffix(".trace.json")
    write_json(path, chrome_trace(report))
    kept = {k: v for k, v in report.items() if not isinstance(v, list)}
    kept |= {name: counted[name] for name in ("gather_bytes", "write_bytes")}
    return kept | {"trace": path.name, "stages": len(report["stages"])}, []


# The engine may fault: what needs it comes after what does not.
BEFORE = {
    "ceilings": ceilings,
    "agreement": agreement,
    "cudnn": cudnn,
    "accuracy": accuracy,
    "first_step": first_step,
    "timeline": timeline,
}
AFTER = {"curve": curve}
