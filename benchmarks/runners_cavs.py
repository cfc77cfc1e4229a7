"""The models of the workloads in cavs."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.runner import Runner
from benchmarks.samples import Sample, Tree
from benchmarks.workloads import Case, Parameters, Sizes, Workload
from cavs import data, nn, ops
from cavs.compiler.pipeline import default_passes
from cavs.cuda import open_device
from cavs.cuda.engine import DECIDED
from cavs.frontend import Model, Parameter, State, VertexFunction
from cavs.runtime import Session
from cavs.train.optim import SGD, Adagrad
from cavs.train.trainer import Trainer

# Features of a device that can be switched off, in addition to compiler passes.
SWITCHES: dict[str, dict[str, Any]] = {
    "second-stream": {"second_stream": False},
    "cublas": {"cublas_lt": None},
    "few-row-kernels": {"few_rows": 0},
    "launch-ahead": {},
    "separate-vertices": {},  # merges equal vertices, as on the CPU
    "graphs": {"replay": "never"},
    "single-launches": {"replay": "always"},  # also for repeated batches
    "launches-by-task": {"persistent": "always"},  # one kernel walks narrow tasks
}
_PRECISIONS = {"tf32": "tf32", "bf16": "bfloat16"}


def device_options(case: Case) -> dict[str, Any]:
    """Return the options of a session; only defaults for the CPU."""
    options: dict[str, Any] = {} if case.device == "cpu" else {"device": case.device}
    if case.precision != "fp32":
        options["precision"] = _PRECISIONS[case.precision]
    return options


class BinaryTreeLSTM(VertexFunction):
    """Tai et al. 2015, N-ary with N = 2."""

    def __init__(self, sizes: Sizes) -> None:
        h = sizes.hidden
        self.state = State(c=h, h=h)
        self.W = Parameter((sizes.embedding, 3 * h))
        self.U = Parameter((2 * h, 5 * h))
        self.b = Parameter((5 * h,))

    def vertex(self, v: Any) -> None:
        left, right = v.gather(0), v.gather(1)
        xi, xo, xu = ops.split(v.pull("x") @ self.W, 3)
        i, o, u, f_l, f_r = ops.split(ops.concat([left.h, right.h]) @ self.U + self.b, 5)
        c = ops.sigmoid(xi + i) * ops.tanh(xu + u)
        c = c + ops.sigmoid(f_l) * left.c + ops.sigmoid(f_r) * right.c
        h = ops.sigmoid(xo + o) * ops.tanh(c)
        v.scatter(c=c, h=h)
        v.push(h)


class FullyConnected(VertexFunction):
    """h = tanh(x + [h_l, h_r] W + b): leaves have x, inner vertices have children."""

    def __init__(self, sizes: Sizes) -> None:
        self.state = State(h=sizes.hidden)
        self.W = Parameter((2 * sizes.hidden, sizes.hidden))
        self.b = Parameter((sizes.hidden,))

    def vertex(self, v: Any) -> None:
        children = ops.concat([v.gather(0).h, v.gather(1).h])
        h = ops.tanh(v.pull("x") + children @ self.W + self.b)
        v.scatter(h=h)
        v.push(h)


class Cell(VertexFunction):
    """LSTM."""

    def __init__(self, sizes: Sizes) -> None:
        h = sizes.hidden
        self.state = State(c=h, h=h)
        self.W = Parameter((sizes.embedding, 4 * h))
        self.U = Parameter((h, 4 * h))
        self.b = Parameter((4 * h,))

    def vertex(self, v: Any) -> None:
        before = v.gather(0)
        i, f, g, o = ops.split(v.pull("x") @ self.W + before.h @ self.U + self.b, 4)
        c = ops.sigmoid(f) * before.c + ops.sigmoid(i) * ops.tanh(g)
        h = ops.sigmoid(o) * ops.tanh(c)
        v.scatter(c=c, h=h)
        v.push(h)


class GatedCell(VertexFunction):
    """LSTM in the form of textbooks: a matrix for each gate."""

    def __init__(self, sizes: Sizes) -> None:
        h = sizes.hidden
        self.state = State(c=h, h=h)
        self.W_i, self.W_f, self.W_g, self.W_o = (Parameter((sizes.embedding, h)) for _ in range(4))
        self.U_i, self.U_f, self.U_g, self.U_o = (Parameter((h, h)) for _ in range(4))
        self.b = Parameter((4 * h,))

    def vertex(self, v: Any) -> None:
        x, before = v.pull("x"), v.gather(0)
        b_i, b_f, b_g, b_o = ops.split(self.b, 4)
        i = ops.sigmoid(x @ self.W_i + before.h @ self.U_i + b_i)
        f = ops.sigmoid(x @ self.W_f + before.h @ self.U_f + b_f)
        g = ops.tanh(x @ self.W_g + before.h @ self.U_g + b_g)
        o = ops.sigmoid(x @ self.W_o + before.h @ self.U_o + b_o)
        c = f * before.c + i * g
        h = o * ops.tanh(c)
        v.scatter(c=c, h=h)
        v.push(h)


class ChildSumCell(nn.ChildSumTreeLSTM):
    """Tai et al. 2015, child-sum."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes.embedding, sizes.hidden)


class Classifier(Model):
    """A vertex function between an embedding and an output layer."""

    def __init__(self, sizes: Sizes, cell: VertexFunction) -> None:
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.embedding)
        self.cell = cell
        self.output = nn.Linear(sizes.hidden, sizes.classes)

    def forward(self, batch: Any) -> Any:
        h = self.cell(batch.graph, x=self.embedding(batch["token"]))
        return self.output(h)

    def loss(self, batch: Any) -> Any:
        return ops.cross_entropy(self.forward(batch), batch["label"])


class RootClassifier(Classifier):
    """The same classifier, at the root of each graph."""

    def forward(self, batch: Any) -> Any:
        h = self.cell(batch.graph, x=self.embedding(batch["token"]))
        return self.output(ops.sum_roots(h))


# Names in the benchmarks -> names in the model; all others are the cell's.
_NAMES = {
    "embedding": "embedding.weight",
    "W_out": "output.weight",
    "b_out": "output.bias",
}


def parameter_name(name: str) -> str:
    return _NAMES.get(name, f"cell.{name}")


def graph_of(sample: Sample) -> data.Graph:
    """Return a sample as a graph with features "token" and "label"."""
    features = {"token": sample.token, "label": sample.label}
    if not isinstance(sample, Tree):
        return data.Graph.chain(len(sample), features=features)
    inner = sample.left >= 0
    offsets = np.zeros(len(sample) + 1, np.int32)
    np.cumsum(2 * inner, out=offsets[1:])
    children = np.stack([sample.left[inner], sample.right[inner]], axis=1).ravel()
    return data.Graph((offsets, children), features)


class CavsRunner(Runner):
    """Train by ``Trainer.step``, infer by ``Session.predict``.

    ``without``: compiler passes with "+" between them, or one of SWITCHES, that are switched off.
    ``precision``: of products on the CPU; a device has the case's.
    """

    cudnn = "never"
    cell: Callable[[Sizes], VertexFunction]
    classifier = Classifier

    def __init__(
        self, workload: Workload, parameters: Parameters, without: str = "", precision: str = ""
    ) -> None:
        self.precision = precision
        off = without.split("+") if without else []
        changed = dict.fromkeys([name for name in off if name not in SWITCHES], False)
        if "separate-vertices" in off:
            changed["merge_vertices"] = True
        self.passes = replace(default_passes(workload.case.device), **changed)
        self.switched = {k: v for name in off for k, v in SWITCHES.get(name, {}).items()}
        self.ahead = "launch-ahead" not in off
        # Samples become graphs once, as when a data set is read.
        self.graphs = {
            id(sample): self.graph(sample) for batch in workload.batches for sample in batch
        }
        super().__init__(workload, parameters)

    def graph(self, sample: Sample) -> data.Graph:
        return graph_of(sample)

    def load_parameters(self, parameters: Parameters) -> None:
        model = self.classifier(self.sizes, self.cell(self.sizes))
        named = model.parameters()
        for name, value in parameters.items():
            named[parameter_name(name)].value = value
        self.model, self.names = model, list(parameters)
        options = device_options(self.case)
        if self.cudnn != "never":
            options["cudnn"] = self.cudnn
        if self.precision:
            options["precision"] = self.precision
        if self.switched:
            device = options["device"]
            device = open_device(device) if isinstance(device, str) else device
            options["device"] = replace(device, **self.switched)
        self.session = Session(model, threads=self.case.threads, passes=self.passes, **options)
        rule = {"sgd": SGD, "adagrad": Adagrad}[self.case.optimizer]
        self.trainer = Trainer(model, rule(self.case.lr), session=self.session)

    def prepare(self, samples: SequenceOf[Sample]) -> data.GraphBatch:
        plan = data.batch([self.graphs[id(sample)] for sample in samples])
        self.session.prepare(plan)
        return plan

    def settle(self, plans: SequenceOf[data.GraphBatch]) -> None:
        """On a device, run passes until it is decided which plans are replayed.

        An odd number of runs per pass: two staging buffers take turns.
        """
        device = self.session.device
        replay = device.replay if device else "never"
        passes = {"auto": DECIDED + 1, "always": 7, "never": 0}[replay]
        odd = [*plans, *plans[:1]] if len(plans) % 2 == 0 else plans
        for _ in range(passes):
            if self.case.training:
                self.train_all(odd)
            else:
                for plan in odd:
                    self.infer(plan)

    def train(self, plan: data.GraphBatch) -> float:
        return self.trainer.step(plan)

    def train_all(self, plans: SequenceOf[data.GraphBatch]) -> list[float]:
        if not self.ahead:
            return super().train_all(plans)
        ended = [step for plan in plans for step in self.trainer.launch(plan)]
        return [step.outcome.loss for step in (*ended, *self.trainer.land())]

    def device_memory(self) -> int:
        """Return the bytes of the engine's blocks, as the allocator rounds them; they only grow."""
        device = self.session.device
        if device is None:
            return 0
        if device.memory is not None:
            return device.memory.used()
        return sum(self.report()["memory"].values())

    def moved(self, plans: SequenceOf[data.GraphBatch]) -> dict[str, float]:
        """Return the counts of the CPU engine; profiling is slower, so it is done last.

        gather_bytes, write_bytes and seconds of products, maps and other instructions are means
        over the plans, peak_bytes is the most of any.
        """
        if self.session.device is not None:
            return {}
        found = []
        self.session.set_profiling(True)
        for plan in plans:
            if self.case.training:
                self.session.gradients(plan)
            else:
                self.infer(plan)
            found.append(self.report())
        self.session.set_profiling(False)
        counts = ("gather_bytes", "write_bytes")
        clocks = ("product_seconds", "map_seconds", "other_seconds")
        return {
            **{key: sum(r[key] for r in found) // len(found) for key in counts},
            **{key: sum(r[key] for r in found) / len(found) for key in clocks},
            "peak_bytes": max(r["peak_bytes"] for r in found),
        }

    def infer(self, plan: data.GraphBatch) -> Any:
        return self.session.predict(plan)

    def parameters(self) -> Parameters:
        named = self.model.parameters()
        return {name: named[parameter_name(name)].value.copy() for name in self.names}

    def gradients(self, plan: data.GraphBatch) -> tuple[float, Parameters]:
        loss, found = self.session.gradients(plan)
        return loss, {
            name: np.asarray(found[parameter_name(name)])
            for name in self.names
            if parameter_name(name) in found
        }

    def logits(self, plan: data.GraphBatch) -> npt.NDArray[np.float32]:
        return np.asarray(self.session.predict(plan)["output"])[plan["label"] >= 0]

    def report(self) -> dict[str, Any]:
        """Return the engine's counts of the last run in the mode of the case."""
        return self.session.report(training=self.case.training)


class TreeLSTM(CavsRunner):
    cell = BinaryTreeLSTM


class TreeFC(CavsRunner):
    cell, classifier = FullyConnected, RootClassifier

    def graph(self, sample: Sample) -> data.Graph:
        made = super().graph(sample)
        token, label = made.features["token"], made.features["label"]
        (root,) = np.flatnonzero(label >= 0)
        return data.Graph(made.topology, {"token": token}, graph_features={"label": label[root]})


class LSTM(CavsRunner):
    cell = Cell


class ChildSum(CavsRunner):
    cell = ChildSumCell


class Lattice(ChildSum):
    """A span gathers the two spans that are a word shorter, and two that are two words shorter."""

    def graph(self, sample: Sample) -> data.Graph:
        assert isinstance(sample, Tree)
        left, right = sample.left, sample.right
        spans = [
            [] if a < 0 else [a, b] if left[a] < 0 else [a, b, left[a], right[b]]
            for a, b in zip(left, right, strict=True)
        ]
        return data.Graph(spans, {"token": sample.token, "label": sample.label})


class Gates(CavsRunner):
    cell = GatedCell


class RootLabel(CavsRunner):
    """Tree-FC whose inner vertices have the label -1, as from a reader that labels all vertices."""

    cell = FullyConnected


class CudnnLSTM(LSTM):
    """The same model, its LSTM run by cuDNN, on a GPU only."""

    cudnn = "always"
