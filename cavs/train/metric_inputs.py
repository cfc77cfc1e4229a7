"""Outputs and labels of a batch, as metrics read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.errors import FeatureError


def output_of(outputs: Mapping[str, Any], output: str) -> NDArray[Any]:
    """Return an output of the model; `FeatureError` if it has none of that name."""
    if output in outputs:
        return np.asarray(outputs[output])
    names = sorted(set(outputs) - {"loss", "weight"})
    raise FeatureError(
        f"the metric reads the output {output!r}, but the model has {names}",
        hint=f"pass output={names[0]!r}" if names else "define forward(self, batch) of the model",
    )


def feature_of(batch: Any, label: str) -> NDArray[Any]:
    """Return a feature of the batch; `FeatureError` if it has none of that name."""
    if label not in batch:
        raise FeatureError(
            f"the metric reads the labels {label!r}, but the batch has none: {batch!r}",
            hint="pass label=, the name of the feature with the labels",
        )
    return np.asarray(batch[label])


def labels_of(batch: Any, label: str, rows: int) -> NDArray[Any]:
    """Return the labels of an output of `rows` rows; `FeatureError` unless there is one a row."""
    labels = feature_of(batch, label)
    if labels.shape != (rows,):
        raise FeatureError(
            f"label {label!r} has shape {labels.shape}, but the output has {rows} rows",
            hint="labels are one number per row of the output: per vertex, or per graph if the "
            "output is one of ops.sum_roots or ops.mean_graph",
        )
    return labels


def known_rows(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Return True for each row with a label; -1 stands for none among integers."""
    whole = np.issubdtype(labels.dtype, np.integer)
    return labels >= 0 if whole else np.ones(len(labels), np.bool_)
