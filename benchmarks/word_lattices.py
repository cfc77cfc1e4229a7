"""Word lattices: chains of characters with a vertex for every word that a drawn lexicon has."""

from __future__ import annotations

from typing import Any

import numpy as np

import cavs


def lattice(
    rng: np.random.Generator, length: int, density: float = 0.5, longest: int = 4, size: int = 9
) -> cavs.Graph:
    """Return a chain of `length` characters, and words over some of its parts.

    A word gathers from its first character; its last one gathers from the character before, and
    from all words that end there. ``char`` and ``word`` are each absent at vertices of the other
    kind.
    """
    words = []
    for begin in range(length - 1):
        for end in range(begin + 1, min(length, begin + longest)):
            if rng.random() < density / longest:
                words.append((begin, end))
    children: list[list[int]] = [[i - 1] if i else [] for i in range(length)]
    for number, (_, end) in enumerate(words):
        children[end].append(length + number)
    children += [[begin] for begin, _ in words]
    n = len(children)
    char, word = np.full(n, -1), np.full(n, -1)
    char[:length] = rng.integers(0, size, length)
    word[length:] = rng.integers(0, size, n - length)
    label = np.where(char >= 0, char % 3, -1)
    return cavs.Graph(children, {"char": char, "word": word, "label": label})


def lattices(
    count: int, seed: int = 0, length: tuple[int, int] = (6, 20), **options: Any
) -> list[cavs.Graph]:
    """Return `count` lattices of drawn lengths."""
    rng = np.random.default_rng(seed)
    return [lattice(rng, int(rng.integers(*length)), **options) for _ in range(count)]
