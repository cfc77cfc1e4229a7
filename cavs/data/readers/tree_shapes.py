"""Other shapes of bracketed trees: at most two children, no vertex with one child, and back."""

from __future__ import annotations

from typing import Literal

from cavs.config import require
from cavs.data.readers.parsed_tree import BracketTree, escape, in_order
from cavs.data.source import shown
from cavs.errors import DataError


def binarise(
    tree: BracketTree,
    *,
    factor: Literal["left", "right"] = "right",
    siblings: int = 0,
    mark: str = "@",
) -> BracketTree:
    """Return the tree with at most two children a vertex; `unbinarise` gives the tree back.

    ``(A b c d)`` becomes ``(A b (@A c d))``, and with ``factor="left"`` ``(A (@A b c) d)``. The
    label of an added vertex is that of the vertex it divides, after ``mark``. With ``siblings=n``
    the labels (or words) of the first n of the children below it follow: ``@A<c-d>``.

    DataError if the tree has a label that begins with ``mark``.
    """
    _check(tree)
    require(factor in ("left", "right"), "factor", factor, "'left' or 'right'")
    _check_text("mark", mark)
    labels, words = list(tree.labels), list(tree.words)
    children = [tree.children_of(v) for v in range(len(labels))]
    for v in range(len(labels)):
        label, below = labels[v], children[v]
        if words[v] is None and label is not None and label.startswith(mark):
            raise _taken(
                tree, v, label, f"begins with {mark!r}, which marks added vertices", "mark"
            )
        while len(below) > 2:
            # From the vertices that are lowest in the result up to v.
            right = factor == "right"
            pair = below[-2:] if right else below[:2]
            covered = len(tree.children_of(v)) - len(below) + 2
            span = tree.children_of(v)[-covered:] if right else tree.children_of(v)[:covered]
            labels.append(f"{mark}{label or ''}{_named(labels, words, span[:siblings])}")
            words.append(None)
            children.append(pair)
            new = len(labels) - 1
            below = [*below[:-2], new] if right else [new, *below[2:]]
        children[v] = below
    return in_order(tree.name, labels, words, children, len(tree.labels) - 1)


def unbinarise(tree: BracketTree, *, mark: str = "@") -> BracketTree:
    """Return the tree without the vertices that `binarise` added with this ``mark``."""
    _check(tree)
    _check_text("mark", mark)
    children = [list[int]() for _ in tree.labels]
    for v in range(len(children)):  # children come first
        for child in tree.children_of(v):
            name = tree.labels[child]
            added = tree.words[child] is None and name is not None and name.startswith(mark)
            children[v] += children[child] if added else [child]
    return in_order(tree.name, tree.labels, tree.words, children, len(tree.labels) - 1)


def collapse_unary(
    tree: BracketTree, *, join: str | None = "+", leaves: bool = True, root: bool = True
) -> BracketTree:
    """Return the tree without vertices that have one child: each is joined with that child.

    ``(S (VP (V go)))`` becomes ``(S+VP+V go)``, which `expand_unary` undoes. ``join=None`` keeps
    the topmost label of each chain alone. ``leaves=False`` joins nothing with the labels of words
    (parts of speech), ``root=False`` nothing with that of the root.

    DataError if a label of the tree contains ``join``.
    """
    _check(tree)
    if join is not None:
        _check_text("join", join)
    labels, last = list(tree.labels), len(tree.labels) - 1
    words = list(tree.words)
    children = [tree.children_of(v) for v in range(len(labels))]
    for v, label in enumerate(tree.labels):
        if join is not None and label is not None and join in label:
            raise _taken(tree, v, label, f"contains {join!r}, which joins labels", "join")
        if len(children[v]) != 1 or (v == last and not root):
            continue
        (child,) = children[v]
        if words[child] is not None and not leaves:
            continue
        parts = [part for part in (label, labels[child]) if part is not None]
        labels[v] = (join.join(parts) if join is not None else parts[0]) if parts else None
        words[v], children[v] = words[child], children[child]
    return in_order(tree.name, labels, words, children, last)


def expand_unary(tree: BracketTree, *, join: str = "+") -> BracketTree:
    """Return the tree with a vertex for each of the labels that `collapse_unary` joined."""
    _check(tree)
    _check_text("join", join)
    labels, words = list(tree.labels), list(tree.words)
    children = [tree.children_of(v) for v in range(len(labels))]
    for v, label in enumerate(tree.labels):
        if label is None or join not in label:
            continue
        first, *others = label.split(join)
        labels[v], upper = first, v
        below, word = children[v], words[v]
        words[v] = None
        for part in others:
            labels.append(part)
            words.append(None)
            children.append([])
            children[upper] = [len(labels) - 1]
            upper = len(labels) - 1
        children[upper], words[upper] = below, word
    return in_order(tree.name, labels, words, children, len(tree.labels) - 1)


def _named(labels: list[str | None], words: list[str | None], vertices: list[int]) -> str:
    """Return the names of siblings as a label shows them."""
    names = (labels[v] or escape(words[v] or "") for v in vertices)
    return f"<{'-'.join(names)}>" if vertices else ""


def _check(tree: object) -> None:
    if not isinstance(tree, BracketTree):
        raise DataError(
            f"{tree!r:.80} is no tree of parse_brackets",
            hint="parse_brackets(text) and read_ptb(path) return trees",
        )


def _check_text(name: str, value: object) -> None:
    require(isinstance(value, str) and value != "", name, value, "a text that no label contains")


def _taken(tree: BracketTree, vertex: int, label: str, found: str, option: str) -> DataError:
    return DataError(
        f"{tree.name or '<tree>'}: vertex {vertex}: label {shown(label)} {found}",
        hint=f"pass another {option}=",
    )
