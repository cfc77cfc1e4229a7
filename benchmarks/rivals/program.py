"""The frame of a rival that runs in a process of its own, for `benchmarks.rival_process`.

A program, ``benchmarks/rivals/jets_torch.py``, has a function that prepares passes, and ends with

    def main() -> None:
        serve(prepare)

It imports neither `cavs` nor a module that does: its Python may lack it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Values = dict[str, npt.NDArray[np.float32]]  # parameters, by their names in cavs
# The JSON values that `cavs` gives: "batches", "threads", "lr", "training" (False: inference).
Given = dict[str, Any]


def serve(prepare: Callable[[Values, Given], Callable[[], float]]) -> None:
    """Run passes over all batches, one for each line of standard input.

    The first argument names the folder of `benchmarks.rival_process.RivalProcess`. prepare: returns
    a function that trains on all batches, or computes their losses, and returns the last loss. Each
    pass prints its seconds and that loss.
    """
    folder = Path(sys.argv[1])
    given = json.loads((folder / "batches.json").read_text(encoding="utf-8"))
    with np.load(folder / "parameters.npz") as stored:
        values = {name: stored[name] for name in stored.files}
    run = prepare(values, given)
    for _ in sys.stdin:
        begin = time.perf_counter()
        loss = run()
        print(f"DONE {time.perf_counter() - begin} {loss}", flush=True)
