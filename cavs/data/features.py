"""Checks and conversion of the features of graphs and batches."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cavs.errors import FeatureError, renamed

Array = NDArray[Any]
FeatureDomain = Literal["vertex", "edge", "graph", "pair"]

_COLUMN = re.compile(r"#(.*)\[:, (\d+)\]", re.DOTALL)

MAX_OPTIONAL = 32  # presence bits of a vertex, as the engine numbers kinds

#: The default of arguments that take features.
NO_FEATURES: Mapping[str, ArrayLike] = MappingProxyType({})

_INT32 = np.iinfo(np.int32)
_ROWS: dict[FeatureDomain, str] = {
    "vertex": "give a row for every vertex, -1 where an integer is absent; graph_features= takes "
    "features of the whole graph",
    "edge": "give a row for every edge, ordered by parent and position of the child",
    "graph": "",
    "pair": "",
}
_ROWS_OF_TYPE = (
    "give a row for every vertex of the type, in the order of the vertices; the graph's types name "
    "that of each vertex"
)


@renamed({"kind": "domain"})
class FeatureSpec(NamedTuple):
    """The part of a feature that a model is compiled for.

    ``domain``: it has one row for every vertex, every edge, the graph, or every pair of a link;
    ``dtype``: int (int32) or float (float32); ``shape``: of one row; ``has_absent``: True if an int
    feature holds -1; ``type``: of the vertices that have it, "" for all.
    """

    domain: FeatureDomain
    dtype: Literal["int", "float"]
    shape: tuple[int, ...]
    has_absent: bool
    type: str = ""


def feature_name(owner: str, name: str) -> str:
    """Return the name of a feature of a type of vertices, or of a structure of samples."""
    return f"{owner}.{name}"


def link_feature(target: str, link: str, name: str) -> str:
    """Return the name of a feature of a link, which belongs to the structure that it leads from."""
    return feature_name(target, f"link {feature_name(link, name)}")


def link_parts(name: str) -> tuple[str, str, str]:
    """Return structure, link and feature that `link_feature` has joined; no link for others."""
    owner, _, own = name.partition(".")
    link, dot, feature = own.removeprefix("link ").partition(".")
    return (owner, link, feature) if dot and own.startswith("link ") else (owner, "", own)


def owner_of(name: str) -> tuple[str, str]:
    """Return the owner, "" where there is none, and the feature that `feature_name` has joined."""
    owner, dot, feature = name.partition(".")
    return (owner, feature) if dot else ("", name)


def types_in(types: Sequence[str], structure: str) -> list[str]:
    """Return the types of a structure among those of samples, with "" in place of others."""
    owners = (owner_of(name) for name in types)
    return [own if owner == structure else "" for owner, own in owners]


def check_number_of_optional(names: Sequence[str], most: int) -> None:
    """FeatureError for more features that may be absent than ``most``."""
    if len(names) > most:
        raise FeatureError(
            f"{len(names)} features may be absent; at most {most} can",
            hint="give vertices without such a feature an index of their own instead of -1",
        )


def spec_of(
    domain: FeatureDomain, values: Array, has_absent: bool, vertex_type: str = ""
) -> FeatureSpec:
    """Return the `FeatureSpec` of a feature with the rows ``values``."""
    dtype: Literal["int", "float"] = "int" if values.dtype == np.int32 else "float"
    return FeatureSpec(domain, dtype, values.shape[1:], has_absent, vertex_type)


def _first(wrong: NDArray[np.bool_], row: str) -> str:
    """Return the position of the first wrong value in words; row: the name of a row."""
    if row == "graph":
        return ""
    return f" at {row} {int(np.argwhere(wrong)[0][0])}"


def _integers(array: Array, row: str, what: str) -> Array:
    if array.dtype.kind != "b" and array.size:
        too_small, too_large = array < -1, array > _INT32.max
        if too_small.any():
            found = array[too_small][0]
            raise FeatureError(
                f"{what} holds {found}{_first(too_small, row)}; "
                "an index is at least 0, or -1 where the feature is absent",
                hint="-1 stands for no value, such as a missing label; give numbers that are no "
                "indices as floats",
            )
        if too_large.any():
            found = array[too_large][0]
            raise FeatureError(
                f"{what} holds {found}{_first(too_large, row)}; the largest index is {_INT32.max}",
                hint="count indices from 0, as cavs.data.Vocabulary does; give numbers that are no "
                "indices as floats",
            )
    return array.astype(np.int32, order="C")


def _floats(array: Array, row: str, what: str) -> Array:
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32, order="C")
    wrong = ~np.isfinite(narrow)
    if wrong.any():
        found = array[wrong][0]
        cure = (
            "clean the data, or mark absence by an int feature"
            if not np.isfinite(found)
            else f"float32 ends at {np.finfo(np.float32).max:.4g}; scale the feature"
        )
        raise FeatureError(f"{what} holds {found}{_first(wrong, row)}", hint=cure)
    return narrow


def column_name(name: str, column: int) -> str:
    """Return the name by which programs read one column of an index feature."""
    return f"#{name}[:, {column}]"


def split_name(name: str) -> tuple[str, int | None]:
    """Return the feature that a program reads by ``name``, and the column; None for all of it."""
    found = _COLUMN.fullmatch(name) if name.startswith("#") else None
    return (name, None) if found is None else (found[1], int(found[2]))


def numbers(values: ArrayLike, what: str) -> Array:
    """Return ``values`` as an array; FeatureError if they are no numbers, or rows are ragged."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise FeatureError(
            f"{what} has rows of unequal length: {error}",
            hint="pad all rows to one length, or make vertices of values whose number varies",
        ) from None
    if array.dtype.kind not in "biuf":
        raise FeatureError(
            f"{what} needs integers, booleans or floats, found dtype {array.dtype}",
            hint=_cure(array),
        )
    return array


def _cure(array: NDArray[Any]) -> str:
    """Return how values of a type that is not numeric become numbers."""
    if array.dtype.kind == "O":
        types = {type(x) for x in array.flat}
        if type(None) in types and not types & {str, bytes}:
            if any(issubclass(t, float | np.floating) for t in types):
                return "a float cannot be absent: give 0, and mark absence by -1 in an int feature"
            return "-1 stands for an integer that is absent: write it in place of None"
        if types <= {int}:
            return f"the largest index is {_INT32.max}; give numbers that are no indices as floats"
        if not types <= {str, bytes, type(None)}:
            names = ", ".join(sorted(t.__name__ for t in types))
            return f"give ints or floats for every {names}, such as float(value)"
    return {
        "c": "give real and imaginary part as two columns",
        "M": "give times as floats, such as seconds since the first one",
        "m": "give durations as floats, such as seconds",
        "V": "give each field as a feature of its own",
    }.get(array.dtype.kind, "cavs.data.Vocabulary turns strings into indices")


def check_feature(
    name: str,
    values: ArrayLike,
    domain: FeatureDomain,
    rows: int | None,
    label: str,
    vertex_type: str = "",
) -> Array:
    """Return a feature as a read-only int32 or float32 copy, C-contiguous.

    ``rows``: the length it must have, None for a feature of the graph itself, which is one row.
    ``vertex_type``: of the vertices that have it, "" for all. Raises FeatureError, naming ``label``
    (the graph), the feature and the first bad row.
    """
    of = f' of type "{vertex_type}"' if vertex_type else ""
    what, row = f'{label}: {domain} feature "{name}"{of}', "row" if of else domain
    if isinstance(values, np.ma.MaskedArray) and values.mask.any():  # NumPy drops the mask
        raise FeatureError(
            f"{what} is masked{_first(np.atleast_1d(values.mask), row)}",
            hint="fill it, integers with -1 for absent: values.filled(-1)",
        )
    array = numbers(values, what)
    if rows is not None and (array.ndim == 0 or array.shape[0] != rows):
        found = "a single number" if array.ndim == 0 else f"{array.shape[0]} rows"
        raise FeatureError(
            f"{what} has {found}, but the graph has {rows} {_plural(domain)}{of}",
            hint=_ROWS_OF_TYPE if of else _ROWS[domain],
        )
    checked = (_floats if array.dtype.kind == "f" else _integers)(array, row, what)
    checked.flags.writeable = False
    return checked


def _plural(domain: FeatureDomain) -> str:
    return {"vertex": "vertices", "edge": "edges", "graph": "graphs", "pair": "pairs"}[domain]


def check_features(
    features: Mapping[str, ArrayLike],
    domain: FeatureDomain,
    rows: int | None,
    label: str,
    vertex_type: str = "",
) -> Mapping[str, Array]:
    """Return ``check_feature`` of every feature; the result is read-only and keeps the order.

    An empty list for no edges, or for no vertices, of a type or at all, has no dtype: it is left
    out.
    """
    may_be_empty = domain != "graph"
    if not isinstance(features, Mapping):
        raise FeatureError(
            f"{label}: {domain} features are a dict of arrays, not {features!r:.80}",
            hint='give them by name: {"token": rows}',
        )
    for name in features:
        if not isinstance(name, str):
            raise FeatureError(
                f"{label}: names of features are texts, found {name!r:.80}", hint=f'"{name}"'
            )
    return MappingProxyType(
        {
            name: check_feature(name, values, domain, rows, label, vertex_type)
            for name, values in features.items()
            if not may_be_empty or rows or not isinstance(values, list | tuple) or values
        }
    )


def names_of(schema: tuple[Any, ...]) -> list[str]:
    """Return the names of the features of a schema, in its order."""
    return [entry[0] for group in schema for entry in group]


_NO_NAMES: frozenset[str] = frozenset()


def names_where(schema: tuple[Any, ...], chosen: Sequence[bool]) -> frozenset[str]:
    """Return the names of the features of a schema whose flag in ``chosen`` is set."""
    if not any(chosen):
        return _NO_NAMES
    where = zip(names_of(schema), chosen, strict=True)
    return frozenset(name for name, is_chosen in where if is_chosen)
