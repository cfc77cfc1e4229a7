"""The Stanford Sentiment Treebank: one bracketed, labelled tree a line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from cavs.config import require_count
from cavs.data.graph import Graph
from cavs.data.readers.brackets import ParsedTree, Style, parse_text
from cavs.data.source import as_path, data_error, read_lines
from cavs.data.vocabulary import Vocabulary
from cavs.errors import ConfigError, DataError

_FORMAT = "a tree is (label word) or (label tree ...), such as (3 (2 It) (4 works)), one a line"


class Tree(ParsedTree[int]):
    """A tree of the treebank, named file:line; its labels are numbers."""

    __slots__ = ()


def _numbers(num_classes: int, labels: Sequence[str] | None) -> tuple[dict[str, int], str]:
    """The number of every label, and what the labels are in words."""
    if labels is None:
        return {str(i): i for i in range(num_classes)}, f"a label of 0..{num_classes - 1}"
    if isinstance(labels, str):
        raise ConfigError(f"labels are a list, not the text {labels!r:.80}", hint="labels.split()")
    return {label: i for i, label in enumerate(labels)}, f"one of {' '.join(labels):.80}"


def parse_tree(
    line: str,
    num_classes: int = 5,
    path: Path | None = None,
    number: int = 1,
    labels: Sequence[str] | None = None,
) -> Tree:
    """One bracketed tree, as ``(3 (2 It) (4 works))``.

    ``labels``: names, such as those of phrases in ``(S (NP It) (VP works))``, whose places in the
    list are the numbers of the tree; without it labels are numbers already.

    Raises DataError with file, line and column for unbalanced brackets, labels outside
    0..num_classes - 1 or ``labels``, several words in a leaf, an empty bracket, or text beside the
    tree.
    """
    where = path or Path("<text>")
    if not isinstance(line, str):
        raise DataError(
            f"{where}:{number}: {line!r:.80} is no text; expected a tree",
            hint="decode bytes first: line.decode()" if isinstance(line, bytes) else _FORMAT,
        )
    numbers, needed = _numbers(num_classes, labels)
    style = Style(strict=True, known=numbers, needed=needed, hint=_FORMAT)
    tree = parse_text(line, style, str(where), number, f"{where.name}:{number}")
    found = [numbers[label] for label in tree.labels if label is not None]  # every vertex has one
    return Tree(tree.name, found, tree.words, tree.offsets, tree.children)


def read_sst(
    path: str | os.PathLike[str], num_classes: int = 5, labels: Sequence[str] | None = None
) -> list[Tree]:
    """All trees of a file, one a line; empty lines are skipped. ``labels``: see ``parse_tree``.

    Raises DataError naming file and line for malformed or truncated trees and for text that is not
    UTF-8.
    """
    require_count("num_classes", num_classes)
    path = as_path(path)
    trees = [
        parse_tree(line, num_classes, path, number, labels)
        for number, line in enumerate(read_lines(path), 1)
        if line.strip()
    ]
    if not trees:
        raise data_error(path, 1, "no tree in the file", "at least one", _FORMAT)
    return trees


def sst_graphs(trees: Iterable[Tree], vocabulary: Vocabulary) -> list[Graph]:
    """Graphs with int features ``token`` (-1 above the leaves) and ``label`` (every vertex)."""
    graphs = [
        Graph(
            (np.array(tree.offsets, np.int32), np.array(tree.children, np.int32)),
            {
                "token": vocabulary.encode(tree.words),
                "label": np.array(tree.labels, np.int32),
            },
            name=tree.name,
        )
        for tree in trees
    ]
    if not graphs:
        raise DataError(
            "no trees to make graphs of", hint="as read_sst reads: (3 (2 It) (4 works))"
        )
    return graphs
