"""Trees of the Stanford Sentiment Treebank: bracketed, labelled, one on each line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from cavs.config import require_count
from cavs.data.graph import Graph
from cavs.data.readers.bracket_parser import Style, parse_text
from cavs.data.readers.parsed_tree import ParsedTree
from cavs.data.source import as_items, as_path, data_error, read_lines, write_text_file
from cavs.data.vocabulary import Vocabulary, check_names, check_vocabulary
from cavs.errors import DataError

_FORMAT = "a tree is (label word) or (label tree ...), such as (3 (2 It) (4 works)), one a line"
_TREES = "trees of read_sst or parse_tree"
_READERS = "read_sst(path) returns trees such as (3 (2 It) (4 works))"


class Tree(ParsedTree[int]):
    """A tree of the treebank, named file:line, whose labels are numbers."""

    __slots__ = ()


def _style(num_classes: int, labels: Sequence[str] | None) -> tuple[dict[str, int], Style]:
    """Return the number of every label, and the rules of a line."""
    if labels is None:
        require_count("num_classes", num_classes)
        numbers = {str(i): i for i in range(num_classes)}
        needed = f"a label of 0..{num_classes - 1}"
    else:
        check_names("labels", labels)
        numbers = {label: i for i, label in enumerate(labels)}
        needed = f"one of {' '.join(labels):.80}"
    return numbers, Style(strict=True, known=numbers, needed=needed, hint=_FORMAT)


def _tree(line: str, numbers: dict[str, int], style: Style, path: Path, number: int) -> Tree:
    tree = parse_text(line, style, str(path), number, f"{path.name}:{number}")
    found = [numbers[label] for label in tree.labels if label is not None]  # every vertex has one
    return Tree(tree.name, found, tree.words, tree.offsets, tree.children)


def parse_tree(
    line: str,
    num_classes: int = 5,
    path: str | os.PathLike[str] | None = None,
    number: int = 1,
    labels: Sequence[str] | None = None,
) -> Tree:
    """Parse one bracketed tree, as ``(3 (2 It) (4 works))``.

    ``labels``: names, such as those of phrases in ``(S (NP It) (VP works))``, whose indices in the
    list are the numbers of the tree; without it labels are numbers already. ``path`` and
    ``number``: file and line for errors and the name of the tree.

    Raises DataError with file, line and column for unbalanced brackets, labels outside
    0..num_classes - 1 or ``labels``, several words in a leaf, an empty bracket, or text before or
    after the tree.
    """
    where = as_path("<text>" if path is None else path)
    return _tree(line, *_style(num_classes, labels), where, number)


def read_sst(
    path: str | os.PathLike[str], num_classes: int = 5, labels: Sequence[str] | None = None
) -> list[Tree]:
    """Read all trees of a file, one on each line, as `parse_tree`; empty lines are skipped.

    Raises DataError naming file and line for malformed or truncated trees and for text that is not
    UTF-8.
    """
    require_count("num_classes", num_classes)
    path = as_path(path)
    numbers, style = _style(num_classes, labels)
    trees = [
        _tree(line, numbers, style, path, number)
        for number, line in enumerate(read_lines(path), 1)
        if line.strip()
    ]
    if not trees:
        raise data_error(path, 1, "no tree in the file", "at least one", _FORMAT)
    return trees


def write_sst(path: str | os.PathLike[str], trees: Iterable[Tree]) -> None:
    """Write trees to a file, one on each line, which `read_sst` reads back."""
    found = as_items(trees, Tree, _TREES, _READERS)
    write_text_file(path, (f"{tree.to_brackets()}\n" for tree in found))


def sst_graphs(trees: Iterable[Tree], vocabulary: Vocabulary) -> list[Graph]:
    """Return graphs with int features ``token`` (-1 above the leaves) and ``label``."""
    trees = as_items(trees, Tree, _TREES, _READERS)
    if not trees:
        raise DataError("no trees to make graphs of", hint=_READERS)
    check_vocabulary("vocabulary", vocabulary)
    return [
        Graph(
            (np.array(tree.offsets, np.int32), np.array(tree.children, np.int32)),
            {"token": vocabulary.encode(tree.words), "label": np.array(tree.labels, np.int32)},
            name=tree.name,
        )
        for tree in trees
    ]
