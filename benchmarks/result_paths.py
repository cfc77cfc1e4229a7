"""Paths of results: those of a whole grid are documented, all others go to `LATEST`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Any

from benchmarks.options import OptionParser
from benchmarks.samples import ROOT

RESULTS = ROOT / "benchmarks" / "results"
# Results of grids narrowed by options such as --quick must not replace those of a whole grid.
LATEST = RESULTS / "latest"

# Options that change neither cases nor repetitions.
_NEUTRAL = ("data", "out", "resume", "in_process", "refcheck")


class GridParser(OptionParser):
    """The options of a grid, with ``--out``, whose default depends on the others."""

    def __init__(self, program: str, description: str) -> None:
        super().__init__(f"benchmarks.{program}", description)
        self.file = f"{program}.json"
        self.add_argument(
            "--out",
            type=Path,
            default=argparse.SUPPRESS,
            help=f"result file; default: {self.file} in benchmarks/results, or, where another "
            "option narrows the grid or widens it, in benchmarks/results/latest",
        )

    def parse_args(  # type: ignore[override]
        self, args: SequenceOf[str] | None = None, namespace: Any = None
    ) -> argparse.Namespace:
        given = super().parse_args(args, namespace)
        if not hasattr(given, "out"):
            options = [name for name in vars(given) if name not in _NEUTRAL]
            whole = all(getattr(given, name) == self.get_default(name) for name in options)
            given.out = (RESULTS if whole else LATEST) / self.file
        return given
