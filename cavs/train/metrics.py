"""Metrics of an evaluation.

A metric is a function ``(outputs, batch) -> (sum, count)``; its value over a data set is the sum
of sums over the sum of counts. `Metric` adds the direction of progress and a final transformation.
``outputs`` holds the outputs of ``Model.forward`` by name (``"output"`` for a single value) and,
always, ``"loss"`` (mean of the batch) and ``"weight"`` (number of terms in that mean). A
`DataSetMetric` needs the rows of the whole data set instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cavs.config import require
from cavs.errors import ConfigError, FeatureError
from cavs.train.data_set_metrics import DataSetMetric, auc, f1, pearson, spearman
from cavs.train.metric_inputs import feature_of, labels_of, output_of

__all__ = [
    "AnyMetric",
    "DataSetMetric",
    "Measure",
    "Metric",
    "accuracy",
    "as_metrics",
    "auc",
    "batch_roots",
    "f1",
    "pearson",
    "perplexity",
    "root_accuracy",
    "spearman",
]

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


AnyMetric = Metric | DataSetMetric


def as_metrics(
    metrics: Iterable[AnyMetric | Measure] | Mapping[str, AnyMetric | Measure],
) -> list[AnyMetric]:
    """Return metrics, functions as `Metric`s; `ConfigError` if a name is not unique."""
    named: list[tuple[str, AnyMetric | Measure]]
    if isinstance(metrics, Mapping):
        named = list(metrics.items())
    else:
        require(isinstance(metrics, Iterable), "metrics", metrics, "a list or dict of metrics")
        named = [(getattr(m, "name", getattr(m, "__name__", "metric")), m) for m in metrics]
    result: list[AnyMetric] = []
    for name, metric in named:
        if isinstance(metric, Metric | DataSetMetric):
            result.append(replace(metric, name=name))
        elif callable(metric):
            result.append(Metric(name, metric))
        else:
            raise ConfigError(
                f"metric {name!r} is {metric!r}, but must be a function",
                hint="such as cavs.train.metrics.accuracy(), or (outputs, batch) -> (sum, count)",
            )
    names = [m.name for m in result] + ["loss"]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"several metrics are called {twice[0]!r}", hint='pass metrics={"name": metric, ...}'
        )
    return result


def accuracy(output: str = "output", label: str = "label", name: str = "accuracy") -> Metric:
    """Share of rows with ``label >= 0`` whose largest logit is the label's.

    ``outputs[output]`` is ``[rows, classes]``, ``batch[label]`` ``int[rows]``.
    """
    return Metric(name, partial(_accuracy, output, label))


def _accuracy(
    output: str, label: str, outputs: Mapping[str, Any], batch: Any
) -> tuple[float, float]:
    logits = output_of(outputs, output)
    labels = labels_of(batch, label, len(logits))
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
    logits = output_of(outputs, output)
    labels = labels_of(batch, label, len(logits))
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
    count = float(np.count_nonzero(feature_of(batch, label) >= 0))
    return float(outputs["loss"]) * count, count


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
