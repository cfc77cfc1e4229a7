"""A runner trains or evaluates one of the models; cavs is one of several. And the list of them."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.samples import Sample
from benchmarks.workloads import Case, Parameters, Workload, initial_parameters, load

# The products of the workload alone, on our kernels and on PyTorch's.
_FLOORS = {
    "floor": "benchmarks.runners_floor:EngineFloor",
    "floor-torch": "benchmarks.rivals.floor:TorchFloor",
}
# workload -> runner -> "module:class"
_TREE_LSTM = _FLOORS | {
    "cavs": "benchmarks.runners_cavs:TreeLSTM",
    "torch-module": "benchmarks.runners_torch:TorchModuleTreeLSTM",
    "naive": "benchmarks.rivals.naive:NaiveTreeLSTM",
    "hand": "benchmarks.rivals.hand_tree:HandTreeLSTM",
    "hand-unique": "benchmarks.rivals.hand_tree:HandTreeLSTMUnique",
    "hand-medium": "benchmarks.rivals.reduced:HandTreeLSTMMedium",
    "hand-autocast": "benchmarks.rivals.reduced:HandTreeLSTMAutocast",
    "manual": "benchmarks.rivals.manual_tree:ManualTreeLSTM",
    "manual-medium": "benchmarks.rivals.reduced:ManualTreeLSTMMedium",
    "manual-compile": "benchmarks.rivals.manual_tree:ManualTreeLSTMCompiled",
    "manual-compile-medium": "benchmarks.rivals.reduced:ManualTreeLSTMCompiledMedium",
    "dynet": "benchmarks.rivals.with_dynet:DyNetTreeLSTM",
    "dynet-depth": "benchmarks.rivals.with_dynet_by_depth:DyNetTreeLSTM",
    "dgl": "benchmarks.rivals.with_dgl:DGLTreeLSTM",
    "hand-graph": "benchmarks.rivals.graphs:GraphedHandTreeLSTM",
    "manual-graph": "benchmarks.rivals.graphs:GraphedManualTreeLSTM",
}
_TREE_FC = _FLOORS | {
    "cavs": "benchmarks.runners_cavs:TreeFC",
    "naive": "benchmarks.rivals.naive:NaiveTreeFC",
    "hand": "benchmarks.rivals.hand_fc:HandTreeFC",
    "manual": "benchmarks.rivals.hand_fc:ManualTreeFC",
    "dynet": "benchmarks.rivals.with_dynet:DyNetTreeFC",
    "dynet-depth": "benchmarks.rivals.with_dynet_by_depth:DyNetTreeFC",
    "hand-graph": "benchmarks.rivals.graphs:GraphedHandTreeFC",
    "manual-graph": "benchmarks.rivals.graphs:GraphedManualTreeFC",
}
_LSTM = _FLOORS | {
    "cavs": "benchmarks.runners_cavs:LSTM",
    "cavs-cudnn": "benchmarks.runners_cavs:CudnnLSTM",
    "naive": "benchmarks.rivals.naive:NaiveLSTM",
    "padded": "benchmarks.rivals.lstm:PaddedLSTM",
    "packed": "benchmarks.rivals.lstm:PackedLSTM",
    "hand": "benchmarks.rivals.lstm:HandLSTM",
    "manual": "benchmarks.rivals.manual_lstm:ManualLSTM",
    "manual-compile": "benchmarks.rivals.manual_lstm:ManualLSTMCompiled",
    "dynet": "benchmarks.rivals.with_dynet:DyNetLSTM",
    "dynet-depth": "benchmarks.rivals.with_dynet_by_depth:DyNetLSTM",
    "hand-graph": "benchmarks.rivals.graphs:GraphedHandLSTM",
    "manual-graph": "benchmarks.rivals.graphs:GraphedManualLSTM",
}
# Programs of cavs alone, which measure its passes.
_OWN = {
    "child-sum": {"cavs": "benchmarks.runners_cavs:ChildSum"},
    "lattice": {"cavs": "benchmarks.runners_cavs:Lattice"},
    "gates": {"cavs": "benchmarks.runners_cavs:Gates"},
    "root-label": {"cavs": "benchmarks.runners_cavs:RootLabel"},
}
RUNNERS: dict[str, dict[str, str]] = {
    "tree-lstm": _TREE_LSTM,
    "tree-fc": _TREE_FC,
    "var-lstm": _LSTM,
    "fixed-lstm": _LSTM,
    **_OWN,
}


class MissingLibrary(ImportError):
    """The library of a rival is missing in this Python."""

    def __init__(self, runner: str, why: str, install: str) -> None:
        super().__init__(
            f"the rival {runner} cannot run here: {why}. Install it by: {install}. It may have an "
            f"environment of its own: {python_variable(runner)}=PYTHON names that one's interpreter"
        )


class Timed(ABC):
    """A program for one model that the harness times, with its own layout of parameters.

    ``prepare`` does what depends on the structure of a batch alone (collation, index tensors, the
    schedule) and is not part of the times of ``train`` and ``infer``.
    """

    def __init__(self, workload: Workload, parameters: Parameters) -> None:
        self.workload = workload
        self.sizes = workload.sizes
        self.case = workload.case
        self.load_parameters(parameters)

    @abstractmethod
    def load_parameters(self, parameters: Parameters) -> None:
        """Copy the parameters and reset the optimiser."""

    @abstractmethod
    def prepare(self, samples: SequenceOf[Sample]) -> Any:
        """Return the plan of a batch."""

    def settle(self, plans: SequenceOf[Any]) -> None:  # noqa: B027
        """Hook: called with all plans of the case, to capture or compile them."""

    def synchronize(self) -> None:  # noqa: B027
        """Hook: wait until all work is done."""

    def construct(self, plan: Any) -> None:  # noqa: B027
        """Hook: build the expressions of a step, as a part of it, and compute nothing."""

    @classmethod
    def constructs(cls) -> bool:
        """True if a step builds expressions."""
        return cls.construct is not Timed.construct

    @abstractmethod
    def train(self, plan: Any) -> float:
        """Run a training step with its update; return the loss before it."""

    def device_memory(self) -> int:
        """Return the peak of the bytes of a device; 0 without a device."""
        return 0

    def moved(self, plans: SequenceOf[Any]) -> dict[str, float]:
        """Return bytes that a step gathers and writes, their peak, and seconds by kind.

        Empty if they are not counted.
        """
        return {}

    def train_all(self, plans: SequenceOf[Any]) -> list[float]:
        """Run a step on each; on a GPU, read losses after all are launched."""
        return [self.train(plan) for plan in plans]

    @abstractmethod
    def infer(self, plan: Any) -> Any:
        """Return logits of every labelled vertex, in the runner's own order, without backward."""


class Runner(Timed):
    """A program for one model, with the outputs for the comparison of results."""

    @abstractmethod
    def parameters(self) -> Parameters:
        """Return the parameters."""

    @abstractmethod
    def gradients(self, plan: Any) -> tuple[float, Parameters]:
        """Return loss and dense gradients, without an update."""

    @abstractmethod
    def logits(self, plan: Any) -> npt.NDArray[np.float32]:
        """Return logits of every labelled vertex [n, classes], in the order of the samples."""


def python_variable(name: str) -> str:
    """Return the environment variable that names the Python of a runner."""
    library = base_of(name)[0].removesuffix("-depth")
    return "CAVS_BENCH_PYTHON_" + library.upper().replace("-", "_")


def python_of(name: str) -> str:
    """Return the Python of a runner's process: this one, unless a variable names another.

    Some libraries need an older Python, or older packages, than the others.
    """
    given = os.environ.get(python_variable(name), "")
    if given and shutil.which(given) is None:
        raise ValueError(f"{python_variable(name)} names {given}, which is no program")
    return given or sys.executable


def base_of(name: str) -> tuple[str, dict[str, str]]:
    """Return the name in RUNNERS and the options in the rest of a runner's name."""
    most, _, without = name.partition("-without-")
    base, _, precision = most.partition("-in-")
    given = {"without": without, "precision": precision}
    return base, {option: value for option, value in given.items() if value}


def class_of(name: str, workload: str) -> Any:
    """Return the class of a runner by name; MissingLibrary if its library is missing."""
    known, base = RUNNERS[workload], base_of(name)[0]
    if base not in known:
        raise ValueError(f"no runner {base!r} for {workload}; {', '.join(known)}")
    module, _, attribute = known[base].partition(":")
    return getattr(importlib.import_module(module), attribute)


def make_runner(name: str, workload: Workload) -> Timed:
    """Return the runner of a name for a workload.

    ``cavs-without-PASS`` is cavs with that compiler pass switched off, ``cavs-without-PASS+PASS``
    with both, ``cavs-in-PRECISION`` with products in that precision of the CPU.
    """
    runner = class_of(name, workload.case.workload)
    made: Timed = runner(workload, initial_parameters(workload), **base_of(name)[1])
    return made


def computed(name: str, case: Case) -> dict[str, npt.NDArray[np.float32]]:
    """Return the values that are compared: logits, loss, gradients, two training steps."""
    workload = load(case)
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
    return values
