"""Attributes of vertices, edges and graphs of other libraries, as features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cavs.errors import FeatureError


def attributes(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], owner: str, label: str, cure: str
) -> dict[str, list[Any]]:
    """Return the values of the attributes ``names``, one for every row, as features.

    An integer that a row lacks is -1. For errors: ``owner`` of a row, ``label`` of the graph,
    ``cure``: how an attribute is set. FeatureError for missing values that are not integers.
    """
    features: dict[str, list[Any]] = {}
    if isinstance(names, str):
        raise FeatureError(
            f"{label}: names of {owner} features are a list, not the text {names!r}",
            hint=f"write [{names!r}]",
        )
    for key in names:
        values = [row.get(key) for row in rows]
        known = [value for value in values if value is not None]
        if rows and not known:
            found = sorted({str(name) for row in rows for name in row})
            raise FeatureError(
                f'{label}: no {owner} has an attribute "{key}"; they have '
                f"{', '.join(found) or 'none'}",
                hint=f"correct the name, or set the attribute: {cure}",
            )
        whole = all(isinstance(value, int | np.integer) for value in known)
        if len(known) < len(values) and not whole:
            raise FeatureError(
                f'{label}: {owner} {values.index(None)} has no attribute "{key}"',
                hint="only features of integers can be absent",
            )
        features[key] = [-1 if value is None else value for value in values]
    return features
