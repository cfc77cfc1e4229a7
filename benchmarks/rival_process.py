"""A rival in a process of its own, which may have another Python, and threads of its own."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

import cavs
from benchmarks.ratios import Pass
from benchmarks.samples import ROOT

DYNET = "CAVS_BENCH_PYTHON_DYNET"  # names a Python that has DyNet


class RivalProcess:
    """A process that runs a program of `benchmarks.rivals` on batches, as often as it is told.

    python: its interpreter. program: its module. model: gives its first parameters. batches: JSON
    values for its ``batches.json``. folder: an empty one for its files.
    """

    def __init__(
        self, python: str, program: str, model: cavs.Model, batches: Any, folder: str
    ) -> None:
        self.program = program
        values = {name: p.value for name, p in model.parameters().items()}
        np.savez(Path(folder) / "parameters.npz", **values)
        (Path(folder) / "batches.json").write_text(json.dumps(batches))
        self.process = subprocess.Popen(
            [python, "-c", f"from benchmarks.rivals import {program} as p; p.main()", folder],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self) -> tuple[float, float]:
        """Run on all batches; return the seconds and the last loss."""
        process = self.process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write("run\n")
            process.stdin.flush()
        except BrokenPipeError:  # it has ended: its output does too
            with suppress(BrokenPipeError):
                process.stdin.close()
        for line in process.stdout:
            if line.startswith("DONE "):
                seconds, loss = map(float, line.split()[1:])
                return seconds, loss
        raise SystemExit(f"{self.program} has ended with status {process.wait()}")


@contextmanager
def rival_passes(
    programs: Mapping[str, tuple[str, str]], model: cavs.Model, given: Any
) -> Iterator[dict[str, Pass]]:
    """Give the passes of rivals by name, each in a process of its own, which ends with the context.

    programs: the interpreter and the program of each. model, given: see `RivalProcess`.
    """
    found: dict[str, Pass] = {}
    with ExitStack() as stack:
        for name, (python, program) in programs.items():
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            rival = RivalProcess(python, program, model, given, folder)
            stack.enter_context(rival.process)  # closes its input and waits
            found[name] = rival.run
        yield found
