"""The Stanford Sentiment Treebank: one bracketed, labelled tree a line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cavs.config import require_count
from cavs.data.graph import Graph
from cavs.data.source import data_error, read_lines, shown
from cavs.data.vocabulary import Vocabulary
from cavs.errors import ConfigError, DataError

_FORMAT = "a tree is (label word) or (label tree ...), such as (3 (2 It) (4 works)), one a line"
# ASCII blanks only: some tokens of the treebank contain a no-break space.
_TOKEN = re.compile(r"[()]|[^() \t\r\f\v]+")
_ESCAPES = {
    "-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tree:
    """A labelled tree, children before their parent, the root last.

    ``labels``: one for every vertex; ``words``: the word of a leaf, None above; ``offsets`` and
    ``children``: CSR as in ``Graph``; ``name``: file:line.
    """

    name: str
    labels: list[int]
    words: list[str | None]
    offsets: list[int]
    children: list[int]

    @property
    def tokens(self) -> list[str]:
        """The words of the leaves from left to right."""
        return [word for word in self.words if word is not None]


def unescape(word: str) -> str:
    r"""A Penn Treebank token as text: ``-LRB-`` is ``(``, ``\/`` is ``/``, ``\*`` is ``*``."""
    if word in _ESCAPES:
        return _ESCAPES[word]
    return word.replace("\\/", "/").replace("\\*", "*") if "\\" in word else word


class _Malformed(Exception):
    """What is wrong at which token of a line; ``parse_tree`` adds file, line and column."""

    def __init__(self, token: int, found: str, needed: str) -> None:
        super().__init__(found)
        self.token, self.found, self.needed = token, found, needed


def _numbers(num_classes: int, labels: Sequence[str] | None) -> tuple[dict[str, int], str]:
    """The number of every label, and what the labels are in words."""
    if labels is None:
        return {str(i): i for i in range(num_classes)}, f"a label of 0..{num_classes - 1}"
    if isinstance(labels, str):
        raise ConfigError(f"labels are a list, not the text {labels!r:.80}", hint="labels.split()")
    return {label: i for i, label in enumerate(labels)}, f"one of {' '.join(labels):.80}"


def _parse(tokens: list[str], names: Mapping[str, int], needed: str, name: str) -> Tree:
    labels: list[int] = []
    words: list[str | None] = []
    offsets, children = [0], list[int]()
    # Of every open bracket: its label, its word, and where its finished children start.
    open_labels: list[int] = []
    open_words: list[str | None] = []
    open_starts: list[int] = []
    done: list[int] = []  # vertices that still wait for their parent
    i, end = 0, len(tokens)
    while i < end:
        token = tokens[i]
        if token == "(":
            label = names.get(tokens[i + 1]) if i + 1 < end else None
            if label is None:
                found = f"label {shown(tokens[i + 1])}" if i + 1 < end else "the end of the line"
                raise _Malformed(i + 1, found, f"{needed} after the bracket")
            if not open_labels and labels:
                raise _Malformed(i, "a second tree", "the end of the line")
            if open_words and open_words[-1] is not None:
                raise _Malformed(i, "a bracket after a word", "')': a leaf has one word")
            open_labels.append(label)
            open_words.append(None)
            open_starts.append(len(done))
            i += 2
            continue
        if not open_labels:
            raise _Malformed(i, shown(token), "'('" if not labels else "the end of the line")
        if token == ")":
            start, word = open_starts.pop(), open_words.pop()
            if start == len(done) and word is None:
                raise _Malformed(i, "')'", "a word or a tree after the label")
            children += done[start:]
            del done[start:]
            done.append(len(labels))
            labels.append(open_labels.pop())
            words.append(word)
            offsets.append(len(children))
        elif open_words[-1] is not None:
            raise _Malformed(i, f"a second word {shown(token)}", "')': a leaf has one word")
        elif open_starts[-1] != len(done):
            raise _Malformed(i, f"word {shown(token)} beside a tree", "'(' or ')'")
        else:
            open_words[-1] = unescape(token)
        i += 1
    if open_labels:
        raise _Malformed(end, f"{len(open_labels)} open brackets at the end", "')' for each")
    return Tree(name, labels, words, offsets, children)


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
    tokens: list[str] = _TOKEN.findall(line)
    if not tokens:
        raise data_error(where, number, "an empty line", "a tree", _FORMAT)
    try:
        return _parse(tokens, *_numbers(num_classes, labels), f"{where.name}:{number}")
    except _Malformed as error:
        starts = [match.start() for match in _TOKEN.finditer(line)]
        column = starts[error.token] if error.token < len(starts) else len(line)
        found = f"column {column + 1}: {error.found}"
        raise data_error(where, number, found, error.needed, _FORMAT) from None


def read_sst(
    path: str | os.PathLike[str], num_classes: int = 5, labels: Sequence[str] | None = None
) -> list[Tree]:
    """All trees of a file, one a line; empty lines are skipped. ``labels``: see ``parse_tree``.

    Raises DataError naming file and line for malformed or truncated trees and for text that is not
    UTF-8.
    """
    require_count("num_classes", num_classes)
    path = Path(path)
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
        raise DataError("no trees to make graphs of", hint="read some with cavs.data.read_sst")
    return graphs
