"""The models and batches of `benchmarks.levels`: every level has as many vertices as any other."""

from __future__ import annotations

import os
from collections.abc import Sequence as SequenceOf
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks import runners_cavs
from benchmarks.runners_cavs import BinaryTreeLSTM, Cell, Classifier
from benchmarks.workloads import Case, Sizes
from cavs import data
from cavs.compiler.pipeline import default_passes
from cavs.cuda.device import open_device
from cavs.runtime import Session

WAYS: dict[str, dict[str, Any]] = {
    "launched": {"persistent": "never", "replay": "never"},
    "graphs": {"persistent": "never", "replay": "always"},
    "persistent": {"persistent": "always", "replay": "never"},
}
CELLS = {"lstm": Cell, "tree": BinaryTreeLSTM}
HIDDEN = (150, 256, 512)
WIDTHS = (1, 16, 64)
LEVELS = 64
MODES = {"forward": False, "both": True}  # True for a training step
VOCABULARY, CLASSES = 100, 5
Failures = list[tuple[str, str]]


@dataclass(frozen=True)
class Point:
    """A model to measure, without the width of a level."""

    cell: str
    hidden: int
    precision: str
    device: str = "cuda"

    @property
    def title(self) -> str:
        return f"{self.cell}, h {self.hidden}, {self.precision}"


def points(device: str, full: bool, tiny: bool) -> list[Point]:
    """Return the points, those with a bound first; none on the CPU."""
    if device == "cpu":
        return []
    hidden, one = ((8,), (8,)) if tiny else (HIDDEN, (256,))
    of = {"tf32": hidden, "fp32": hidden if full else one, "bf16": hidden if full else one}
    return [Point(c, h, p, device) for p, sizes in of.items() for h in sizes for c in CELLS]


def _chain(levels: int, random: np.random.Generator) -> data.Graph:
    token, label = (random.integers(0, n, levels) for n in (VOCABULARY, CLASSES))
    return data.Graph.chain(levels, features={"token": token, "label": label})


def _comb(levels: int, random: np.random.Generator) -> data.Graph:
    """Return a comb: leaves at even vertices, an inner vertex after each but the first."""
    children: list[list[int]] = [[]]
    for level in range(levels):
        children += [[], [2 * level, 2 * level + 1]]
    token = random.integers(0, VOCABULARY, len(children))
    token[[i for i, below in enumerate(children) if below]] = -1
    label = random.integers(0, CLASSES, len(children))
    return data.Graph(children, {"token": token, "label": label})


def batch_of(cell: str, width: int, levels: int) -> data.GraphBatch:
    """Return a batch of so many graphs of so many levels."""
    random = np.random.default_rng(width)
    make = {"lstm": _chain, "tree": _comb}[cell]
    return data.batch([make(levels, random) for _ in range(width)])


def session_of(point: Point, way: str) -> Session:
    """Return a session of the model of a point, on a device with the options of a way."""
    sizes = Sizes(VOCABULARY, point.hidden, point.hidden, CLASSES)
    model = Classifier(sizes, CELLS[point.cell](sizes))
    model.initialize(1, np.float32)
    case = Case("tree-lstm", point.hidden, 1, device=point.device, precision=point.precision)
    options = runners_cavs.device_options(case)
    device = options["device"]
    device = open_device(device) if isinstance(device, str) else device
    options["device"] = replace(device, **WAYS[way])
    return Session(model, passes=default_passes(point.device), **options)


def compile_one(point: Point, widths: SequenceOf[int], levels: int) -> float:
    """Compile the kernels of a point into the cache on disk; return seconds. Nothing runs."""
    started = perf_counter()
    for way in ("persistent", "launched"):
        session = session_of(point, way)
        for width in widths:
            for training in MODES.values():
                session.ready(batch_of(point.cell, width, levels), training)
    return perf_counter() - started


def compiled_ahead(of: SequenceOf[Point], widths: SequenceOf[int], levels: int) -> Any:
    """Compile the kernels of all points in parallel; failures appear again when measured."""
    started = perf_counter()
    failed: Failures = []
    workers = max(1, min(len(of), (os.cpu_count() or 1) // 2))
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        asked = {point: pool.submit(compile_one, point, widths, levels) for point in of}
        for point, answer in asked.items():
            try:
                answer.result()
            except Exception as error:
                failed.append((f"kernels: {point.title}", str(error)))
    return {"points": len(of), "seconds": perf_counter() - started}, failed
