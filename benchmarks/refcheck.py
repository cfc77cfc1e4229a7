"""All runners of a workload against the naive one: loss, logits, gradients, two updates."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from benchmarks.options import OptionParser, at_least
from benchmarks.runner import RUNNERS, MissingLibrary, base_of, class_of, python_of
from benchmarks.sessions import LocalSession, RemoteSession, SessionError
from benchmarks.workloads import WORKLOADS, Case

TOLERANCE = 1e-4
# DyNet adds Adagrad's epsilon inside the root, so elements with a gradient as small as the epsilon,
# 1e-10, have other updates. They are few: the norm of the difference is compared.
EPSILON_IN_ROOT = ("dynet", "dynet-depth")
# Products of bfloat16 or integers, by the norm. Their Adagrad updates are not compared, and
# losses after one only loosely: the first steps have the sign of the gradient, which rounding
# decides where it is nearly zero.
_BFLOAT16 = ("hand-medium", "hand-autocast", "manual-medium", "manual-compile-medium")
_AFTER_SIGNS = 3e-2
ROUNDED = dict.fromkeys(_BFLOAT16, 3e-2) | {"cavs-in-int16": 1e-3}


def relative_error(
    a: npt.NDArray[np.float32], b: npt.NDArray[np.float32], rounding: float = 0.0
) -> float:
    """Return the largest difference beyond `rounding`, relative to the largest value of `b`."""
    if a.shape != b.shape:
        raise AssertionError(f"shapes differ: {a.shape} and {b.shape}")
    difference = max(float(np.abs(a - b).max(initial=0.0)) - rounding, 0.0)
    return difference / max(float(np.abs(b).max(initial=0.0)), 1e-12)


def relative_norm(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    """Return the norm of the difference, relative to the norm of `b`."""
    return float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(b)), 1e-12)


def rivals_of(workload: str) -> list[str]:
    """Return all rivals that compute results, except those whose library is missing."""
    names = []
    for name in RUNNERS[workload]:
        if name.startswith("cavs") or "floor" in name:
            continue
        try:
            if python_of(name) == sys.executable:
                class_of(name, workload)
        except MissingLibrary as error:
            print(f"left out: {error}")
            continue
        names.append(name)
    return names


def _computed(name: str, case: Case) -> dict[str, npt.NDArray[np.float32]]:
    """Compute in this process, or in the Python of the runner if it has its own."""
    kind = LocalSession if python_of(name) == sys.executable else RemoteSession
    session = kind(name)
    try:
        return session.compute(case)
    finally:
        session.close()


def off_by(
    name: str,
    case: Case,
    key: str,
    a: npt.NDArray[np.float32],
    b: npt.NDArray[np.float32],
) -> float | None:
    """Return the error of a runner's result ``key`` beyond the tolerance; None if it agrees."""
    update, adagrad = "update" in key, case.optimizer == "adagrad"
    if name in ROUNDED:
        error = 0.0 if update and adagrad else relative_norm(a, b)
        bound = _AFTER_SIGNS if adagrad and "two steps" in key else ROUNDED[name]
        return None if error <= bound else error
    if update and adagrad and name in EPSILON_IN_ROOT:
        error = relative_norm(a, b)
    else:
        # An update is the difference of two rounded values of the parameter.
        error = relative_error(a, b, 4 * np.finfo(np.float32).eps if update else 0.0)
    # Adagrad divides by the gradient's size: where a gradient is nearly zero, rounding decides the
    # step, so an update may differ where the gradient agrees.
    return None if error <= (1e-2 if update and adagrad else TOLERANCE) else error


def check(case: Case, names: SequenceOf[str], reference: str = "naive") -> list[str]:
    """Return the disagreements beyond 1e-4 (more for ``ROUNDED``) as sentences."""
    case = replace(case, batches=2, batch_size=min(case.batch_size, 8), threads=1)
    results = {reference: _computed(reference, case)}
    wrong = []
    for name in names:
        if name == reference:
            continue
        try:
            results[name] = _computed(name, case)
        except (MissingLibrary, SessionError) as error:
            wrong.append(str(error).partition("\n")[0])
    for name, values in results.items():
        missing = results[reference].keys() ^ values.keys()
        if missing:
            wrong.append(f"{case.title}: {name} lacks or adds {', '.join(sorted(missing))}")
        for key in results[reference].keys() & values.keys():
            error = off_by(name, case, key, values[key], results[reference][key])
            if error is not None:
                wrong.append(f"{case.title}: {name}: {key} is off by {error:.1e}")
    return wrong


def main() -> int:
    parser = OptionParser("benchmarks.refcheck", __doc__ or "")
    parser.add_argument("--workload", choices=WORKLOADS, nargs="+", default=list(WORKLOADS))
    parser.add_argument("--runners", nargs="+", default=None, help="default: all rivals")
    parser.add_argument("--hidden", type=at_least(1), default=32)
    parser.add_argument("--data", default="", help="data folder; default: $CAVS_DATA")
    given = parser.parse_args()
    for workload, name in itertools.product(given.workload, given.runners or ()):
        if base_of(name)[0] not in RUNNERS[workload]:
            parser.error(
                f"--runners: {workload} has no {name!r}, but {', '.join(RUNNERS[workload])}"
            )
    wrong: list[str] = []
    for workload in given.workload:
        names = given.runners or rivals_of(workload)
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
