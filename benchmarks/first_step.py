"""How long a new process takes to import cavs, to its first training step, and to its second."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from typing import Any

from benchmarks.options import OptionParser
from benchmarks.runner import RUNNERS
from benchmarks.samples import RANDOM, ROOT
from benchmarks.workloads import Case


def in_new_process(case: Case, timeout: float, cache: str = "") -> dict[str, float]:
    """Return seconds: ``import`` of cavs, ``first`` step with session and compilation, ``second``.

    total: import and first step. cache: the folder of compiled kernels; empty: the user's.
    Raises RuntimeError with what the process wrote where it fails.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.first_step", "--case", json.dumps(asdict(case))],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout,
        env=os.environ | ({"CAVS_CACHE": cache} if cache else {}),
    )
    if done.returncode != 0:
        raise RuntimeError(f"a new process ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(case: Case) -> dict[str, float]:
    """Measure the same in this process, which should have imported nothing of cavs yet."""
    start = time.perf_counter()
    import cavs  # noqa: F401

    imported = time.perf_counter()
    from benchmarks.runner import make_runner
    from benchmarks.workloads import load

    workload = load(case)
    read = time.perf_counter()
    runner = make_runner("cavs", workload)
    plan: Any = runner.prepare(workload.batches[0])
    runner.train(plan)
    first = time.perf_counter()
    runner.train(plan)
    second = time.perf_counter()
    found = {"import": imported - start, "first": first - read, "second": second - first}
    return found | {"total": found["import"] + found["first"]}


def case_of(text: str) -> Case:
    """Return the case that JSON describes: an argparse type."""
    try:
        case = Case(**json.loads(text))
        counts = (case.hidden, case.batch_size, case.threads, case.batches, case.embedding)
        if not all(isinstance(n, int) and n > 0 for n in counts):
            raise ValueError(f"sizes are whole numbers of at least 1, not {counts}")
        if case.workload not in RUNNERS:
            raise ValueError(f"no workload {case.workload!r}; there are {', '.join(RUNNERS)}")
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return case


def main(arguments: list[str] | None = None) -> int:
    parser = OptionParser("benchmarks.first_step", __doc__ or "")
    parser.add_argument(
        "--case",
        type=case_of,
        default=Case("tree-lstm", 256, 64, data=RANDOM),
        metavar="JSON",
        help="fields of a Case of benchmarks.workloads; default: drawn trees, h 256, batch size 64",
    )
    print(json.dumps(measure(parser.parse_args(arguments).case)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
