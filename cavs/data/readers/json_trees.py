"""Trees as nested JSON objects: ``{"word": "sat", "children": [...]}``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from reprlib import repr as brief
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cavs.data.features import NO_FEATURES
from cavs.data.graph import Graph
from cavs.data.numbering import Numbering, numbered
from cavs.data.readers.attributes import NO_TYPE_FEATURES, attributes, typed_attributes
from cavs.data.readers.json_parser import JsonTree, parse_trees, tree_of
from cavs.data.source import as_items, as_path, read_text_file, write_text_file
from cavs.data.structure import graph_error, graph_label
from cavs.errors import DataError

_NO_NUMBERINGS: Mapping[str, Numbering] = MappingProxyType({})
_SET = '{"name": 1} in an object'
_READERS = "parse_json_trees(text) and read_json_trees(path) return trees"


def read_json_trees(path: str | os.PathLike[str], children: str = "children") -> list[JsonTree]:
    """Read the trees of a file: one object, a list of objects, or an object on each line.

    ``children``: the key of the list of an object's children, such as ``"Plans"``; an object
    without it is a leaf. DataError with file, line and column for what is not JSON, a file that was
    cut off, a root or a child that is no object, and children that are no list.
    """
    path = as_path(path)
    return parse_json_trees(read_text_file(path), children, path)


def parse_json_trees(
    text: str, children: str = "children", path: str | os.PathLike[str] = "<text>"
) -> list[JsonTree]:
    """Parse the trees of a text; see `read_json_trees`."""
    return parse_trees(text, children, as_path(path))


def write_json_trees(
    path: str | os.PathLike[str], trees: Iterable[JsonTree], children: str = "children"
) -> None:
    """Write trees to a file, an object on each line, which `read_json_trees` reads back."""
    found = as_items(trees, JsonTree, "trees of parse_json_trees", _READERS)
    write_text_file(path, (f"{tree.to_json(children)}\n" for tree in found))


def from_json(
    source: str | Mapping[str, Any] | JsonTree,
    *,
    features: Sequence[str] = (),
    numberings: Mapping[str, Numbering] = _NO_NUMBERINGS,
    types: str | None = None,
    type_features: Mapping[str, Sequence[str]] = NO_TYPE_FEATURES,
    children: str = "children",
    graph_features: Mapping[str, ArrayLike] = NO_FEATURES,
    name: str = "",
) -> Graph:
    """Return the graph of a tree as nested JSON objects, children first, the root last.

    ``source`` is the text of one tree, its outermost object, or the tree that a reader returned.
    ``features`` names keys whose numbers become features, as in ``from_networkx``. ``numberings``
    numbers the texts under other keys, such as ``{"word": vocabulary}``: int features, -1 where an
    object lacks the key. ``types`` names the key of the type of a vertex; ``type_features``, by
    type, keys whose numbers become features of the vertices of that type.

    DataError for malformed text and for texts that have no number, FeatureError for missing values
    that are not integers.
    """
    if isinstance(source, str):
        source, *others = parse_json_trees(source, children, name or "<text>")
        if others:
            raise DataError(
                f"{others[0].name}: a second tree; expected the end of the text",
                hint="parse_json_trees(text) returns all, from_json takes each of them",
            )
    elif isinstance(source, Mapping):
        source = tree_of(source, children, name or "<object>")
    if not isinstance(source, JsonTree):
        raise graph_error(
            name,
            f"from_json takes a text or a tree of parse_json_trees, not {source!r:.80}",
            hint="decode bytes first: source.decode()" if isinstance(source, bytes) else _READERS,
        )
    name = name or source.name
    found: dict[str, Any] = attributes(source.objects, features, "vertex", graph_label(name), _SET)
    for key, by in numberings.items():
        texts = [own.get(key) for own in source.objects]
        for vertex, text in enumerate(texts):
            if text is not None and not isinstance(text, str):
                raise DataError(
                    f"{name}: vertex {vertex} has {key} {brief(text)}, which is no text",
                    hint=f"features=[{key!r}] takes numbers",
                )
        found[key] = numbered(texts, by, key, f"{name}: vertex", 0)
    label = graph_label(name)
    of_each, typed = typed_attributes(source.objects, types, type_features, found, label, _SET)
    found |= typed
    structure = np.array(source.offsets, np.int32), np.array(source.children, np.int32)
    return Graph(structure, found, graph_features=graph_features, types=of_each, name=name)
