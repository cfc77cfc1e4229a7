"""Trees in Newick, the format of phylogenies: ``((a:1,b:2)ab:0.5,c);``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import ArrayLike

from cavs.data.features import NO_FEATURES
from cavs.data.graph import Graph
from cavs.data.numbering import Numbering, numbered
from cavs.data.readers.newick_parser import NewickTree, parse_trees
from cavs.data.source import as_items, as_path, read_text_file, shown, write_text_file
from cavs.data.structure import graph_error
from cavs.errors import DataError

_READERS = "parse_newick(text) and read_newick(path) return trees"


def read_newick(path: str | os.PathLike[str]) -> list[NewickTree]:
    """Read all trees of a file; each ends in a semicolon.

    Names are kept as they are in the file, with their underscores; names in quotes lose these.
    DataError with file, line and column for unbalanced brackets, two names of one vertex, lengths
    that are no finite numbers, quotes and comments without an end, and a last tree without its
    semicolon (a truncated file).
    """
    path = as_path(path)
    return parse_newick(read_text_file(path), path)


def parse_newick(text: str, path: str | os.PathLike[str] = "<text>") -> list[NewickTree]:
    """Parse all trees of a text; see `read_newick`."""
    return parse_trees(text, as_path(path))


def write_newick(path: str | os.PathLike[str], trees: Iterable[NewickTree]) -> None:
    """Write trees to a file, one on each line, which `read_newick` reads back."""
    found = as_items(trees, NewickTree, "trees of parse_newick", _READERS)
    write_text_file(path, (f"{tree.to_newick()}\n" for tree in found))


def from_newick(
    source: str | NewickTree,
    *,
    vocabulary: Numbering | None = None,
    default_length: float | None = None,
    graph_features: Mapping[str, ArrayLike] = NO_FEATURES,
    name: str = "",
) -> Graph:
    """Return the graph of a tree in Newick, children first, the root last.

    ``source`` is the text of one tree, or one that a reader returned. ``vocabulary`` numbers the
    names: the int feature ``name``, -1 for a vertex without one. If a branch has a length, the
    edges have the float feature ``length``; with ``default_length``, which is that of branches
    without one, they always have it.

    DataError for malformed text, several trees, names that have no number, and a branch without a
    length next to others that have one.
    """
    if isinstance(source, str):
        source, *others = parse_newick(source, name or "<text>")
        if others:
            raise DataError(
                f"{others[0].name}: a second tree; expected the end of the text",
                hint="parse_newick(text) returns all, from_newick takes each of them",
            )
        name = name or "<text>"
    if not isinstance(source, NewickTree):
        raise graph_error(
            name,
            f"from_newick takes a text or a tree of parse_newick, not {source!r:.80}",
            hint="decode bytes first: source.decode()" if isinstance(source, bytes) else _READERS,
        )
    label = name or source.name or "<text>"
    features, edge_features = {}, {}
    if vocabulary is not None:
        features["name"] = numbered(source.names, vocabulary, "name", f"{label}: vertex", 0)
    lengths = [source.lengths[child] for child in source.children]
    if default_length is not None or any(length is not None for length in lengths):
        if None in lengths and default_length is None:
            vertex = source.children[lengths.index(None)]
            raise DataError(
                f"{label}: vertex {vertex} ({shown(source.names[vertex] or '')}) has no length, "
                "others have one",
                hint="default_length=0.0 gives one to branches without",
            )
        edge_features["length"] = np.array(
            [default_length if length is None else length for length in lengths], np.float32
        )
    structure = np.array(source.offsets, np.int32), np.array(source.children, np.int32)
    return Graph(structure, features, edge_features, graph_features=graph_features, name=name)
