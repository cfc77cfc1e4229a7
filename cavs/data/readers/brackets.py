"""Bracketed trees: ``(S (NP the cat) (VP sat))``, ``((a b) c)``, and files of the Penn Treebank."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import ArrayLike

from cavs.data.features import NO_FEATURES
from cavs.data.graph import Graph
from cavs.data.numbering import Numbering, numbered
from cavs.data.readers.bracket_parser import Style, parse_several, parse_text
from cavs.data.readers.parsed_tree import BracketTree
from cavs.data.source import as_items, as_path, read_text_file, write_text_file
from cavs.data.structure import graph_error
from cavs.errors import DataError


def parse_brackets(text: str, *, labelled: bool = True, name: str = "") -> BracketTree:
    """Parse one bracketed tree, on one line or several, as ``(S (NP the cat) (VP sat))``.

    A bracket around one word is a leaf; each word next to other words or brackets is a leaf of its
    own. ``labelled``: a bracket begins with its label. Without, as in ``((a b) c)``, it begins with
    a word or a bracket, and a single word needs no bracket. The outermost bracket of
    ``( (S (NP it) (VP works)) )``, which the Penn Treebank puts around each tree, is left out.

    Raises DataError with ``name``, line and column for unbalanced brackets, a bracket that is empty
    or lacks its label, and text before or after the tree. `parse_ptb` reads several trees.
    """
    return parse_text(text, Style(labelled), name or "<text>", 1, name)


def parse_ptb(text: str, path: str | os.PathLike[str] = "<text>") -> list[BracketTree]:
    """Parse the trees of a Penn Treebank text, each on one line or several, named ``path:line``.

    A tree is labelled, as for `parse_brackets`. An outermost bracket without a label is left out;
    around several trees, as in ``( (S (NP it) (VP works)) (. .) )``, it is a root whose label is
    None.

    Raises DataError with ``path``, line and column, as `parse_brackets`, and for a text without a
    tree.
    """
    return parse_several(text, Style(joined=True), as_path(path))


def read_ptb(path: str | os.PathLike[str]) -> list[BracketTree]:
    """Read all trees of a Penn Treebank file (``.mrg``), each on one line or several.

    See `parse_ptb`. DataError also for a file that is missing, unreadable, empty or not UTF-8.
    """
    path = as_path(path)
    return parse_ptb(read_text_file(path), path)


def write_ptb(path: str | os.PathLike[str], trees: Iterable[BracketTree]) -> None:
    """Write trees to a file of the Penn Treebank, which `read_ptb` reads back.

    Each is on a line of its own, in the outermost bracket that the treebank puts around it.
    DataError for a tree that `BracketTree.to_brackets` refuses.
    """
    hint = "parse_brackets(text) and read_ptb(path) return trees"
    found = as_items(trees, BracketTree, "trees of parse_brackets", hint)
    write_text_file(path, map(_ptb_line, found))


def _ptb_line(tree: BracketTree) -> str:
    root = len(tree.labels) - 1
    below = tree.children_of(root) if tree.labels[root] is None else []
    for v, (label, word) in enumerate(zip(tree.labels, tree.words, strict=True)):
        holds = len(below) > 1 if v == root else word is not None and v not in below
        if label is None and not holds:
            raise DataError(
                f"{tree.name or '<tree>'}: vertex {v} has no label, as trees of the Penn Treebank "
                "have",
                hint="tree.to_brackets() writes a tree without labels",
            )
    text = tree.to_brackets()
    return f"{text}\n" if tree.labels[root] is None else f"( {text} )\n"


def from_brackets(
    source: str | BracketTree,
    *,
    vocabulary: Numbering | None = None,
    labels: Numbering | None = None,
    labelled: bool = True,
    graph_features: Mapping[str, ArrayLike] = NO_FEATURES,
    name: str = "",
) -> Graph:
    """Return the graph of a bracketed tree, children first, the root last.

    ``source`` is a text, see `parse_brackets`, or the tree that a reader returned, whose words and
    labels can be numbered first.

    ``vocabulary`` numbers the words: the int feature ``token``, -1 above the leaves. ``labels``
    numbers the labels: the int feature ``label``, -1 where a vertex has none. Each is a
    ``Vocabulary``, a list of names, a mapping, or a function such as ``int``; without it the graph
    lacks the feature. ``graph_features`` are those of ``Graph``.

    DataError for malformed text, and for words and labels that have no number.
    """
    if isinstance(source, str):
        source = parse_brackets(source, labelled=labelled, name=name)
    if not isinstance(source, BracketTree):
        raise graph_error(
            name,
            f"from_brackets takes a text or a tree of parse_brackets, not {source!r:.80}",
            hint="decode bytes first: source.decode()"
            if isinstance(source, bytes)
            else "parse_brackets(text) and read_ptb(path) return trees",
        )
    name = name or source.name
    features = {}
    for feature, what, texts, by in (
        ("token", "word", source.words, vocabulary),
        ("label", "label", source.labels, labels),
    ):
        if by is not None:
            features[feature] = numbered(texts, by, what, f"{name or '<text>'}: vertex", 0)
    structure = np.array(source.offsets, np.int32), np.array(source.children, np.int32)
    return Graph(structure, features, graph_features=graph_features, name=name)
