"""A model and an engine in NumPy: softmax regression over vertices, all optimisers, dropout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cavs.data import Graph, GraphBatch
from cavs.distributed.sync.stale_server.owner import optimiser

SIZE, CLASSES = 6, 3


def make_graph(x: Any, label: Any) -> Graph:
    return Graph.chain(len(x), features={"x": x, "label": label})


def make_graphs(count: int, seed: int = 0) -> list[Graph]:
    rng = np.random.default_rng(seed)
    truth = np.random.default_rng(99).normal(size=(SIZE, CLASSES))
    graphs = []
    for _ in range(count):
        n = int(rng.integers(1, 9))
        x = rng.normal(size=(n, SIZE))
        label = (x @ truth).argmax(axis=1)
        label[rng.random(n) < 0.1] = -1
        label[-1] = (x[-1] @ truth).argmax()
        graphs.append(make_graph(x, label))
    return graphs


@dataclass
class FakeParameter:
    name: str
    value: np.ndarray
    trainable: bool = True
    sparse: bool = False

    def current(self) -> np.ndarray:
        return self.value


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
    """Apply the rule of an optimiser as the engine does; a traced one by the engine."""
    if h["program"] is not None:
        piece = (0, g.reshape(-1).astype(value.dtype), None, None, 0)
        optimiser([value]).apply([piece], h, [states], [True], 1.0)
        return
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
    overlaps = False

    def __init__(self, model: FakeModel, dropout: float = 0.1) -> None:
        self.model, self.dropout = model, dropout
        self.batches: list[list[int]] = []
        self.changed = 0
        self.on_step: Any = None
        self.poison: int | None = None  # a graph whose loss is NaN

    def prepare(self, batch: GraphBatch, training: bool = True) -> None:
        batch.schedule(("label",))

    def keep_dtype(self) -> None:
        pass

    def invalidate(self) -> None:
        self.changed += 1

    def state_dict(self) -> dict[str, Any]:
        return {"steps": len(self.batches)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.restored = state["steps"]

    def predict(self, batch: GraphBatch) -> dict[str, np.ndarray]:
        assert batch._schedules, "the schedule was not made"
        return {"output": self._forward(batch["x"], batch["label"])[1]}

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
        batch: GraphBatch,
        hyper: dict[str, Any],
        states: list[list[np.ndarray]],
        *,
        seed: int,
        step: int,
        max_norm: float | None,
    ) -> Outcome:
        assert batch._schedules, "the schedule was not made"
        self.batches.append(list(batch.ids))
        rng = np.random.default_rng((seed, step))
        x = batch["x"] * (rng.random(batch["x"].shape) >= self.dropout)
        loss, _, grad = self._forward(x, batch["label"])
        grads = {"output.W": x.T @ grad, "output.b": grad.sum(axis=0)}
        if self.poison in batch.ids:
            loss = float("nan")
        norm = float(np.sqrt(sum((g * g).sum() for g in grads.values())))
        if np.isfinite(loss) and np.isfinite(norm):
            scale = 1.0 if max_norm is None or norm <= max_norm else max_norm / norm
            for (name, p), arrays in zip(self.model.parameters().items(), states, strict=True):
                if p.trainable:
                    update(p.value, grads[name] * scale, arrays, hyper)
        if self.on_step is not None:
            self.on_step(step)
        return Outcome(loss, norm)

    def evaluate(self, batch: GraphBatch) -> Evaluation:
        assert batch._schedules, "the schedule was not made"
        loss, logits, _ = self._forward(batch["x"], batch["label"])
        return Evaluation(loss, {"output": logits}, float((batch["label"] >= 0).sum()))
