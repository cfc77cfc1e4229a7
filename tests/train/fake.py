"""A model and an engine in NumPy: softmax regression over vertices, all optimisers, dropout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cavs.errors import GraphError

SIZE, CLASSES = 6, 3


@dataclass(frozen=True)
class FakeGraph:
    x: np.ndarray
    label: np.ndarray
    num_levels: int = 1

    @property
    def num_vertices(self) -> int:
        return len(self.x)


@dataclass
class FakeBatch:
    ids: np.ndarray
    values: dict[str, np.ndarray]
    num_graphs: int
    roots: np.ndarray
    scheduled: list[Any] = field(default_factory=list)
    nbytes: int = 1000

    @property
    def num_vertices(self) -> int:
        return len(self.values["x"])

    def __getitem__(self, name: str) -> np.ndarray:
        return self.values[name]

    def schedule(self, optional: tuple[str, ...]) -> None:
        self.scheduled.append(optional)


def collate(graphs: Sequence[FakeGraph], ids: np.ndarray) -> FakeBatch:
    for i, graph in zip(ids, graphs, strict=True):
        if graph.num_vertices == 0:
            raise GraphError("a graph without vertices", hint="leave it out")
        if graph.num_levels < 0:
            raise RuntimeError(f"levels {graph.num_levels} at {i}")
    values = {k: np.concatenate([getattr(g, k) for g in graphs]) for k in ("x", "label")}
    ends = np.cumsum([g.num_vertices for g in graphs]) - 1
    return FakeBatch(np.asarray(ids), values, len(graphs), ends)


def make_graphs(count: int, seed: int = 0) -> list[FakeGraph]:
    rng = np.random.default_rng(seed)
    truth = np.random.default_rng(99).normal(size=(SIZE, CLASSES))
    graphs = []
    for _ in range(count):
        n = int(rng.integers(1, 9))
        x = rng.normal(size=(n, SIZE))
        label = (x @ truth).argmax(axis=1)
        label[rng.random(n) < 0.1] = -1
        label[-1] = (x[-1] @ truth).argmax()
        graphs.append(FakeGraph(x, label, n % 4))
    return graphs


@dataclass
class FakeParameter:
    name: str
    value: np.ndarray
    trainable: bool = True
    sparse: bool = False


class FakeModel:
    def __init__(self, dtype: type = np.float32) -> None:
        rng = np.random.default_rng(5)
        arrays = {
            "output.W": 0.1 * rng.normal(size=(SIZE, CLASSES)),
            "output.b": np.zeros(CLASSES),
            "output.scale": np.ones(()),
        }
        self._parameters = {
            name: FakeParameter(name, np.array(a, dtype=dtype), name != "output.scale")
            for name, a in arrays.items()
        }

    def parameters(self) -> dict[str, FakeParameter]:
        return self._parameters


@dataclass
class Outcome:
    loss: float
    grad_norm: float


@dataclass
class Evaluation:
    loss: float
    outputs: dict[str, np.ndarray]
    weight: float


def update(value: Any, g: Any, states: list[Any], h: dict[str, Any]) -> None:
    """The rules of the optimisers, as the engine has them."""
    lr, decay = h["lr"], h["weight_decay"]
    if h["kind"] == "adamw":
        value -= lr * decay * value
    else:
        g = g + decay * value
    if h["kind"] == "sgd":
        value -= lr * g
    elif h["kind"] == "momentum":
        (m,) = states
        m[...] = h["momentum"] * m + g
        value -= lr * (g + h["momentum"] * m if h["nesterov"] else m)
    elif h["kind"] == "adagrad":
        (s,) = states
        s += g * g
        value -= lr * g / (np.sqrt(s) + h["eps"])
    else:
        m, v = states
        m[...] = h["beta1"] * m + (1 - h["beta1"]) * g
        v[...] = h["beta2"] * v + (1 - h["beta2"]) * g * g
        value -= lr * (m / h["bias1"]) / (np.sqrt(v / h["bias2"]) + h["eps"])


class FakeSession:
    def __init__(self, model: FakeModel, dropout: float = 0.1) -> None:
        self.model, self.dropout = model, dropout
        self.optional_features = ("x",)
        self.batches: list[list[int]] = []
        self.changed = 0
        self.on_step: Any = None

    def parameters_changed(self) -> None:
        self.changed += 1

    def _forward(self, x: np.ndarray, label: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        p = self.model.parameters()
        logits = x @ p["output.W"].value + p["output.b"].value
        shifted = logits - logits.max(axis=1, keepdims=True)
        logp = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        known = label >= 0
        grad = np.exp(logp)
        grad[np.arange(len(x)), np.where(known, label, 0)] -= 1
        grad[~known] = 0
        loss = -logp[known, label[known]].sum() / max(known.sum(), 1)
        return float(loss), logits, grad / max(known.sum(), 1)

    def step(
        self,
        batch: FakeBatch,
        hyper: dict[str, Any],
        states: list[list[np.ndarray]],
        *,
        seed: int,
        step: int,
        max_norm: float | None,
    ) -> Outcome:
        assert batch.scheduled, "the schedule was not made"
        self.batches.append(batch.ids.tolist())
        rng = np.random.default_rng((seed, step))
        x = batch["x"] * (rng.random(batch["x"].shape) >= self.dropout)
        loss, _, grad = self._forward(x, batch["label"])
        grads = {"output.W": x.T @ grad, "output.b": grad.sum(axis=0)}
        norm = float(np.sqrt(sum((g * g).sum() for g in grads.values())))
        if np.isfinite(loss) and np.isfinite(norm):
            scale = 1.0 if max_norm is None or norm <= max_norm else max_norm / norm
            for (name, p), arrays in zip(self.model.parameters().items(), states, strict=True):
                if p.trainable:
                    update(p.value, grads[name] * scale, arrays, hyper)
        if self.on_step is not None:
            self.on_step(step)
        return Outcome(loss, norm)

    def evaluate(self, batch: FakeBatch) -> Evaluation:
        assert batch.scheduled, "the schedule was not made"
        loss, logits, _ = self._forward(batch["x"], batch["label"])
        return Evaluation(loss, {"logits": logits}, float((batch["label"] >= 0).sum()))
