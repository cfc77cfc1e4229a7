"""Metrics of an evaluation.

A metric is a function ``(outputs, batch) -> (sum, count)``; its value over a data set is the sum
of sums over the sum of counts. `Metric` adds the direction of progress and a final transformation.
``outputs`` holds the outputs of ``Model.forward`` by name (``"output"`` for a single value) and,
always, ``"loss"`` (mean of the batch) and ``"weight"`` (number of terms in that mean).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cavs.config import require
from cavs.errors import ConfigError, FeatureError

Measure = Callable[[Mapping[str, Any], Any], tuple[float, float]]


@dataclass(frozen=True)
class Metric:
    """A named measure.

    better: Direction of progress. finish: Transformation of the mean over the data set.
    """

    name: str
    measure: Measure
    better: Literal["lower", "higher"] = "higher"
    finish: Callable[[float], float] = float

    def __call__(self, outputs: Mapping[str, Any], batch: Any) -> tuple[float, float]:
        """Return sum and count over one batch; `ConfigError` if the measure returns others."""
        found = self.measure(outputs, batch)
        try:
            part, count = found
            return float(part), float(count)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"metric {self.name!r} returned {found!r:.80}, but must return two numbers",
                hint=f"call it: metrics.{self.name}()"
                if isinstance(found, Metric)
                else "a metric is a function (outputs, batch) -> (sum, count)",
            ) from error

    def score(self, value: float) -> float:
        """Return `value` with the sign for which lower is better."""
        return value if self.better == "lower" else -value


def as_metrics(
    metrics: Iterable[Metric | Measure] | Mapping[str, Metric | Measure],
) -> list[Metric]:
    """Return `metrics` as `Metric`s; `ConfigError` if a name is not unique."""
    named: list[tuple[str, Metric | Measure]]
    if isinstance(metrics, Mapping):
        named = list(metrics.items())
    else:
        require(isinstance(metrics, Iterable), "metrics", metrics, "a list or dict of metrics")
        named = [(getattr(m, "name", getattr(m, "__name__", "metric")), m) for m in metrics]
    result: list[Metric] = []
    for name, metric in named:
        if not callable(metric):
            raise ConfigError(
                f"metric {name!r} is {metric!r}, but must be a function",
                hint="such as cavs.train.metrics.accuracy(), or (outputs, batch) -> (sum, count)",
            )
        if isinstance(metric, Metric):
            result.append(Metric(name, metric.measure, metric.better, metric.finish))
        else:
            result.append(Metric(name, metric))
    names = [m.name for m in result] + ["loss"]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"several metrics are called {twice[0]!r}", hint='pass metrics={"name": metric, ...}'
        )
    return result


def _logits(outputs: Mapping[str, Any], output: str) -> NDArray[Any]:
    if output in outputs:
        return np.asarray(outputs[output])
    names = sorted(set(outputs) - {"loss", "weight"})
    raise FeatureError(
        f"the metric reads the output {output!r}, but the model has {names}",
        hint=f"pass output={names[0]!r}" if names else "define forward(self, batch) of the model",
    )


def _feature(batch: Any, label: str) -> NDArray[Any]:
    if label not in batch:
        raise FeatureError(
            f"the metric reads the labels {label!r}, but the batch has none: {batch!r}",
            hint="pass label=, the name of the feature with the labels",
        )
    return np.asarray(batch[label])


def _labels(batch: Any, label: str, rows: int) -> NDArray[Any]:
    labels = _feature(batch, label)
    if labels.shape != (rows,):
        raise FeatureError(
            f"label {label!r} has shape {labels.shape}, but the output has {rows} rows",
            hint="labels are one number per row of the output: per vertex, or per graph if the "
            "output is one of ops.sum_roots or ops.mean_graph",
        )
    return labels


def accuracy(output: str = "output", label: str = "label", name: str = "accuracy") -> Metric:
    """Share of rows with ``label >= 0`` whose largest logit is the label's.

    ``outputs[output]`` is ``[rows, classes]``, ``batch[label]`` ``int[rows]``.
    """
    return Metric(name, partial(_accuracy, output, label))


def _accuracy(
    output: str, label: str, outputs: Mapping[str, Any], batch: Any
) -> tuple[float, float]:
    logits = _logits(outputs, output)
    labels = _labels(batch, label, len(logits))
    known = labels >= 0
    right = logits[known].argmax(axis=1) == labels[known]
    return float(right.sum()), float(known.sum())


def root_accuracy(
    output: str = "output", label: str = "label", name: str = "root_accuracy"
) -> Metric:
    """`accuracy` over the roots (the vertices no other vertex gathers from)."""
    return Metric(name, partial(_root_accuracy, name, output, label))


def _root_accuracy(
    name: str, output: str, label: str, outputs: Mapping[str, Any], batch: Any
) -> tuple[float, float]:
    logits = _logits(outputs, output)
    labels = _labels(batch, label, len(logits))
    if len(labels) != batch.num_vertices:
        raise FeatureError(
            f"{name} needs one row per vertex, but {output!r} has {len(labels)} rows for "
            f"{batch.num_vertices} vertices",
            hint="for one row per graph pass metrics.accuracy()",
        )
    roots = batch_roots(batch)
    roots = roots[labels[roots] >= 0]
    right = logits[roots].argmax(axis=1) == labels[roots]
    return float(right.sum()), float(len(roots))


def batch_roots(batch: Any) -> NDArray[np.int64]:
    """Return the vertices of a `GraphBatch` that no vertex gathers from, in ascending order."""
    is_root = np.ones(batch.num_vertices, dtype=np.bool_)
    is_root[batch.topology.children] = False
    return np.flatnonzero(is_root)


def perplexity(label: str = "label", name: str = "perplexity") -> Metric:
    """``exp`` of the loss, for a loss that is the mean cross-entropy over labels >= 0."""
    return Metric(name, partial(_perplexity, label), "lower", _exp)


def _perplexity(label: str, outputs: Mapping[str, Any], batch: Any) -> tuple[float, float]:
    count = float(np.count_nonzero(_feature(batch, label) >= 0))
    return float(outputs["loss"]) * count, count


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
