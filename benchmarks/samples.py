"""Samples of the benchmarks: binary trees and sequences as flat arrays, and their readers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]

ROOT = Path(__file__).resolve().parent.parent
RANDOM = "random"  # in place of a data folder: samples are drawn
FILES = {"sst": ("train.txt",), "wikitext2": ("valid.txt", "test.txt")}


@dataclass(frozen=True)
class Tree:
    """A binary tree of n vertices; children come before their parents, the root is the last.

    Every array is int32[n]. ``left``, ``right``: vertex of the child, -1 at a leaf. ``token``: -1
    at an inner vertex. ``label``: -1 where there is none. ``height``: 0 at a leaf.
    """

    left: Ints
    right: Ints
    token: Ints
    label: Ints
    height: Ints

    def __len__(self) -> int:
        return len(self.left)


@dataclass(frozen=True)
class Sequence:
    """A chain of n tokens and a label for each; both int32[n]."""

    token: Ints
    label: Ints

    def __len__(self) -> int:
        return len(self.token)


Sample = Tree | Sequence


class Vocabulary:
    """Numbers of tokens in order of their first appearance; 0 is the unknown token."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {"<unk>": 0}

    def number(self, token: str) -> int:
        return self.numbers.setdefault(token, len(self.numbers))

    def __len__(self) -> int:
        return len(self.numbers)


def data_folder(name: str, given: str = "") -> Path:
    """Return the folder `name` of the data; FileNotFoundError says how to pass it."""
    base = given or os.environ.get("CAVS_DATA", "")
    if not base:
        raise FileNotFoundError(
            f"no data folder given: pass --data DIR or set CAVS_DATA (DIR holds {name}/), or pass "
            f"--data {RANDOM}, which draws samples of like sizes"
        )
    folder = Path(base) / name
    for path in (folder, *(folder / file for file in FILES.get(name, ()))):
        if not path.exists():
            raise FileNotFoundError(
                f"there is no {path}; --data DIR must hold {name}/, "
                f"or --data {RANDOM} draws samples"
            )
    return folder


_BRACKETS = re.compile(r"[()]|[^\s()]+")


def parse_tree(text: str, vocabulary: Vocabulary) -> Tree:
    """Parse one bracketed tree, ``(3 (2 It) (4 works))``, without recursion."""
    left: list[int] = []
    right: list[int] = []
    token: list[int] = []
    label: list[int] = []
    height: list[int] = []
    open_labels: list[int] = []
    open_children: list[list[int]] = []
    word = -1
    pieces = iter(_BRACKETS.findall(text))
    for piece in pieces:
        if piece == "(":
            open_labels.append(int(next(pieces)))
            open_children.append([])
        elif piece == ")":
            children = open_children.pop()
            if len(children) not in (0, 2):
                raise ValueError(f"a vertex with {len(children)} children; trees must be binary")
            inner = len(children) == 2
            left.append(children[0] if inner else -1)
            right.append(children[1] if inner else -1)
            token.append(-1 if inner else word)
            height.append(1 + max(height[children[0]], height[children[1]]) if inner else 0)
            label.append(open_labels.pop())
            if open_children:
                open_children[-1].append(len(left) - 1)
        else:
            word = vocabulary.number(piece)
    if open_labels:
        raise ValueError(f"{len(open_labels)} brackets are not closed")
    return Tree(*(np.array(a, np.int32) for a in (left, right, token, label, height)))


@lru_cache(maxsize=4)
def sentiment_trees(data: str, split: str = "train") -> tuple[list[Tree], int]:
    """Return the trees of a split of the Stanford Sentiment Treebank, and the vocabulary size."""
    path = data_folder("sst", data) / f"{split}.txt"
    vocabulary = Vocabulary()
    with path.open(encoding="utf-8") as lines:
        trees = [parse_tree(line, vocabulary) for line in lines if line.strip()]
    return trees, len(vocabulary)


@lru_cache(maxsize=4)
def random_trees(count: int) -> tuple[list[Tree], int]:
    """Return binary trees of sizes as in the treebank: 1 to 50 words, 19 on average."""
    random = np.random.default_rng(7)
    words = Vocabulary()
    for n in range(1, 16_000):
        words.number(f"w{n}")

    def text(leaves: int) -> str:
        label = int(random.integers(5))
        if leaves == 1:
            return f"({label} w{min(int(random.zipf(1.3)), 15_999)})"
        left = int(random.integers(1, leaves))
        return f"({label} {text(left)} {text(leaves - left)})"

    sizes = np.clip(random.normal(19, 9, count).astype(int), 1, 50)
    return [parse_tree(text(int(n)), words) for n in sizes], len(words)


@lru_cache(maxsize=4)
def random_text(tokens: int, vocabulary: int) -> tuple[list[Ints], int]:
    """Return sentences of 2 to 60 tokens, with at least ``tokens`` tokens in total."""
    random = np.random.default_rng(7)
    lengths = random.integers(2, 61, max(tokens // 2, 1))
    text = random.integers(0, vocabulary, int(lengths.sum())).astype(np.int32)
    return np.split(text, np.cumsum(lengths)[:-1]), vocabulary


def complete_tree(leaves: int, tokens: Ints, label: int) -> Tree:
    """Return the complete binary tree over `leaves` (a power of two); only the root has a label."""
    if leaves < 1 or leaves & (leaves - 1):
        raise ValueError(f"{leaves} leaves; a complete tree needs a power of two")
    n = 2 * leaves - 1
    left = np.full(n, -1, np.int32)
    height = np.zeros(n, np.int32)
    inner = np.arange(n - leaves, dtype=np.int32)
    left[leaves:] = 2 * inner
    right = np.where(left >= 0, left + 1, -1).astype(np.int32)
    first, width, level = 0, leaves, 0
    while width:
        height[first : first + width] = level
        first, width, level = first + width, width // 2, level + 1
    token = np.full(n, -1, np.int32)
    token[:leaves] = tokens
    labels = np.full(n, -1, np.int32)
    labels[-1] = label
    return Tree(left, right, token, labels, height)


def lattice(leaves: int, tokens: Ints, label: int) -> Tree:
    """Return all spans of a sentence, each above the two without its last and its first word.

    A DAG of binary vertices whose children are shared; labelled at the root only.
    """
    height = np.repeat(np.arange(leaves), np.arange(leaves, 0, -1)).astype(np.int32)
    below = np.arange(len(height), dtype=np.int32) - (leaves - height) - 1
    left = np.where(height > 0, below, -1).astype(np.int32)
    right = np.where(height > 0, below + 1, -1).astype(np.int32)
    token = np.full(len(height), -1, np.int32)
    token[:leaves] = tokens
    labels = np.full(len(height), -1, np.int32)
    labels[-1] = label
    return Tree(left, right, token, labels, height)


def _sentences(lines: Iterable[str]) -> Iterator[list[str]]:
    for line in lines:
        words = line.split()
        if not words or words[0] == "=":
            continue
        sentence: list[str] = []
        for word in words:
            sentence.append(word)
            if word in {".", "!", "?"}:
                yield sentence
                sentence = []
        if sentence:
            yield sentence


@lru_cache(maxsize=4)
def wikitext(data: str, limit: int) -> tuple[list[Ints], int]:
    """Return sentences of WikiText-2 (test and validation) as token ids, and the vocabulary size.

    The `limit` most frequent words keep a number of their own, the rest share 0.
    """
    folder = data_folder("wikitext2", data)
    text: list[list[str]] = []
    for name in FILES["wikitext2"]:
        with (folder / name).open(encoding="utf-8") as lines:
            text.extend(s for s in _sentences(lines) if len(s) > 1)
    counts: dict[str, int] = {}
    for sentence in text:
        for word in sentence:
            counts[word] = counts.get(word, 0) + 1
    counts.pop("<unk>", None)
    kept = sorted(counts, key=lambda word: (-counts[word], word))[: limit - 1]
    numbers = {word: i + 1 for i, word in enumerate(kept)}
    sentences = [np.array([numbers.get(w, 0) for w in s], np.int32) for s in text]
    return sentences, len(kept) + 1
