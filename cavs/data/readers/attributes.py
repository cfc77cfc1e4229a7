"""Attributes of vertices, edges and graphs of other libraries, as features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from cavs.errors import FeatureError

NO_TYPE_FEATURES: Mapping[str, Sequence[str]] = MappingProxyType({})


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


def typed_attributes(
    rows: Sequence[Mapping[str, Any]],
    types: str | None,
    names: Mapping[str, Sequence[str]],
    features: Iterable[str],
    label: str,
    cure: str,
) -> tuple[list[Any] | None, dict[str, dict[str, list[Any]]]]:
    """Return the type of every vertex, and the features of each type.

    types: the attribute that is the type of a vertex; None where vertices have no types. names: of
    the attributes that become features, by type. features: names of those of all vertices.
    FeatureError as for `attributes`, for ``names`` without ``types``, and for a type with the name
    of a feature.
    """
    if types is None:
        if names:
            raise FeatureError(
                f"{label}: type_features names attributes of types, but no attribute is the type",
                hint='types="op" takes the attribute "op" of a vertex as its type',
            )
        return None, {}
    if twice := sorted(set(names).intersection(features)):
        raise FeatureError(
            f"{label}: {twice[0]!r} is a type of vertices and a feature of all of them",
            hint="rename one of them in the data",
        )
    found = attributes(rows, [types], "vertex", label, cure)[types]
    typed = {}
    for key, own in names.items():
        of_type = [row for row, of in zip(rows, found, strict=True) if of == key]
        typed[key] = attributes(of_type, own, f'"{key}" vertex', label, cure)
    return found, typed
