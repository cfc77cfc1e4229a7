"""The figures and tables of the paper's evaluation (thesis, 6.6), as cases with their runners."""

from __future__ import annotations

import os
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from importlib.util import find_spec

from benchmarks.runner import python_variable
from benchmarks.workloads import Case

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
HIDDEN = (64, 128, 256, 512, 1024)
LEAVES = (32, 64, 128, 256, 512, 1024)
# The sizes of panels over the other size.
FIXED_HIDDEN, FIXED_BATCH = 512, 64
# Graphs of a pass, so that small batches take long enough to time; a pass of smaller batches has
# `BATCHES` of them, and one of larger ones has one.
GRAPHS, BATCHES = 64, 16

FIGURES = ("6.11", "6.12", "6.13", "table-6.2", "table-6.3")
# The rivals of each model in 6.11, the first by hand. DyNet batches by its agenda or by depth,
# which is the same for chains.
RIVALS = {
    "fixed-lstm": ("padded", "hand", "dynet"),
    "var-lstm": ("packed", "hand", "dynet"),
    "tree-fc": ("hand", "dynet", "dynet-depth"),
    "tree-lstm": ("hand", "dynet", "dynet-depth", "dgl", "naive"),
}
PANELS = tuple(RIVALS)  # 6.11 (a) to (d) over batch sizes, (e) to (h) over hidden sizes
# Runners of 6.13 by the optimisation that each has on; the first has none, the last has all.
OPTIMISATIONS = {
    "none": "cavs-without-hoist_eager+hoist_lazy+fuse",
    "eager": "cavs-without-hoist_lazy+fuse",
    "lazy": "cavs-without-hoist_eager+fuse",
    "fusion": "cavs-without-hoist_eager+hoist_lazy",
    "all": "cavs",
}
# On a GPU eager operators also run on a second stream.
STREAMED = {
    "none": "cavs-without-hoist_eager+hoist_lazy+fuse+second-stream",
    "eager": "cavs-without-hoist_lazy+fuse+second-stream",
    "lazy": "cavs-without-hoist_eager+fuse+second-stream",
    "streaming": "cavs-without-hoist_lazy+fuse",
    "fusion": "cavs-without-hoist_eager+hoist_lazy+second-stream",
    "all": "cavs",
}

Runners = dict[Case, list[str]]


def base(workload: str, data: str, device: str, threads: int) -> Case:
    """Return a case of a model: language models predict among the whole vocabulary."""
    return Case(
        workload,
        FIXED_HIDDEN,
        FIXED_BATCH,
        threads=threads,
        embedding=300 if workload == "tree-lstm" else 0,
        classes=0 if workload in ("fixed-lstm", "var-lstm") else 5,
        data=data,
        device=device,
    )


def sized(case: Case, hidden: int, batch_size: int, **changes: object) -> Case:
    """Return a case of other sizes, with as many batches as a pass has."""
    found = replace(case, hidden=hidden, batch_size=batch_size, **changes)
    batches = min(max(1, GRAPHS // batch_size), BATCHES)
    return replace(found, batches=batches, embedding=case.embedding or hidden)


def available(runner: str) -> bool:
    """True if a rival can run: DyNet and DGL may have a Python of their own, or be missing."""
    library = runner.removesuffix("-depth")
    if library not in ("dynet", "dgl"):
        return True
    return bool(os.environ.get(python_variable(runner))) or find_spec(library) is not None


def panel(case: Case, by: str, sizes: SequenceOf[int]) -> list[Case]:
    """Return the cases of a panel of 6.11, over batch or hidden sizes."""
    if by == "batch_size":
        return [sized(case, FIXED_HIDDEN, size) for size in sizes]
    return [sized(case, size, FIXED_BATCH) for size in sizes]


def over_leaves(case: Case, leaves: SequenceOf[int]) -> list[Case]:
    """Return the cases of 6.12 (a), over the leaves of complete trees."""
    return [sized(case, FIXED_HIDDEN, FIXED_BATCH, leaves=count) for count in leaves]


def cases(
    figures: SequenceOf[str],
    data: str,
    device: str,
    threads: int,
    *,
    batch_sizes: SequenceOf[int] = BATCH_SIZES,
    hidden: SequenceOf[int] = HIDDEN,
    leaves: SequenceOf[int] = LEAVES,
    models: SequenceOf[str] = PANELS,
) -> Runners:
    """Return the cases of figures and tables, each with all its runners, without repetitions."""
    found: Runners = {}

    def add(case: Case, runners: SequenceOf[str], inference: bool = False) -> None:
        for training in (True, False) if inference else (True,):
            known = found.setdefault(replace(case, training=training), [])
            known += [r for r in runners if r not in known and available(r)]

    on_device = device != "cpu"
    for model in models:
        of = base(model, data, device, threads)
        rivals = [r for r in RIVALS[model] if not (on_device and r in ("dynet", "dynet-depth"))]
        if "6.11" in figures:
            for case in (
                *panel(of, "batch_size", batch_sizes),
                *panel(of, "hidden", hidden),
            ):
                add(case, ["cavs", *rivals], inference=True)
        built = [r for r in ("cavs", "dynet") if r == "cavs" or r in rivals]
        if {"6.12", "table-6.2"} & {*figures} and model == "tree-fc":
            for case in over_leaves(of, leaves):
                add(case, built)
        if {"6.12", "table-6.2", "table-6.3"} & {*figures} and model == "tree-lstm":
            for case in panel(of, "batch_size", batch_sizes):
                add(case, built, inference="table-6.3" in figures)
        if "6.13" in figures and model in ("fixed-lstm", "tree-lstm"):
            for case in panel(of, "hidden", hidden):
                add(case, list((STREAMED if on_device else OPTIMISATIONS).values()))
    return found
