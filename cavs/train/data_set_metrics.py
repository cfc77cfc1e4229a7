"""Metrics that are computed from the rows of a whole data set: correlations, F1, AUC.

Such a metric is no sum over a count. It collects rows of numbers from every batch, and computes
its value from all of them, in the order of the data. On many ranks these are the rows of one
process, so the value has the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cavs.config import require
from cavs.errors import ConfigError, FeatureError
from cavs.train.metric_inputs import known_rows, labels_of, output_of

Rows = NDArray[np.float64]
Collect = Callable[[Mapping[str, Any], Any], ArrayLike]
Compute = Callable[[Rows], float]


@dataclass(frozen=True)
class DataSetMetric:
    """A named metric of all rows of a data set.

    collect: ``(outputs, batch) -> rows``, an array of numbers [rows] or [rows, columns], with as
    many columns in every batch. compute: ``rows -> float``, from the rows of all batches as
    float64. better: Direction of progress.
    """

    name: str
    collect: Collect
    compute: Compute
    better: Literal["lower", "higher"] = "higher"

    def rows(self, outputs: Mapping[str, Any], batch: Any) -> Rows:
        """Return the rows of a batch; `ConfigError` if `collect` returns no array of numbers."""
        found = self.collect(outputs, batch)
        try:
            rows = np.asarray(found)
            numeric = rows.dtype.kind in "biuf" and rows.ndim in (1, 2)
        except (TypeError, ValueError):  # lists of different lengths
            numeric = False
        if not numeric:
            raise ConfigError(
                f"metric {self.name!r} collected {found!r:.80}, but must return an array of "
                "numbers, [rows] or [rows, columns]",
                hint="such as np.stack([scores, labels], axis=1), with a row for each label",
            )
        return rows.astype(np.float64)

    def value(self, parts: Sequence[Rows]) -> float:
        """Return the value from the rows of all batches; NaN without a row.

        Raises `ConfigError` if batches have other numbers of columns than others, or if `compute`
        returns no number.
        """
        shapes = {part.shape[1:] for part in parts}
        if len(shapes) > 1:
            raise ConfigError(
                f"metric {self.name!r} collected rows of the shapes "
                f"{', '.join(map(str, sorted(shapes)))}",
                hint="collect as many columns from every batch",
            )
        rows = np.concatenate(parts) if parts else np.empty(0)
        if len(rows) == 0:
            return math.nan
        found = self.compute(rows)
        try:
            return float(found)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"metric {self.name!r} computed {found!r:.80}, but must return a number",
                hint="compute is a function rows -> float",
            ) from error

    def score(self, value: float) -> float:
        """Return `value` with the sign for which lower is better."""
        return value if self.better == "lower" else -value


def pearson(output: str = "output", label: str = "label", name: str = "pearson") -> DataSetMetric:
    """Pearson's correlation of an output of one number a row with the labels.

    Integer labels of -1 stand for none. NaN if outputs or labels are all equal.
    """
    return DataSetMetric(name, partial(_numbers, output, label), _pearson)


def spearman(output: str = "output", label: str = "label", name: str = "spearman") -> DataSetMetric:
    """Spearman's correlation, that of ranks; equal numbers share their mean rank. See `pearson`."""
    return DataSetMetric(name, partial(_numbers, output, label), _spearman)


def f1(
    average: Literal["macro", "micro", "binary"] = "macro",
    *,
    positive: int = 1,
    output: str = "output",
    label: str = "label",
    name: str = "f1",
) -> DataSetMetric:
    """F1 of the largest logit of rows with ``label >= 0``.

    ``"macro"``: mean of the F1 of each class that is a label or a prediction of a row. ``"micro"``:
    from the counts of all classes together. ``"binary"``: F1 of the class `positive`. An output of
    one number a row predicts class 1 where it is above 0. A class that is neither has F1 0.
    """
    known = ("macro", "micro", "binary")
    require(average in known, "average", average, "'macro', 'micro' or 'binary'")
    collect = partial(_classes, output, label)
    return DataSetMetric(name, collect, partial(_f1, average, positive))


def auc(output: str = "output", label: str = "label", name: str = "auc") -> DataSetMetric:
    """Area under the ROC curve: the share of pairs of rows that the output orders as the labels do.

    ``outputs[output]`` is one number a row, or two logits, whose difference counts; labels are 0, 1
    and -1 for none. A pair with equal outputs counts half. NaN if there is only one class.
    """
    return DataSetMetric(name, partial(_scores, output, label), _auc)


def _numbers(output: str, label: str, outputs: Mapping[str, Any], batch: Any) -> Rows:
    values = output_of(outputs, output)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise FeatureError(
            f"a correlation needs one number a row, but {output!r} has shape {values.shape}",
            hint="pass output=, an output of one column, such as that of nn.Linear(n, 1)",
        )
    labels = labels_of(batch, label, len(values))
    known = known_rows(labels)
    return np.stack([values[known], labels[known]], axis=1).astype(np.float64)


def _classes(output: str, label: str, outputs: Mapping[str, Any], batch: Any) -> Rows:
    logits = output_of(outputs, output)
    labels = labels_of(batch, label, len(logits))
    known = labels >= 0
    logits = logits[known] if logits.ndim > 1 else logits[known, None]
    found = logits.argmax(axis=1) if logits.shape[1] > 1 else logits[:, 0] > 0
    return np.stack([found, labels[known]], axis=1).astype(np.float64)


def _scores(output: str, label: str, outputs: Mapping[str, Any], batch: Any) -> Rows:
    scores = output_of(outputs, output).astype(np.float64)
    scores = scores if scores.ndim > 1 else scores[:, None]
    labels = labels_of(batch, label, len(scores))
    if scores.shape[1] > 2 or (labels > 1).any():
        raise FeatureError(
            f"auc needs two classes, but {output!r} has {scores.shape[1]} columns and the labels "
            f"go up to {labels.max(initial=0)}",
            hint="labels are 0 and 1; metrics.f1() takes more classes",
        )
    score = scores[:, 0] if scores.shape[1] == 1 else scores[:, 1] - scores[:, 0]
    known = labels >= 0
    return np.stack([score[known], labels[known]], axis=1)


def _pearson(rows: Rows) -> float:
    # Sums are exact before they are rounded, so that the result depends on no library or machine.
    x, y = (column - math.fsum(column) / len(column) for column in rows.T)
    # A column of equal numbers may differ from its rounded mean.
    if any(np.ptp(column) == 0 for column in rows.T):
        return math.nan
    x, y = (column / abs(column).max() for column in (x, y))  # so that no product overflows
    xx, yy, xy = (math.fsum(product) for product in (x * x, y * y, x * y))
    return min(1.0, max(-1.0, xy / math.sqrt(xx * yy)))


def _spearman(rows: Rows) -> float:
    return _pearson(np.stack([_ranks(column) for column in rows.T], axis=1))


def _ranks(values: Rows) -> Rows:
    """Return the rank of each value, counted from 1; equal values have the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Rows = (last - (counts - 1) / 2)[inverse]
    return ranks


def _f1(average: str, positive: int, rows: Rows) -> float:
    found, labels = rows.astype(np.int64).T
    size = int(max(found.max(), labels.max(), positive)) + 1
    right = np.bincount(found[found == labels], minlength=size)
    both = np.bincount(found, minlength=size) + np.bincount(labels, minlength=size)
    if average == "micro":
        return float(2 * right.sum() / both.sum())
    scores = 2 * right / np.maximum(both, 1)
    return float(
        scores[positive]
        if average == "binary"
        else math.fsum(scores[both > 0]) / np.count_nonzero(both)
    )


def _auc(rows: Rows) -> float:
    ranks, positive = _ranks(rows[:, 0]), rows[:, 1] == 1
    many, few = int(positive.sum()), int((~positive).sum())
    if many == 0 or few == 0:
        return math.nan
    # Ranks are halves of integers, so that the sum is exact.
    return float((ranks[positive].sum() - many * (many + 1) / 2) / (many * few))
