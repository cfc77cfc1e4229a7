"""A rival in DyNet: a process of its own, whose Python has DyNet."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

import cavs

DYNET = "CAVS_BENCH_PYTHON_DYNET"  # names that Python


class DyNet:
    """A process that runs a program of `benchmarks.rivals` on batches, as often as it is told.

    program: its module. parameters: those of the model, from which it starts. batches: JSON values
    for its ``batches.json``.
    """

    def __init__(self, program: str, model: cavs.Model, batches: Any, folder: str) -> None:
        values = {name: p.value for name, p in model.parameters().items()}
        np.savez(Path(folder) / "parameters.npz", **values)
        (Path(folder) / "batches.json").write_text(json.dumps(batches))
        self.process = subprocess.Popen(
            [os.environ[DYNET], "-c", f"import {program} as p; p.main()", folder],
            cwd=Path(__file__).parent / "rivals",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self) -> tuple[float, float]:
        """Run on all batches; return the seconds and the last loss."""
        process = self.process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("run\n")
        process.stdin.flush()
        for line in process.stdout:
            if line.startswith("DONE "):
                seconds, loss = map(float, line.split()[1:])
                return seconds, loss
        raise SystemExit(f"DyNet has ended with status {process.wait()}")
